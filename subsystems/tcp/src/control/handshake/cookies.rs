//! SYN cookies (RFC 4987, 3.6; docs/adr/0083): if a SYN finds no room among the handshakes, the SYN-ACK encodes the handshake, and
//! no entry is kept. The peer's acknowledgement returns it.
//!
//! The initial sequence number has 28 bits of a keyed hash, and 4 for the peer's MSS. The other options fit into the timestamp,
//! which the peer echoes; without timestamps, the connection has neither window scale nor SACK nor ECN.

use wave_core::clock::Nanos;

use super::super::ecn::EcnNegotiation;
use super::super::reply::{self, BareSegment};
use super::super::shares::Kind;
use super::super::{SHAPE_UNKNOWN, Slot, Stack, accepts_at};
use super::{Handshake, MSS_DEFAULT, MSS_MIN, Opener, RTO_INITIAL, Stage};
use crate::datapath::{Datapath, Output, Packet, Tuple};
use crate::flow::optional_time::OptionalTime;
use crate::packet::{Flags, MacAddress, Options, SCALE_MAX, TcpSegment};
use crate::seq::Seq;
use crate::stages::acknowledge::milliseconds;
use crate::trace::Point;

/// A cookie is valid in the period in which it was sent and in the next one, for 64 to 128 s.
const PERIOD: Nanos = Nanos::from_millis(64_000);
/// The values of the peer's MSS that a cookie can hold. Others are rounded down to one of them; below the first, they count as the
/// first.
const MSS: [u16; 1 << MSS_BITS] = [
    MSS_MIN,
    128,
    256,
    512,
    MSS_DEFAULT,
    768,
    1024,
    1200,
    1220,
    1300,
    1360,
    1400,
    1440,
    1460,
    4016,
    8940,
];
const MSS_BITS: u32 = 4;
/// Number of cookies that are remembered as spent.
pub(in crate::control) const SPENT_MAX: usize = 4_096;
/// Number of low bits of the timestamp that hold options, before the offset is added.
const STAMP_BITS: u32 = 10;
/// Code for a SYN without the window scale option.
const NO_SCALE: u32 = 15;

/// Options in the low bits of a timestamp: both sides' window scales, SACK, and ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimestampOptions {
    theirs: Option<u8>,
    ours: u8,
    sack: bool,
    ecn: bool,
}

impl TimestampOptions {
    fn bits(self) -> u32 {
        let theirs = self.theirs.map_or(NO_SCALE, |scale| scale.min(SCALE_MAX).into());
        theirs << 6 | u32::from(self.ours) << 2 | u32::from(self.sack) << 1 | u32::from(self.ecn)
    }

    fn from_bits(bits: u32) -> TimestampOptions {
        let scale = |shift: u32| bits >> shift & 15;
        TimestampOptions {
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

/// The initial sequence number with this hash and MSS.
fn cookie(hash: u64, mss: usize) -> Seq {
    Seq((hash as u32) << MSS_BITS | mss as u32)
}

/// The number of the period at `now`.
fn period(now: Nanos) -> u64 {
    now.0 / PERIOD.0
}

/// A handshake decoded from a cookie.
pub(in crate::control) struct Returned {
    handshake: Handshake,
    /// The cookie's keyed hash.
    hash: u64,
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Answers a SYN for which there is no room. `handshake` is what would have been kept.
    pub(super) fn answer_with_cookie(
        &mut self,
        now: Nanos,
        at: usize,
        tuple: &Tuple,
        handshake: Handshake,
    ) {
        // A cookie's ISN might not be beyond the last sequence number of the connection in TIME_WAIT (RFC 9293, MAY-2).
        if self.time_wait.find(tuple).is_some() {
            self.counters.full += 1;
            return;
        }
        let theirs = handshake.options;
        let mss = theirs.mss.unwrap_or(MSS_DEFAULT);
        let mss = MSS.iter().rposition(|value| *value <= mss).unwrap_or(0);
        let sack = theirs.sack_permitted;
        let ecn = handshake.ecn.syn_ack_flags();
        let has_ecn = ecn != Flags::NONE;
        let stamped =
            TimestampOptions { theirs: theirs.scale, ours: handshake.scale, sack, ecn: has_ecn };
        let offset = self.secrets.timestamp_offset(tuple);
        let stamp = stamped.into_time(milliseconds(now)).wrapping_add(offset);
        let has_stamp = theirs.timestamps.is_some();
        let hash = self.secrets.cookie(tuple, handshake.irs, period(now), mss);
        let bare = BareSegment {
            seq: cookie(hash, mss),
            ack: Some(handshake.irs.plus(1)),
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
        // Undoes the turn of `place`: the acknowledgement takes one, too.
        self.turn = self.turn.wrapping_sub(1);
        self.trace.put(now, Point::SynSent, None, [tuple.remote.port().into(), 0]);
        let macs = (self.address.mac, handshake.mac);
        self.out.push_back(Output::Send(reply::segment(macs, tuple, &bare)));
    }

    /// The handshake that a segment completes, if it acknowledges a valid cookie.
    pub(in crate::control) fn parse_cookie(
        &mut self,
        now: Nanos,
        tuple: &Tuple,
        mac: MacAddress,
        segment: &TcpSegment,
    ) -> Option<Returned> {
        let iss = segment.ack?.minus(1);
        // Cookies are checked only while one may be valid, so guesses at other times are futile.
        let was_sent = self.listeners.iter().any(|one| {
            let sent = one.cookie_sent_at.filter(|_| accepts_at(one.local, tuple.local));
            sent.is_some_and(|at| period(now).saturating_sub(period(at)) <= 1)
        });
        if !was_sent {
            return None;
        }
        let irs = segment.seq.minus(1);
        let mss = (iss.0 % (1 << MSS_BITS)) as usize;
        let found = [period(now), period(now).saturating_sub(1)]
            .map(|period| self.secrets.cookie(tuple, irs, period, mss))
            .into_iter()
            .find(|hash| cookie(*hash, mss) == iss);
        let Some(hash) = found.filter(|hash| !self.spent_cookies.contains(hash)) else {
            self.counters.cookies_failed += 1;
            return None;
        };
        let at = self.choose_listener(tuple.local)?;
        self.counters.cookies_received += 1;
        let listener = &self.listeners[at];
        let opener = Opener::Listener { process: listener.context.process, name: listener.name };
        let mss_max = listener.mss_max;
        let shape = listener.slots.front().map(Slot::shape).or(listener.shape);
        let (_, window_bytes) = shape.unwrap_or(SHAPE_UNKNOWN);
        let timestamps = segment.options.timestamps.filter(|_| self.capabilities().timestamps);
        let stamped = timestamps.map(|(_, echo)| {
            TimestampOptions::from_bits(echo.wrapping_sub(self.secrets.timestamp_offset(tuple)))
        });
        let ecn = if stamped.is_some_and(|stamped| stamped.ecn) {
            Flags::ECE | Flags::CWR
        } else {
            Flags::NONE
        };
        let handshake = Handshake {
            opener,
            stage: Stage::SynReceived,
            mac,
            iss,
            irs,
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
            syn_rtt: Nanos(0),
            error: None,
            answered_at: OptionalTime::NONE,
            ecn: EcnNegotiation::with(ecn),
            // The time at which the SYN-ACK was sent is not known.
            is_rtt_ambiguous: true,
            arrived: None,
        };
        Some(Returned { handshake, hash })
    }

    /// Establishes the connection that a cookie describes. If no slot is free, its handshake waits for one, even beyond the
    /// backlog: the peer has proved its address.
    pub(in crate::control) fn open_by_cookie(
        &mut self,
        now: Nanos,
        returned: Returned,
        tuple: &Tuple,
        segment: &TcpSegment,
        packet: Packet<F>,
    ) {
        let Returned { handshake, hash } = returned;
        if let Err(packet) = self.finish_open(now, None, &handshake, tuple, segment, packet)
            && !self.keep(now, tuple, handshake, segment, packet)
        {
            return;
        }
        // A late copy of this segment must not open another connection.
        if self.spent_cookies.len() == SPENT_MAX {
            self.spent_cookies.pop_front();
        }
        self.spent_cookies.push_back(hash);
    }

    /// Adds a cookie's handshake to the table, to wait for a slot. Returns false if there is no room.
    fn keep(
        &mut self,
        now: Nanos,
        tuple: &Tuple,
        handshake: Handshake,
        segment: &TcpSegment,
        packet: Packet<F>,
    ) -> bool {
        let Opener::Listener { process, name } = handshake.opener else { return false };
        let Some(at) = self.listener_named(process, name) else { return false };
        let has_room = self.listeners[at].half_open < self.half_open_max(u16::MAX)
            && self.has_room(process, Kind::Handshake);
        if !has_room {
            return false;
        }
        let Ok(id) = self.handshakes.insert(*tuple, handshake) else { return false };
        self.acquire_share(process, Kind::Handshake);
        self.listeners[at].half_open += 1;
        self.handshake_timer(id, Some(now + RTO_INITIAL));
        self.wait_for_slot(now, id, segment, packet);
        true
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn every_combination_of_options_survives_in_a_timestamp_that_is_not_later_than_now() {
        for bits in 0..1 << STAMP_BITS {
            let stamped = TimestampOptions::from_bits(bits);
            for now in [0, 1, 1023, 1024, 5_000_000, u32::MAX] {
                let time = stamped.into_time(now);
                assert_eq!(TimestampOptions::from_bits(time), stamped);
                assert!((1..=1 << STAMP_BITS).contains(&now.wrapping_sub(time).wrapping_add(1)));
            }
        }
    }
}
