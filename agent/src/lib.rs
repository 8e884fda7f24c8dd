//! The agent process as a library: attach to a host, run a policy, leave when told.
//!
//! A user's policy lives in a crate of its own, whose `main` is one line:
//!
//! ```no_run
//! use wave_agent::{Registry, main_with};
//! # mod my_policy { pub use wave_sched::policies::SHIPPED as POLICIES; }
//! fn main() -> std::process::ExitCode {
//!     main_with(Registry::shipped().with_policies(&my_policy::POLICIES))
//! }
//! ```
//!
//! Fronts are crates of their own, below `fronts/`: they implement [`ThreadFront`] and run on the agent's thread.
//!
//! Must not know: hosts, workloads and protocols of fronts. Needs the core, links and subsystems only, and nothing of
//! x86, so that it builds for a NIC's cores.

#![forbid(unsafe_code)]

mod attach;
mod attacher;
mod command;
mod confine;
mod device;
mod front;
pub mod lanes;
mod notes;
mod output_file;
pub mod panics;
pub mod piped;
mod ready_line;
mod record;
mod registry;
mod run;

pub use attach::{AttachError, Attached, HostBell, HostLine, OwnBell, attach, attach_rpc};
pub use attacher::Attacher;
pub use command::{AgentArgs, TURNED_OUT, execute, fail, main_from, main_with, serve_beside};
pub use device::{DeviceError, DeviceLine, attach_device};
pub use front::ThreadFront;
pub use notes::NotesFrom;
pub use output_file::{OutputFile, checked};
pub use ready_line::ReadyLine;
pub use record::{FileLog, LogEnd, LogSink, log_sink, record_to};
pub use registry::{Registry, SUBSYSTEMS};
pub use run::{CPUS_BESIDE_FRONT, Exit, RunError, Seat, Stall, run, run_with, serve};
