//! Results of a run: a table, one JSON object, and a folder with a page, a plot and the samples.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use maud::html;
use serde::Serialize;
use wave_linux::memory::{Enclave, Group, Limits, Stats, Swap};

use super::course::Course;
use super::explain::{Asked, explain};
use super::run::Wanted;
use super::sample::{PAGE_BYTES, Sample};
use wave_apps::machine;
use wave_report::model::Machine;
use wave_report::number::short;
use wave_report::plot::curves;
use wave_report::plot::style::DrawError;
use wave_report::{Directory, csv, document, figure};
use wave_scenario::size::{show, show_signed};
use wave_terminal::{Failure, Table, counted};

/// Minimum of stayed bytes that is reported: the kernel holds some pages for a moment at any time.
const STAYED_LEAST: u64 = 16 << 20;

/// Numbers of page-outs that were held back, by reason.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct HeldBack {
    pub for_refaults: u64,
    pub for_pressure: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Agents {
    pub attached: u64,
    pub lost: u64,
}

/// A process that ended during the run.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    pub pid: i32,
    /// Seconds since the run began.
    pub seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Programs managed at the start.
    pub programs: Vec<String>,
    /// Time at which the run began.
    pub started: String,
    pub version: &'static str,
    pub machine: Machine,
    pub limits: String,
    /// The swap, and whether the run set it up.
    pub swap: String,
    /// Whether this swap is removed after the run.
    #[serde(skip)]
    swap_goes: bool,
    pub course: Course,
    /// Plot of warmth over time and address.
    #[serde(skip)]
    heat: Option<String>,
    /// The policy with its settings, as text.
    pub policy: String,
    /// Time between two of its judgements of a batch.
    pub epoch_seconds: f64,
    pub link: String,
    /// Backend that read access bits.
    pub backend: &'static str,
    pub dry_run: bool,
    /// Memory of the programs that was left alone, in words.
    pub left_alone: Vec<String>,
    pub managed_bytes: u64,
    pub samples: Vec<Sample>,
    /// 1 - resident at the end / at most.
    pub resident_reduction: f64,
    /// Bytes in swap less those still in memory and less what compressed swap, host and agent take, at the end.
    pub net_saved_bytes: i64,
    /// Pages that came back because they were touched.
    pub refaults: u64,
    /// How often a thread of the programs has waited for a page, for any cause: the kernel's count.
    pub major_faults: u64,
    /// CPU time of host and agent, as a share of one core, over the second half of the run.
    pub daemon_core_share: f64,
    /// Number of all agents' decisions by outcome.
    pub outcomes: BTreeMap<String, u64>,
    pub held_back: HeldBack,
    /// For a dry run: bytes that would have been paged out at any time.
    pub would_be_paged_out_bytes: u64,
    /// Bytes that these would have taken in compressed memory: estimated from a sample of the pages.
    pub would_be_compressed_bytes: u64,
    /// Processes of `--pid` that ended during the run.
    pub ended: Vec<Ended>,
    /// Measured cost of a refault on this machine, in microseconds; None if not measured.
    pub refault_us: Option<f64>,
    /// Bytes not paged out because they do not compress. Each attempt counts again.
    pub incompressible_bytes: u64,
    /// Bytes that were to be paged out, but stayed: shared with another process (a fork), or held by the kernel. Counted again
    /// each time.
    pub stayed_bytes: u64,
    /// Batches left out because their bits cannot be cleared: a fork shares them. Each attempt counts again.
    pub unclearable_batches: u64,
    /// Strips that found no room in the table. Each look at the programs' memory counts again.
    pub strips_left_out: u64,
    pub agents: Agents,
    /// Exit code of the command; 128 plus the signal if one ended it. None without a command, or if the run ended it.
    pub exit: Option<i32>,
}

impl Report {
    /// Report of an enclave that is about to start. Without an enclave: the command ended before one could start.
    pub fn new(wanted: &Wanted, enclave: Option<&Enclave>, swap: Option<&Swap>) -> Report {
        let stats = enclave.map(Enclave::stats).unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Report {
            programs: programs(wanted, &stats),
            started: machine::now(),
            version: machine::version(),
            machine: machine::machine(cpus),
            limits: limits(&wanted.limits),
            swap: swap_words(swap, wanted.zram, &stats),
            swap_goes: swap.is_some(),
            course: Course::default(),
            heat: None,
            policy: wanted.policy.clone(),
            epoch_seconds: wanted.epoch.0 as f64 / 1e9,
            link: wanted.link.name().to_owned(),
            backend: enclave.map_or("none", |enclave| enclave.backend().name()),
            dry_run: wanted.dry_run,
            left_alone: super::run::about(&stats),
            managed_bytes: 0,
            samples: Vec::new(),
            resident_reduction: 0.0,
            net_saved_bytes: 0,
            refaults: 0,
            major_faults: 0,
            daemon_core_share: 0.0,
            outcomes: BTreeMap::new(),
            held_back: HeldBack::default(),
            would_be_paged_out_bytes: 0,
            would_be_compressed_bytes: 0,
            ended: Vec::new(),
            refault_us: None,
            incompressible_bytes: 0,
            stayed_bytes: 0,
            unclearable_batches: 0,
            strips_left_out: 0,
            agents: Agents::default(),
            exit: None,
        }
    }

    /// Notes the processes of these groups that have ended.
    pub fn note_ends(&mut self, groups: &[Group], stats: &Stats, seconds: f64) {
        for group in groups {
            let Group::Process(pid) = *group else { continue };
            let lives = stats.programs.iter().any(|program| program.pid == pid);
            if !lives && self.ended.iter().all(|ended| ended.pid != pid) {
                self.ended.push(Ended { pid, seconds });
            }
        }
    }

    /// Adds the final figures. `ended` is when the programs ended, if all have.
    pub fn finish(&mut self, stats: &Stats, ended: Option<Duration>) {
        let name =
            |(code, count): &(wave_core::outcome::Code, u64)| (code.name().to_owned(), *count);
        self.outcomes = stats.outcomes.iter().map(name).collect();
        let totals = &stats.totals;
        self.held_back = HeldBack {
            for_refaults: totals.held_for_refaults,
            for_pressure: totals.held_for_pressure,
        };
        self.would_be_paged_out_bytes = totals.dry_pages * PAGE_BYTES;
        self.would_be_compressed_bytes = totals.dry_compressed_bytes;
        self.refault_us = stats.refault.map(|time| time.as_secs_f64() * 1e6);
        self.incompressible_bytes = totals.incompressible * PAGE_BYTES;
        self.stayed_bytes = totals.stayed * PAGE_BYTES;
        self.unclearable_batches = totals.unclearable;
        self.strips_left_out = stats.left_out;
        self.agents = Agents { attached: stats.agents, lost: stats.lost_agents };
        let left_alone = super::run::about(stats);
        if !left_alone.is_empty() {
            self.left_alone = left_alone;
        }
        self.managed_bytes = self.managed_bytes.max(managed(stats));
        // A program that has ended has no memory: its last state before the end counts.
        let is_alive = |sample: &Sample| sample.resident_bytes > 0;
        if let (Some(time), Some(last)) = (ended, self.samples.iter().rposition(is_alive)) {
            let end = self.samples[last].at_end(time, stats);
            self.samples.truncate(last + 1);
            self.samples.push(end);
        }
        let alive = self.samples.iter().rfind(|sample| is_alive(sample));
        let (Some(first), Some(last)) = (self.samples.first(), alive) else { return };
        let most = self.samples.iter().map(|sample| sample.resident_bytes).max().unwrap_or(0);
        let before = first.resident_bytes.max(most);
        if before > 0 {
            self.resident_reduction = 1.0 - last.resident_bytes as f64 / before as f64;
        }
        self.net_saved_bytes = last.net_saved();
        (self.refaults, self.major_faults) = (last.refaults, stats.major_faults);
        self.course = Course::of(&self.samples, stats);
        let middle = &self.samples[self.samples.len() / 2];
        let spent = |sample: &Sample| sample.host_cpu_seconds + sample.agent_cpu_seconds;
        let time = last.seconds - middle.seconds;
        if time > 0.0 {
            self.daemon_core_share = (spent(last) - spent(middle)) / time;
        }
    }

    /// Plots warmth from the log of the first agent, if wanted. An agent behind a device leaves no log here.
    pub fn draw_heat(&mut self, wanted: &Wanted) {
        if let (true, Some(log)) = (wanted.heat, &wanted.record) {
            let told = explain(log, &Asked { pid: None, address: None, at: None });
            let told = told.ok().filter(|told| !told.is_empty());
            self.heat = told.and_then(|told| told.heat().ok());
        }
    }

    /// The table, redrawn each second.
    pub fn live(&self, sample: &Sample) -> String {
        let mut text = format!(
            "{:.0} s  policy {}, access bits by {}{}\n",
            sample.seconds,
            self.policy,
            self.backend,
            if self.dry_run { ", dry run" } else { "" }
        );
        let _ = writeln!(
            text,
            "  resident   {:>10}   swapped  {:>10}   net saved  {:>10}",
            show(sample.resident_bytes),
            show(sample.swapped_bytes),
            show_signed(sample.net_saved())
        );
        let before = self.samples.last();
        let since = |now: f64, before: Option<f64>| match self.samples.last() {
            Some(last) => (now - before.unwrap_or(0.0)) / (sample.seconds - last.seconds).max(0.1),
            None => 0.0,
        };
        let host = since(sample.host_cpu_seconds, before.map(|before| before.host_cpu_seconds));
        let agent = since(sample.agent_cpu_seconds, before.map(|before| before.agent_cpu_seconds));
        let refaults = since(sample.refaults as f64, before.map(|before| before.refaults as f64));
        let _ = writeln!(
            text,
            "  refaults/s {refaults:>10.1}   scanning {:>9.1}%   deciding   {:>9.1}%   (of one core)\n  \
             slowdown   {:>9.2}%   (time lost to refaults in the last minute)",
            host * 100.0,
            agent * 100.0,
            sample.slowdown_percent
        );
        let all: u64 = sample.batches_by_interval_ms.iter().map(|(_, count)| count).sum();
        let shares = sample.batches_by_interval_ms.iter().map(|(ms, count)| {
            let share = 100.0 * *count as f64 / all.max(1) as f64;
            match ms {
                0 => format!("new {share:.0}%"),
                ms => format!("{:.1} s {share:.0}%", f64::from(*ms) / 1e3),
            }
        });
        let _ = write!(
            text,
            "  {all} batches, scanned every: {}",
            shares.collect::<Vec<_>>().join(", ")
        );
        if let Some(why) = &sample.held {
            let _ = write!(text, "\n  nothing is paged out now: {why}");
        }
        for line in &self.left_alone {
            let _ = write!(text, "\n  {line}");
        }
        text
    }

    /// Text for a terminal, at the end of the run.
    pub fn text(&self) -> String {
        let Some(table) = self.table() else {
            return "No process was seen: none lived long enough, or the cgroup stayed empty."
                .to_owned();
        };
        let mut text = format!("{table}\n");
        for line in self.notes() {
            let _ = write!(text, "\n{line}");
        }
        text
    }

    /// None if no process was seen.
    fn table(&self) -> Option<Table> {
        let first = self.samples.first()?;
        let last = self.samples.iter().rev().find(|sample| sample.resident_bytes > 0)?;
        let row = |name: &str, of: &dyn Fn(&Sample) -> i64| {
            let most = self.samples.iter().map(of).max().unwrap_or(0);
            let sum: i64 = self.samples.iter().map(of).sum();
            let mean = sum / self.samples.len() as i64;
            let [first, most, mean, last] = [of(first), most, mean, of(last)].map(show_signed);
            vec![name.to_owned(), first, most, mean, last]
        };
        let cached = |sample: &Sample| sample.cached_bytes.unwrap_or(0) as i64;
        let cached = self
            .samples
            .iter()
            .any(|sample| cached(sample) > 0)
            .then(|| row("in swap, and still in memory", &cached));
        let mut rows = vec![
            row("resident", &|sample| sample.resident_bytes as i64),
            row("in swap", &|sample| sample.swapped_bytes as i64),
        ];
        rows.extend(cached);
        rows.extend([
            row("compressed (estimate)", &|sample| sample.compressed_bytes.unwrap_or(0) as i64),
            row("host, agent, swap's table", &|sample| sample.tool_bytes.unwrap_or(0) as i64),
            row("net saved (estimate)", &Sample::net_saved),
        ]);
        Some(Table::new(1, HEAD).with(rows))
    }

    /// Further remarks, one per line.
    fn notes(&self) -> Vec<String> {
        let Some(last) = self.samples.iter().rev().find(|sample| sample.resident_bytes > 0) else {
            return Vec::new();
        };
        let mut text = String::new();
        let _ = write!(
            text,
            "{:.0} s under {} (access bits by {}, link {}): {} pages out, {} came back because they were \
             touched; {}, {} lost.\nThe programs waited for a page {} times, for any cause.\nHost and agent took {:.2}% of one core in the second half: host {:.2} s, \
             agent {:.2} s in all.",
            last.seconds,
            self.policy,
            self.backend,
            self.link,
            last.pages_out,
            last.refaults,
            counted(self.agents.attached, "agent"),
            self.agents.lost,
            self.major_faults,
            100.0 * self.daemon_core_share,
            last.host_cpu_seconds,
            last.agent_cpu_seconds
        );
        if self.dry_run {
            let bytes = show(self.would_be_paged_out_bytes);
            let compressed = match self.would_be_compressed_bytes {
                0 => String::new(),
                bytes => format!(", and take {} in compressed memory (estimate)", show(bytes)),
            };
            let _ = write!(
                text,
                "\nDry run: {bytes} would have been paged out{compressed}. A longer dry run sees more: {} judges memory every {} s.",
                self.policy,
                short(self.epoch_seconds)
            );
        } else {
            let _ = write!(text, "\nSwap: {}.", self.swap);
        }
        if self.swap_goes && last.swapped_bytes > 0 {
            text.push_str(
                "\nThis swap is removed once no run uses it: its pages then return to memory, and the savings above end.",
            );
        }
        // Those with which the run ended need no mention.
        let end = self.samples.last().map_or(0.0, |sample| sample.seconds);
        for Ended { pid, seconds } in self.ended.iter().filter(|ended| ended.seconds < end) {
            let _ = write!(
                text,
                "\nProcess {pid} ended after {seconds:.0} s; later figures are without it."
            );
        }
        let HeldBack { for_refaults, for_pressure } = self.held_back;
        if for_refaults + for_pressure > 0 {
            let _ = write!(
                text,
                "\nHeld back: {} page-outs because pages came back, {} because tasks waited for memory.",
                for_refaults, for_pressure
            );
        }
        if let Some(us) = self.refault_us {
            let _ = write!(
                text,
                "\nA refault takes {us:.1} us here: {:.2} s in total; {} of {} were of sweeps (touched once, and not again).",
                us * last.refaults as f64 / 1e6,
                last.swept,
                last.refaults
            );
        }
        if self.incompressible_bytes > 0 {
            let _ = write!(
                text,
                "\nLeft out: {} that do not compress, so compressed swap would save nothing. Each attempt counts again.",
                show(self.incompressible_bytes)
            );
        }
        if self.stayed_bytes >= STAYED_LEAST {
            let _ = write!(
                text,
                "\nStayed: {} that were to be paged out; they are shared with another process (a fork), or held by the kernel. \
                 They are tried again later, and counted each time.",
                show(self.stayed_bytes)
            );
        }
        if self.unclearable_batches > 0 {
            let _ = write!(
                text,
                "\nLeft out: {} batches whose access bits cannot be cleared (memory that a fork shares). Each attempt \
                 counts again.",
                self.unclearable_batches
            );
        }
        if self.strips_left_out > 0 {
            text.push_str(
                "\nThe programs have more memory than the table has room for: raise --most.",
            );
        }
        let held = self.course.held_seconds.iter();
        for (why, seconds) in held.filter(|(_, seconds)| **seconds >= 1.0) {
            let _ = write!(text, "\nNothing was paged out for {seconds:.0} s: {why}.");
        }
        for line in &self.left_alone {
            let _ = write!(text, "\n{line}");
        }
        text.lines().map(str::to_owned).collect()
    }

    /// Writes report.html, memory.svg, heat.svg, samples.csv and results.json into a folder.
    pub fn save(&self, out: &Path) -> Result<(), Failure> {
        let svg = draw(&self.samples).map_err(Failure::cannot)?;
        let json = serde_json::to_vec_pretty(self).map_err(Failure::cannot)?;
        let csv = self.csv();
        let write = || {
            let directory = Directory::create(out.to_path_buf())?;
            directory.write("results.json", &json)?;
            directory.write("samples.csv", &csv)?;
            directory.write("memory.svg", svg.as_bytes())?;
            if let Some(heat) = &self.heat {
                directory.write("heat.svg", heat.as_bytes())?;
            }
            directory.write("report.html", self.page(&svg).as_bytes())
        };
        write().map_err(Failure::cannot)
    }

    fn csv(&self) -> Vec<u8> {
        let head = [
            "seconds",
            "resident_bytes",
            "swapped_bytes",
            "cached_bytes",
            "tool_bytes",
            "compressed_bytes",
            "net_saved_bytes",
            "refaults",
            "major_faults",
            "swept",
            "slowdown_percent",
            "pages_out",
            "batches_read",
            "host_cpu_seconds",
            "agent_cpu_seconds",
            "held",
        ];
        let row = |sample: &Sample| {
            [
                format!("{:.3}", sample.seconds),
                sample.resident_bytes.to_string(),
                sample.swapped_bytes.to_string(),
                sample.cached_bytes.unwrap_or(0).to_string(),
                sample.tool_bytes.unwrap_or(0).to_string(),
                sample.compressed_bytes.unwrap_or(0).to_string(),
                sample.net_saved().to_string(),
                sample.refaults.to_string(),
                sample.major_faults.to_string(),
                sample.swept.to_string(),
                format!("{:.3}", sample.slowdown_percent),
                sample.pages_out.to_string(),
                sample.batches_read.to_string(),
                format!("{:.3}", sample.host_cpu_seconds),
                format!("{:.3}", sample.agent_cpu_seconds),
                sample.held.clone().unwrap_or_default(),
            ]
        };
        csv(head, self.samples.iter().map(row))
    }

    fn page(&self, svg: &str) -> String {
        let Machine { model, cpus, kernel } = &self.machine;
        let body = html! {
            dl {
                dt { "Programs" } dd { (self.programs.join(", ")) }
                dt { "Started" } dd { (self.started) }
                dt { "Machine" } dd { (model) ", " (counted(u64::from(*cpus), "CPU")) ", Linux " (kernel) }
                dt { "Version" } dd { (self.version) }
                dt { "Policy" } dd { (self.policy) @if self.dry_run { ", dry run" } }
                dt { "Limits" } dd { (self.limits) }
                dt { "Swap" } dd { (self.swap) }
                dt { "Access bits" } dd { "by " (self.backend) ", over link " (self.link) }
            }
            (figure(svg))
            @if let Some(heat) = &self.heat { (figure(heat)) }
            @if let Some(table) = self.table() { (wave_report::table(&table)) }
            ul { @for line in self.notes() { li { (line) } } }
        };
        document(&format!("Memory under {}", self.policy), &body)
    }
}

/// Processes by name, and control groups.
fn programs(wanted: &Wanted, stats: &Stats) -> Vec<String> {
    const MOST: usize = 8;
    let cgroups = wanted.groups.iter().filter_map(|group| match group {
        Group::Cgroup(folder) => Some(format!("cgroup {}", folder.display())),
        Group::Process(_) => None,
    });
    let name = |pid: i32| {
        // It may be any bytes.
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{} ({pid})", String::from_utf8_lossy(&name).trim_end())
    };
    let more = stats.programs.len().saturating_sub(MOST);
    let more = (more > 0).then(|| format!("{more} more"));
    let processes = stats.programs.iter().take(MOST).map(|program| name(program.pid));
    cgroups.chain(processes).chain(more).collect()
}

fn limits(limits: &Limits) -> String {
    let Limits { slowdown, refaults_per_minute, pressure_percent } = limits;
    let refaults = match refaults_per_minute.is_finite() {
        true => format!(
            ", {}% of the resident pages back in a minute",
            short(100.0 * refaults_per_minute)
        ),
        false => String::new(),
    };
    let slowdown = short(100.0 * slowdown);
    format!("slowdown {slowdown}%{refaults}, memory pressure {}%", short(*pressure_percent))
}

fn swap_words(swap: Option<&Swap>, asked: Option<u64>, stats: &Stats) -> String {
    let Some(swap) = swap else {
        return format!("{} of the machine's", show(stats.swap_bytes));
    };
    let path = swap.path().display();
    match (swap.is_joined(), asked) {
        (true, Some(asked)) => {
            format!("{path}, shared with the run that set it up ({} requested)", show(asked))
        }
        _ => format!("{path}, {}, set up for the run", show(asked.unwrap_or(0))),
    }
}

/// Columns of the table.
const HEAD: [&str; 5] = ["", "at the start", "at most", "mean", "at the end"];

fn managed(stats: &Stats) -> u64 {
    stats.programs.iter().map(|program| program.populated).sum()
}

/// Resident, in swap and net saved, over time.
fn draw(samples: &[Sample]) -> Result<String, DrawError> {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let curves = [
        ("resident".to_owned(), curve(samples, |sample| mib(sample.resident_bytes as f64))),
        ("in swap".to_owned(), curve(samples, |sample| mib(sample.swapped_bytes as f64))),
        ("net saved".to_owned(), curve(samples, |sample| mib(sample.net_saved() as f64))),
    ];
    curves::draw("Memory over time", ["seconds", "MiB"], &curves)
}

fn curve(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    samples.iter().map(|sample| (sample.seconds, of(sample).max(0.0))).collect()
}
