//! The front's door with clients, a network that duplicates, delays and reorders datagrams, replaced agents and lost hosts: no
//! non-idempotent request begins twice, and an address that has not returned a cookie never receives more bytes than it sent.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use bytes::Bytes;
use proptest::prelude::*;
use wave_core::clock::Nanos;
use wave_udp::{Counts, Door, Ended, Fate, Refusal, SENDERS_MAX, SenderId, Verdict};
use wave_udp_client::wire::{HEADER_BYTES, Header, IDEMPOTENT, REFUSED, REPLY, Status};

#[derive(Clone, Debug)]
enum Op {
    /// A client sends a new request.
    Send {
        client: usize,
        idempotent: bool,
        leap: u64,
    },
    /// A sent datagram arrives, perhaps as a duplicate.
    Arrive {
        at: prop::sample::Index,
    },
    /// A sent reply reaches its client, perhaps as a duplicate.
    Reply {
        at: prop::sample::Index,
    },
    Finish {
        at: prop::sample::Index,
    },
    /// Sets whether the host is full.
    Full(bool),
    /// The host is lost, with all open requests.
    LoseHost,
    /// A new agent with a new key replaces the agent.
    ReplaceAgent,
    /// A program ends, and another program gets its port.
    ReplaceProgram {
        client: usize,
    },
    /// Time passes, and thousands of other senders come.
    Crowd,
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS;
    prop_oneof![
        8 => (client.clone(), any::<bool>(), prop_oneof![9 => Just(1), 1 => 1..3_000u64])
            .prop_map(|(client, idempotent, leap)| Op::Send { client, idempotent, leap }),
        16 => any::<prop::sample::Index>().prop_map(|at| Op::Arrive { at }),
        8 => any::<prop::sample::Index>().prop_map(|at| Op::Reply { at }),
        6 => any::<prop::sample::Index>().prop_map(|at| Op::Finish { at }),
        1 => any::<bool>().prop_map(Op::Full),
        1 => Just(Op::LoseHost),
        1 => Just(Op::ReplaceAgent),
        1 => client.prop_map(|client| Op::ReplaceProgram { client }),
        1 => Just(Op::Crowd),
    ]
}

const CLIENTS: usize = 3;

/// A program with a socket. It follows the rules of `clients/udp`.
struct Client {
    /// Number of the program, never reused.
    program: u64,
    address: SocketAddr,
    id: u64,
    incarnation: u64,
    cookie: u64,
    /// Requests without a result.
    pending: HashMap<u64, Header>,
    /// Requests with a final refusal.
    refused: HashSet<u64>,
}

impl Client {
    fn new(at: usize, program: u64) -> Client {
        Client {
            program,
            address: ([127, 0, 0, 1], 40_000 + at as u16).into(),
            id: program << 32,
            incarnation: 0,
            cookie: 0,
            pending: HashMap::new(),
            refused: HashSet::new(),
        }
    }
}

struct World {
    door: Door,
    clients: Vec<Client>,
    programs: u64,
    /// All datagrams sent: address, program, header.
    sent: Vec<(SocketAddr, u64, Header)>,
    replies: Vec<(SocketAddr, Header)>,
    open: Vec<(SenderId, u64, SocketAddr, Header)>,
    begun: HashSet<(u64, u64)>,
    is_full: bool,
    now: Nanos,
}

impl World {
    fn new() -> World {
        let clients = (0..CLIENTS).map(|at| Client::new(at, at as u64)).collect();
        World {
            door: Door::new(false),
            clients,
            programs: CLIENTS as u64,
            sent: Vec::new(),
            replies: Vec::new(),
            open: Vec::new(),
            begun: HashSet::new(),
            is_full: false,
            now: Nanos(0),
        }
    }

    fn take(&mut self, op: &Op) -> Result<(), TestCaseError> {
        self.now = self.now + Nanos::from_micros(100);
        match op {
            Op::Send { client, idempotent, leap } => {
                let client = &mut self.clients[*client];
                client.id += leap;
                let header = Header {
                    flags: if *idempotent { IDEMPOTENT } else { 0 },
                    id: client.id,
                    incarnation: client.incarnation,
                    cookie: client.cookie,
                    ..Header::default()
                };
                client.pending.insert(client.id, header);
                self.sent.push((client.address, client.program, header));
                self.arrive(self.sent.len() - 1)
            }
            Op::Arrive { at } if !self.sent.is_empty() => self.arrive(at.index(self.sent.len())),
            Op::Reply { at } if !self.replies.is_empty() => {
                let (to, header) = self.replies[at.index(self.replies.len())];
                self.hear(to, header);
                Ok(())
            }
            Op::Finish { at } if !self.open.is_empty() => {
                let (sender, id, to, header) = self.open.swap_remove(at.index(self.open.len()));
                let ended =
                    Ended { is_refused: false, status: Status::OK, message: Bytes::from("done") };
                self.door.senders.end(sender, id, ended);
                self.replies.push((to, Header { flags: REPLY, ..header }));
                Ok(())
            }
            Op::Full(is_full) => {
                self.is_full = *is_full;
                Ok(())
            }
            Op::LoseHost => {
                for (sender, id, _, header) in std::mem::take(&mut self.open) {
                    if header.has(IDEMPOTENT) {
                        self.door.senders.take_back(sender, id);
                    } else {
                        let status = Status::OUTCOME_UNKNOWN;
                        let ended = Ended { is_refused: false, status, message: Bytes::new() };
                        self.door.senders.end(sender, id, ended);
                    }
                }
                Ok(())
            }
            Op::ReplaceAgent => {
                self.open.clear();
                self.door = Door::new(false);
                Ok(())
            }
            Op::ReplaceProgram { client } => {
                self.clients[*client] = Client::new(*client, self.programs);
                self.programs += 1;
                Ok(())
            }
            Op::Crowd => {
                self.now = self.now + Nanos::from_millis(11_000);
                for at in 0..3_000u32 {
                    let from = SocketAddr::from(([10, 0, (at >> 8) as u8, at as u8], 9));
                    let hello = Header { id: 1, ..Header::default() };
                    let Verdict::Answer(told, _) = self.door.judge(self.now, from, &hello.encode())
                    else {
                        continue;
                    };
                    let (incarnation, cookie) = (told.incarnation, told.cookie);
                    let named = Header { incarnation, cookie, ..hello };
                    self.door.judge(self.now, from, &named.encode());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The datagram arrives at the door.
    fn arrive(&mut self, at: usize) -> Result<(), TestCaseError> {
        let (from, program, header) = self.sent[at];
        let datagram = header.encode();
        match self.door.judge(self.now, from, &datagram) {
            Verdict::Drop => {}
            Verdict::Answer(reply, message) => {
                let has_cookie = header.cookie != 0;
                prop_assert!(has_cookie || HEADER_BYTES + message.len() <= datagram.len());
                self.replies.push((from, reply));
            }
            Verdict::Request(sender, header, _) if self.is_full => {
                let busy = Refusal::BUSY;
                let verdict = self.door.refuse(sender, &header, Fate::Busy, busy);
                let Verdict::Answer(reply, _) = verdict else { panic!("{verdict:?}") };
                self.replies.push((from, reply));
            }
            Verdict::Request(sender, header, _) => {
                self.door.senders.begin(sender, header.id);
                let is_first = self.begun.insert((program, header.id));
                prop_assert!(is_first || header.has(IDEMPOTENT), "it began twice: {header:?}");
                let refused = &self.clients.iter().find(|it| it.program == program);
                let said_no = refused.is_some_and(|client| client.refused.contains(&header.id));
                prop_assert!(!said_no, "it began after a final refusal: {header:?}");
                self.open.push((sender, header.id, from, header));
            }
        }
        Ok(())
    }

    /// A reply reaches the client at its address.
    fn hear(&mut self, to: SocketAddr, reply: Header) {
        let Some(client) = self.clients.iter_mut().find(|client| client.address == to) else {
            return;
        };
        let Some(mut header) = client.pending.get(&reply.id).copied() else { return };
        let status = Status(reply.status);
        match status {
            Status::CHALLENGE if header.incarnation != 0 && !header.has(IDEMPOTENT) => {}
            Status::CHALLENGE => {
                (client.incarnation, client.cookie) = (reply.incarnation, reply.cookie);
                (header.incarnation, header.cookie) = (reply.incarnation, reply.cookie);
                client.pending.insert(reply.id, header);
                self.sent.push((to, client.program, header));
            }
            Status::OUTCOME_UNKNOWN => {
                (client.incarnation, client.cookie) = (reply.incarnation, reply.cookie);
                client.pending.remove(&reply.id);
            }
            _ => {
                client.pending.remove(&reply.id);
                if reply.has(REFUSED) && !header.has(IDEMPOTENT) {
                    client.refused.insert(reply.id);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn non_idempotent_requests_begin_at_most_once_despite_faults(
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut world = World::new();
        for op in &ops {
            world.take(op)?;
        }
    }

    #[test]
    fn arbitrary_datagrams_are_neither_amplified_nor_executed(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..50),
        named in any::<bool>(),
    ) {
        let mut door = Door::new(false);
        let from = SocketAddr::from(([127, 0, 0, 1], 4711));
        let count = datagrams.len() as u64;
        for mut bytes in datagrams {
            if named && bytes.len() >= 3 {
                bytes[..3].copy_from_slice(&Header::default().encode()[..3]);
            }
            let verdict = door.judge(Nanos(0), from, &bytes);
            if let Verdict::Answer(_, message) = &verdict {
                prop_assert!(HEADER_BYTES + message.len() <= bytes.len(), "{verdict:?}");
            }
            prop_assert!(!matches!(verdict, Verdict::Request(..)), "a cookie was guessed");
        }
        prop_assert_eq!(door.counts.of(Fate::Received), count);
    }
}

/// Regression: an IP address without a sender was never refused, however many senders there were.
#[test]
fn senders_are_bounded_even_if_each_has_its_own_ip_address() {
    let mut world = World::new();
    world.take(&Op::Crowd).unwrap();
    assert_eq!(world.door.senders.len(), SENDERS_MAX);
    assert!(world.door.counts.of(Fate::Senders) > 0);
    // After ten seconds of silence, idle senders are forgotten and others find room.
    world.take(&Op::Crowd).unwrap();
    assert_eq!(world.door.senders.len(), SENDERS_MAX);
}

#[test]
fn datagrams_from_public_addresses_are_dropped_by_default() {
    let hello = Header::default().encode();
    let verdict = |takes_public, from: [u8; 4]| {
        let mut door = Door::new(takes_public);
        let verdict = door.judge(Nanos(0), (from, 1).into(), &hello);
        (matches!(verdict, Verdict::Answer(..)), door.counts.of(Fate::Public))
    };
    assert_eq!(verdict(false, [8, 8, 8, 8]), (false, 1));
    assert_eq!(verdict(true, [8, 8, 8, 8]), (true, 0));
    assert_eq!(verdict(false, [192, 168, 0, 1]), (true, 0));
}

#[test]
fn counts_print_the_fates_that_occurred() {
    let mut counts = Counts::default();
    counts.add(Fate::Received);
    counts.set(Fate::Overflow, 2);
    assert_eq!(counts.to_string(), "1 received, 2 dropped by the kernel");
    assert_eq!(counts.dropped(), 2);
}

/// Gets a new incarnation and a cookie from the door, then begins a request.
fn begin_under_a_new_incarnation(door: &mut Door, from: SocketAddr, id: u64) -> SenderId {
    let hello = Header { id, ..Header::default() };
    let Verdict::Answer(told, _) = door.judge(Nanos(0), from, &hello.encode()) else { panic!() };
    let named = Header { incarnation: told.incarnation, cookie: told.cookie, ..hello };
    let Verdict::Request(sender, header, _) = door.judge(Nanos(0), from, &named.encode()) else {
        panic!("a new request of a sender with a cookie")
    };
    door.senders.begin(sender, header.id);
    sender
}

/// Otherwise a sender that renews its incarnation has no limit on open requests.
#[test]
fn requests_of_a_senders_earlier_incarnations_count_until_they_end() {
    let mut door = Door::new(false);
    let from = SocketAddr::from(([10, 0, 0, 1], 1));
    let earlier = begin_under_a_new_incarnation(&mut door, from, 1);
    let later = begin_under_a_new_incarnation(&mut door, from, 2);
    assert_ne!(earlier, later);
    assert_eq!(door.senders.open(later), [2, 2]);
    let ended = Ended { is_refused: false, status: Status::OK, message: Bytes::new() };
    door.senders.end(earlier, 1, ended.clone());
    assert_eq!(door.senders.open(later), [1, 1]);
    door.senders.end(later, 2, ended);
    assert_eq!(door.senders.open(later), [0, 0]);
}

#[test]
fn the_addresses_of_an_ipv6_network_are_one_client() {
    let mut door = Door::new(false);
    let at = |text: &str| SocketAddr::new(text.parse().unwrap(), 1);
    begin_under_a_new_incarnation(&mut door, at("fd00::1"), 1);
    let neighbour = begin_under_a_new_incarnation(&mut door, at("fd00::2"), 1);
    assert_eq!(door.senders.open(neighbour), [1, 2]);
    let other = begin_under_a_new_incarnation(&mut door, at("fd00:0:0:1::1"), 1);
    assert_eq!(door.senders.open(other), [1, 1]);
    let mapped = begin_under_a_new_incarnation(&mut door, at("::ffff:10.0.0.1"), 1);
    let plain = begin_under_a_new_incarnation(&mut door, at("10.0.0.1"), 1);
    assert_eq!(door.senders.open(mapped), [1, 2]);
    assert_eq!(door.senders.open(plain), [1, 2]);
}
