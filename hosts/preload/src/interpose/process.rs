//! The process's one [`Sockets`], and its handling in children.

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::config::Config;
use crate::descriptor_bitmap::DescriptorBitmap;
use crate::lock;
use crate::sockets::{Open, Sockets};
use crate::{cancellation, signals, sys};

/// Descriptors of the agent's sockets (`OURS`), and descriptors of the library itself, which are hidden from the program (`PRIVATE`).
static OURS: DescriptorBitmap = DescriptorBitmap::new();
static PRIVATE: DescriptorBitmap = DescriptorBitmap::new();
/// Created at the first call that may need it. A child of fork(2) creates its own.
static SOCKETS: AtomicPtr<Sockets> = AtomicPtr::new(std::ptr::null_mut());
/// The sockets of this process's ancestors. They are never used, but LeakSanitizer finds them.
static ANCESTORS: AtomicPtr<Ancestor> = AtomicPtr::new(std::ptr::null_mut());
/// The process whose memory this is: the one that the library was loaded into, or a child of fork(2).
static OWNER: AtomicI32 = AtomicI32::new(0);

struct Ancestor {
    _sockets: *mut Sockets,
    _earlier: *mut Ancestor,
}

/// Whether a descriptor is ours. Takes no lock and allocates nothing, because malloc may be the caller.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    OURS.has(fd)
}

/// Whether a descriptor is hidden from the program. Our own code, inside a call, may use it.
pub fn is_private(fd: c_int) -> bool {
    PRIVATE.has(fd) && !lock::is_inside()
}

/// Whether this is a child of vfork(2): it shares the parent's memory, and must not change it.
pub fn is_vfork_child() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    // 0 before the library has begun, in another library's initialization.
    owner != 0 && std::process::id() as i32 != owner
}

/// The sockets, if there are any.
pub fn sockets() -> Option<&'static Sockets> {
    let made = SOCKETS.load(Ordering::Acquire);
    // SAFETY: it is null, or was leaked by `sockets_or_new`.
    unsafe { made.as_ref() }
}

/// The sockets; `None` if the environment names no agent, for calls of our own, and for a child of vfork(2) whose parent has none.
pub fn sockets_or_new() -> Option<&'static Sockets> {
    if lock::is_inside() {
        return None;
    }
    sockets().or_else(|| signals::enter(make))
}

/// Creates the sockets.
fn make() -> Option<&'static Sockets> {
    static CONFIG: OnceLock<Option<Config>> = OnceLock::new();
    let config = CONFIG.get_or_init(Config::from_environment).clone()?;
    prepare();
    if is_vfork_child() {
        return None;
    }
    let made = Box::into_raw(Box::new(Sockets::new(config, &OURS, &PRIVATE)));
    let null = std::ptr::null_mut();
    match SOCKETS.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(_) => {
            // SAFETY: it was created just now, and no other reference exists.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    sockets()
}

/// Runs a call of the sockets, if there are any, inside the library: see [`signals::enter`].
pub fn with<R>(call: impl FnOnce(&'static Sockets) -> R) -> Option<R> {
    sockets().map(|sockets| signals::enter(|| call(sockets)))
}

/// As [`with`], with [`sockets_or_new`].
pub fn with_or_new<R>(call: impl FnOnce(&'static Sockets) -> R) -> Option<R> {
    sockets_or_new().map(|sockets| signals::enter(|| call(sockets)))
}

/// Once, and before any child: from then on it is known whose memory this is.
fn prepare() {
    static PREPARED: OnceLock<()> = OnceLock::new();
    PREPARED.get_or_init(|| {
        OWNER.store(std::process::id() as i32, Ordering::Relaxed);
        wave_readiness::set_keeper(wave_readiness::Keeper {
            keep,
            closes: |fd| PRIVATE.clear(fd.as_raw_fd()),
        });
        // Before ours, whose first handler allocates.
        // SAFETY: no other thread allocates from it before the first call that may need sockets.
        unsafe { dlmalloc::enable_alloc_after_fork() };
        // SAFETY: they are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    });
}

/// Hides a descriptor of the library from the program.
fn keep(fd: OwnedFd) -> OwnedFd {
    let fd = sys::move_away(fd);
    PRIVATE.set(fd.as_raw_fd());
    fd
}

thread_local! {
    /// The lock, held while this thread forks, so that the child's copy is consistent.
    static HELD: Cell<Option<ManuallyDrop<Open<'static>>>> = const { Cell::new(None) };
}

/// Runs a system call that forks, as fork(3) would. It returns the child's number, or 0 in the child. The allocator's handlers do not run:
/// as with malloc(3), a child of a process with several threads waits for ever if one of them allocates here at that moment.
pub fn fork_by(call: impl FnOnce() -> c_long) -> c_long {
    before_fork();
    match call() {
        0 => {
            in_child();
            0
        }
        child => {
            after_fork();
            child
        }
    }
}

extern "C" fn before_fork() {
    // Handlers do not run until the fork is done.
    signals::begin();
    // `None` in a signal handler that has interrupted a call: then the child inherits no sockets.
    let held = sockets().and_then(|sockets| sockets.open().ok());
    HELD.set(held.map(|mut world| {
        world.prepare_fork();
        ManuallyDrop::new(world)
    }));
}

extern "C" fn after_fork() {
    if let Some(held) = HELD.take() {
        let mut world = ManuallyDrop::into_inner(held);
        world.sets_at_fork.clear();
        world.leave_to_children();
    }
    signals::end();
}

/// The child closes its copies of the line to the agent, so that the agent sees the parent go, but not those that keep its listeners. It may allocate: the C library has made
/// malloc(3) usable before, and other allocators register their own handlers earlier.
extern "C" fn in_child() {
    signals::forget_thread();
    cancellation::forget_threads();
    replace_sockets();
    signals::end();
}

fn replace_sockets() {
    OWNER.store(std::process::id() as i32, Ordering::Relaxed);
    // The parent's world is left untouched, with its lock: it belongs to threads that do not exist in the child.
    let held = HELD.take();
    OURS.drain(|_| {});
    let kept = held.as_ref().map(|world| world.keepers()).unwrap_or_default();
    PRIVATE.drain(|fd| {
        if !kept.contains(&fd) {
            sys::close(fd);
        }
    });
    let parents = SOCKETS.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !parents.is_null() {
        let earlier = ANCESTORS.load(Ordering::Relaxed);
        let ancestor = Box::new(Ancestor { _sockets: parents, _earlier: earlier });
        ANCESTORS.store(Box::into_raw(ancestor), Ordering::Relaxed);
    }
    lock::forget();
    let Some(mut world) = held else { return };
    let (inherited, family_secret) = (world.copy_for_child(), world.family_secret);
    let sets = std::mem::take(&mut world.sets_at_fork);
    if !inherited.is_empty() || !sets.is_empty() {
        let (config, marks) = (world.config.clone(), [&OURS, &PRIVATE]);
        let sockets = Sockets::of_child(config, marks, inherited, sets, family_secret);
        SOCKETS.store(Box::into_raw(Box::new(sockets)), Ordering::Release);
    }
}

/// Runs when the library is loaded: a program before exec(2) may have left sockets.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    signals::enter(|| {
        if std::env::var_os(crate::config::SOCKET).is_none() {
            return;
        }
        crate::messages::remember_standard_error();
        prepare();
        let found = crate::passing::inherited_descriptors();
        if !found.is_empty()
            && let Some(sockets) = sockets_or_new()
        {
            sockets.receive_descriptors(&found, true);
            sockets.watch();
        }
    });
}

/// Runs at exit(3): agents get what they were not told yet.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    if !is_vfork_child() {
        with(Sockets::end);
    }
}

/// The highest descriptor that may be ours or private.
pub fn highest() -> c_int {
    OURS.highest().max(PRIVATE.highest())
}
