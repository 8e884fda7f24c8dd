//! A modelled interconnect between two processes or threads: it has stated costs, and is incoherent
//! in a nastier way than hardware, so that a forgotten publish or flush shows.
//!
//! One engine over any [`Timebase`]: in real time it spins, in virtual time it counts. What it
//! models, for a link that is not coherent:
//!
//! | access | costs its initiator | the other side sees it |
//! | --- | --- | --- |
//! | near memory, write-back | `line_transfer` for a line that the other side changed | at once, when it looks |
//! | near memory, uncached | `agent_access_uncached` a word | at once, when it looks |
//! | far load, uncached or write-combining | `host_read` a word | |
//! | far load, write-through | `host_read` a line, then nothing until flushed, and stale | |
//! | far store, uncached or write-through | `host_write` a word | `posted_flight` later |
//! | far store, write-combining | `line_drain` a line when published | `posted_flight` later |
//! | the agent's load from host memory | two `dma_flight` a load or line | |
//! | the agent's store to host memory | `dma_submit` a line when published | `dma_flight` later |
//! | copy | `dma_submit` | `dma_flight`, its size and some jitter later, whole |
//!
//! On a coherent link every mapping is write-back, stores cost nothing and are visible
//! `posted_flight` later, and loading a line that another context changed costs `line_transfer`.
//!
//! # What holds
//!
//! * One context's posted stores become visible in the order in which they left it. Lines that are
//!   drained by one publish leave in any order, a partly filled one word by word in any order.
//! * A far load first pushes the context's own posted stores: it is served after they have arrived.
//!   And its completion pushes all that the peer had posted when the load was served: all of it (also
//!   the agent's stores by its copy engine, which hardware does not promise so broadly) is visible to
//!   this side when the load returns. Nothing pushes copies.
//! * A prefetch takes the line as it is when the prefetch is issued.
//! * Each word has one store in flight at most. A context that stores a word again before the last store
//!   has arrived stalls until then, which hardware does not do; it is counted.
//!
//! # What is not modelled
//!
//! Bandwidth and credits of the link (bytes are counted, and take no time of their own), a bound on
//! outstanding prefetches, cache evictions (they would hide a missing flush), and a source that is
//! overwritten while it is copied: a copy takes its source when it starts.

mod bell;
mod charges;
mod context;
mod pcie;
mod port;
mod setup;
mod stamps;
mod time;
mod virtual_time;

#[cfg(test)]
mod tests;

pub use bell::{KickCharges, ModelDoorbell};
pub use charges::{Charges, Tally};
pub use pcie::Carried;
pub use port::{ModelDma, ModelPort, ModelWindow};
pub use setup::ModelError;
pub use stamps::{VECTORS_MAX, extra_lines};
pub use time::{ManualTime, RealTime, Timebase};
pub use virtual_time::{Observer, Pause, Stage, Stored, Task, VirtualTime};
