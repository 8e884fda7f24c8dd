//! Messages as HTTP/2 carries them: a flag and a length before each, in pieces of any size.

use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Bytes before each message.
pub const PREFIX_BYTES: usize = 5;
/// Shorter messages are copied out of the buffer in which they arrived, except a call's first: otherwise a few waiting bytes
/// could keep a large buffer.
const COPIED_BELOW: usize = 4096;
/// Most bytes reserved for a message in pieces before its bytes have arrived.
const RESERVED_MAX: usize = 64 * 1024;

/// A client's message, not decompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The flag of the prefix.
    pub compressed: bool,
    /// The message without its prefix.
    pub bytes: Bytes,
}

/// An invalid message prefix: the client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum BadPrefix {
    /// The flag is neither 0 nor 1.
    #[error("a message's flag is {0}, and must be 0 or 1")]
    Flag(u8),
    /// The length is above the limit.
    #[error("a message has {length} bytes, allowed are {max}")]
    TooLarge { length: u32, max: u32 },
}

/// Assembles messages from pieces.
#[derive(Debug)]
pub struct Assembler {
    max: u32,
    prefix: [u8; PREFIX_BYTES],
    in_prefix: usize,
    /// The part of a message that arrived in earlier pieces.
    begun: BytesMut,
    piece: Bytes,
    is_first: bool,
}

impl Assembler {
    /// An assembler of messages of at most `max` bytes.
    pub fn new(max: u32) -> Assembler {
        Assembler {
            max,
            prefix: [0; PREFIX_BYTES],
            in_prefix: 0,
            begun: BytesMut::new(),
            piece: Bytes::new(),
            is_first: true,
        }
    }

    /// Adds the next piece. [`Assembler::next`] must have returned `None` for the one before.
    pub fn push(&mut self, piece: Bytes) {
        debug_assert!(self.piece.is_empty());
        self.piece = piece;
    }

    /// The next message, if it is complete.
    pub fn next(&mut self) -> Result<Option<Received>, BadPrefix> {
        if self.in_prefix < PREFIX_BYTES {
            let taken = (PREFIX_BYTES - self.in_prefix).min(self.piece.len());
            self.piece.copy_to_slice(&mut self.prefix[self.in_prefix..][..taken]);
            self.in_prefix += taken;
            if self.in_prefix < PREFIX_BYTES {
                return Ok(None);
            }
        }
        let [flag, length @ ..] = self.prefix;
        let length = u32::from_be_bytes(length);
        if flag > 1 {
            return Err(BadPrefix::Flag(flag));
        }
        if length > self.max {
            return Err(BadPrefix::TooLarge { length, max: self.max });
        }
        let length = length as usize;
        let bytes = if self.begun.is_empty() && self.piece.len() >= length {
            let bytes = self.piece.split_to(length);
            if self.is_first || length >= COPIED_BELOW {
                bytes
            } else {
                Bytes::copy_from_slice(&bytes)
            }
        } else {
            let missing = (length - self.begun.len()).min(self.piece.len());
            if self.begun.is_empty() {
                self.begun.reserve(length.min(RESERVED_MAX));
            }
            self.begun.extend_from_slice(&self.piece.split_to(missing));
            if self.begun.len() < length {
                return Ok(None);
            }
            std::mem::take(&mut self.begun).freeze()
        };
        self.in_prefix = 0;
        self.is_first = false;
        Ok(Some(Received { compressed: flag == 1, bytes }))
    }

    /// Whether no message is incomplete.
    pub fn is_empty(&self) -> bool {
        self.in_prefix == 0 && self.piece.is_empty()
    }

    pub fn held(&self) -> usize {
        self.begun.len() + self.piece.len()
    }
}

/// A message on its way out, or a piece of one.
#[derive(Debug)]
pub struct Frame {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that were taken off.
    at: usize,
    bytes: Bytes,
}

impl Frame {
    /// A complete message. `None` if its length does not fit the prefix.
    pub fn new(compressed: bool, bytes: Bytes) -> Option<Frame> {
        let mut prefix = [u8::from(compressed), 0, 0, 0, 0];
        prefix[1..].copy_from_slice(&u32::try_from(bytes.len()).ok()?.to_be_bytes());
        Some(Frame { prefix, at: 0, bytes })
    }

    /// Bytes without a prefix, which are not a gRPC message.
    pub fn bare(bytes: Bytes) -> Frame {
        Frame { prefix: [0; PREFIX_BYTES], at: PREFIX_BYTES, bytes }
    }

    /// Takes the first `count` bytes off.
    pub fn split_to(&mut self, count: usize) -> Frame {
        let of_prefix = count.min(PREFIX_BYTES - self.at);
        let mut first = Frame { prefix: [0; PREFIX_BYTES], at: 0, bytes: Bytes::new() };
        first.at = PREFIX_BYTES - of_prefix;
        first.prefix[first.at..].copy_from_slice(&self.prefix[self.at..][..of_prefix]);
        self.at += of_prefix;
        first.bytes = self.bytes.split_to(count - of_prefix);
        first
    }
}

impl Buf for Frame {
    fn remaining(&self) -> usize {
        PREFIX_BYTES - self.at + self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.at < PREFIX_BYTES { &self.prefix[self.at..] } else { &self.bytes }
    }

    fn advance(&mut self, count: usize) {
        let of_prefix = count.min(PREFIX_BYTES - self.at);
        self.at += of_prefix;
        self.bytes.advance(count - of_prefix);
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = [&self.prefix[self.at..], &self.bytes];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        slices.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wire(messages: &[(bool, Vec<u8>)]) -> Vec<u8> {
        let frame = |(compressed, bytes): &(bool, Vec<u8>)| {
            let mut frame = Frame::new(*compressed, bytes.clone().into()).unwrap();
            frame.copy_to_bytes(frame.remaining())
        };
        messages.iter().flat_map(frame).collect()
    }

    proptest! {
        #[test]
        fn messages_are_assembled_from_any_pieces(
            messages in proptest::collection::vec(
                (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
            cuts in proptest::collection::vec(1usize..200, 1..40),
        ) {
            let wire = Bytes::from(wire(&messages));
            let mut assembler = Assembler::new(300);
            let mut got = Vec::new();
            let (mut at, mut cuts) = (0, cuts.into_iter().cycle());
            while at < wire.len() {
                let end = wire.len().min(at + cuts.next().unwrap());
                assembler.push(wire.slice(at..end));
                while let Some(message) = assembler.next().unwrap() {
                    got.push((message.compressed, message.bytes.to_vec()));
                }
                at = end;
            }
            prop_assert_eq!(got, messages);
            prop_assert!(assembler.is_empty());
            prop_assert_eq!(assembler.held(), 0);
        }

        #[test]
        fn frame_is_split_at_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            cuts in proptest::collection::vec(1usize..20, 1..10),
        ) {
            let whole = wire(&[(true, bytes.clone())]);
            let mut frame = Frame::new(true, bytes.into()).unwrap();
            let mut got = Vec::new();
            for cut in cuts.into_iter().cycle() {
                if !frame.has_remaining() {
                    break;
                }
                let mut piece = frame.split_to(cut.min(frame.remaining()));
                let mut slices = [IoSlice::new(&[]); 2];
                let count = piece.chunks_vectored(&mut slices);
                let vectored: Vec<u8> =
                    slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
                let copied = piece.copy_to_bytes(piece.remaining());
                prop_assert_eq!(&vectored[..], &copied[..]);
                got.extend_from_slice(&copied);
            }
            prop_assert_eq!(got, whole);
        }
    }

    #[test]
    fn length_in_a_prefix_reserves_no_memory() {
        let mut assembler = Assembler::new(u32::MAX);
        assembler.push(Bytes::from_static(&[0, 255, 255, 255, 255, 1]));
        assert_eq!(assembler.next(), Ok(None));
        assert!(assembler.begun.capacity() <= 2 * RESERVED_MAX);
        assert!(!assembler.is_empty());
    }

    #[test]
    fn invalid_prefixes_are_refused() {
        let next = |bytes: &'static [u8]| {
            let mut assembler = Assembler::new(10);
            assembler.push(Bytes::from_static(bytes));
            assembler.next()
        };
        assert_eq!(next(&[2, 0, 0, 0, 0]), Err(BadPrefix::Flag(2)));
        assert_eq!(next(&[0, 0, 0, 0, 11]), Err(BadPrefix::TooLarge { length: 11, max: 10 }));
    }

    #[test]
    fn later_small_message_keeps_no_buffer() {
        let wire = Bytes::from(wire(&[(false, vec![1]), (false, vec![2])]));
        let mut assembler = Assembler::new(10);
        assembler.push(wire.clone());
        let first = assembler.next().unwrap().unwrap().bytes;
        let second = assembler.next().unwrap().unwrap().bytes;
        assert_eq!(first.as_ptr(), wire[5..].as_ptr());
        assert_ne!(second.as_ptr(), wire[11..].as_ptr());
    }
}
