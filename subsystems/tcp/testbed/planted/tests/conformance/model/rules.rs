//! The rules of the contract (docs/adr/0055, 0111), and those that concern one connection.

use std::fmt;

use wave_tcp::datapath::{Established, Payload, Segment};
use wave_tcp::packet::{Ecn, Flags, TcpSegment};
use wave_tcp::seq::Seq;
use wave_tcp_testbed_planted::{CONTEXT, byte};

use super::SUPER_BYTES;
use crate::peer::{Connection, RING, mark};

/// A rule of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A poll has at most `OUTPUTS_PER_STEP` outputs for each step of its budget, and none without a budget.
    Budget,
    /// A batch is taken from its front.
    TakenFromFront,
    /// A data path that need not be polled at once has nothing to do.
    Rest,
    /// Bytes are acknowledged, and the host is notified of them, once all of them are in its ring.
    AfterCopy,
    /// Copies put the peer's bytes where they belong in the ring, within its room.
    Copies,
    /// The window never shrinks by a unit, and is never beyond the ring.
    Window,
    /// Segments carry the host's bytes, within the peer's window and the limits.
    Segments,
    /// Segments have only what the handshake has agreed on.
    Agreed,
    /// A reset has a cause, and no data follows it.
    Resets,
    /// Positions do not go back, and are never beyond what has happened.
    Positions,
    /// What names a connection that has gone, or another process's, has no effect.
    Names,
    /// A FIN is taken with the bytes before it.
    Fin,
    /// A repeated request changes nothing.
    Repeated,
    /// Requests count as in flight until they are done.
    InFlight,
    /// A frozen connection has nothing under way, and starts nothing.
    Frozen,
    /// An exported state is complete, and restores the connection.
    Export,
    /// Statistics say what is so, and reading clears them.
    Statistics,
    /// Commands send what they say.
    Commands,
    /// With a fair host and a fair peer, all bytes arrive and are acknowledged.
    Finishes,
}

/// A broken rule.
#[derive(Debug)]
pub struct Broken {
    pub rule: Rule,
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

pub type Checked = Result<(), Broken>;

macro_rules! rule {
    ($rule:ident, $is_kept:expr, $($what:tt)*) => {
        if !$is_kept {
            return Err(Broken { rule: Rule::$rule, what: format!($($what)*) });
        }
    };
}

impl Connection {
    pub fn check_agreed(&mut self, segment: &TcpSegment, ecn: Ecn) -> Checked {
        let stamps = segment.options.timestamps;
        let id = self.id;
        let is_stamped = stamps.is_some() == self.initial.timestamps.is_some();
        rule!(Agreed, is_stamped, "{id}: timestamps {stamps:?}");
        self.stamp = stamps.map_or(0, |(stamp, _)| stamp);
        let has_blocks = !segment.options.sack_blocks().is_empty();
        rule!(Agreed, self.initial.sack_permitted || !has_blocks, "{id}: {:?}", segment.options);
        let has_ecn = ecn != Ecn::NotCapable || segment.flags.intersects(Flags::ECE | Flags::CWR);
        rule!(Agreed, self.initial.ecn.is_some() || !has_ecn, "{id}: {ecn:?} {:?}", segment.flags);
        Ok(())
    }

    pub fn check_acknowledgement(&mut self, segment: &TcpSegment) -> Checked {
        let id = self.id;
        let position = |seq: Seq, base| seq.position(0, base);
        let ack = segment.ack.and_then(|ack| position(ack, self.initial.receiving.base));
        let Some(ack) = ack else {
            rule!(AfterCopy, false, "{id} acknowledges {:?}", segment.ack);
            return Ok(());
        };
        let landed = self.landed_prefix();
        let fin = u64::from(self.may_have_ended());
        rule!(AfterCopy, ack <= landed + fin, "{id} acknowledges {ack}, but {landed} are there");
        let bytes = ack.min(landed);
        rule!(Positions, bytes >= self.acknowledged, "{id} acknowledges {ack} after more");
        self.acknowledged = bytes;
        self.fin_acknowledged |= ack > landed;
        let scale = self.initial.receiving.scale;
        let edge = ack + (u64::from(segment.window) << scale);
        let unit = 1 << scale;
        rule!(Window, edge + unit > self.edge, "{id}: the edge goes from {} to {edge}", self.edge);
        let limit = self.told_read + u64::from(RING) + 1;
        rule!(Window, edge <= limit.max(self.edge), "{id}: the edge {edge} is beyond {limit}");
        self.edge = self.edge.max(edge);
        Ok(())
    }

    pub fn check_data(
        &mut self,
        sent: &Segment<Vec<u8>>,
        segment: &TcpSegment,
        frame: &[u8],
    ) -> Checked {
        let id = self.id;
        let bytes = &frame[segment.payload.clone()];
        let has_fin = segment.flags.contains(Flags::FIN);
        if bytes.is_empty() && !has_fin {
            return Ok(());
        }
        let from = segment.seq.position(0, self.initial.sending.base);
        let Some(from) = from else {
            rule!(Segments, false, "{id} sends {:?}, before its stream", segment.seq);
            return Ok(());
        };
        let end = from + bytes.len() as u64;
        let written = self.told_written;
        rule!(Segments, end <= written, "{id} sends up to {end} of {written}");
        let is_right = bytes.iter().zip(from..).all(|(found, at)| *found == byte(at));
        rule!(Segments, is_right, "{id} sends wrong bytes at {from}");
        let fin_is_right = !has_fin || self.has_told_end && end == written;
        rule!(Segments, fin_is_right, "{id} ends at {end} of {written}");
        // A probe of a closed window is one byte, or a FIN.
        let is_probe = bytes.len() + usize::from(has_fin) == 1;
        let is_within = end <= self.peer_edge || is_probe;
        rule!(Segments, is_within, "{id} sends up to {end}, beyond {}", self.peer_edge);
        let part = match sent.segment_bytes {
            0 => bytes.len(),
            part => part.into(),
        };
        let is_short = part <= self.mss_max.into() && bytes.len() <= SUPER_BYTES as usize;
        rule!(Segments, is_short, "{id} sends {} bytes in parts of {part}", bytes.len());
        // Two segments may exceed the window: limited transmit and a probe.
        let window = self.peer_acked + self.window_max + 2 * u64::from(self.mss_max) + 1;
        rule!(Segments, end <= window, "{id} sends up to {end}, beyond its window at {window}");
        if let Payload::Ring { process, ring, position, .. } = sent.payload {
            let place = (process, ring, position);
            let right = (CONTEXT.process, self.initial.sending.ring, from);
            rule!(Segments, place == right, "{id} sends {place:?} instead of {right:?}");
        }
        mark(&mut self.arrived, from, bytes.len());
        self.fin_arrived |= has_fin;
        Ok(())
    }

    pub fn check_state(&self, state: &Established) -> Checked {
        let id = self.id;
        let Established { sending, receiving, .. } = state;
        let acked = self.peer_acked.min(self.told_written);
        let is_right = sending.acknowledged <= acked
            && sending.acknowledged <= sending.sent
            && sending.sent <= sending.written
            && sending.written <= self.told_written
            && sending.acknowledged >= self.notified.1;
        rule!(
            Positions,
            is_right,
            "{id}: told {}, peer has {acked}: {sending:?}",
            self.told_written
        );
        let is_right = receiving.read <= self.told_read
            && receiving.received >= self.acknowledged
            && receiving.received <= self.peer_sent
            && receiving.edge >= self.edge.saturating_sub(1 << receiving.scale);
        let (told, peer_sent) = (self.told_read, self.peer_sent);
        rule!(Positions, is_right, "{id}: told {told}, peer sent {peer_sent}: {receiving:?}");
        let is_kept = !self.must_have_ended() || receiving.fin == Some(peer_sent);
        rule!(Fin, is_kept, "{id}: FIN at {:?}, but the peer's is at {peer_sent}", receiving.fin);
        let Established { tuple, context, socket, timestamps, sack_permitted, .. } = *state;
        let kept = (tuple, context, socket, timestamps.is_some(), sack_permitted);
        let Established { tuple, context, socket, timestamps, sack_permitted, .. } = self.initial;
        let initial = (tuple, context, socket, timestamps.is_some(), sack_permitted);
        rule!(Export, kept == initial, "{id}: {kept:?} instead of {initial:?}");
        Ok(())
    }
}
