//! How agents are tied to a host of this crate: a process of this machine, or one behind a device.

use wave_core::link::Doorbell;
use wave_links::SocketBell;
use wave_links::socket::Connection;

use crate::device::{Lease, Nic};

/// How an agent is tied to this host, and is rung.
pub(crate) enum Line {
    /// A process of this machine.
    Socket(Connection, SocketBell),
    /// Behind the device.
    Device(Lease),
}

impl Line {
    pub(crate) fn ring(&self) {
        match self {
            Line::Socket(_, bell) => bell.ring(),
            Line::Device(lease) => lease.ring(),
        }
    }

    /// The agent's process, 0 where it is not of this machine.
    pub(crate) fn pid(&self) -> i32 {
        match self {
            Line::Socket(connection, _) => connection.peer_pid(),
            Line::Device(_) => 0,
        }
    }

    /// Whether the agent has gone.
    pub(crate) fn hung_up(&self, nic: Option<&Nic>) -> bool {
        match self {
            Line::Socket(connection, _) => connection.hung_up(),
            Line::Device(lease) => nic.is_none_or(|nic| nic.left(lease.request)),
        }
    }

    /// Says why it is not wanted.
    pub(crate) fn refuse(&self, nic: Option<&mut Nic>, why: &str) {
        match (self, nic) {
            (Line::Socket(connection, _), _) => drop(connection.refuse(why)),
            (Line::Device(lease), Some(nic)) => lease.refuse(nic, why),
            (Line::Device(_), None) => {}
        }
    }
}
