//! Errors that the network reports about our segments: ICMP errors (RFC 9293, 3.9.2.2; RFC 5927), and path MTU discovery (RFC
//! 1191).
//!
//! Anybody can send such a message. It counts only if it quotes a sequence number in flight, and it never ends an established
//! connection.

use core::net::IpAddr;

use wave_core::clock::Nanos;

use super::address::headers_bytes;
use super::{Stack, reply};
use crate::context::{Event, Reason};
use crate::datapath::{Datapath, Fin, FlowId, Output, Tuple};
use crate::flow::optional_time::OptionalTime;
use crate::packet::ipv6::IPV6_MTU_MIN;
use crate::packet::{Icmp6, Quoted, Unreachable};
use crate::seq::{Seq, seq_of};
use crate::stages::pre::tuple_of;

/// Smallest path MTU that we accept from a router: the lowest plateau of RFC 1191. Below it, a forger could reduce our packets
/// to headers.
const PATH_MTU_MIN: u16 = 296;
/// Common MTUs, for routers that name none (RFC 1191, 7.1).
const PLATEAUS: [u16; 9] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, PATH_MTU_MIN];
/// Time after which larger packets are tried again (RFC 1191, 6.3).
const WIDEN_AFTER: Nanos = Nanos::from_millis(600_000);
/// Shortest time between two soft errors of a connection.
const SOFT_ERROR_AFTER: Nanos = Nanos::from_millis(1_000);

/// The error that a code of an ICMP unreachable message stands for (Linux's icmp_err_convert).
fn reason_of(code: u8) -> Reason {
    match code {
        2 | 3 => Reason::Refused,
        0 | 6 | 11 => Reason::Unreachable,
        _ => Reason::NoNeighbour,
    }
}

/// The same for ICMPv6 (RFC 4443, 3.1; Linux's icmpv6_err_convert).
fn reason_of6(code: u8) -> Reason {
    match code {
        4 => Reason::Refused,
        0 => Reason::Unreachable,
        _ => Reason::NoNeighbour,
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Handles an ICMP error: a router or the peer's host says that a segment did not arrive.
    pub(super) fn on_unreachable(&mut self, now: Nanos, error: &Unreachable) {
        let Some(quoted) = error.quoted else { return };
        if error.code == Unreachable::TOO_BIG {
            self.on_packet_too_big(now, &quoted, error.next_hop_mtu);
        } else {
            self.on_soft_error(now, &quoted, reason_of(error.code));
        }
    }

    /// Handles an error of ICMPv6.
    pub(super) fn on_error6(&mut self, now: Nanos, error: &Icmp6<'_>) {
        match *error {
            Icmp6::Unreachable { code, quoted: Some(quoted) } => {
                self.on_soft_error(now, &quoted, reason_of6(code));
            }
            // RFC 8201, 4: every IPv6 link has at least this MTU.
            Icmp6::TooBig { mtu, quoted: Some(quoted) } if mtu >= u32::from(IPV6_MTU_MIN) => {
                self.on_packet_too_big(now, &quoted, Some(mtu.min(u16::MAX.into()) as u16));
            }
            Icmp6::Problem { quoted: Some(quoted) } => {
                self.on_soft_error(now, &quoted, Reason::NoNeighbour);
            }
            _ => {}
        }
    }

    /// Handles an error that may pass (RFC 9293, MUST-56): sends the host a soft error.
    pub(super) fn on_soft_error(&mut self, now: Nanos, quoted: &Quoted, reason: Reason) {
        let tuple = tuple_of(quoted.destination, quoted.source);
        if let Some(id) = self.handshakes.find(&tuple) {
            return self.handshake_error(id, quoted.seq, reason);
        }
        if let Some(flow) = self.sender_of(&tuple, quoted.seq) {
            self.report_soft_error(now, flow, reason);
        }
    }

    /// The connection that has this sequence number in flight.
    fn sender_of(&self, tuple: &Tuple, seq: Seq) -> Option<FlowId> {
        let flow = self.data.find(tuple)?;
        let sending = self.data.inspect(flow)?.sending;
        let fin = u64::from(sending.fin == Fin::Sent);
        let on_its_way = sending.sent + fin - sending.acknowledged;
        let at = seq.since(seq_of(sending.base, sending.acknowledged));
        (at >= 0 && (at as u64) < on_its_way).then_some(flow)
    }

    /// Warns a connection's host of an error that may pass.
    pub(super) fn report_soft_error(&mut self, now: Nanos, flow: FlowId, reason: Reason) {
        let Some(connection) = self.connection(flow) else { return };
        let is_due = connection.warned_at.get().is_none_or(|at| now.since(at) >= SOFT_ERROR_AFTER);
        if is_due && connection.has_host() {
            connection.warned_at = now.into();
            let (context, socket) = (connection.context, connection.socket);
            self.notify(context, Event::SoftError { socket, reason });
        }
    }

    /// Handles a packet that was too big for a link of its path.
    fn on_packet_too_big(&mut self, now: Nanos, quoted: &Quoted, mtu: Option<u16>) {
        let tuple = tuple_of(quoted.destination, quoted.source);
        let Some(flow) = self.sender_of(&tuple, quoted.seq) else { return };
        let Some(connection) = self.connection(flow) else { return };
        let headers = headers_bytes(tuple.remote.ip()) + connection.option_bytes();
        let now_mtu = connection.mss + headers;
        let guess = || PLATEAUS.into_iter().find(|plateau| *plateau < now_mtu);
        let Some(mtu) = mtu.or_else(guess) else { return };
        let mss = mtu.max(PATH_MTU_MIN) - headers;
        if mss >= connection.mss {
            return;
        }
        connection.mss = mss;
        connection.narrow_until = (now + WIDEN_AFTER).into();
        self.counters.path_mtu_reductions += 1;
        self.apply_mss(flow);
    }

    /// Raises the segment size to the agreed MSS again.
    pub(super) fn raise_mss(&mut self, now: Nanos, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        if connection.narrow_until.get().is_some_and(|until| now >= until) {
            connection.narrow_until = OptionalTime::NONE;
            connection.mss = connection.mss_max;
            self.apply_mss(flow);
        }
    }

    fn apply_mss(&mut self, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        connection.congestion.set_mss(connection.mss);
        // The timed bytes may be sent again, so they measure nothing.
        connection.timed.1 = OptionalTime::NONE;
        let path = connection.path();
        self.data.set_path(flow, path);
    }

    /// Handles unanswered retransmissions (RFC 9293, 3.8.3: R1): sends the host a soft error, and resolves the next hop again, which may
    /// have moved.
    pub(super) fn on_unanswered(&mut self, now: Nanos, flow: FlowId) {
        self.report_soft_error(now, flow, Reason::TimedOut);
        let Some(connection) = self.connection(flow) else { return };
        let tuple = connection.tuple();
        self.query_next_hop(&tuple);
    }

    /// The next hop of a connection.
    pub(super) fn next_hop_of(&self, tuple: &Tuple) -> Option<IpAddr> {
        self.address.next_hop(tuple.remote.ip())
    }

    /// Sends a query for the Ethernet address of a connection's next hop.
    pub(super) fn query_next_hop(&mut self, tuple: &Tuple) {
        let ask =
            self.next_hop_of(tuple).and_then(|hop| reply::neighbour_query(&self.address, hop));
        self.out.extend(ask.map(Output::Send));
    }

    /// Switches to the next hop's current Ethernet address, if known.
    pub(super) fn update_next_hop(&mut self, now: Nanos, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        let (tuple, mac) = (connection.tuple(), connection.mac);
        let Some(hop) = self.next_hop_of(&tuple) else { return };
        let Some(found) = self.neighbours.find(hop, now).filter(|found| *found != mac) else {
            return;
        };
        let Some(connection) = self.connection(flow) else { return };
        connection.mac = found;
        let path = connection.path();
        self.data.set_path(flow, path);
    }
}
