//! Executors of the pipeline: what runs its stages, and where. The steps are the same functions ([`crate::pipeline`]).
//!
//! | executor | stages run |
//! | --- | --- |
//! | [`Inline`] | one after the other, on one entry at a time |
//! | [`VirtualTime`] | as replicas of a model that take time drawn from a seed |
//! | `Threads` (feature `threads`) | in threads of their own, bounded queues between them |

mod inline;
#[cfg(feature = "threads")]
mod threads;
mod virtual_time;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

pub use inline::Inline;
#[cfg(feature = "threads")]
pub use threads::Threads;
pub use virtual_time::{Shape, VirtualTime};

use wave_core::clock::Nanos;

use crate::datapath::{
    EFFECTS_PER_STEP, Effect, Established, FlowId, NoRoom, Path, Statistics, Tuple,
};
use crate::pipeline::{Outcome, Stamped};

/// What runs the stages. It has a bounded pool of entries; what is in it comes out in the order of the numbers, once.
pub trait Executor<F> {
    /// How many more entries it takes before one comes out.
    fn room(&self) -> usize;

    /// Number of entries that have not come out.
    fn in_flight(&self) -> usize;

    /// Takes an entry, numbered without gaps from 0. There must be room.
    fn push(&mut self, entry: Stamped<F>);

    /// Lets the next entry out: appends its effects, at most [`EFFECTS_PER_STEP`], and returns what
    /// became of it. `None` if it is not done; with `waits`, only if nothing is in flight.
    fn pop(&mut self, waits: bool, effects: &mut VecDeque<Effect<F>>) -> Option<Outcome>;

    /// Takes a flow. Nothing may be in flight.
    ///
    /// # Errors
    /// There is no room, or one with these ends is there.
    fn install(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom>;

    /// Takes a flow out. Nothing may be in flight.
    fn remove(&mut self, id: FlowId) -> Option<Established>;

    /// Changes what a flow's headers say. Nothing may be in flight.
    fn set_path(&mut self, id: FlowId, path: Path);

    /// The present state of a flow.
    fn inspect(&self, id: FlowId) -> Option<Established>;

    /// The flow of a connection.
    fn find(&self, tuple: &Tuple) -> Option<FlowId>;

    /// Whether its protocol stage recovers by selective acknowledgements.
    fn is_selective(&self) -> bool;

    /// Reads what was counted of a flow, and clears it.
    fn statistics(&mut self, id: FlowId) -> Option<Statistics>;
}

impl<F, E: Executor<F> + ?Sized> Executor<F> for Box<E> {
    fn room(&self) -> usize {
        (**self).room()
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn push(&mut self, entry: Stamped<F>) {
        (**self).push(entry);
    }

    fn pop(&mut self, waits: bool, effects: &mut VecDeque<Effect<F>>) -> Option<Outcome> {
        (**self).pop(waits, effects)
    }

    fn install(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        (**self).install(now, name, established)
    }

    fn remove(&mut self, id: FlowId) -> Option<Established> {
        (**self).remove(id)
    }

    fn set_path(&mut self, id: FlowId, path: Path) {
        (**self).set_path(id, path);
    }

    fn inspect(&self, id: FlowId) -> Option<Established> {
        (**self).inspect(id)
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        (**self).find(tuple)
    }

    fn is_selective(&self) -> bool {
        (**self).is_selective()
    }

    fn statistics(&mut self, id: FlowId) -> Option<Statistics> {
        (**self).statistics(id)
    }
}

/// An entry behind the stages, that waits for those before it.
#[derive(Debug)]
struct Built<F> {
    outcome: Outcome,
    effects: Effects<F>,
}

#[derive(Debug)]
struct Effects<F>([Option<Effect<F>>; EFFECTS_PER_STEP]);

impl<F> Default for Built<F> {
    fn default() -> Built<F> {
        let effects = Effects([const { None }; EFFECTS_PER_STEP]);
        Built { outcome: Outcome::default(), effects }
    }
}

impl<F> Effects<F> {
    fn push(&mut self, effect: Effect<F>) {
        let place = self.0.iter_mut().find(|place| place.is_none());
        *place.expect("an entry has no more effects") = Some(effect);
    }
}

impl<F> Built<F> {
    fn leave(self, effects: &mut VecDeque<Effect<F>>) -> Outcome {
        effects.extend(self.effects.0.into_iter().flatten());
        self.outcome
    }
}
