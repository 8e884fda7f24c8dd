//! Trace points (thesis 4.5.1): what happened to a flow, step by step, while somebody asks.
//!
//! An event is a time, a flow, a point and two numbers, whose meaning the point names. Events wait in a ring of fixed size for whoever
//! drains it; what finds it full is left out and counted. While nobody asks, a point costs one comparison.

use alloc::collections::VecDeque;

use wave_core::clock::Nanos;

use crate::datapath::FlowId;

/// Events that wait at most.
const EVENTS_MAX: usize = 1 << 14;

macro_rules! points {
    ($($(#[$about:meta])* $point:ident = $name:literal ($first:literal, $second:literal),)*) => {
        /// Where something happened: the stage, and what it did.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point {
            $($(#[$about])* $point,)*
        }

        impl Point {
            /// All of them.
            pub const ALL: &[Point] = &[$(Point::$point,)*];

            /// Its name: the stage, a dot, and what it did.
            pub const fn name(self) -> &'static str {
                match self { $(Point::$point => $name,)* }
            }

            /// What its numbers mean; empty if there is none.
            pub const fn numbers(self) -> [&'static str; 2] {
                match self { $(Point::$point => [$first, $second],)* }
            }
        }
    };
}

points! {
    /// A segment of data or acknowledgements was examined.
    Examined = "pre.examined"("bytes", "segment_bytes"),
    /// A segment is the control plane's.
    ToControl = "pre.control"("bytes", ""),
    /// Bytes came in order.
    InOrder = "protocol.in_order"("position", "bytes"),
    /// Bytes came out of order, and are kept.
    OutOfOrder = "protocol.out_of_order"("position", "bytes"),
    /// A segment was dropped; the cause's place in `Counters::dropped`.
    Dropped = "protocol.dropped"("cause", "bytes"),
    /// The end of the peer's stream is known.
    FinReceived = "protocol.fin_received"("position", ""),
    /// Something new is acknowledged.
    Acknowledged = "protocol.acknowledged"("position", "bytes"),
    /// An acknowledgement said nothing new.
    DuplicateAcknowledged = "protocol.duplicate_ack"("position", "count"),
    /// The peer's window changed.
    PeerWindow = "protocol.peer_window"("edge", ""),
    /// A loss was noticed by acknowledgements.
    FastRetransmit = "protocol.fast_retransmit"("position", ""),
    /// A host wrote or read.
    HostMoved = "protocol.host_moved"("written", "read"),
    /// A host has nothing more to say.
    HostFinished = "protocol.host_finished"("position", ""),
    /// A host said what cannot be.
    HostWrong = "protocol.host_wrong"("written", "read"),
    /// Bytes are sent for the first time.
    Sent = "protocol.sent"("position", "bytes"),
    /// Bytes are sent again.
    SentAgain = "protocol.sent_again"("position", "bytes"),
    /// The peer's window holds everything back.
    Blocked = "protocol.blocked"("edge", "next"),
    /// A round trip was measured.
    RoundTrip = "post.round_trip"("ns", ""),
    /// An acknowledgement goes out on its own.
    AckSent = "post.ack_sent"("position", "window"),
    /// An acknowledgement waited for data in vain.
    AckDelayed = "post.ack_delayed"("position", ""),
    /// A reset goes out.
    ResetSent = "post.reset_sent"("", ""),
    /// The host is told how far its streams are.
    Notified = "context.notified"("received", "acknowledged"),
    /// A copy to a host's ring has begun.
    CopyBegun = "dma.copy_begun"("position", "bytes"),
    /// A copy is done; whether those before it are as well, so that it may be said.
    CopyDone = "dma.copy_done"("ticket", "is_first"),
    /// A wire has a segment's bytes.
    SendDone = "dma.send_done"("", ""),
    /// The flow's next segment is due later.
    Paced = "schedule.paced"("due_ns", ""),
    /// A connection was taken.
    Installed = "control.installed"("window_bytes", "mss"),
    /// Nothing more is begun.
    Frozen = "control.frozen"("", ""),
    /// A connection was given away.
    Exported = "control.exported"("", ""),
    /// The retransmission timer ran out.
    TimedOut = "control.timed_out"("in_vain", "timeout_ns"),
    /// A window probe or a keepalive.
    Probed = "control.probed"("in_vain", "timeout_ns"),
    /// The congestion window changed.
    Window = "control.window"("window_bytes", "threshold_bytes"),
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Nanos,
    /// To which flow.
    pub flow: FlowId,
    /// What.
    pub point: Point,
    /// See [`Point::numbers`].
    pub numbers: [u64; 2],
}

/// Events that wait to be drained.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    is_on: bool,
    events: VecDeque<Event>,
    lost: u64,
}

impl Trace {
    /// From now on events are kept. Allocates, and only here.
    pub fn start(&mut self) {
        self.is_on = true;
        self.events.reserve_exact(EVENTS_MAX);
    }

    /// Nothing more is kept.
    pub fn stop(&mut self) {
        *self = Trace::default();
    }

    /// Whether events are kept.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Keeps an event, if somebody asked.
    #[inline]
    pub fn add(&mut self, at: Nanos, flow: FlowId, point: Point, numbers: [u64; 2]) {
        if self.is_on {
            self.keep(Event { at, flow, point, numbers });
        }
    }

    #[cold]
    fn keep(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.lost += 1;
        } else {
            self.events.push_back(event);
        }
    }

    /// Takes the oldest event.
    pub fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How many events were left out since this was asked last.
    pub fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happens_while_somebody_asks_is_kept_and_no_more_than_there_is_room() {
        let flow = FlowId { index: 1, generation: 2 };
        let mut trace = Trace::default();
        trace.add(Nanos(1), flow, Point::Sent, [0, 9]);
        assert_eq!(trace.pop(), None);
        trace.start();
        for position in 0..EVENTS_MAX as u64 + 3 {
            trace.add(Nanos(2), flow, Point::Sent, [position, 1]);
        }
        assert_eq!(trace.pop().unwrap().numbers, [0, 1]);
        assert_eq!((trace.take_lost(), trace.take_lost()), (3, 0));
        trace.stop();
        trace.add(Nanos(3), flow, Point::Sent, [0, 9]);
        assert_eq!(trace.pop(), None);
    }

    #[test]
    fn names_are_of_a_stage_and_no_two_are_equal() {
        let stages = ["pre", "protocol", "post", "context", "dma", "schedule", "control"];
        for (at, point) in Point::ALL.iter().enumerate() {
            let (stage, what) = point.name().split_once('.').unwrap();
            assert!(stages.contains(&stage) && !what.is_empty());
            assert!(Point::ALL[..at].iter().all(|other| other.name() != point.name()));
        }
    }
}
