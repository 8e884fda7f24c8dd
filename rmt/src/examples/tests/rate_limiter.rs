use std::vec::Vec;

use proptest::prelude::*;

use super::{Both, frame, starts};
use crate::examples::rate_limiter::{ARRIVALS, BURST, NOW, RATE_LIMITER, RATES, SKEW, SLOTS, rate};
use crate::{Constant, Gress, Phv, Pipeline};

struct RateLimiter;
impl Constant for RateLimiter {
    const PIPELINE: Pipeline<'static> = RATE_LIMITER;
}

const FIRST_DESTINATION: u32 = 0x0a01_0000;

/// A switch with destinations, numbered from 0.
struct Switch(Both<RateLimiter>);

impl Switch {
    /// Limits a destination for each interval. They have been silent for longer than a burst before `start`.
    fn new(intervals: &[u32], start: u64) -> Switch {
        let mut both = Both::new();
        both.control(|state| {
            for (slot, interval) in (0..).zip(intervals) {
                let destination = FIRST_DESTINATION + u32::from(slot);
                let (key, entry) = rate(destination, slot, *interval).unwrap();
                state.insert(Gress::Ingress, RATES, key, entry).unwrap();
                let last = (start as u32).wrapping_sub(2 * BURST);
                state.write(ARRIVALS, slot.into(), [last, 0]).unwrap();
            }
        });
        Switch(both)
    }

    /// Receives a packet at a time, in microseconds since the clock started; the clock has the lowest 32 bits. Returns whether the
    /// packet passes.
    fn receive(&mut self, destination: u32, now: u64) -> bool {
        let mut frame = frame(7);
        frame[30..34].copy_from_slice(&(FIRST_DESTINATION + destination).to_be_bytes());
        let (_, verdict) = self.0.receive(&frame, Phv::default().with(NOW, now as u32));
        !verdict.is_dropped
    }
}

/// The algorithm in its other form, virtual scheduling, with a clock of 64 bits.
struct VirtualScheduling {
    interval: u64,
    theoretical: u64,
    last: u64,
}

impl VirtualScheduling {
    fn receive(&mut self, stamp: u64) -> bool {
        let now = stamp.max(self.last);
        self.last = now;
        let theoretical = self.theoretical.max(now);
        let passes = theoretical - now <= u64::from(BURST);
        if passes {
            self.theoretical = theoretical + self.interval;
        }
        passes
    }
}

fn intervals() -> impl Strategy<Value = u32> {
    prop_oneof![1 => 0..=BURST, 3 => BURST / 20..=BURST, 1 => Just(BURST)]
}

/// Times between packets, to any destination. All together are shorter than the clock's period.
fn pauses() -> impl Strategy<Value = u64> {
    let pauses = prop_oneof![
        3 => 0..=20u32,
        3 => 0..=BURST / 4,
        1 => 0..=2 * BURST,
        1 => 0..=1u32 << 24,
    ];
    pauses.prop_map(u64::from)
}

proptest! {
    /// Two destinations have rates, and a third has none.
    #[test]
    fn packets_pass_as_in_virtual_scheduling(
        start in starts(),
        intervals in [intervals(), intervals()],
        packets in prop::collection::vec((0..3u32, pauses(), 0..=u64::from(SKEW)), 1..200),
    ) {
        let start = start + u64::from(SKEW);
        let mut switch = Switch::new(&intervals, start);
        let mut models = intervals.map(|interval| VirtualScheduling {
            interval: interval.into(),
            theoretical: 0,
            last: 0,
        });
        let mut now = start;
        for (destination, pause, skew) in packets {
            now += pause;
            let stamp = now - skew;
            let expected = match models.get_mut(destination as usize) {
                Some(model) => model.receive(stamp),
                None => true,
            };
            prop_assert_eq!(switch.receive(destination, stamp), expected);
        }
        switch.0.assert_same_state();
    }

    #[test]
    fn within_any_time_no_more_than_rate_and_burst_pass(
        start in starts(),
        interval in intervals(),
        pauses in prop::collection::vec(pauses(), 1..200),
    ) {
        let mut switch = Switch::new(&[interval], start);
        let mut now = start;
        let mut passed = Vec::new();
        for pause in pauses {
            now += pause;
            if switch.receive(0, now) {
                passed.push(now);
            }
        }
        for (first, from) in passed.iter().enumerate() {
            for (more, to) in passed[first..].iter().enumerate() {
                prop_assert!(more as u64 * u64::from(interval) <= to - from + u64::from(BURST));
            }
        }
    }

    /// Packet `n` comes at `n` intervals, or later by up to the burst.
    #[test]
    fn conforming_packets_are_never_dropped(
        start in starts(),
        interval in intervals(),
        delays in prop::collection::vec(prop_oneof![0..=BURST, Just(0), Just(BURST)], 1..200),
    ) {
        let mut switch = Switch::new(&[interval], start);
        let mut now = start;
        for (n, delay) in (0..).zip(delays) {
            now = now.max(start + n * u64::from(interval) + u64::from(delay));
            prop_assert!(switch.receive(0, now), "packet {}", n);
        }
    }

    #[test]
    fn a_destination_with_too_many_packets_gets_its_rate(
        start in starts(),
        interval in BURST / 20..=BURST,
        share in 2..20u32,
    ) {
        let mut switch = Switch::new(&[interval], start);
        let time = 100 * u64::from(interval);
        let step = (interval / share) as usize;
        let passed = (start..=start + time).step_by(step).filter(|now| switch.receive(0, *now));
        let passed = passed.count() as u64;
        prop_assert!(passed >= time / u64::from(interval), "{passed}");
        prop_assert!((passed - 1) * u64::from(interval) <= time + u64::from(BURST), "{passed}");
    }
}

/// Times at which a destination that sends too much gets packets through, from a start.
fn passed(start: u64) -> Vec<u64> {
    let mut switch = Switch::new(&[BURST / 10], start);
    let step = u64::from(BURST / 30);
    (0..200).map(|n| n * step).filter(|time| switch.receive(0, start + time)).collect()
}

#[test]
fn clock_wrap_changes_no_verdict() {
    let expected = passed(1 << 30);
    assert!((70..100).contains(&expected.len()), "{expected:?}");
    for edge in [1 << 31, 1 << 32] {
        for before in (0..400_000).step_by(997) {
            assert_eq!(passed(edge - before), expected, "{before} before {edge}");
        }
    }
}

#[test]
fn a_destination_that_was_silent_for_long_is_not_limited() {
    let (period, half, skew) = (1u64 << 32, 1u64 << 31, u64::from(SKEW));
    let passes_after = |start: u64, silence: u64| {
        let mut switch = Switch::new(&[BURST], start);
        assert!(switch.receive(0, start) && switch.receive(0, start));
        assert!(!switch.receive(0, start));
        switch.receive(0, start + silence)
    };
    for start in [5, half + 5] {
        for silence in [half - 1, half, half + 1, half + 2 * u64::from(BURST), period - skew - 1] {
            assert!(passes_after(start, silence), "{silence} from {start}");
        }
        // To the clock, no time has passed.
        assert!(!passes_after(start, period), "from {start}");
    }
}

#[test]
fn a_packet_stamped_before_the_last_one_does_not_drain_the_lead() {
    let start = 1 << 31;
    let mut switch = Switch::new(&[BURST], start);
    assert!(switch.receive(0, start) && switch.receive(0, start));
    for skew in [1, u64::from(SKEW)] {
        assert!(!switch.receive(0, start - skew), "{skew}");
    }
    // Nor did it set the time back.
    assert!(!switch.receive(0, start + u64::from(BURST) - 1));
    assert!(switch.receive(0, start + u64::from(BURST)));
}

#[test]
fn rates_that_the_limiter_cannot_keep_are_refused() {
    assert!(rate(1, 0, BURST).is_some() && rate(1, 0, BURST + 1).is_none());
    let last = SLOTS as u16 - 1;
    assert!(rate(1, last, 1).is_some() && rate(1, last + 1, 1).is_none());
}
