//! The header of requests and replies; what follows it is the message.
//!
//! ```text
//! byte  0  u16  magic 0x7657 ("Wv")
//!       2  u8   version 1
//!       3  u8   flags: 0x01 idempotent, 0x40 refused, 0x80 reply
//!       4  u8   class
//!       5  u8   status, of a reply: gRPC's codes, and those of `Status`
//!       6  u16  method: its place in the order in which the server registers them
//!       8  u64  id: counts up at each client, from where the client likes
//!      16  u64  incarnation of the agent; 0 before the client knows any
//!      24  u64  cookie; 0 before the client has any
//!      32  u32  of a request: the work that it is expected to be, in nanoseconds, 0 if unknown;
//!               of a reply: requests that are open at the host
//! ```
//! All little-endian. A reply has the class, method and id of its request.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 36;
/// The longest datagram: what IPv4 carries.
pub const DATAGRAM_MAX: usize = 65_507;
/// The longest message.
pub const MESSAGE_MAX: usize = DATAGRAM_MAX - HEADER_BYTES;
/// What a datagram of this format begins with.
pub const MAGIC: u16 = 0x7657;
/// The version of the format.
pub const VERSION: u8 = 1;
/// Executing the request twice does no harm.
pub const IDEMPOTENT: u8 = 0x01;
/// Of a reply: no worker has had the request, and none will.
pub const REFUSED: u8 = 0x40;
/// It is a reply.
pub const REPLY: u8 = 0x80;

/// Statuses of replies. Those below 17 are gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    /// The request was executed, and this is its result.
    pub const OK: Status = Status(0);
    /// The method takes something else.
    pub const INVALID_ARGUMENT: Status = Status(3);
    /// There is no room for the request, or none for its reply in a datagram.
    pub const RESOURCE_EXHAUSTED: Status = Status(8);
    /// There is no such method, or one that streams; or the version is unknown.
    pub const UNIMPLEMENTED: Status = Status(12);
    /// There is no host. Of a request that is idempotent also: its host has gone.
    pub const UNAVAILABLE: Status = Status(14);
    /// Nothing was done. Send the request again with this reply's incarnation and cookie.
    pub const CHALLENGE: Status = Status(64);
    /// The request may have been executed once, or not at all; it never will be now. The reply has the agent's
    /// incarnation and a cookie for the next one.
    pub const OUTCOME_UNKNOWN: Status = Status(65);

    /// As gRPC's document and this one name it.
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

/// A header, without magic and version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`IDEMPOTENT`], [`REFUSED`], [`REPLY`].
    pub flags: u8,
    /// The class of the request, for steering.
    pub class: u8,
    /// Of a reply: its [`Status`].
    pub status: u8,
    /// The method.
    pub method: u16,
    /// The request's number at its client.
    pub id: u64,
    /// The agent's incarnation.
    pub incarnation: u64,
    /// Says that its sender gets what is sent to its address.
    pub cookie: u64,
    /// Of a request: expected work in nanoseconds. Of a reply: open requests at the host.
    pub work: u32,
}

/// Why bytes are no datagram of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDatagram {
    /// Shorter than a header.
    #[error("shorter than a header of 36 bytes")]
    Short,
    /// Of something else.
    #[error("not of this format")]
    Magic,
    /// Of a version that is unknown.
    #[error("of version {0}, not 1")]
    Version(u8),
}

impl Header {
    /// As bytes.
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

    /// The header of a datagram, and the message behind it.
    ///
    /// # Errors
    /// It is none of this format.
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

    /// Whether all of these flags are set.
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
        fn headers_come_back(
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
        fn any_bytes_are_taken(bytes: Vec<u8>) {
            let _ = Header::decode(&bytes);
        }
    }

    /// Other languages write these by hand.
    #[test]
    fn each_field_has_its_place() {
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
