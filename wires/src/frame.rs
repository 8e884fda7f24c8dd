//! Frames that came in, and the bounded pool that their buffers are from.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

use crate::CsumPlace;

/// Most bytes of a frame: the longest IP packet, and an Ethernet header with two tags.
pub const FRAME_BYTES_MAX: usize = 65_535 + 22;

/// What the wire says about the TCP or UDP checksum of a frame that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: compare it.
    Unknown,
    /// It needs no look: the sender is this machine's own kernel, or the device compared it. The field may hold a
    /// part of the sum only ([`Frame::partial`]), so that a comparison would fail.
    Good,
}

/// An Ethernet frame that came in, header first. It gives its buffer back to the wire's pool when it is dropped, in any
/// thread and even after the wire.
#[derive(Debug)]
pub struct Frame {
    /// Empty only while it is dropped.
    buffer: Box<[u8]>,
    place: Range<usize>,
    /// Whether the wire vouches for the TCP or UDP checksum.
    pub checksum: Checksum,
    /// The payload of each segment that a super-packet was joined from, or would be cut into, in bytes. 0 if the frame is
    /// one packet. The sender's say: a peer may lie about it.
    pub segment_bytes: u16,
    /// The checksum that the sender left to be completed ([`CsumPlace`]). Who passes the frame on, or shows it, completes
    /// it.
    pub partial: Option<CsumPlace>,
    pool: Option<Arc<Pool>>,
}

impl Frame {
    /// A frame in the bytes `place` of a buffer of `pool`, its checksum unknown.
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

    /// A frame outside of any pool, its checksum unknown: for tests and for frames that an engine sends to itself.
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

/// A fixed number of buffers of one size. The last one that came back is the next to go, for it is in the cache.
///
/// A lock, and not a cell: a wire is opened in one thread and polled in another, and a frame may be dropped in a
/// third. It is held for a push or a pop, so that nobody ever waits for more than that.
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

    /// Never allocates: what comes back was taken, so there is room.
    pub(crate) fn give(&self, buffer: Box<[u8]>) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_frames_return_their_buffers_and_no_more() {
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
