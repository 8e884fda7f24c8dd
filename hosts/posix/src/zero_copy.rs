//! Reading and writing in place: rings without a copy.
//!
//! The bytes lie in memory that the agent maps as well, so no reference to them is handed out, only [`Part`]s: to be copied from
//! and to, and to be filled from and drained to files and sockets by the kernel. A guard borrows its stream exclusively, so
//! that nothing else reads or writes the same bytes.

use wave_links::payload::Part;

use crate::stream::Stream;

/// Room in a stream's ring, to be filled and committed. Dropping it writes nothing.
#[derive(Debug)]
pub struct Reserved<'a> {
    stream: &'a mut Stream,
    bytes: u32,
}

impl<'a> Reserved<'a> {
    pub(crate) fn new(stream: &'a mut Stream, bytes: u32) -> Reserved<'a> {
        Reserved { stream, bytes }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes in the order of the stream: a part, and another one where the ring ends between them.
    pub fn parts(&self) -> [Part<'_>; 2] {
        self.stream.room_parts(self.bytes)
    }

    /// Writes the first `bytes` bytes, as they are, to the stream. Panics if so many were not reserved.
    pub fn commit(self, bytes: usize) {
        assert!(bytes <= self.len(), "{bytes} bytes of {} reserved ones", self.bytes);
        if bytes > 0 {
            self.stream.wrote(bytes as u64);
        }
    }
}

/// Data in a stream's ring, to be looked at and released. Dropping it reads nothing.
#[derive(Debug)]
pub struct Readable<'a> {
    stream: &'a mut Stream,
    bytes: u32,
}

impl<'a> Readable<'a> {
    pub(crate) fn new(stream: &'a mut Stream, bytes: u32) -> Readable<'a> {
        Readable { stream, bytes }
    }

    /// Number of bytes; 0 at the end of the stream.
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Whether the stream has ended.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes in the order of the stream: a part, and another one where the ring ends between them.
    pub fn parts(&self) -> [Part<'_>; 2] {
        self.stream.data_parts(self.bytes)
    }

    /// Reads the first `bytes` bytes off the stream. Panics if there are fewer.
    pub fn release(self, bytes: usize) {
        assert!(bytes <= self.len(), "{bytes} bytes of {} readable ones", self.bytes);
        if bytes > 0 {
            self.stream.has_read(bytes as u64);
        }
    }
}
