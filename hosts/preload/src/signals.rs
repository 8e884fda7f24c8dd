//! Signals that arrive while their thread is inside this library wait until the call has ended or stopped waiting.
//!
//! A handler may call any socket function, leave by siglongjmp(3) or an exception, or end its thread. So it must not run while the
//! call below it holds a lock, an entry in a list or a handle. The program's handlers are therefore entered through [`on_signal`]. Inside
//! a call it leaves the signal pending in the kernel, blocks all signals, and ends the sleep of a call that waits. The call then releases
//! all it has, like one that the kernel interrupts. In [`enter`], where nothing is held, the signals are unblocked and the handlers run.
//! A call that would restart in the kernel is then made again ([`waits`]). See docs/adr/0102.
//!
//! Without a signal a call makes no system call for this.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

use libc::{siginfo_t, timespec};
use rustix::io::Errno;

use crate::cancellation;
use crate::sockets::Verdict;
use crate::sys::{self, SignalMask};

/// Linux's ERESTARTSYS: the call was interrupted, and may be made again if the handlers allow it (SA_RESTART). No program sees it.
pub const RESTART: Errno = Errno::from_raw_os_error(512);

/// Most signals that a thread holds where handlers cannot change masks ([`Thread::hold`]).
const HELD_MAX: usize = 8;
/// Signals beyond the last have no entry.
const SIGNALS: usize = 65;
/// Signals of faults, which return to the instruction that faults, and SIGABRT, after which abort(3) kills the process.
const FAULTS: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];
/// The C library's SIGSETXID: all threads must handle it for a setuid(2) to end.
const SIGSETXID: c_int = 33;

type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// The program's handler of a signal, with its flags.
struct Action {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static ACTIONS: [Action; SIGNALS] =
    [const { Action { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];

/// What a handler changes to end a sleep that is not yet in the kernel: see [`sys::ppoll`].
#[derive(Clone, Copy)]
struct Sleep {
    timeout: *mut timespec,
    /// Null without entries.
    first: *mut libc::pollfd,
}

impl Sleep {
    fn end(self) {
        // SAFETY: both are valid while the sleep is known to the thread , whose call does not use them otherwise.
        unsafe {
            self.timeout.write_volatile(timespec { tv_sec: 0, tv_nsec: 0 });
            if !self.first.is_null() {
                (&raw mut (*self.first).fd).write_volatile(sys::NO_FILE);
            }
        }
    }
}

/// A signal that waits for its thread's call to end.
#[derive(Clone, Copy)]
struct Held {
    signal: c_int,
    about: siginfo_t,
}

/// A thread's place relative to the library. [`on_signal`] may read and write it between any two instructions.
struct Thread {
    /// Number of calls that the thread is inside. More than one in a handler that [`on_signal`] does not know.
    depth: Cell<u32>,
    /// Signals wait, all others are blocked. `saved` was the mask before.
    is_deferred: Cell<bool>,
    saved: Cell<SignalMask>,
    /// Signals that have arrived although all are blocked.
    held: [Cell<Option<Held>>; HELD_MAX],
    /// Whether the first signal's handler restarts calls.
    restarts: Cell<bool>,
    /// The mask of the wait in which the first signal arrived, for calls that have one.
    open: Cell<Option<SignalMask>>,
    /// The sleep that has begun, and the call's mask.
    sleep: Cell<Option<Sleep>>,
    mask: Cell<Option<SignalMask>>,
    /// Another thread has ended the sleep.
    is_woken: Cell<bool>,
    /// The thread's number, once it was asked for.
    id: Cell<c_int>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            depth: Cell::new(0),
            is_deferred: Cell::new(false),
            saved: Cell::new(0),
            held: [const { Cell::new(None) }; HELD_MAX],
            restarts: Cell::new(false),
            open: Cell::new(None),
            sleep: Cell::new(None),
            mask: Cell::new(None),
            is_woken: Cell::new(false),
            id: Cell::new(0),
        }
    };
}

/// Ends the process if a panic would leave the library.
struct NoUnwind;

impl Drop for NoUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Runs `call` with the thread inside the library, then the handlers of signals that have arrived meanwhile. They may leave this function
/// by a jump, so its callers must hold nothing. All memory of the library is allocated and freed inside: its allocator has a lock.
#[inline]
pub fn enter<R>(call: impl FnOnce() -> R) -> R {
    THREAD.with(|thread| thread.enter(call).0)
}

/// Marks the thread as inside, until [`end`].
pub fn begin() {
    THREAD.with(Thread::begin);
}

/// Ends a [`begin`], as [`enter`] does.
pub fn end() {
    THREAD.with(Thread::end);
}

/// Whether the thread is inside a call.
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.depth.get() > 0)
}

/// An answer of a call that may be interrupted.
pub trait Answer {
    fn error(&self) -> Option<Errno>;
    fn interrupted() -> Self;
}

impl<R> Answer for Result<R, Errno> {
    fn error(&self) -> Option<Errno> {
        self.as_ref().err().copied()
    }

    fn interrupted() -> Self {
        Err(Errno::INTR)
    }
}

impl<R> Answer for Verdict<R> {
    fn error(&self) -> Option<Errno> {
        match self {
            Verdict::Ours(answer) => answer.error(),
            Verdict::Kernels => None,
        }
    }

    fn interrupted() -> Self {
        Verdict::Ours(Err(Errno::INTR))
    }
}

/// Runs a call that may wait, which is a cancellation point. A call that fails with [`RESTART`] is made again if the handlers of the
/// signals that have interrupted it allow that, as in the kernel. Its callers must hold nothing.
#[inline]
pub fn waits<A: Answer>(mut call: impl FnMut() -> A) -> A {
    // Once, as finding a thread's data is a call.
    THREAD.with(|thread| {
        if thread.depth.get() > 0 {
            return call();
        }
        thread.prepare();
        loop {
            cancellation::point();
            let (answer, restarts) = thread.enter(&mut call);
            match answer.error() {
                Some(RESTART) if restarts.unwrap_or_else(others_restart) => {}
                Some(RESTART | Errno::INTR) => {
                    cancellation::point();
                    return A::interrupted();
                }
                _ => return answer,
            }
        }
    })
}

/// Whether a call is made again that was interrupted by a handler which is not called by [`on_signal`].
#[cold]
fn others_restart() -> bool {
    sys::others_restart(own_handler())
}

fn own_handler() -> usize {
    on_signal as *const () as usize
}

/// The kernel's ppoll(2), as [`sys::ppoll`]: ended by EINTR when a signal or a cancellation waits for the call to end. Its handlers have
/// not run yet.
pub fn sleep(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize, Errno> {
    let asleep = cancellation::Asleep::begin(THREAD.with(Thread::id));
    let timeout = timeout.unwrap_or(Duration::MAX).min(asleep.longest());
    let mut left = timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let left = &raw mut left;
    // A handler may change an entry, so there is one.
    let mut none = [libc::pollfd { fd: -1, events: 0, revents: 0 }];
    let fds = if fds.is_empty() { &mut none } else { fds };
    let first = fds[0].fd;
    THREAD.with(|thread| {
        thread.is_woken.set(false);
        thread.mask.set(mask);
        thread.sleep.set(Some(Sleep { timeout: left, first: fds.as_mut_ptr() }));
        compiler_fence(Ordering::SeqCst);
        // What arrives from here on ends the sleep before it begins, or interrupts the system call.
        if thread.is_deferred.get() || asleep.is_due() {
            thread.end_sleep();
        }
        // SAFETY: it is this function's own.
        let mut found = unsafe { sys::ppoll(fds, left, mask) };
        compiler_fence(Ordering::SeqCst);
        thread.sleep.set(None);
        thread.mask.set(None);
        compiler_fence(Ordering::SeqCst);
        if std::mem::replace(&mut fds[0].fd, first) != first
            && std::mem::take(&mut fds[0].revents) != 0
        {
            found = found.map(|count| count - 1);
        }
        let has_ended = matches!(found, Ok(0) | Err(Errno::INTR));
        if has_ended && (thread.is_deferred.get() || asleep.is_over()) {
            return Err(Errno::INTR);
        }
        match found {
            // Woken for a cancellation that the thread does not allow.
            Err(Errno::INTR) if thread.is_woken.get() => Ok(0),
            found => found,
        }
    })
}

/// Called in a child of fork(2), whose only thread has another number.
#[cfg_attr(test, allow(dead_code))]
pub fn forget_thread() {
    THREAD.with(|thread| thread.id.set(0));
}

impl Thread {
    /// As [`enter`]. Returns also whether a signal has arrived, and then whether its handler restarts calls.
    #[inline]
    fn enter<R>(&self, call: impl FnOnce() -> R) -> (R, Option<bool>) {
        self.begin();
        let bomb = NoUnwind;
        let answer = call();
        std::mem::forget(bomb);
        (answer, self.end())
    }

    #[inline]
    fn begin(&self) {
        self.depth.set(self.depth.get() + 1);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn end(&self) -> Option<bool> {
        compiler_fence(Ordering::SeqCst);
        let depth = self.depth.get() - 1;
        self.depth.set(depth);
        compiler_fence(Ordering::SeqCst);
        if depth > 0 || !self.is_deferred.get() {
            return None;
        }
        let restarts = self.restarts.get();
        self.deliver();
        Some(restarts)
    }

    /// Gets what the standard library gets once in a thread, at a cancellation point of the C library's.
    #[inline]
    fn prepare(&self) {
        if self.id.get() == 0 {
            self.id();
            sys::without_cancellation(|| drop(RandomState::new()));
        }
    }

    fn id(&self) -> c_int {
        if self.id.get() == 0 {
            self.id.set(rustix::thread::gettid().as_raw_pid());
        }
        self.id.get()
    }

    /// Leaves a signal pending, and blocks it and all others. False if the kernel refuses.
    ///
    /// # Safety
    /// The arguments are those of a signal handler.
    unsafe fn defer(&self, signal: c_int, about: *mut siginfo_t, context: *mut c_void) -> bool {
        if self.is_deferred.get() {
            // SAFETY: by the contract.
            return self.hold(signal, unsafe { *about });
        }
        let all = deferrable();
        // First: with SA_NODEFER the signal would arrive at once.
        let before = sys::block(all);
        // SAFETY: by the contract.
        if !unsafe { sys::queue_to_self(signal, about) } {
            sys::set_mask(before);
            return false;
        }
        // SAFETY: a handler's third argument is its `ucontext_t`, from which the kernel restores the mask.
        let mask = unsafe { sys::mask_of(context) };
        self.is_deferred.set(true);
        let flags = ACTIONS[signal as usize].flags.load(Ordering::Relaxed);
        self.restarts.set(flags & libc::SA_RESTART != 0);
        self.saved.set(*mask);
        self.open.set(self.mask.get());
        *mask |= all;
        self.end_sleep();
        true
    }

    /// Holds a signal that has arrived although a handler has blocked it: valgrind restores the mask that it has saved itself. False
    /// if there is no room for it.
    fn hold(&self, signal: c_int, about: siginfo_t) -> bool {
        for place in &self.held {
            match place.get() {
                // Signals below SIGRTMIN do not queue up.
                Some(held) if held.signal == signal && signal < 32 => return true,
                Some(_) => {}
                None => {
                    place.set(Some(Held { signal, about }));
                    return true;
                }
            }
        }
        false
    }

    /// Ends the sleep that has begun, if it is not yet in the kernel. There, the signal ends it.
    fn end_sleep(&self) {
        if let Some(sleep) = self.sleep.get() {
            sleep.end();
        }
    }

    /// Runs the handlers of the signals that wait.
    #[cold]
    fn deliver(&self) {
        let open = self.open.take();
        self.is_deferred.set(false);
        for held in self.held.iter().filter_map(Cell::take) {
            // SAFETY: it was a handler's second argument.
            unsafe { sys::queue_to_self(held.signal, &raw const held.about) };
        }
        sys::deliver(self.saved.get(), open);
    }
}

/// The signals that are blocked while one waits.
fn deferrable() -> SignalMask {
    let at_once = FAULTS.iter().chain([&SIGSETXID]);
    !at_once.fold(0, |mask, signal| mask | 1 << (signal - 1))
}

/// The handler that the kernel calls for all signals for which the program has one.
pub unsafe extern "C-unwind" fn on_signal(
    signal: c_int,
    about: *mut siginfo_t,
    context: *mut c_void,
) {
    let is_inside = is_inside();
    // SAFETY: these are a signal handler's arguments.
    unsafe {
        if cancellation::is_wake(signal, about) {
            if is_inside {
                THREAD.with(|thread| {
                    thread.is_woken.set(true);
                    thread.end_sleep();
                });
            }
            return;
        }
        let may_wait = is_inside && !FAULTS.contains(&signal);
        if may_wait && THREAD.with(|thread| thread.defer(signal, about, context)) {
            return;
        }
        run(signal, about, context);
    }
}

/// Calls the program's handler. This frame must hold nothing.
///
/// # Safety
/// The arguments are those of a signal handler.
unsafe fn run(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    let action = &ACTIONS[signal as usize];
    let handler = action.handler.load(Ordering::Acquire);
    if action.flags.load(Ordering::Relaxed) & libc::SA_RESETHAND != 0 {
        sys::reset_handler(signal);
    }
    if handler != 0 {
        // SAFETY: it is the program's handler. One that takes the signal alone ignores the other arguments, which are in registers.
        unsafe {
            let handler: Handler = std::mem::transmute(handler);
            handler(signal, about, context);
        }
    }
}

/// sigaction(2), with [`on_signal`] in place of the program's handler. `next` is the C library's.
///
/// # Safety
/// sigaction(2)'s.
pub unsafe fn replace(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
    next: impl FnOnce(*const libc::sigaction, *mut libc::sigaction) -> c_int,
) -> c_int {
    let Some(action) = usize::try_from(signal).ok().and_then(|at| ACTIONS.get(at)) else {
        return next(new, old);
    };
    let own = own_handler();
    let flags = action.flags.load(Ordering::Relaxed);
    let handler = action.handler.load(Ordering::Acquire);
    // SAFETY: by the contract.
    let mut ours = unsafe { new.as_ref() }.copied();
    if let Some(new) = &mut ours
        && !matches!(new.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
    {
        if new.sa_sigaction != own {
            action.flags.store(new.sa_flags, Ordering::Relaxed);
            action.handler.store(new.sa_sigaction, Ordering::Release);
        }
        new.sa_sigaction = own;
        new.sa_flags = (new.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
    }
    // SAFETY: all zero is a valid `sigaction`.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    let done = next(ours.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), &mut before);
    if done != 0 {
        action.flags.store(flags, Ordering::Relaxed);
        action.handler.store(handler, Ordering::Release);
        return done;
    }
    // SAFETY: by the contract.
    if let Some(old) = unsafe { old.as_mut() } {
        if before.sa_sigaction == own {
            const CHANGED: c_int = libc::SA_SIGINFO | libc::SA_RESETHAND;
            before.sa_sigaction = handler;
            before.sa_flags = (before.sa_flags & !CHANGED) | (flags & CHANGED);
        }
        *old = before;
    }
    0
}

/// Puts [`on_signal`] in place of the C library's own handler of a signal, for which sigaction(2) is refused.
pub fn take_over(signal: c_int) {
    let action = &ACTIONS[signal as usize];
    sys::exchange_handler(signal, own_handler(), |handler, flags| {
        action.flags.store(flags, Ordering::Relaxed);
        action.handler.store(handler, Ordering::Release);
    });
}
