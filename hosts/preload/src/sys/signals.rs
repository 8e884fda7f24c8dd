//! Signals, and cancellation of threads.

use std::ffi::{c_int, c_long, c_void};
use std::mem::MaybeUninit;

use libc::{siginfo_t, timespec, ucontext_t};

/// A set of signals in the kernel's layout.
pub type SignalMask = u64;

const MASK_BYTES: usize = size_of::<SignalMask>();

// They may end in an unwinding: of a thread that ends, or of an exception from a signal handler.
unsafe extern "C-unwind" {
    fn pthread_sigmask(how: c_int, new: *const c_void, old: *mut c_void) -> c_int;
    fn ppoll(fds: *mut c_void, count: u64, left: *const timespec, mask: *const c_void) -> c_int;
    fn pthread_testcancel();
    fn pthread_setcancelstate(new: c_int, old: *mut c_int) -> c_int;
}

const CANCEL_ENABLE: c_int = 0;
const CANCEL_DISABLE: c_int = 1;

/// Adds signals to the thread's mask. Returns the mask before.
pub fn block(signals: SignalMask) -> SignalMask {
    change_mask(libc::SIG_BLOCK, signals)
}

/// Sets the thread's mask.
pub fn set_mask(mask: SignalMask) {
    change_mask(libc::SIG_SETMASK, mask);
}

fn change_mask(how: c_int, signals: SignalMask) -> SignalMask {
    let mut before: SignalMask = 0;
    // SAFETY: both masks have the size that is given.
    unsafe {
        let (new, old) = (&raw const signals, &raw mut before);
        libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, MASK_BYTES);
    }
    before
}

/// Sends a signal with these data to the calling thread. False if the kernel refuses.
///
/// # Safety
/// `about` is a signal handler's second argument.
pub unsafe fn queue_to_self(signal: c_int, about: *const siginfo_t) -> bool {
    // SAFETY: by the contract.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, own(), thread(), signal, about) == 0 }
}

/// Sends a signal with SI_QUEUE to another thread, which may have ended.
pub fn queue(to: c_int, signal: c_int) {
    // SAFETY: all zero is a valid `siginfo_t`, of which the kernel reads the common fields.
    unsafe {
        let mut about: siginfo_t = std::mem::zeroed();
        about.si_signo = signal;
        about.si_code = libc::SI_QUEUE;
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, own(), to, signal, &raw const about);
    }
}

/// Whether a thread of this process has this number.
pub fn is_thread(number: c_int) -> bool {
    // SAFETY: signal 0 only checks the thread.
    unsafe { libc::syscall(libc::SYS_tgkill, own(), number, 0) == 0 }
}

fn own() -> c_int {
    std::process::id() as c_int
}

fn thread() -> c_long {
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_gettid) }
}

/// The mask that the kernel restores at the end of a signal handler.
///
/// # Safety
/// `context` is a signal handler's third argument, and the handler runs for as long as the result is used.
pub unsafe fn mask_of<'a>(context: *mut c_void) -> &'a mut SignalMask {
    // SAFETY: by the contract. The C library's set begins with the kernel's.
    unsafe { &mut *(&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast() }
}

/// Sets the thread's mask, and lets pending signals in; then those that a wait with the mask `open` would. Their handlers run in this
/// call, and may leave it by a jump or by unwinding.
pub fn deliver(mask: SignalMask, open: Option<SignalMask>) {
    let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
    let mask = wide(mask);
    // SAFETY: both are sets of the C library's size; ppoll(2) without descriptors uses no other memory.
    unsafe {
        pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr().cast(), std::ptr::null_mut());
        if let Some(open) = open {
            let open = wide(open);
            ppoll(std::ptr::null_mut(), 0, &at_once, open.as_ptr().cast());
        }
    }
}

/// A mask in the C library's layout.
fn wide(mask: SignalMask) -> [SignalMask; size_of::<libc::sigset_t>() / MASK_BYTES] {
    let mut wide = [0; size_of::<libc::sigset_t>() / MASK_BYTES];
    wide[0] = mask;
    wide
}

/// Sets a signal's default action (SA_RESETHAND).
pub fn reset_handler(signal: c_int) {
    // SAFETY: all zero is a valid `sigaction`: SIG_DFL.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, std::ptr::null_mut());
    }
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: SignalMask,
}

/// Replaces a signal's handler by `own`, with the same flags and mask. Calls `note` before, with the handler and its flags. No effect if
/// `own` is the handler already, or there is none.
pub fn exchange_handler(signal: c_int, own: usize, note: impl FnOnce(usize, c_int)) {
    let Some(mut action) = action_of(signal).filter(|action| action.handler != own) else { return };
    note(action.handler, action.flags as c_int);
    action.handler = own;
    let none: *mut Action = std::ptr::null_mut();
    // SAFETY: the kernel reads an `Action`.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, none, MASK_BYTES) };
}

/// Whether all signal handlers of the process but `own` restart interrupted calls (SA_RESTART). All are checked, because it is unknown
/// which one has just run.
pub fn others_restart(own: usize) -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        let action = action_of(signal).filter(|action| action.handler != own);
        action.is_none_or(|action| action.flags & libc::SA_RESTART as u64 != 0)
    })
}

/// A signal's action, if it has a handler.
fn action_of(signal: c_int) -> Option<Action> {
    let mut action = MaybeUninit::<Action>::zeroed();
    let none: *const Action = std::ptr::null();
    // SAFETY: the kernel writes an `Action`, or fails.
    let action = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, none, action.as_mut_ptr(), MASK_BYTES);
        action.assume_init()
    };
    let is_handled = !matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN);
    is_handled.then_some(action)
}

/// Acts on a cancellation of the calling thread, if there is one and the thread allows it. May unwind.
pub fn test_cancellation() {
    // SAFETY: the callers hold nothing.
    unsafe { pthread_testcancel() };
}

/// Whether the calling thread allows its cancellation. Without an effect in a thread whose cancellation is deferred, as while it waits.
pub fn allows_cancellation() -> bool {
    let state = set_cancellation(CANCEL_DISABLE);
    if state == CANCEL_ENABLE {
        set_cancellation(CANCEL_ENABLE);
    }
    state == CANCEL_ENABLE
}

/// Runs `call`, which may reach cancellation points of the C library, with cancellation disabled.
pub fn without_cancellation<R>(call: impl FnOnce() -> R) -> R {
    let state = set_cancellation(CANCEL_DISABLE);
    let answer = call();
    if state == CANCEL_ENABLE {
        set_cancellation(CANCEL_ENABLE);
    }
    answer
}

fn set_cancellation(state: c_int) -> c_int {
    let mut before = CANCEL_ENABLE;
    // SAFETY: `before` is valid for the call.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// The number of one of the process's threads, while it runs. It is part of the thread's clock (clock_getres(2)), as the kernel defines
/// that.
#[cfg_attr(test, allow(dead_code))]
pub fn thread_number(thread: libc::pthread_t) -> Option<c_int> {
    let mut clock = 0;
    // SAFETY: the caller's thread; `clock` is valid for the call.
    let failed = unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) };
    (failed == 0).then_some(!(clock >> 3))
}
