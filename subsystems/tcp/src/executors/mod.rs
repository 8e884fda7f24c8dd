//! Executors run the pipeline's stages, each in a different way. The stages are the same functions ([`crate::pipeline`]).
//!
//! | executor | stages run |
//! | --- | --- |
//! | [`Inline`] | one after the other, on one entry at a time |
//! | [`VirtualTime`] | as replicas of a model that take time drawn from a seed |
//! | `Threads` (feature `threads`) | in threads of their own, with bounded queues between them |

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
    Established, FlowId, NoRoom, OUTPUTS_PER_STEP, Output, Path, Statistics, Tuple,
};
use crate::pipeline::{Outcome, Stamped};
use crate::stages::arbiter::{Arbiter, ByStages};
use crate::stages::recover::Sack;

/// Runs the stages. It has a bounded pool of entries; each entry comes out once, in the order of the numbers.
pub trait Executor<F> {
    /// Number of entries that it accepts before one comes out.
    fn room(&self) -> usize;

    /// Number of entries that have not come out.
    fn in_flight(&self) -> usize;

    /// Adds an entry; entries are numbered from 0 without gaps. There must be room.
    fn push(&mut self, entry: Stamped<F>);

    /// Removes the next entry: appends its outputs, at most [`OUTPUTS_PER_STEP`], and returns its outcome. `None` if the entry
    /// is not done; with `waits`, only if nothing is in flight.
    fn pop(&mut self, waits: bool, outputs: &mut VecDeque<Output<F>>) -> Option<Outcome>;

    /// Installs a flow. Nothing may be in flight.
    ///
    /// # Errors
    /// There is no room, or a flow between these ends exists.
    fn install(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom>;

    /// Gives later generations than this to new flows.
    fn reserve_generations(&mut self, generation: u32);

    /// Removes a flow and returns its state. Nothing may be in flight.
    fn remove(&mut self, id: FlowId) -> Option<Established>;

    /// Changes the path in a flow's headers. Nothing may be in flight.
    fn set_path(&mut self, id: FlowId, path: Path);

    /// A flow's current state.
    fn inspect(&self, id: FlowId) -> Option<Established>;

    /// The flow between these ends.
    fn find(&self, tuple: &Tuple) -> Option<FlowId>;

    /// Name of the data path.
    fn name(&self) -> &'static str {
        ByStages::<Sack>::NAME
    }

    /// Whether the protocol stage recovers by selective acknowledgements.
    fn uses_sack(&self) -> bool;

    /// Reads and clears a flow's statistics.
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

    fn pop(&mut self, waits: bool, outputs: &mut VecDeque<Output<F>>) -> Option<Outcome> {
        (**self).pop(waits, outputs)
    }

    fn install(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        (**self).install(now, name, established)
    }

    fn reserve_generations(&mut self, generation: u32) {
        (**self).reserve_generations(generation);
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

    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn uses_sack(&self) -> bool {
        (**self).uses_sack()
    }

    fn statistics(&mut self, id: FlowId) -> Option<Statistics> {
        (**self).statistics(id)
    }
}

/// An entry that has passed the stages, and waits for earlier entries.
#[derive(Debug)]
struct Completed<F> {
    outcome: Outcome,
    outputs: Outputs<F>,
}

#[derive(Debug)]
struct Outputs<F>([Option<Output<F>>; OUTPUTS_PER_STEP]);

impl<F> Default for Completed<F> {
    fn default() -> Completed<F> {
        let outputs = Outputs([const { None }; OUTPUTS_PER_STEP]);
        Completed { outcome: Outcome::default(), outputs }
    }
}

impl<F> Outputs<F> {
    fn push(&mut self, output: Output<F>) {
        let place = self.0.iter_mut().find(|place| place.is_none());
        *place.expect("an entry has at most OUTPUTS_PER_STEP outputs") = Some(output);
    }
}

impl<F> Completed<F> {
    fn deliver(self, outputs: &mut VecDeque<Output<F>>) -> Outcome {
        outputs.extend(self.outputs.0.into_iter().flatten());
        self.outcome
    }
}
