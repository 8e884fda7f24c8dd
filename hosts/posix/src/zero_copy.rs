//! Reading and writing in place, in the rings, without a copy.
//!
//! The bytes lie in memory that the agent maps as well, so no references to them are handed out, only [`Part`]s. A part can be copied
//! from and to, and the kernel can fill it from files and sockets and drain it to them. A guard borrows its stream exclusively, so
//! that nothing else reads or writes the same bytes.

use wave_links::payload::Part;

use crate::stream::Stream;

/// Room in a stream's send ring, to be filled and committed. Dropping it writes nothing.
#[derive(Debug)]
pub struct Reserved<'a> {
    stream: &'a mut Stream,
    bytes: u32,
}

impl<'a> Reserved<'a> {
    pub(crate) fn new(stream: &'a mut Stream, bytes: u32) -> Reserved<'a> {
        Reserved { stream, bytes }
    }

    /// Number of reserved bytes.
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Whether no bytes are reserved.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes in the order of the stream: two parts if they wrap around the end of the ring; otherwise the second part is empty.
    pub fn parts(&self) -> [Part<'_>; 2] {
        self.stream.room_parts(self.bytes)
    }

    /// Writes the first `bytes` bytes, as they are, to the stream. Panics if fewer are reserved.
    pub fn commit(self, bytes: usize) {
        assert!(bytes <= self.len(), "cannot commit {bytes} bytes: {} are reserved", self.bytes);
        if bytes > 0 {
            self.stream.commit_write(bytes as u64);
        }
    }
}

/// Data in a stream's receive ring, to be inspected and released. Dropping it reads nothing.
#[derive(Debug)]
pub struct Readable<'a> {
    stream: &'a mut Stream,
    bytes: u32,
}

impl<'a> Readable<'a> {
    pub(crate) fn new(stream: &'a mut Stream, bytes: u32) -> Readable<'a> {
        Readable { stream, bytes }
    }

    /// Number of readable bytes; 0 at the end of the stream.
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Whether the stream has ended.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes in the order of the stream: two parts if they wrap around the end of the ring; otherwise the second part is empty.
    pub fn parts(&self) -> [Part<'_>; 2] {
        self.stream.data_parts(self.bytes)
    }

    /// Consumes the first `bytes` bytes of the stream. Panics if there are fewer.
    pub fn release(self, bytes: usize) {
        assert!(bytes <= self.len(), "cannot release {bytes} bytes: {} are readable", self.bytes);
        if bytes > 0 {
            self.stream.commit_read(bytes as u64);
        }
    }
}
