//! Returns the memory that a flood of calls and connections has left.

use std::sync::Arc;

use wave_core::clock::Nanos;
use wave_links::heap;

use crate::admission::Admission;

/// Interval between checks of the memory that calls and connections take.
const LOOK_EVERY: Nanos = Nanos::from_millis(50);
/// Shortest interval between returns of memory, during which calls wait.
const RELEASE_EVERY: Nanos = Nanos::from_millis(1_000);
/// Smaller amounts are not worth returning.
const RELEASE_BYTES: usize = 16 << 20;

/// Returns memory to the system after the load of calls and connections has fallen.
#[derive(Debug)]
pub struct Spare {
    admission: Arc<Admission>,
    looked: Nanos,
    released: Nanos,
    /// Load of the admission at the last look.
    load: usize,
    /// Highest load since memory was last returned.
    height: usize,
}

impl Spare {
    /// Watches a front with these connections.
    pub fn new(admission: Arc<Admission>) -> Spare {
        Spare { admission, looked: Nanos(0), released: Nanos(0), load: 0, height: 0 }
    }

    pub fn look(&mut self, now: Nanos) {
        if now.since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        if self.is_due(now, self.admission.load()) {
            heap::release();
        }
    }

    fn is_due(&mut self, now: Nanos, load: usize) -> bool {
        // While the load falls, waiting lets more memory be returned at once.
        let falls = load < std::mem::replace(&mut self.load, load);
        self.height = self.height.max(load);
        let is_worth_it = self.height - load >= RELEASE_BYTES.max(load);
        if falls || !is_worth_it || now.since(self.released) < RELEASE_EVERY {
            return false;
        }
        (self.released, self.height) = (now, load);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Totals;

    #[test]
    fn memory_is_returned_once_after_a_flood() {
        let admission = Admission::new(1, Arc::new(Totals::new(0)));
        let mut spare = Spare::new(Arc::new(admission));
        let at = |look: u64| Nanos(RELEASE_EVERY.0 + look);
        let loads = [0, 40 << 20, 30 << 20, 10 << 20, 9 << 20, 9 << 20, 9 << 20];
        let due: Vec<_> =
            (0..).zip(loads).map(|(look, load)| spare.is_due(at(look), load)).collect();
        assert_eq!(due, [false, false, false, false, false, true, false]);
        // Memory is not returned again at once.
        for load in [100 << 20, 0, 0] {
            assert!(!spare.is_due(at(10), load));
        }
        assert!(spare.is_due(at(5) + RELEASE_EVERY, 0));
        // A small amount is kept.
        for load in [RELEASE_BYTES - 1, 0, 0] {
            assert!(!spare.is_due(at(6) + RELEASE_EVERY + RELEASE_EVERY, load));
        }
    }
}
