//! Signal handlers, which do not run inside the library ([`crate::signals`]), and the cancellation of threads.

use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{pthread_t, sigaction as Action, sighandler_t};
use rustix::io::Errno;

use super::process::is_vfork_child;
use super::{fail, next};
use crate::{cancellation, signals, sys};

/// Signals whose handlers interrupt calls if they are set by signal(2): see siginterrupt(3).
static INTERRUPT: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    let next = |new: *const Action, old: *mut Action| next!(sigaction(signal => c_int, new => *const Action, old => *mut Action) -> c_int);
    // A child of vfork(2) has handlers of its own, but shares its parent's memory.
    if is_vfork_child() {
        return next(new, old);
    }
    // SAFETY: the same contract.
    unsafe { signals::replace(signal, new, old, next) }
}

/// signal(2) with these flags. The signal is in the handler's mask with `is_masked`.
fn set_handler(
    signal: c_int,
    handler: sighandler_t,
    flags: c_int,
    is_masked: bool,
) -> sighandler_t {
    // SAFETY: all zero is a valid `sigaction`, and both are valid for the call. A bad signal is refused.
    unsafe {
        let (mut new, mut old): (Action, Action) = (std::mem::zeroed(), std::mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if is_masked && libc::sigaddset(&mut new.sa_mask, signal) < 0 {
            return libc::SIG_ERR;
        }
        match sigaction(signal, &new, &mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// A signal's bit; 0 if there is no such signal.
fn bit(signal: c_int) -> u64 {
    if (1..=64).contains(&signal) { 1 << (signal - 1) } else { 0 }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if handler == libc::SIG_ERR {
        fail(Errno::INVAL);
        return libc::SIG_ERR;
    }
    let interrupts = INTERRUPT.load(Ordering::Relaxed) & bit(signal) != 0;
    set_handler(signal, handler, if interrupts { 0 } else { libc::SA_RESTART }, true)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    signal(number, handler)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    signal(number, handler)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, false)
}

/// signal(2) for programs that ask for System V's.
#[unsafe(no_mangle)]
extern "C-unwind" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    sysv_signal(signal, handler)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: all zero is a valid `sigaction`, which is valid for both calls.
    unsafe {
        let mut action: Action = std::mem::zeroed();
        if sigaction(signal, std::ptr::null(), &mut action) != 0 {
            return -1;
        }
        if interrupts != 0 {
            INTERRUPT.fetch_or(bit(signal), Ordering::Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPT.fetch_and(!bit(signal), Ordering::Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        }
        sigaction(signal, &action, std::ptr::null_mut())
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    // Before it may end.
    let number = sys::thread_number(thread);
    let done = next!(pthread_cancel(thread => pthread_t) -> c_int);
    if let (0, Some(number)) = (done, number) {
        cancellation::cancelled(number);
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    const ASYNCHRONOUS: c_int = 1;
    if kind == ASYNCHRONOUS {
        signals::enter(take_over_cancellation);
    }
    next!(pthread_setcanceltype(kind => c_int, before => *mut c_int) -> c_int)
}

/// Cancels a thread of our own. The C library installs its handler with the first cancellation, which would find it not yet replaced.
fn take_over_cancellation() {
    static DONE: Once = Once::new();
    unsafe extern "C" {
        fn pthread_create(
            thread: *mut pthread_t,
            attributes: *const c_void,
            start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            argument: *mut c_void,
        ) -> c_int;
    }
    extern "C-unwind" fn wait(nothing: *mut c_void) -> *mut c_void {
        // SAFETY: the thread holds nothing.
        unsafe { libc::pause() };
        nothing
    }
    DONE.call_once(|| {
        let mut thread: pthread_t = 0;
        let mask = sys::block(u64::MAX);
        let none = std::ptr::null_mut();
        // SAFETY: the pointers are valid for the calls.
        let failed = unsafe { pthread_create(&mut thread, none, wait, none) };
        sys::set_mask(mask);
        if failed == 0 {
            next!(pthread_cancel(thread => pthread_t) -> c_int);
            // SAFETY: as above. The thread ends.
            let join = || unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
            sys::without_cancellation(join);
            cancellation::take_over();
        }
    });
}
