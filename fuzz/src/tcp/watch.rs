//! One connection as observed from outside: the frames that leave and enter a machine, and the copies to its memory. A frame
//! that breaks a rule is a violation.

use std::collections::{BTreeMap, VecDeque};

use wave_core::clock::Nanos;
use wave_tcp_planted::datapath::{Echo, EcnState, Established, Ticket};
use wave_tcp_planted::packet::{Ecn, Flags, TcpSegment};
use wave_tcp_planted::seq::Seq;

use super::Oracle;

/// Allowed lateness of a timer: while something is due, the virtual clock stops at least this often.
const LATE: Nanos = Nanos::from_millis(1);
/// Longest retransmission timeout of the engine.
const TIMEOUT_MAX: Nanos = Nanos::from_millis(120_000);
/// Number of duplicate acknowledgements that report a loss.
const DUPLICATES: u32 = 3;

/// A rule that was broken, and how.
pub type Broken = (Oracle, String);

/// One connection, as observed at one of its machines.
#[derive(Clone, Debug)]
pub struct Watch {
    send_base: Seq,
    receive_base: Seq,
    send_scale: u8,
    receive_scale: u8,
    /// Contiguous bytes copied to the host's ring, and the stretches beyond them, by their starts.
    copied: u64,
    stretches: BTreeMap<u64, u64>,
    /// Positions of the peer's FIN in valid frames.
    fins: Vec<u64>,
    /// Position of a FIN whose payload was copied with it.
    fin_copied: Option<u64>,
    /// Right edge of our window and of the peer's.
    edge: u64,
    peer_edge: u64,
    /// Bytes acknowledged by the peer, and bytes sent.
    acknowledged: u64,
    sent: u64,
    /// Times at which the byte at `acknowledged` was sent, since the last frame from the peer.
    sendings: Vec<Nanos>,
    /// Number of duplicate acknowledgements without data, by position.
    duplicates: BTreeMap<u64, u32>,
    /// Whether both sides have selective acknowledgements.
    sack_permitted: bool,
    /// Highest position that the peer has reported behind a gap, and the highest acknowledgement that the engine has processed.
    reported: u64,
    taken: u64,
    /// Stretches of the peer's stream that arrived, by their starts.
    arrived: BTreeMap<u64, u64>,
    /// Whether the window last advertised is closed.
    is_closed: bool,
    /// ECN as agreed in the handshake.
    ecn: Option<EcnState>,
    /// Copies that the engine may not have processed yet, in the order in which they began.
    writes: VecDeque<MarkedWrite>,
    /// Whether the engine echoes a mark after all copies before those in `writes`.
    is_echoing: bool,
    pub echoes: u64,
    pub reductions: u64,
    pub zero_windows: u64,
    pub wraps: u64,
}

/// A copy of data, and the congestion bits of its packet.
#[derive(Clone, Copy, Debug)]
struct MarkedWrite {
    ticket: Ticket,
    is_marked: bool,
    has_reduced: bool,
    is_done: bool,
}

impl Watch {
    /// A newly established connection.
    pub fn new(established: &Established) -> Watch {
        let Established { sending, receiving, .. } = established;
        Watch {
            send_base: sending.base,
            receive_base: receiving.base,
            send_scale: sending.scale,
            receive_scale: receiving.scale,
            copied: 0,
            stretches: BTreeMap::new(),
            fins: Vec::new(),
            fin_copied: None,
            edge: receiving.edge,
            peer_edge: sending.edge,
            acknowledged: 0,
            sent: 0,
            sendings: Vec::new(),
            duplicates: BTreeMap::new(),
            sack_permitted: established.sack_permitted,
            reported: 0,
            taken: 0,
            arrived: BTreeMap::new(),
            is_closed: false,
            ecn: established.ecn,
            writes: VecDeque::new(),
            is_echoing: false,
            echoes: 0,
            reductions: 0,
            zero_windows: 0,
            wraps: 0,
        }
    }

    /// Contiguous bytes of the peer's stream in the host's ring.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// A frame with a valid checksum arrives.
    pub fn on_frame(&mut self, segment: &TcpSegment) {
        self.sendings.clear();
        if segment.flags.intersects(Flags::SYN | Flags::RST) {
            return;
        }
        let start = segment.seq.position(self.copied, self.receive_base.plus(self.copied as u32));
        let bytes = segment.payload.len() as u64;
        let is_fin = segment.flags.contains(Flags::FIN);
        if let Some(start) = start {
            if is_fin {
                self.fins.push(start + bytes);
            }
            let end = self.arrived.entry(start).or_default();
            *end = (*end).max(start + bytes);
        }
        let Some(ack) = segment.ack else { return };
        let near = (self.acknowledged, self.send_base.plus(self.acknowledged as u32));
        let Some(ack) = ack.position(near.0, near.1) else { return };
        let edge = ack + (u64::from(segment.window) << self.send_scale);
        self.peer_edge = self.peer_edge.max(edge);
        for (_, behind) in segment.options.sack_blocks().iter().filter(|_| self.sack_permitted) {
            let end = behind.position(near.0, near.1).filter(|end| *end <= self.sent);
            self.reported = self.reported.max(end.unwrap_or(0));
        }
        if ack > self.acknowledged && ack <= self.sent {
            self.acknowledged = ack;
        } else if ack <= self.acknowledged && bytes == 0 && !is_fin {
            *self.duplicates.entry(ack).or_default() += 1;
        }
    }

    /// Payload was copied; `fin` if a FIN follows it in its frame.
    pub fn copy(&mut self, position: u64, bytes: u64, fin: bool) {
        let end = position + bytes;
        if fin {
            self.fin_copied = Some(end);
        }
        let known = self.stretches.entry(position).or_default();
        *known = (*known).max(end);
        while let Some(entry) = self.stretches.first_entry() {
            if *entry.key() > self.copied {
                break;
            }
            self.copied = self.copied.max(entry.remove());
        }
    }

    pub fn has_ecn(&self) -> bool {
        self.ecn.is_some()
    }

    /// A copy of data starts.
    pub fn write_begins(&mut self, ticket: Ticket, is_marked: bool, has_reduced: bool) {
        if self.has_ecn() {
            self.writes.push_back(MarkedWrite { ticket, is_marked, has_reduced, is_done: false });
        }
    }

    /// A copy of data completes. Returns whether its packet was marked.
    pub fn write_is_done(&mut self, ticket: Ticket) -> bool {
        let write = self.writes.iter_mut().find(|write| write.ticket == ticket);
        write.is_some_and(|write| {
            write.is_done = true;
            write.is_marked
        })
    }

    /// Whether the engine echoes a mark after this copy.
    fn echo_after(&self, is_echoing: bool, write: &MarkedWrite) -> bool {
        match self.ecn.map(|ecn| ecn.echo) {
            Some(Echo::Exact) => write.is_marked,
            _ => write.is_marked || (is_echoing && !write.has_reduced),
        }
    }

    /// The engine has processed all copies that began before this one.
    pub fn settle_marks(&mut self, first: Ticket) {
        while let Some(write) = self.writes.front().copied().filter(|it| it.ticket.0 < first.0) {
            self.is_echoing = self.echo_after(self.is_echoing, &write);
            self.writes.pop_front();
        }
    }

    /// Checks that ECN is used only as agreed, and that marks are echoed. `is_exact`: it is known which copies the engine has
    /// processed.
    fn check_ecn(
        &mut self,
        segment: &TcpSegment,
        ecn: Ecn,
        is_new: bool,
        is_exact: bool,
    ) -> Result<(), Broken> {
        let echoes = segment.flags.contains(Flags::ECE);
        let reduces = segment.flags.contains(Flags::CWR);
        self.echoes += u64::from(echoes);
        self.reductions += u64::from(reduces);
        let is_capable = self.ecn.is_some_and(|ecn| ecn.is_capable) && is_new;
        let is_wrong = (echoes && self.ecn.is_none())
            || ((reduces || ecn != Ecn::NotCapable) && !is_capable)
            || ecn == Ecn::Congestion;
        if is_wrong {
            let what = format!(
                "{ecn:?} and {:?} were sent on a connection with {:?}",
                segment.flags, self.ecn
            );
            return Err((Oracle::EcnAgreed, what));
        }
        if self.ecn.is_none() || !is_exact {
            return Ok(());
        }
        let mut is_echoing = self.is_echoing;
        let mut may_be = is_echoing == echoes;
        for write in self.writes.iter().take_while(|write| write.is_done) {
            is_echoing = self.echo_after(is_echoing, write);
            may_be |= is_echoing == echoes;
        }
        if !may_be {
            let what = format!("a mark was wrongly {}echoed", if echoes { "" } else { "not " });
            return Err((Oracle::MarkEchoed, what));
        }
        Ok(())
    }

    /// A frame leaves; a super-packet counts as one. `is_exact`: a poll of the engine finishes all its work.
    pub fn send(
        &mut self,
        now: Nanos,
        segment: &TcpSegment,
        ecn: Ecn,
        bytes: u64,
        is_exact: bool,
    ) -> Result<(), Broken> {
        if segment.flags.intersects(Flags::SYN | Flags::RST) {
            return Ok(());
        }
        let near = (self.sent, self.send_base.plus(self.sent as u32));
        let start = segment.seq.position(near.0, near.1);
        let is_new = bytes > 0 && start.is_some_and(|start| start >= self.sent);
        self.check_ecn(segment, ecn, is_new, is_exact)?;
        self.check_ack(segment)?;
        self.check_sent(now, segment, bytes)
    }

    fn check_ack(&mut self, segment: &TcpSegment) -> Result<(), Broken> {
        let near = (self.copied, self.receive_base.plus(self.copied as u32));
        let Some(ack) = segment.ack.and_then(|ack| ack.position(near.0, near.1)) else {
            return Err((Oracle::AckOfCopied, "a segment has no valid acknowledgement".to_owned()));
        };
        let copied = self.copied;
        let most = copied + u64::from(self.fins.contains(&copied));
        if ack > most {
            let what = format!(
                "position {ack} is acknowledged, but only {most} are copied to the host's memory"
            );
            return Err((Oracle::AckOfCopied, what));
        }
        if self.fin_copied == Some(ack) {
            let what = format!(
                "the FIN at {ack} is not acknowledged, but the bytes that came with it are"
            );
            return Err((Oracle::FinKept, what));
        }
        self.check_blocks(segment, near)?;
        let unit = 1 << self.receive_scale;
        let edge = ack + (u64::from(segment.window) << self.receive_scale);
        if edge + unit <= self.edge {
            let what =
                format!("the right edge of the window moved left from {} to {edge}", self.edge);
            return Err((Oracle::WindowKept, what));
        }
        self.edge = self.edge.max(edge);
        let is_closed = segment.window == 0;
        self.zero_windows += u64::from(is_closed && !self.is_closed);
        self.is_closed = is_closed;
        Ok(())
    }

    /// Checks that selective acknowledgements cover only bytes that arrived.
    fn check_blocks(&self, segment: &TcpSegment, near: (u64, Seq)) -> Result<(), Broken> {
        let blocks = segment.options.sack_blocks();
        if !blocks.is_empty() && !self.sack_permitted {
            let what = "SACK blocks were sent, but not agreed on in the handshake".to_owned();
            return Err((Oracle::SackOfReceived, what));
        }
        for (first, behind) in blocks {
            let start = first.position(near.0, near.1);
            let Some((start, end)) = start.zip(behind.position(near.0, near.1)) else { continue };
            let mut there = start;
            for (from, to) in &self.arrived {
                if *from <= there {
                    there = there.max(*to);
                }
            }
            if there < end {
                let what = format!(
                    "a SACK block covers {start} to {end}, but {there} to {end} never arrived"
                );
                return Err((Oracle::SackOfReceived, what));
            }
        }
        Ok(())
    }

    fn check_sent(&mut self, now: Nanos, segment: &TcpSegment, bytes: u64) -> Result<(), Broken> {
        let length = bytes + u64::from(segment.flags.contains(Flags::FIN));
        let near = (self.sent, self.send_base.plus(self.sent as u32));
        // A keep-alive probe has the sequence number before the first byte.
        let Some(start) = segment.seq.position(near.0, near.1) else { return Ok(()) };
        let end = start + length;
        if end > self.peer_edge && length > 1 {
            let what = format!(
                "{start} to {end} were sent beyond the peer's right edge {}",
                self.peer_edge
            );
            return Err((Oracle::PeersWindow, what));
        }
        let wrap = (1 << 32) - u64::from(self.send_base.0);
        self.wraps += u64::from(self.sent < wrap && end >= wrap);
        self.sent = self.sent.max(end);
        if length == 0 || start != self.acknowledged {
            return Ok(());
        }
        self.sendings.push(now);
        // The first interval may come from a timer that was running already.
        let [_, .., first, second, third] = self.sendings[..] else { return Ok(()) };
        let (before, after) = (second.since(first), third.since(second));
        let least = Nanos((2 * before.since(LATE).0).min(TIMEOUT_MAX.0)).since(LATE);
        if after < least {
            let what = format!(
                "the byte at {start} was sent again after {} ms, the time before after {} ms",
                after.0 / 1_000_000,
                before.0 / 1_000_000
            );
            return Err((Oracle::BackOff, what));
        }
        Ok(())
    }

    /// Whether the peer reported a loss of bytes that the engine's processed acknowledgements have not passed.
    pub fn has_reported_loss(&self) -> bool {
        self.reported > self.taken || self.duplicates.values().any(|count| *count >= DUPLICATES)
    }

    /// The engine has processed acknowledgements up to this position.
    pub fn has_processed(&mut self, acknowledged: u64) {
        self.taken = acknowledged;
        self.duplicates = self.duplicates.split_off(&acknowledged);
    }
}
