//! Finds threads that keep their cores although they were asked to leave, and captures their stacks.
//!
//! A separate thread periodically looks for runs that were asked to end but continue. If it has seen one
//! twice, further apart than the enclave's patience for stalls, it takes the thread's stack, by the signal that
//! interrupts threads. It sleeps nearly always, and no core waits for it.

use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wave_core::clock::{Clock, Nanos};
use wave_core::host::preempt_word;
use wave_core::link::{Home, Port, Waiter, Window};
use wave_links::{AnyPort, EventFd};

use crate::clock::MonotonicClock;
use crate::door::Incarnation;
use crate::klt;
use crate::shared::{Shared, lock};
use crate::table::Thread;

/// Most frames kept of a stack.
const FRAMES_MAX: usize = 64;
/// Most stalls kept with details; later ones are only counted.
const STALLS_MAX: usize = 64;
/// How long a thread may take to report its stack.
const STACK_PATIENCE: Duration = Duration::from_millis(100);
/// Times a thread that had no CPU time is asked again for its stack.
const STACK_TRIES: u32 = 10;
/// Factor by which the time between looks grows while no core is awake.
const AT_REST: u32 = 20;

/// A stall has lack of CPU time as its cause if the thread was asked to leave at least this many times the
/// patience ago, and has since run for less than the patience.
const HARDLY: u64 = 100;

/// Why a thread keeps its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallCause {
    /// The thread passed no safe point for at least the patience.
    NoSafePoint,
    /// The thread is inside this crate, or blocks the signal, or is stuck in the kernel; or the process has
    /// installed another handler for the signal.
    NotInterruptible,
    /// The thread has hardly run since: others use its CPU, or it sleeps in the kernel without being woken.
    NoCpu,
    /// The thread sleeps in the kernel for a lock (pthread_mutex_t) that the named thread holds, which has no
    /// core. It was not necessarily asked to leave, so only the policy can end this.
    LockedOut(Thread),
}

/// A run that did not end when it was asked to, or that cannot continue.
#[derive(Clone, Debug)]
pub struct Stall {
    /// Core on which the thread runs.
    pub core: u16,
    /// The thread that ran when the stall was found.
    pub thread: Thread,
    /// Class of the thread, as the policy sees it.
    pub class: u16,
    /// Why the thread did not leave.
    pub cause: StallCause,
    /// How long the stall is known to have lasted.
    pub lasted: Nanos,
    /// The thread's stack when the stall was found, innermost frame first; empty if the thread could not be
    /// interrupted.
    pub stack: Vec<String>,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stall { core, thread, class, cause, lasted, stack } = self;
        let (id, ms) = (thread.0.id, lasted.0 as f64 / 1e6);
        write!(f, "core {core}: thread {id} of class {class} ")?;
        match cause {
            StallCause::NoSafePoint => {
                write!(
                    f,
                    "was asked to leave its core {ms:.1} ms ago and has passed no safe point since: call preempt_point() there, or make it a kernel-level thread"
                )?;
            }
            StallCause::NoCpu => {
                write!(
                    f,
                    "was asked to leave its core {ms:.1} ms ago and has hardly run since: other threads use its CPU, or it sleeps in the kernel"
                )?;
            }
            StallCause::NotInterruptible => {
                write!(
                    f,
                    "was asked to leave its core {ms:.1} ms ago and takes no signal (Options::signal): it blocks the signal, or another handler takes it"
                )?;
            }
            StallCause::LockedOut(Thread(holder)) => write!(
                f,
                "has slept for {ms:.1} ms waiting for a lock held by thread {}, which has no core",
                holder.id
            )?,
        }
        stack.iter().try_for_each(|frame| write!(f, "\n    {frame}"))
    }
}

/// The longest deferral of a preemption on a core.
#[derive(Clone, Debug)]
pub struct WorstDeferral {
    /// Duration of the deferral.
    pub deferred: Nanos,
    /// Class of the thread that deferred it.
    pub class: u16,
    /// The thread's stack where it finally left its core, innermost frame first.
    pub stack: Vec<String>,
}

/// A [`WorstDeferral`] as its core writes it.
#[derive(Default)]
pub(crate) struct Worst(Mutex<Option<(Nanos, u16, Frames)>>);

impl Worst {
    /// Records the caller's stack and deferral, the longest so far. Allocates nothing, waits for nobody.
    #[cold]
    pub(crate) fn capture(&self, class: u16, deferred: Nanos) {
        if let Ok(mut worst) = self.0.try_lock() {
            let (_, _, frames) = worst.insert((deferred, class, Frames::default()));
            frames.fill();
        }
    }

    pub(crate) fn read(&self) -> Option<WorstDeferral> {
        let (deferred, class, frames) = (*lock(&self.0))?;
        Some(WorstDeferral { deferred, class, stack: frames.names() })
    }
}

/// Return addresses of a stack.
#[derive(Clone, Copy)]
struct Frames {
    addresses: [usize; FRAMES_MAX],
    count: usize,
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { addresses: [0; FRAMES_MAX], count: 0 }
    }
}

impl Frames {
    /// Fills in the caller's stack.
    fn fill(&mut self) {
        self.count = 0;
        // SAFETY: callers must synchronise uses of the platform's debugging library, which is not used on
        // Linux.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                self.addresses[self.count] = frame.ip() as usize;
                self.count += 1;
                self.count < FRAMES_MAX
            });
        }
    }

    /// Names of the thread's own frames, without this crate's capturing frames above and its starting frames below.
    fn names(&self) -> Vec<String> {
        let own = file!().trim_end_matches("stalls.rs");
        let (mut names, mut is_below_look, mut is_above_start) = (Vec::new(), false, true);
        for &address in &self.addresses[..self.count] {
            backtrace::resolve(address as *mut _, |symbol| {
                let path = symbol.filename().map(|path| path.to_string_lossy().into_owned());
                let path = path.unwrap_or_default();
                let name = symbol.name().map_or_else(|| "?".to_owned(), |name| format!("{name:#}"));
                let crate_name = name.trim_start_matches(['<', '&']).split("::").next();
                let is_look = path.contains(own)
                    || path.contains("/rustc/")
                    || path.contains("/backtrace-")
                    || name == "__restore_rt"
                    || crate_name.is_some_and(|name| OWN.contains(&name));
                is_below_look |= !is_look;
                is_above_start &= !(path.contains(own) && path.ends_with("inline_fn.rs"));
                if !is_below_look || !is_above_start {
                    return;
                }
                let file = path.rsplit('/').next().unwrap_or_default();
                names.push(match symbol.lineno() {
                    Some(line) => format!("{name} ({file}:{line})"),
                    None => name,
                });
            });
        }
        names
    }
}

/// Crates of the capturing frames, for programs without debugging information that names files.
const OWN: [&str; 5] = ["wave_user", "backtrace", "core", "std", "alloc"];

/// Id of the pthread whose stack is wanted; 0 if none.
static WANTED: AtomicI32 = AtomicI32::new(0);
/// Number of frames that it reported, plus one; 0 until then.
static TOLD: AtomicU32 = AtomicU32::new(0);
static ADDRESSES: [AtomicUsize; FRAMES_MAX] = [const { AtomicUsize::new(0) }; FRAMES_MAX];

/// Handles the signal: reports the calling thread's stack if it is wanted.
#[inline]
pub(crate) fn on_signal() {
    if WANTED.load(Ordering::Relaxed) != 0 {
        report_stack();
    }
}

#[cold]
fn report_stack() {
    // SAFETY: takes nothing.
    let me = unsafe { libc::gettid() };
    if WANTED.compare_exchange(me, 0, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let mut frames = Frames::default();
    frames.fill();
    for (to, address) in ADDRESSES.iter().zip(frames.addresses) {
        to.store(address, Ordering::Relaxed);
    }
    TOLD.store(frames.count as u32 + 1, Ordering::Release);
}

/// The stack of another thread of this process; empty if the thread does not report it.
fn stack_of(thread: libc::pid_t, signal: libc::c_int) -> Frames {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = lock(&ONE_AT_A_TIME);
    TOLD.store(0, Ordering::Relaxed);
    WANTED.store(thread, Ordering::Release);
    klt::interrupt(thread, signal);
    let start = Instant::now();
    let told = loop {
        match TOLD.load(Ordering::Acquire) {
            0 if start.elapsed() > STACK_PATIENCE
                && WANTED
                    .compare_exchange(thread, 0, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok() =>
            {
                return Frames { addresses: [0; FRAMES_MAX], count: 0 };
            }
            0 => std::thread::sleep(Duration::from_micros(50)),
            told => break told,
        }
    };
    let addresses = std::array::from_fn(|at| ADDRESSES[at].load(Ordering::Relaxed));
    Frames { addresses, count: told as usize - 1 }
}

/// Stalls found so far.
#[derive(Default)]
pub(crate) struct Stalls {
    found: Mutex<Vec<Stall>>,
    count: AtomicUsize,
}

impl Stalls {
    pub(crate) fn read(&self) -> (u64, Vec<Stall>) {
        let found = lock(&self.found);
        (self.count.load(Ordering::Relaxed) as u64, found.clone())
    }
}

/// The detector's observations of one core.
#[derive(Clone, Copy, Default)]
struct Seen {
    run: u32,
    /// Since when the run is known to continue, and since when it is known to be asked to end.
    since: Option<Nanos>,
    asked_since: Option<Nanos>,
    /// CPU time of the pthread when it was first seen asked to end.
    cpu_then: Nanos,
    /// How often the pthread was asked for its stack, and had no CPU time to tell it.
    asked_in_vain: u32,
    /// Index of the stall's report, if it was reported.
    reported: Option<usize>,
}

/// State of the thread that looks for stalls.
pub(crate) struct Detector {
    shared: Arc<Shared>,
    bell: Arc<EventFd>,
    patience: Nanos,
    epoch: u64,
    link: Option<(AnyPort, Arc<Incarnation>)>,
    seen: Vec<Seen>,
}

impl Detector {
    pub(crate) fn new(shared: Arc<Shared>, bell: Arc<EventFd>, patience: Nanos) -> Detector {
        let seen = vec![Seen::default(); shared.cores.len()];
        Detector { shared, bell, patience, epoch: 0, link: None, seen }
    }

    /// Looks for stalls until the bell is rung.
    pub(crate) fn run(mut self) {
        let between = Duration::from_nanos((self.patience.0 / 2).max(100_000));
        loop {
            let rests = self.shared.cores.iter().all(|core| core.sleeps.load(Ordering::Relaxed));
            let wait = if rests { between * AT_REST } else { between };
            if self.bell.wait(Some(wait)) {
                return;
            }
            self.turn();
            for core in 0..self.seen.len() {
                self.check_core(core, MonotonicClock.now());
            }
        }
    }

    /// Switches to the current window.
    fn turn(&mut self) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if self.epoch != epoch {
            self.epoch = epoch;
            let incarnation = lock(&self.shared.incarnation).clone();
            self.link = incarnation.map(|incarnation| (incarnation.port(), incarnation));
            self.seen.fill(Seen::default());
        }
    }

    fn check_core(&mut self, at: usize, now: Nanos) {
        let core = &self.shared.cores[at];
        let record = core.record();
        let seen = &mut self.seen[at];
        if record.asks || core.sleeps.load(Ordering::Relaxed) || seen.run != record.run {
            *seen = Seen { run: record.run, ..Seen::default() };
        }
        if record.asks {
            return;
        }
        let since = *seen.since.get_or_insert(now);
        let is_asked = self.link.as_ref().is_some_and(|(port, incarnation)| {
            let line = incarnation.layout.preempt + at as u32;
            port.window(Home::Host).load(line, 0) == preempt_word(record.run)
        });
        let runner = core.runner.load(Ordering::SeqCst);
        let pthread = if runner != 0 { runner } else { core.tid.load(Ordering::Relaxed) };
        match (is_asked, seen.asked_since) {
            (true, None) => (seen.asked_since, seen.cpu_then) = (Some(now), cpu_time(pthread)),
            (true, Some(_)) => {}
            (false, _) => seen.asked_since = None,
        }
        let (run, asked) = (now.since(since), seen.asked_since.map(|since| now.since(since)));
        let lasted = asked.filter(|asked| *asked >= self.patience);
        if let Some(reported) = seen.reported {
            if let Some(stall) = lock(&self.shared.stalls.found).get_mut(reported) {
                stall.lasted = lasted.unwrap_or(run);
            }
            return;
        }
        if run < self.patience {
            return;
        }
        let cpu_then = seen.cpu_then;
        let holder =
            holder_of_wanted_lock(pthread).and_then(|holder| self.shared.klts.stopped(holder));
        let holder = holder.map(|holder| Thread(self.shared.table.subject(holder)));
        let (cause, lasted) = match (holder, lasted) {
            (Some(holder), _) => (StallCause::LockedOut(holder), run),
            (None, Some(lasted)) if cpu_time(pthread).since(cpu_then) < self.patience => {
                // With more CPU time it might have left.
                if lasted.0 < HARDLY * self.patience.0 {
                    return;
                }
                (StallCause::NoCpu, lasted)
            }
            (None, Some(lasted)) if runner != 0 => (StallCause::NotInterruptible, lasted),
            (None, Some(lasted)) => (StallCause::NoSafePoint, lasted),
            (None, None) => return,
        };
        let thread = Thread(self.shared.table.subject(core.runs.load(Ordering::Relaxed)));
        let cpu_before = cpu_time(pthread);
        let stack = stack_of(pthread, self.shared.signal);
        let had_no_cpu = stack.count == 0 && cpu_time(pthread) == cpu_before;
        if had_no_cpu && seen.asked_in_vain < STACK_TRIES {
            seen.asked_in_vain += 1;
            return;
        }
        // The run may have ended meanwhile: then the stack is another thread's.
        if core.record().run != record.run {
            return;
        }
        // Resolving names takes long: a fifth of a second in a large program.
        let stack = stack.names();
        let class = self.shared.table.class(thread.0.id);
        let stall = Stall { core: at as u16, thread, class, cause, lasted, stack };
        let mut found = lock(&self.shared.stalls.found);
        self.shared.stalls.count.fetch_add(1, Ordering::Relaxed);
        self.seen[at].reported = Some(found.len());
        if found.len() < STALLS_MAX {
            found.push(stall);
        }
    }
}

/// CPU time of a thread of this process so far; zero if the kernel does not say.
fn cpu_time(thread: libc::pid_t) -> Nanos {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"));
    let text = text.unwrap_or_default();
    Nanos(text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// If this thread sleeps in the kernel for a pthread_mutex_t: the thread that holds the lock, from the third
/// word of glibc's mutex.
fn holder_of_wanted_lock(thread: libc::pid_t) -> Option<libc::pid_t> {
    const OWNER_AT: usize = 8;
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let call: libc::c_long = words.next()?.parse().ok()?;
    if call != libc::SYS_futex {
        return None;
    }
    let address = usize::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    let mut owner: libc::pid_t = 0;
    let bytes = size_of_val(&owner);
    let local = libc::iovec { iov_base: (&raw mut owner).cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: (address + OWNER_AT) as *mut _, iov_len: bytes };
    // SAFETY: `local` names `owner`; the kernel checks whether memory exists at `remote`.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (got == bytes as isize && owner > 0).then_some(owner)
}
