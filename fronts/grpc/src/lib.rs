//! The front for RPCs: gRPC over HTTP/2 (and TLS), around a [`Dispatch`](wave_rpc::dispatch::Dispatch), on an agent's thread.
//!
//! ```text
//!  clients ──> http2 ──────> engine ─────> Dispatch ══> workers on the host
//!              h2, tokio     calls, time     queues
//!              tls           health, reflection
//! ```
//! The modules for gRPC itself (`timeout`, `percent`, `metadata`, `request`, `reply`, `frames`, `gzip`, `class`, `health`,
//! `reflection`) do no I/O. Only `http2` and `http2_stream` know h2. Calls are not tasks: a call is a slot in a table with a
//! waker of its own, and continues when its stream or its host has something for it.
//!
//! With connection cores (ADR 0028), the first core keeps the dispatcher, and the connection cores do everything before it:
//!
//! ```text
//!  clients ──> http2 ──> engine ──> lanes ══╗
//!                                           ╠══> engine ──> Dispatch ══> workers on the host
//!  clients ──> http2 ──> engine ──> lanes ══╝
//!              connection cores                  first core
//! ```
//!
//! Must not know: hosts and workloads.

#![forbid(unsafe_code)]

mod admission;
mod args;
mod authority;
mod call;
mod class;
mod command;
mod connect;
mod cores;
mod engine;
mod frames;
mod front;
mod gzip;
mod health;
mod host;
mod http2;
mod http2_stream;
mod inbound;
mod lanes;
mod limits;
mod metadata;
mod metered;
mod methods;
mod notes;
mod orca;
mod peer;
mod percent;
mod reflection;
mod remote_core;
mod reply;
mod request;
mod round_robin;
mod shared;
mod slots;
mod timeout;
mod tls;

pub use args::{RpcArgs, listen_address};
pub use command::{FrontArgs, execute, main_with};
pub use front::{Ender, FrontError, RpcFront, RpcOptions};
pub use limits::Limits;
pub use notes::NotesTo;
pub use shared::FrontCounts;
pub use tls::TlsError;
