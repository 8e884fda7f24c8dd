//! The header of requests and replies. The message follows it.
//!
//! ```text
//! byte  0  u16  magic 0x7657 ("Wv")
//!       2  u8   version 1
//!       3  u8   flags: 0x01 idempotent, 0x02 timed, 0x40 refused, 0x80 reply
//!       4  u8   class
//!       5  u8   status of a reply: a gRPC code, or one of `Status`
//!       6  u16  method: its position in the server's registration order
//!       8  u64  id: counts up at each client, from any start
//!      16  u64  incarnation of the agent; 0 if the client knows none
//!      24  u64  cookie; 0 if the client has none
//!      32  u32  in a request: expected work in nanoseconds, 0 if unknown;
//!               in a reply: number of open requests at the host;
//!               in a timed reply: time at the front in nanoseconds
//! ```
//! All integers are little-endian. A reply repeats the class, method and id of its request. The exception is a request of an unknown
//! version, whose header cannot be read: its reply has id 0 and the status UNIMPLEMENTED.

/// Size of a header in bytes.
pub const HEADER_BYTES: usize = 36;
/// Longest datagram in bytes: the maximum of UDP over IPv4.
pub const DATAGRAM_MAX: usize = 65_507;
/// Longest message in bytes: a datagram without its header.
pub const MESSAGE_MAX: usize = DATAGRAM_MAX - HEADER_BYTES;
/// First two bytes of every datagram of this format.
pub const MAGIC: u16 = 0x7657;
/// Version of the format, in each header.
pub const VERSION: u8 = 1;
/// Flag: executing the request twice is harmless.
pub const IDEMPOTENT: u8 = 0x01;
/// Flag of a request: its reply should report the request's time at the front. Flag of a reply: [`Header::work`] is that time, from
/// the front's receipt of the request to the reply, at most [`u32::MAX`] ns. Only the reply to the try that was executed has it.
pub const TIMED: u8 = 0x02;
/// Flag of a reply: no worker received this try. Unless the request is idempotent, no worker will receive another try of it.
pub const REFUSED: u8 = 0x40;
/// Flag: the datagram is a reply.
pub const REPLY: u8 = 0x80;

/// Status of a reply. Codes below 17 are gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    /// The request was executed; the message is its result.
    pub const OK: Status = Status(0);
    /// The method does not accept the message.
    pub const INVALID_ARGUMENT: Status = Status(3);
    /// There is no room for the request, or its reply does not fit into a datagram.
    pub const RESOURCE_EXHAUSTED: Status = Status(8);
    /// The method is unknown or streams, or the version is unknown.
    pub const UNIMPLEMENTED: Status = Status(12);
    /// There is no host. For an idempotent request, also: its host was lost.
    pub const UNAVAILABLE: Status = Status(14);
    /// Not executed. Send the request again with this reply's incarnation and cookie.
    pub const CHALLENGE: Status = Status(64);
    /// The request was executed once or not at all, and will not be executed from now on. The reply has the incarnation and
    /// cookie for the next request.
    pub const OUTCOME_UNKNOWN: Status = Status(65);

    /// Name of the status, as in gRPC's documentation.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "OK",
            1 => "CANCELLED",
            2 => "UNKNOWN",
            3 => "INVALID_ARGUMENT",
            4 => "DEADLINE_EXCEEDED",
            5 => "NOT_FOUND",
            6 => "ALREADY_EXISTS",
            7 => "PERMISSION_DENIED",
            8 => "RESOURCE_EXHAUSTED",
            9 => "FAILED_PRECONDITION",
            10 => "ABORTED",
            11 => "OUT_OF_RANGE",
            12 => "UNIMPLEMENTED",
            13 => "INTERNAL",
            14 => "UNAVAILABLE",
            15 => "DATA_LOSS",
            16 => "UNAUTHENTICATED",
            64 => "CHALLENGE",
            65 => "OUTCOME_UNKNOWN",
            _ => "UNKNOWN",
        }
    }
}

/// A header without magic and version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Any of [`IDEMPOTENT`], [`TIMED`], [`REFUSED`], [`REPLY`].
    pub flags: u8,
    /// Class of the request, for steering and scheduling.
    pub class: u8,
    /// [`Status`] of a reply; 0 in a request.
    pub status: u8,
    /// Number of the method.
    pub method: u16,
    /// Id of the request at its client.
    pub id: u64,
    /// Incarnation of the agent.
    pub incarnation: u64,
    /// Proves that the sender receives at its address.
    pub cookie: u64,
    /// Request: expected work in ns. Reply: open requests at the host, or the time at the front in ns if it is [`TIMED`].
    pub work: u32,
}

/// The reason why bytes are not a datagram of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDatagram {
    /// The datagram is shorter than a header.
    #[error("shorter than a header of 36 bytes")]
    Short,
    /// The datagram does not begin with [`MAGIC`].
    #[error("not of this format")]
    Magic,
    /// The datagram is of another version of the format.
    #[error("of version {0}, not 1")]
    Version(u8),
}

impl Header {
    /// Encodes the header, as the first bytes of a datagram.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2..6].copy_from_slice(&[VERSION, self.flags, self.class, self.status]);
        bytes[6..8].copy_from_slice(&self.method.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.cookie.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.work.to_le_bytes());
        bytes
    }

    /// Splits a datagram into its header and its message.
    ///
    /// # Errors
    /// The datagram is not of this format.
    pub fn decode(datagram: &[u8]) -> Result<(Header, &[u8]), BadDatagram> {
        let (bytes, message) =
            datagram.split_first_chunk::<HEADER_BYTES>().ok_or(BadDatagram::Short)?;
        let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("8 bytes"));
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if half(0) != MAGIC {
            return Err(BadDatagram::Magic);
        }
        if bytes[2] != VERSION {
            return Err(BadDatagram::Version(bytes[2]));
        }
        let header = Header {
            flags: bytes[3],
            class: bytes[4],
            status: bytes[5],
            method: half(6),
            id: word(8),
            incarnation: word(16),
            cookie: word(24),
            work: u32::from_le_bytes(*bytes[32..].first_chunk().expect("4 bytes")),
        };
        Ok((header, message))
    }

    /// Whether all of `flags` are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn header_round_trips(
            (flags, class, status) in any::<(u8, u8, u8)>(),
            method: u16,
            (id, incarnation, cookie) in any::<(u64, u64, u64)>(),
            work: u32,
            message: Vec<u8>,
        ) {
            let header = Header { flags, class, status, method, id, incarnation, cookie, work };
            let datagram = [&header.encode()[..], &message].concat();
            prop_assert_eq!(Header::decode(&datagram), Ok((header, &message[..])));
            for end in 0..HEADER_BYTES {
                prop_assert_eq!(Header::decode(&datagram[..end]), Err(BadDatagram::Short));
            }
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(bytes: Vec<u8>) {
            let _ = Header::decode(&bytes);
        }
    }

    /// Clients in other languages encode the header by hand.
    #[test]
    fn fields_have_fixed_offsets() {
        let header = Header {
            flags: 0x81,
            class: 2,
            status: 65,
            method: 0x0403,
            id: 0x0807_0605,
            incarnation: 9,
            cookie: 1 << 63,
            work: 10,
        };
        let expected = "577601810241030405060708000000000900000000000000000000000000\
                        00800a000000";
        let hex: String = header.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
        let mut other = header.encode();
        other[2] = 2;
        assert_eq!(Header::decode(&other), Err(BadDatagram::Version(2)));
        other[0] = 0;
        assert_eq!(Header::decode(&other), Err(BadDatagram::Magic));
    }
}
