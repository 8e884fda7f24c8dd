//! Counts of datagrams by fate.

use std::fmt;

/// Fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fate {
    /// Arrived at the socket.
    Received,
    /// Its request was handed to the dispatcher.
    Begun,
    /// A reply to an executed request.
    Replied,
    /// Answered from a kept reply.
    Again,
    /// Answered CHALLENGE.
    Challenged,
    /// Answered OUTCOME_UNKNOWN.
    Unknown,
    /// A duplicate of an open request; dropped.
    Duplicate,
    /// Shorter than a header.
    Short,
    /// Longer than a receive buffer.
    Long,
    /// Of another format.
    Magic,
    /// Of another version.
    Version,
    /// A reply instead of a request.
    Reply,
    /// From a public address.
    Public,
    /// No room for another sender.
    Senders,
    /// For an unknown or streaming method.
    Method,
    /// No host is attached.
    Host,
    /// No room for another request, in total or from this sender.
    Busy,
    /// One of several datagrams of a memcached command.
    Several,
    /// An unknown or malformed memcached command.
    Command,
    /// From an address that `--udp-memcached` does not list.
    Unlisted,
    /// A reply that could not be sent.
    Unsent,
    /// Dropped by the kernel: the socket's buffer was full.
    Overflow,
}

/// Printed names of fates, in the order of [`Fate`].
const NAMES: [&str; 22] = [
    "received",
    "begun",
    "replied",
    "answered from kept replies",
    "challenged",
    "with unknown outcome",
    "duplicates of open requests",
    "too short",
    "too long",
    "of another format",
    "of another version",
    "unexpected replies",
    "from public addresses",
    "from too many senders",
    "for unknown or streaming methods",
    "without a host",
    "beyond the request limit",
    "of requests in several datagrams",
    "with unknown or malformed commands",
    "from addresses that are not listed",
    "replies that could not be sent",
    "dropped by the kernel",
];

/// Number of datagrams by [`Fate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; NAMES.len()]);

impl Counts {
    /// Adds one datagram.
    pub fn add(&mut self, fate: Fate) {
        self.0[fate as usize] += 1;
    }

    /// Sets the total of one fate.
    pub fn set(&mut self, fate: Fate, count: u64) {
        self.0[fate as usize] = count;
    }

    /// Number of datagrams with this fate.
    pub fn of(&self, fate: Fate) -> u64 {
        self.0[fate as usize]
    }

    /// Number of datagrams that were dropped or refused, and of unsent replies.
    pub fn dropped(&self) -> u64 {
        self.0[Fate::Short as usize..].iter().sum()
    }
}

/// Lists the fates that occurred.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (name, count) in NAMES.iter().zip(self.0).filter(|(_, count)| *count > 0) {
            write!(f, "{comma}{count} {name}")?;
            comma = ", ";
        }
        Ok(())
    }
}
