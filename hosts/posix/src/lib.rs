//! TCP sockets that an agent serves, for use in place of the kernel's.
//!
//! A [`Toe`] is a context of one thread. It connects to the agent's Unix socket and offers a window with a queue of requests and one
//! of events, and payload memory. Each connection has two rings in that memory. The agent reads and writes them directly; the queues'
//! entries carry the positions.
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! let toe = wave_posix::Toe::connect("/run/wave/tcp.sock")?;
//! let listener = toe.listen("0.0.0.0:7000".parse()?, 128)?;
//! loop {
//!     let (mut stream, peer) = listener.accept()?;
//!     let mut bytes = [0; 4096];
//!     let got = stream.read(&mut bytes)?;
//!     println!("{peer} says {got} bytes");
//!     stream.write_all(&bytes[..got])?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Must not know: TCP itself, packets, the agent's loop.

#![forbid(unsafe_code)]

mod agent_window;
mod buddy;
mod context;
mod limits;
mod listener;
mod program;
mod socket;
mod stream;
mod toe;
mod zero_copy;

pub use agent_window::{AgentWindow, Fault, Queues, ToeError, Woken, pause};
pub use buddy::{RING_BYTES_MAX, RING_BYTES_MIN, is_ring_size};
pub use context::{Context, Identity};
pub use limits::{VALGRIND_BYTES, payload_within_limits};
pub use listener::Listener;
pub use program::{Program, ProgramError, Unfit, find_program, inspect_program};
pub use socket::{
    CHECKPOINT_WORDS, Checkpoint, FIRST_FILL, Phase, Receiving, Sending, Socket, address,
    address_words,
};
pub use stream::{Readiness, Stream};
pub use toe::{Options, StreamId, Toe};
pub use wave_core::clock::Nanos;
pub use wave_links::payload::Part;
pub use wave_tcp::context::{
    HostFailure, KeepAlive, Sharing, SocketOptions, Tail, TcpInfo, demotion,
};
pub use zero_copy::{Readable, Reserved};
