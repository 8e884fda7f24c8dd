//! Runs the agent's engine and a program's context in virtual time, and models the network around them.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use wave_core::clock::Nanos;
use wave_posix::{Context, Fault, Queues};
use wave_tcp::context::{ContextId, Event, QUEUE_ENTRIES, Request};
use wave_tcp::control::{Address, Bounds, Secrets, Stack, StackOutput};
use wave_tcp::datapath::{Output, Packet, Segment, Settings};
use wave_tcp::datapaths::{AnyDatapath, DatapathKind};
use wave_tcp::packet::{MacAddress, Parsed, build_arp, checksum, parse};
use wave_tcp::trace::Trace;
use wave_tcp_testbed::PayloadBytes;

use crate::script;

/// Our address, packetdrill's default.
pub const OWN: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
/// The peer's address, behind the gateway.
pub const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Ethernet address of the stack under test.
pub const OWN_MAC: MacAddress = [2, 0, 0, 0, 0, 1];
/// Ethernet address of the gateway.
pub const PEER_MAC: MacAddress = [2, 0, 0, 0, 0, 2];
/// The next hop to the peer.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 255, 254);
/// Largest IPv4 packet, in bytes.
const MTU: u16 = 1_500;
/// Largest payload of a super-packet, in bytes: two segments, as Linux sends while it knows nothing about the path.
const SUPER_BYTES: u32 = 2 * (MTU as u32 - 40);
const CONTEXT: ContextId = ContextId { process: 0, context: 0 };
/// Data path steps per poll.
const BUDGET: usize = 64;
/// Polls at one instant after which the engine counts as stuck.
const POLLS_MAX: u32 = 100_000;
/// Start time of scripts, well after the agent's start.
pub const BEGIN: Nanos = Nanos::from_millis(1_000_000);
/// Connections for which a payload memory has room.
const CONNECTIONS: u64 = 8;

/// A context's queues, with the same bounds as a window's.
#[derive(Debug, Default)]
pub struct Lanes {
    requests: VecDeque<Request>,
    events: VecDeque<Event>,
}

impl Queues for Lanes {
    fn push(&mut self, request: &Request) -> Result<bool, Fault> {
        let has_room = self.requests.len() < QUEUE_ENTRIES as usize;
        if has_room {
            self.requests.push_back(*request);
        }
        Ok(has_room)
    }

    fn publish(&mut self) {}

    fn pop(&mut self) -> Result<Option<Event>, Fault> {
        Ok(self.events.pop_front())
    }

    /// Its process ends with the script.
    fn note_read(&mut self, name: u32, _read: u64) -> u32 {
        name
    }

    fn populate(&mut self, _at: u64, _bytes: u32) -> io::Result<()> {
        Ok(())
    }
}

/// A machine in virtual time.
pub struct Machine {
    stack: Stack<Vec<u8>, AnyDatapath<Vec<u8>>>,
    /// The program's side, once it has a connection or a listener.
    pub context: Context<Lanes>,
    pub memory: PayloadBytes,
    now: Nanos,
    next: Option<Nanos>,
    /// Frames sent, with their times.
    pub sent: VecDeque<(Nanos, Vec<u8>)>,
}

impl Machine {
    /// A machine whose program has rings of `ring_bytes` (receive, send), which must be valid ring sizes.
    pub fn new(kind: DatapathKind, ring_bytes: [u32; 2], chosen: script::Settings) -> Machine {
        let key = |number: u64| (number, !number);
        let secrets = Secrets { sequence: key(1), timestamp: key(2), port: key(3), table: key(4) };
        let bounds = Bounds { flows: 64, handshakes: 64, time_wait: 16, listeners: 16, slots: 128 };
        let super_bytes = if chosen.takes_super_packets { SUPER_BYTES } else { 0 };
        let settings =
            Settings { mac: OWN_MAC, super_bytes, flows: bounds.flows, key: secrets.table };
        let address = Address {
            ip: OWN,
            prefix: 16,
            gateway: Some(GATEWAY),
            v6: None,
            mac: OWN_MAC,
            mtu: MTU,
        };
        let bytes = CONNECTIONS * ring_bytes.into_iter().map(u64::from).sum::<u64>();
        let mut context = Context::new(Lanes::default(), bytes, ring_bytes);
        // Scripts expect windows as large as the whole ring.
        context.fill_at_once();
        let data = kind.make(settings, Arc::new(Trace::new(0)));
        let mut stack = Stack::new(data, address, bounds, secrets);
        stack.set_congestion(chosen.algorithm);
        stack.set_timestamps(chosen.has_timestamps);
        Machine {
            stack,
            context,
            memory: PayloadBytes::new(bytes as usize),
            now: BEGIN,
            next: None,
            sent: VecDeque::new(),
        }
    }

    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Advances to the engine's next timer and runs it, if that is due by `most`. Otherwise advances to `most` and returns
    /// false.
    pub fn step_to(&mut self, most: Nanos) -> bool {
        match self.next.filter(|at| *at <= most) {
            Some(at) => {
                self.now = self.now.max(at);
                self.settle();
                true
            }
            None => {
                self.now = self.now.max(most);
                false
            }
        }
    }

    pub fn receive(&mut self, frame: Vec<u8>) {
        self.stack.receive(Packet { frame, checksum_is_good: false, segment_bytes: 0 });
        self.settle();
    }

    /// Runs until nothing is left to do at this time. The program takes its events, and publishes its changes.
    ///
    /// Panics if the engine never becomes idle, which is a bug of the engine.
    pub fn settle(&mut self) {
        self.context.flush();
        for _ in 0..POLLS_MAX {
            let bytes = self.memory.bytes();
            while let Some(request) = self.context.queues.requests.pop_front() {
                self.stack.request(self.now, CONTEXT, request, bytes);
            }
            let mut outputs = VecDeque::new();
            self.next = self.stack.poll(self.now, BUDGET, &mut outputs);
            let has_worked = !outputs.is_empty();
            outputs.into_iter().for_each(|output| self.perform(output));
            self.context.process_events();
            self.context.flush();
            let is_busy = self.next.is_some_and(|at| at <= self.now);
            if !has_worked && !is_busy && self.context.queues.requests.is_empty() {
                return;
            }
        }
        panic!("the engine never becomes idle at {:?}", self.now);
    }

    fn perform(&mut self, output: StackOutput<Vec<u8>>) {
        match output {
            Output::Send(segment) => self.send(&segment),
            Output::Write(write) => {
                self.memory.land(&write);
                self.stack.complete(self.now, write.ticket);
            }
            Output::Notify(_, event) => self.context.queues.events.push_back(event),
            // No program forks here.
            Output::Control(_) => {}
        }
    }

    fn send(&mut self, segment: &Segment<Vec<u8>>) {
        let mut frame = self.memory.frame(segment);
        if let Some(place) = segment.checksum {
            let start = usize::from(place.start);
            let sum = !checksum::sum(&frame[start..]);
            frame[start + usize::from(place.offset)..][..2].copy_from_slice(&sum.to_be_bytes());
        }
        if let Some(ticket) = segment.ticket {
            self.stack.complete(self.now, ticket);
        }
        match parse(&frame, false) {
            // The gateway answers ARP; scripts do not see it.
            Ok(Parsed::Arp(_, arp)) => {
                if arp.target == GATEWAY {
                    let mut answer = vec![0; 60];
                    build_arp(&mut answer, &arp.reply(PEER_MAC));
                    let frame = answer;
                    self.stack.receive(Packet { frame, checksum_is_good: true, segment_bytes: 0 });
                }
            }
            _ => self.sent.push_back((self.now, frame)),
        }
    }
}
