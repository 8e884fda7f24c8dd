//! Executors of the pipeline: what runs its stages, and where. The steps are the same functions ([`crate::pipeline`]).
//!
//! | executor | stages run |
//! | --- | --- |
//! | [`Inline`] | one after the other, on one entry at a time |

mod inline;

use alloc::collections::VecDeque;

pub use inline::Inline;

use crate::datapath::{Effect, FlowId, NoRoom, Statistics, Tuple};
use crate::flow::table::Flow;
use crate::pipeline::{Outcome, Stamped};

/// What runs the stages. It has a bounded pool of entries; what is in it comes out in the order of the numbers, once.
pub trait Executor<F> {
    /// How many more entries it takes before one comes out.
    fn room(&self) -> usize;

    /// How many have not come out.
    fn in_flight(&self) -> usize;

    /// Takes an entry, numbered without gaps from 0. There must be room.
    fn push(&mut self, entry: Stamped<F>);

    /// Lets the next entry out: appends its effects, at most [`EFFECTS_PER_STEP`](crate::datapath::EFFECTS_PER_STEP), and returns what
    /// became of it. `None` if it is not done; with `waits`, only if nothing is in flight.
    fn pop(&mut self, waits: bool, effects: &mut VecDeque<Effect<F>>) -> Option<Outcome>;

    /// Takes a flow. Nothing may be in flight.
    ///
    /// # Errors
    /// There is no room, or one with these ends is there.
    fn install(&mut self, flow: Flow) -> Result<FlowId, NoRoom>;

    /// Takes a flow out. Nothing may be in flight.
    fn remove(&mut self, id: FlowId) -> Option<Flow>;

    /// A flow as it is now.
    fn get(&self, id: FlowId) -> Option<Flow>;

    /// The flow of a connection.
    fn find(&self, tuple: &Tuple) -> Option<FlowId>;

    /// Whether its protocol stage recovers by selective acknowledgements.
    fn is_selective(&self) -> bool;

    /// Reads what was counted of a flow, and clears it.
    fn statistics(&mut self, id: FlowId) -> Option<Statistics>;
}
