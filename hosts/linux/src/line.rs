//! How agents are tied to a host of this crate: a process of this machine, or one behind a device.

use std::io;

use wave_core::link::Doorbell;
use wave_links::socket::Connection;
use wave_links::{EventFd, SocketBell};

use crate::device::{Lease, Nic};

/// How an agent is tied to this host, and is rung.
pub(crate) enum Line {
    /// A process of this machine.
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

    /// Says why it is not wanted, if there is a word for it.
    pub(crate) fn turn_away(&self, nic: Option<&mut Nic>, why: Option<&str>) {
        match (self, nic, why) {
            // One that has gone needs no answer.
            (Line::Socket(connection, _), _, Some(why)) => drop(connection.refuse(why)),
            (Line::Device(lease), Some(nic), Some(why)) => lease.refuse(nic, why),
            (_, _, None) | (Line::Device(_), None, _) => {}
        }
    }
}

/// Both ends of a bell that needs no interrupts.
pub(crate) fn one_bell() -> io::Result<[EventFd; 2]> {
    let bell = EventFd::new()?;
    Ok([bell.try_clone()?, bell])
}
