//! The dialogue at the agent's door for streams of the kernel's (docs/adr/0104): a TCP socket on 127.0.0.1, where a process asks the
//! agent to make a connection a stream of the kernel's.
//!
//! ```text
//! process                                          agent
//! connects to the door, sends a Greeting    ─────> stops the owner, which is told that the connection is demoted
//!                                           <───── Answer::Go, to one process at a time
//! connects the placeholder to the same door,
//! shuts down what the answer says
//! sends the placeholder's port, two bytes   ─────> knows which of the accepted sockets it is, and feeds it
//!                                           <───── Answer::Done: from now on every descriptor is an ordinary socket
//! ```
//!
//! Numbers are little-endian. The agent ends the dialogue without an answer when another agent replaces it: then the process asks again.

use core::fmt;

use serde::{Deserialize, Serialize};

/// First word of a greeting. Bytes that begin otherwise are a program's own, sent over its placeholder.
const MAGIC: [u8; 8] = *b"wavedoor";

/// The request of a process that wants to use a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The secret that entitles to the connection: its family's, or its ticket's.
    pub secret: u128,
    /// The name of the connection when it was first shared, as [`FlowId::to_word`](crate::datapath::FlowId::to_word) encodes it.
    pub flow: u64,
    /// Why the process wants it, for people.
    pub cause: Cause,
}

impl Greeting {
    /// Length of an encoded greeting.
    pub const BYTES: usize = 40;

    /// Encodes the greeting.
    pub fn to_bytes(&self) -> [u8; Greeting::BYTES] {
        let Greeting { secret, flow, cause } = *self;
        let mut bytes = [0; Greeting::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&secret.to_le_bytes());
        bytes[24..32].copy_from_slice(&flow.to_le_bytes());
        bytes[32..].copy_from_slice(&(cause as u64).to_le_bytes());
        bytes
    }

    /// Decodes a greeting. `None` if these bytes are not one, or not a whole one. An unknown cause counts as [`Cause::SecondProcess`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Greeting> {
        let bytes: &[u8; Greeting::BYTES] = bytes.try_into().ok()?;
        let (magic, rest) = bytes.split_first_chunk()?;
        let (secret, rest) = rest.split_first_chunk()?;
        let (flow, cause) = rest.split_first_chunk()?;
        let cause = u64::from_le_bytes(cause.try_into().ok()?);
        let known = Cause::ALL.into_iter().find(|one| *one as u64 == cause);
        (*magic == MAGIC).then_some(Greeting {
            secret: u128::from_le_bytes(*secret),
            flow: u64::from_le_bytes(*flow),
            cause: known.unwrap_or(Cause::SecondProcess),
        })
    }
}

/// Why a connection becomes a stream of the kernel's. Displayed as an English sentence without its period, about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// A process uses a connection that belongs to another one.
    SecondProcess,
    /// Its descriptor is duplicated onto one of 0 to 2, which are for programs that know nothing of sockets.
    StandardStream,
    /// A call inside the C library is going to read or write its descriptor: fdopen, dprintf.
    CLibrary,
    /// splice(2).
    Splice,
    /// Its program sets a seccomp filter, which may kill it for what a preloaded library does.
    Sandbox,
    /// Its descriptor is passed on by a process that may attach no ticket to it (docs/adr/0078).
    NoTicket,
    /// A program without the preloaded library inherits its descriptor.
    NoLibrary,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Cause; 7] = [
        Cause::SecondProcess,
        Cause::StandardStream,
        Cause::CLibrary,
        Cause::Splice,
        Cause::Sandbox,
        Cause::NoTicket,
        Cause::NoLibrary,
    ];

    /// Name of its counter in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::SecondProcess => "second_process",
            Cause::StandardStream => "standard_stream",
            Cause::CLibrary => "c_library",
            Cause::Splice => "splice",
            Cause::Sandbox => "sandbox",
            Cause::NoTicket => "no_ticket",
            Cause::NoLibrary => "no_library",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::SecondProcess => "a second process uses it",
            Cause::StandardStream => "it has become a standard stream",
            Cause::CLibrary => "the C library reads or writes it (fdopen, dprintf)",
            Cause::Splice => "it is used by splice",
            Cause::Sandbox => "its program sets a seccomp filter",
            Cause::NoTicket => "it is passed on without the right to attach a socket filter",
            Cause::NoLibrary => "a program without libwave_toe.so inherits it",
        })
    }
}

/// Directions of a connection that its program has shut down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shut {
    /// SHUT_RD.
    pub read: bool,
    /// SHUT_WR.
    pub write: bool,
}

/// An answer of the agent, as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Connect the placeholder to the door, shut these directions down, and send its port.
    Go(Shut),
    /// The placeholder is an ordinary socket now.
    Done,
    /// The connection is over, or the secret is wrong.
    Never,
}

impl Answer {
    const ALL: [Answer; 6] = [
        Answer::Go(Shut { read: false, write: false }),
        Answer::Go(Shut { read: true, write: false }),
        Answer::Go(Shut { read: false, write: true }),
        Answer::Go(Shut { read: true, write: true }),
        Answer::Done,
        Answer::Never,
    ];

    /// Encodes the answer.
    pub const fn to_byte(self) -> u8 {
        match self {
            Answer::Go(Shut { read: false, write: false }) => b'G',
            Answer::Go(Shut { read: true, write: false }) => b'R',
            Answer::Go(Shut { read: false, write: true }) => b'W',
            Answer::Go(Shut { read: true, write: true }) => b'B',
            Answer::Done => b'D',
            Answer::Never => b'N',
        }
    }

    /// Decodes an answer. `None` if it is none.
    pub fn from_byte(byte: u8) -> Option<Answer> {
        Answer::ALL.into_iter().find(|answer| answer.to_byte() == byte)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn greetings_survive_encoding_and_other_bytes_are_refused(
            secret in any::<u128>(),
            flow in any::<u64>(),
            cause in proptest::sample::select(&Cause::ALL[..]),
            unknown in Cause::ALL.len() as u64..,
            length in 0..2 * Greeting::BYTES,
            flipped in 0_usize..64,
            garbage in proptest::collection::vec(any::<u8>(), 0..2 * Greeting::BYTES),
        ) {
            let greeting = Greeting { secret, flow, cause };
            let mut bytes = greeting.to_bytes();
            prop_assert_eq!(Greeting::from_bytes(&bytes), Some(greeting));
            let mut other = bytes.to_vec();
            other.resize(length, 0);
            prop_assert_eq!(Greeting::from_bytes(&other).is_some(), length == Greeting::BYTES);
            let mut newer = bytes;
            newer[32..].copy_from_slice(&unknown.to_le_bytes());
            let counted = Greeting { cause: Cause::SecondProcess, ..greeting };
            prop_assert_eq!(Greeting::from_bytes(&newer), Some(counted));
            // Each bit of the first word counts.
            bytes[flipped / 8] ^= 1 << (flipped % 8);
            prop_assert_eq!(Greeting::from_bytes(&bytes), None);
            let begins = garbage.len() == Greeting::BYTES && garbage.starts_with(&MAGIC);
            prop_assert_eq!(Greeting::from_bytes(&garbage).is_some(), begins);
        }

        #[test]
        fn answers_survive_encoding_and_other_bytes_are_none(byte in any::<u8>()) {
            let answer = Answer::from_byte(byte);
            prop_assert_eq!(answer.is_some(), b"GRWBDN".contains(&byte));
            prop_assert!(answer.is_none_or(|answer| answer.to_byte() == byte));
        }
    }
}
