//! The bytes of a program's payload memory.

use wave_tcp::datapath::{Payload, Ring, Segment, Write};

/// The rings of a program's connections.
#[derive(Clone, Debug)]
pub struct PayloadBytes(Vec<u8>);

impl PayloadBytes {
    pub fn new(bytes: usize) -> PayloadBytes {
        PayloadBytes(vec![0; bytes])
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// Bytes of a stream: one part, and a second if they wrap around the ring's end.
    pub fn parts(&self, ring: Ring, position: u64, bytes: u32) -> [&[u8]; 2] {
        ring.parts(position, bytes).map(|(offset, len)| &self.0[offset as usize..][..len as usize])
    }

    pub fn put(&mut self, ring: Ring, position: u64, mut bytes: &[u8]) {
        for (offset, len) in ring.parts(position, bytes.len() as u32) {
            let (first, rest) = bytes.split_at(len as usize);
            self.0[offset as usize..][..len as usize].copy_from_slice(first);
            bytes = rest;
        }
    }

    /// Copies received bytes to their ring.
    pub fn land<F: AsRef<[u8]>>(&mut self, write: &Write<F>) {
        self.put(write.ring, write.position, &write.frame.as_ref()[write.bytes.clone()]);
    }

    /// Copies the first `bytes` bytes of a ring to another.
    pub fn copy(&mut self, from: Ring, to: Ring, bytes: u32) {
        let start = from.offset as usize;
        self.0.copy_within(start..start + bytes as usize, to.offset as usize);
    }

    /// The bytes after a segment's headers, in two parts.
    pub fn payload<'a, F: AsRef<[u8]>>(&'a self, payload: &'a Payload<F>) -> [&'a [u8]; 2] {
        match payload {
            Payload::None => [&[]; 2],
            Payload::Ring { ring, position, bytes, .. } => self.parts(*ring, *position, *bytes),
            Payload::Frame(frame, range) => [&frame.as_ref()[range.clone()], &[]],
        }
    }

    /// A segment's frame. A checksum that the wire completes is left as it is.
    pub fn frame<F: AsRef<[u8]>>(&self, segment: &Segment<F>) -> Vec<u8> {
        let [first, rest] = self.payload(&segment.payload);
        [segment.head.bytes(), first, rest].concat()
    }
}
