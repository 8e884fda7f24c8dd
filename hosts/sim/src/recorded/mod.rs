//! Replays a recorded workload ([`wave_sched::workload`]) under any policy.
//!
//! Each recorded thread is a thread here. It needs the same CPU time as in the recording, run by run, and blocks
//! in between. The recorded waker also wakes it here:
//!
//! - a recorded thread: as soon as that thread has used as much CPU time as at the wake-up in the recording. If a
//!   policy delays the waker, it delays the threads that it wakes; if the waker is early, they are early.
//! - anything else (a timer, a device, a thread that was not recorded): as long after the thread blocks as in the
//!   recording (docs/adr/0071). A thread's first run follows no block, and comes at the recorded time.

mod schedule;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::rc::{Rc, Weak};

use wave_core::clock::Nanos;
use wave_core::layout::ConfigError;
use wave_sched::wire::Kind;
use wave_sched::workload::Workload;

use crate::app::{After, Application, Outside};
use crate::enclave::{Counters, Enclave, HostEvent, Setup};
use crate::experiment::Ended;
use crate::paper::{self, Rung};
use crate::world::{Cause, TaskId, World};

pub use schedule::{Latency, Schedule, ThreadSchedule};

/// The virtual time at which the recording begins: an agent that starts with the world has attached by then.
const BEGINS: Nanos = Nanos::from_millis(1);
/// Number of cores per context that wakes threads.
const CORES_PER_WAKER: u16 = 8;
/// Virtual time between two checks whether all threads are done. Tests check far more often.
const LOOK: Nanos = if cfg!(test) { Nanos(499) } else { Nanos::from_millis(10) };

/// Result of a replay under one policy.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Times at which threads ran.
    pub schedule: Schedule,
    /// Number of threads that did not finish.
    pub unfinished: u64,
    /// Counters of the host and its agent.
    pub counters: Counters,
    /// Equal for equal histories.
    pub trace_hash: u64,
}

/// A host to replay on: `cores` cores of the paper's host with Wave on its SmartNIC, and room for this
/// workload's threads. All optimisations are on except prestaging: a decision prestaged for a core whose
/// thread then runs for seconds would keep its thread waiting although another core is idle.
pub fn setup(workload: &Workload, cores: u16, policy: &str) -> Setup {
    let mut setup = paper::wave(cores, Rung::HostCombining, policy);
    setup.config.subjects = (workload.threads.len() as u32).max(1);
    setup.config.contexts = wakers(cores) as u16 + 1;
    setup
}

fn wakers(cores: u16) -> usize {
    usize::from(cores.div_ceil(CORES_PER_WAKER))
}

/// Replays a workload to its end.
///
/// # Errors
///
/// The setup cannot be laid out.
pub fn replay(setup: &Setup, workload: &Rc<Workload>) -> Result<Replayed, ConfigError> {
    let world = World::new();
    let _ended = Ended(world.clone());
    let app = Recorded::new(Rc::clone(workload));
    let enclave = Enclave::new(&world, setup.clone(), Rc::clone(&app) as _)?;
    app.watch(&enclave);
    enclave.start_agent();
    // A generous limit: all runs one after the other, and 100 us more for each run.
    let runs = workload.runs().count() as u64;
    let ends = workload.ends_ns().max(workload.header.duration_ns);
    let limit = BEGINS + Nanos(ends + 2 * workload.cpu_ns() + 100_000 * runs + 1_000_000_000);
    while app.goes_on() && world.now() < limit {
        world.run_until(world.now() + LOOK);
    }
    let counters = enclave.counters();
    Ok(Replayed {
        schedule: app.schedule(&counters, setup.config.cores),
        unfinished: app.unfinished() as u64,
        counters,
        trace_hash: world.trace_hash(),
    })
}

/// A thread of the workload.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Its id in the table, once it has arrived.
    id: Option<u32>,
    /// Index of the present run, or of the next one while the thread waits.
    run: usize,
    /// Whether the thread waits for that run's waker.
    waits: bool,
    /// The time at which it was woken, until it runs.
    ready: Option<Nanos>,
    /// CPU time that it has used, up to the last look.
    used_ns: u64,
    /// CPU time that it will have used when this run ends.
    run_ends_ns: u64,
    /// How many of the threads that it wakes it has woken.
    woke: usize,
    preemptions: u64,
    latencies_ns: Vec<u64>,
    /// The time at which its last run ended.
    ended: Option<Nanos>,
}

/// A wake-up that is due when a thread has used a certain CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    cpu_ns: u64,
    thread: u32,
    run: usize,
}

#[derive(Debug, Default)]
struct State {
    threads: Vec<Progress>,
    /// Runs whose waker came before the thread blocked.
    released: BTreeSet<(u32, usize)>,
    /// Threads to wake and their times, by waking context.
    due: Vec<BinaryHeap<Reverse<(Nanos, u64, u32)>>>,
    /// Counts the entries of `due`, so that equal times keep their order.
    number: u64,
    /// Number of threads that can run, or have not left their core yet.
    active: usize,
    finished: usize,
}

/// An application that replays recorded threads.
#[derive(Debug)]
pub struct Recorded {
    workload: Rc<Workload>,
    /// The wake-ups by each thread, in order.
    points: Vec<Vec<Point>>,
    state: RefCell<State>,
    tasks: RefCell<Vec<TaskId>>,
    /// CPU time that threads have used.
    cpu: Cell<Nanos>,
}

impl Recorded {
    /// Creates an application that replays the workload once.
    pub fn new(workload: Rc<Workload>) -> Rc<Recorded> {
        let mut points = vec![Vec::new(); workload.threads.len()];
        for (thread, recorded) in workload.threads.iter().enumerate() {
            for (run, waker) in recorded.runs.iter().map(|run| run.waker).enumerate() {
                if let Some(waker) = waker {
                    let point = Point { cpu_ns: waker.cpu_ns, thread: thread as u32, run };
                    points[waker.thread as usize].push(point);
                }
            }
        }
        points.iter_mut().for_each(|points| points.sort_unstable());
        Rc::new(Recorded {
            workload,
            points,
            state: RefCell::default(),
            tasks: RefCell::default(),
            cpu: Cell::new(Nanos(0)),
        })
    }

    /// Number of threads that have not finished.
    pub fn unfinished(&self) -> usize {
        self.workload.threads.len() - self.state.borrow().finished
    }

    /// Whether anything can still happen: in a workload written by hand, threads may wait for each other for ever.
    fn goes_on(&self) -> bool {
        let state = self.state.borrow();
        state.active > 0 || state.due.iter().any(|due| !due.is_empty())
    }

    /// Measures how long threads wait.
    fn watch(self: &Rc<Self>, enclave: &Rc<Enclave>) {
        let (app, weak): (_, Weak<Enclave>) = (Rc::clone(self), Rc::downgrade(enclave));
        enclave.watch(Box::new(move |now, event| {
            let HostEvent::Started { thread, .. } = event else { return };
            let Some(enclave) = weak.upgrade() else { return };
            let tag = enclave.table().own(thread.id).tag.get() as usize;
            let progress = &mut app.state.borrow_mut().threads[tag];
            let Some(ready) = progress.ready.take() else { return };
            // Waits that were not measured in the recording are not compared.
            if app.workload.threads[tag].runs[progress.run].waited_ns.is_some() {
                let begins = now + enclave.setup().machine.switch_after.nanos();
                progress.latencies_ns.push(begins.since(ready).0);
            }
        }));
    }

    /// Lets a thread wait for its next run: it is blocked, or has not arrived yet.
    fn wait(&self, enclave: &Enclave, thread: u32) {
        let due = {
            let state = &mut *self.state.borrow_mut();
            let progress = &mut state.threads[thread as usize];
            let recorded = &self.workload.threads[thread as usize];
            let run = &recorded.runs[progress.run];
            let now = enclave.world().now();
            match run.waker {
                None => Some(match recorded.blocked_ns(progress.run) {
                    Some(blocked_ns) => now + Nanos(blocked_ns),
                    None => now.max(BEGINS + Nanos(run.at_ns)),
                }),
                Some(_) if state.released.remove(&(thread, progress.run)) => Some(now),
                Some(_) => {
                    progress.waits = true;
                    None
                }
            }
        };
        if let Some(at) = due {
            self.wake_at(enclave, thread, at);
        }
    }

    /// Performs a wake-up: a thread has used the CPU time at which it wakes another.
    fn release(&self, enclave: &Enclave, point: Point) {
        let waits = {
            let state = &mut *self.state.borrow_mut();
            let progress = &mut state.threads[point.thread as usize];
            let waits = progress.waits && progress.run == point.run;
            if waits {
                progress.waits = false;
            } else {
                state.released.insert((point.thread, point.run));
            }
            waits
        };
        if waits {
            self.wake_at(enclave, point.thread, enclave.world().now());
        }
    }

    fn wake_at(&self, enclave: &Enclave, thread: u32, at: Nanos) {
        let context = {
            let state = &mut *self.state.borrow_mut();
            let context = thread as usize % state.due.len();
            state.due[context].push(Reverse((at, state.number, thread)));
            state.number += 1;
            context
        };
        // While the world starts there are no tasks yet; they check `due` when they begin.
        if let Some(task) = self.tasks.borrow().get(context) {
            enclave.world().wake(*task, enclave.world().now(), Cause::NUDGE);
        }
    }

    /// The body of a context's task: wakes threads when they are due, for as long as the world lasts.
    fn wake_threads(&self, enclave: &Rc<Enclave>, context: usize) {
        let task = self.tasks.borrow()[context];
        let world = enclave.world().clone();
        let mut outside = Outside::new(enclave, context);
        loop {
            let next = self.state.borrow().due[context].peek().map(|Reverse((at, ..))| *at);
            if next.is_none_or(|at| at > world.now()) {
                world.wait(task, Cause::NUDGE, next);
                continue;
            }
            let (id, thread, work) = {
                let state = &mut *self.state.borrow_mut();
                let Some(Reverse((at, _, thread))) = state.due[context].pop() else { continue };
                state.active += 1;
                let progress = &mut state.threads[thread as usize];
                let run = &self.workload.threads[thread as usize].runs[progress.run];
                progress.ready = Some(at);
                progress.run_ends_ns += run.cpu_ns;
                (progress.id, thread, self.piece(thread, progress))
            };
            match id {
                Some(id) => outside.wake(id, 0, work, thread.into()),
                None => {
                    let made = outside.create(0, work, thread.into());
                    assert!(made.is_some(), "there is an id for each thread");
                }
            }
        }
    }

    /// How long a thread runs until it wakes another one, or its run ends.
    fn piece(&self, thread: u32, progress: &Progress) -> Nanos {
        let point = self.points[thread as usize].get(progress.woke);
        let until = point.map_or(progress.run_ends_ns, |at| at.cpu_ns.min(progress.run_ends_ns));
        Nanos(until.saturating_sub(progress.used_ns))
    }
}

impl Application for Recorded {
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>) {
        let threads = self.workload.threads.len();
        let contexts = wakers(enclave.setup().config.cores);
        {
            let mut state = self.state.borrow_mut();
            state.threads = vec![Progress::default(); threads];
            state.due = (0..contexts).map(|_| BinaryHeap::new()).collect();
        }
        (0..threads).for_each(|thread| self.wait(enclave, thread as u32));
        for context in 0..contexts {
            let (app, weak) = (Rc::clone(&self), Rc::downgrade(enclave));
            let task = enclave.world().spawn(move || {
                if let Some(enclave) = weak.upgrade() {
                    app.wake_threads(&enclave, context);
                }
            });
            self.tasks.borrow_mut().push(task);
        }
    }

    fn ran(&self, _now: Nanos, _core: u16, _id: u32, time: Nanos) {
        self.cpu.set(self.cpu.get() + time);
    }

    fn after(&self, enclave: &Enclave, id: u32) -> After {
        let thread = enclave.table().own(id).tag.get() as u32;
        let at = thread as usize;
        {
            let progress = &mut self.state.borrow_mut().threads[at];
            progress.id = Some(id);
            progress.used_ns += self.piece(thread, progress).0;
        }
        loop {
            let point = {
                let progress = &mut self.state.borrow_mut().threads[at];
                let point = self.points[at].get(progress.woke).copied();
                let Some(point) = point.filter(|point| point.cpu_ns <= progress.used_ns) else {
                    break;
                };
                progress.woke += 1;
                point
            };
            self.release(enclave, point);
        }
        let state = &mut *self.state.borrow_mut();
        let progress = &mut state.threads[at];
        if progress.used_ns < progress.run_ends_ns {
            return After::On(self.piece(thread, progress));
        }
        progress.run += 1;
        if progress.run < self.workload.threads[at].runs.len() {
            return After::Block;
        }
        progress.ended = Some(enclave.world().now());
        state.finished += 1;
        After::Exit
    }

    fn left(&self, enclave: &Enclave, id: u32, kind: Kind) {
        let thread = enclave.table().own(id).tag.get() as u32;
        match kind {
            Kind::Blocked => {
                self.wait(enclave, thread);
                self.state.borrow_mut().active -= 1;
            }
            Kind::Dead => self.state.borrow_mut().active -= 1,
            Kind::Preempt => self.state.borrow_mut().threads[thread as usize].preemptions += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
