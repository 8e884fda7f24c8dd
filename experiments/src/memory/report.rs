//! Results of a run: a table, one JSON object, and a folder with a page, a plot and the samples.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use maud::html;
use serde::{Deserialize, Serialize};
use wave_linux::memory::{Enclave, Held, Stats};

use super::run::Wanted;
use super::size::{show, show_signed};
use wave_lab::Failure;
use wave_lab::terminal::counted;
use wave_report::plot::curves;
use wave_report::plot::style::DrawError;
use wave_report::{Directory, document, figure};

const PAGE_BYTES: u64 = 4096;

/// How things were at one moment.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Sample {
    /// Seconds since the run began.
    pub seconds: f64,
    /// In the fast tier, all programs.
    pub resident_bytes: u64,
    pub swapped_bytes: u64,
    /// Memory that host and agent take themselves; none where that is not modelled.
    pub tool_bytes: Option<u64>,
    /// What is in swap, less what compressed swap takes for it, less what host and agent take; none where that is not
    /// modelled.
    pub net_saved_bytes: Option<i64>,
    /// Pages that came back because they were touched, since the start.
    pub refaults: u64,
    /// The same in the last minute.
    pub refaults_per_minute: u64,
    /// Pages that were paged out, since the start.
    pub pages_out: u64,
    /// Batches that were read, since the start.
    pub batches_read: u64,
    /// What the host's thread has spent: reading, clearing, paging out.
    pub host_cpu_seconds: f64,
    /// What the agent has spent: deciding.
    pub agent_cpu_seconds: f64,
    /// Why nothing is paged out now.
    pub held: Option<String>,
    /// Batches by how long ago they were scanned before their last scan: milliseconds, batches.
    pub batches_by_interval_ms: Vec<(u32, u64)>,
}

impl Sample {
    /// As the enclave tells it; `tool_bytes` is what host and agent take.
    pub fn of(stats: &Stats, time: Duration, agent_cpu: Duration, tool_bytes: u64) -> Sample {
        // What is in compressed swap costs by what it is of all that is there.
        let share = stats.swapped_bytes.min(stats.zram_held_bytes) as f64;
        let cost = match stats.zram_held_bytes {
            0 => 0.0,
            held => stats.zram_bytes as f64 * share / held as f64,
        };
        Sample {
            seconds: time.as_secs_f64(),
            resident_bytes: stats.resident_bytes,
            swapped_bytes: stats.swapped_bytes,
            tool_bytes: Some(tool_bytes),
            net_saved_bytes: Some((stats.swapped_bytes as f64 - cost) as i64 - tool_bytes as i64),
            refaults: stats.totals.refaults,
            refaults_per_minute: stats.refaults_per_minute,
            pages_out: stats.totals.pages_out,
            batches_read: stats.totals.batches_read,
            host_cpu_seconds: stats.cpu.as_secs_f64(),
            agent_cpu_seconds: agent_cpu.as_secs_f64(),
            held: held(stats).map(str::to_owned),
            batches_by_interval_ms: stats.intervals_ms.clone(),
        }
    }

    fn net_saved(&self) -> i64 {
        self.net_saved_bytes.unwrap_or(0)
    }

    /// For a terminal that is none.
    pub fn line(&self) -> String {
        let Sample { seconds, resident_bytes, swapped_bytes, .. } = self;
        let held = self.held.as_ref().map(|why| format!(", held back: {why}")).unwrap_or_default();
        format!(
            "{seconds:6.0} s  resident {}, swapped {}, net saved {}, {} refaults in the last minute{held}",
            show(*resident_bytes),
            show(*swapped_bytes),
            show_signed(self.net_saved()),
            self.refaults_per_minute
        )
    }
}

fn held(stats: &Stats) -> Option<&'static str> {
    match stats.held {
        _ if stats.swap_bytes == 0 => Some("there is no swap"),
        _ if stats.swap_full => Some("swap is full"),
        held => held.map(held_by_guard),
    }
}

/// Why the guard holds page-outs back, in words.
pub fn held_by_guard(held: Held) -> &'static str {
    match held {
        Held::Refaults => "pages come back too often",
        Held::Pressure => "tasks wait for memory",
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The policy with its settings, as text.
    pub policy: String,
    pub link: String,
    /// How access bits were read.
    pub backend: &'static str,
    pub dry_run: bool,
    /// Of the programs: what was left alone, in words.
    pub left_alone: Vec<String>,
    pub managed_bytes: u64,
    pub samples: Vec<Sample>,
    /// 1 - resident at the end / at the start.
    pub resident_reduction: f64,
    /// Bytes in swap less what compressed swap, host and agent take, at the end.
    pub net_saved_bytes: i64,
    /// CPU time of host and agent, as a share of one core, over the second half of the run.
    pub daemon_core_share: f64,
    /// Outcomes of the last agent's decisions.
    pub outcomes: Vec<(String, u64)>,
    /// Page-outs held back: for refaults, for pressure.
    pub held_back: [u64; 2],
    /// Of a dry run: what would have been paged out at some time.
    pub would_be_paged_out_bytes: u64,
    /// Batches that were left out because clearing them changes nothing: a fork shares them.
    pub unclearable_batches: u64,
    /// Strips that found no room in the table.
    pub strips_left_out: u64,
    /// Agents that were attached, and lost.
    pub agents: [u64; 2],
    /// Exit code of the command; `None` if it was killed.
    pub exit: Option<i32>,
}

impl Report {
    /// Of an enclave that begins; None: the command was over before one could.
    pub fn new(wanted: &Wanted, enclave: Option<&Enclave>) -> Report {
        let stats = enclave.map(Enclave::stats).unwrap_or_default();
        Report {
            policy: wanted.policy.clone(),
            link: wanted.link.name().to_owned(),
            backend: enclave.map_or("none", |enclave| enclave.backend().name()),
            dry_run: wanted.dry_run,
            left_alone: super::run::about(&stats),
            managed_bytes: 0,
            samples: Vec::new(),
            resident_reduction: 0.0,
            net_saved_bytes: 0,
            daemon_core_share: 0.0,
            outcomes: Vec::new(),
            held_back: [0; 2],
            would_be_paged_out_bytes: 0,
            unclearable_batches: 0,
            strips_left_out: 0,
            agents: [0; 2],
            exit: None,
        }
    }

    /// Takes what there is to say at the end.
    pub fn finish(&mut self, stats: &Stats) {
        let name =
            |(code, count): &(wave_core::outcome::Code, u64)| (code.name().to_owned(), *count);
        self.outcomes = stats.outcomes.iter().map(name).collect();
        let totals = &stats.totals;
        self.held_back = [totals.held_for_refaults, totals.held_for_pressure];
        self.would_be_paged_out_bytes = totals.dry_pages * PAGE_BYTES;
        self.unclearable_batches = totals.unclearable;
        self.strips_left_out = stats.left_out;
        self.agents = [stats.agents, stats.lost_agents];
        let left_alone = super::run::about(stats);
        if !left_alone.is_empty() {
            self.left_alone = left_alone;
        }
        self.managed_bytes = self.managed_bytes.max(managed(stats));
        // A program that has ended has nothing: what counts is how it was before.
        let alive = self.samples.iter().rev().find(|sample| sample.resident_bytes > 0);
        let (Some(first), Some(last)) = (self.samples.first(), alive) else { return };
        let most = self.samples.iter().map(|sample| sample.resident_bytes).max().unwrap_or(0);
        let before = first.resident_bytes.max(most);
        if before > 0 {
            self.resident_reduction = 1.0 - last.resident_bytes as f64 / before as f64;
        }
        self.net_saved_bytes = last.net_saved();
        let middle = &self.samples[self.samples.len() / 2];
        let spent = |sample: &Sample| sample.host_cpu_seconds + sample.agent_cpu_seconds;
        let time = last.seconds - middle.seconds;
        if time > 0.0 {
            self.daemon_core_share = (spent(last) - spent(middle)) / time;
        }
    }

    /// What is drawn again each second.
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
            "  refaults/s {refaults:>10.1}   scanning {:>9.1}%   deciding   {:>9.1}%   (of one core)",
            host * 100.0,
            agent * 100.0
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

    /// For a terminal, at the end.
    pub fn text(&self) -> String {
        let Some(last) = self.samples.iter().rev().find(|sample| sample.resident_bytes > 0) else {
            return "No process was there for long enough to be seen.".to_owned();
        };
        let first = &self.samples[0];
        let most = self.samples.iter().map(|sample| sample.resident_bytes).max().unwrap_or(0);
        let mut table = wave_lab::table(&["", "at the start", "at most", "at the end"]);
        let row = |name: &str, of: [String; 3]| [vec![name.to_owned()], of.to_vec()].concat();
        let bytes = [first.resident_bytes, most, last.resident_bytes].map(show);
        table.add_row(row("resident", bytes));
        let most = self.samples.iter().map(|sample| sample.swapped_bytes).max().unwrap_or(0);
        table.add_row(row(
            "in swap",
            [show(first.swapped_bytes), show(most), show(last.swapped_bytes)],
        ));
        let most = self.samples.iter().map(Sample::net_saved).max().unwrap_or(0);
        let net = [first.net_saved(), most, last.net_saved()].map(show_signed);
        let tool = |sample: &Sample| sample.tool_bytes.unwrap_or(0);
        let most = self.samples.iter().map(tool).max().unwrap_or(0);
        table.add_row(row("host and agent", [tool(first), most, tool(last)].map(show)));
        table.add_row(row("net saved", net));
        let mut text = table.to_string();
        let _ = write!(
            text,
            "\n\n{:.0} s under {} (access bits by {}, link {}): {} pages out, {} came back because they were \
             touched; {}, {} lost.\nHost and agent took {:.2}% of one core in the second half: host {:.2} s, \
             agent {:.2} s in all.",
            last.seconds,
            self.policy,
            self.backend,
            self.link,
            last.pages_out,
            last.refaults,
            counted(self.agents[0], "agent"),
            self.agents[1],
            100.0 * self.daemon_core_share,
            last.host_cpu_seconds,
            last.agent_cpu_seconds
        );
        if self.dry_run {
            let bytes = show(self.would_be_paged_out_bytes);
            let _ = write!(text, "\nDry run: {bytes} would have been paged out.");
        }
        if self.held_back[0] + self.held_back[1] > 0 {
            let _ = write!(
                text,
                "\nHeld back: {} page-outs because pages came back too often, {} because tasks waited for memory.",
                self.held_back[0], self.held_back[1]
            );
        }
        if self.unclearable_batches > 0 {
            let _ = write!(
                text,
                "\nLeft out: {} batches whose access bits cannot be cleared (memory that a fork shares).",
                self.unclearable_batches
            );
        }
        if self.strips_left_out > 0 {
            text.push_str(
                "\nThe programs have more memory than the table has room for: see --most.",
            );
        }
        for line in &self.left_alone {
            let _ = write!(text, "\n{line}");
        }
        text
    }

    /// Writes report.html, memory.svg, samples.csv and results.json into a folder.
    pub fn save(&self, out: &Path) -> Result<(), Failure> {
        let svg = draw(&self.samples).map_err(Failure::cannot)?;
        let json = serde_json::to_vec_pretty(self).map_err(Failure::cannot)?;
        let csv = self.csv().map_err(Failure::cannot)?;
        let write = || {
            let directory = Directory::create(out.to_path_buf())?;
            directory.write("results.json", &json)?;
            directory.write("samples.csv", &csv)?;
            directory.write("memory.svg", svg.as_bytes())?;
            directory.write("report.html", self.page(&svg).as_bytes())
        };
        write().map_err(Failure::cannot)
    }

    fn csv(&self) -> Result<Vec<u8>, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record([
            "seconds",
            "resident_bytes",
            "swapped_bytes",
            "tool_bytes",
            "net_saved_bytes",
            "refaults",
            "pages_out",
            "batches_read",
            "host_cpu_seconds",
            "agent_cpu_seconds",
            "held",
        ])?;
        for sample in &self.samples {
            writer.write_record([
                format!("{:.3}", sample.seconds),
                sample.resident_bytes.to_string(),
                sample.swapped_bytes.to_string(),
                sample.tool_bytes.unwrap_or(0).to_string(),
                sample.net_saved().to_string(),
                sample.refaults.to_string(),
                sample.pages_out.to_string(),
                sample.batches_read.to_string(),
                format!("{:.3}", sample.host_cpu_seconds),
                format!("{:.3}", sample.agent_cpu_seconds),
                sample.held.clone().unwrap_or_default(),
            ])?;
        }
        writer.into_inner().map_err(|error| error.into_error().into())
    }

    fn page(&self, svg: &str) -> String {
        let body = html! {
            (figure(svg))
            pre { (self.text()) }
        };
        document(&format!("Memory under {}", self.policy), &body)
    }
}

fn managed(stats: &Stats) -> u64 {
    stats.programs.iter().map(|program| program.movable).sum()
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
