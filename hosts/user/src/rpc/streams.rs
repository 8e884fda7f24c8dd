//! Handlers of streaming calls: suspended while they wait for their clients, so that their worker serves other calls meanwhile.
//!
//! Each handler has its own stack, on its worker's pthread or thread (docs/adr/0035).

use std::collections::{HashMap, VecDeque};
use std::io;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use wave_core::message::Subject;

/// Bytes of a handler's stack, the standard library's default for a thread. Only touched pages take memory.
const STACK_BYTES: usize = 2 << 20;
/// Number of stacks that a worker keeps for later streams.
const STACKS_KEPT: usize = 16;

/// Why a handler lets other handlers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// The handler waits for an event of its call.
    Waits,
    /// The handler has run for long, and yields.
    Goes,
}

/// Suspends a handler so that others can run.
#[derive(Clone, Copy)]
pub(super) struct Pauser<'a>(&'a Yielder<(), Pause>);

impl Pauser<'_> {
    /// Suspends the handler. Returns when the worker resumes it.
    pub(super) fn pause(self, pause: Pause) {
        self.0.suspend(pause);
    }
}

impl std::fmt::Debug for Pauser<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pauser").finish_non_exhaustive()
    }
}

type Routine = Coroutine<(), Pause, (), DefaultStack>;

/// A worker's handlers that have begun and not ended.
#[derive(Default)]
pub(super) struct Streams {
    waiting: HashMap<Subject, Routine>,
    ready: VecDeque<(Subject, Routine)>,
    stacks: Vec<DefaultStack>,
}

impl Streams {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.ready.is_empty()
    }

    /// Whether a handler is ready and waits only for its turn.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A stack for a handler.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn stack(&mut self) -> io::Result<DefaultStack> {
        self.stacks.pop().map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)
    }

    /// Starts a handler and runs it until it ends or first lets other handlers run.
    pub(super) fn start(
        &mut self,
        call: Subject,
        stack: DefaultStack,
        handler: impl FnOnce(Pauser<'_>) + 'static,
    ) {
        let body = |yielder: &Yielder<(), Pause>, ()| handler(Pauser(yielder));
        self.run(call, Coroutine::with_stack(stack, body));
    }

    /// Marks the handler of a call with a new event as ready, if it waits.
    pub(super) fn wake(&mut self, call: Subject) {
        self.ready.extend(self.waiting.remove(&call).map(|routine| (call, routine)));
    }

    /// Marks every waiting handler as ready after the worker changed its window; each then finds its call gone.
    pub(super) fn wake_all(&mut self) {
        self.ready.extend(self.waiting.drain());
    }

    /// Resumes the handler that has been ready the longest. Returns whether there was one.
    pub(super) fn run_next(&mut self) -> bool {
        let Some((call, routine)) = self.ready.pop_front() else { return false };
        self.run(call, routine);
        true
    }

    fn run(&mut self, call: Subject, mut routine: Routine) {
        match routine.resume(()) {
            CoroutineResult::Yield(Pause::Waits) => {
                self.waiting.insert(call, routine);
            }
            CoroutineResult::Yield(Pause::Goes) => self.ready.push_back((call, routine)),
            CoroutineResult::Return(()) if self.stacks.len() < STACKS_KEPT => {
                self.stacks.push(routine.into_stack());
            }
            CoroutineResult::Return(()) => {}
        }
    }
}
