//! Trace points of the data path and the control plane (thesis 4.5.1). They are off by default; then each costs a load and a
//! branch.
//!
//! [`Trace`] is a ring in memory. Any thread that passes a point writes a record, and never waits. A reader that is too slow
//! loses the oldest records, and learns how many.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use wave_core::clock::Nanos;

use crate::datapath::FlowId;
use crate::steering::Steering;

macro_rules! points {
    ($($(#[doc = $about:literal])* $point:ident = $name:literal, $stage:literal, [$one:literal, $two:literal];)*) => {
        /// A place in a stage or in the control plane.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Point { $($(#[doc = $about])* $point,)* }

        impl Point {
            /// All points, in the order of their numbers.
            pub const ALL: &[Point] = &[$(Point::$point,)*];

            /// The point's name.
            pub const fn name(self) -> &'static str {
                match self { $(Point::$point => $name,)* }
            }

            /// The stage that passes the point.
            pub const fn stage(self) -> &'static str {
                match self { $(Point::$point => $stage,)* }
            }

            /// Names of a record's values; an empty name has no value.
            pub const fn values(self) -> [&'static str; 2] {
                match self { $(Point::$point => [$one, $two],)* }
            }

            /// The meaning of a record of the point.
            pub const fn about(self) -> &'static str {
                match self { $(Point::$point => concat!($($about),*),)* }
            }
        }
    };
}

points! {
    /// A frame enters.
    Packet = "packet", "sequencer", ["bytes", "segment_bytes"];
    /// A host has written or read.
    Request = "request", "sequencer", ["written", "read"];
    /// A copy to a host's ring is done.
    Copied = "copied", "sequencer", ["landed", ""];
    /// The scheduler allows a flow to send.
    TransmitTurn = "transmit_turn", "sequencer", ["", ""];
    /// The scheduler allows a flow to acknowledge and to notify its host.
    AnnounceTurn = "announce_turn", "sequencer", ["asked", ""];
    /// A delayed acknowledgement may be due.
    Timer = "timer", "sequencer", ["", ""];
    /// The control plane reports a retransmission timeout.
    Retransmit = "retransmit", "sequencer", ["", ""];
    /// The control plane asks to look for losses, because time has passed.
    DetectLoss = "detect_loss", "sequencer", ["", ""];
    /// The control plane asks for a tail-loss probe.
    ProbeTail = "probe_tail", "sequencer", ["", ""];
    /// The control plane releases bytes that waited for more.
    Uncork = "release", "sequencer", ["", ""];
    /// Congestion control has processed a loss or a mark.
    Resume = "resume", "sequencer", ["", ""];
    /// The MSS changes.
    SetMss = "set_mss", "sequencer", ["mss", ""];
    /// Congestion control sets the window and the rate.
    Pace = "pace", "sequencer", ["window_bytes", "bytes_per_second"];
    /// A flow is frozen: it starts no new work.
    Freeze = "freeze", "sequencer", ["", ""];
    /// Entries and packets that wait when an entry enters.
    Occupancy = "occupancy", "sequencer", ["entries", "packets"];
    /// A frame is malformed. `cause` is a number.
    Malformed = "malformed", "pre", ["cause", ""];
    /// A packet goes to the control plane.
    Control = "control", "pre", ["bytes", ""];
    /// A segment goes on to the protocol stage.
    Segment = "segment", "pre", ["seq", "bytes"];
    /// Data is acknowledged.
    Acknowledged = "acknowledged", "protocol", ["bytes", "round_trip_ns"];
    /// The peer's acknowledgement echoes a congestion mark (ECE).
    MarkEchoed = "mark_echoed", "protocol", ["bytes", ""];
    /// The peer's window opens.
    WindowOpens = "window_opens", "protocol", ["", ""];
    /// A loss was detected without a timeout.
    FastRetransmit = "fast_retransmit", "protocol", ["", ""];
    /// A timeout retransmits data.
    Timeout = "timeout", "protocol", ["", ""];
    /// Bytes arrived in order.
    InOrder = "in_order", "protocol", ["position", "bytes"];
    /// Bytes arrived out of order.
    OutOfOrder = "out_of_order", "protocol", ["position", "bytes"];
    /// A segment was dropped. `cause` is a number.
    Dropped = "dropped", "protocol", ["cause", ""];
    /// A segment of a frozen flow was dropped.
    InFrozen = "in_frozen", "protocol", ["", ""];
    /// New data is sent.
    DataSent = "data_sent", "protocol", ["seq", "bytes"];
    /// Data is retransmitted.
    DataSentAgain = "data_sent_again", "protocol", ["seq", "bytes"];
    /// A turn to send ended without any data that could be sent.
    HeldBack = "held_back", "protocol", ["", ""];
    /// A closed window is probed.
    Probe = "probe", "protocol", ["seq", ""];
    /// An acknowledgement is sent without data.
    AckSent = "ack_sent", "protocol", ["ack", "window"];
    /// A congestion mark is echoed to the peer (ECE).
    EceSent = "ece_sent", "protocol", ["ack", ""];
    /// A reset is sent.
    RstSent = "rst_sent", "protocol", ["seq", ""];
    /// An acknowledgement is delayed, to be sent with data.
    Delayed = "delayed", "protocol", ["until_ns", ""];
    /// A delayed acknowledgement is sent.
    DelayedDue = "delayed_due", "protocol", ["", ""];
    /// A request names a connection that has ended.
    OldRequest = "old_request", "protocol", ["", ""];
    /// A request names another process's connection.
    ForeignRequest = "foreign_request", "protocol", ["", ""];
    /// A request has impossible values.
    WrongRequest = "wrong_request", "protocol", ["", ""];
    /// The headers of a segment are built.
    Sent = "sent", "post", ["payload_bytes", "segment_bytes"];
    /// A copy to a host's ring begins.
    CopyBegins = "copy_begins", "dma", ["position", "bytes"];
    /// A context is notified.
    Notified = "notified", "context", ["received", "acknowledged"];
    /// A SYN for a listener arrived.
    SynReceived = "syn_received", "control", ["remote_port", ""];
    /// A SYN or SYN-ACK is sent.
    SynSent = "syn_sent", "control", ["remote_port", "tries"];
    /// A connection is established.
    Established = "established", "control", ["mss", "has_ecn"];
    /// A timer of a connection is set. `kind` is a number.
    TimerSet = "timer_set", "control", ["kind", "at_ns"];
    /// A timer of a connection has expired.
    TimerFired = "timer_fired", "control", ["kind", "back_off"];
    /// The congestion window changes.
    Window = "window", "control", ["window_bytes", "threshold_bytes"];
    /// The congestion window is reduced: for a loss or a timeout if no bytes are marked.
    Reduced = "reduced", "control", ["window_bytes", "marked_bytes"];
    /// A connection is over.
    Leaves = "leaves", "control", ["has_failed", ""];
    /// A connection enters TIME_WAIT.
    TimeWait = "time_wait", "control", ["", ""];
}

// A reader selects points by the bits of a word.
const _: () = assert!(Point::ALL.len() <= 64);

/// One pass of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the record, counted from 0.
    pub number: u64,
    /// Time at which the point was passed.
    pub at: Nanos,
    /// The point.
    pub point: Point,
    /// The connection, if the record belongs to one.
    pub flow: Option<FlowId>,
    /// See [`Point::values`].
    pub values: [u64; 2],
}

/// Words of a record in the ring. The stamp is the record's number plus 1 once the rest is written.
#[derive(Debug, Default)]
struct Slot {
    stamp: AtomicU64,
    at: AtomicU64,
    /// Number of the point, and [`HAS_FLOW`] if there is a flow.
    point: AtomicU64,
    flow: AtomicU64,
    values: [AtomicU64; 2],
}

/// The stamp of a slot whose record is being written.
const BUSY: u64 = u64::MAX;
/// Set in a record with a flow.
const HAS_FLOW: u64 = 1 << 8;

/// A ring of records.
#[derive(Debug)]
pub struct Trace {
    ring: Arc<Ring>,
    /// The flow group that writes through this value; its ids of flows are translated to the agent's. `None`: one data path.
    group: Option<(Steering, u16)>,
}

#[derive(Debug)]
struct Ring {
    is_on: AtomicBool,
    next: AtomicU64,
    slots: Box<[Slot]>,
}

impl Trace {
    /// A ring of `records` records, with all points off. With 0 records, points cannot be turned on.
    pub fn new(records: usize) -> Trace {
        let slots = (0..records).map(|_| Slot::default()).collect();
        let ring = Ring { is_on: AtomicBool::new(false), next: AtomicU64::new(0), slots };
        Trace { ring: Arc::new(ring), group: None }
    }

    /// The same ring, for the data path of this flow group. Its records have the agent's ids of flows.
    pub fn of_group(&self, steering: Steering, group: u16) -> Trace {
        Trace { ring: Arc::clone(&self.ring), group: Some((steering, group)) }
    }

    /// Turns all points on or off.
    pub fn turn(&self, on: bool) {
        self.ring.is_on.store(on && !self.ring.slots.is_empty(), Ordering::Relaxed);
    }

    /// Whether points write records.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.ring.is_on.load(Ordering::Relaxed)
    }

    /// Writes a record, if points are on.
    #[inline(always)]
    pub fn put(&self, now: Nanos, point: Point, flow: Option<FlowId>, values: [u64; 2]) {
        if self.is_on() {
            self.write(now, point, flow, values);
        }
    }

    #[cold]
    fn write(&self, now: Nanos, point: Point, flow: Option<FlowId>, values: [u64; 2]) {
        let flow = match self.group {
            Some((steering, group)) => flow.map(|flow| steering.id(group, flow)),
            None => flow,
        };
        let number = self.ring.next.fetch_add(1, Ordering::Relaxed);
        let slot = &self.ring.slots[(number % self.ring.slots.len() as u64) as usize];
        // Another thread, a whole ring behind, is writing here: both records are lost.
        if slot.stamp.swap(BUSY, Ordering::Acquire) == BUSY {
            return;
        }
        fence(Ordering::Release);
        let has_flow = if flow.is_some() { HAS_FLOW } else { 0 };
        slot.at.store(now.0, Ordering::Relaxed);
        slot.point.store(point as u64 | has_flow, Ordering::Relaxed);
        slot.flow.store(flow.map_or(0, FlowId::to_word), Ordering::Relaxed);
        slot.values[0].store(values[0], Ordering::Relaxed);
        slot.values[1].store(values[1], Ordering::Relaxed);
        slot.stamp.store(number + 1, Ordering::Release);
    }

    /// Number of the next record, from which a reader starts.
    pub fn next(&self) -> u64 {
        self.ring.next.load(Ordering::Relaxed)
    }

    /// Reads records from number `from` on, and moves `from` past them. Returns how many were overwritten before they were
    /// read. Stops at a record that is being written.
    pub fn read(&self, from: &mut u64, mut take: impl FnMut(&Record)) -> u64 {
        let end = self.next();
        let oldest = end.saturating_sub(self.ring.slots.len() as u64);
        let mut lost = oldest.saturating_sub(*from);
        *from = (*from).max(oldest);
        while *from < end {
            let slot = &self.ring.slots[(*from % self.ring.slots.len() as u64) as usize];
            let stamp = slot.stamp.load(Ordering::Acquire);
            let record = slot.read(*from);
            fence(Ordering::Acquire);
            let is_whole = stamp == *from + 1 && slot.stamp.load(Ordering::Relaxed) == stamp;
            match record.filter(|_| is_whole) {
                Some(record) => take(&record),
                // The record is not written yet, or a newer one has taken its place.
                None if self.next() <= *from + self.ring.slots.len() as u64 => return lost,
                None => lost += 1,
            }
            *from += 1;
        }
        lost
    }
}

impl Slot {
    fn read(&self, number: u64) -> Option<Record> {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let point = word(&self.point);
        let flow = (point & HAS_FLOW != 0).then(|| FlowId::from_word(word(&self.flow)));
        let point = *Point::ALL.get((point % HAS_FLOW) as usize)?;
        let values = [word(&self.values[0]), word(&self.values[1])];
        Some(Record { number, at: Nanos(word(&self.at)), point, flow, values })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn points_have_unique_names_and_consecutive_numbers() {
        let names: BTreeSet<_> = Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
        assert!(Point::ALL.iter().enumerate().all(|(at, point)| *point as usize == at));
    }

    #[test]
    fn a_reader_gets_every_record_in_order_and_learns_how_many_it_lost() {
        let trace = Trace::new(8);
        let mut from = trace.next();
        let mut read = |trace: &Trace| {
            let mut values = Vec::new();
            let lost = trace.read(&mut from, |record| values.push(record.values[0]));
            (values, lost)
        };
        trace.put(Nanos(0), Point::Timer, None, [9, 9]);
        assert_eq!(read(&trace), (vec![], 0), "the trace is off");
        trace.turn(true);
        let flow = Some(FlowId { index: 3, generation: 7 });
        let put = |range: core::ops::Range<u64>| {
            range.for_each(|at| trace.put(Nanos(at), Point::InOrder, flow, [at, 0]));
        };
        put(0..5);
        assert_eq!(read(&trace), ((0..5).collect(), 0));
        put(5..25);
        assert_eq!(read(&trace), ((17..25).collect(), 12));
        assert_eq!(read(&trace), (vec![], 0));
        let mut whole = None;
        put(25..26);
        trace.read(&mut 25, |record| whole = Some(*record));
        let at = Nanos(25);
        let values = [25, 0];
        assert_eq!(whole, Some(Record { number: 25, at, point: Point::InOrder, flow, values }));
        trace.turn(false);
        put(26..27);
        assert_eq!(trace.next(), 26);
    }

    #[test]
    fn records_written_by_several_threads_are_whole() {
        const RECORDS: u64 = 20_000;
        let trace = Trace::new(64);
        trace.turn(true);
        let (mut from, mut taken) = (0, 0);
        std::thread::scope(|scope| {
            let writers = [0, 1, 2].map(|writer: u64| {
                let trace = &trace;
                scope.spawn(move || {
                    for at in 0..RECORDS {
                        let value = writer << 32 | at;
                        trace.put(Nanos(value), Point::Sent, None, [value, !value]);
                    }
                })
            });
            loop {
                let is_over = writers.iter().all(std::thread::ScopedJoinHandle::is_finished);
                trace.read(&mut from, |record| {
                    let [value, inverse] = record.values;
                    assert_eq!((record.at.0, inverse), (value, !value));
                    taken += 1;
                });
                if is_over {
                    break;
                }
            }
        });
        assert!(taken > 0);
    }

    #[test]
    fn a_trace_without_room_cannot_be_turned_on() {
        let trace = Trace::new(0);
        trace.turn(true);
        assert!(!trace.is_on());
    }
}
