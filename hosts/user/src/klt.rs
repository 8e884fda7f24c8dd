//! Kernel-level threads: each has a pthread with a gate, and each host core has at most one gate open.
//!
//! ```text
//!   core's pthread                                thread's pthread
//!   open: core, id, gate = OPEN, wake ----------> runs any foreign code
//!   sleeps while the core is away                   |  kick: the handler checks whether this run is
//!                                                   |  asked to end
//!   is back: message, next decision <-----------  gate = CLOSED, core back, wake; sleeps
//! ```
//!
//! A core and its data are used by one pthread at a time: the core's own, or that of the thread whose gate
//! the core opened. The gates pass this right on, with acquire and release.
//!
//! The signal handler leaves the core wherever the thread is in its own code. As the thread has its own
//! pthread, it can stop there for any time, with its locks, thread-locals and half-done allocations. *Inside
//! this crate* the handler only notes that the signal came, and the thread checks once it is outside.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    compiler_fence,
};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle as Pthread;

use crossbeam_queue::ArrayQueue;
use wave_core::clock::{Clock, Nanos};
use wave_sched::mechanism::table::Leave;

use crate::clock::MonotonicClock;
use crate::core_loop::Core;
use crate::shared::{Shared, lock};
use crate::{futex, region};

/// States of a gate. A closed gate stops its thread.
const CLOSED: u32 = 0;
const OPEN: u32 = 1;
const QUIT: u32 = 2;

/// The pthread is not pinned to a CPU yet.
const NOWHERE: usize = usize::MAX;
/// The default of pthreads, as foreign code expects no less. Untouched pages take only address space.
const STACK_BYTES: usize = 8 << 20;

thread_local! {
    static KLT: Cell<*const Klt> = const { Cell::new(std::ptr::null()) };
}

/// A pthread that carries one kernel-level thread after another.
#[repr(align(128))]
pub(crate) struct Klt {
    gate: AtomicU32,
    tid: AtomicI32,
    /// While the gate is open: the core that opened it, and the thread's id.
    core: AtomicPtr<Core>,
    id: AtomicU32,
    /// Why the pthread last gave the core back: a [`Leave`].
    reason: AtomicU8,
    /// Nesting depth of calls into this crate. The handler leaves the core only if this is 0. Written only by
    /// the pthread itself, handler included.
    inside: AtomicU32,
    /// Whether the signal came while inside, and when it first did.
    pending: AtomicBool,
    pending_since_ns: AtomicU64,
    /// The CPU to which the pthread is pinned.
    cpu: AtomicUsize,
    /// The timer that ends slices; made for the first slice.
    timer: Mutex<Option<Timer>>,
}

impl Klt {
    fn new() -> Klt {
        Klt {
            gate: AtomicU32::new(CLOSED),
            tid: AtomicI32::new(0),
            core: AtomicPtr::new(std::ptr::null_mut()),
            id: AtomicU32::new(0),
            reason: AtomicU8::new(Leave::Exit as u8),
            inside: AtomicU32::new(1),
            pending: AtomicBool::new(false),
            pending_since_ns: AtomicU64::new(0),
            cpu: AtomicUsize::new(NOWHERE),
            timer: Mutex::new(None),
        }
    }

    /// The calling pthread, if it carries kernel-level threads.
    #[inline]
    pub(crate) fn current<'a>() -> Option<&'a Klt> {
        // SAFETY: set by `Klt::run` for as long as the pthread runs, during which the `Klt` is kept alive. No
        // reference outlives the pthread.
        unsafe { KLT.get().as_ref() }
    }

    /// The body of the pthread, from its start to the enclave's end.
    fn run(&self, shared: &Shared, started: impl FnOnce()) {
        // SAFETY: takes nothing.
        self.tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        KLT.set(self);
        started();
        while self.pass_gate() == OPEN {
            let entry = shared.table.own(self.id.load(Ordering::Relaxed)).take_entry();
            self.step_outside();
            entry.call();
            self.step_inside();
            self.give_back(Leave::Exit);
        }
        KLT.set(std::ptr::null());
    }

    pub(crate) fn tid(&self) -> libc::pid_t {
        self.tid.load(Ordering::Relaxed)
    }

    /// The core on which this thread runs. The caller must be inside.
    pub(crate) fn core(&self) -> &Core {
        // SAFETY: the core opened the gate, and waits, alive, until this pthread, the caller's, gives it
        // back.
        unsafe { &*self.core.load(Ordering::Relaxed) }
    }

    /// Opens the gate: the pthread runs as thread `id` on `core` and on the core's CPU. The caller is the core,
    /// and uses none of its data until [`Klt::give_back`].
    pub(crate) fn open(&self, core: &Core, id: u32, cpu: Option<usize>) {
        if let Some(cpu) = cpu
            && self.cpu.load(Ordering::Relaxed) != cpu
            && wave_process::cpus::pin_thread(self.tid(), &[cpu]).is_ok()
        {
            self.cpu.store(cpu, Ordering::Relaxed);
        }
        self.core.store(std::ptr::from_ref(core).cast_mut(), Ordering::Relaxed);
        self.id.store(id, Ordering::Relaxed);
        self.gate.store(OPEN, Ordering::Release);
        futex::wake(&self.gate);
    }

    /// Reason for which the thread returned to its core.
    pub(crate) fn reason(&self) -> Leave {
        Leave::from_number(self.reason.load(Ordering::Relaxed))
    }

    /// Gives the core back. The caller must be this pthread, inside.
    fn give_back(&self, reason: Leave) {
        let core = self.core();
        let away = &core.shared.cores[usize::from(core.index)].away;
        self.reason.store(reason as u8, Ordering::Relaxed);
        self.gate.store(CLOSED, Ordering::Relaxed);
        away.store(0, Ordering::Release);
        futex::wake(away);
    }

    /// Waits for the gate and begins the run. Returns the gate's state.
    fn pass_gate(&self) -> u32 {
        let gate = loop {
            match self.gate.load(Ordering::Acquire) {
                CLOSED => futex::wait(&self.gate, CLOSED),
                gate => break gate,
            }
        };
        if gate == OPEN {
            let core = self.core();
            let after = core.begin_on_klt();
            if after.is_some() {
                self.set_timer(after, core.shared.signal);
            }
        }
        gate
    }

    /// Leaves the core, and returns when the thread runs again. The caller must be this pthread, inside.
    pub(crate) fn leave(&self, reason: Leave) {
        self.give_back(reason);
        self.pass_gate();
    }

    #[inline]
    fn step_inside(&self) {
        let inside = self.inside.load(Ordering::Relaxed);
        self.inside.store(inside + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn step_outside(&self) {
        let inside = self.inside.load(Ordering::Relaxed);
        loop {
            compiler_fence(Ordering::SeqCst);
            self.inside.store(inside - 1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            if inside > 1 || !self.pending.load(Ordering::Relaxed) {
                return;
            }
            self.inside.store(inside, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // In this order: a signal in between changes neither, and a signal afterwards changes both.
            let since = self.pending_since_ns.load(Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            self.pending.store(false, Ordering::Relaxed);
            self.leave_if_due(Some(Nanos(since)));
        }
    }

    fn on_signal(&self) {
        if self.inside.load(Ordering::Relaxed) > 0 {
            if !self.pending.load(Ordering::Relaxed) {
                self.pending_since_ns.store(MonotonicClock.now().0, Ordering::Relaxed);
                compiler_fence(Ordering::SeqCst);
                self.pending.store(true, Ordering::Relaxed);
            }
            return;
        }
        self.step_inside();
        self.leave_if_due(None);
        self.step_outside();
    }

    /// Leaves the core if it has to. The signal came at `since`, or just now if `None`.
    fn leave_if_due(&self, since: Option<Nanos>) {
        // The signal may be meant for a run that has ended, or come from any process.
        if self.gate.load(Ordering::Relaxed) != OPEN {
            return;
        }
        let core = self.core();
        if core.must_leave_now(since) {
            self.leave(Leave::Preempt);
        } else if let Some(after) = core.heed_alarm() {
            self.set_timer(Some(after), core.shared.signal);
        }
    }

    /// Arms the timer to signal its pthread after `after`, or disarms it if `None`. Without a timer no signal
    /// comes: slices are refused then, and a sleeping thread is woken when the core next switches.
    pub(crate) fn set_timer(&self, after: Option<Nanos>, signal: libc::c_int) {
        if self.has_timer(signal)
            && let Some(timer) = &*lock(&self.timer)
        {
            timer.set(after.unwrap_or(Nanos(0)));
        }
    }

    /// Makes the timer unless there is one. Returns whether there is one now: the kernel limits the number of
    /// timers per user.
    pub(crate) fn has_timer(&self, signal: libc::c_int) -> bool {
        let mut timer = lock(&self.timer);
        if timer.is_none() {
            *timer = Timer::new(self.tid(), signal).ok();
        }
        timer.is_some()
    }
}

/// Marks the calling thread as inside this crate, where a kernel-level thread is not preempted because it may
/// hold locks that its core needs. Has no effect on other threads.
pub(crate) struct Inside(Option<&'static Klt>);

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Inside {
        let klt = Klt::current();
        if let Some(klt) = klt {
            klt.step_inside();
        }
        Inside(klt)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        if let Some(klt) = self.0 {
            klt.step_outside();
        }
    }
}

/// A kernel timer that interrupts one pthread.
struct Timer(libc::timer_t);

// SAFETY: a timer's id means the same to every thread of the process.
unsafe impl Send for Timer {}

impl Timer {
    fn new(thread: libc::pid_t, signal: libc::c_int) -> io::Result<Timer> {
        // SAFETY: all zeros is a valid sigevent.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = thread;
        let mut id = std::ptr::null_mut();
        // SAFETY: both are valid for the call.
        match unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut id) } {
            0 => Ok(Timer(id)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets the timer; zero stops it.
    fn set(&self, after: Nanos) {
        let value = libc::timespec {
            tv_sec: (after.0 / 1_000_000_000) as libc::time_t,
            tv_nsec: (after.0 % 1_000_000_000) as libc::c_long,
        };
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: never, it_value: value };
        // SAFETY: the timer is alive, and `spec` is valid for reads.
        unsafe { libc::timer_settime(self.0, 0, &spec, std::ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made once, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// All such pthreads of an enclave, made at start.
pub(crate) struct Klts {
    all: Box<[Klt]>,
    free: ArrayQueue<u32>,
}

impl Klts {
    pub(crate) fn new(count: u32) -> Klts {
        let free = ArrayQueue::new(count.max(1) as usize);
        (0..count).for_each(|at| _ = free.push(at));
        Klts { all: (0..count).map(|_| Klt::new()).collect(), free }
    }

    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Vec<Pthread<()>>> {
        let mut pthreads = Vec::new();
        let (started, is_started) = std::sync::mpsc::channel();
        for at in 0..shared.klts.all.len() {
            let (shared, started) = (Arc::clone(shared), started.clone());
            let builder = std::thread::Builder::new().name(format!("wave-klt-{at}"));
            pthreads.push(builder.stack_size(STACK_BYTES).spawn(move || {
                shared.klts.all[at].run(&shared, || _ = started.send(()));
            })?);
        }
        pthreads.iter().for_each(|_| _ = is_started.recv());
        Ok(pthreads)
    }

    /// Ends the pthreads that carry no thread, and returns once they have ended. The others remain blocked
    /// forever.
    pub(crate) fn stop(&self, mut pthreads: Vec<Pthread<()>>) {
        let mut ends = vec![false; self.all.len()];
        while let Some(at) = self.free.pop() {
            ends[at as usize] = true;
            let gate = &self.all[at as usize].gate;
            gate.store(QUIT, Ordering::Release);
            futex::wake(gate);
        }
        for (at, pthread) in pthreads.drain(..).enumerate() {
            if ends[at] {
                let _ = pthread.join();
            }
        }
    }

    pub(crate) fn get(&self, at: u32) -> &Klt {
        &self.all[at as usize]
    }

    /// Takes a pthread that carries no thread, if there is one.
    pub(crate) fn take(&self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&self, at: u32) {
        let _ = self.free.push(at);
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The stopped thread that the pthread `tid` carries, if there is one.
    pub(crate) fn stopped(&self, tid: libc::pid_t) -> Option<u32> {
        let klt = self.all.iter().find(|klt| klt.tid() == tid)?;
        let is_stopped = klt.gate.load(Ordering::Relaxed) == CLOSED;
        let carries = klt.reason() != Leave::Exit;
        (is_stopped && carries).then(|| klt.id.load(Ordering::Relaxed))
    }
}

/// The signal handler, which may run on any thread. Uses only atomics, futexes and the clock.
pub(crate) extern "C" fn on_signal(_signal: libc::c_int) {
    // SAFETY: the address is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    crate::stalls::on_signal();
    match Klt::current() {
        Some(klt) => klt.on_signal(),
        None => region::on_signal(),
    }
    // SAFETY: as above. The address is asked for again: the compiler may have kept the old one, which belongs
    // to another pthread if a user-level thread has moved meanwhile.
    unsafe { *errno_location() = errno };
}

#[inline(never)]
fn errno_location() -> *mut libc::c_int {
    // SAFETY: takes nothing.
    unsafe { libc::__errno_location() }
}

/// Makes [`on_signal`] the handler of `signal`. Fails if the process already has another handler.
pub(crate) fn handle(signal: libc::c_int) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = lock(&ONE_AT_A_TIME);
    let ours = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: all zeros is a valid sigaction.
    let [mut before, mut action]: [libc::sigaction; 2] = unsafe { std::mem::zeroed() };
    // SAFETY: only asks.
    if unsafe { libc::sigaction(signal, std::ptr::null(), &mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if ![libc::SIG_DFL, libc::SIG_IGN, ours].contains(&before.sa_sigaction) {
        return Err(io::Error::other("the process already has its own handler for it"));
    }
    action.sa_sigaction = ours;
    // The signal mask must not change: a thread that is preempted in the handler may be interrupted again in
    // its next run, and a user-level thread may continue on another pthread.
    action.sa_flags = libc::SA_RESTART | libc::SA_NODEFER;
    // SAFETY: the handler does only what a signal handler may do.
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends `signal` to a thread of this process.
pub(crate) fn interrupt(tid: libc::pid_t, signal: libc::c_int) {
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal) };
}
