//! The operator's limits: while one is exceeded, nothing is paged out.
//!
//! *Slowdown* is the time that the programs lose to refaults, as a share of the time: the number of refaults, times the time of
//! one on this machine. It is compared with its limit twice. Over the last minute, without the pages of sweeps: a program that
//! passes once through all of its memory, as a garbage collector does, loses that time whether or not its pages are paged out
//! again, so a sweep pays only for itself. And over ten minutes with all refaults: memory that is swept too often is not worth
//! paging out.
//!
//! There is an optional limit on the number of pages, as a share of those in the fast tier. Source: the promotion rate of
//! Google's far memory (Lagar-Cavilla, ASPLOS 2019), from which SOL's authors take their limit.

use wave_core::clock::Nanos;

/// The window in which refaults count.
pub const WINDOW: Nanos = Nanos::from_millis(60_000);
/// The window in which refaults of sweeps count.
pub const LONG_WINDOW: Nanos = Nanos::from_millis(600_000);
const BUCKETS: usize = 12;
const LONG_BUCKETS: usize = 60;
/// The time of a refault where it was not measured.
const REFAULT: Nanos = Nanos::from_micros(10);

/// The limits above which page-outs are held back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Time that the programs lose to refaults, as a share of all time.
    pub slowdown: f64,
    /// Refaults in a minute, as a share of the pages in the fast tier; infinity: no limit.
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
    /// Refaults cost the programs too much time.
    Slowdown,
    /// Too many refaults.
    Refaults,
    /// Tasks waited for memory for too long.
    Pressure,
}

/// The state of the programs and of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Pages in the fast tier.
    pub resident_pages: u64,
    /// The pressure now, as in [`Limits::pressure_percent`].
    pub pressure_percent: f64,
    /// The time of a refault, if it was measured.
    pub refault: Option<Nanos>,
}

/// Counts refaults, and decides when page-outs are held back.
#[derive(Clone, Debug)]
pub struct Guard {
    limits: Limits,
    /// All refaults of the last minute, and those of sweeps.
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

    /// Sets the state of the programs and of the machine.
    pub fn update(&mut self, standing: Standing) {
        self.standing = standing;
    }

    /// Counts pages that came back.
    pub fn refaulted(&mut self, now: Nanos, pages: u64) {
        self.minute.add(now, now, pages);
        self.long.add(now, now, pages);
    }

    /// Reports that `pages` of the refaults at `then` were a sweep's: touched once, and not again.
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

    /// Why page-outs are held back now; `None` if they are not.
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

/// Counts over a moving span of time.
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

    /// Adds a count at time `then`, if that is within the span.
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

    /// With 1000 pages in the fast tier, and refaults of 100 us each.
    fn guard(limits: Limits) -> Guard {
        let mut guard = Guard::new(limits);
        let refault = Some(Nanos::from_micros(100));
        guard.update(Standing { resident_pages: 1_000, pressure_percent: 0.0, refault });
        guard
    }

    #[test]
    fn refaults_count_for_a_minute() {
        let mut guard = guard(Limits { refaults_per_minute: 0.002, ..Limits::NONE });
        guard.refaulted(at(7), 2);
        assert_eq!(guard.held(at(7)), None, "2 of 1000 equals the limit");
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
    fn slowdown_is_lost_time_not_a_number_of_pages() {
        // A hundredth of a minute is 600 ms: 6,000 refaults.
        let mut guard = guard(Limits::default());
        guard.refaulted(at(100), 6_000);
        assert_eq!((guard.held(at(100)), guard.slowdown(at(100))), (None, 0.01));
        guard.refaulted(at(101), 1);
        assert_eq!(guard.held(at(101)), Some(Held::Slowdown));
        guard.standing.refault = Some(Nanos::from_micros(4));
        assert_eq!(guard.held(at(101)), None, "refaults cost less on a faster device");
        guard.standing.refault = Some(Nanos::from_micros(100));
        assert_eq!(guard.held(at(159)), Some(Held::Slowdown));
        assert_eq!(guard.held(at(161)), None);
    }

    #[test]
    fn refaults_of_sweeps_count_only_over_ten_minutes() {
        let mut guard = guard(Limits::default());
        guard.refaulted(at(100), 30_000);
        assert_eq!(guard.held(at(102)), Some(Held::Slowdown), "the pages may be a new working set");
        guard.swept(at(110), at(100), 30_000);
        assert_eq!(guard.held(at(110)), None, "the pages were touched once");
        // The limit over ten minutes has room for two sweeps.
        guard.refaulted(at(200), 30_000);
        guard.swept(at(210), at(200), 30_000);
        assert_eq!(guard.held(at(210)), None);
        guard.refaulted(at(300), 30_000);
        guard.swept(at(310), at(300), 30_000);
        assert_eq!(guard.held(at(310)), Some(Held::Slowdown), "the memory is swept too often");
        assert_eq!(guard.held(at(720)), None);
    }
}
