//! Management of agents, common to all hosts: lets them attach, supervises the one that decides, and turns it out.
//!
//! ```text
//!   connect            agent announces itself        hangs up, breaks protocol,
//!  ---------> candidate --------------------> attached -------------------------> fallback
//!                 |  never does: dropped         ^  |  makes work wait too long
//!                 |                              |  | another candidate announces itself:
//!                 +------------------------------+--+ it takes over, the old window is revoked
//! ```
//!
//! Each candidate gets a window and doorbells of its own ([`offer()`]). An agent's stores after its window was revoked have no
//! effect (docs/adr/0003). Every host keeps its waiting candidates in [`Candidates`]. [`Supervisor`] supervises the agent of a
//! host that schedules threads: hosts/user, hosts/linux and the simulator share it.

#![forbid(unsafe_code)]

mod candidates;
mod offer;
mod supervisor;

pub use candidates::{CANDIDATES_MAX, Candidate, Candidates, no_window};
pub use offer::{OfferError, Offered, create_window, offer};
pub use supervisor::{Core, Look, SupervisedHost, Supervisor};
