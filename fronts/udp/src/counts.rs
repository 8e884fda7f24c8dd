//! What became of datagrams, and why.

use std::fmt;

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fate {
    /// It came.
    Received,
    /// A worker got its request.
    Begun,
    /// The reply of a worker went out.
    Replied,
    /// It was answered from what is kept.
    Again,
    /// It was told what to name.
    Challenged,
    /// Nobody knows whether it was executed.
    Unknown,
    /// Its request is open: nothing was done.
    Duplicate,
    /// Shorter than a header.
    Short,
    /// Longer than a datagram may be.
    Long,
    /// Of something else.
    Magic,
    /// Of another version.
    Version,
    /// A reply, which a front does not take.
    Reply,
    /// From the public internet.
    Public,
    /// No room for another sender.
    Senders,
    /// No such method, or one that streams.
    Method,
    /// No host.
    Host,
    /// No room for another request, or for another one of its sender.
    Busy,
    /// A reply that the kernel did not take.
    Unsent,
    /// The kernel had no room for it.
    Overflow,
}

/// Fates, as they are told, in the order of [`Fate`].
const NAMES: [&str; 19] = [
    "received",
    "begun",
    "replied",
    "answered again",
    "challenged",
    "of unknown outcome",
    "duplicates of open requests",
    "too short",
    "too long",
    "of another format",
    "of another version",
    "replies",
    "from public addresses",
    "of too many senders",
    "of no method",
    "without a host",
    "of too many requests",
    "replies that could not be sent",
    "dropped by the kernel",
];

/// How many datagrams came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; NAMES.len()]);

impl Counts {
    /// One more.
    pub fn add(&mut self, fate: Fate) {
        self.0[fate as usize] += 1;
    }

    /// So many in all.
    pub fn set(&mut self, fate: Fate, count: u64) {
        self.0[fate as usize] = count;
    }

    /// How many.
    pub fn of(&self, fate: Fate) -> u64 {
        self.0[fate as usize]
    }

    /// Those that came to nothing.
    pub fn dropped(&self) -> u64 {
        self.0[Fate::Short as usize..].iter().sum()
    }
}

/// All that occurred.
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
