//! A lock that detects an attempt by its own holder to take it again.
//!
//! A signal handler that [`crate::signals`] does not know may call write(2) while its thread is inside a call that holds the lock. With a
//! plain mutex the thread would wait for itself.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The position of a thread relative to this library's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the program, or asleep in the kernel.
    Outside,
    /// In a call that waits for several descriptors, which has locks of its own.
    Waiting,
    /// Holds the lock.
    Holding,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Outside) };
}

/// Whether the calling thread is inside a call of this library.
pub fn is_inside() -> bool {
    PLACE.get() != Place::Outside
}

/// Marks the thread as outside, in a child of fork(2): it may have forked while inside.
#[cfg_attr(test, allow(dead_code))]
pub fn forget() {
    PLACE.set(Place::Outside);
}

/// A mutex that refuses its own holder.
#[derive(Debug)]
pub struct Lock<T> {
    value: Mutex<T>,
}

/// A lock that is held.
#[derive(Debug)]
pub struct Guard<'a, T> {
    value: Option<MutexGuard<'a, T>>,
    before: Place,
}

impl<T> Lock<T> {
    pub fn new(value: T) -> Lock<T> {
        Lock { value: Mutex::new(value) }
    }

    /// Waits for the lock; `None` if this thread is already inside.
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        self.lock_from(Place::Outside)
    }

    /// As [`Lock::lock`], for a thread that is [`Waiting`].
    pub fn lock_waiting(&self) -> Option<Guard<'_, T>> {
        self.lock_from(Place::Waiting)
    }

    fn lock_from(&self, before: Place) -> Option<Guard<'_, T>> {
        // Once, as finding a thread's data is a call.
        if !PLACE.with(|place| place.get() == before && place.replace(Place::Holding) == before) {
            return None;
        }
        // A panic ends the process, so a poisoned value is never seen.
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Guard { value: Some(value), before })
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("held until it is dropped")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("held until it is dropped")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        PLACE.set(self.before);
    }
}

/// Marks the calling thread as waiting for several descriptors, until dropped.
#[derive(Debug)]
pub struct Waiting(());

impl Waiting {
    /// Marks the thread; `None` if it is inside a call already.
    pub fn begin() -> Option<Waiting> {
        if is_inside() {
            return None;
        }
        PLACE.set(Place::Waiting);
        Some(Waiting(()))
    }

    /// Runs `call`, which sleeps in the kernel, with the thread marked as outside: signal handlers may use sockets meanwhile.
    pub fn outside<R>(call: impl FnOnce() -> R) -> R {
        let before = PLACE.replace(Place::Outside);
        let answer = call();
        PLACE.set(before);
        answer
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        PLACE.set(Place::Outside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reentrant_locking_is_refused() {
        let lock = Lock::new(1);
        let mut guard = lock.lock().unwrap();
        *guard += 1;
        assert!(is_inside() && lock.lock().is_none() && Waiting::begin().is_none());
        drop(guard);
        let waiting = Waiting::begin().unwrap();
        assert!(lock.lock().is_none());
        assert_eq!(*lock.lock_waiting().unwrap(), 2);
        assert!(Waiting::outside(|| lock.lock().is_some()) && is_inside());
        drop(waiting);
        assert!(!is_inside() && lock.lock_waiting().is_none());
    }
}
