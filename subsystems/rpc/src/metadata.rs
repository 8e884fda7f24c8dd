//! Metadata as it crosses the link: pairs of a key and a value, each preceded by its length in two bytes.
//!
//! Keys are gRPC's: lower-case letters, digits, `_`, `-` and `.`. The value of a key that ends with `-bin` is raw bytes: the
//! front handles base64. All other values are ASCII, 0x20 to 0x7e. Order and duplicates are kept.
//! Keys that begin with `grpc-` belong to the protocol and stay in the front, except [`DETAILS`].

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::status::{Code, Status};

/// The trailer that carries a status's details: a `google.rpc.Status`, opaque here.
pub const DETAILS: &str = "grpc-status-details-bin";

/// Malformed metadata: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: metadata of {bytes} bytes, at byte {at}: {what}")]
pub struct BadMetadata {
    /// Number of bytes that arrived.
    pub bytes: usize,
    /// Index of the byte that is wrong.
    pub at: usize,
    /// The fault, in words; the last part of the message.
    pub what: &'static str,
}

/// A pair that cannot be sent: the caller is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPair {
    /// The key is not allowed in metadata.
    #[error(
        "a metadata key consists of lower-case letters, digits, `_`, `-` and `.`, and does not begin with `grpc-`"
    )]
    Key,
    /// The value is not allowed in metadata.
    #[error("the value of a metadata key without `-bin` is ASCII, 0x20 to 0x7e")]
    Value,
    /// The key or the value has more than 65,535 bytes.
    #[error("a metadata key or value has at most 65535 bytes")]
    TooLong,
}

/// Invalid metadata is the fault of the handler that made it.
impl From<BadPair> for Status {
    fn from(error: BadPair) -> Status {
        Status::new(Code::Internal, error.to_string())
    }
}

/// Adds a pair to encoded metadata.
pub fn push(metadata: &mut Vec<u8>, key: &str, value: &[u8]) -> Result<(), BadPair> {
    check_pair(key.as_bytes(), value)?;
    for part in [key.as_bytes(), value] {
        metadata.extend_from_slice(&(part.len() as u16).to_le_bytes());
        metadata.extend_from_slice(part);
    }
    Ok(())
}

fn check_pair(key: &[u8], value: &[u8]) -> Result<(), BadPair> {
    let is_own = key.starts_with(b"grpc-") && key != DETAILS.as_bytes();
    if key.is_empty() || is_own || !key.iter().all(|&byte| is_of_key(byte)) {
        return Err(BadPair::Key);
    }
    if !key.ends_with(b"-bin") && !value.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return Err(BadPair::Value);
    }
    if key.len().max(value.len()) > usize::from(u16::MAX) {
        return Err(BadPair::TooLong);
    }
    Ok(())
}

const fn is_of_key(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.')
}

/// Encoded metadata that is known to be valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata<'a>(&'a [u8]);

impl<'a> Metadata<'a> {
    /// Checks encoded metadata.
    ///
    /// # Errors
    /// The first violation of the format.
    pub fn new(bytes: &'a [u8]) -> Result<Metadata<'a>, BadMetadata> {
        let bad = |at, what| BadMetadata { bytes: bytes.len(), at, what };
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = bytes.len() - rest.len();
            let (key, after) = split(rest).ok_or_else(|| bad(at, "a key is cut off"))?;
            let (value, after) = split(after).ok_or_else(|| bad(at, "a value is cut off"))?;
            check_pair(key, value).map_err(|error| {
                bad(
                    at,
                    if error == BadPair::Key { "that is not a key" } else { "that is not a value" },
                )
            })?;
            rest = after;
        }
        Ok(Metadata(bytes))
    }

    /// Pairs of key and value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (key, after) = split(rest)?;
            let (value, after) = split(after)?;
            rest = after;
            // Checked: ASCII.
            Some((core::str::from_utf8(key).ok()?, value))
        })
    }

    /// The first value of a key.
    pub fn get(&self, key: &str) -> Option<&'a [u8]> {
        self.iter().find(|(own, _)| *own == key).map(|(_, value)| value)
    }

    /// The encoded form, which crosses the link.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(u16::from_le_bytes(*length).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_round_trip_in_order() {
        let mut bytes = Vec::new();
        push(&mut bytes, "a", b"1").unwrap();
        push(&mut bytes, "b-bin", &[0, 255]).unwrap();
        push(&mut bytes, "a", b"").unwrap();
        let metadata = Metadata::new(&bytes).unwrap();
        let pairs: Vec<_> = metadata.iter().collect();
        assert_eq!(pairs, [("a", &b"1"[..]), ("b-bin", &[0, 255]), ("a", b"")]);
        assert_eq!(metadata.get("a"), Some(&b"1"[..]));
    }

    #[test]
    fn pairs_that_grpc_does_not_allow_are_refused() {
        let mut bytes = Vec::new();
        for key in ["", "A", "grpc-timeout", ":path", "a b"] {
            assert_eq!(push(&mut bytes, key, b""), Err(BadPair::Key), "{key}");
        }
        assert_eq!(push(&mut bytes, "a", b"\n"), Err(BadPair::Value));
        assert_eq!(push(&mut bytes, "a", &[b'x'; 65_536]), Err(BadPair::TooLong));
        assert!(bytes.is_empty());
        push(&mut bytes, DETAILS, &[1]).unwrap();
        for end in 1..bytes.len() {
            assert!(Metadata::new(&bytes[..end]).is_err(), "cut off at {end}");
        }
        bytes[2] = b'G';
        assert_eq!(Metadata::new(&bytes).unwrap_err().what, "that is not a key");
    }
}
