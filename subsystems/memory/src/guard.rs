//! The limit on refaults that an operator sets: while it is passed, nothing is paged out.
//!
//! Pages that come back because they were touched are counted over the last minute, against what is in the
//! fast tier now. Source: the promotion rate of Google's far memory (Lagar-Cavilla, ASPLOS 2019), which SOL's
//! authors take their limit from.

use wave_core::clock::Nanos;

/// How far back refaults count.
pub const WINDOW: Nanos = Nanos::from_millis(60_000);
const BUCKETS: usize = 12;
const BUCKET: Nanos = Nanos(WINDOW.0 / BUCKETS as u64);

/// What holds page-outs back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Pages that come back in a minute, as a share of those in the fast tier.
    pub refaults_per_minute: f64,
    /// Share of time in which some task waits for memory (the kernel's `some avg10`), in percent.
    pub pressure_percent: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { refaults_per_minute: 0.002, pressure_percent: 10.0 }
    }
}

/// Why page-outs are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Too many pages come back.
    Refaults,
    /// Tasks waited for memory for too long.
    Pressure,
}

/// Counts refaults, and says when to hold back.
#[derive(Clone, Debug)]
pub struct Guard {
    limits: Limits,
    buckets: [u64; BUCKETS],
    /// The number of the newest bucket since time zero.
    newest: u64,
    resident_pages: u64,
    pressure_percent: f64,
}

impl Guard {
    /// A guard with these limits.
    pub fn new(limits: Limits) -> Guard {
        let (resident_pages, pressure_percent) = (0, 0.0);
        Guard { limits, buckets: [0; BUCKETS], newest: 0, resident_pages, pressure_percent }
    }

    /// How the machine stands.
    pub fn look(&mut self, resident_pages: u64, pressure_percent: f64) {
        (self.resident_pages, self.pressure_percent) = (resident_pages, pressure_percent);
    }

    /// Counts pages that came back.
    pub fn refaulted(&mut self, now: Nanos, pages: u64) {
        self.turn(now);
        self.buckets[(self.newest % BUCKETS as u64) as usize] += pages;
    }

    /// Refaults in the last minute.
    pub fn refaults(&mut self, now: Nanos) -> u64 {
        self.turn(now);
        self.buckets.iter().sum()
    }

    /// Whether to page nothing out now, and why.
    pub fn held(&mut self, now: Nanos) -> Option<Held> {
        let limit = self.limits.refaults_per_minute * self.resident_pages as f64;
        if self.refaults(now) as f64 > limit {
            Some(Held::Refaults)
        } else {
            (self.pressure_percent > self.limits.pressure_percent).then_some(Held::Pressure)
        }
    }

    fn turn(&mut self, now: Nanos) {
        let number = now.0 / BUCKET.0;
        for passed in self.newest..number.min(self.newest + BUCKETS as u64) {
            self.buckets[((passed + 1) % BUCKETS as u64) as usize] = 0;
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

    #[test]
    fn a_minute_of_refaults_counts_and_no_more() {
        let mut guard = Guard::new(Limits::default());
        guard.look(1_000, 0.0);
        guard.refaulted(at(7), 2);
        assert_eq!(guard.held(at(7)), None, "2 of 1000 is the limit itself");
        guard.refaulted(at(20), 1);
        assert_eq!(guard.held(at(20)), Some(Held::Refaults));
        assert_eq!(guard.refaults(at(64)), 3);
        assert_eq!(guard.held(at(64)), Some(Held::Refaults));
        assert_eq!((guard.refaults(at(65)), guard.held(at(65))), (1, None));
        assert_eq!(guard.refaults(at(3_600)), 0);
        guard.look(1_000, 11.0);
        assert_eq!(guard.held(at(3_600)), Some(Held::Pressure));
    }
}
