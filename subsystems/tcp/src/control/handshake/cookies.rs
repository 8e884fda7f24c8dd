//! SYN cookies (RFC 4987, 3.6; docs/adr/0083): if a SYN finds no room among the handshakes, our answer carries what we must know,
//! and nothing is kept. The acknowledgement brings it back.
//!
//! The initial sequence number has 27 bits of a keyed hash, 2 of the time, and 3 for the peer's MSS. The other options fit into
//! the timestamp, which the peer echoes; without timestamps, the connection has neither window scale nor SACK nor ECN.

use wave_core::clock::Nanos;

use super::super::ecn::Agreement;
use super::super::reply::{self, Bare};
use super::super::{Output, Stack};
use super::{For, Handshake, MSS_DEFAULT, MSS_MIN, Stage};
use crate::datapath::{Datapath, Tuple};
use crate::packet::{Flags, MacAddress, Options, SCALE_MAX, TcpSegment};
use crate::seq::Seq;
use crate::stages::acknowledge::milliseconds;
use crate::trace::Point;

/// A cookie is valid in the period in which it was sent and in the next one, for 64 to 128 s.
const PERIOD: Nanos = Nanos::from_millis(64_000);
/// The values of the peer's MSS that a cookie can hold. A larger MSS counts as the next smaller of these.
const MSS: [u16; 8] = [MSS_MIN, MSS_DEFAULT, 1220, 1360, 1400, 1440, 1460, 8960];
const MSS_BITS: u32 = 3;
const PERIOD_BITS: u32 = 2;
/// Bits of the timestamp that hold options.
const STAMP_BITS: u32 = 10;
/// A window scale in the timestamp that means none.
const NO_SCALE: u32 = 15;

/// Options in the low bits of a timestamp: both sides' window scales, SACK, and ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamped {
    theirs: Option<u8>,
    ours: u8,
    sack: bool,
    ecn: bool,
}

impl Stamped {
    fn bits(self) -> u32 {
        let theirs = self.theirs.map_or(NO_SCALE, |scale| scale.min(SCALE_MAX).into());
        theirs << 6 | u32::from(self.ours) << 2 | u32::from(self.sack) << 1 | u32::from(self.ecn)
    }

    fn from_bits(bits: u32) -> Stamped {
        let scale = |shift: u32| bits >> shift & 15;
        Stamped {
            theirs: (scale(6) != NO_SCALE).then_some(scale(6) as u8),
            ours: scale(2).min(SCALE_MAX.into()) as u8,
            sack: bits & 2 != 0,
            ecn: bits & 1 != 0,
        }
    }

    /// The latest time, at most `now`, whose low bits hold the options: later segments must not have an older timestamp.
    fn into_time(self, now: u32) -> u32 {
        let stamped = now >> STAMP_BITS << STAMP_BITS | self.bits();
        if stamped > now { stamped.wrapping_sub(1 << STAMP_BITS) } else { stamped }
    }
}

/// The number of the period at `now`.
fn period(now: Nanos) -> u32 {
    (now.0 / PERIOD.0) as u32
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    fn cookie(&self, tuple: &Tuple, peer: Seq, period: u32, mss: usize) -> Seq {
        let low = (period % (1 << PERIOD_BITS)) << MSS_BITS | mss as u32;
        let keyed = self.secrets.cookie(tuple, peer, period, low);
        Seq(keyed << (MSS_BITS + PERIOD_BITS) | low)
    }

    /// Answers a SYN for which there is no room. `handshake` is what would have been kept.
    pub(super) fn answer_with_cookie(
        &mut self,
        now: Nanos,
        at: usize,
        tuple: &Tuple,
        handshake: Handshake,
    ) {
        // The number of a cookie does not follow those of a connection that has just ended (RFC 9293, MAY-2).
        if self.time_wait.find(tuple).is_some() {
            self.counters.full += 1;
            return;
        }
        let theirs = handshake.options;
        let mss = theirs.mss.unwrap_or(MSS_DEFAULT);
        let mss = MSS.iter().rposition(|value| *value <= mss).unwrap_or(0);
        let sack = self.data.is_selective() && theirs.sack_permitted;
        let ecn = handshake.ecn.answer();
        let has_ecn = ecn != Flags::NONE;
        let stamped = Stamped { theirs: theirs.scale, ours: handshake.scale, sack, ecn: has_ecn };
        let offset = self.secrets.timestamp(tuple);
        let stamp = stamped.into_time(milliseconds(now)).wrapping_add(offset);
        let has_stamp = theirs.timestamps.is_some();
        let bare = Bare {
            seq: self.cookie(tuple, handshake.peer, period(now), mss),
            ack: Some(handshake.peer.plus(1)),
            flags: Flags::SYN | if has_stamp { ecn } else { Flags::NONE },
            window: handshake.own_window(true),
            options: Options {
                mss: Some(self.own_mss(tuple, &handshake)),
                scale: (has_stamp && theirs.scale.is_some()).then_some(handshake.scale),
                timestamps: theirs.timestamps.map(|(value, _)| (stamp, value)),
                sack_permitted: has_stamp && sack,
                ..Options::default()
            },
        };
        self.counters.cookies_sent += 1;
        self.listeners[at].cookie_sent_at = Some(now);
        self.trace.put(now, Point::SynSent, None, [tuple.remote.port().into(), 0]);
        let macs = (self.address.mac, handshake.mac);
        self.out.push_back(Output::Send(reply::segment(macs, tuple, &bare)));
    }

    /// The handshake that a segment completes, if it acknowledges a valid cookie.
    pub(in crate::control) fn cookie_in(
        &mut self,
        now: Nanos,
        tuple: &Tuple,
        mac: MacAddress,
        segment: &TcpSegment,
    ) -> Option<Handshake> {
        let own = segment.ack?.minus(1);
        // A guessed cookie is worth nothing while none was sent.
        let was_sent = self.listeners.iter().any(|one| {
            super::super::is_at(one.local, tuple.local)
                && one.cookie_sent_at.is_some_and(|at| period(now) - period(at) <= 1)
        });
        if !was_sent {
            return None;
        }
        let peer = segment.seq.minus(1);
        let mss = (own.0 % (1 << MSS_BITS)) as usize;
        let is_valid = |period| self.cookie(tuple, peer, period, mss) == own;
        if ![period(now), period(now).saturating_sub(1)].into_iter().any(is_valid) {
            self.counters.cookies_failed += 1;
            return None;
        }
        self.counters.cookies_received += 1;
        let at = self.place(tuple.local)?;
        let listener = &self.listeners[at];
        let whom = For::Listener { process: listener.context.process, name: listener.name };
        let mss_max = listener.mss_max;
        let window_bytes = listener.slots.front().map_or(0, |slot| slot.window_bytes());
        let timestamps = segment.options.timestamps.filter(|_| self.has_timestamps);
        let stamped = timestamps
            .map(|(_, echo)| Stamped::from_bits(echo.wrapping_sub(self.secrets.timestamp(tuple))));
        let ecn = if stamped.is_some_and(|stamped| stamped.ecn) {
            Flags::ECE | Flags::CWR
        } else {
            Flags::NONE
        };
        Some(Handshake {
            whom,
            stage: Stage::Received,
            mac,
            own,
            peer,
            options: Options {
                mss: Some(MSS[mss]),
                scale: stamped.and_then(|stamped| stamped.theirs),
                timestamps,
                sack_permitted: stamped.is_some_and(|stamped| stamped.sack),
                ..Options::default()
            },
            window: segment.window,
            scale: stamped.map_or(0, |stamped| stamped.ours),
            window_bytes,
            mss_max,
            tries: 1,
            sent_at: now,
            error: None,
            answered_at: None,
            ecn: Agreement::with(ecn),
            // Nothing tells how long the answer took.
            is_repeated: true,
        })
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn every_combination_of_options_survives_in_a_timestamp_that_is_not_later_than_now() {
        for bits in 0..1 << STAMP_BITS {
            let stamped = Stamped::from_bits(bits);
            for now in [0, 1, 1023, 1024, 5_000_000, u32::MAX] {
                let time = stamped.into_time(now);
                assert_eq!(Stamped::from_bits(time), stamped);
                assert!((1..=1 << STAMP_BITS).contains(&now.wrapping_sub(time).wrapping_add(1)));
            }
        }
    }
}
