//! Virtual time: contexts that take turns on one thread, each running until it would overtake the
//! next event of another.
//!
//! A context is a [`Task`]: ordinary code on a stack of its own. Each charge of the model moves
//! the clock. If that would pass the *horizon*, the time of the next event of another context, the
//! task pauses, and the driver of the tasks resumes it when its time has come. So every load and
//! store of every context happens in one global order of time, production code runs unchanged
//! above it, and a context can be stopped for ever or for a while between any two accesses.
//!
//! Everything here belongs to one thread.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use wave_core::clock::{Clock, Nanos};
use wave_core::link::{Home, LINE_WORDS, Span};

use super::pcie::Carried;
use super::time::Timebase;

/// The charge for polling a copy that is still under way.
const LOOK: Nanos = Nanos(20);

/// Why a task paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The task is busy until this time.
    Busy(Nanos),
    /// The task waits until it is woken, or until this time.
    Waiting(Option<Nanos>),
    /// The task has returned.
    Ended,
}

type TaskYielder = Yielder<(), Pause>;

/// One store to a line of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Number of the window in its world.
    pub window: u32,
    /// Region that the line is in.
    pub home: Home,
    /// Index of the line in its region.
    pub line: u32,
    /// Stored words of the line, one bit for each.
    pub mask: u8,
    /// The time at which the store becomes visible.
    pub visible: Nanos,
}

/// A function that sees each store as it arrives.
pub type Observer = dyn Fn(Stored);

/// A stage of a pipeline: a CPU that takes the stores and copies to some lines, one after the other, before they become
/// visible.
#[derive(Debug)]
pub struct Stage {
    lines: Span,
    occupied: u64,
    takes: fn(&[u64; LINE_WORDS]) -> bool,
    free_at: Cell<u64>,
}

impl Stage {
    /// Creates a stage that each store or copy to one of `lines` occupies for `occupied`, if `takes` accepts the words.
    pub fn new(lines: Span, occupied: Nanos, takes: fn(&[u64; LINE_WORDS]) -> bool) -> Stage {
        Stage { lines, occupied: occupied.0, takes, free_at: Cell::new(0) }
    }

    fn takes(&self, home: Home, line: u32, words: &[u64; LINE_WORDS]) -> bool {
        let Span { home: own, line: first, lines } = self.lines;
        own == home && (first..first + lines).contains(&line) && (self.takes)(words)
    }

    /// First come, first served: returns the time at which the stage is done with a line that arrives at `arrives`.
    fn serve(&self, arrives: u64) -> u64 {
        let done = arrives.max(self.free_at.get()).saturating_add(self.occupied);
        self.free_at.set(done);
        done
    }
}

struct Shared {
    now: Cell<u64>,
    horizon: Cell<u64>,
    stalled_until: Cell<u64>,
    carried: Cell<Carried>,
    /// The running task's yielder; null while none runs.
    yielder: Cell<*const TaskYielder>,
    observer: RefCell<Option<Rc<Observer>>>,
}

/// The clock of a virtual world. Clones show the same time.
#[derive(Clone)]
pub struct VirtualTime {
    shared: Rc<Shared>,
    window: u32,
    stages: Rc<[Stage]>,
}

impl fmt::Debug for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualTime").field("now", &self.shared.now.get()).finish_non_exhaustive()
    }
}

impl Default for VirtualTime {
    fn default() -> VirtualTime {
        VirtualTime::new()
    }
}

impl VirtualTime {
    /// Creates a clock at time zero, without tasks.
    pub fn new() -> VirtualTime {
        let shared = Shared {
            now: Cell::new(0),
            horizon: Cell::new(u64::MAX),
            stalled_until: Cell::new(0),
            carried: Cell::default(),
            yielder: Cell::new(std::ptr::null()),
            observer: RefCell::new(None),
        };
        VirtualTime { shared: Rc::new(shared), window: 0, stages: Rc::new([]) }
    }

    /// This clock, for the contexts of the window with this number.
    pub fn for_window(&self, window: u32) -> VirtualTime {
        self.for_staged_window(window, Vec::new())
    }

    /// As [`VirtualTime::for_window`], for a window with lines that stages take.
    pub fn for_staged_window(&self, window: u32, stages: Vec<Stage>) -> VirtualTime {
        VirtualTime { shared: Rc::clone(&self.shared), window, stages: stages.into() }
    }

    /// Lets `observer` see every store to a window.
    pub fn observe(&self, observer: Rc<Observer>) {
        *self.shared.observer.borrow_mut() = Some(observer);
    }

    /// Sets the clock. For the driver of the tasks.
    pub fn set_now(&self, now: Nanos) {
        self.shared.now.set(now.0);
    }

    /// Sets the time that no task may pass without pausing.
    pub fn set_horizon(&self, horizon: Nanos) {
        self.shared.horizon.set(horizon.0);
    }

    /// Announces a new event at `at`: no task may pass that time either.
    pub fn lower_horizon(&self, at: Nanos) {
        self.shared.horizon.set(self.shared.horizon.get().min(at.0));
    }

    /// Holds up everything that leaves for the other side before `until`, until that time.
    pub fn stall_link(&self, until: Nanos) {
        self.shared.stalled_until.set(until.0);
    }

    /// Bytes that have crossed the links of this world.
    pub fn bytes_carried(&self) -> Carried {
        self.shared.carried.get()
    }

    /// Pauses the running task until it is woken, or until `deadline`. Outside a task, returns at once.
    pub fn wait(&self, deadline: Option<Nanos>) {
        self.pause(Pause::Waiting(deadline));
    }

    /// Returns whether there was a task to pause.
    fn pause(&self, pause: Pause) -> bool {
        let yielder = self.shared.yielder.get();
        if yielder.is_null() {
            return false;
        }
        // SAFETY: this is the yielder of the task that runs here: `Task::resume` sets it for as long
        // as it runs the task, a task that is dropped unwinds under a null one, and a `VirtualTime`
        // never leaves its thread. A task's yielder lives as long as its stack.
        unsafe { &*yielder }.suspend(pause);
        true
    }
}

impl Clock for VirtualTime {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos(self.shared.now.get())
    }
}

impl Timebase for VirtualTime {
    #[inline]
    fn spend(&self, span: Nanos) {
        self.spend_until(self.now() + span);
    }

    #[inline]
    fn spend_until(&self, end: Nanos) {
        if end.0 <= self.shared.now.get() {
            return;
        }
        // An event due at the same time was scheduled earlier, and goes first.
        if end.0 >= self.shared.horizon.get() && self.pause(Pause::Busy(end)) {
            return;
        }
        self.shared.now.set(end.0);
    }

    fn held_up(&self) -> Nanos {
        Nanos(self.shared.stalled_until.get()).since(self.now())
    }

    #[inline]
    fn stored(&self, home: Home, line: u32, mask: u8, visible: Nanos) {
        if let Some(observer) = &*self.shared.observer.borrow() {
            observer(Stored { window: self.window, home, line, mask, visible });
        }
    }

    #[inline]
    fn staged(&self, home: Home, line: u32, words: &[u64; LINE_WORDS], arrives: Nanos) -> Nanos {
        match self.stages.iter().find(|stage| stage.takes(home, line, words)) {
            Some(stage) => Nanos(stage.serve(arrives.0)),
            None => arrives,
        }
    }

    fn carried(&self, bytes: Carried) {
        self.shared.carried.set(self.shared.carried.get() + bytes);
    }

    fn on_empty_poll(&self) {
        self.spend(LOOK);
    }
}

/// Ordinary code on a stack of its own, which pauses when its time has not come yet.
///
/// Dropping a task that has not ended unwinds its stack; its destructors then take no virtual time.
pub struct Task {
    /// `None` only during drop.
    coroutine: Option<Coroutine<(), Pause, (), DefaultStack>>,
    yielder: Rc<Cell<*const TaskYielder>>,
    time: VirtualTime,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

impl Task {
    /// Creates a task that will run `body` on a stack of `stack_bytes`.
    pub fn new(
        time: &VirtualTime,
        stack_bytes: usize,
        body: impl FnOnce() + 'static,
    ) -> std::io::Result<Task> {
        let stack = DefaultStack::new(stack_bytes)?;
        let yielder = Rc::new(Cell::new(std::ptr::null()));
        let (own, shared) = (Rc::clone(&yielder), Rc::clone(&time.shared));
        let coroutine = Coroutine::with_stack(stack, move |yielder: &TaskYielder, ()| {
            own.set(yielder);
            shared.yielder.set(yielder);
            body();
        });
        Ok(Task { coroutine: Some(coroutine), yielder, time: time.clone() })
    }

    /// Runs the task until it pauses or ends.
    ///
    /// # Panics
    ///
    /// If the task has ended, or if it panics itself.
    pub fn resume(&mut self) -> Pause {
        let _turn = Turn::of(&self.time.shared.yielder, self.yielder.get());
        match self.coroutine.as_mut().expect("there until dropped").resume(()) {
            CoroutineResult::Yield(pause) => pause,
            CoroutineResult::Return(()) => Pause::Ended,
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Its destructors run on its stack, and must not pause the task that drops it.
        let _turn = Turn::of(&self.time.shared.yielder, std::ptr::null());
        self.coroutine = None;
    }
}

/// While this lives, another task (or none) counts as running; on drop the earlier one does again, also after a panic.
struct Turn<'a> {
    running: &'a Cell<*const TaskYielder>,
    before: *const TaskYielder,
}

impl Turn<'_> {
    fn of(running: &Cell<*const TaskYielder>, now: *const TaskYielder) -> Turn<'_> {
        Turn { running, before: running.replace(now) }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.running.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_runs_up_to_the_horizon_and_no_further() {
        let time = VirtualTime::new();
        let (inside, seen) = (time.clone(), Rc::new(Cell::new(0)));
        let shows = Rc::clone(&seen);
        let mut task = Task::new(&time, 64 << 10, move || {
            inside.spend(Nanos(10));
            shows.set(inside.now().0);
            inside.spend(Nanos(10));
            inside.wait(Some(Nanos(100)));
        })
        .unwrap();
        time.set_horizon(Nanos(20));
        assert_eq!(task.resume(), Pause::Busy(Nanos(20)));
        assert_eq!((time.now(), seen.get()), (Nanos(10), 10));
        time.set_now(Nanos(20));
        assert_eq!(task.resume(), Pause::Waiting(Some(Nanos(100))));
        assert_eq!(task.resume(), Pause::Ended);
    }

    #[test]
    fn a_task_that_is_dropped_unwinds() {
        struct Flag(Rc<Cell<bool>>, VirtualTime);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.1.spend(Nanos(5));
                self.0.set(true);
            }
        }
        let (time, dropped) = (VirtualTime::new(), Rc::new(Cell::new(false)));
        let flag = Flag(Rc::clone(&dropped), time.clone());
        let inside = time.clone();
        let mut task = Task::new(&time, 64 << 10, move || {
            let _flag = flag;
            inside.wait(None);
        })
        .unwrap();
        assert_eq!(task.resume(), Pause::Waiting(None));
        drop(task);
        assert!(dropped.get());
    }
}
