//! Frames, which cross the link: each is a head and the bytes that it announces.
//!
//! ```text
//! head   w0  call: id, generation
//!        w1  bytes of the first part, and of the second (32 bits each)
//!        w2  argument
//!        w3..w6  the first 32 bytes: the first part, then the second
//! data   w0..w6  56 more bytes
//! extent w0  a lent extent: id, generation
//!        w1  bytes that it carries
//! return w0..w6  returned extents of the worker's other queue; the flags are their number
//! ```
//!
//! | agent to host | first part | second part | argument |
//! | --- | --- | --- | --- |
//! | BEGIN | metadata | message, with [`HAS_MESSAGE`] | method, class, time left ([`Begin`]) |
//! | MESSAGE | | message | |
//! | HALF_CLOSE | | | |
//! | CANCEL | | | the reason, as a [`Code`] |
//! | GRANT | | | replies that were passed on to the client, as a [`Load`] |
//!
//! | host to agent | first part | second part | argument |
//! | --- | --- | --- | --- |
//! | HEADERS | metadata | | |
//! | MESSAGE | | message | |
//! | STATUS | text | trailers, as metadata | a [`Code`] |
//! | TAKEN | | | messages that were taken, as a [`Load`] |
//! | WAITS | | | number of the call's frames so far, without its BEGIN |
//! | YIELDS | | | |
//! | WORKER | | | the worker's thread, as a subject's word; 0 if it is not a scheduled thread |
//! | SERVICE | what the host serves ([`crate::service`]) | | |
//!
//! With the flag [`CHECKED`], a checksum of eight bytes follows the second part. A host whose frames have checksums requires
//! them on its agent's frames. The agent knows in time: it sends its first frame to a worker after that worker's first frame.
//!
//! A head's flag [`END`] says that nothing follows in its direction. On a BEGIN or MESSAGE from the client it is a half-close;
//! on a reply's MESSAGE the call has ended with OK and no trailers. The frames of a call are in order. The entries of one frame
//! follow each other, with nothing but returns between them. SERVICE comes in the control context's queue, everything else in a
//! worker's, with WORKER first.

use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_core::queue::{Entry, PAYLOAD_WORDS, Tag};

#[cfg(doc)]
use crate::{status::Code, window::Load};

/// Agent to host: a call begins.
pub const BEGIN: u16 = 1;
/// Either way: a message of a call.
pub const MESSAGE: u16 = 2;
/// Either way: more bytes of the current frame.
pub const DATA: u16 = 3;
/// Agent to host: the client sends nothing more.
pub const HALF_CLOSE: u16 = 4;
/// Agent to host: the call was cancelled. The worker must still end it by a STATUS.
pub const CANCEL: u16 = 5;
/// Agent to host: replies were passed on to the client, and the worker may send as much again.
pub const GRANT: u16 = 6;
/// Host to agent: the metadata before the replies.
pub const HEADERS: u16 = 7;
/// Host to agent: a call has ended.
pub const STATUS: u16 = 8;
/// Host to agent: messages were taken, and the agent may send as much again.
pub const TAKEN: u16 = 9;
/// Host to agent: a worker announces itself.
pub const WORKER: u16 = 10;
/// Host to agent: the description of the host's service.
pub const SERVICE: u16 = 11;
/// Either way: an extent with more bytes of the current frame.
pub const EXTENT: u16 = 12;
/// Either way: extents were read, and are returned.
pub const RETURN: u16 = 13;

/// Host to agent: the call can do nothing before its client reads replies or sends a message. The worker serves other calls
/// meanwhile.
pub const WAITS: u16 = 14;
/// Host to agent: from now on the worker runs other calls between the messages of this one. Sent at most once per call, while
/// the call does not wait.
pub const YIELDS: u16 = 15;

/// Flag: nothing follows in this direction.
pub const END: u8 = 1;
/// Flag of a BEGIN: the second part is a message, which may be empty.
pub const HAS_MESSAGE: u8 = 2;

/// Flag of a head with a message. Agent to host: the message arrived compressed. Host to agent: it is to be compressed if the
/// client accepts that. Messages are never compressed on the link.
pub const COMPRESSED: u8 = 4;

/// Flag of any head: the frame ends with its [`Head::checksum`]. Either all frames of a queue have it, or none.
pub const CHECKED: u8 = 8;
/// Bytes of a checksum.
pub const CHECK_BYTES: usize = 8;

/// Flags of a message's head.
pub const fn message_flags(end: bool, compressed: bool) -> u8 {
    (if end { END } else { 0 }) | (if compressed { COMPRESSED } else { 0 })
}

/// Number of bytes in a head.
pub const HEAD_BYTES: usize = 32;
/// Payload bytes in a data entry.
pub const DATA_BYTES: usize = PAYLOAD_WORDS * 8;
/// Window of a call in bytes: messages in flight in each direction, which were not taken yet. The message that reaches the
/// limit may exceed it.
pub const WINDOW_BYTES: u32 = 64 * 1024;
/// Window of a call in messages, empty ones included.
pub const WINDOW_MESSAGES: u32 = 1024;

/// The first entry of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// One of this module's kinds.
    pub kind: u16,
    /// Flags of the frame, as this module defines them.
    pub flags: u8,
    /// The call that the frame belongs to.
    pub call: Subject,
    /// Bytes of the first part, and of the second.
    pub lengths: [u32; 2],
    /// Argument; its meaning depends on the kind.
    pub argument: u64,
}

impl Head {
    /// The head of a frame without bytes.
    pub const fn new(kind: u16, call: Subject) -> Head {
        Head { kind, flags: 0, call, lengths: [0; 2], argument: 0 }
    }

    /// Number of bytes of the frame, with those in the head and the checksum.
    pub const fn bytes(&self) -> u64 {
        let check = if self.flags & CHECKED != 0 { CHECK_BYTES as u64 } else { 0 };
        self.lengths[0] as u64 + self.lengths[1] as u64 + check
    }

    /// A checksum (XXH3) of the head and both parts. It guards against damage, not against forgery.
    pub fn checksum(&self, first: &[u8], second: &[u8]) -> u64 {
        let mut head = [0; 28];
        let words = [self.call.to_word(), self.argument];
        let [call, argument] = words.map(u64::to_le_bytes);
        let [one, two] = self.lengths.map(u32::to_le_bytes);
        head[..8].copy_from_slice(&call);
        head[8..16].copy_from_slice(&argument);
        head[16..20].copy_from_slice(&one);
        head[20..24].copy_from_slice(&two);
        head[24..26].copy_from_slice(&self.kind.to_le_bytes());
        head[26] = self.flags;
        [head.as_slice(), first, second]
            .iter()
            .fold(0, |seed, part| xxhash_rust::xxh3::xxh3_64_with_seed(part, seed))
    }

    /// Number of entries of the frame, if it goes without extents.
    pub const fn entries(&self) -> u64 {
        1 + self.bytes().saturating_sub(HEAD_BYTES as u64).div_ceil(DATA_BYTES as u64)
    }

    /// Encodes the head as an entry, with the first bytes.
    pub fn encode(&self, bytes: &[u8; HEAD_BYTES]) -> (Tag, [u64; PAYLOAD_WORDS]) {
        let mut words = [0; PAYLOAD_WORDS];
        words[0] = self.call.to_word();
        words[1] = u64::from(self.lengths[1]) << 32 | u64::from(self.lengths[0]);
        words[2] = self.argument;
        to_words(bytes, &mut words[3..]);
        (Tag { kind: self.kind, flags: self.flags }, words)
    }

    /// Decodes a peer's entry. `None` if it does not have a head's size.
    pub fn decode(entry: &Entry) -> Option<(Head, [u8; HEAD_BYTES])> {
        let words: &[u64; PAYLOAD_WORDS] = entry.words().try_into().ok()?;
        let mut bytes = [0; HEAD_BYTES];
        from_words(&words[3..], &mut bytes);
        let head = Head {
            kind: entry.tag.kind,
            flags: entry.tag.flags,
            call: Subject::from_word(words[0]),
            lengths: [words[1] as u32, (words[1] >> 32) as u32],
            argument: words[2],
        };
        Some((head, bytes))
    }
}

/// Packs bytes into words, little-endian.
pub fn to_words(bytes: &[u8], words: &mut [u64]) {
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
}

/// Unpacks words into bytes, little-endian.
pub fn from_words(words: &[u64], bytes: &mut [u8]) {
    for (word, bytes) in words.iter().zip(bytes.as_chunks_mut::<8>().0) {
        *bytes = word.to_le_bytes();
    }
}

/// The argument of a BEGIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Index into the methods that the host serves.
    pub method: u16,
    /// The request's class, as the agent determined it.
    pub class: u8,
    /// Time left until the client's deadline when the frame is sent. A duration, because the two sides' clocks are never
    /// compared.
    pub left: Option<Nanos>,
}

impl Begin {
    /// The encoding of no deadline.
    const FOREVER: u32 = u32::MAX;

    /// Encodes the argument. Time left is in microseconds, rounded down, and at most 71 minutes.
    pub fn to_word(self) -> u64 {
        let left = self.left.map_or(Begin::FOREVER, |left| {
            (left.0 / 1_000).min(u64::from(Begin::FOREVER - 1)) as u32
        });
        u64::from(left) << 32 | u64::from(self.class) << 16 | u64::from(self.method)
    }

    /// Decodes an argument. Every word is valid; the method may still be unknown.
    pub fn from_word(word: u64) -> Begin {
        let left = (word >> 32) as u32;
        Begin {
            method: word as u16,
            class: (word >> 16) as u8,
            left: (left != Begin::FOREVER).then_some(Nanos(u64::from(left) * 1_000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_call_is_one_entry() {
        let mut head = Head::new(BEGIN, Subject { id: 1, generation: 2 });
        for (bytes, entries) in [(0, 1), (32, 1), (33, 2), (88, 2), (89, 3), (u32::MAX, 76_695_845)]
        {
            head.lengths = [0, bytes];
            assert_eq!(head.entries(), entries, "{bytes}");
        }
    }

    #[test]
    fn heads_round_trip() {
        let head = Head {
            kind: MESSAGE,
            flags: END,
            call: Subject { id: 7, generation: 9 },
            lengths: [3, 4],
            argument: Begin { method: 5, class: 2, left: Some(Nanos::from_micros(6)) }.to_word(),
        };
        let bytes = core::array::from_fn(|at| at as u8);
        let (tag, words) = head.encode(&bytes);
        assert_eq!(Head::decode(&Entry::new(tag, &words)), Some((head, bytes)));
        assert_eq!(Head::decode(&Entry::new(tag, &words[..6])), None);
    }

    #[test]
    fn time_left_is_bounded() {
        let there_and_back =
            |left| Begin::from_word(Begin { method: 0, class: 0, left }.to_word()).left;
        assert_eq!(there_and_back(None), None);
        assert_eq!(there_and_back(Some(Nanos(1_999))), Some(Nanos(1_000)));
        assert_eq!(
            there_and_back(Some(Nanos(u64::MAX))),
            Some(Nanos((u64::from(u32::MAX) - 1) * 1_000))
        );
    }
}
