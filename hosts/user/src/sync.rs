//! A mutex and a condition variable that block threads of an enclave, never their core.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex as Spin;
use std::sync::atomic::{AtomicBool, Ordering};

use wave_sched::mechanism::table::Leave;

use crate::current;
use crate::enclave::Waker;
use crate::klt::Inside;
use crate::shared::lock;

/// Waiting threads, first come, first served. The lock is held for a few instructions and never
/// across a switch. Grows (and so allocates) only when it holds more waiters than ever before.
#[derive(Default)]
struct Waiters(Spin<VecDeque<Waker>>);

impl Waiters {
    fn wake_one(&self) -> bool {
        let _inside = Inside::enter();
        let waker = lock(&self.0).pop_front();
        waker.map(Waker::wake).is_some()
    }
}

/// A mutex for threads of enclaves. Unlocking hands it over to the longest waiter.
#[derive(Default)]
pub struct Mutex<T> {
    locked: AtomicBool,
    waiters: Waiters,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a guard, and there is one guard at a time, which is shared between threads only if `T` is
// `Sync` (its marker). Threads lock one after the other, so `T` need only be `Send`; who unlocks does not matter.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: moving the mutex moves the value. The rest is `Send` by itself.
unsafe impl<T: Send> Send for Mutex<T> {}

/// Exclusive access to a [`Mutex`]'s value; dropping it unlocks the mutex.
///
/// A guard is [`Send`] and [`Sync`] where `&mut T` is: threads share a guard only if they may share its value.
///
/// ```
/// # use std::sync::atomic::AtomicU32;
/// fn share(guard: &(impl Sync + ?Sized)) {}
/// share(&wave_user::Mutex::new(AtomicU32::new(0)).lock());
/// ```
///
/// ```compile_fail,E0277
/// # use std::cell::Cell;
/// fn share(guard: &(impl Sync + ?Sized)) {}
/// share(&wave_user::Mutex::new(Cell::new(0)).lock());
/// ```
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Makes the guard [`Sync`] where `T` is, and not wherever the mutex is.
    value: PhantomData<&'a mut T>,
}

impl<'a, T> MutexGuard<'a, T> {
    /// For the thread that holds the lock.
    fn new(mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        MutexGuard { mutex, value: PhantomData }
    }
}

impl<T> Mutex<T> {
    /// An unlocked mutex with this value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            locked: AtomicBool::new(false),
            waiters: Waiters(Spin::new(VecDeque::new())),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks the mutex, waiting if necessary. Panics if it has to wait and the caller is no thread of an
    /// enclave.
    ///
    /// Switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it. The guard itself may be held
    /// across a switch.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // Before the lock is taken: a thread preempted here blocks no other.
        current::preempt_point();
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        let _inside = Inside::enter();
        let mut waiters = lock(&self.waiters.0);
        // The holder unlocks under this same lock of the waiters, so no unlock can be missed in between.
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        waiters.push_back(Waker::of_current().expect("only a thread of an enclave can wait here"));
        drop(waiters);
        // The holder hands over the lock itself, so there is no need to try again.
        current::suspend(Leave::Wait);
        MutexGuard::new(self)
    }

    /// Locks the value if the lock is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.locked
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| MutexGuard::new(self))
    }

    fn unlock(&self) {
        let _inside = Inside::enter();
        let next = {
            let mut waiters = lock(&self.waiters.0);
            let next = waiters.pop_front();
            if next.is_none() {
                self.locked.store(false, Ordering::Release);
            }
            next
        };
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only one.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the only one, and borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

/// A condition variable for [`Mutex`]. Wakes in the order of waiting, never spuriously.
#[derive(Default)]
pub struct Condvar(Waiters);

impl Condvar {
    /// Creates one without waiters.
    pub const fn new() -> Condvar {
        Condvar(Waiters(Spin::new(VecDeque::new())))
    }

    /// Unlocks the mutex, waits for a notification, and locks the mutex again.
    /// Panics if the caller is no thread of an enclave.
    ///
    /// Switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let mutex = guard.mutex;
        let inside = Inside::enter();
        let waker = Waker::of_current().expect("only a thread of an enclave can wait here");
        lock(&self.0.0).push_back(waker);
        drop(guard);
        current::suspend(Leave::Wait);
        drop(inside);
        mutex.lock()
    }

    /// Waits until `condition` is false. Switches as [`Condvar::wait`] does.
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// Wakes the thread that has waited longest.
    pub fn notify_one(&self) {
        self.0.wake_one();
    }

    /// Wakes all threads that wait at the time of the call.
    pub fn notify_all(&self) {
        let _inside = Inside::enter();
        let waiting = lock(&self.0.0).len();
        for _ in 0..waiting {
            self.0.wake_one();
        }
    }
}
