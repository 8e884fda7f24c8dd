//! Results: tables, one JSON object, and a folder with a page, plots and a row per second.

mod against;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use wave_core::layout::Config;
use wave_linux::memory::Stats;
use wave_memory::policies;
use wave_workloads::recorder::{self, Latency};

use self::against::{AGAINST, conclusion};
use super::process::Ready;
use crate::ground::Failure;
use crate::kinds::memory::{Managed, Memory};
use wave_app_memory::run::too_short;
use wave_app_memory::sample::Sample;
use wave_apps::machine;
use wave_process::words::counted;
use wave_report::model::Machine;
use wave_report::number::{micros, short};
use wave_report::terminal::{Section, wrapped};
use wave_report::{Directory, Report, csv};
use wave_scenario::size::{show, show_signed};
use wave_terminal::Table;

/// The paper's unit for the cost of managing memory.
const PER_BYTES: f64 = (4_u64 << 30) as f64;
/// Share of the offered GETs that must be served.
const SERVED: f64 = 0.99;

/// One second of a variant. Figures of serving are None if memory is modelled, without a process.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Second {
    /// Whether the second is after the warm-up.
    pub counts: bool,
    /// GETs served in this second.
    pub gets: Option<u64>,
    /// Median latency, counted from the times at which GETs were due.
    pub get_p50_ns: Option<u64>,
    /// p99 of these GETs from the intended arrival, in nanoseconds.
    pub get_p99_ns: Option<u64>,
    /// p50 of the bare GETs, in nanoseconds.
    pub raw_p50_ns: Option<u64>,
    /// p99 of the bare GETs, in nanoseconds.
    pub raw_p99_ns: Option<u64>,
    /// Longest mapping, in nanoseconds.
    pub map_max_ns: Option<u64>,
    /// State of the memory at the end of the second.
    pub memory: Sample,
}

/// Compressed swap at the end.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Compressed {
    /// Bytes in swap before compression.
    pub held_bytes: u64,
    /// Bytes of memory that compressed swap takes.
    pub memory_bytes: u64,
}

/// Result of one variant of the scenario.
#[derive(Debug, Deserialize, Serialize)]
pub struct Ran {
    pub name: String,
    /// Policy as in the scenario; None for the variant without an agent.
    pub policy: Option<String>,
    /// Backend that read access bits.
    pub backend: Option<String>,
    /// The database before the first GET; None without a process.
    pub ready: Option<Ready>,
    /// Resident set before the first GET.
    pub resident_before_bytes: u64,
    pub seconds: Vec<Second>,
    /// GETs, bare GETs, and mappings: after the warm-up.
    #[serde(skip, default = "histograms")]
    pub histograms: [Histogram<u64>; 3],
    /// GETs with a key or value other than what was written, also during the warm-up; None without a process.
    pub wrong: Option<u64>,
    /// Compressed swap at the end.
    pub compressed: Option<Compressed>,
    /// Outcomes of the agent's decisions.
    pub outcomes: Vec<(String, u64)>,
    /// Page-outs held back: for refaults, and for pressure.
    pub held_back: [u64; 2],
    pub lost_agents: u64,
}

fn histograms() -> [Histogram<u64>; 3] {
    std::array::from_fn(|_| recorder::histogram())
}

impl Ran {
    /// Begins the record of a variant, before its first GET.
    pub fn new(variant: &Managed, ready: Option<Ready>, resident_before_bytes: u64) -> Ran {
        Ran {
            name: variant.name.clone(),
            policy: variant.policy.clone(),
            backend: None,
            wrong: ready.as_ref().map(|_| 0),
            ready,
            resident_before_bytes,
            seconds: Vec::new(),
            histograms: histograms(),
            compressed: None,
            outcomes: Vec::new(),
            held_back: [0; 2],
            lost_agents: 0,
        }
    }

    /// Adds the enclave's figures at the end.
    pub fn finish(&mut self, stats: &Stats, backend: &str) {
        let outcomes = stats.outcomes.iter();
        self.outcomes = outcomes.map(|(code, count)| (code.name().to_owned(), *count)).collect();
        self.held_back = [stats.totals.held_for_refaults, stats.totals.held_for_pressure];
        (self.lost_agents, self.backend) = (stats.lost_agents, Some(backend.to_owned()));
    }

    fn latency(&self, of: usize) -> Option<Latency> {
        self.ready.as_ref().map(|_| Latency::of(&self.histograms[of]))
    }

    /// The seconds after the warm-up.
    fn counted(&self) -> &[Second] {
        let from = self.seconds.iter().position(|second| second.counts);
        &self.seconds[from.unwrap_or(self.seconds.len())..]
    }

    /// The length of the counted time, and the growth of a sample's counter over it.
    fn over(&self, of: impl Fn(&Sample) -> f64) -> Option<(f64, f64)> {
        let (first, last) = (self.counted().first()?, self.counted().last()?);
        let seconds = last.memory.seconds - first.memory.seconds;
        (seconds > 0.0).then(|| (seconds, of(&last.memory) - of(&first.memory)))
    }

    fn summary(&self) -> Summary {
        let [gets, raw, maps] = [0, 1, 2].map(|of| self.latency(of));
        let last = self.seconds.last().map(|second| second.memory.clone()).unwrap_or_default();
        let counted = self.counted();
        let (first, end) = (counted.first(), counted.last());
        let time =
            first.zip(end).map_or(0.0, |(first, end)| end.memory.seconds - first.memory.seconds);
        let served = counted.iter().skip(1).map(|second| second.gets).sum::<Option<u64>>();
        let served = served.filter(|_| self.ready.is_some());
        Summary {
            gets_per_second: served.map(|gets| if time > 0.0 { gets as f64 / time } else { 0.0 }),
            get: gets,
            raw_get: raw,
            map: maps,
            resident_after_bytes: last.resident_bytes,
            swapped_after_bytes: last.swapped_bytes,
        }
    }
}

/// Summary of a variant: latencies after the warm-up, memory at the end.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    gets_per_second: Option<f64>,
    get: Option<Latency>,
    raw_get: Option<Latency>,
    map: Option<Latency>,
    resident_after_bytes: u64,
    swapped_after_bytes: u64,
}

/// A variant with a policy, compared with the one without.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Compared {
    /// 1 - resident at the end / before the first GET.
    resident_reduction: f64,
    /// Latencies of GETs from when they were due, with / without.
    get_p50_ratio: Option<f64>,
    get_p99_ratio: Option<f64>,
    /// Latencies of bare GETs, with / without.
    raw_get_p50_ratio: Option<f64>,
    raw_get_p99_ratio: Option<f64>,
    /// CPU time of host thread and agent after the warm-up, as a share of one core, per 4 GiB of the process's memory, resident
    /// and in swap.
    daemon_core_share: Option<f64>,
    /// The same, not per 4 GiB but for the whole memory.
    daemon_core_share_whole: Option<f64>,
    /// Memory that host and agent take themselves at the end.
    tool_bytes: Option<u64>,
    /// Bytes in swap at the end that have left memory, minus what compressed swap, host and agent take.
    net_saved_bytes: Option<i64>,
    /// Net savings as a share of the resident set before the first GET.
    net_reduction: Option<f64>,
    /// Pages that came back because they were touched: after the warm-up, and since the first GET.
    refaults: f64,
    refaults_per_second: Option<f64>,
    refaults_in_all: u64,
    /// Mapping, touching and unmapping in the process.
    map_p999_ns: Option<u64>,
    map_p999_ns_without: Option<u64>,
    map_max_ns: Option<u64>,
    map_max_ns_without: Option<u64>,
}

impl Compared {
    fn new(with: &Ran, without: &Ran) -> Compared {
        let ratio = |with: Option<Latency>, without: Option<Latency>, of: fn(&Latency) -> u64| {
            let (with, without) = (of(&with?), of(&without?));
            (without > 0).then(|| with as f64 / without as f64)
        };
        let map = |summary: &Summary, of: fn(&Latency) -> u64| summary.map.as_ref().map(of);
        let (end, other) = (with.summary(), without.summary());
        let last = with.seconds.last().map(|second| second.memory.clone()).unwrap_or_default();
        let cpu = with.over(|sample| sample.host_cpu_seconds + sample.agent_cpu_seconds);
        let share = cpu.map(|(seconds, spent)| spent / seconds);
        let managed = (end.resident_after_bytes + end.swapped_after_bytes) as f64;
        let refaults = with.over(|sample| sample.refaults as f64);
        let before = with.resident_before_bytes.max(1) as f64;
        Compared {
            resident_reduction: 1.0 - end.resident_after_bytes as f64 / before,
            get_p50_ratio: ratio(end.get, other.get, |latency| latency.p50_ns),
            get_p99_ratio: ratio(end.get, other.get, |latency| latency.p99_ns),
            raw_get_p50_ratio: ratio(end.raw_get, other.raw_get, |latency| latency.p50_ns),
            raw_get_p99_ratio: ratio(end.raw_get, other.raw_get, |latency| latency.p99_ns),
            daemon_core_share: share.map(|share| share * PER_BYTES / managed.max(1.0)),
            daemon_core_share_whole: share,
            tool_bytes: last.tool_bytes,
            net_saved_bytes: last.net_saved_bytes,
            net_reduction: last.net_saved_bytes.map(|net| net as f64 / before),
            refaults: refaults.map_or(0.0, |(_, count)| count),
            refaults_per_second: refaults.map(|(seconds, count)| count / seconds),
            refaults_in_all: last.refaults,
            map_p999_ns: map(&end, |latency| latency.p999_ns),
            map_p999_ns_without: map(&other, |latency| latency.p999_ns),
            map_max_ns: map(&end, |latency| latency.max_ns),
            map_max_ns_without: map(&other, |latency| latency.max_ns),
        }
    }

    /// The text of the page.
    pub(super) fn text(&self) -> String {
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), short);
        let percent = |share: Option<f64>| {
            share.map_or("-".to_owned(), |share| format!("{}%", short(share * 100.0)))
        };
        [
            format!(
                "resident reduction: {}, net: {}",
                percent(Some(self.resident_reduction)),
                percent(self.net_reduction)
            ),
            format!(
                "GET with / without: p50 {}, p99 {}",
                ratio(self.get_p50_ratio),
                ratio(self.get_p99_ratio)
            ),
            format!(
                "bare GET with / without: p50 {}, p99 {}",
                ratio(self.raw_get_p50_ratio),
                ratio(self.raw_get_p99_ratio)
            ),
            format!(
                "host thread and agent: {} of one core per 4 GiB, {} in total",
                percent(self.daemon_core_share),
                percent(self.daemon_core_share_whole)
            ),
            format!(
                "net saved: {}, after subtracting compressed swap's memory and {} of host and agent",
                self.net_saved_bytes.map_or("-".to_owned(), show_signed),
                self.tool_bytes.map_or("-".to_owned(), show)
            ),
            format!(
                "refaults after the warm-up: {:.0} ({}/s), since the first GET: {}",
                self.refaults,
                ratio(self.refaults_per_second),
                self.refaults_in_all
            ),
        ]
        .join("\n")
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Variant {
    #[serde(flatten)]
    pub(super) ran: Ran,
    #[serde(flatten)]
    summary: Summary,
    /// None for the first variant, which the others are compared with.
    pub(super) compared: Option<Compared>,
}

/// A whole run. Its main figures are those of the first variant with a policy.
#[derive(Debug, Serialize)]
pub struct MemoryResult {
    pub(super) scenario: String,
    /// `user`, this machine, or `sim`, a simulated one.
    pub(super) host: &'static str,
    kind: &'static str,
    pub(super) description: String,
    pub(super) seed: u64,
    pub(super) version: &'static str,
    pub(super) machine: Machine,
    pub(super) seating: String,
    pub(super) started: String,
    #[serde(flatten)]
    headline: Option<Compared>,
    /// What the policies save, and at what cost; None without a policy.
    pub(super) conclusion: Option<String>,
    pub(super) variants: Vec<Variant>,
    pub(super) facts: Vec<(String, String)>,
}

impl Report for MemoryResult {
    fn text(&self) -> String {
        let table = self.table();
        let compared = || {
            self.variants
                .iter()
                .filter_map(|Variant { ran, compared, .. }| Some((ran, compared.as_ref()?)))
        };
        let against = Table::new(1, AGAINST);
        let against = against.with(compared().map(|(ran, compared)| compared.row(ran)));
        let mut notes: Vec<String> = Vec::new();
        if compared().next().is_some() {
            let how = "Ratios: latency with the policy / without. CPU: host thread and agent, as a share of a core. Held back: \
                       page-outs, for refaults and for memory pressure.";
            notes.push(how.to_owned());
        }
        let facts = self.facts.iter().map(|(what, how)| format!("{what}: {how}"));
        let (warnings, facts): (Vec<String>, Vec<String>) =
            facts.partition(|fact| fact.starts_with("warning"));
        notes.extend(warnings);
        notes.push(format!("Seating: {}", self.seating));
        notes.extend(facts);
        let table = match compared().next() {
            Some(_) => format!("{table}\n\n{against}"),
            None => table.to_string(),
        };
        let conclusion = self.conclusion.as_deref().map(wrapped);
        let parts = self.simulated().into_iter().chain([Section { table, notes }.to_string()]);
        parts.chain(conclusion).collect::<Vec<_>>().join("\n\n")
    }

    /// Writes everything into a directory below `out`, named after the scenario, and returns it.
    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let plots = self.plots()?;
        let json = serde_json::to_vec_pretty(self).map_err(Failure::cannot)?;
        let rows = self.rows();
        let write = || {
            let directory = wave_report::folder(out, &self.scenario, self.host);
            wave_report::check_host(&directory, self.host)?;
            let directory = Directory::create(directory)?;
            directory.write("results.json", &json)?;
            directory.write("seconds.csv", &rows)?;
            for (name, svg) in &plots {
                directory.write(name, svg.as_bytes())?;
            }
            directory.replace("histograms", &self.histograms())?;
            directory.write("report.html", self.page(&plots).as_bytes())?;
            Ok::<_, wave_report::ReportError>(directory.into_path())
        };
        write().map_err(Failure::cannot)
    }

    /// Checks that failed, in words.
    fn failed(&self) -> Vec<String> {
        let mut failed = Vec::new();
        for Variant { ran, .. } in &self.variants {
            let name = &ran.name;
            if let Some(wrong) = ran.wrong.filter(|wrong| *wrong > 0) {
                failed.push(format!("{name}: {wrong} GETs returned other data than was written"));
            }
            if ran.lost_agents > 0 {
                failed.push(format!("{name}: lost {}", counted(ran.lost_agents, "agent")));
            }
        }
        failed
    }

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::cannot)
    }
}

impl MemoryResult {
    /// Result of these variants; the first has no policy.
    pub fn new(
        memory: &Memory,
        host: &'static str,
        started: String,
        machine: Machine,
        seating: String,
        ran: Vec<Ran>,
        mut facts: Vec<(String, String)>,
    ) -> MemoryResult {
        let compare = |with: &Ran| with.policy.is_some().then(|| Compared::new(with, &ran[0]));
        let compared: Vec<Option<Compared>> = ran.iter().map(compare).collect();
        let headline = compared.iter().flatten().next().cloned();
        let variants = ran.into_iter().zip(compared);
        let variants =
            variants.map(|(ran, compared)| Variant { summary: ran.summary(), ran, compared });
        let variants: Vec<Variant> = variants.collect();
        let offered = memory.workload.gets_per_second;
        let length = Duration::from_secs_f64(memory.run.seconds);
        let config = Config::coherent(1);
        for Variant { ran, summary, .. } in &variants {
            let policy = ran.policy.as_ref();
            let policy = policy.and_then(|policy| policies::by_name(policy, &config).ok());
            if let Some(why) = policy.and_then(|policy| too_short(Some(length), policy.epoch())) {
                facts.push((format!("warning: {}", ran.name), why));
            }
            if let Some(served) = summary.gets_per_second.filter(|gets| *gets < SERVED * offered) {
                facts.push((
                    format!(
                        "warning: {}: {served:.0} GETs a second were served of {offered:.0}",
                        ran.name
                    ),
                    "latencies are those of a backlog: run again on a quiet machine, or with fewer"
                        .to_owned(),
                ));
            }
        }
        MemoryResult {
            scenario: memory.name.to_string(),
            host,
            kind: "memory",
            description: memory.description.clone(),
            seed: memory.run.seed,
            version: machine::version(),
            machine,
            seating,
            started,
            headline,
            conclusion: conclusion(host, &variants),
            variants,
            facts,
        }
    }

    /// Banner of a simulated result; None for a native one.
    pub(super) fn simulated(&self) -> Option<String> {
        wave_report::model::simulated(self.host, &self.machine)
    }

    /// A row per variant. Times are in microseconds.
    pub(super) fn table(&self) -> Table {
        let head = [
            "variant",
            "GETs/s",
            "GET p50 us",
            "p99 us",
            "bare p50",
            "bare p99",
            "map p99.9",
            "worst",
            "resident before",
            "at the end",
            "in swap",
            "compressed to",
            "host and agent",
            "net saved",
        ];
        let row = |Variant { ran, summary, .. }: &Variant| {
            let Summary { get, raw_get, map, .. } = summary;
            let (last, none) = (ran.seconds.last(), || "-".to_owned());
            let compressed = ran.compressed.filter(|_| summary.swapped_after_bytes > 0);
            let compressed = compressed.map_or(String::new(), |swap| {
                format!("{:.0}%", 100.0 * swap.memory_bytes as f64 / swap.held_bytes as f64)
            });
            let time = |latency: &Option<Latency>, of: fn(&Latency) -> u64| {
                latency.as_ref().map_or_else(|| "-".to_owned(), |latency| micros(of(latency)))
            };
            vec![
                ran.name.clone(),
                summary.gets_per_second.map_or_else(|| "-".to_owned(), |gets| format!("{gets:.0}")),
                time(get, |latency| latency.p50_ns),
                time(get, |latency| latency.p99_ns),
                time(raw_get, |latency| latency.p50_ns),
                time(raw_get, |latency| latency.p99_ns),
                time(map, |latency| latency.p999_ns),
                time(map, |latency| latency.max_ns),
                show(ran.resident_before_bytes),
                show(summary.resident_after_bytes),
                show(summary.swapped_after_bytes),
                compressed,
                last.and_then(|last| last.memory.tool_bytes).map_or_else(none, show),
                last.and_then(|last| last.memory.net_saved_bytes).map_or_else(none, show_signed),
            ]
        };
        Table::new(1, head).with(self.variants.iter().map(row))
    }

    fn histograms(&self) -> Vec<(String, String)> {
        let names = ["get", "bare-get", "map"];
        let of = |Variant { ran, .. }: &Variant| {
            let slug = wave_report::slug(&ran.name);
            let files = names.iter().zip(&ran.histograms).filter(|_| ran.ready.is_some());
            let files = files.map(move |(name, histogram)| {
                (format!("{slug}-{name}.b64"), recorder::encode(histogram) + "\n")
            });
            files.collect::<Vec<_>>()
        };
        self.variants.iter().flat_map(of).collect()
    }

    fn rows(&self) -> Vec<u8> {
        let head = [
            "variant",
            "seconds",
            "counts",
            "gets",
            "get_p50_ns",
            "get_p99_ns",
            "raw_p50_ns",
            "raw_p99_ns",
            "map_max_ns",
            "resident_bytes",
            "swapped_bytes",
            "tool_bytes",
            "net_saved_bytes",
            "refaults",
            "pages_out",
            "host_cpu_seconds",
            "agent_cpu_seconds",
            "held",
        ];
        let text = |number: Option<u64>| number.map_or_else(String::new, |n| n.to_string());
        let rows = self.variants.iter().flat_map(|Variant { ran, .. }| {
            ran.seconds.iter().map(move |second| {
                let memory = &second.memory;
                let numbers = [
                    second.gets,
                    second.get_p50_ns,
                    second.get_p99_ns,
                    second.raw_p50_ns,
                    second.raw_p99_ns,
                    second.map_max_ns,
                    Some(memory.resident_bytes),
                    Some(memory.swapped_bytes),
                    memory.tool_bytes,
                ];
                let mut row = vec![
                    ran.name.clone(),
                    format!("{:.3}", memory.seconds),
                    u8::from(second.counts).to_string(),
                ];
                row.extend(numbers.map(text));
                row.push(memory.net_saved_bytes.map_or_else(String::new, |net| net.to_string()));
                row.extend([memory.refaults, memory.pages_out].map(|number| number.to_string()));
                row.push(format!("{:.3}", memory.host_cpu_seconds));
                row.push(format!("{:.3}", memory.agent_cpu_seconds));
                row.push(memory.held.clone().unwrap_or_default());
                row
            })
        });
        csv(head, rows)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Ten seconds, of which the last five count. GETs take `get_us` after the warm-up, and far longer during it.
    fn ran(policy: Option<&str>, get_us: u64, resident_mib: u64) -> Ran {
        let variant = Managed {
            name: policy.unwrap_or("without").to_owned(),
            policy: policy.map(str::to_owned),
            ..Managed::default()
        };
        let ready =
            Ready { version: "7.8.3".into(), bare: Latency::default(), held_bytes: 900 << 20 };
        let mut ran = Ran::new(&variant, Some(ready), 1 << 30);
        for second in 1..=10 {
            let counts = second > 5;
            let resident_bytes = if counts { resident_mib << 20 } else { 1 << 30 };
            ran.seconds.push(Second {
                counts,
                gets: Some(1_000),
                get_p50_ns: Some(get_us * 1_000),
                get_p99_ns: Some(get_us * 1_000),
                raw_p50_ns: Some(2_000),
                raw_p99_ns: Some(3_000),
                map_max_ns: Some(10_000),
                memory: Sample {
                    seconds: f64::from(second),
                    resident_bytes,
                    swapped_bytes: (1 << 30) - resident_bytes,
                    tool_bytes: Some(3 << 20),
                    net_saved_bytes: Some(512 << 20),
                    refaults: 7 * second as u64,
                    host_cpu_seconds: 0.03 * f64::from(second),
                    agent_cpu_seconds: 0.01 * f64::from(second),
                    batches_by_interval_ms: vec![(600, 30), (4800, 10)],
                    ..Sample::default()
                },
            });
            if counts {
                ran.histograms[0].record_n(get_us * 1_000, 1_000).unwrap();
                ran.histograms[1].record_n(2_000, 1_000).unwrap();
                ran.histograms[2].record_n(10_000, 1_000).unwrap();
            }
        }
        ran
    }

    /// A result with all fields of a native run, in made-up figures.
    pub fn native(memory: &Memory) -> MemoryResult {
        let machine = Machine { cpus: 2, model: "m".into(), kernel: "6.1".into() };
        let mut ran = vec![ran(None, 20, 1024), ran(Some("sol"), 24, 256)];
        ran[1].compressed = Some(Compressed { held_bytes: 2, memory_bytes: 1 });
        MemoryResult::new(memory, "user", "now".into(), machine, "seats".into(), ran, Vec::new())
    }

    fn result(ran: Vec<Ran>) -> MemoryResult {
        let text = "name = \"m\"\nkind = \"memory\"\n[workload]\ngets_per_second = 1000\n\
                    [[variant]]\nname = \"without\"\n[[variant]]\nname = \"sol\"\npolicy = \"sol\"\n";
        let memory = crate::kinds::memory::scenario::read(&wave_scenario::Source::new(
            Path::new("m.toml"),
            text,
        ))
        .unwrap();
        let machine = Machine { cpus: 2, model: "m".into(), kernel: "6.1".into() };
        MemoryResult::new(&memory, "user", "now".into(), machine, "seats".into(), ran, Vec::new())
    }

    #[test]
    fn comparison_uses_only_seconds_after_the_warm_up() {
        let result = result(vec![ran(None, 20, 1024), ran(Some("sol"), 24, 256)]);
        let json: serde_json::Value = serde_json::to_value(&result).unwrap();
        let near = |name: &str, expected: f64| {
            let found = json[name].as_f64().unwrap();
            assert!((found - expected).abs() < 0.01 * expected, "{name}: {found}");
        };
        near("resident_reduction", 0.75);
        near("get_p50_ratio", 1.2);
        near("raw_get_p99_ratio", 1.0);
        // 0.04 of a core, for 1 GiB resident and in swap.
        near("daemon_core_share", 0.16);
        near("net_saved_bytes", f64::from(512 << 20));
        near("net_reduction", 0.5);
        near("tool_bytes", f64::from(3 << 20));
        let text = result.text();
        for part in ["75.0", "50.0", "1.20", "3.00 MiB"] {
            assert!(text.split_whitespace().any(|word| part.starts_with(word)), "{part}: {text}");
        }
        let page = result.page(&result.plots().unwrap());
        for part in ["resident reduction: 75.0%, net: 50.0%", "3.00 MiB of host and agent"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let conclusion = "\"sol\" takes 75.0% of the resident set out of memory (50.0% after subtracting compressed swap, host and \
                          agent), for 4.00% of a core and a GET p99 of 1.20 times that without a policy.";
        assert_eq!(json["conclusion"], conclusion);
        assert!(page.contains("of the resident set out of memory"), "{page}");
        let (notes, last) = text.rsplit_once("\n\n").unwrap();
        assert_eq!(last.replace('\n', " "), conclusion);
        assert!(notes.rsplit("\n\n").next().unwrap().lines().count() <= 4 + 5, "{text}");
        near("refaults", 28.0);
        assert_eq!(json["variants"][0]["gets_per_second"], 1000.0);
        assert!(result.failed().is_empty());
        assert!(!result.text().contains("warning"));
    }

    #[test]
    fn wrong_values_fail_the_run_and_unserved_gets_warn() {
        let mut with = ran(Some("sol"), 24, 256);
        (with.wrong, with.lost_agents) = (Some(3), 1);
        with.seconds.iter_mut().for_each(|second| second.gets = Some(900));
        let result = result(vec![ran(None, 20, 1024), with]);
        assert_eq!(
            result.failed(),
            ["sol: 3 GETs returned other data than was written", "sol: lost 1 agent"]
        );
        assert!(result.text().contains("warning: sol: 900 GETs a second were served of 1000"));
    }

    #[test]
    fn report_writes_every_file() {
        let out = tempfile::tempdir().unwrap();
        let folder = result(vec![ran(None, 20, 1024), ran(Some("sol"), 24, 256)]).write(out.path());
        let folder = folder.unwrap();
        let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
        assert_eq!(page.matches("<svg").count(), 4);
        let rows = std::fs::read_to_string(folder.join("seconds.csv")).unwrap();
        assert_eq!(rows.lines().count(), 1 + 2 * 10);
        for file in ["results.json", "resident.svg", "gets.svg", "bare-gets.svg", "periods.svg"] {
            assert!(folder.join(file).exists(), "{file}");
        }
        let gets = std::fs::read_to_string(folder.join("histograms/sol-get.b64")).unwrap();
        assert_eq!(recorder::decode(gets.trim()).unwrap().len(), 5_000);
    }
}
