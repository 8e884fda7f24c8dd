//! The sequencer at the entry of a data path: it numbers entries, so that replicas of a stage may overtake each other and the
//! order can be restored (thesis 4.3.2).

/// Numbers entries, from 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequencer {
    next: u64,
}

impl Sequencer {
    /// Returns the next entry's number. Numbers have no gaps.
    pub fn stamp(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}
