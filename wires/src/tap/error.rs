//! Errors of TAP devices, each with its remedy.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::{CLONE_DEVICE, NAME_BYTES_MAX, TapOptions};

/// The reason why a TAP device could not be opened or configured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TapError {
    /// The name is not a valid interface name: the caller's fault.
    #[error(
        "`{0}` is not an interface name: use 1 to {NAME_BYTES_MAX} bytes without `/`, `:` or blanks"
    )]
    Name(String),
    /// The kernel has no TAP devices, or this container does not see them.
    #[error(
        "{CLONE_DEVICE} is missing or has no driver: type `sudo modprobe tun`, or start the container with `--device {CLONE_DEVICE}`"
    )]
    Missing,
    /// The permissions of `/dev/net/tun` do not allow opening it.
    #[error("may not open {CLONE_DEVICE}: run as root, or type `sudo chmod 666 {CLONE_DEVICE}`")]
    Closed,
    /// `CAP_NET_ADMIN` is missing.
    #[error(
        "may not {what} the interface {name} without CAP_NET_ADMIN: run as root, or create it once by `sudo ip tuntap add dev {name} mode tap user $USER` and set its address by `sudo ip address add` and `sudo ip link set {name} up`"
    )]
    Privilege { what: &'static str, name: String },
    #[error(
        "the TAP device {name} belongs to user {uid}: run as that user or as root, or choose another name"
    )]
    AnotherUsers { name: String, uid: u32 },
    /// Another wire uses the device, in this process or another one.
    #[error(
        "the TAP device {name} is in use: choose another name, or end the process that `sudo grep -ls 'iff:.*{name}' /proc/[0-9]*/fdinfo/*` shows"
    )]
    Busy { name: String },
    /// An interface of another kind has this name.
    #[error("the interface {name} is not a TAP device, and was not changed: choose another name")]
    NotATap { name: String },
    /// [`TapOptions::multi_queue`] differs from the existing device's.
    #[error(
        "the TAP device {name} was created {}, or type `sudo ip tuntap del dev {name} mode tap{}` and create it again",
        if *.multi_queue {
            "with multiple queues: use --groups 2 or more"
        } else {
            "without multiple queues: use --groups 1"
        },
        if *.multi_queue { " multi_queue" } else { "" }
    )]
    Queues {
        name: String,
        /// Whether the device has multiple queues.
        multi_queue: bool,
    },
    #[error(
        "an MTU of {mtu} bytes is too small: set {least} or more, for example by `sudo ip link set dev NAME mtu 1500`"
    )]
    Mtu {
        /// The device's MTU in bytes.
        mtu: u16,
        /// The smallest MTU in bytes.
        least: u16,
    },
    /// The prefix is longer than an address: the caller's fault.
    #[error("a network prefix has at most {most} bits, not {prefix}")]
    Prefix {
        /// Length of the prefix in bits.
        prefix: u8,
        /// Length of an address in bits.
        most: u8,
    },
    /// A system call failed.
    #[error("cannot {what} the interface {name}: {source}")]
    System { what: &'static str, name: String, source: io::Error },
}

impl TapError {
    /// The error of opening `/dev/net/tun`.
    pub(super) fn opening(name: &str, error: Errno) -> TapError {
        match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => TapError::Missing,
            Errno::ACCESS | Errno::PERM => TapError::Closed,
            error => TapError::System {
                what: "open /dev/net/tun for",
                name: name.to_owned(),
                source: error.into(),
            },
        }
    }

    /// The error of attaching to the device, or of creating it.
    pub(super) fn attaching(options: &TapOptions, source: io::Error) -> TapError {
        let name = options.name.clone();
        // A property of the existing device with this name, if there is one.
        let property = |file: &str| {
            let text = fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?;
            Some(text.trim().to_owned())
        };
        match Errno::from_io_error(&source) {
            Some(Errno::BUSY) => TapError::Busy { name },
            Some(Errno::PERM) => {
                let owner = property("owner").and_then(|owner| owner.parse().ok());
                match owner {
                    Some(uid) if uid != geteuid().as_raw() => TapError::AnotherUsers { name, uid },
                    _ => TapError::Privilege { what: "create or use", name },
                }
            }
            Some(Errno::INVAL) => {
                let flags = property("tun_flags");
                let flags = flags
                    .and_then(|flags| i32::from_str_radix(flags.trim_start_matches("0x"), 16).ok());
                let multi_queue = |flags: i32| flags & libc::IFF_MULTI_QUEUE != 0;
                match flags.filter(|flags| flags & libc::IFF_TAP != 0) {
                    Some(flags) if multi_queue(flags) != options.multi_queue => {
                        TapError::Queues { name, multi_queue: multi_queue(flags) }
                    }
                    // Only if `/sys` shows this network namespace: it may show another one.
                    None if property("ifindex").is_some() => TapError::NotATap { name },
                    _ => TapError::System { what: "use as a TAP device", name, source },
                }
            }
            _ => TapError::System { what: "create or use", name, source },
        }
    }

    /// The error of configuring the interface.
    pub(super) fn configuring(what: &'static str, name: &str, source: io::Error) -> TapError {
        let name = name.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS) => TapError::Privilege { what, name },
            _ => TapError::System { what, name, source },
        }
    }
}
