//! A front for requests in datagrams: Mind the Gap's networker, on an agent's core.
//!
//! `socket` takes and sends datagrams in batches, `door` says what is done about each and has `senders` remember it, so that
//! nothing is executed twice; [`UdpFront`] hands requests to the dispatcher of `wave-rpc` and its replies back. The format is
//! [`wave_udp_client::wire`].
//!
//! Must not know: hosts, workloads, gRPC.

#![forbid(unsafe_code)]

mod args;
mod cookie;
mod counts;
mod door;
mod front;
mod senders;
mod socket;

pub use args::{UdpArgs, execute};
pub use counts::{Counts, Fate};
pub use door::{Door, Verdict, is_private};
pub use front::{Ender, FrontError, UdpFront, UdpOptions};
pub use senders::{Ended, KEPT_BYTES, SENDERS_MAX, SenderId, WINDOW};
