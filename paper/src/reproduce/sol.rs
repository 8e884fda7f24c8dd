//! Memory management (7.4): the duration of an iteration of SOL, measured on this machine's cores, and what SOL and a
//! static threshold find in modelled address spaces of 100 GiB and 1 TiB, in virtual time.
//!
//! The hot share of a modelled space is an input: what the paper leaves in DRAM. The results are whether a policy finds it, how
//! often it scans for it, and the cost when the hot part moves. Every batch is modelled; none is sampled. Space and policy have
//! no link between them here.

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::link::Transport;
use wave_core::message::{Sequence, Subject};
use wave_links::costs::Costs;
use wave_memory::policies::sol::{SETTINGS, Sol};
use wave_memory::policies::tiered::{LEVELS_MAX, Schedule};
use wave_memory::policies::{Classifier, Tiering, by_name};
use wave_memory::serve::READINGS;
use wave_memory::space::{Pattern, Space, settle};
use wave_memory::wire::{BATCH_PAGES, Reading, STRIP_BATCHES};
use wave_sim::memory::{self, Setup};

use super::figures::{Curve, Figure};
use super::group::{Group, Ours};
use super::jobs::{ByName, Done, Job};
use super::rows::Kind;
use wave_experiments::measure;

/// SOL with the shortest period of Wave 7.4.1.
const SOL: &str = "sol:shortest_ms=600";
/// The policies, with the names of their curves.
const POLICIES: [(&str, &str); 2] = [(SOL, "SOL"), ("threshold", "static threshold")];
/// Share that the paper leaves in DRAM, in GiB of GiB (7.4.2).
pub(crate) const HOT_SHARE: f64 = 21.3 / 102.0;
/// Epoch for which the paper prints savings.
const PRINTED_EPOCH: f64 = 3.0;
/// Touches per second of a hot page, and of a busy one.
pub(crate) const HOT_PER_SECOND: f64 = 0.5;
const BUSY_PER_SECOND: f64 = 2.0;
/// Busy pages per batch, in the cases that have any.
const BUSY_PAGES: u32 = 3;
/// Interval between samples: four per epoch.
const SAMPLE: Nanos = Nanos::from_millis(9_600);
const SAMPLES_PER_EPOCH: u32 = 4;
const SEED: u64 = 1;
/// Numbers of cores for which the paper prints the duration of an iteration, on the host and on the SmartNIC.
const CORES: [u32; 5] = [1, 2, 4, 8, 16];
const ON_HOST_MS: [f64; 5] = [623.0, 431.0, 354.0, 322.0, 309.0];
const WAVE_MS: [f64; 5] = [1018.0, 576.0, 437.0, 384.0, 364.0];
const BYTES_PER_WORD: usize = 8;
const BYTES_PER_DECISION: f64 = 64.0;

/// A modelled address space, and the time for which it is managed.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    strips: u32,
    /// Whether the hot part moves to the other end after half of the time.
    moves: bool,
    /// Whether every batch has some busy pages.
    busy: bool,
    epochs: u32,
}

/// Address spaces of 100 GiB and 1 TiB.
const CASES: [Case; 3] = [
    Case { name: "moving", strips: 6_400, moves: true, busy: false, epochs: 8 },
    Case { name: "busy", strips: 6_400, moves: false, busy: true, epochs: 5 },
    Case { name: "terabyte", strips: 65_536, moves: false, busy: true, epochs: 4 },
];

impl Case {
    fn batches(&self) -> u64 {
        u64::from(self.strips) * u64::from(STRIP_BATCHES)
    }

    fn pages(&self) -> u64 {
        self.batches() * u64::from(BATCH_PAGES)
    }

    fn samples(&self) -> u32 {
        self.epochs * SAMPLES_PER_EPOCH
    }

    fn pattern(&self) -> Pattern {
        let pages = (self.batches() as f64 * HOT_SHARE) as u64 * u64::from(BATCH_PAGES);
        let hot = |first| Pattern::HotSet { first, pages, per_second: HOT_PER_SECOND };
        let mut pattern = hot(0);
        if self.moves {
            let at = Nanos(SAMPLE.0 * u64::from(self.samples() / 2));
            let patterns = [pattern, hot(self.pages() - pages)].map(Box::new);
            pattern = Pattern::Change { at, patterns };
        }
        if self.busy {
            let heads = Pattern::Heads { pages: BUSY_PAGES, per_second: BUSY_PER_SECOND };
            pattern = Pattern::Sum(vec![pattern, heads]);
        }
        pattern
    }

    fn job(&self, policy: &str) -> String {
        let name = policy.split(':').next().unwrap_or(policy);
        format!("sol-{}-{name}", self.name)
    }
}

/// Copies by the link's engine that the producer waits for or not, with the names of their jobs and curves.
const COPIES: [(Transport, &str, &str); 2] = [
    (Transport::DmaSync, "sync", "each copy is waited for"),
    (Transport::DmaAsync, "async", "the host goes on meanwhile"),
];
/// Sizes in strips of the spaces managed across the link: 1, 4, 16 and 64 GiB.
const ACROSS: [u32; 4] = [64, 256, 1_024, 4_096];

/// Lets SOL manage a space across the modelled link. Returns the host's and the agent's share of a core, in percent.
pub(crate) fn manage_across(strips: u32, copies: Transport) -> Done {
    let pages = u64::from(strips * STRIP_BATCHES * BATCH_PAGES);
    let hot = (pages as f64 * HOT_SHARE) as u64;
    let pattern = Pattern::HotSet { first: 0, pages: hot, per_second: HOT_PER_SECOND };
    let mut setup = Setup::new(strips, SOL, pattern);
    (setup.config.pools[READINGS].transport, setup.config.decisions.transport) = (copies, copies);
    let report = memory::run(&setup, SAMPLE, 2 * SAMPLES_PER_EPOCH).expect("a valid setup");
    let time = (SAMPLE.0 * u64::from(2 * SAMPLES_PER_EPOCH)) as f64;
    let percent = |busy: Nanos| 100.0 * busy.0 as f64 / time;
    Done::of([("host", percent(report.host_busy)), ("agent", percent(report.agent_busy))])
}

pub(super) const SOL_GROUP: Group = Group {
    id: "sol",
    title: "SOL (7.4)",
    about: "memory (7.4): an iteration of SOL, and what it finds in 100 GiB and 1 TiB",
    is_seeded: false,
    jobs: |_| jobs(),
    figures,
    rows: &[
        Ours::new("sol-on-host-1", Kind::Measured, |done| done.value("sol-iteration", "ms-1")).why("What the paper's iteration contains is not printed, so this is no comparison of like with like: ours decides what to scan and to move, takes in the readings of all 409,600 batches, draws for each, and sets its period. One and two cores are measured on this machine; four and more are extrapolated from these by Amdahl's law."),
        Ours::new("sol-on-host-2", Kind::Measured, |done| done.value("sol-iteration", "ms-2")).why("What the paper's iteration contains is not printed, so this is no comparison of like with like: ours decides what to scan and to move, takes in the readings of all 409,600 batches, draws for each, and sets its period. One and two cores are measured on this machine; four and more are extrapolated from these by Amdahl's law."),
        Ours::new("sol-on-host-4", Kind::Extrapolated, |done| extrapolated(4, done)).why("What the paper's iteration contains is not printed, so this is no comparison of like with like: ours decides what to scan and to move, takes in the readings of all 409,600 batches, draws for each, and sets its period. One and two cores are measured on this machine; four and more are extrapolated from these by Amdahl's law."),
        Ours::new("sol-on-host-8", Kind::Extrapolated, |done| extrapolated(8, done)).why("What the paper's iteration contains is not printed, so this is no comparison of like with like: ours decides what to scan and to move, takes in the readings of all 409,600 batches, draws for each, and sets its period. One and two cores are measured on this machine; four and more are extrapolated from these by Amdahl's law."),
        Ours::new("sol-on-host-16", Kind::Extrapolated, |done| extrapolated(16, done)).why("What the paper's iteration contains is not printed, so this is no comparison of like with like: ours decides what to scan and to move, takes in the readings of all 409,600 batches, draws for each, and sets its period. One and two cores are measured on this machine; four and more are extrapolated from these by Amdahl's law."),
        Ours::new("sol-wave-1", Kind::Extrapolated, |_| None).why("No SmartNIC's cores have run this."),
        Ours::new("sol-wave-2", Kind::Extrapolated, |_| None).why("No SmartNIC's cores have run this."),
        Ours::new("sol-wave-4", Kind::Extrapolated, |_| None).why("No SmartNIC's cores have run this."),
        Ours::new("sol-wave-8", Kind::Extrapolated, |_| None).why("No SmartNIC's cores have run this."),
        Ours::new("sol-wave-16", Kind::Extrapolated, |_| None).why("No SmartNIC's cores have run this."),
        Ours::new("sol-entries", Kind::Assumed, |_| copied_ms(readings_bytes())).why("The readings of 100 GiB, 16 bytes a batch, at the modelled link's assumed 16 GB/s. The paper does not print how many bytes it transfers."),
        Ours::new("sol-decisions", Kind::Assumed, |done| copied_ms(moving(done)?.value("decisions-max")? * BYTES_PER_DECISION)).why("The most decisions that SOL makes at once over the modelled 100 GiB, 64 bytes each, at the modelled link's assumed 16 GB/s."),
        Ours::new("sol-batch", Kind::Assumed, |_| Some(f64::from(BATCH_PAGES) * 4.0)),
        Ours::new("sol-shortest", Kind::Assumed, |_| Some(ms(schedule().shortest))),
        Ours::new("sol-longest", Kind::Assumed, |_| {
            let Schedule { shortest, levels, .. } = schedule();
            Some(ms(Nanos(shortest.0 << (levels - 1))))
        }),
        Ours::new("sol-epoch", Kind::Assumed, |_| {
            let Schedule { shortest, epoch_periods, .. } = schedule();
            Some(ms(Nanos(shortest.0 * u64::from(epoch_periods))))
        }),
        Ours::new("sol-reduction", Kind::ByConstruction, |done| {
            let printed = |point: &&[f64; 3]| point[0] == PRINTED_EPOCH;
            moving(done)?.points.iter().find(printed).map(|[_, resident, _]| 100.0 - resident)
        }).why("A fifth of the modelled 100 GiB is hot because the paper leaves as much in DRAM. That SOL finds it, and nothing else, is ours."),
    ],
};

/// The case whose hot part moves, under SOL.
fn moving<'d>(done: &ByName<'d>) -> Option<&'d Done> {
    done.get(&CASES[0].job(SOL))
}

fn ms(nanos: Nanos) -> f64 {
    nanos.0 as f64 / 1e6
}

fn across_job(strips: u32, copies: &str) -> String {
    format!("sol-across-{copies}-{strips}")
}

/// A job per space and policy, longest first, and one that measures.
fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (copies, name, _) in COPIES {
        for strips in ACROSS.into_iter().rev() {
            let work = move || manage_across(strips, copies);
            jobs.push(Job::new(across_job(strips, name), work));
        }
    }
    for case in CASES.into_iter().rev() {
        for (policy, _) in POLICIES {
            jobs.push(Job::new(case.job(policy), move || manage(&case, policy)));
        }
    }
    jobs.push(Job::alone("sol-iteration", measure));
    jobs
}

/// Measures the duration of an iteration on this machine; empty if there are not two CPUs.
fn measure() -> Done {
    let Ok(measured) = measure::sol::iterations(|_, _| ()) else { return Done::default() };
    Done::of([("ms-1", measured.fast.median()), ("ms-2", measured.fast_on_two.median())])
}

/// Lets a policy manage a space. At each sample: epochs, and the shares in percent of pages in the fast tier and of refaults so
/// far.
fn manage(case: &Case, policy: &str) -> Done {
    let config = Config { subjects: case.strips, ..Config::coherent(1) };
    let mut policy = by_name(policy, &config).expect("a known policy");
    let mut space = Space::new(case.strips, case.pattern(), SEED);
    let percent = |pages: u64| 100.0 * pages as f64 / case.pages() as f64;
    let mut done = Done::default();
    let mut now = Nanos(0);
    space.messages().for_each(|message| policy.on_message(now, &message));
    let mut decisions_max = 0;
    for sample in 0..=case.samples() {
        let until = Nanos(SAMPLE.0 * u64::from(sample));
        while now < until {
            let mut decisions = 0;
            settle(&mut *policy, &mut space, now, |_| decisions += 1);
            decisions_max = decisions.max(decisions_max);
            now = policy.next_deadline().map_or(until, |next| next.min(until));
        }
        let resident = percent(space.resident_pages(now));
        let counts = space.counts();
        let epochs = f64::from(sample) / f64::from(SAMPLES_PER_EPOCH);
        done.points.push([epochs, resident, percent(counts.refaults)]);
        let mut keep = |name: String, value: f64| done.values.push((name, value));
        keep(format!("scans-{sample}"), counts.scans as f64 / case.batches() as f64);
        for (level, batches) in batches_per_level(&*policy, case).into_iter().enumerate() {
            let share = 100.0 * batches as f64 / case.batches() as f64;
            keep(format!("level-{level}-{sample}"), share);
        }
    }
    done.values.push(("decisions-max".to_owned(), f64::from(decisions_max)));
    done
}

/// Number of batches scanned at each of SOL's periods, shortest first.
fn batches_per_level(policy: &dyn Tiering, case: &Case) -> [u64; LEVELS_MAX] {
    let shortest = schedule().shortest;
    let mut levels = [0; LEVELS_MAX];
    for strip in 0..case.strips {
        for batch in 0..STRIP_BATCHES {
            let Some(batch) = policy.explain(strip, batch) else { continue };
            let level = (batch.period.0 / shortest.0).max(1).ilog2() as usize;
            levels[level.min(LEVELS_MAX - 1)] += 1;
        }
    }
    levels
}

/// Scan periods as in Wave 7.4.1.
fn schedule() -> Schedule {
    let settings = SOL.split_once(':').map_or("", |(_, settings)| settings);
    let settings = wave_core::settings::Settings::parse(settings, &SETTINGS);
    let sol = settings.and_then(|settings| Sol::from_settings(&settings));
    sol.expect("valid settings").schedule()
}

/// Duration of an iteration on more cores, from those on one and two: a part that divides, and a part that does not.
fn extrapolated(cores: u32, done: &ByName<'_>) -> Option<f64> {
    let measured = done.get("sol-iteration")?;
    let (one, two) = (measured.value("ms-1")?, measured.value("ms-2")?);
    let parallel = (2.0 * (one - two)).clamp(0.0, one);
    Some(one - parallel + parallel / f64::from(cores))
}

/// Milliseconds that a copy of this many bytes takes by the modelled link's assumed costs.
fn copied_ms(bytes: f64) -> Option<f64> {
    let costs = Costs::builtin("mount-evans")?;
    let ns = costs.dma_submit.ns + costs.dma_flight.ns + bytes / 1024.0 * costs.dma_ns_per_kib.ns;
    Some(ns / 1e6)
}

/// Bytes of the readings of the whole 100 GiB.
fn readings_bytes() -> f64 {
    let mut words = Vec::new();
    let strip = Subject { id: 0, generation: 1 };
    let of_batches = [[0; 2]; STRIP_BATCHES as usize];
    let (sequence, batches) = (Sequence(1), u64::MAX);
    Reading { strip, sequence, interval_us: 1, batches, words: &of_batches }.write(&mut words);
    (words.len() * BYTES_PER_WORD) as f64 * f64::from(CASES[0].strips)
}

fn figures(done: &ByName<'_>) -> Vec<Figure> {
    let [moving, busy, terabyte] = CASES;
    let of = |case: &Case, policy: &str| done.get(&case.job(policy));
    let curves = |case: &Case, points: &dyn Fn(&Done) -> Vec<[f64; 2]>| {
        let curve = |(policy, name): (&str, &str)| {
            Curve::ours(name, of(case, policy).map(points).unwrap_or_default())
        };
        POLICIES.into_iter().map(curve).collect::<Vec<_>>()
    };
    let resident = |done: &Done| done.points.iter().map(|[x, y, _]| [*x, *y]).collect();
    let refaults = |done: &Done| done.points.iter().map(|[x, _, y]| [*x, *y]).collect();
    let series = |name: &str, done: &Done| {
        let y = |at: usize| done.value(&format!("{name}-{at}"));
        let points = done.points.iter().enumerate();
        points.filter_map(|(at, [x, ..])| Some([*x, y(at)?])).collect::<Vec<_>>()
    };
    let figure = |id: &str, title: &str, y: &str, text: &str, curves| Figure {
        id: format!("sol-{id}"),
        group: "sol".to_owned(),
        title: title.to_owned(),
        x: "epochs of 38.4 s".to_owned(),
        y: y.to_owned(),
        log_x: false,
        y_max: None,
        text: text.to_owned(),
        curves,
    };
    let printed =
        Curve::paper("the paper's 21.3 of 102 GiB", vec![[PRINTED_EPOCH, 100.0 * HOT_SHARE]]);
    let with_printed = |mut curves: Vec<Curve>| {
        curves.push(printed.clone());
        curves
    };
    let periods = of(&moving, SOL).map_or_else(Vec::new, |done| {
        let Schedule { shortest, levels, .. } = schedule();
        let seconds = |level| (shortest.0 << level) as f64 / 1e9;
        let curve = |level: u32| {
            let points = series(&format!("level-{level}"), done);
            Curve::ours(&format!("every {} s", seconds(level)), points)
        };
        (0..levels).map(curve).collect()
    });
    vec![
        figure(
            "resident",
            "100 GiB, of which a fifth is hot, and another fifth after four epochs",
            "in the fast tier, %",
            "How much is hot goes in, by construction; that it is found, and when, comes out. Each strip's \
             epochs end at another time, so that what one epoch decides takes as long again to show.",
            with_printed(curves(&moving, &resident)),
        ),
        figure(
            "refaults",
            "The same: pages that were touched in the slow tier",
            "refaults so far, % of all pages",
            "The price of the change: each page of the new hot part comes back once, at its first touch.",
            curves(&moving, &refaults),
        ),
        figure(
            "scans",
            "The same: scans",
            "scans of a batch so far",
            "The static threshold scans everything every 9.6 s. SOL begins at 600 ms. Where a fixed threshold finds \
             the same and scans less, as it can where the batches of a tier are alike, short periods gain \
             nothing.",
            curves(&moving, &|done| series("scans", done)),
        ),
        figure(
            "periods",
            "The same: how often SOL scans",
            "batches, %",
            "A draw that contradicts what is believed of a batch halves its period, one that agrees \
             doubles it.",
            periods,
        ),
        figure(
            "busy",
            "100 GiB, a fifth hot, and three busy pages in every batch",
            "in the fast tier, %",
            "As allocators and lists have them in live programs. Busy pages of cold batches come back by \
             themselves.",
            with_printed(curves(&busy, &resident)),
        ),
        figure(
            "terabyte",
            "1 TiB, the same",
            "in the fast tier, %",
            "Every one of 4,194,304 batches is modelled.",
            with_printed(curves(&terabyte, &resident)),
        ),
        across(done),
        iterations(done),
    ]
}

/// CPU cost of the copies to the host: a small part of its work.
fn across(done: &ByName<'_>) -> Figure {
    let curve = |name: &str, title: &str| {
        let point = |strips: &u32| {
            let host = done.get(across_job(*strips, name).as_str())?.value("host")?;
            Some([f64::from(*strips) / 64.0, host])
        };
        Curve::ours(title, ACROSS.iter().filter_map(point).collect())
    };
    Figure {
        id: "sol-across".to_owned(),
        group: "sol".to_owned(),
        title: "Across the modelled link: CPU time of the host's side".to_owned(),
        x: "managed GiB".to_owned(),
        y: "% of a core".to_owned(),
        log_x: true,
        y_max: None,
        text: "Reading, clearing and paging out of a host thread over two epochs, with readings and decisions \
               copied by DMA (5.1, 7.4). A copy of an extent of 32 KiB takes some microseconds, and clearing \
               and paging out what it tells of takes milliseconds: whether it is waited for hardly matters."
            .to_owned(),
        curves: COPIES.iter().map(|(_, name, title)| curve(name, title)).collect(),
    }
}

/// Duration of an iteration by number of cores: each curve in percent of its own first point.
fn iterations(done: &ByName<'_>) -> Figure {
    let measured = |cores: u32| done.get("sol-iteration")?.value(&format!("ms-{cores}"));
    let of_one = |ms: &dyn Fn(usize, u32) -> Option<f64>, from: usize, to: usize| {
        let one = ms(0, CORES[0]);
        let point = |at: usize| Some([f64::from(CORES[at]), 100.0 * ms(at, CORES[at])? / one?]);
        (from..to).filter_map(point).collect::<Vec<_>>()
    };
    let all = CORES.len();
    Figure {
        id: "sol-iteration".to_owned(),
        group: "sol".to_owned(),
        title: "An iteration over 100 GiB on more cores".to_owned(),
        x: "cores".to_owned(),
        y: "% of what one core takes".to_owned(),
        log_x: true,
        y_max: None,
        text: "Measured here on one and two cores. More cores are extrapolated from these two by Amdahl's \
               law, without a limit by the memory's bandwidth. The paper says that portions of its policy \
               are serial; none of ours is."
            .to_owned(),
        curves: vec![
            Curve::ours("measured here", of_one(&|_, cores| measured(cores), 0, 2)),
            Curve::ours(
                "extrapolated from it",
                of_one(&|_, cores| extrapolated(cores, done), 1, all),
            ),
            Curve::paper("the paper's host cores", of_one(&|at, _| Some(ON_HOST_MS[at]), 0, all)),
            Curve::paper(
                "the paper's SmartNIC cores",
                of_one(&|at, _| Some(WAVE_MS[at]), 0, all),
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A case scaled down for tests.
    fn small(at: usize) -> Case {
        Case { strips: 8, ..CASES[at] }
    }

    fn at_epoch(done: &Done, epoch: f64) -> [f64; 2] {
        let point = done.points.iter().find(|point| point[0] == epoch).expect("it is sampled");
        [point[1], point[2]]
    }

    #[test]
    fn sol_finds_the_cold_part_before_and_after_it_moves() {
        let case = small(0);
        let done = manage(&case, SOL);
        assert_eq!(done.points[0], [0.0, 100.0, 0.0]);
        let hot = 100.0 * (case.batches() as f64 * HOT_SHARE).floor() / case.batches() as f64;
        let ([before, refaults], [after, all]) = (at_epoch(&done, 4.0), at_epoch(&done, 8.0));
        assert_eq!((before, refaults), (hot, 0.0));
        assert_eq!(after, hot);
        assert!(all >= hot && all < 1.1 * hot, "{all}: each page of the new part once");
        let shares: f64 = (0..LEVELS_MAX)
            .filter_map(|level| done.value(&format!("level-{level}-{}", case.samples())))
            .sum();
        assert!((shares - 100.0).abs() < 1e-9, "every batch has a period");
        assert_eq!(manage(&case, SOL).points, done.points, "the same seed, the same history");
    }

    #[test]
    fn sol_finds_cold_pages_in_batches_with_busy_pages() {
        let [resident, _] = at_epoch(&manage(&small(1), SOL), 4.0);
        assert!(resident < 30.0, "{resident}");
    }

    #[test]
    fn waiting_for_copies_costs_less_than_five_percent() {
        let [sync, asynchronous] = COPIES.map(|(copies, ..)| manage_across(4, copies));
        let host = |done: &Done| done.value("host").unwrap();
        assert!(host(&asynchronous) > 0.0);
        let more = host(&sync) / host(&asynchronous) - 1.0;
        assert!(more.abs() < 0.05, "{sync:?} {asynchronous:?}");
    }

    #[test]
    fn iteration_is_extrapolated_from_one_and_two_cores() {
        let done = Done::of([("ms-1", 10.0), ("ms-2", 6.0)]);
        let done = ByName::from_iter([("sol-iteration", &done)]);
        // Eight tenths of the work divide.
        assert_eq!([2, 4, 16].map(|cores| extrapolated(cores, &done)), [6.0, 4.0, 2.5].map(Some));
        assert_eq!(extrapolated(4, &ByName::default()), None);
    }

    #[test]
    fn every_printed_figure_except_the_nics_has_ours() {
        let moving =
            Done { points: vec![[3.0, 21.0, 0.0]], ..Done::of([("decisions-max", 100.0)]) };
        let measured = Done::of([("ms-1", 10.0), ("ms-2", 6.0)]);
        let name = CASES[0].job(SOL);
        let done = ByName::from_iter([(name.as_str(), &moving), ("sol-iteration", &measured)]);
        for Ours { id, of, .. } in SOL_GROUP.rows {
            assert_eq!(of(&done).is_none(), id.starts_with("sol-wave-"), "{id}");
        }
        for (at, cores) in CORES.iter().enumerate() {
            let printed = |id: &str| {
                let id = format!("{id}-{cores}");
                wave_sim::paper::printed().into_iter().find(|row| row.id == id).map(|row| row.low)
            };
            assert_eq!(printed("sol-on-host"), Some(ON_HOST_MS[at]));
            assert_eq!(printed("sol-wave"), Some(WAVE_MS[at]));
        }
        let longest = SOL_GROUP.rows.iter().find(|ours| ours.id == "sol-longest").unwrap();
        assert_eq!((longest.of)(&done), Some(9_600.0));
    }
}
