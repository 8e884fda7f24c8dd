//! Connections of agents to the hosts of this crate: from a process on this machine, or from behind a device.

use std::io;

use wave_core::link::Doorbell;
use wave_links::socket::Connection;
use wave_links::{EventFd, SocketBell};

use crate::device::{Lease, Nic};

/// How an agent is connected to this host, and rung.
pub(crate) enum Line {
    /// A process on this machine.
    Socket(Connection, SocketBell),
    /// An agent behind the device.
    Device(Lease),
}

impl Line {
    pub(crate) fn ring(&self) {
        match self {
            Line::Socket(_, bell) => bell.ring(),
            Line::Device(lease) => lease.ring(),
        }
    }

    /// Id of the agent's process; 0 if it is not on this machine.
    pub(crate) fn pid(&self) -> i32 {
        match self {
            Line::Socket(connection, _) => connection.peer_pid(),
            Line::Device(_) => 0,
        }
    }

    /// Whether the agent has left.
    pub(crate) fn has_left(&self, nic: Option<&Nic>) -> bool {
        match self {
            Line::Socket(connection, _) => connection.has_left(),
            Line::Device(lease) => nic.is_none_or(|nic| nic.left(lease.request)),
        }
    }

    /// Refuses the agent, and tells it why if there is a reason to tell.
    pub(crate) fn turn_away(&self, nic: Option<&mut Nic>, why: Option<&str>) {
        match (self, nic, why) {
            // An agent that has gone needs no answer.
            (Line::Socket(connection, _), _, Some(why)) => drop(connection.refuse(why)),
            (Line::Device(lease), Some(nic), Some(why)) => lease.refuse(nic, why),
            (_, _, None) | (Line::Device(_), None, _) => {}
        }
    }
}

/// Both ends of a doorbell that needs no interrupts.
pub(crate) fn one_bell() -> io::Result<[EventFd; 2]> {
    let bell = EventFd::new()?;
    Ok([bell.try_clone()?, bell])
}
