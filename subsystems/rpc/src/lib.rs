//! RPCs: calls that an agent's front terminates and steers to workers on the host, and their replies.
//!
//! [`wire`] defines the frames that cross the link, [`boxes`] puts them into queues, [`extents`] carries large payloads.
//! [`metadata`], [`status`], [`service`] and [`memcached`] define the formats of their bytes. [`client`] has the addresses by
//! which calls are limited. [`dispatch`] is the agent's side, [`stub`] a worker's side on the host, and [`steer`] decides which
//! worker gets a call. `docs/adr/0024-rpc.md` has the reasons.
//!
//! Must not know: hosts, links, HTTP/2, other subsystems. Has no clock and no I/O.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod boxes;
pub mod client;
pub mod dispatch;
pub mod extents;
pub mod memcached;
pub mod metadata;
pub mod service;
pub mod show;
pub mod status;
pub mod steer;
pub mod stub;
pub mod window;
pub mod wire;

use wave_core::subsystem::{Subsystem, SubsystemId};

/// The interface between RPCs and the rest of Wave.
pub static SUBSYSTEM: Subsystem = Subsystem {
    id: SubsystemId::new(3),
    name: "rpc",
    about: "which worker gets which call, and when",
    policies: &steer::KNOWN,
    make: None,
    show: show::SHOW,
    model: None,
};
