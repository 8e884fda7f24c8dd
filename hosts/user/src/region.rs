//! Regions in which a user-level thread is preempted anywhere.

use std::sync::atomic::{Ordering, compiler_fence};

use wave_sched::mechanism::table::Leave;

use crate::current::with_core;
use crate::table::Slot;

/// Where the running thread may be preempted.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Where {
    /// At safe points, as everywhere else.
    SafePoints,
    /// Preempted anywhere, by the signal's handler.
    Anywhere,
    /// Not before the guarded call ends.
    Later,
}

impl Where {
    pub(crate) fn from_number(number: u8) -> Where {
        [Where::SafePoints, Where::Anywhere, Where::Later][usize::from(number)]
    }
}

/// Handle by which the body of [`preempt_anywhere`] forbids preemption for a while.
pub struct Anywhere<'a>(Option<&'a Slot>);

impl std::fmt::Debug for Anywhere<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Anywhere").field(&self.0.is_some()).finish()
    }
}

impl Anywhere<'_> {
    /// Runs `call` without preemption. A preemption requested meanwhile takes effect right after it. Code that
    /// keeps the address of a thread-local belongs in a guarded call.
    pub fn guarded<R>(&self, call: impl FnOnce() -> R) -> R {
        let Some(slot) = self.0 else { return call() };
        slot.set_preempted(Where::Later);
        compiler_fence(Ordering::SeqCst);
        let result = call();
        compiler_fence(Ordering::SeqCst);
        open(slot);
        result
    }
}

/// Lets the handler preempt from here on. First carries out a preemption that was requested before.
fn open(slot: &Slot) {
    loop {
        // The state read here must be consistent, so the handler only notes that the signal came.
        slot.set_preempted(Where::Later);
        compiler_fence(Ordering::SeqCst);
        slot.take_interrupted();
        if with_core(|core| core.is_some_and(|core| core.must_leave_now(None))) {
            slot.set_preempted(Where::SafePoints);
            crate::current::suspend(Leave::Preempt);
            continue;
        }
        slot.set_preempted(Where::Anywhere);
        compiler_fence(Ordering::SeqCst);
        if !slot.take_interrupted() {
            return;
        }
    }
}

/// Runs `body` on a user-level thread with preemption anywhere, by a signal, instead of at safe points
/// only: at any instruction, `body` may continue on another pthread. On a kernel-level thread, which is
/// always preempted anywhere, and outside an enclave, just calls `body`.
///
/// # Safety
///
/// Code in `body` must not depend on the pthread that it runs on, unless it is
/// [guarded](Anywhere::guarded): no thread-locals, hence no allocation, no locks of the standard
/// library or of a foreign one, no panic, no system call whose error is examined, and no call of this
/// crate. Arithmetic qualifies, but hardly any library does: malloc and RocksDB crash within some
/// thousand preemptions.
pub unsafe fn preempt_anywhere<R>(body: impl FnOnce(&Anywhere<'_>) -> R) -> R {
    let slot = with_core(|core| core?.running_slot().map(std::ptr::from_ref));
    // SAFETY: the slot lives as long as the enclave, which the caller's thread does not outlive.
    let Some(slot) = slot.map(|slot| unsafe { &*slot }) else { return body(&Anywhere(None)) };
    slot.set_in_region(true);
    with_core(|core| core.into_iter().for_each(|core| core.interrupt_me()));
    open(slot);
    let result = body(&Anywhere(Some(slot)));
    compiler_fence(Ordering::SeqCst);
    slot.set_preempted(Where::SafePoints);
    slot.set_in_region(false);
    result
}

/// Handles the signal on a pthread that carries no kernel-level thread.
pub(crate) fn on_signal() {
    // If the core runs no thread now, no thread here is in a region.
    let slot = with_core(|core| core?.running_slot().map(std::ptr::from_ref));
    // SAFETY: as in `preempt_anywhere`.
    let Some(slot) = slot.map(|slot| unsafe { &*slot }) else { return };
    match slot.preempted() {
        Where::SafePoints => {}
        Where::Anywhere => open(slot),
        Where::Later => slot.set_interrupted(),
    }
}
