//! A front for requests in datagrams: Mind the Gap's networker, on an agent's core.
//!
//! `socket` receives and sends datagrams in batches. `door` judges each datagram, and `senders` remembers requests, so that no
//! request executes twice unless it is idempotent. [`UdpFront`] passes requests to the dispatcher of `wave-rpc` and sends its
//! replies. [`wave_udp_client::wire`] defines the format. `memcached` is a second format, off by default.
//!
//! Must not know: hosts, workloads, gRPC.

#![forbid(unsafe_code)]

mod args;
mod clients;
mod cookie;
mod counts;
mod door;
mod front;
mod host;
mod memcached;
mod path;
mod senders;
mod socket;

pub use args::{UdpArgs, execute};
pub use counts::{Counts, Fate};
pub use door::{Door, Refusal, Verdict, is_private};
pub use front::{Ender, FrontError, UdpFront, UdpOptions};
pub use memcached::Prefix;
pub use senders::{Ended, KEPT_BYTES, SENDERS_MAX, SenderId, WINDOW};
