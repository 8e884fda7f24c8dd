use std::collections::HashMap;
use std::sync::LazyLock;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Both, frame, starts};
use crate::examples::flowlet::{FLOWLET, GAP, NEXT_HOP, NEXT_HOPS, NOW, PATH, PATHS, SLOT, START};
use crate::table::Entry;
use crate::{Constant, Gress, Phv, Pipeline};

struct Flowlet;
impl Constant for Flowlet {
    const PIPELINE: Pipeline<'static> = FLOWLET;
}

/// What a packet leaves with.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    slot: u32,
    start: u32,
    path: u32,
    next_hop: u32,
}

/// A switch whose control plane has set the next hops.
struct Switch(Both<Flowlet>);

impl Switch {
    fn new() -> Switch {
        let mut both = Both::new();
        both.control(|state| {
            for path in 0..PATHS {
                let mut entry = Entry::default();
                entry.data[0] = next_hop_of(path);
                state.set(Gress::Ingress, NEXT_HOPS, path, Some(entry)).unwrap();
            }
        });
        Switch(both)
    }

    /// Receives a packet at a time, in microseconds since the clock started; the clock has the lowest 32 bits.
    fn receive(&mut self, flow: u32, now: u64) -> Seen {
        let (phv, _) = self.0.receive(&frame(flow), Phv::default().with(NOW, now as u32));
        Seen {
            slot: phv.get(SLOT),
            start: phv.get(START),
            path: phv.get(PATH),
            next_hop: phv.get(NEXT_HOP),
        }
    }
}

fn next_hop_of(path: u32) -> u32 {
    100 + path
}

/// Four flows, of which the first two share a slot.
static FLOWS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut switch = Switch::new();
    let mut of_slot = HashMap::new();
    let (one, other) = (0..)
        .find_map(|flow| Some((of_slot.insert(switch.receive(flow, 0).slot, flow)?, flow)))
        .unwrap();
    vec![one, other, other + 1, other + 2]
});

/// Packets: a flow, and the time since the packet before. All together take less than half the clock's period.
fn packets() -> impl Strategy<Value = Vec<(u32, u64)>> {
    let pauses = prop_oneof![
        4 => 0..=GAP,
        1 => Just(GAP),
        1 => Just(GAP + 1),
        2 => GAP..10 * GAP,
        1 => 0..1u32 << 23,
    ];
    prop::collection::vec(
        (0..FLOWS.len(), pauses).prop_map(|(flow, pause)| (FLOWS[flow], u64::from(pause))),
        1..200,
    )
}

proptest! {
    /// The model has a clock of 64 bits. It does not know which flowlet a slot begins with.
    #[test]
    fn paths_are_those_of_a_plain_model(start in starts(), packets in packets()) {
        let mut switch = Switch::new();
        // Time of a slot's last packet, and by how many paths its flowlet is beyond the first of the flow.
        let mut slots: HashMap<u32, (u64, u32)> = HashMap::new();
        let mut now = start;
        for (flow, pause) in packets {
            now += pause;
            let seen = switch.receive(flow, now);
            let beyond = (seen.path + PATHS - seen.start) % PATHS;
            let (last, flowlet) = slots.entry(seen.slot).or_insert((now, beyond));
            *flowlet += u32::from(now - *last > u64::from(GAP));
            *last = now;
            let path = (seen.start + *flowlet) % PATHS;
            prop_assert_eq!((seen.path, seen.next_hop), (path, next_hop_of(path)));
        }
        switch.0.assert_same_state();
    }

    #[test]
    fn packets_within_the_gap_never_change_their_next_hop(
        start in starts(),
        packets in packets(),
    ) {
        let mut switch = Switch::new();
        let mut flows: HashMap<u32, (u64, u32)> = HashMap::new();
        let mut now = start;
        for (flow, pause) in packets {
            now += pause;
            let next_hop = switch.receive(flow, now).next_hop;
            if let Some((last, before)) = flows.insert(flow, (now, next_hop))
                && now - last <= u64::from(GAP)
            {
                prop_assert_eq!(next_hop, before, "flow {} at {}", flow, now);
            }
        }
    }
}

#[test]
fn clock_wrap_neither_begins_nor_hides_a_flowlet() {
    let gap = u64::from(GAP);
    for edge in [1 << 32, 1 << 31] {
        for before in 0..=gap + 1 {
            let mut switch = Switch::new();
            let now = edge - before;
            let first = switch.receive(7, now);
            assert_eq!(switch.receive(7, now + gap), first, "{before} before {edge}");
            let second = switch.receive(7, now + gap + gap + 1);
            assert_eq!(second.path, (first.path + 1) % PATHS, "{before} before {edge}");
        }
    }
}

#[test]
fn a_flow_with_pauses_uses_all_paths_in_turn() {
    let mut switch = Switch::new();
    let paths: Vec<_> = (0..2 * PATHS)
        .map(|flowlet| switch.receive(7, u64::from(flowlet * (GAP + 1))).path)
        .collect();
    for (one, next) in paths.iter().zip(&paths[1..]) {
        assert_eq!(*next, (one + 1) % PATHS);
    }
}

#[test]
fn flows_start_on_all_paths() {
    let mut switch = Switch::new();
    let mut flows = [0; PATHS as usize];
    for flow in 0..1600 {
        flows[switch.receive(flow, 0).path as usize] += 1;
    }
    assert!(flows.iter().all(|flows| (50..200).contains(flows)), "{flows:?}");
}

/// The longest pause that counts is half the clock's period; after it the flow switches again.
#[test]
fn a_pause_of_half_the_clocks_period_keeps_the_path_until_the_next_pause() {
    let (half, gap) = (1 << 31, u64::from(GAP));
    let mut switch = Switch::new();
    let first = switch.receive(7, 0);
    let mut now = half + gap - 1;
    let second = switch.receive(7, now);
    assert_eq!(second.path, (first.path + 1) % PATHS);
    now += half + gap;
    assert_eq!(switch.receive(7, now), second);
    now += gap + 1;
    assert_eq!(switch.receive(7, now).path, (second.path + 1) % PATHS);
}

#[test]
fn a_path_that_the_control_plane_moves_takes_its_flowlets_along() {
    let mut switch = Switch::new();
    let before = switch.receive(7, 0);
    switch.0.control(|state| {
        let mut entry = Entry::default();
        entry.data[0] = 7;
        state.set(Gress::Ingress, NEXT_HOPS, before.path, Some(entry)).unwrap();
    });
    assert_eq!(switch.receive(7, 1), Seen { next_hop: 7, ..before });
}
