//! Received frames and the bounded pool of their buffers.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{CsumPlace, checksum};

/// Most bytes of a frame: the longest IP packet plus an Ethernet header with two tags.
pub const FRAME_BYTES_MAX: usize = 65_535 + 22;

/// The wire's statement about the TCP or UDP checksum of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// No statement: verify the checksum.
    Unknown,
    /// Do not verify it: the frame is from this machine's kernel, or the device has verified it. The field may hold a
    /// partial sum ([`Frame::partial`]), which would not verify.
    Good,
}

/// A received Ethernet frame, header first. Dropping it returns its buffer to the wire's pool, in any thread and even
/// after the wire is gone.
#[derive(Debug)]
pub struct Frame {
    /// Empty only during the drop.
    buffer: Box<[u8]>,
    place: Range<usize>,
    /// Whether the wire vouches for the TCP or UDP checksum.
    pub checksum: Checksum,
    /// Payload bytes of each segment of a super-packet; 0 for a single packet.
    pub segment_bytes: u16,
    /// Place of a checksum that the sender has not completed. See [`Frame::complete_checksum`].
    pub partial: Option<CsumPlace>,
    pool: Option<Arc<Pool>>,
}

impl Frame {
    /// A frame in the bytes `place` of a buffer of `pool`, with an unknown checksum.
    pub(crate) fn new(pool: &Arc<Pool>, buffer: Box<[u8]>, place: Range<usize>) -> Frame {
        assert!(place.start <= place.end && place.end <= buffer.len());
        Frame {
            buffer,
            place,
            checksum: Checksum::Unknown,
            segment_bytes: 0,
            partial: None,
            pool: Some(Arc::clone(pool)),
        }
    }

    /// A frame outside any pool, with an unknown checksum: for tests and for frames that an engine sends to itself.
    /// Allocates.
    pub fn copied_from(bytes: &[u8]) -> Frame {
        Frame {
            buffer: bytes.into(),
            place: 0..bytes.len(),
            checksum: Checksum::Unknown,
            segment_bytes: 0,
            partial: None,
            pool: None,
        }
    }

    /// Completes a partial checksum, if there is one. Required before the frame is forwarded.
    pub fn complete_checksum(&mut self) {
        if let Some(place) = self.partial.take() {
            checksum::complete(self, place);
        }
    }

    /// Keeps the first `len` bytes, if there are more.
    pub fn truncate(&mut self, len: usize) {
        self.place.end = self.place.end.min(self.place.start.saturating_add(len));
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.place.clone()]
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.place.clone()]
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give(std::mem::take(&mut self.buffer));
        }
    }
}

/// A fixed number of buffers of one size. The buffer returned last is taken first, because it is still in the cache.
///
/// It has a lock rather than a cell, so that a wire can be opened in one thread and polled in another. The lock is
/// held for one push or pop.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Vec<Box<[u8]>>>,
}

impl Pool {
    /// `count` buffers of `bytes` each. The kernel backs their pages when they are first written.
    pub(crate) fn new(count: usize, bytes: usize) -> Arc<Pool> {
        let free = (0..count).map(|_| vec![0; bytes].into_boxed_slice()).collect();
        Arc::new(Pool { free: Mutex::new(free) })
    }

    pub(crate) fn take(&self) -> Option<Box<[u8]>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Returns a buffer. Never allocates: the buffer was taken from this pool, so there is room.
    pub(crate) fn give(&self, buffer: Box<[u8]>) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_frame_returns_its_buffer_exactly_once() {
        let pool = Pool::new(2, 64);
        let frames: Vec<_> = (0..2)
            .map(|byte| {
                let mut buffer = pool.take().unwrap();
                buffer.fill(byte);
                Frame::new(&pool, buffer, 10..30)
            })
            .collect();
        assert!(pool.take().is_none());
        assert_eq!(*frames[1], [1; 20]);
        std::thread::spawn(move || drop(frames)).join().unwrap();
        assert!([pool.take(), pool.take()].iter().all(Option::is_some));
        assert!(pool.take().is_none());
    }
}
