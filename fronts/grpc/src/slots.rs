//! A table of calls, each with a waker of its own, and the list of woken calls: an executor without tasks. A slot's waker is
//! made once.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use wave_agent::lanes::Sleeper;

/// Slots that were woken, and the core that sleeps until one is.
#[derive(Debug, Default)]
pub struct Ready {
    woken: Mutex<Woken>,
    is_to_end: AtomicBool,
    /// Whether the owner sleeps, or is about to.
    is_parked: AtomicBool,
}

#[derive(Debug, Default)]
struct Woken {
    slots: Vec<u32>,
    rung: bool,
    sleeper: Option<Waker>,
}

impl Ready {
    fn with<R>(&self, what: impl FnOnce(&mut Woken) -> R) -> R {
        what(&mut self.woken.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the sleeping core, or keeps it from falling asleep.
    pub fn ring(&self) {
        self.ring_for(None);
    }

    fn ring_for(&self, slot: Option<u32>) {
        let sleeper = self.with(|woken| {
            woken.slots.extend(slot);
            woken.rung = true;
            woken.sleeper.take()
        });
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Records that the owner is about to sleep. It looks at its queues once more after this.
    pub fn prepare_park(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Clears the flag that says that this core is parked.
    pub fn unpark(&self) {
        self.is_parked.store(false, Ordering::Relaxed);
    }

    /// Asks the owner of the slots to end.
    pub fn end(&self) {
        self.is_to_end.store(true, Ordering::Release);
        self.ring();
    }

    pub fn is_to_end(&self) -> bool {
        self.is_to_end.load(Ordering::Acquire)
    }

    /// Whether there was a ring since the last call. Clears it.
    pub fn take_rung(&self) -> bool {
        self.with(|woken| std::mem::take(&mut woken.rung))
    }

    /// Whether there was a ring, without clearing it.
    pub fn is_rung(&self) -> bool {
        self.with(|woken| woken.rung)
    }

    /// Sets the waker of the owner. Returns whether there is no need to sleep.
    pub fn sleep(&self, waker: &Waker) -> bool {
        self.with(|woken| {
            woken.sleeper = Some(waker.clone());
            woken.rung
        })
    }

    /// Records that the sleeper is awake, and need not be woken.
    pub fn awake(&self) {
        self.with(|woken| woken.sleeper = None);
    }

    /// Moves the woken slots to `slots`.
    pub fn take(&self, slots: &mut Vec<u32>) {
        self.with(|woken| slots.append(&mut woken.slots));
    }
}

impl Sleeper for Ready {
    /// An owner that is awake looks at its queues anyway.
    fn ring_if_parked(&self) {
        // Either this load sees `is_parked`, or the owner's last look sees what was put into its lanes before.
        fence(Ordering::SeqCst);
        if self.is_parked.load(Ordering::Relaxed) {
            self.ring();
        }
    }
}

#[derive(Debug)]
struct SlotWaker {
    slot: u32,
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.ready.ring_for(Some(self.slot));
        }
    }
}

#[derive(Debug)]
struct Slot<T> {
    /// Boxed, because slots remain after a flood, and free ones should take little memory.
    value: Option<Box<T>>,
    waker: Waker,
    own: Arc<SlotWaker>,
}

#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    ready: Arc<Ready>,
}

impl<T> Slots<T> {
    /// An empty table whose slots, when woken, are put on `ready`.
    pub fn new(ready: Arc<Ready>) -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new(), ready }
    }

    /// Adds a value. The table grows with the most values at once.
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self.slots[at as usize].value = Some(Box::new(value));
            return at;
        }
        let slot = self.slots.len() as u32;
        let is_queued = AtomicBool::new(false);
        let own = Arc::new(SlotWaker { slot, is_queued, ready: Arc::clone(&self.ready) });
        let waker = Waker::from(Arc::clone(&own));
        self.slots.push(Slot { value: Some(Box::new(value)), waker, own });
        slot
    }

    /// Drops a value, if the slot has one.
    pub fn remove(&mut self, at: u32) {
        if self.slots.get_mut(at as usize).is_some_and(|slot| slot.value.take().is_some()) {
            self.free.push(at);
        }
    }

    pub fn get(&mut self, at: u32) -> Option<(&mut T, &Waker)> {
        let slot = self.slots.get_mut(at as usize)?;
        Some((slot.value.as_deref_mut()?, &slot.waker))
    }

    /// Records that a woken slot is attended to now, so it may be listed again.
    pub fn attend(&mut self, at: u32) {
        if let Some(slot) = self.slots.get(at as usize) {
            slot.own.is_queued.store(false, Ordering::Release);
        }
    }

    /// Indices of the slots in use.
    pub fn used(&self) -> Vec<u32> {
        (0u32..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.value.is_some())
            .map(|(at, _)| at)
            .collect()
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn woken_slot_is_listed_once_until_attended() {
        let ready = Arc::new(Ready::default());
        let mut slots = Slots::new(Arc::clone(&ready));
        let (a, b) = (slots.insert('a'), slots.insert('b'));
        let mut woken = Vec::new();
        for at in [b, a, b] {
            slots.get(at).unwrap().1.wake_by_ref();
        }
        assert!(ready.take_rung());
        ready.take(&mut woken);
        assert_eq!(woken, [b, a]);
        slots.get(a).unwrap().1.wake_by_ref();
        ready.take(&mut woken);
        assert_eq!(woken, [b, a]);
        slots.attend(a);
        slots.get(a).unwrap().1.wake_by_ref();
        ready.take(&mut woken);
        assert_eq!(woken, [b, a, a]);
    }

    #[test]
    fn slots_are_reused() {
        let mut slots = Slots::new(Arc::default());
        let a = slots.insert('a');
        slots.remove(a);
        slots.remove(a);
        assert_eq!(slots.len(), 0);
        assert_eq!(slots.insert('b'), a);
        assert_eq!((slots.len(), slots.used()), (1, vec![a]));
    }

    #[test]
    fn free_slot_keeps_little_memory() {
        assert!(size_of::<Slot<[u8; 4096]>>() <= 32);
    }
}
