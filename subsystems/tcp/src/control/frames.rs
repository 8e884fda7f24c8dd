//! Handling of packets that are not data of an established connection (RFC 9293, 3.10.7; RFC 5961; RFC 826; RFC 792).

use core::net::IpAddr;

use wave_core::clock::Nanos;

use super::Stack;
use super::reply::{self, BareSegment};
use super::time_wait::TIME_WAIT_LASTS;
use crate::context::Reason;
use crate::datapath::{
    Command, Datapath, Fin, FlowId, Head, Output, Packet, Payload, Segment, Tuple,
};
use crate::packet::{
    ArpOperation, ArpPacket, Echo, EthernetView, Flags, ICMP_REPLY_HEADERS_BYTES, Icmp, IpView,
    Ipv4View, MacAddress, Options, Parsed, Problem, TcpSegment, build_echo_reply, parse,
};
use crate::planted::{Planted, is_planted};
use crate::seq::seq_of;
use crate::stages::acknowledge::milliseconds;
use crate::stages::pre::tuple_of;
use crate::stages::receive::ANSWER_AFTER;

/// The next step for a packet of the control plane.
pub(super) enum Answer {
    None,
    /// Process a segment. The packet itself is still needed if it establishes a connection.
    Segment(MacAddress, Tuple, TcpSegment),
    /// Send a reply: these headers, followed by a part of the frame.
    Reply(Head, core::ops::Range<usize>),
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Handles a packet that the data path passed on, with its flow, if any.
    pub(super) fn on_packet(&mut self, now: Nanos, packet: Packet<F>, flow: Option<FlowId>) {
        let bytes = packet.frame.as_ref();
        let answer = match parse(bytes, packet.checksum_is_good) {
            // The data path has counted malformed packets.
            Err(_) | Ok(Parsed::Other) => Answer::None,
            // VLAN-tagged: we are in no virtual network.
            Ok(
                Parsed::Arp(ethernet, _)
                | Parsed::Icmp(ethernet, ..)
                | Parsed::Icmp6(ethernet, ..)
                | Parsed::Udp(ethernet, _),
            ) if ethernet.vlan.is_some() => Answer::None,
            Ok(Parsed::Arp(_, arp)) => {
                self.on_arp(now, &arp);
                Answer::None
            }
            Ok(Parsed::Icmp(ethernet, ip, message)) => {
                self.on_icmp(now, bytes.len(), &ethernet, &ip, &message)
            }
            Ok(Parsed::Icmp6(ethernet, ip, message)) => {
                self.on_icmp6(now, bytes.len(), &ethernet, &ip, &message)
            }
            Ok(Parsed::Udp(ethernet, ip)) => self.on_datagram(now, bytes, &ethernet, &ip),
            Ok(Parsed::Tcp { ethernet, ip, segment }) => {
                let is_between_us =
                    self.address.is_local(ip.destination) && self.address.may_be_peer(ip.source);
                let source = core::net::SocketAddr::new(ip.source, segment.source_port);
                let own = core::net::SocketAddr::new(ip.destination, segment.destination_port);
                if is_between_us && segment.source_port != 0 {
                    Answer::Segment(ethernet.source, tuple_of(source, own), segment)
                } else {
                    Answer::None
                }
            }
        };
        match answer {
            Answer::None => {}
            Answer::Reply(head, data) => {
                let payload = Payload::Frame(packet.frame, data);
                self.out.push_back(Output::Send(Segment {
                    ticket: None,
                    head,
                    payload,
                    checksum: None,
                    segment_bytes: 0,
                }));
            }
            Answer::Segment(mac, tuple, segment) => {
                self.on_segment(now, packet, flow, mac, &tuple, &segment);
            }
        }
    }

    fn on_arp(&mut self, now: Nanos, arp: &ArpPacket) {
        let own = self.address.ip;
        if arp.sender == own && arp.sender_mac != self.address.mac {
            self.counters.duplicate_addresses += 1;
        }
        // Remember the asker: a reply to it will follow soon (RFC 826: merge).
        let is_for_us = arp.target == own;
        let sender = arp.sender.into();
        if self.address.may_be_peer(sender) && arp.sender_mac[0] & 1 == 0 {
            let is_wanted = is_for_us && self.resolving(sender).is_some();
            self.neighbours.learn(sender, arp.sender_mac, now, is_wanted || is_for_us);
            if is_wanted {
                self.on_resolved(now, sender, arp.sender_mac);
            }
        }
        if is_for_us && arp.operation == ArpOperation::Request && self.may_answer_neighbour(now) {
            let answer = reply::arp(&arp.reply(self.address.mac));
            self.out.push_back(Output::Send(answer));
        }
    }

    fn on_icmp(
        &mut self,
        now: Nanos,
        frame_bytes: usize,
        ethernet: &EthernetView,
        ip: &Ipv4View,
        message: &Icmp<'_>,
    ) -> Answer {
        if ip.destination != self.address.ip || !self.address.may_be_peer(ip.source.into()) {
            return Answer::None;
        }
        match message {
            Icmp::EchoRequest(echo) if self.may_answer(now) => {
                self.answer_echo(frame_bytes, ethernet, ip, echo)
            }
            Icmp::Unreachable(error) => {
                self.on_unreachable(now, error);
                Answer::None
            }
            Icmp::Problem(Problem { quoted: Some(quoted) }) => {
                self.on_soft_error(now, quoted, Reason::NoNeighbour);
                Answer::None
            }
            _ => Answer::None,
        }
    }

    pub(super) fn answer_echo<A: Copy + Into<IpAddr>>(
        &mut self,
        frame_bytes: usize,
        ethernet: &EthernetView,
        ip: &IpView<A>,
        echo: &Echo<'_>,
    ) -> Answer {
        let mut head = Head::zeroed(ICMP_REPLY_HEADERS_BYTES);
        let len = build_echo_reply(head.bytes_mut(), ethernet, ip, echo);
        head.truncate(len);
        self.counters.echoes += 1;
        let end = ip.payload.end.min(frame_bytes);
        Answer::Reply(head, end - echo.data.len()..end)
    }

    fn on_segment(
        &mut self,
        now: Nanos,
        packet: Packet<F>,
        flow: Option<FlowId>,
        mac: MacAddress,
        tuple: &Tuple,
        segment: &TcpSegment,
    ) {
        // The connection may have been established since the data path looked it up.
        if let Some(flow) = flow.or_else(|| self.data.find(tuple)) {
            return self.on_established(now, flow, segment, packet);
        }
        if let Some(id) = self.handshakes.find(tuple) {
            return self.on_handshake(now, id, tuple, mac, segment, packet);
        }
        let flags = segment.flags;
        if let Some(over) = self.time_wait.find(tuple).copied() {
            let is_later = segment.seq.since(over.expected) > 0
                || over
                    .recent
                    .zip(segment.options.timestamps)
                    .is_some_and(|(recent, (value, _))| value.wrapping_sub(recent) as i32 > 0);
            let may_open = is_later && self.listener_at(tuple.local).is_some();
            let is_new = flags.contains(Flags::SYN)
                && !flags.intersects(Flags::ACK | Flags::RST)
                && (is_planted(Planted::StaleSynTaken) || may_open);
            if !is_new {
                // RFC 1337: a reset does not end TIME_WAIT.
                if flags.contains(Flags::RST) {
                    return;
                }
                // Two sides in TIME_WAIT would answer each other's acknowledgements forever.
                if segment.sequence_len() == 0 && segment.seq == over.expected {
                    return;
                }
                if flags.contains(Flags::FIN) {
                    self.time_wait.extend(tuple, now + TIME_WAIT_LASTS);
                }
                let stamp = milliseconds(now).wrapping_add(over.offset);
                let bare = BareSegment {
                    seq: over.seq,
                    ack: Some(over.expected),
                    flags: Flags::ACK,
                    window: 0,
                    options: Options {
                        timestamps: over.recent.map(|recent| (stamp, recent)),
                        ..Options::default()
                    },
                };
                let macs = (self.address.mac, over.mac);
                if self.time_wait.may_answer(tuple, now) {
                    self.out.push_back(Output::Send(reply::segment(macs, tuple, &bare)));
                }
                return;
            }
            if is_planted(Planted::StaleSynTaken) {
                self.time_wait.remove(tuple);
            }
            // RFC 6191, and RFC 9293, MAY-2: a new connection between the same ends may begin. TIME_WAIT ends with its handshake.
        }
        if flags.contains(Flags::RST) {
            return;
        }
        if !flags.contains(Flags::ACK) && self.listener_at(tuple.local).is_some() {
            // RFC 9293, 3.10.7.2, fourth: a segment with neither SYN nor ACK is dropped.
            if !flags.contains(Flags::SYN) {
                return;
            }
            if let Some(at) = self.choose_listener(tuple.local) {
                return self.on_listener_syn(now, at, *tuple, mac, segment);
            }
        }
        let is_plain = !flags.contains(Flags::SYN);
        if is_plain && let Some(returned) = self.parse_cookie(now, tuple, mac, segment) {
            return self.open_by_cookie(now, returned, tuple, segment, packet);
        }
        if self.may_answer(now) {
            self.counters.stranger_resets += 1;
            let macs = (self.address.mac, mac);
            self.out.push_back(Output::Send(reply::segment(macs, tuple, &reply::reset(segment))));
        }
    }

    /// Handles a SYN, a reset, or a segment without ACK on an established connection (RFC 5961). Other segments go back to the
    /// data path.
    fn on_established(
        &mut self,
        now: Nanos,
        flow: FlowId,
        segment: &TcpSegment,
        packet: Packet<F>,
    ) {
        let flags = segment.flags;
        if !flags.intersects(Flags::SYN | Flags::RST) {
            if segment.ack.is_some() {
                self.packets.push_back(packet);
            }
            return;
        }
        let Some(state) = self.data.inspect(flow) else { return };
        let receiving = state.receiving;
        let has_fin = receiving.fin == Some(receiving.received);
        let at = receiving.received + u64::from(has_fin);
        let expected = seq_of(receiving.base, at);
        if flags.contains(Flags::RST) {
            // Both streams have ended: a reset must not discard data that the host has not read yet (RFC 1337).
            if has_fin && state.sending.fin == Fin::Acknowledged {
                return;
            }
            let off = segment.seq.since(expected);
            if off == 0 {
                self.data.freeze(flow);
                return self.drop_connection(flow, Reason::Reset);
            }
            let window = receiving.edge.saturating_sub(at);
            if off < 0 || off as u64 >= window {
                return;
            }
        }
        // RFC 5961, 3.2 and 4.2: an honest sender answers this challenge ACK with a reset that has the exact sequence number.
        // Challenge ACKs are limited per connection: from a budget shared by all connections, a stranger who uses it up could
        // infer whether somebody else's segment was answered (CVE-2016-5696).
        let Some(connection) = self.connection(flow) else { return };
        if connection.challenged_at.get().is_none_or(|at| now.since(at) >= ANSWER_AFTER) {
            connection.challenged_at = now.into();
            self.counters.challenges += 1;
            self.data.command(now, flow, Command::Challenge);
        }
    }
}
