//! Latencies by class, from the intended arrival to the end, recorded per core.
//!
//! Measured from when a request *should* have arrived, so that every delay shows, including the
//! generator's. Recording allocates no memory and does not wait.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use crate::arrivals::Mix;
use crate::cpu::monotonic_ns;
use crate::generator::Request;

/// Maximum recorded latency: higher latencies are recorded as this.
pub const LATENCY_MAX_NS: u64 = 10_000_000_000;

/// Significant decimal digits that a histogram keeps.
const DIGITS: u8 = 3;

/// Summary of a histogram, in nanoseconds; all zero if it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of recorded times.
    pub count: u64,
    pub min_ns: u64,
    /// Half were at most this long.
    pub p50_ns: u64,
    /// 90% were at most this long.
    pub p90_ns: u64,
    /// 99% were at most this long.
    pub p99_ns: u64,
    /// 99.9% were at most this long.
    pub p999_ns: u64,
    pub max_ns: u64,
    pub mean_ns: f64,
}

impl Latency {
    /// The summary of `histogram`, which counts nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        Latency {
            count: histogram.len(),
            min_ns: histogram.min(),
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
            mean_ns: histogram.mean(),
        }
    }
}

/// An empty histogram of nanoseconds up to [`LATENCY_MAX_NS`], with three significant digits.
/// All its memory is allocated at once; record with `saturating_record`.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS).expect("the bounds are valid")
}

/// `histogram` as text for a results file: HdrHistogram's V2 format, deflated, in base64, as all
/// of its implementations read it.
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).expect(
        "a histogram of this module fits its format, and writing to a vector does not fail",
    );
    BASE64.encode(bytes)
}

/// A text cannot be decoded as a histogram.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("the histogram is not base64: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("the histogram is not in HdrHistogram's V2 format: {0}")]
    Format(#[from] hdrhistogram::serialization::DeserializeError),
}

/// The histogram that [`encode`] wrote.
pub fn decode(text: &str) -> Result<Histogram<u64>, DecodeError> {
    let bytes = BASE64.decode(text)?;
    Ok(Deserializer::new().deserialize(&mut bytes.as_slice())?)
}

/// The time of a load point, on [`monotonic_ns`]'s clock. A request belongs to the part in which its
/// intended arrival falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Start of the load. Requests due earlier belong to a previous load.
    pub start_ns: u64,
    /// End of the warm-up, in nanoseconds.
    pub from_ns: u64,
    /// End of the load, in nanoseconds.
    pub to_ns: u64,
}

/// Records the outcome of every request, from the generator and from the threads that finish requests.
///
/// Each core (or thread) records into its own slot, whose lock no other thread takes while a load
/// runs. If it is held nevertheless (by a thread that was preempted while recording, and followed
/// by another on the same core), the next slot is used: recording never waits.
#[derive(Debug)]
pub struct Recorder {
    classes: Vec<String>,
    start_ns: AtomicU64,
    from_ns: AtomicU64,
    to_ns: AtomicU64,
    slots: Box<[Slot]>,
    submitted: Submitted,
    unrecorded: AtomicU64,
}

/// Aligned to two cache lines, as processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Slot(Mutex<Tally>);

#[derive(Debug)]
struct Tally {
    latencies: Vec<Histogram<u64>>,
    done: u64,
    finished_within: u64,
    in_warm_up: u64,
    stale: u64,
}

/// The generator's counts; one thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Submitted {
    sent: AtomicU64,
    refused: AtomicU64,
    accepted_in_all: AtomicU64,
}

/// All records of one load point.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Each class's name and latencies, in the order of [`Mix::names`].
    pub classes: Vec<(String, Histogram<u64>)>,
    /// Requests due after the warm-up, refused ones included.
    pub sent: u64,
    /// Those of `sent` that the server refused.
    pub refused: u64,
    /// Those of `sent` that were done.
    pub done: u64,
    /// Requests that ended between the warm-up's end and the load's, whenever they were due.
    pub finished_within: u64,
    /// Requests due in the warm-up that were done: their latencies are not in the histograms.
    pub in_warm_up: u64,
    /// Requests of a previous load that ended during this one.
    pub stale: u64,
    /// Requests that were done but could not be recorded, because all slots were held.
    pub unrecorded: u64,
    /// Requests that were accepted and had not ended when this was collected.
    pub outstanding: u64,
}

impl Recorder {
    /// A recorder for the classes of `mix` with `slots` slots, one per core or thread that
    /// finishes requests. Takes about 200 KB per slot and class.
    ///
    /// # Panics
    ///
    /// If `slots` is 0.
    pub fn new(mix: &Mix, slots: usize) -> Recorder {
        assert!(slots > 0, "a recorder needs a slot");
        let classes = mix.names().to_vec();
        let slot = || {
            Slot(Mutex::new(Tally {
                latencies: classes.iter().map(|_| histogram()).collect(),
                done: 0,
                finished_within: 0,
                in_warm_up: 0,
                stale: 0,
            }))
        };
        Recorder {
            slots: (0..slots).map(|_| slot()).collect(),
            classes,
            start_ns: AtomicU64::new(0),
            from_ns: AtomicU64::new(0),
            to_ns: AtomicU64::new(0),
            submitted: Submitted::default(),
            unrecorded: AtomicU64::new(0),
        }
    }

    /// Clears all records and starts a load point. The generator calls this before its first request.
    /// Requests still outstanding from before are recognized by their intended arrival.
    pub fn open(&self, window: Window) {
        self.start_ns.store(window.start_ns, Relaxed);
        self.from_ns.store(window.from_ns, Relaxed);
        self.to_ns.store(window.to_ns, Relaxed);
        for slot in &self.slots {
            let mut tally = lock(slot);
            tally.latencies.iter_mut().for_each(Histogram::reset);
            tally.done = 0;
            tally.finished_within = 0;
            tally.in_warm_up = 0;
            tally.stale = 0;
        }
        self.submitted.sent.store(0, Relaxed);
        self.submitted.refused.store(0, Relaxed);
        self.submitted.accepted_in_all.store(0, Relaxed);
        self.unrecorded.store(0, Relaxed);
    }

    /// Ends the load at this time, before the end of its window.
    pub fn end_early(&self, to_ns: u64) {
        self.to_ns.store(to_ns, Relaxed);
    }

    /// Whether a request due at this time counts, because it is after the warm-up.
    #[inline]
    pub fn counts(&self, intended_ns: u64) -> bool {
        intended_ns >= self.from_ns.load(Relaxed)
    }

    /// Counts a submitted request. Called only by the generator's thread.
    #[inline]
    pub fn submitted(&self, request: &Request, refused: bool) {
        let add = |counter: &AtomicU64| counter.store(counter.load(Relaxed) + 1, Relaxed);
        if !refused {
            add(&self.submitted.accepted_in_all);
        }
        if request.intended_ns >= self.from_ns.load(Relaxed) {
            add(&self.submitted.sent);
            if refused {
                add(&self.submitted.refused);
            }
        }
    }

    /// Records that `request` ends now, on the core or thread to which `slot` belongs.
    #[inline]
    pub fn done(&self, slot: usize, request: &Request) {
        self.done_at(slot, request, monotonic_ns());
    }

    /// Records that `request` ended at `finished_ns` on [`monotonic_ns`]'s clock. Returns whether its latency is in the
    /// histograms: it is if the request was due after the warm-up.
    ///
    /// # Panics
    ///
    /// If the request's class is not one of the mix that the recorder was made for.
    #[inline]
    pub fn done_at(&self, slot: usize, request: &Request, finished_ns: u64) -> bool {
        let class = usize::from(request.class.0);
        assert!(class < self.classes.len(), "a class of the recorder's mix");
        let Some(mut tally) = self.free_slot(slot) else {
            self.unrecorded.fetch_add(1, Relaxed);
            return false;
        };
        if request.intended_ns < self.start_ns.load(Relaxed) {
            tally.stale += 1;
            return false;
        }
        let from_ns = self.from_ns.load(Relaxed);
        if (from_ns..self.to_ns.load(Relaxed)).contains(&finished_ns) {
            tally.finished_within += 1;
        }
        if request.intended_ns < from_ns {
            tally.in_warm_up += 1;
            return false;
        }
        tally.done += 1;
        let latency_ns = finished_ns.saturating_sub(request.intended_ns);
        tally.latencies[class].saturating_record(latency_ns);
        true
    }

    /// Requests that were accepted and have not ended.
    pub fn outstanding(&self) -> u64 {
        let ended: u64 = self
            .slots
            .iter()
            .map(|slot| {
                let tally = lock(slot);
                tally.done + tally.in_warm_up
            })
            .sum();
        let accepted = self.submitted.accepted_in_all.load(Relaxed);
        accepted.saturating_sub(ended + self.unrecorded.load(Relaxed))
    }

    /// Waits until every accepted request has ended, or until none has ended for `limit`, and returns the
    /// number that has not. Only for use after a load: it reads all slots every millisecond.
    pub fn drain(&self, limit: Duration) -> u64 {
        let began = Instant::now();
        self.drain_by(limit, || {
            std::thread::sleep(Duration::from_millis(1));
            began.elapsed()
        })
    }

    /// `wait` sleeps for a while and returns the time since the beginning.
    fn drain_by(&self, limit: Duration, mut wait: impl FnMut() -> Duration) -> u64 {
        let (mut least, mut since, mut now) = (u64::MAX, Duration::ZERO, Duration::ZERO);
        loop {
            let outstanding = self.outstanding();
            if outstanding < least {
                (least, since) = (outstanding, now);
            }
            if outstanding == 0 || now - since >= limit {
                return outstanding;
            }
            now = wait();
        }
    }

    /// All records since [`open`](Recorder::open), over all slots.
    pub fn collect(&self) -> Recorded {
        let mut recorded = Recorded {
            classes: self.classes.iter().map(|name| (name.clone(), histogram())).collect(),
            sent: self.submitted.sent.load(Relaxed),
            refused: self.submitted.refused.load(Relaxed),
            done: 0,
            finished_within: 0,
            in_warm_up: 0,
            stale: 0,
            unrecorded: self.unrecorded.load(Relaxed),
            outstanding: self.outstanding(),
        };
        for slot in &self.slots {
            let tally = lock(slot);
            for ((_, all), latencies) in recorded.classes.iter_mut().zip(&tally.latencies) {
                all.add(latencies).expect("the bounds are the same");
            }
            recorded.done += tally.done;
            recorded.finished_within += tally.finished_within;
            recorded.in_warm_up += tally.in_warm_up;
            recorded.stale += tally.stale;
        }
        recorded
    }

    /// The given slot if it is free, otherwise the next free one; each is tried once.
    #[inline]
    fn free_slot(&self, slot: usize) -> Option<MutexGuard<'_, Tally>> {
        (0..self.slots.len()).find_map(|offset| {
            match self.slots[(slot + offset) % self.slots.len()].0.try_lock() {
                Ok(tally) => Some(tally),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        })
    }
}

/// Locks a slot. Its counts stay correct if a thread panics while holding it: each update is one addition.
fn lock(slot: &Slot) -> MutexGuard<'_, Tally> {
    slot.0.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arrivals::Class;

    const WINDOW: Window = Window { start_ns: 1_000, from_ns: 2_000, to_ns: 10_000 };

    fn request(class: u8, intended_ns: u64) -> Request {
        Request { id: 0, class: Class(class), intended_ns, key: 0 }
    }

    /// On a machine with a load of 10 the queue of a crash run took longer than the limit, although requests kept ending: 1,300 to
    /// 2,800 of them were reported as lost.
    #[test]
    fn slowly_moving_queue_is_drained_and_a_stuck_one_is_given_up() {
        const LIMIT: Duration = Duration::from_secs(10);
        let recorder = Recorder::new(&Mix::get_and_range(), 1);
        recorder.open(WINDOW);
        for _ in 0..5 {
            recorder.submitted(&request(0, 5_000), false);
        }
        let mut now = Duration::ZERO;
        let mut ends = 3;
        let mut step = |recorder: &Recorder| {
            if ends > 0 {
                ends -= 1;
                recorder.done_at(0, &request(0, 5_000), 6_000);
            }
            now += LIMIT * 9 / 10;
            now
        };
        assert_eq!(recorder.drain_by(LIMIT, || step(&recorder)), 2, "these never end");
        recorder.done_at(0, &request(0, 5_000), 6_000);
        recorder.done_at(0, &request(0, 5_000), 6_000);
        assert_eq!(recorder.drain_by(LIMIT, || unreachable!("nothing is left")), 0);
    }

    proptest! {
        // The oracle keeps every latency and sorts.
        #[test]
        fn recorded_latencies_match_the_requests(
            ends in prop::collection::vec((0u8..2, 0usize..6, 0u64..12_000, 0u64..5_000_000), 0..400),
        ) {
            let recorder = Recorder::new(&Mix::get_and_range(), 3);
            recorder.open(WINDOW);
            let mut expected = [Vec::new(), Vec::new()];
            let (mut within, mut warm_up, mut stale) = (0, 0, 0);
            for &(class, slot, intended_ns, latency_ns) in &ends {
                let finished_ns = intended_ns + latency_ns;
                recorder.submitted(&request(class, intended_ns), false);
                let counts = recorder.done_at(slot, &request(class, intended_ns), finished_ns);
                prop_assert_eq!(counts, intended_ns >= WINDOW.from_ns);
                if intended_ns < WINDOW.start_ns {
                    stale += 1;
                    continue;
                }
                within += u64::from((WINDOW.from_ns..WINDOW.to_ns).contains(&finished_ns));
                if intended_ns < WINDOW.from_ns {
                    warm_up += 1;
                } else {
                    expected[usize::from(class)].push(latency_ns);
                }
            }
            let recorded = recorder.collect();
            let sent = (expected[0].len() + expected[1].len()) as u64;
            prop_assert_eq!((recorded.sent, recorded.done, recorded.refused), (sent, sent, 0));
            prop_assert_eq!(
                (recorded.finished_within, recorded.in_warm_up, recorded.stale),
                (within, warm_up, stale)
            );
            prop_assert_eq!(recorded.unrecorded, 0);
            for ((_, histogram), mut latencies) in recorded.classes.iter().zip(expected) {
                latencies.sort_unstable();
                let latency = Latency::of(histogram);
                prop_assert_eq!(latency.count, latencies.len() as u64);
                if latencies.is_empty() {
                    prop_assert_eq!(latency, Latency::default());
                    continue;
                }
                let rank = (latencies.len() as f64 * 0.99).ceil() as usize;
                let p99_ns = latencies[rank - 1];
                prop_assert!(latency.p99_ns >= p99_ns, "{} < {}", latency.p99_ns, p99_ns);
                prop_assert!(latency.p99_ns <= p99_ns + p99_ns / 1_000 + 1);
            }
        }

        #[test]
        fn a_histogram_round_trips_through_a_results_file(
            values in prop::collection::vec(0u64..20_000_000_000, 0..200),
        ) {
            let mut original = histogram();
            values.iter().for_each(|&value| original.saturating_record(value));
            let back = decode(&encode(&original)).unwrap();
            prop_assert_eq!(back, original);
        }
    }

    #[test]
    fn refused_and_unfinished_requests_are_counted_separately() {
        let recorder = Recorder::new(&Mix::get_only(), 1);
        recorder.open(WINDOW);
        recorder.submitted(&request(0, 1_500), false);
        recorder.submitted(&request(0, 1_600), true);
        recorder.submitted(&request(0, 2_500), false);
        recorder.submitted(&request(0, 2_600), true);
        assert_eq!(recorder.outstanding(), 2);
        recorder.done_at(0, &request(0, 1_500), 1_700);
        assert_eq!(recorder.drain(Duration::ZERO), 1);
        recorder.done_at(0, &request(0, 2_500), 20_000_000_000);
        let recorded = recorder.collect();
        assert_eq!((recorded.sent, recorded.refused, recorded.done), (2, 1, 1));
        assert_eq!((recorded.outstanding, recorded.finished_within), (0, 0));
        assert!(recorded.classes[0].1.max() >= LATENCY_MAX_NS);
    }

    #[test]
    fn a_held_slot_is_skipped() {
        let recorder = Recorder::new(&Mix::get_only(), 2);
        recorder.open(WINDOW);
        let held = recorder.slots[1].0.lock().unwrap();
        recorder.done_at(1, &request(0, 3_000), 4_000);
        let other = recorder.slots[0].0.lock().unwrap();
        recorder.done_at(1, &request(0, 3_000), 4_000);
        drop((held, other));
        let recorded = recorder.collect();
        assert_eq!((recorded.done, recorded.unrecorded), (1, 1));
    }

    #[test]
    fn opening_clears_all_counts() {
        let recorder = Recorder::new(&Mix::get_only(), 2);
        recorder.open(WINDOW);
        recorder.submitted(&request(0, 3_000), true);
        recorder.done_at(0, &request(0, 3_000), 4_000);
        recorder.open(WINDOW);
        let recorded = recorder.collect();
        assert_eq!((recorded.sent, recorded.refused, recorded.done), (0, 0, 0));
        assert!(recorded.classes[0].1.is_empty());
    }

    #[test]
    fn a_broken_histogram_is_an_error() {
        assert!(matches!(decode("?"), Err(DecodeError::Base64(_))));
        assert!(matches!(decode("AAAA"), Err(DecodeError::Format(_))));
    }
}
