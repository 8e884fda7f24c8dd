//! The process's one [`Sockets`], and its handling in children.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::config::Config;
use crate::lock;
use crate::marks::Marks;
use crate::sockets::Sockets;
use crate::sys;

/// Descriptors that are the agent's sockets; and those of the lines to agents, which are hidden from the program.
static OURS: Marks = Marks::new();
static PRIVATE: Marks = Marks::new();
/// Made at the first call that may need it. A child after fork(2) makes its own.
static SOCKETS: AtomicPtr<Sockets> = AtomicPtr::new(std::ptr::null_mut());
/// The process that made [`SOCKETS`].
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether a descriptor is ours. Takes no lock and allocates nothing: malloc may be asking.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    OURS.has(fd)
}

/// Whether a descriptor is hidden from the program. Our own code, inside a call, may use it.
pub fn is_private(fd: c_int) -> bool {
    PRIVATE.has(fd) && !lock::is_inside()
}

/// Whether this is a child of vfork(2): it has the parent's memory, and must leave it as it is.
pub fn is_borrowing() -> bool {
    std::process::id() as i32 != OWNER.load(Ordering::Relaxed)
}

/// The sockets, if there are any.
pub fn sockets() -> Option<&'static Sockets> {
    let made = SOCKETS.load(Ordering::Acquire);
    // SAFETY: it is null, or was leaked by `sockets_or_new`.
    unsafe { made.as_ref() }
}

/// The sockets; `None` if the environment names no agent, and for calls of our own.
pub fn sockets_or_new() -> Option<&'static Sockets> {
    if lock::is_inside() {
        return None;
    }
    if let Some(sockets) = sockets() {
        return Some(sockets);
    }
    static CONFIG: OnceLock<Option<Config>> = OnceLock::new();
    let config = CONFIG.get_or_init(Config::from_environment).clone()?;
    static PREPARED: OnceLock<()> = OnceLock::new();
    PREPARED.get_or_init(|| {
        // SAFETY: `leave` is async-signal-safe, as a child of a process with threads needs.
        unsafe { libc::pthread_atfork(None, None, Some(leave)) };
    });
    let made = Box::into_raw(Box::new(Sockets::new(config, &OURS, &PRIVATE)));
    let null = std::ptr::null_mut();
    OWNER.store(std::process::id() as i32, Ordering::Relaxed);
    match SOCKETS.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(_) => {
            // SAFETY: it was made just now, and nobody else has it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    sockets()
}

/// Runs in a child of fork(2). The parent's sockets stay the parent's. The child has their placeholders, which are not connected, and
/// closes the line's descriptors, so that the agent sees the parent go.
extern "C" fn leave() {
    OURS.drain(|_| {});
    PRIVATE.drain(sys::close);
    // The parent's `Sockets` is in an unknown state, since another thread may have held its lock: it is left as it is.
    SOCKETS.store(std::ptr::null_mut(), Ordering::Release);
    lock::forget();
}

/// The highest descriptor that may be ours or private.
pub fn highest() -> c_int {
    OURS.highest().max(PRIVATE.highest())
}
