//! Threads that read RocksDB and allocate while they are preempted continually, and check every result.
//!
//! Every GET's value, and every key and value of a scan, is compared with what was written; every allocation with the bytes
//! left in it. User-level threads are preempted at safe points, which a scan passes after each key; kernel-level ones anywhere,
//! including in RocksDB and in malloc.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, RngCore, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wave_user::{Enclave, preempt_point};
use wave_workloads::rocksdb::{Database, is_value_of};

use crate::ground::preemptions::Preempted;
use crate::ground::service::Service;
use crate::ground::system::{Hosted, attributes};
use crate::ground::{Failure, Found, Ground, pin_housekeeping, seating, variant_result};
use crate::kinds::requests::scenario::{Agent, Variant};
use wave_process::words::counted;
use wave_report::model::VariantResult;

const KEYS_PER_SCAN: u64 = 2_000;
/// Allocations that a thread holds at a time.
const BLOCKS: usize = 64;
/// Largest allocation in bytes.
const BLOCK_BYTES: usize = 4_096;
/// Time allowed for threads to end once told to.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Preempts the threads of each variant in turn.
pub(crate) fn run(ground: &Ground<'_>, threads: u32) -> Result<Found, Failure> {
    if !ground.service.has_ranges() {
        let why = "chaos scans: it needs a class with operation = \"range\"";
        return Err(Failure::Scenario(format!("{}: {why}", ground.scenario.name)));
    }
    let mut found = Found::default();
    let mut all = Tally::default();
    let mut by_variant = Vec::new();
    for variant in &ground.scenario.variants {
        let agent = variant
            .agent()
            .ok_or_else(|| Failure::Scenario(format!("{}: chaos needs an agent", variant.name)))?;
        let seconds = ground.scenario.run.seconds;
        ground.begin(&format!("{}: {seconds:.0} s", variant.name));
        let tally = ground.journal.point(&variant.name, || one(ground, variant, agent, threads))?;
        ground.end();
        found.facts.extend(tally.facts(&variant.name, &agent.policy));
        found.failed.extend(tally.complaints(&variant.name));
        let mut json = tally.to_json();
        json["name"] = json!(variant.name);
        by_variant.push(json);
        all.add(&tally);
        let preemptions = Some(tally.preempted.report());
        found.variants.push(VariantResult { preemptions, ..variant_result(variant) });
    }
    found.extra = all.to_json();
    found.extra["by_variant"] = Value::Array(by_variant);
    Ok(found)
}

fn one(
    ground: &Ground<'_>,
    variant: &Variant,
    agent: &Agent,
    count: u32,
) -> Result<Tally, Failure> {
    let run = &ground.scenario.run;
    let seating = seating::seat(&ground.cpus, variant.host.cores as usize, 1);
    pin_housekeeping(&seating, &ground.cpus)?;
    let logs = ground.logs(&variant.name);
    let mut hosted = Hosted::start(variant.host, agent, &seating, 0, &seating.workers, logs)?;
    let shared = Arc::new(Shared {
        service: Arc::clone(&ground.service),
        stop: AtomicBool::new(false),
        counts: Counts::default(),
    });
    let attributes = attributes(variant.host.threads, 0);
    let mut threads = Vec::new();
    for number in 0..u64::from(count) {
        let shared = Arc::clone(&shared);
        let seed = run.seed.wrapping_mul(1 << 20).wrapping_add(number);
        let thread = hosted.enclave.spawn(attributes, move || shared.work(seed));
        threads.push(thread.map_err(Failure::cannot)?);
    }
    let start = Instant::now();
    let mut lost_agents = Vec::new();
    while start.elapsed().as_secs_f64() < run.seconds {
        std::thread::sleep(Duration::from_millis(100));
        lost_agents.extend(hosted.replace_lost_agent()?);
    }
    shared.stop.store(true, Ordering::SeqCst);
    let stopped = Instant::now();
    while hosted.enclave.alive() > 0 && stopped.elapsed() < END_PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    let stuck = hosted.enclave.alive() as u64;
    let mut panicked = 0;
    if stuck == 0 {
        panicked = threads.into_iter().map(|thread| u64::from(thread.join().is_err())).sum();
    }
    Ok(Tally::of(&hosted.enclave, &shared.counts, stuck, panicked, lost_agents.len() as u64))
}

#[derive(Debug, Default)]
struct Counts {
    gets: AtomicU64,
    keys_scanned: AtomicU64,
    allocations: AtomicU64,
    wrong: AtomicU64,
}

struct Shared {
    service: Arc<Service>,
    stop: AtomicBool,
    counts: Counts,
}

impl Shared {
    /// Runs one thread: GETs, scans and allocations until the end.
    fn work(&self, seed: u64) {
        let mut random = Pcg64::seed_from_u64(seed);
        let database = self.service.database();
        let mut blocks: Vec<Vec<u8>> = vec![Vec::new(); BLOCKS];
        while !self.stop.load(Ordering::Relaxed) {
            let wrong = match random.random_range(0..10) {
                0..6 => self.get(database, random.random_range(0..database.keys())),
                6..8 => self.scan(database, &mut random),
                _ => self.allocate(&mut blocks, &mut random),
            };
            self.counts.wrong.fetch_add(wrong, Ordering::Relaxed);
            preempt_point();
        }
    }

    /// Checks one GET. Returns the number of errors, like `scan` and `allocate`.
    fn get(&self, database: &Database, key: u64) -> u64 {
        let mut right = false;
        let found = database.get(key, |value| right = is_value_of(key, value));
        self.counts.gets.fetch_add(1, Ordering::Relaxed);
        u64::from(!right || found.is_err())
    }

    fn scan(&self, database: &Database, random: &mut impl RngCore) -> u64 {
        let mut expected = random.random_range(0..database.keys());
        let mut left = random.random_range(1..=KEYS_PER_SCAN);
        let keys = left;
        let mut wrong = 0;
        let scanned = database.scan(expected, |key, value| {
            wrong += u64::from(key != expected || !is_value_of(key, value));
            expected = (key + 1) % database.keys();
            left -= 1;
            preempt_point();
            left > 0
        });
        self.counts.keys_scanned.fetch_add(keys - left, Ordering::Relaxed);
        wrong + left + u64::from(scanned.is_err())
    }

    fn allocate(&self, blocks: &mut [Vec<u8>], random: &mut impl RngCore) -> u64 {
        let at = random.random_range(0..blocks.len());
        let mark = at as u8;
        let torn = blocks[at].iter().filter(|byte| **byte != mark).count() as u64;
        blocks[at] = vec![mark; random.random_range(1..=BLOCK_BYTES)];
        self.counts.allocations.fetch_add(1, Ordering::Relaxed);
        torn
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Tally {
    preempted: Preempted,
    gets: u64,
    keys_scanned: u64,
    allocations: u64,
    wrong: u64,
    /// Threads that did not end when told to.
    stuck: u64,
    panicked: u64,
    lost_agents: u64,
}

impl Tally {
    fn of(
        enclave: &Enclave,
        counts: &Counts,
        stuck: u64,
        panicked: u64,
        lost_agents: u64,
    ) -> Tally {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Tally {
            preempted: Preempted::of(enclave),
            gets: get(&counts.gets),
            keys_scanned: get(&counts.keys_scanned),
            allocations: get(&counts.allocations),
            wrong: get(&counts.wrong),
            stuck,
            panicked,
            lost_agents,
        }
    }

    fn add(&mut self, other: &Tally) {
        self.preempted.add(&other.preempted);
        self.gets += other.gets;
        self.keys_scanned += other.keys_scanned;
        self.allocations += other.allocations;
        self.wrong += other.wrong;
        self.stuck += other.stuck;
        self.panicked += other.panicked;
        self.lost_agents += other.lost_agents;
    }

    fn failures(&self) -> u64 {
        self.wrong + self.stuck + self.panicked
    }

    fn to_json(&self) -> Value {
        json!({
            "preemptions": self.preempted.count(),
            "failures": self.failures(),
            "gets_verified": self.gets,
            "keys_verified_in_scans": self.keys_scanned,
            "allocations_verified": self.allocations,
            "wrong": self.wrong,
            "threads_stuck": self.stuck,
            "threads_panicked": self.panicked,
            "agents_lost": self.lost_agents,
        })
    }

    fn facts(&self, variant: &str, policy: &str) -> Vec<(String, String)> {
        let Tally { gets, keys_scanned, allocations, .. } = self;
        let what = format!("{variant}: {} failures", self.failures());
        let how = format!(
            "{gets} GETs, {keys_scanned} keys in scans and {allocations} allocations verified"
        );
        let mut facts = vec![(what, how)];
        facts.extend(self.preempted.facts(variant, policy));
        if self.lost_agents > 0 {
            let how = "turned out by the watchdog, and replaced".to_owned();
            facts.push((format!("{variant}: lost {}", counted(self.lost_agents, "agent")), how));
        }
        facts
    }

    fn complaints(&self, variant: &str) -> Vec<String> {
        [
            (self.wrong, "keys, values or allocated bytes were not what had been written"),
            (self.stuck, "threads did not end"),
            (self.panicked, "threads panicked"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{variant}: {count} {what}"))
        .chain((self.preempted.count() == 0).then(|| format!("{variant}: no run was preempted")))
        .chain((self.gets == 0).then(|| format!("{variant}: nothing was read")))
        .collect()
    }
}
