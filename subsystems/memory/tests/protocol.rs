//! Properties of a policy and a mechanism together, for every pattern.

mod common;

use common::{World, at};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wave_core::brain::Brain;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Message, Sequence, Subject, Upstream};
use wave_core::outcome::Code;
use wave_core::policy::{BadBulk, Choice, Decisions};
use wave_core::snapshot::Snapshot;
use wave_memory::policies::{NAMES, Tiering, by_name};
use wave_memory::space::{Pattern, Space, answer};
use wave_memory::wire::{Action, Place, Reading, Strip};

const ALL: u64 = u64::MAX;

fn policy(name: &str, strips: u32) -> Box<dyn Tiering> {
    by_name(name, &Config { subjects: strips, ..Config::coherent(1) }).unwrap()
}

fn subject(id: u32) -> Subject {
    Subject { id, generation: 1 }
}

fn told(sequence: u32, mapped: u64, void: u64, huge: u8) -> Message {
    Strip {
        strip: subject(0),
        sequence: Sequence(sequence),
        mapped,
        void,
        huge,
        place: Place::default(),
    }
    .to_message()
}

fn all(policy: &mut dyn Tiering, now: Nanos) -> Vec<Choice> {
    std::iter::from_fn(|| policy.next(now)).collect()
}

/// An untouched strip under the threshold policy, until the policy wants to move it; also the time of that.
fn cold_strip(huge: u8, reading: u64) -> (Box<dyn Tiering>, Nanos, Vec<Choice>) {
    let mut policy = policy("threshold", 1);
    policy.on_message(at(0), &told(1, ALL, ALL, huge));
    let words = vec![[0, ALL]; reading.count_ones() as usize];
    for second in 0..100 {
        let now = at(second);
        let choices = all(&mut *policy, now);
        let (scans, moves): (Vec<_>, Vec<_>) =
            choices.into_iter().partition(|choice| choice.kind == Action::Scan as u16);
        if !moves.is_empty() {
            return (policy, now, moves);
        }
        for scan in scans {
            assert_eq!(scan.argument, ALL);
            let reading = Reading {
                strip: scan.subject,
                sequence: scan.sequence,
                interval_us: 9_600_000,
                batches: reading,
                words: &words,
            };
            let mut extent = Vec::new();
            reading.write(&mut extent);
            policy.on_bulk(now, &extent).unwrap();
        }
    }
    panic!("nothing was moved in 100 s");
}

fn page_out(sequence: u32, batches: u64) -> Choice {
    Action::PageOut.choice(subject(0), Sequence(sequence), batches)
}

#[test]
fn refused_page_outs_are_tried_again_or_left_alone() {
    for (code, again) in [
        (Code::TargetStale, true),
        (Code::CpuUnavailable, true),
        (Code::Unsupported, false),
        (Code::InvalidTarget, false),
        (Code::NotPermitted, false),
        (Code::Complete, false),
    ] {
        let (mut policy, now, moves) = cold_strip(0, ALL);
        assert_eq!(moves, [page_out(1, ALL)]);
        assert_eq!(all(&mut *policy, now), [], "the policy waits for the outcome");
        answer(&mut *policy, now, &moves[0], code);
        let next: Vec<_> = (1..20).flat_map(|more| all(&mut *policy, now + at(more))).collect();
        assert_eq!(next.contains(&moves[0]), again, "{code:?}");
    }
}

#[test]
fn remapped_batches_lose_their_history() {
    let (mut policy, now, moves) = cold_strip(0, ALL);
    answer(&mut *policy, now, &moves[0], Code::Complete);
    assert!(policy.explain(0, 3).unwrap().slow);
    policy.on_message(now, &told(2, ALL & !2, 8, 0));
    assert_eq!(policy.explain(0, 1), None, "the batch is unmapped");
    let fresh = policy.explain(0, 3).unwrap();
    assert_eq!((fresh.slow, fresh.pages, fresh.weight), (false, 0, 0.0));
    assert!(policy.explain(0, 4).unwrap().slow, "the other batches are unchanged");
    // Another program at the same place.
    let strip = Subject { id: 0, generation: 2 };
    let strip = Strip {
        strip,
        sequence: Sequence(3),
        mapped: 1,
        void: 0,
        huge: 0,
        place: Place::default(),
    };
    policy.on_message(now, &strip.to_message());
    assert_eq!(policy.explain(0, 0).map(|batch| batch.slow), Some(false));
    assert_eq!(policy.explain(0, 4), None);
}

#[test]
fn readings_of_another_generation_are_ignored() {
    let mut policy = policy("threshold", 1);
    policy.on_message(at(0), &told(2, ALL, ALL, 0));
    let reading = |generation, sequence| Reading {
        strip: Subject { id: 0, generation },
        sequence: Sequence(sequence),
        interval_us: 1_000_000,
        batches: 1,
        words: &[[1, 1]],
    };
    let pages = |policy: &dyn Tiering| policy.explain(0, 0).unwrap().pages;
    for reading in [reading(1, 1), reading(2, 2), reading(1, 3)] {
        let mut extent = Vec::new();
        reading.write(&mut extent);
        assert_eq!(policy.on_bulk(at(1), &extent), Ok(()));
        assert_eq!(pages(&*policy), 0);
    }
    let mut extent = Vec::new();
    reading(1, 2).write(&mut extent);
    extent.extend([subject(7).to_word(), 0, 0]);
    let what = "a reading of a strip that the enclave does not have";
    let bad = BadBulk { words: extent.len(), at: extent.len() - 3, what };
    assert_eq!(policy.on_bulk(at(1), &extent), Err(bad));
    assert_eq!(pages(&*policy), 1, "the readings before it count");
}

#[test]
fn bits_of_unknown_age_are_ignored() {
    let mut policy = policy("sol", 1);
    policy.on_message(at(0), &told(1, ALL, ALL, 0));
    let words = [[ALL, ALL]];
    let strip = subject(0);
    let reading =
        Reading { strip, sequence: Sequence(1), interval_us: 0, batches: 1, words: &words };
    let mut extent = Vec::new();
    reading.write(&mut extent);
    policy.on_bulk(at(1), &extent).unwrap();
    assert_eq!(policy.explain(0, 0).unwrap().weight, 0.0);
}

/// Units 0 and 7 are huge pages: eight batches each; the first batch has the bit.
#[test]
fn huge_pages_are_kept_whole() {
    let reading = 1 | 1 << 56 | ALL & !(0xff | 0xff << 56);
    let (mut policy, now, moves) = cold_strip(0x81, reading);
    assert_eq!(moves, [page_out(1, ALL)]);
    answer(&mut *policy, now, &moves[0], Code::Complete);
    assert!(policy.explain(0, 0).unwrap().slow);
    assert_eq!(policy.explain(0, 1), None, "the first batch stands for the page");
    // The host split the first huge page; its batches are then like all others.
    policy.on_message(now, &told(2, ALL, 0, 0x80));
    assert!(!policy.explain(0, 1).unwrap().slow && !policy.explain(0, 0).unwrap().slow);
    assert!(policy.explain(0, 56).unwrap().slow && policy.explain(0, 8).unwrap().slow);
    // A huge page that is mapped only in part does not count as one.
    policy.on_message(now, &told(3, ALL & !(1 << 60), 0, 0x80));
    assert_eq!([57, 60].map(|batch| policy.explain(0, batch).is_some()), [true, false]);
}

#[test]
fn batches_brought_back_by_others_are_paged_out_again() {
    let mut world =
        World::new(policy("sol", 1), Space::new(1, Pattern::Uniform { per_second: 0.0 }, 1));
    world.run(at(100));
    assert_eq!(world.space.resident_pages(world.now), 0);
    let strip = subject(0);
    // Another process brings two batches back, and no process touches them.
    let back = Action::BringBack.choice(strip, Sequence(1), 3);
    world.space.apply(world.now, &back);
    world.run(at(200));
    assert_eq!(world.space.resident_pages(world.now), 0);
}

#[test]
fn after_a_snapshot_policies_start_from_nothing() {
    for name in NAMES {
        let space = Space::new(2, Pattern::Uniform { per_second: 0.0 }, 1);
        let mut world = World::new(policy(name, 2), space);
        world.run(at(100));
        assert!(world.is_slow(0));
        world.policy.resync(world.now, &Snapshot::default());
        assert_eq!(all(&mut *world.policy, world.now + at(1)), []);
        assert_eq!(world.policy.explain(0, 0), None);
        let messages: Vec<_> = world.space.messages().collect();
        messages.iter().for_each(|message| world.policy.on_message(world.now, message));
        world.made.clear();
        world.run(at(200));
        let scan = |(_, choice): &(Nanos, Choice)| choice.kind == Action::Scan as u16;
        assert!(
            world.made.len() > 10 && world.made.iter().all(scan),
            "{name} scans only: no page is known"
        );
        for id in 0..2 {
            let back = Action::BringBack.choice(subject(id), Sequence(1), ALL);
            world.space.apply(world.now, &back);
        }
        world.run(at(350));
        assert_eq!(world.space.resident_pages(world.now), 0, "{name}");
    }
}

/// Through core's entry point: order, accounts, budgets and recorded deadlines.
#[test]
fn a_brain_scans_what_its_host_has_mapped() {
    for name in NAMES {
        let config = Config { subjects: 4, ..Config::coherent(1) };
        let mut brain = Brain::new(&config, policy(name, 4), Vec::new());
        let asks = Upstream { message: None, outcome: None, asks: true };
        brain.on_entry(at(0), 0, &asks);
        assert_eq!(brain.next_deadline(), None, "there is nothing to scan");
        for id in 0..4 {
            let strip = Strip {
                strip: subject(id),
                sequence: Sequence(1),
                mapped: ALL,
                void: 0,
                huge: 0,
                place: Place::default(),
            };
            let message = Some(strip.to_message());
            brain.on_entry(at(0), 1, &Upstream { message, outcome: None, asks: false });
        }
        assert_eq!(brain.next_deadline(), Some(at(0)));
        let mut out = Decisions::default();
        brain.decide(at(0), 64, &mut out);
        let scans = config.prestage.max(1);
        assert_eq!(
            out.staged.len(),
            usize::from(scans),
            "as many decisions as the host has room for"
        );
        assert!(out.staged.iter().all(|(_, decision)| decision.kind == Action::Scan as u16));
        assert_eq!(brain.recorder().len(), 6);
    }
}

fn number(rng: &mut Pcg64Mcg) -> u64 {
    match rng.random_range(0..4) {
        0 => ALL - rng.random_range(0..2),
        1 => rng.random(),
        _ => rng.random_range(0..4),
    }
}

/// A host that sends arbitrary messages: the policy neither panics nor decides without end, nor about strips that were not
/// reported.
#[test]
fn a_lying_host_harms_no_policy() {
    for name in NAMES {
        for seed in 0..60 {
            println!("{name}, seed {seed}");
            let mut rng = Pcg64Mcg::seed_from_u64(seed);
            let rng = &mut rng;
            let mut policy = policy(name, 3);
            let (mut now, mut made, mut readings) = (Nanos(0), Vec::new(), 0);
            for _ in 0..500 {
                now = now + Nanos(number(rng).min(50_000_000_000));
                let strip = Subject { id: number(rng) as u32, generation: number(rng) as u32 & 1 };
                let sequence = Sequence(number(rng) as u32 & 3);
                let mapped = number(rng) | number(rng);
                let said = Strip {
                    strip,
                    sequence,
                    mapped,
                    void: number(rng),
                    huge: number(rng) as u8,
                    place: Place::default(),
                };
                policy.on_message(
                    now,
                    &Message { kind: rng.random_range(1..3), ..said.to_message() },
                );
                let batches = number(rng);
                let words: Vec<_> = (0..batches.count_ones())
                    .map(|_| (number(rng), number(rng)))
                    .map(|(young, present)| [young & present, present])
                    .collect();
                let interval_us = number(rng) as u32;
                let mut extent = Vec::new();
                Reading { strip, sequence, interval_us, batches, words: &words }.write(&mut extent);
                if rng.random_range(0..8) == 0 {
                    extent.extend((0..rng.random_range(0..20)).map(|_| number(rng)));
                }
                readings += usize::from(policy.on_bulk(now, &extent).is_ok());
                let choices: Vec<_> = std::iter::from_fn(|| policy.next(now)).take(100).collect();
                assert!(choices.len() <= 9, "{} decisions about three strips", choices.len());
                assert!(choices.iter().all(|choice| choice.subject.id < 3 && choice.argument != 0));
                made.extend(choices);
                if let Some(choice) = made.get(number(rng) as usize % made.len().max(1)) {
                    let code = Code::ALL[rng.random_range(0..Code::ALL.len())];
                    let argument = if rng.random() { choice.argument } else { number(rng) };
                    answer(&mut *policy, now, &Choice { argument, ..*choice }, code);
                }
            }
            assert!(
                readings > 50 && made.len() > 50,
                "{readings} readings, {} decisions",
                made.len()
            );
        }
    }
}

/// Memory that a fork shares stays although advice on it succeeds: the policy asks for it again after 2, 4, ... ticks.
#[test]
fn page_outs_of_remaining_batches_are_retried_at_growing_intervals() {
    let left = 0xf0_u64;
    let shown = |policy: &mut dyn Tiering, now, stays: u64| {
        let words: Vec<_> = (0..64).map(|batch| [0, ALL * (stays >> batch & 1)]).collect();
        let mut extent = Vec::new();
        Reading {
            strip: subject(0),
            sequence: Sequence(1),
            interval_us: 0,
            batches: ALL,
            words: &words,
        }
        .write(&mut extent);
        policy.on_bulk(now, &extent).unwrap();
    };
    for outcome_first in [false, true] {
        let (mut policy, mut now, moves) = cold_strip(0, ALL);
        let mut asked = ALL;
        let mut waits = Vec::new();
        for choice in std::iter::once(moves[0]).cycle().take(4) {
            let choice = Choice { argument: asked, ..choice };
            if outcome_first {
                answer(&mut *policy, now, &choice, Code::Partial);
                shown(&mut *policy, now, left);
            } else {
                shown(&mut *policy, now, left);
                answer(&mut *policy, now, &choice, Code::Partial);
            }
            let batch = |batch| policy.explain(0, batch).unwrap();
            assert_eq!(
                [0, 4].map(|at| (batch(at).slow, batch(at).cold)),
                [(true, true), (false, true)]
            );
            assert_eq!([0, 4].map(|at| batch(at).retry_in.is_some()), [false, true]);
            let before = now;
            let next = loop {
                now = now + Nanos::from_millis(9_600);
                let moves = all(&mut *policy, now);
                if let Some(choice) = moves.iter().find(|choice| choice.kind != Action::Scan as u16)
                {
                    break *choice;
                }
            };
            asked = left;
            assert_eq!(next, page_out(1, left), "batches that left are not asked for again");
            waits.push(now.since(before).0 / 9_600_000_000);
        }
        assert_eq!(waits, [2, 4, 4, 4], "up to an epoch, which has four of its ticks");
        let choice = page_out(1, left);
        answer(&mut *policy, now, &choice, Code::Complete);
        assert!(policy.explain(0, 4).unwrap().slow, "the batch has left at last");
    }
}
