//! A virtual world: tasks that share a clock, each resumed when its time has come.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use wave_core::clock::{Clock, Nanos};
use wave_core::link::{Doorbell, Span};
use wave_core::planted::{Planted, is_planted};
use wave_links::model::{Pause, Stage, Task, Timebase, VirtualTime};

use crate::queue::EventQueue;

/// Stack of a task. Production code above the model needs little; untouched pages take no memory.
const STACK_BYTES: usize = 256 << 10;

/// The cause of a wake-up, or several causes that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause(u8);

impl Cause {
    /// A store to a line that the task watches has become visible.
    pub const STORE: Cause = Cause(1);
    /// The task's doorbell was rung: a kick.
    pub const KICK: Cause = Cause(2);
    /// Another part of the same machine asks for the task.
    pub const NUDGE: Cause = Cause(4);
    /// The task has got the CPU that it shares.
    pub const TURN: Cause = Cause(8);
    /// A store to the task's preemption word has become visible.
    pub const WORD: Cause = Cause(16);

    /// The union of both causes.
    pub const fn or(self, other: Cause) -> Cause {
        Cause(self.0 | other.0)
    }
}

/// Names a task of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(u32);

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The task's time or deadline has come; ignored if the task's turn is another one by now.
    Resume(u32, u32),
    Wake(u32, Cause),
    Kill(u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Busy,
    Waiting,
    Ended,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// Causes that wake the task.
    mask: u8,
    /// Causes that occurred while the task was busy.
    pending: u8,
    /// Counts the task's turns, so that an outdated deadline is ignored.
    turn: u32,
    /// The task is stopped until this time; earlier events are postponed to it.
    stopped_until: u64,
    /// The last wake-up on its way, so that several stores at one time cause only one.
    last_wake: (u64, u8),
}

/// Lines of one window: for each, the task that watches a word of it, and the cause of its wake-up.
#[derive(Debug, Default)]
struct Watched([Vec<(u32, u8, Cause)>; 2]);

struct Inner {
    time: VirtualTime,
    events: RefCell<EventQueue<Event>>,
    states: RefCell<Vec<State>>,
    tasks: RefCell<Vec<Option<Task>>>,
    watched: RefCell<Vec<Watched>>,
    resumed: Cell<u64>,
    hash: Cell<u64>,
}

/// The world, which its driver and its tasks share.
#[derive(Clone)]
pub struct World(Rc<Inner>);

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl World {
    /// Creates an empty world at time zero.
    pub fn new() -> World {
        let inner = Rc::new(Inner {
            time: VirtualTime::new(),
            events: RefCell::default(),
            states: RefCell::default(),
            tasks: RefCell::default(),
            watched: RefCell::default(),
            resumed: Cell::new(0),
            hash: Cell::new(0xcbf2_9ce4_8422_2325),
        });
        let weak = Rc::downgrade(&inner);
        inner.time.observe(Rc::new(move |stored| {
            let Some(inner) = weak.upgrade() else { return };
            let watched = inner.watched.borrow();
            let Some(Watched(lines)) = watched.get(stored.window as usize) else { return };
            if let Some(&(task, words, cause)) =
                lines[stored.home as usize].get(stored.line as usize)
                && words & stored.mask != 0
            {
                World(Rc::clone(&inner)).wake(TaskId(task), stored.visible, cause);
            }
        }));
        World(inner)
    }

    /// The present virtual time.
    pub fn now(&self) -> Nanos {
        self.0.time.now()
    }

    /// The clock of this world.
    pub fn time(&self) -> &VirtualTime {
        &self.0.time
    }

    /// Makes room for a window of this many lines, with a clock of its own.
    pub fn add_window(&self, nic_lines: u32, host_lines: u32) -> (u32, VirtualTime) {
        self.add_staged_window(nic_lines, host_lines, Vec::new())
    }

    /// As [`World::add_window`], for a window in which stages take some of the lines.
    pub fn add_staged_window(
        &self,
        nic_lines: u32,
        host_lines: u32,
        stages: Vec<Stage>,
    ) -> (u32, VirtualTime) {
        let mut watched = self.0.watched.borrow_mut();
        let lines = [nic_lines, host_lines].map(|lines| vec![(0, 0, Cause::STORE); lines as usize]);
        watched.push(Watched(lines));
        let window = watched.len() as u32 - 1;
        (window, self.0.time.for_staged_window(window, stages))
    }

    /// Wakes `task` by `cause` for every store to word `word` of these lines, when it becomes visible.
    pub fn watch(&self, window: u32, lines: Span, word: usize, task: TaskId, cause: Cause) {
        let Watched(watched) = &mut self.0.watched.borrow_mut()[window as usize];
        let range = lines.line as usize..(lines.line + lines.lines) as usize;
        watched[lines.home as usize][range].fill((task.0, 1 << word, cause));
    }

    /// Forgets all watches of this window.
    pub fn forget_window(&self, window: u32) {
        self.0.watched.borrow_mut()[window as usize] = Watched::default();
    }

    /// Starts a task, now.
    ///
    /// # Panics
    ///
    /// If the system has no memory for its stack.
    pub fn spawn(&self, body: impl FnOnce() + 'static) -> TaskId {
        let task = Task::new(&self.0.time, STACK_BYTES, body).expect("memory for a task's stack");
        let mut tasks = self.0.tasks.borrow_mut();
        tasks.push(Some(task));
        let id = tasks.len() as u32 - 1;
        self.push(self.now(), Event::Resume(id, 0));
        self.0.states.borrow_mut().push(State::default());
        TaskId(id)
    }

    fn push(&self, at: Nanos, event: Event) {
        self.0.time.lower_horizon(at);
        self.0.events.borrow_mut().push(at, event);
    }

    /// Wakes a task at `at`, if it waits for that cause then, or as soon as it does.
    pub fn wake(&self, task: TaskId, at: Nanos, cause: Cause) {
        {
            let state = &mut self.0.states.borrow_mut()[task.0 as usize];
            if at <= self.now() {
                // The task will see other changes when it looks.
                match state.phase {
                    Phase::Waiting if state.mask & cause.0 != 0 => {}
                    Phase::Busy => {
                        state.pending |= cause.0;
                        return;
                    }
                    _ => return,
                }
            } else if state.last_wake == (at.0, cause.0) {
                return;
            }
            state.last_wake = (at.0, cause.0);
        }
        self.push(at, Event::Wake(task.0, cause));
    }

    /// Pauses the running task, which is `task`, until one of the causes occurs or the deadline comes.
    pub fn wait(&self, task: TaskId, causes: Cause, deadline: Option<Nanos>) {
        self.0.states.borrow_mut()[task.0 as usize].mask = causes.0;
        self.0.time.wait(deadline);
    }

    /// Keeps the running task busy for `span`.
    pub fn spend(&self, span: Nanos) {
        self.0.time.spend(span);
    }

    /// Stops a task at its present point, until `until`.
    pub fn stop(&self, task: TaskId, until: Nanos) {
        let state = &mut self.0.states.borrow_mut()[task.0 as usize];
        state.stopped_until = state.stopped_until.max(until.0);
    }

    /// Ends a task now, at its present point. Not for the running task.
    pub fn kill(&self, task: TaskId) {
        self.push(self.now(), Event::Kill(task.0));
    }

    /// Whether a task has not ended.
    pub fn is_alive(&self, task: TaskId) -> bool {
        self.0.states.borrow()[task.0 as usize].phase != Phase::Ended
    }

    /// Runs the world until `end`. Returns false if no event is left.
    pub fn run_until(&self, end: Nanos) -> bool {
        loop {
            let Some(at) = self.0.events.borrow().next_at() else {
                self.0.time.set_now(end);
                return false;
            };
            if at > end {
                self.0.time.set_now(end);
                return true;
            }
            let Some((at, event)) = self.0.events.borrow_mut().pop() else { continue };
            // An event is late only if the creator of the world has spent time from outside it.
            let at = at.max(self.now());
            self.0.time.set_now(at);
            match event {
                Event::Resume(id, turn) => {
                    if self.0.states.borrow()[id as usize].turn == turn {
                        self.resume(id, at, end);
                    }
                }
                Event::Wake(id, cause) => {
                    let woken = {
                        let state = &mut self.0.states.borrow_mut()[id as usize];
                        if state.phase == Phase::Busy {
                            state.pending |= cause.0;
                        }
                        state.phase == Phase::Waiting && state.mask & cause.0 != 0
                    };
                    if woken {
                        self.resume(id, at, end);
                    }
                }
                Event::Kill(id) => {
                    self.0.states.borrow_mut()[id as usize].phase = Phase::Ended;
                    let task = self.0.tasks.borrow_mut()[id as usize].take();
                    drop(task);
                }
            }
        }
    }

    fn resume(&self, id: u32, at: Nanos, end: Nanos) {
        {
            let state = &mut self.0.states.borrow_mut()[id as usize];
            if state.phase == Phase::Ended {
                return;
            }
            state.turn = state.turn.wrapping_add(1);
            state.phase = Phase::Busy;
            if state.stopped_until > at.0 {
                self.push(Nanos(state.stopped_until), Event::Resume(id, state.turn));
                return;
            }
        }
        let Some(mut task) = self.0.tasks.borrow_mut()[id as usize].take() else { return };
        self.0.resumed.set(self.0.resumed.get() + 1);
        let hash = self.0.hash.get() ^ at.0.rotate_left(20) ^ u64::from(id);
        self.0.hash.set(hash.wrapping_mul(0x0000_0100_0000_01b3));
        // The horizon is not beyond the end: the caller would see events of the future.
        let next = self.0.events.borrow().next_at().unwrap_or(Nanos::MAX);
        self.0.time.set_horizon(next.min(Nanos(end.0.saturating_add(1))));
        let pause = task.resume();
        let now = self.now();
        let state = &mut self.0.states.borrow_mut()[id as usize];
        match pause {
            Pause::Busy(until) => self.push(until, Event::Resume(id, state.turn)),
            Pause::Waiting(deadline) => {
                let woken = state.pending & state.mask != 0;
                state.pending = 0;
                state.phase = if woken { Phase::Busy } else { Phase::Waiting };
                if let Some(at) = if woken { Some(now) } else { deadline } {
                    self.push(at.max(now), Event::Resume(id, state.turn));
                }
            }
            Pause::Ended => state.phase = Phase::Ended,
        }
        if pause != Pause::Ended {
            self.0.tasks.borrow_mut()[id as usize] = Some(task);
        }
    }

    /// How often tasks were resumed.
    pub fn resumed(&self) -> u64 {
        self.0.resumed.get()
    }

    /// A hash over all resumptions of tasks and their times: equal for equal histories.
    pub fn trace_hash(&self) -> u64 {
        self.0.hash.get()
    }

    /// Ends every task, which breaks the cycle of references to the world. The creator of the world must call this.
    pub fn end(&self) {
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        drop(tasks);
    }
}

/// The delivery of a kick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The kick takes the time of the model.
    OnTime,
    /// The kick takes this much longer.
    Late(Nanos),
    /// The kick never arrives.
    Lost,
}

/// A doorbell of the modelled machine: a ring arrives after a flight, unless a fault delays or drops it.
#[derive(Clone)]
pub struct SimBell(Rc<Bell>);

struct Bell {
    world: World,
    target: Cell<Option<TaskId>>,
    cause: Cause,
    send: Nanos,
    flight: Nanos,
    rung: Cell<u64>,
    /// Arrival times of rings that are not taken yet.
    arrivals: RefCell<Vec<Nanos>>,
    fate: RefCell<Option<Box<dyn FnMut() -> Delivery>>>,
}

impl fmt::Debug for SimBell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimBell").field("rung", &self.0.rung.get()).finish_non_exhaustive()
    }
}

impl SimBell {
    /// Creates a bell that occupies its ringer for `send`, and wakes its target `flight` later.
    pub fn new(world: &World, cause: Cause, send: Nanos, flight: Nanos) -> SimBell {
        SimBell(Rc::new(Bell {
            world: world.clone(),
            target: Cell::new(None),
            cause,
            send,
            flight,
            rung: Cell::new(0),
            arrivals: RefCell::default(),
            fate: RefCell::new(None),
        }))
    }

    /// Task that a ring wakes.
    pub fn set_target(&self, task: TaskId) {
        self.0.target.set(Some(task));
    }

    /// Lets `fate` decide the delivery of each ring.
    pub fn set_fate(&self, fate: Box<dyn FnMut() -> Delivery>) {
        *self.0.fate.borrow_mut() = Some(fate);
    }

    /// Takes all rings that have arrived. Returns whether there were any.
    pub fn take(&self) -> bool {
        let (now, mut arrivals) = (self.0.world.now(), self.0.arrivals.borrow_mut());
        let before = arrivals.len();
        arrivals.retain(|at| *at > now);
        arrivals.len() != before
    }
}

impl Doorbell for SimBell {
    fn ring(&self) {
        self.ring_for(self.0.send);
    }
}

impl SimBell {
    /// Rings the bell, and occupies the ringer for `send`.
    pub fn ring_for(&self, send: Nanos) {
        let bell = &self.0;
        bell.world.spend(send);
        let late = match bell.fate.borrow_mut().as_mut().map_or(Delivery::OnTime, |fate| fate()) {
            Delivery::OnTime => Nanos(0),
            Delivery::Late(more) => more,
            Delivery::Lost => return,
        };
        bell.rung.set(bell.rung.get() + 1);
        if let Some(target) = bell.target.get() {
            let flight = bell.flight + late + bell.world.time().held_up();
            let arrives = bell.world.now() + flight;
            bell.arrivals.borrow_mut().push(arrives);
            bell.world.wake(target, arrives, bell.cause);
            if is_planted(Planted::StrayKick) {
                let tasks = bell.world.0.states.borrow().len() as u32;
                bell.world.wake(TaskId((target.0 + tasks / 2) % tasks), arrives, bell.cause);
            }
        }
    }
}
