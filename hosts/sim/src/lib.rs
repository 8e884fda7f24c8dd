//! A modelled host in virtual time: production code above a modelled machine and link.
//!
//! The queues, the host protocol, the agent's loop and the policies are the real ones; the machine
//! ([`machine`], [`app`]) and the link (`wave_links::model`) are modelled. Contexts are tasks of a
//! [`world`]: every access to the link happens in one global order of time, and the same setup and
//! seed always give the same history.

#![forbid(unsafe_code)]

pub mod agent;
pub mod antagonist;
pub mod app;
pub mod clocks;
pub mod closed;
mod control;
mod core;
pub mod cpu;
pub mod disturbance;
pub mod enclave;
pub mod experiment;
pub mod fit;
pub mod fuzz;
pub mod machine;
pub mod memory;
pub mod mind_the_gap;
pub mod modelled;
pub mod paper;
pub mod queue;
pub mod random;
pub mod recorded;
pub mod requests;
pub mod rpc;
pub mod table;
pub mod usage;
pub mod vcpus;
pub mod world;
