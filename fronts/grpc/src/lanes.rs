//! Lanes: bounded queues in memory, one per direction between the first core of a front and a connection core. A push never
//! blocks or loses anything: pieces without room stay with the sender, which then takes nothing new from its own side until
//! there is room ([`Out::is_behind`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rtrb::{Consumer, Producer, PushError, RingBuffer};
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_rpc::dispatch::{Arrival, Event};
use wave_rpc::status::Code;

use crate::slots::Ready;

/// Pieces that a queue holds.
const PIECES: usize = 1024;
/// Bytes of messages in a queue at which its sender is behind.
pub const LANE_BYTES: usize = 4 << 20;
/// Most pieces that one step takes from a queue.
pub const PIECES_PER_STEP: usize = 256;
/// Interval at which a sender that is behind checks for room: no doorbell rings when there is room.
pub const ROOM_EVERY: Nanos = Nanos::from_micros(100);

/// A request of a connection core to the first core. It names a call by the core's slot and a number that is unique on that
/// core.
#[derive(Debug)]
pub enum Asked {
    /// A call begins, if this host is still attached.
    Begin {
        /// Number of the attached host, counted from the first.
        host: u32,
        call: Subject,
        /// The call, for the dispatcher.
        arrival: Arrival,
    },
    /// The client has sent a message.
    Message {
        call: Subject,
        /// The message, not compressed.
        message: bytes::Bytes,
        /// Whether it is the last.
        end: bool,
        compressed: bool,
    },
    /// The client sends nothing more.
    HalfClose(Subject),
    /// A reply of this many bytes was passed on to the client.
    Grant(Subject, u32),
    /// The call was cancelled: its events are no longer wanted.
    Cancel(Subject, Code),
}

/// A message of the first core to a connection core.
#[derive(Debug)]
pub enum Told {
    /// An event of a call, or the host's service.
    Event(Event),
    /// A host is attached, and its workers are ready.
    Ready {
        /// Number of the attached host, counted from the first.
        host: u32,
        /// How long to look for work before sleeping.
        spin: Nanos,
    },
    /// The host has gone, and all its calls with it.
    Gone,
}

/// A piece that may carry bytes of messages.
pub trait Weigh {
    fn bytes(&self) -> usize;
}

impl Weigh for Asked {
    fn bytes(&self) -> usize {
        match self {
            Asked::Begin { arrival, .. } => {
                arrival.metadata.len() + arrival.message.as_ref().map_or(0, bytes::Bytes::len)
            }
            Asked::Message { message, .. } => message.len(),
            Asked::HalfClose(_) | Asked::Grant(..) | Asked::Cancel(..) => 0,
        }
    }
}

impl Weigh for Told {
    fn bytes(&self) -> usize {
        match self {
            Told::Event(Event::Message { message, .. }) => message.len(),
            Told::Event(_) | Told::Ready { .. } | Told::Gone => 0,
        }
    }
}

/// Makes a lane to the core that `receiver` rings.
pub fn lane<T: Weigh>(receiver: Arc<Ready>) -> (Out<T>, In<T>) {
    let (producer, consumer) = RingBuffer::new(PIECES);
    let taken = Arc::new(AtomicUsize::new(0));
    let out = Out {
        ring: producer,
        waiting: VecDeque::new(),
        sent: 0,
        taken: Arc::clone(&taken),
        is_unheard: false,
        receiver,
    };
    (out, In { ring: consumer, got: 0, taken })
}

/// The writing end of a lane.
#[derive(Debug)]
pub struct Out<T> {
    ring: Producer<T>,
    waiting: VecDeque<T>,
    /// Bytes sent so far. Both counters wrap.
    sent: usize,
    taken: Arc<AtomicUsize>,
    /// Something was sent since the receiver was last rung.
    is_unheard: bool,
    receiver: Arc<Ready>,
}

impl<T: Weigh> Out<T> {
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
    pub fn take(&mut self) -> Option<T> {
        let piece = self.ring.pop().ok()?;
        let bytes = piece.bytes();
        if bytes > 0 {
            self.got = self.got.wrapping_add(bytes);
            self.taken.store(self.got, Ordering::Relaxed);
        }
        Some(piece)
    }

    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use super::*;

    fn grant(at: u32) -> Asked {
        Asked::Grant(Subject { id: at, generation: 0 }, at)
    }

    #[test]
    fn full_lane_loses_and_reorders_nothing() {
        let (mut out, mut inward) = lane(Arc::default());
        let count = 3 * PIECES as u32;
        let (mut sent, mut got) = (0, 0);
        while got < count {
            // Sends faster than the receiver takes, until all is sent.
            for _ in 0..PIECES.min((count - sent) as usize) {
                out.send(grant(sent));
                sent += 1;
            }
            for _ in 0..PIECES / 2 {
                if let Some(Asked::Grant(_, at)) = inward.take() {
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
        let (mut out, mut inward) = lane(Arc::default());
        let half = || Asked::Message {
            call: Subject { id: 0, generation: 0 },
            message: vec![0; LANE_BYTES / 2].into(),
            end: false,
            compressed: false,
        };
        out.send(half());
        assert!(!out.is_behind());
        out.send(half());
        assert!(out.is_behind());
        assert!(inward.take().is_some());
        assert!(!out.is_behind());
    }

    /// Two threads that sleep whenever they find nothing: a single lost wake-up stops both.
    #[test]
    fn no_wake_up_is_lost_between_two_sleepers() {
        const TURNS: u32 = 20_000;
        let ready = [Arc::new(Ready::default()), Arc::new(Ready::default())];
        let (mut there, mut in_there) = lane(Arc::clone(&ready[1]));
        let (mut back, mut in_back) = lane(Arc::clone(&ready[0]));
        let other = Arc::clone(&ready[1]);
        let echo = std::thread::spawn(move || {
            for _ in 0..TURNS {
                back.send(wait(&mut in_there, &other));
                back.flush();
            }
        });
        for turn in 0..TURNS {
            there.send(grant(turn));
            there.flush();
            assert!(matches!(wait(&mut in_back, &ready[0]), Asked::Grant(_, at) if at == turn));
        }
        echo.join().unwrap();
    }

    /// Waits for a piece as a front's core does.
    fn wait(from: &mut In<Asked>, ready: &Ready) -> Asked {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Some(piece) = from.take() {
                return piece;
            }
            ready.prepare_park();
            let piece = from.take();
            if piece.is_none() && !ready.sleep(&waker) {
                std::thread::park();
            }
            ready.awake();
            ready.unpark();
            ready.take_rung();
            if let Some(piece) = piece {
                return piece;
            }
        }
    }

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn only_a_sleeping_receiver_is_rung() {
        let ready = Arc::new(Ready::default());
        let (mut out, _inward) = lane(Arc::clone(&ready));
        out.send(grant(0));
        out.flush();
        assert!(!ready.take_rung());
        ready.prepare_park();
        out.flush();
        assert!(!ready.take_rung(), "nothing new was sent");
        out.send(grant(1));
        out.flush();
        assert!(ready.take_rung());
    }
}
