//! Errors of interfaces, each with its remedy.

use std::io;

use rustix::io::Errno;

use crate::{MTU_MIN, NAME_BYTES_MAX};

/// The reason why an interface could not be opened, or no longer exists.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum InterfaceError {
    /// The name is not a valid interface name: the caller's fault.
    #[error(
        "`{0}` is not an interface name: use 1 to {NAME_BYTES_MAX} bytes without `/`, `:` or blanks"
    )]
    Name(String),
    /// There is no interface with this name.
    #[error("there is no interface {name}: type `ip link` for a list")]
    Missing { name: String },
    /// The interface carries no Ethernet frames, or is the loopback interface.
    #[error(
        "the interface {name} is not an Ethernet interface: choose one that `ip link` shows with link/ether"
    )]
    NotEthernet { name: String },
    #[error("the interface {name} is down: type `sudo ip link set dev {name} up`")]
    Down { name: String },
    #[error(
        "an MTU of {mtu} bytes is too small: set {MTU_MIN} or more, for example by `sudo ip link set dev {name} mtu 1500`"
    )]
    Mtu {
        name: String,
        /// The interface's MTU in bytes.
        mtu: u16,
    },
    /// `CAP_NET_RAW` is missing.
    #[error("may not {what} the interface {name} without CAP_NET_RAW: run as root")]
    Privilege { what: &'static str, name: String },
    /// The interface was deleted, or moved to another network namespace.
    #[error("the interface {name} was deleted or moved to another network namespace")]
    Gone { name: String },
    /// A system call failed.
    #[error("cannot {what} the interface {name}: {source}")]
    System { what: &'static str, name: String, source: io::Error },
}

impl InterfaceError {
    /// The error of a step of opening an interface. `what` names the step.
    pub(super) fn of(what: &'static str, name: String, source: io::Error) -> InterfaceError {
        match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS) => InterfaceError::Privilege { what, name },
            Some(Errno::NODEV | Errno::NXIO) => InterfaceError::Missing { name },
            Some(Errno::NETDOWN) => InterfaceError::Down { name },
            _ => InterfaceError::System { what, name, source },
        }
    }
}
