//! Messages of memcached's commands, between a front that speaks memcached's protocol and a host that stores items.
//!
//! A host serves these commands if it registers [`PATHS`]. Keys are 1 to [`KEY_BYTES_MAX`] bytes, without spaces and control
//! characters. All integers are little-endian.
//!
//! | method | request | reply |
//! | --- | --- | --- |
//! | Get | keys, separated by single spaces | an item for each key, in order: u8 1, u32 flags, u32 length, data; or u8 0 if there is none |
//! | Set | u32 flags, i64 expiry time, u8 length of the key, key, data | empty |
//! | Delete | key | empty, or the status NOT_FOUND |

use alloc::vec::Vec;

/// Paths of the methods Get, Set and Delete.
pub const PATHS: [&str; 3] = [
    "/wave.memcached.v1.Cache/Get",
    "/wave.memcached.v1.Cache/Set",
    "/wave.memcached.v1.Cache/Delete",
];
/// Longest key in bytes, as in memcached.
pub const KEY_BYTES_MAX: usize = 250;
/// Most keys of one Get.
pub const KEYS_MAX: usize = 64;

/// Request of the method Set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    /// The client's flags, opaque to the server.
    pub flags: u32,
    /// Expiry in seconds, as in memcached's protocol: 0 is never, up to 30 days is relative, more is Unix time, negative is at
    /// once.
    pub expiry: i64,
    /// The key, of 1 to [`KEY_BYTES_MAX`] bytes.
    pub key: &'a [u8],
    /// The value.
    pub data: &'a [u8],
}

/// Bytes before the key of a Set.
const SET_HEAD: usize = 13;

impl Set<'_> {
    /// Encodes the request.
    ///
    /// # Panics
    /// The key has more than [`KEY_BYTES_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let key_bytes = u8::try_from(self.key.len()).expect("a key has at most 250 bytes");
        let mut message = Vec::with_capacity(SET_HEAD + self.key.len() + self.data.len());
        message.extend_from_slice(&self.flags.to_le_bytes());
        message.extend_from_slice(&self.expiry.to_le_bytes());
        message.push(key_bytes);
        message.extend_from_slice(self.key);
        message.extend_from_slice(self.data);
        message
    }
}

impl<'a> Set<'a> {
    /// Decodes a request; `None` if it is malformed.
    pub fn decode(message: &'a [u8]) -> Option<Set<'a>> {
        let (flags, rest) = message.split_first_chunk::<4>()?;
        let (expiry, rest) = rest.split_first_chunk::<8>()?;
        let (key_bytes, rest) = rest.split_first()?;
        let (key, data) = rest.split_at_checked(usize::from(*key_bytes))?;
        Some(Set {
            flags: u32::from_le_bytes(*flags),
            expiry: i64::from_le_bytes(*expiry),
            key,
            data,
        })
    }
}

/// An item of a Get's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The flags that the client set.
    pub flags: u32,
    /// The value.
    pub data: &'a [u8],
}

impl<'a> Item<'a> {
    /// Appends the item of the next key to a reply; `None` if there is no item.
    ///
    /// # Panics
    /// The data has 4 GiB or more.
    pub fn encode(item: Option<Item<'_>>, reply: &mut Vec<u8>) {
        let Some(Item { flags, data }) = item else { return reply.push(0) };
        let bytes = u32::try_from(data.len()).expect("data shorter than 4 GiB");
        reply.push(1);
        reply.extend_from_slice(&flags.to_le_bytes());
        reply.extend_from_slice(&bytes.to_le_bytes());
        reply.extend_from_slice(data);
    }

    /// Reads the item of the next key, and advances `reply` past it. The outer `None` means that this is not a Get's reply.
    pub fn decode(reply: &mut &'a [u8]) -> Option<Option<Item<'a>>> {
        let (is_there, rest) = reply.split_first()?;
        match is_there {
            0 => *reply = rest,
            1 => {
                let (flags, rest) = rest.split_first_chunk::<4>()?;
                let (bytes, rest) = rest.split_first_chunk::<4>()?;
                let bytes = usize::try_from(u32::from_le_bytes(*bytes)).ok()?;
                let (data, rest) = rest.split_at_checked(bytes)?;
                *reply = rest;
                return Some(Some(Item { flags: u32::from_le_bytes(*flags), data }));
            }
            _ => return None,
        }
        Some(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_round_trip(
            flags: u32,
            expiry: i64,
            key in prop::collection::vec(any::<u8>(), 0..=KEY_BYTES_MAX),
            data: Vec<u8>,
            there: Vec<bool>,
        ) {
            let set = Set { flags, expiry, key: &key, data: &data };
            let message = set.encode();
            prop_assert_eq!(Set::decode(&message), Some(set));
            let mut reply = Vec::new();
            let item = Item { flags, data: &data };
            there.iter().for_each(|is| Item::encode(is.then_some(item), &mut reply));
            let mut rest = &reply[..];
            for is in there {
                prop_assert_eq!(Item::decode(&mut rest), Some(is.then_some(item)));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Set::decode(&bytes);
            let mut rest = &bytes[..];
            while let Some(item) = Item::decode(&mut rest) {
                prop_assert!(item.is_none_or(|item| item.data.len() <= bytes.len()));
            }
        }
    }
}
