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
    /// When the guarded call ends.
    Later,
}

impl Where {
    pub(crate) fn from_number(number: u8) -> Where {
        [Where::SafePoints, Where::Anywhere, Where::Later][usize::from(number)]
    }
}

/// The right to forbid preemption for a while in [`preempt_anywhere`].
pub struct Anywhere<'a>(Option<&'a Slot>);

impl std::fmt::Debug for Anywhere<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Anywhere").field(&self.0.is_some()).finish()
    }
}

impl Anywhere<'_> {
    /// Runs `call`, during which the thread is not preempted, but right after it if that was asked
    /// meanwhile: what keeps the address of a thread-local belongs into one.
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

/// From here on the handler may preempt. What was asked before it could is done now.
fn open(slot: &Slot) {
    loop {
        // What this looks at must not be torn: the handler only notes that it came.
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

/// Runs `body` on a user-level thread that is preempted anywhere in it, by a signal, instead of at safe
/// points only; it may go on on another pthread at any instruction. Elsewhere, and on a kernel-level
/// thread, which is always preempted anywhere, it just calls `body`.
///
/// # Safety
///
/// Nothing in `body` may depend on the pthread that it runs on, unless it is
/// [guarded](Anywhere::guarded): no thread-locals, hence no allocation, no locks of the standard
/// library's or of a foreign one's, no panic, no system call whose error is looked at, and nothing of this
/// crate. That is so for arithmetic, and for hardly any library: malloc and RocksDB crash within some
/// thousand preemptions.
pub unsafe fn preempt_anywhere<R>(body: impl FnOnce(&Anywhere<'_>) -> R) -> R {
    let slot = with_core(|core| core?.running_slot().map(std::ptr::from_ref));
    // SAFETY: the slot lives as long as the enclave, and the caller's thread lives in that.
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

/// The signal came, on a pthread that is no kernel-level thread's.
pub(crate) fn on_signal() {
    // A core that runs no thread now has none in a region.
    let slot = with_core(|core| core?.running_slot().map(std::ptr::from_ref));
    // SAFETY: as in `preempt_anywhere`.
    let Some(slot) = slot.map(|slot| unsafe { &*slot }) else { return };
    match slot.preempted() {
        Where::SafePoints => {}
        Where::Anywhere => open(slot),
        Where::Later => slot.set_interrupted(),
    }
}
