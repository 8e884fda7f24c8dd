//! An agent that writes arbitrary words while mappings change: the host side of memory management touches
//! nothing that is not mapped, splits no huge page, counts no page twice, and never panics.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::layout::{Layout, write_header};
use wave_core::link::{Home, Port, Window};
use wave_core::outcome::Code;
use wave_links::memory::Memory;
use wave_links::shm::ShmPort;
use wave_memory::guard::{Guard, Limits};
use wave_memory::serve::{Cost, Fault, Server, State, Tiers, config};
use wave_memory::table::Bits;
use wave_memory::wire::{Action, Place, STRIP_BYTES, bits, whole};

const STRIPS: u32 = 6;
const SPACES: u32 = 3;

/// The mapped batches, by space and address; checks every request against them.
#[derive(Default)]
struct Model {
    now: Nanos,
    mapped: BTreeMap<Place, u64>,
    huge: BTreeMap<Place, u8>,
    out: BTreeMap<Place, u64>,
    moves: u64,
}

impl Model {
    fn check_mapped(&self, place: Place, batches: u64) {
        let mapped = self.mapped.get(&place).copied().unwrap_or(0);
        assert_eq!(batches & !mapped, 0, "{place:?}: batches that are not mapped");
    }

    fn check_whole(&self, place: Place, batches: u64) {
        let huge = self.huge.get(&place).copied().unwrap_or(0);
        for unit in 0..8 {
            let unit = whole(huge & 1 << unit);
            assert!(batches & unit == 0 || batches & unit == unit, "a part of a huge page moves");
        }
    }
}

impl Tiers for Model {
    fn now(&self) -> Nanos {
        self.now
    }

    fn read(&mut self, place: Place) -> Option<Bits> {
        let mapped = *self.mapped.get(&place)?;
        let mut read =
            Bits { huge: self.huge.get(&place).copied().unwrap_or(0), ..Bits::default() };
        for batch in bits(mapped & !self.out.get(&place).copied().unwrap_or(0)) {
            read.present[batch as usize] = u64::MAX;
            read.young[batch as usize] = u64::MAX;
        }
        Some(read)
    }

    fn clear(&mut self, place: Place, batches: u64) -> u64 {
        assert_eq!(batches & !self.mapped.get(&place).copied().unwrap_or(0), 0);
        batches & 1
    }

    fn page_out(&mut self, place: Place, batches: u64, _seen: &Bits) -> Result<Cost, Code> {
        self.check_mapped(place, batches);
        self.check_whole(place, batches);
        // Any page may be incompressible, except parts of huge pages.
        let huge = whole(self.huge.get(&place).copied().unwrap_or(0));
        let incompressible = batches & !huge & self.moves.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *self.out.entry(place).or_default() |= batches & !incompressible;
        self.moves += 1;
        Ok(Cost { incompressible, ..Cost::NONE })
    }

    fn bring_back(&mut self, place: Place, batches: u64) -> Result<(), Code> {
        self.check_mapped(place, batches);
        *self.out.entry(place).or_default() &= !batches;
        self.moves += 1;
        Ok(())
    }
}

/// Changes the mappings of a space, and updates the table as a survey does.
fn remap(rng: &mut Pcg64Mcg, model: &mut Model, state: &mut State) {
    let space = rng.random_range(0..SPACES);
    let mut now = BTreeMap::new();
    for number in 0..rng.random_range(0..4) {
        let mask = if rng.random() { u64::MAX } else { rng.random() };
        now.insert(number * STRIP_BYTES, mask);
    }
    model.mapped.retain(|place, _| place.space != space);
    for (&address, &mask) in now.iter().filter(|(_, mask)| **mask != 0) {
        let place = Place { space, address };
        model.mapped.insert(place, mask);
        // A huge page is a unit that is mapped as a whole.
        let units = (0..8).filter(|unit| mask & whole(1 << unit) == whole(1 << unit));
        let huge =
            units.filter(|_| rng.random_range(0..3) == 0).fold(0, |all, unit| all | 1 << unit);
        model.huge.insert(place, huge);
        model.out.insert(place, 0);
    }
    state.table.update(space, &now);
}

/// A fresh window with the ports of both sides.
fn window() -> (Layout, ShmPort, ShmPort) {
    let mut config = config(STRIPS);
    config.spin = Nanos(0);
    let layout = Layout::new(config).unwrap();
    let (memory, _fd) =
        Memory::create("wave-test", layout.nic_lines, layout.host_lines, 0).unwrap();
    let memory = Arc::new(memory);
    let (host, agent) = (ShmPort::new(&memory), ShmPort::new(&memory));
    write_header(&layout, host.window(Home::Nic));
    (layout, host, agent)
}

#[test]
fn a_hostile_agent_moves_only_what_is_mapped() {
    let seeds = std::env::var("WAVE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let (mut moves, mut faults) = (0, 0);
    for seed in 0..seeds {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let (layout, host, agent) = window();
        let mut state = State::new(STRIPS, Guard::new(Limits::NONE), false);
        let mut model = Model { now: Nanos(1), ..Model::default() };
        let mut server = Server::new(&layout, 0, model.now);
        let ring = layout.decisions[0].ring;
        let (mut sent, mut asked) = (0_u64, 0_u64);
        for round in 0..3_000_u64 {
            model.now = Nanos(model.now.0 + rng.random_range(0..20_000_000));
            match rng.random_range(0..12) {
                0 => remap(&mut rng, &mut model, &mut state),
                // A plausible decision: any kind, subject, sequence and batches.
                1..=8 => {
                    let near = agent.window(ring_home(&layout));
                    let line = ring.first + (sent % u64::from(ring.entries)) as u32;
                    let subject =
                        rng.random_range(0..3_u64) << 32 | rng.random_range(0..STRIPS as u64 + 1);
                    let mut second = sent << 32 | rng.random_range(0..6_u64);
                    let mut subject = subject;
                    // Half of them name the current state of a strip.
                    let records: Vec<_> = state.table.records().collect();
                    if rng.random() && !records.is_empty() {
                        let record = &records[rng.random_range(0..records.len())];
                        subject = record.subject.to_word();
                        second = sent << 32 | u64::from(record.sequence.0);
                    }
                    let batches = match rng.random_range(0..3) {
                        0 => u64::MAX,
                        1 => 0xff << (8 * rng.random_range(0..8)),
                        _ => rng.random(),
                    };
                    let lap = sent / u64::from(ring.entries) + 1;
                    let kind = rng.random_range(0..5_u64);
                    let last = lap << 32 | kind << 16 | 3;
                    near.write_line(line, &[subject, second, batches], last);
                    near.fence();
                    sent += 1;
                }
                // Messages of the core crate: snapshots, returns of extents, lent or not.
                10 if round % 3 == 0 => {
                    let ring = layout.control.ring;
                    let line = ring.first + (asked % u64::from(ring.entries)) as u32;
                    let kind = 0x8000 + rng.random_range(1..7_u64);
                    let word = rng.random_range(0..3_u64) << 32 | rng.random_range(0..3_u64);
                    let lap = asked / u64::from(ring.entries) + 1;
                    agent.window(Home::Nic).write_line(line, &[word], lap << 32 | kind << 16 | 1);
                    asked += 1;
                }
                // Any word, anywhere that the agent may write.
                9 if round % 5 == 0 => {
                    let home = if rng.random() { Home::Nic } else { Home::Host };
                    let lines =
                        if home == Home::Nic { layout.nic_lines } else { layout.host_lines };
                    let line = match rng.random_range(0..3) {
                        0 => layout.control.ring.first + rng.random_range(0..8),
                        1 => ring.first + rng.random_range(0..ring.entries),
                        _ => rng.random_range(8..lines),
                    };
                    let word = rng.random::<u64>() >> rng.random_range(0..64);
                    agent.window(home).store(line, rng.random_range(0..8), word);
                }
                _ => {}
            }
            for _ in 0..rng.random_range(0..4) {
                match server.step(&host, &mut state, &mut model) {
                    Ok(_) => {}
                    Err(fault) => {
                        faults += u64::from(fault == Fault::Nonsense);
                        // The agent is turned out; the next one gets the same window here, zeroed.
                        for home in [Home::Nic, Home::Host] {
                            let lines = if home == Home::Nic {
                                layout.nic_lines
                            } else {
                                layout.host_lines
                            };
                            for line in 0..lines {
                                host.window(home).write_line(line, &[0; 7], 0);
                            }
                        }
                        write_header(&layout, host.window(Home::Nic));
                        server = Server::new(&layout, server.record().run, model.now);
                        (sent, asked) = (0, 0);
                    }
                }
            }
            let of_table: BTreeMap<Place, u64> =
                state.table.strips().filter(|(_, mapped)| *mapped != 0).collect();
            assert!(of_table.len() <= STRIPS as usize);
            for (place, mapped) in &of_table {
                let really = model.mapped.get(place).copied().unwrap_or(0);
                assert_eq!(mapped & !really, 0, "seed {seed}, round {round}: {place:?}");
            }
        }
        moves += model.moves;
    }
    println!("{moves} moves, {faults} agents turned out for invalid entries");
    assert!(moves > 1_000 && faults > 0, "{moves} {faults}");
}

fn ring_home(layout: &Layout) -> Home {
    layout.decisions[0].home
}

/// Otherwise an agent that brings back what was touched hides its refaults from the limits.
#[test]
fn pages_that_were_touched_are_refaults_even_if_the_agent_brings_them_back() {
    let (layout, host, agent) = window();
    let mut state = State::new(STRIPS, Guard::new(Limits::NONE), false);
    let mut model = Model { now: Nanos(1), ..Model::default() };
    let place = Place { space: 0, address: 0 };
    model.mapped.insert(place, u64::MAX);
    state.table.update(0, &BTreeMap::from([(0, u64::MAX)]));
    let mut server = Server::new(&layout, 0, model.now);
    let mut decide = |number: u64, action: Action, state: &mut State, model: &mut Model| {
        for _ in 0..8 {
            server.step(&host, state, model).unwrap();
        }
        let record = state.table.records().next().unwrap();
        let line = layout.decisions[0].ring.first + number as u32;
        let words =
            [record.subject.to_word(), number << 32 | u64::from(record.sequence.0), u64::MAX];
        let near = agent.window(ring_home(&layout));
        near.write_line(line, &words, 1 << 32 | (action as u64) << 16 | 3);
        near.fence();
        for _ in 0..8 {
            server.step(&host, state, model).unwrap();
        }
    };
    decide(0, Action::PageOut, &mut state, &mut model);
    assert_eq!(model.out[&place], u64::MAX);
    // The program touches a half of them.
    model.out.insert(place, u64::MAX << 32);
    decide(1, Action::BringBack, &mut state, &mut model);
    assert_eq!(model.out[&place], 0);
    let half = 32 * 64;
    assert_eq!((state.totals.refaults, state.totals.pages_brought_back), (half, half));
}
