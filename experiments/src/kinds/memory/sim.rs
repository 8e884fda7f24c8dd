//! The memory scenarios on a simulated host: a modelled address space under the real host side, agent loop and policy.
//!
//! The process is its database: pages in key order, in whole strips, touched at the rates of the scenario's GETs. The model is
//! `wave_sim::memory`'s, as in `wave reproduce sol` (docs/adr/0043). The result has `None` for everything that is not modelled:
//! no GETs are served, and nothing is compressed.

use std::path::Path;

use wave_core::clock::Nanos;
use wave_links::costs::Costs;
use wave_memory::space::Pattern;
use wave_memory::wire::{BATCH_PAGES, STRIP_BATCHES};
use wave_sim::memory::{self, Report, Setup, Work};

use super::report::{MemoryResult, Ran, Second};
use crate::ground::{Failure, Journal};
use crate::kinds::memory::scenario::Workload;
use crate::kinds::memory::{Managed, Memory};
use crate::kinds::requests::sim::parallel;
use crate::kinds::requests::sim::point::sink;
use wave_app_memory::sample::{Sample, held_by_guard};
use wave_apps::machine;
use wave_apps::recording::{Logs, Recording};
use wave_scenario::size::{Size, show};
use wave_terminal::Progress;

const PAGE_BYTES: u64 = 4096;
const STRIP_PAGES: u64 = STRIP_BATCHES as u64 * BATCH_PAGES as u64;
const KEY_BYTES: u64 = 8;
/// Interval between samples, as in native runs.
const INTERVAL: Nanos = Nanos::from_millis(1_000);

/// Simulates each variant, except those that `journal` has. Agents write logs into the directory `record`, if given.
pub fn run(
    scenario: &Memory,
    quiet: bool,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<MemoryResult, Failure> {
    let started = journal.started();
    let space = Database::of(scenario)?;
    let start = |folder| Recording::start(folder, &scenario.name, scenario.run.seed);
    let recording = record.map(start).transpose()?;
    let progress = Progress::new(scenario.variants.len() as u64, quiet);
    journal.follow(&progress);
    let label = |variant: &Managed| format!("{}: {:.0} s", variant.name, scenario.run.seconds);
    let ran = parallel::each(&scenario.variants, &progress, label, |variant| {
        let logs = recording.as_ref().map(|recording| recording.logs(&variant.name));
        journal.point(&variant.name, || simulate(scenario, &space, variant, logs.as_ref()))
    })?;
    let mut facts = space.facts(scenario);
    facts.extend(recording.map(|recording| {
        let (what, _) = recording.fact();
        (what, "which takes no virtual time".to_owned())
    }));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut machine = machine::machine(cpus);
    machine.model = format!("simulated memory of {}, on {}", show(space.bytes()), machine.model);
    let seating = "Simulated: the host's thread and the agent have a CPU each.".to_owned();
    Ok(MemoryResult::new(scenario, "sim", started, machine, seating, ran, facts))
}

/// The database as the modelled process holds it.
struct Database {
    strips: u32,
    /// Pages with blocks; the remaining pages of the last strip are never touched.
    pages: u64,
    hot_pages: u64,
    pages_per_get: u64,
}

impl Database {
    fn of(scenario: &Memory) -> Result<Database, Failure> {
        let Workload { keys, value_bytes, block_bytes, cache: Size(cache_bytes), hot_keys, .. } =
            scenario.workload;
        let bytes = keys * (KEY_BYTES + u64::from(value_bytes));
        if bytes > cache_bytes {
            let [bytes, cache] = [bytes, cache_bytes].map(show);
            let why = format!("`workload.cache` is {cache}, and the keys and values have {bytes}");
            return Err(Failure::Scenario(format!("{}: {why}", scenario.name)));
        }
        let pages = bytes.div_ceil(PAGE_BYTES);
        let strips = u32::try_from(pages.div_ceil(STRIP_PAGES)).map_err(|_| {
            let why = format!("a database of {} is not simulated", show(bytes));
            Failure::Scenario(format!("{}: {why}", scenario.name))
        })?;
        let hot_pages = match (keys as f64 * hot_keys) as u64 {
            0 => 0,
            hot if hot == keys => pages,
            // Hot keys have at least one page.
            _ => ((pages as f64 * hot_keys) as u64).max(1),
        };
        let pages_per_get = u64::from(block_bytes).div_ceil(PAGE_BYTES);
        Ok(Database { strips, pages, hot_pages, pages_per_get })
    }

    fn bytes(&self) -> u64 {
        u64::from(self.strips) * STRIP_PAGES * PAGE_BYTES
    }

    /// Share of the GETs that go to hot pages; all or none if only one kind of page exists, as natively.
    fn hot_gets(&self, workload: &Workload) -> f64 {
        match self.hot_pages {
            0 => 0.0,
            hot if hot == self.pages => 1.0,
            _ => workload.hot_gets,
        }
    }

    /// Access rates by page; the hot keys come first.
    fn pattern(&self, workload: &Workload) -> Pattern {
        let touches = workload.gets_per_second * self.pages_per_get as f64;
        let part = |first: u64, pages: u64, share: f64| {
            let per_second = touches * share / pages as f64;
            let pattern = Pattern::HotSet { first, pages, per_second };
            (pages > 0 && share > 0.0).then_some(pattern)
        };
        let hot_gets = self.hot_gets(workload);
        let hot = part(0, self.hot_pages, hot_gets);
        let cold = part(self.hot_pages, self.pages - self.hot_pages, 1.0 - hot_gets);
        match (hot, cold) {
            (Some(only), None) | (None, Some(only)) => only,
            (hot, cold) => Pattern::Sum([hot, cold].into_iter().flatten().collect()),
        }
    }

    fn setup(&self, scenario: &Memory, variant: &Managed) -> Setup {
        let policy = variant.policy.as_deref().unwrap_or_default();
        let mut setup = Setup::new(self.strips, policy, self.pattern(&scenario.workload));
        setup.limits = scenario.limits(variant);
        setup.seed = scenario.run.seed;
        setup
    }

    fn facts(&self, scenario: &Memory) -> Vec<(String, String)> {
        let Workload { keys, value_bytes, gets_per_second, hot_keys, .. } = scenario.workload;
        let Setup { costs: Costs { name, .. }, work, .. } =
            self.setup(scenario, &scenario.variants[0]);
        let Work { read_strip, clear_batch, page_out, bring_back, agent_word, .. } = work;
        let fact = |what: String, how: &str| (what, how.to_owned());
        let mut facts = vec![
            fact(
                format!(
                    "the process is {keys} keys with values of {value_bytes} bytes: {}",
                    show(self.bytes())
                ),
                "modelled: in key order, in whole strips; nothing else of RocksDB's process",
            ),
            fact(
                format!(
                    "{:.1}% of {gets_per_second} GETs a second go to the first {:.1}% of the keys",
                    100.0 * self.hot_gets(&scenario.workload),
                    100.0 * hot_keys
                ),
                "chosen; at random times",
            ),
            fact(
                format!("pages that a GET touches: {}", self.pages_per_get),
                "assumed: one block's, which begins with a page",
            ),
            fact(
                format!("link {name}"),
                "as in `wave reproduce sol`: the agent is behind the paper's link, decisions and readings are copied by \
                 its engine while both sides go on (Wave 7.4.1); a native agent has shared memory",
            ),
            fact(
                format!(
                    "the host takes {read_strip} ns to read a strip, {clear_batch} to clear a batch, {page_out} to page a \
                     page out, {bring_back} to bring one back; the agent {agent_word} a word of readings"
                ),
                "measured on one machine with Linux 6.18, to a third",
            ),
            fact(
                "no latencies, rates and values of GETs, no mapping, no compression".to_owned(),
                "not modelled: null in the result; so are memory pressure and a full swap, and what host and agent take",
            ),
        ];
        facts.extend(super::limits(scenario));
        facts
    }
}

/// Times of samples: each second, and at the end.
fn times(seconds: f64) -> Vec<Nanos> {
    let end = Nanos((seconds * 1e9).round() as u64);
    let whole = (1..).map(|at| Nanos(INTERVAL.0 * at)).take_while(|at| *at < end);
    whole.chain([end]).collect()
}

fn simulate(
    scenario: &Memory,
    space: &Database,
    variant: &Managed,
    logs: Option<&Logs>,
) -> Result<Ran, Failure> {
    let mut ran = Ran::new(variant, None, space.bytes());
    let times = times(scenario.run.seconds);
    let warm_up = Nanos((scenario.run.warmup_seconds() * 1e9).round() as u64);
    let second = |memory: Sample, at: Nanos| Second {
        counts: at >= warm_up + INTERVAL,
        memory: Sample {
            seconds: at.0 as f64 / 1e9,
            tool_bytes: None,
            net_saved_bytes: None,
            ..memory
        },
        ..Second::default()
    };
    if variant.policy.is_none() {
        // Without an agent everything stays resident.
        let memory = Sample { resident_bytes: space.bytes(), ..Sample::default() };
        ran.seconds = times.into_iter().map(|at| second(memory.clone(), at)).collect();
        return Ok(ran);
    }
    let log = logs.map(Logs::next).map(|log| (log.about, sink(log.path)));
    let report = memory::run_at(&space.setup(scenario, variant), &times, log)
        .map_err(|error| Failure::Scenario(format!("{}: {error}", variant.name)))?;
    if let Some(error) = &report.agent_error {
        return Err(Failure::Check(format!("{}: the agent left: {error}", variant.name)));
    }
    let Report { samples, outcomes, fault, .. } = report;
    let last = samples.last().map(|sample| sample.totals).unwrap_or_default();
    ran.seconds = samples
        .into_iter()
        .zip([Nanos(0)].into_iter().chain(times))
        .skip(1)
        .map(|(sample, at)| second(memory_of(space, sample), at))
        .collect();
    ran.outcomes =
        outcomes.into_iter().map(|(code, count)| (code.name().to_owned(), count)).collect();
    ran.held_back = [last.held_for_refaults, last.held_for_pressure];
    ran.lost_agents = u64::from(fault.is_some());
    Ok(ran)
}

/// Converts a sample to the form of native ones.
fn memory_of(space: &Database, sample: memory::Sample) -> Sample {
    let memory::Sample { resident_pages, totals, host_busy, agent_busy, .. } = sample;
    let resident_bytes = resident_pages * PAGE_BYTES;
    let seconds = |time: Nanos| time.0 as f64 / 1e9;
    Sample {
        resident_bytes,
        swapped_bytes: space.bytes() - resident_bytes,
        refaults: totals.refaults,
        refaults_per_minute: sample.refaults_per_minute,
        swept: totals.swept,
        slowdown_percent: sample.refaults_per_minute as f64 * Work::default().refault as f64 / 6e8,
        pages_out: totals.pages_out,
        batches_read: totals.batches_read,
        host_cpu_seconds: seconds(host_busy),
        agent_cpu_seconds: seconds(agent_busy),
        held: sample.held.map(|held| held_by_guard(held).to_owned()),
        batches_by_interval_ms: sample.intervals_ms,
        ..Sample::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use wave_core::log::LogReader;
    use wave_core::replay::Replay;
    use wave_memory::policies;

    use wave_report::Report;

    use super::*;
    use crate::same_keys::keys;

    const HOT_SHARE: f64 = 0.2;

    /// A GiB, of which this share is hot, each hot page touched every two seconds, for two epochs.
    fn scenario(more: &str) -> Memory {
        let pages = 64 * STRIP_PAGES;
        let hot = (pages as f64 * HOT_SHARE) as u64;
        let gets = hot as f64 * 0.5;
        let text = format!(
            "name = \"small\"\nkind = \"memory\"\n[workload]\nkeys = 4194304\nvalue_bytes = 248\ncache = \"1GiB\"\n\
             hot_keys = {}\nhot_gets = 1.0\ngets_per_second = {gets:?}\n[run]\nseconds = 76.8\nwarmup_seconds = 38\n\
             seed = 1\n[memory]\nrefaults_percent = 0.2\n{more}[[variant]]\nname = \"without\"\n[[variant]]\nname = \"SOL\"\n\
             policy = \"sol:shortest_ms=600\"\n",
            HOT_SHARE
        );
        crate::kinds::memory::scenario::read(&wave_scenario::Source::new(
            Path::new("small.toml"),
            &text,
        ))
        .unwrap()
    }

    fn json(result: &MemoryResult) -> Value {
        serde_json::to_value(result).unwrap()
    }

    #[test]
    fn json_keys_equal_those_of_a_native_run() {
        let scenario = scenario("");
        let simulated = json(&run(&scenario, true, None, &Journal::none()).unwrap());
        let native = json(&super::super::report::tests::native(&scenario));
        let [ours, theirs] = [keys(&simulated), keys(&native)];
        let under_null = |key: &&String| {
            let parents = [".ready.", ".get.", ".raw_get.", ".map.", ".compressed."];
            !parents.iter().any(|parent| key.contains(parent))
        };
        let theirs: BTreeSet<_> = theirs.iter().filter(under_null).collect();
        assert_eq!(ours.iter().collect::<BTreeSet<_>>(), theirs);
        assert_eq!((&native["host"], &simulated["host"]), (&"user".into(), &"sim".into()));
    }

    /// Expected touches per second of all pages, and of the first page.
    fn touches(space: &Database, scenario: &Memory) -> [f64; 2] {
        let pattern = space.pattern(&scenario.workload);
        let of = |page| pattern.touches(page, Nanos(0), Nanos(1_000_000_000));
        [(0..space.pages).map(of).sum(), of(0)]
    }

    #[test]
    fn every_get_touches_pages_whatever_the_hot_share() {
        let mut scenario = scenario("");
        let workload = &mut scenario.workload;
        (workload.keys, workload.value_bytes, workload.gets_per_second) = (100_000, 8, 1_000.0);
        let shares = [0.0, 1e-6, 0.002, 0.5, 0.999_999, 1.0];
        for (hot_keys, hot_gets) in
            shares.iter().flat_map(|keys| [0.0, 0.8, 1.0].map(|gets| (*keys, gets)))
        {
            (scenario.workload.hot_keys, scenario.workload.hot_gets) = (hot_keys, hot_gets);
            let space = Database::of(&scenario).unwrap();
            assert_eq!(space.pages, 391);
            let [all, _] = touches(&space, &scenario);
            let gets = 1_000.0 * space.pages_per_get as f64;
            assert!((all - gets).abs() < 1e-6 * gets, "{hot_keys} {hot_gets}: {all}");
        }
    }

    /// A native run rounds the number of hot keys down.
    #[test]
    fn hot_keys_have_at_least_one_page() {
        let mut scenario = scenario("");
        let workload = &mut scenario.workload;
        (workload.keys, workload.value_bytes, workload.gets_per_second) = (100_000, 8, 1_000.0);
        workload.hot_gets = 0.8;
        for (hot_keys, hot_pages) in [(0.0, 0), (1e-6, 0), (0.002, 1), (0.5, 195), (1.0, 391)] {
            scenario.workload.hot_keys = hot_keys;
            let space = Database::of(&scenario).unwrap();
            assert_eq!(space.hot_pages, hot_pages, "{hot_keys}");
            let [all, first] = touches(&space, &scenario);
            if hot_pages == 1 {
                assert!((first / all - 0.8).abs() < 1e-6, "{first} of {all}");
            }
        }
    }

    #[test]
    fn log_replays_to_identical_decisions() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = scenario("");
        let logged = run(&scenario, true, Some(folder.path()), &Journal::none()).unwrap();
        let bare = run(&scenario, true, None, &Journal::none()).unwrap();
        assert_eq!(json(&logged)["variants"], json(&bare)["variants"]);
        let log = std::fs::read(folder.path().join("sol.wavelog")).unwrap();
        let mut reader = LogReader::new(&log).unwrap();
        let header = reader.header().clone();
        assert!(header.about.starts_with("scenario small, seed 1, SOL"), "{}", header.about);
        let policy = policies::by_name(&header.policy, &header.config).unwrap();
        let mut replay = Replay::new(&header.config, policy);
        reader.by_ref().for_each(|record| replay.feed(&record.unwrap()));
        let tally = replay.finish();
        assert!(tally.is_identical() && tally.decisions > 100, "{tally:?}");
    }

    #[test]
    fn cache_smaller_than_the_database_is_refused() {
        let mut scenario = scenario("");
        scenario.workload.cache.0 -= 1;
        let refused = run(&scenario, true, None, &Journal::none()).unwrap_err();
        assert_eq!(refused.exit_code(), 2);
        assert!(refused.to_string().contains("`workload.cache`"), "{refused}");
    }

    #[test]
    fn results_have_their_own_folder_beside_native_ones() {
        let out = tempfile::tempdir().unwrap();
        let result = run(&scenario(""), true, None, &Journal::none()).unwrap();
        let folder = result.write(out.path()).unwrap();
        assert!(folder.ends_with("small.sim"), "{}", folder.display());
        assert!(folder.join("resident.svg").exists() && !folder.join("gets.svg").exists());
        assert!(result.text().starts_with("SIMULATED"));
    }
}
