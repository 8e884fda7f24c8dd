//! This host's data for each thread of the shared table ([`wave_sched::mechanism::table`]).

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use wave_core::message::Subject;
use wave_sched::mechanism::table;

use crate::fiber::{Fiber, FiberYielder};
use crate::inline_fn::InlineFn;
use crate::region::Where;

const NO_KLT: u32 = u32::MAX;

pub(crate) type Table = table::Table<Slot>;

/// A thread's identity: an id and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread(pub(crate) Subject);

impl Thread {
    /// The subject that messages, decisions and notes name. Give it to a front so that its notes name this thread.
    pub fn subject(self) -> Subject {
        self.0
    }
}

/// A thread's data on this host, beside its state in the table.
pub(crate) struct Slot {
    /// Index of the pthread that carries a kernel-level thread; [`NO_KLT`] for a user-level one. Written while the id is free.
    klt: AtomicU32,
    /// For a user-level thread: whether it is in [`crate::preempt_anywhere`], and where it may be preempted
    /// now (a [`Where`]). Written by the thread itself.
    is_in_region: AtomicBool,
    preempted: AtomicU8,
    /// The signal came while the thread could not be preempted.
    is_interrupted: AtomicBool,
    /// The following fields belong to the owner of the thread; see [`table::Table`].
    entry: UnsafeCell<Option<InlineFn>>,
    fiber: UnsafeCell<Option<Fiber>>,
    yielder: Cell<*const FiberYielder>,
}

// SAFETY: `entry`, `fiber` and `yielder` are touched only by the thread's owner, see there. The
// state word passes ownership with acquire and release.
unsafe impl Sync for Slot {}
// SAFETY: the closure and the fiber are `Send`; the yielder is on the fiber's stack.
unsafe impl Send for Slot {}

impl Slot {
    pub(crate) fn new() -> Slot {
        Slot {
            klt: AtomicU32::new(NO_KLT),
            is_in_region: AtomicBool::new(false),
            preempted: AtomicU8::new(Where::SafePoints as u8),
            is_interrupted: AtomicBool::new(false),
            entry: UnsafeCell::new(None),
            fiber: UnsafeCell::new(None),
            yielder: Cell::new(std::ptr::null()),
        }
    }

    /// Prepares a free id's slot for its next thread, on `klt` if that is a kernel-level one. Only
    /// [`table::Table::create`] may call it.
    pub(crate) fn begin(&self, klt: Option<u32>, entry: InlineFn) {
        // SAFETY: the caller owns the thread (see the field): only its spawner took the id from the list of free ids.
        unsafe { *self.entry.get() = Some(entry) };
        self.klt.store(klt.unwrap_or(NO_KLT), Ordering::Relaxed);
        self.is_in_region.store(false, Ordering::Relaxed);
        self.preempted.store(Where::SafePoints as u8, Ordering::Relaxed);
    }

    pub(crate) fn set_yielder(&self, yielder: &FiberYielder) {
        self.yielder.set(yielder);
    }

    pub(crate) fn yielder(&self) -> *const FiberYielder {
        self.yielder.get()
    }

    /// Takes the closure that the thread runs. The owner calls it once.
    pub(crate) fn take_entry(&self) -> InlineFn {
        // SAFETY: the caller owns the thread (see the field).
        unsafe { &mut *self.entry.get() }.take().expect("a thread starts once")
    }

    /// Takes the fiber of a thread that this core has just committed; `None` before the thread's first run.
    pub(crate) fn take_fiber(&self) -> Option<Fiber> {
        // SAFETY: the caller owns the thread (see the field).
        unsafe { &mut *self.fiber.get() }.take()
    }

    /// Stores the fiber of a thread that this core is about to let go.
    pub(crate) fn keep_fiber(&self, fiber: Fiber) {
        // SAFETY: the caller owns the thread (see the field).
        unsafe { *self.fiber.get() = Some(fiber) };
    }

    /// Index of the pthread that carries the thread, if it is a kernel-level one.
    #[inline]
    pub(crate) fn klt(&self) -> Option<u32> {
        Some(self.klt.load(Ordering::Relaxed)).filter(|klt| *klt != NO_KLT)
    }

    #[inline]
    pub(crate) fn is_in_region(&self) -> bool {
        self.is_in_region.load(Ordering::Relaxed)
    }

    pub(crate) fn set_in_region(&self, is_in_region: bool) {
        self.is_in_region.store(is_in_region, Ordering::Relaxed);
    }

    pub(crate) fn preempted(&self) -> Where {
        Where::from_number(self.preempted.load(Ordering::Relaxed))
    }

    pub(crate) fn set_interrupted(&self) {
        self.is_interrupted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_interrupted(&self) -> bool {
        self.is_interrupted.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn set_preempted(&self, at: Where) {
        self.preempted.store(at as u8, Ordering::Relaxed);
    }
}
