//! Lanes: bounded queues in memory, one per direction between two threads of an agent. A push never blocks or loses anything: pieces
//! without room stay with the sender, which then takes nothing new from its own side until there is room ([`Out::is_behind`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rtrb::{Consumer, Producer, PushError, RingBuffer};
use wave_core::backlog::Backlog;
use wave_core::clock::Nanos;

/// Pieces that a queue holds.
pub const PIECES: usize = 1024;
/// Bytes of messages in a queue at which its sender is behind.
pub const LANE_BYTES: usize = 4 << 20;
/// Most pieces that one step takes from a queue.
pub const PIECES_PER_STEP: usize = 256;
/// Interval at which a sender that is behind checks for room: no doorbell rings when there is room.
pub const ROOM_EVERY: Nanos = Nanos::from_micros(100);

/// A piece that may carry bytes of messages.
pub trait Weigh {
    /// Number of these bytes.
    fn bytes(&self) -> usize {
        0
    }
}

/// A thread that sleeps while its lanes are empty.
pub trait Sleeper {
    /// Wakes the thread if it sleeps, or is about to. Called after pieces were put into its lanes.
    fn ring_if_parked(&self);
}

/// Makes a lane to the thread that `receiver` rings.
pub fn lane<T: Weigh, S: Sleeper>(receiver: Arc<S>) -> (Out<T, S>, In<T>) {
    let (producer, consumer) = RingBuffer::new(PIECES);
    let taken = Arc::new(AtomicUsize::new(0));
    let out = Out {
        ring: producer,
        waiting: Backlog::new(),
        sent: 0,
        taken: Arc::clone(&taken),
        is_unheard: false,
        receiver,
    };
    (out, In { ring: consumer, got: 0, taken })
}

/// The writing end of a lane.
#[derive(Debug)]
pub struct Out<T, S> {
    ring: Producer<T>,
    waiting: Backlog<T>,
    /// Bytes sent so far. Both counters wrap.
    sent: usize,
    taken: Arc<AtomicUsize>,
    /// Something was sent since the receiver was last rung.
    is_unheard: bool,
    receiver: Arc<S>,
}

impl<T: Weigh, S: Sleeper> Out<T, S> {
    /// Sends a piece after all earlier ones. [`Out::flush`] tells the receiver.
    pub fn send(&mut self, piece: T) {
        self.sent = self.sent.wrapping_add(piece.bytes());
        self.is_unheard = true;
        if !self.waiting.is_empty() {
            self.waiting.push_back(piece);
        } else if let Err(PushError::Full(piece)) = self.ring.push(piece) {
            self.waiting.push_back(piece);
        }
    }

    /// Moves pieces that had no room into the queue, and rings a sleeping receiver.
    pub fn flush(&mut self) {
        while let Some(piece) = self.waiting.pop_front() {
            if let Err(PushError::Full(piece)) = self.ring.push(piece) {
                self.waiting.push_front(piece);
                break;
            }
            self.is_unheard = true;
        }
        if std::mem::take(&mut self.is_unheard) {
            self.receiver.ring_if_parked();
        }
    }

    /// Whether the receiver must take some pieces before the sender may accept anything new.
    pub fn is_behind(&self) -> bool {
        !self.waiting.is_empty() || self.on_way() >= LANE_BYTES
    }

    /// Whether the receiver has ended.
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Bytes that the receiver has not taken.
    pub fn on_way(&self) -> usize {
        self.sent.wrapping_sub(self.taken.load(Ordering::Relaxed))
    }
}

/// The reading end of a lane.
#[derive(Debug)]
pub struct In<T> {
    ring: Consumer<T>,
    got: usize,
    taken: Arc<AtomicUsize>,
}

impl<T: Weigh> In<T> {
    /// Removes the oldest piece.
    pub fn take(&mut self) -> Option<T> {
        let piece = self.ring.pop().ok()?;
        let bytes = piece.bytes();
        if bytes > 0 {
            self.got = self.got.wrapping_add(bytes);
            self.taken.store(self.got, Ordering::Relaxed);
        }
        Some(piece)
    }

    /// Whether no piece has arrived.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Awake;

    impl Sleeper for Awake {
        fn ring_if_parked(&self) {}
    }

    /// A piece with a number, and a weight in bytes.
    struct Piece(u32, usize);

    impl Weigh for Piece {
        fn bytes(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn full_lane_loses_and_reorders_nothing() {
        let (mut out, mut inward) = lane(Arc::new(Awake));
        let count = 3 * PIECES as u32;
        let (mut sent, mut got) = (0, 0);
        while got < count {
            // Sends faster than the receiver takes, until all is sent.
            for _ in 0..PIECES.min((count - sent) as usize) {
                out.send(Piece(sent, 0));
                sent += 1;
            }
            for _ in 0..PIECES / 2 {
                if let Some(Piece(at, _)) = inward.take() {
                    assert_eq!(at, got);
                    got += 1;
                }
            }
            out.flush();
        }
        assert!(!out.is_behind() && inward.take().is_none());
    }

    #[test]
    fn sender_is_behind_by_bytes_until_they_are_taken() {
        let (mut out, mut inward) = lane(Arc::new(Awake));
        out.send(Piece(0, LANE_BYTES / 2));
        assert!(!out.is_behind());
        out.send(Piece(1, LANE_BYTES / 2));
        assert!(out.is_behind());
        assert!(inward.take().is_some());
        assert!(!out.is_behind());
    }
}
