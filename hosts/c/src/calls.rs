//! A worker's open calls, by numbers that are used once: a stale number from C never refers to another call.

use wave_core::clock::Nanos;
use wave_core::message::Subject;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    /// The call's subject at the worker.
    pub(crate) subject: Subject,
    /// End of the client's wait; `None` if there is none.
    pub(crate) deadline: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    generation: u32,
    open: Option<Open>,
}

/// The open calls of a worker.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// By the call's id, which is below the configured number of calls.
    slots: Vec<Slot>,
}

impl Calls {
    pub(crate) fn begin(&mut self, open: Open) -> u64 {
        let id = open.subject.id as usize;
        if id >= self.slots.len() {
            self.slots.resize(id + 1, Slot::default());
        }
        let slot = &mut self.slots[id];
        // Never zero, so that an uninitialized (zero) number is invalid.
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        slot.open = Some(open);
        number(open.subject.id, slot.generation)
    }

    /// The open call with this number.
    pub(crate) fn find(&self, call: u64) -> Option<Open> {
        let slot = self.slots.get(call as u32 as usize)?;
        slot.open.filter(|_| slot.generation == (call >> 32) as u32)
    }

    /// The number of the open call with this subject.
    pub(crate) fn number(&self, subject: Subject) -> Option<u64> {
        let slot = self.slots.get(subject.id as usize)?;
        let open = slot.open.filter(|open| open.subject == subject)?;
        Some(number(open.subject.id, slot.generation))
    }

    pub(crate) fn end(&mut self, call: u64) {
        if self.find(call).is_some() {
            self.slots[call as u32 as usize].open = None;
        }
    }

    /// Ends all open calls, and returns their numbers.
    pub(crate) fn end_all(&mut self) -> Vec<u64> {
        let ended = self.slots.iter_mut().filter_map(|slot| {
            let open = slot.open.take()?;
            Some(number(open.subject.id, slot.generation))
        });
        ended.collect()
    }
}

fn number(id: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_reused_for_the_same_subject_of_another_agent() {
        let mut calls = Calls::default();
        let subject = Subject { id: 3, generation: 1 };
        let open = Open { subject, deadline: None };
        let first = calls.begin(open);
        assert_ne!(first, 0);
        assert_eq!(calls.number(subject), Some(first));
        assert_eq!(calls.end_all(), [first]);
        let second = calls.begin(open);
        assert_ne!(first, second);
        assert!(calls.find(first).is_none());
        calls.end(first);
        assert!(calls.find(second).is_some(), "a stale number ended another call");
        calls.end(second);
        assert!(calls.find(second).is_none());
        assert!(calls.end_all().is_empty());
        for never in [0, 3, 1 << 32, u64::MAX] {
            assert!(calls.find(never).is_none());
        }
    }
}
