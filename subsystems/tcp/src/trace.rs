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

/// Description of a trace point, for readers.
#[derive(Debug, PartialEq, Eq)]
pub struct PointInfo {
    /// Name of the point.
    pub name: &'static str,
    /// The stage that passes the point.
    pub stage: &'static str,
    /// Names of a record's values; an empty name has no value.
    pub values: [&'static str; 2],
    /// The meaning of a record.
    pub about: &'static str,
}

/// A trace point of the control plane, or of a data path.
pub trait TracePoint: Copy {
    /// Number of the point in records. The control plane's points have the first numbers, and a data path's follow.
    fn number(self) -> u8;
}

/// Defines the trace points of a part, whose first number is `$first`.
macro_rules! points {
    ($(#[$attribute:meta])* $visible:vis enum $Point:ident from $first:expr; $($(#[doc = $about:literal])* $point:ident = $name:literal, $stage:literal, [$one:literal, $two:literal];)*) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        $visible enum $Point { $($(#[doc = $about])* $point,)* }

        impl $Point {
            /// Descriptions of all points, in the order of their numbers.
            $visible const ALL_INFO: &'static [$crate::trace::PointInfo] = &[$($crate::trace::PointInfo {
                name: $name,
                stage: $stage,
                values: [$one, $two],
                about: concat!($($about),*).trim_ascii(),
            },)*];
        }

        // A record has 8 bits for the number.
        const _: () = assert!($first + $Point::ALL_INFO.len() <= 256);

        impl $crate::trace::TracePoint for $Point {
            #[inline(always)]
            fn number(self) -> u8 {
                $first as u8 + self as u8
            }
        }
    };
}

pub(crate) use points;

points! {
    /// A point of the control plane.
    pub enum Point from 0;
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

/// The description of the point with this number, over a data path with the points `data`.
pub fn describe(number: u8, data: &'static [PointInfo]) -> Option<&'static PointInfo> {
    Point::ALL_INFO.iter().chain(data).nth(number.into())
}

/// One pass of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the record, counted from 0.
    pub number: u64,
    /// Time at which the point was passed.
    pub at: Nanos,
    /// [Number](TracePoint::number) of the point.
    pub point: u8,
    /// The connection, if the record belongs to one.
    pub flow: Option<FlowId>,
    /// See [`PointInfo::values`].
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
    pub fn put(&self, now: Nanos, point: impl TracePoint, flow: Option<FlowId>, values: [u64; 2]) {
        if self.is_on() {
            self.write(now, point.number(), flow, values);
        }
    }

    #[cold]
    fn write(&self, now: Nanos, point: u8, flow: Option<FlowId>, values: [u64; 2]) {
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
        slot.point.store(u64::from(point) | has_flow, Ordering::Relaxed);
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
            if is_whole {
                take(&record);
            } else if self.next() <= *from + self.ring.slots.len() as u64 {
                // The record is not written yet.
                return lost;
            } else {
                // A newer one has taken its place.
                lost += 1;
            }
            *from += 1;
        }
        lost
    }
}

impl Slot {
    fn read(&self, number: u64) -> Record {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let point = word(&self.point);
        let flow = (point & HAS_FLOW != 0).then(|| FlowId::from_word(word(&self.flow)));
        let values = [word(&self.values[0]), word(&self.values[1])];
        let point = (point % HAS_FLOW) as u8;
        Record { number, at: Nanos(word(&self.at)), point, flow, values }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;
    use crate::datapaths::DatapathKind;
    use crate::pipeline;

    #[test]
    fn points_have_unique_names_and_the_numbers_by_which_they_are_described() {
        for kind in DatapathKind::ALL {
            let all: Vec<_> = Point::ALL_INFO.iter().chain(kind.points()).collect();
            let names: BTreeSet<_> = all.iter().map(|point| point.name).collect();
            assert_eq!(names.len(), all.len());
            for (number, point) in (0..).zip(&all) {
                assert_eq!(describe(number, kind.points()), Some(*point));
            }
        }
        let (first, last) = (Point::SynReceived, pipeline::Point::Notified);
        let described = |number| describe(number, pipeline::Point::ALL_INFO).unwrap().name;
        assert_eq!(described(first.number()), "syn_received");
        assert_eq!(described(last.number()), "notified");
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
        trace.put(Nanos(0), Point::TimeWait, None, [9, 9]);
        assert_eq!(read(&trace), (vec![], 0), "the trace is off");
        trace.turn(true);
        let flow = Some(FlowId { index: 3, generation: 7 });
        let put = |range: core::ops::Range<u64>| {
            range.for_each(|at| trace.put(Nanos(at), Point::Window, flow, [at, 0]));
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
        let (point, values) = (Point::Window.number(), [25, 0]);
        assert_eq!(whole, Some(Record { number: 25, at, point, flow, values }));
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
                        trace.put(Nanos(value), Point::Leaves, None, [value, !value]);
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
