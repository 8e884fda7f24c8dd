//! The limits that an operator sets: while one is passed, nothing is paged out.
//!
//! *Slowdown* is the time that the programs lose: the pages that come back because they were touched, times what one
//! takes on this machine, as a share of the time. It is compared with its limit twice. Over the last minute, without
//! the pages of sweeps: what goes through all of its memory once, as a garbage collector does, loses that time whether or
//! not its pages are paged out again, so a sweep costs itself and no more. And over ten minutes with all of them: memory
//! that is swept too often is not worth paging out.
//!
//! A limit on pages, as a share of those in the fast tier, is there for those who want it. Source: the promotion rate of
//! Google's far memory (Lagar-Cavilla, ASPLOS 2019), which SOL's authors take their limit from.

use wave_core::clock::Nanos;

/// How far back refaults count.
pub const WINDOW: Nanos = Nanos::from_millis(60_000);
/// How far back those of sweeps count.
pub const LONG_WINDOW: Nanos = Nanos::from_millis(600_000);
const BUCKETS: usize = 12;
const LONG_BUCKETS: usize = 60;
/// What a refault takes where nobody has measured it.
const REFAULT: Nanos = Nanos::from_micros(10);

/// What holds page-outs back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Time that the programs lose because pages come back, as a share of all time.
    pub slowdown: f64,
    /// Pages that come back in a minute, as a share of those in the fast tier; infinite where that is no limit.
    pub refaults_per_minute: f64,
    /// Share of time in which some task waits for memory (the kernel's `some avg10`), in percent.
    pub pressure_percent: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { slowdown: 0.01, refaults_per_minute: f64::INFINITY, pressure_percent: 10.0 }
    }
}

impl Limits {
    /// Limits that hold nothing back.
    pub const NONE: Limits = Limits {
        slowdown: f64::INFINITY,
        refaults_per_minute: f64::INFINITY,
        pressure_percent: 100.0,
    };
}

/// Why page-outs are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Pages that come back cost the programs too much time.
    Slowdown,
    /// Too many pages come back.
    Refaults,
    /// Tasks waited for memory for too long.
    Pressure,
}

/// How the programs and the machine stand.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Pages in the fast tier.
    pub resident_pages: u64,
    /// As [`Limits::pressure_percent`].
    pub pressure_percent: f64,
    /// What a refault takes, if that was measured.
    pub refault: Option<Nanos>,
}

/// Counts refaults, and says when to hold back.
#[derive(Clone, Debug)]
pub struct Guard {
    limits: Limits,
    /// All of the last minute, and those of them that sweeps made.
    minute: Window<BUCKETS>,
    swept: Window<BUCKETS>,
    long: Window<LONG_BUCKETS>,
    standing: Standing,
}

impl Guard {
    /// A guard with these limits.
    pub fn new(limits: Limits) -> Guard {
        Guard {
            limits,
            minute: Window::new(WINDOW),
            swept: Window::new(WINDOW),
            long: Window::new(LONG_WINDOW),
            standing: Standing::default(),
        }
    }

    /// How the programs and the machine stand.
    pub fn look(&mut self, standing: Standing) {
        self.standing = standing;
    }

    /// Counts pages that came back.
    pub fn refaulted(&mut self, now: Nanos, pages: u64) {
        self.minute.add(now, now, pages);
        self.long.add(now, now, pages);
    }

    /// Of the pages that came back at `then`, these were a sweep's: touched once, and not again.
    pub fn swept(&mut self, now: Nanos, then: Nanos, pages: u64) {
        self.swept.add(now, then, pages);
    }

    /// Refaults in the last minute.
    pub fn refaults(&mut self, now: Nanos) -> u64 {
        self.minute.sum(now)
    }

    /// Share of the last minute that the programs lost, sweeps included.
    pub fn slowdown(&mut self, now: Nanos) -> f64 {
        let pages = self.minute.sum(now);
        self.lost(pages, WINDOW)
    }

    /// Whether to page nothing out now, and why.
    pub fn held(&mut self, now: Nanos) -> Option<Held> {
        let (pages, swept) = (self.minute.sum(now), self.swept.sum(now));
        let of_minute = self.lost(pages.saturating_sub(swept), WINDOW);
        let pages_long = self.long.sum(now);
        let slowdown = of_minute.max(self.lost(pages_long, LONG_WINDOW));
        let most = self.limits.refaults_per_minute * self.standing.resident_pages as f64;
        if slowdown > self.limits.slowdown {
            Some(Held::Slowdown)
        } else if self.limits.refaults_per_minute.is_finite() && pages as f64 > most {
            Some(Held::Refaults)
        } else {
            (self.standing.pressure_percent > self.limits.pressure_percent)
                .then_some(Held::Pressure)
        }
    }

    fn lost(&self, pages: u64, of: Nanos) -> f64 {
        pages as f64 * self.standing.refault.unwrap_or(REFAULT).0 as f64 / of.0 as f64
    }
}

/// Counts of a span of time that moves on.
#[derive(Clone, Debug)]
struct Window<const N: usize> {
    buckets: [u64; N],
    bucket: Nanos,
    /// The number of the newest bucket since time zero.
    newest: u64,
}

impl<const N: usize> Window<N> {
    fn new(span: Nanos) -> Window<N> {
        Window { buckets: [0; N], bucket: Nanos(span.0 / N as u64), newest: 0 }
    }

    /// Counts what was at `then`, if that is within the span.
    fn add(&mut self, now: Nanos, then: Nanos, count: u64) {
        self.turn(now);
        let number = then.0 / self.bucket.0;
        if number <= self.newest && self.newest - number < N as u64 {
            self.buckets[(number % N as u64) as usize] += count;
        }
    }

    fn sum(&mut self, now: Nanos) -> u64 {
        self.turn(now);
        self.buckets.iter().sum()
    }

    fn turn(&mut self, now: Nanos) {
        let number = now.0 / self.bucket.0;
        for passed in self.newest..number.min(self.newest + N as u64) {
            self.buckets[((passed + 1) % N as u64) as usize] = 0;
        }
        self.newest = self.newest.max(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Nanos {
        Nanos::from_millis(seconds * 1_000)
    }

    /// With 1000 pages in the fast tier, and refaults that take 100 us.
    fn guard(limits: Limits) -> Guard {
        let mut guard = Guard::new(limits);
        let refault = Some(Nanos::from_micros(100));
        guard.look(Standing { resident_pages: 1_000, pressure_percent: 0.0, refault });
        guard
    }

    #[test]
    fn a_minute_of_refaults_counts_and_no_more() {
        let mut guard = guard(Limits { refaults_per_minute: 0.002, ..Limits::NONE });
        guard.refaulted(at(7), 2);
        assert_eq!(guard.held(at(7)), None, "2 of 1000 is the limit itself");
        guard.refaulted(at(20), 1);
        assert_eq!(guard.held(at(20)), Some(Held::Refaults));
        assert_eq!(guard.refaults(at(64)), 3);
        assert_eq!(guard.held(at(64)), Some(Held::Refaults));
        assert_eq!((guard.refaults(at(65)), guard.held(at(65))), (1, None));
        assert_eq!(guard.refaults(at(3_600)), 0);
        guard.limits.pressure_percent = 10.0;
        guard.standing.pressure_percent = 11.0;
        assert_eq!(guard.held(at(3_600)), Some(Held::Pressure));
    }

    #[test]
    fn what_counts_is_the_time_that_is_lost_and_not_the_number_of_pages() {
        // A hundredth of a minute is 600 ms: 6,000 of these.
        let mut guard = guard(Limits::default());
        guard.refaulted(at(100), 6_000);
        assert_eq!((guard.held(at(100)), guard.slowdown(at(100))), (None, 0.01));
        guard.refaulted(at(101), 1);
        assert_eq!(guard.held(at(101)), Some(Held::Slowdown));
        guard.standing.refault = Some(Nanos::from_micros(4));
        assert_eq!(guard.held(at(101)), None, "on a faster device it is less");
        guard.standing.refault = Some(Nanos::from_micros(100));
        assert_eq!(guard.held(at(159)), Some(Held::Slowdown));
        assert_eq!(guard.held(at(161)), None);
    }

    #[test]
    fn a_sweep_costs_itself_and_not_the_rest_of_the_run() {
        let mut guard = guard(Limits::default());
        guard.refaulted(at(100), 30_000);
        assert_eq!(guard.held(at(102)), Some(Held::Slowdown), "it may be a new working set");
        guard.swept(at(110), at(100), 30_000);
        assert_eq!(guard.held(at(110)), None, "it was touched once");
        // Ten minutes have room for two of them.
        guard.refaulted(at(200), 30_000);
        guard.swept(at(210), at(200), 30_000);
        assert_eq!(guard.held(at(210)), None);
        guard.refaulted(at(300), 30_000);
        guard.swept(at(310), at(300), 30_000);
        assert_eq!(guard.held(at(310)), Some(Held::Slowdown), "it is swept too often");
        assert_eq!(guard.held(at(720)), None);
    }
}
