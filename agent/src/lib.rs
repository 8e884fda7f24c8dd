//! The agent process as a library: attach to a host, run a policy, leave when told.
//!
//! A policy lives in a crate of its user's own; its `main` is one line:
//!
//! ```no_run
//! use wave_agent::{Registry, main_with};
//! # use wave_sched::policies::fifo::Fifo as MyPolicy;
//! fn main() -> std::process::ExitCode {
//!     main_with(Registry::shipped().with("my-policy", |config| Box::new(MyPolicy::new(config))))
//! }
//! ```
//!
//! Must not know: hosts and workloads. Needs the core, links and subsystems only, and nothing of
//! x86, so that it builds for a NIC's cores.

#![forbid(unsafe_code)]

mod attach;
mod attacher;
mod command;
mod device;
mod notes;
mod pin;
mod record;
mod registry;
pub mod rpc;
mod run;

pub use attach::{AttachError, Attached, HostBell, HostLine, OwnBell, attach, attach_rpc};
pub use command::{AgentArgs, TURNED_OUT, execute, main_with};
pub use device::{DeviceError, DeviceLine, attach_device};
pub use notes::NotesFrom;
pub use record::{FileLog, record_to};
pub use registry::{Registry, SUBSYSTEMS};
pub use run::{Exit, RunError, Seat, run, run_with};
