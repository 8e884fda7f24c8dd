//! ICMPv6: neighbour discovery (RFC 4861, 7.2), and echoes.

use core::net::Ipv6Addr;

use wave_core::clock::Nanos;

use super::frames::Answer;
use super::{Stack, reply};
use crate::datapath::{Datapath, Output};
use crate::packet::{Discovery, EthernetView, Icmp6, Ipv6View, MacAddress};

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    pub(super) fn on_icmp6(
        &mut self,
        now: Nanos,
        frame_bytes: usize,
        ethernet: &EthernetView,
        ip: &Ipv6View,
        message: &Icmp6<'_>,
    ) -> Answer {
        let Some(own) = self.address.v6.map(|home| home.ip) else { return Answer::None };
        if let Icmp6::Discovery(discovery) = message {
            self.on_discovery(now, own, ethernet.source, ip, discovery);
            return Answer::None;
        }
        if ip.destination != own || !self.address.may_be_peer(ip.source.into()) {
            return Answer::None;
        }
        match message {
            Icmp6::EchoRequest(echo) if self.may_answer(now) => {
                self.answer_echo(frame_bytes, ethernet, ip, echo)
            }
            error => {
                self.on_error6(now, error);
                Answer::None
            }
        }
    }

    fn on_discovery(
        &mut self,
        now: Nanos,
        own: Ipv6Addr,
        source: MacAddress,
        ip: &Ipv6View,
        discovery: &Discovery,
    ) {
        match *discovery {
            Discovery::Solicitation { target, mac } if target == own => {
                let mac = mac.unwrap_or(source);
                if ip.source.is_unspecified() {
                    // Another host probes whether our address is free (RFC 4862, 5.4.3).
                    self.counters.duplicate_addresses += u64::from(source != self.address.mac);
                } else {
                    // Remember the asker: a reply to it will follow soon.
                    self.learn6(now, ip.source, mac, true);
                }
                if self.may_answer_neighbour(now) {
                    let answer = reply::advertise(self.address.mac, own, (mac, ip.source));
                    self.out.push_back(Output::Send(answer));
                }
            }
            Discovery::Solicitation { .. } => {}
            Discovery::Advertisement { target, .. } if target == own => {
                self.counters.duplicate_addresses += u64::from(source != self.address.mac);
            }
            // Without the override flag, a known address stays (RFC 4861, 7.2.5).
            Discovery::Advertisement { target, mac: Some(mac), is_solicited, overrides } => {
                let known = self.neighbours.find(target.into(), now);
                if overrides || known.is_none_or(|known| known == mac) {
                    self.learn6(now, target, mac, is_solicited);
                }
            }
            Discovery::Advertisement { mac: None, .. } => {}
        }
    }

    /// Learns a neighbour's Ethernet address from itself.
    fn learn6(&mut self, now: Nanos, host: Ipv6Addr, mac: MacAddress, is_for_us: bool) {
        let host = host.into();
        if !self.address.may_be_peer(host) {
            return;
        }
        let is_wanted = self.resolving(host).is_some();
        self.neighbours.learn(host, mac, now, is_wanted || is_for_us);
        if is_wanted {
            self.on_resolved(now, host, mac);
        }
    }
}
