//! A recorded workload, replayed under policies and compared with Linux.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use maud::html;
use serde_json::{Value, json};
use wave_core::layout::CORES_MAX;
use wave_sched::policies;
use wave_sched::workload::{Header, Workload};
use wave_sim::recorded::{self, Latency, Replayed, Schedule};

use wave_report::number::{micros, short};
use wave_report::plot::bars;
use wave_report::terminal::{Section, wrapped};
use wave_report::{Directory, Report, document, figure};
use wave_terminal::{Failure, Progress, Table, counted, interrupt};

/// File with the complete result.
pub const RESULT: &str = "result.json";
/// Policies compared by default.
const POLICIES: [&str; 3] = ["fifo", "shinjuku", "vm"];
/// Name of the first row.
const LINUX: &str = "recorded (Linux)";

/// Folder below `out` for the results about the workload `name`: they are simulated.
pub fn folder(out: &Path, name: &str) -> PathBuf {
    out.join(format!("{name}.sim"))
}

/// The name of the workload in `file`.
pub fn name(file: &Path) -> String {
    file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

/// A workload under several policies.
pub struct Compared {
    name: String,
    workload: Rc<Workload>,
    linux: Schedule,
    cores: u16,
    replayed: Vec<(String, Replayed)>,
}

/// Replays the workload in `file` under each policy, or the usual three, on `cores` cores, or as many as it was recorded on.
pub fn compare(
    file: &Path,
    names: &[String],
    cores: Option<u16>,
    (out, quiet): (&Path, bool),
) -> Result<Compared, Failure> {
    let workload = Rc::new(load(file)?);
    let names: Vec<String> = match names {
        [] => POLICIES.map(str::to_owned).into(),
        names => names.to_vec(),
    };
    for name in &names {
        policies::check(name).map_err(|error| Failure::Scenario(error.to_string()))?;
    }
    wave_report::make_folder(&folder(out, &name(file)))?;
    let recorded_on = workload.header.cpus.clamp(1, CORES_MAX as u32) as u16;
    let cores = cores.unwrap_or(recorded_on);
    let progress = Progress::new(names.len() as u64, quiet);
    interrupt::say_steps("wave run", &progress, "policy")?;
    let mut replayed = Vec::new();
    for name in names {
        progress.begin(&name);
        let setup = recorded::setup(&workload, cores, &name);
        let bad = |error: &dyn std::fmt::Display| {
            Failure::Scenario(format!("{}: {error}", file.display()))
        };
        policies::by_name(&name, &setup.config).map_err(|error| bad(&error))?;
        let outcome = recorded::replay(&setup, &workload).map_err(|error| bad(&error))?;
        replayed.push((name, outcome));
        progress.end();
    }
    let name = name(file);
    let linux = Schedule::recorded(&workload);
    Ok(Compared { name, workload, linux, cores, replayed })
}

/// The share of a recording caused by other processes, in words.
pub fn interference(workload: &Workload) -> String {
    let Header { wave_workload, interference_ns, cpus, .. } = workload.header;
    let mut text = match interference_ns {
        Some(taken_ns) => {
            let whole_ns = Schedule::recorded(workload).makespan_ns * u64::from(cpus);
            format!(
                "Interference: threads that were not recorded used {} ms of CPU time while recorded ones \
                 waited for it,\n{:.1}% of the CPUs' time. A replay has none of it.",
                millis(taken_ns),
                100.0 * taken_ns as f64 / whole_ns.max(1) as f64,
            )
        }
        None => format!(
            "Interference: not known, as the file is of version {wave_workload}. Record again for makespans."
        ),
    };
    let (runs, blocked_ns) = workload.woken_from_outside();
    if runs > 0 {
        let all = workload.runs().count();
        let estimated = if interference_ns.is_none() { "at most " } else { "" };
        let _ = write!(
            text,
            "\n{runs} of {all} runs were woken by something that was not recorded (a timer, a device, another \
             thread),\nafter {estimated}{} ms in all; in a replay it takes as long.",
            millis(blocked_ns)
        );
    }
    text
}

fn load(file: &Path) -> Result<Workload, Failure> {
    let bad =
        |error: &dyn std::fmt::Display| Failure::Scenario(format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| bad(&error))?;
    let workload = Workload::parse(&text).map_err(|error| bad(&error))?;
    if workload.threads.is_empty() {
        return Err(bad(&"no thread ran while it was recorded: there is nothing to schedule"));
    }
    Ok(workload)
}

impl Report for Compared {
    /// A row for Linux and one per policy.
    fn text(&self) -> String {
        let mut text = format!("{}: {}\n\n", self.name, self.recorded());
        let section = Section::new(&self.table(), self.notes());
        let _ = write!(text, "{section}\n\n{}", wrapped(&self.conclusion()));
        text
    }

    fn json(&self) -> Result<String, Failure> {
        Ok(self.to_json().to_string())
    }

    /// Writes everything into a directory named after the workload, in `out`.
    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let directory = Directory::create(folder(out, &self.name))?;
        let plots = self.plots()?;
        for (name, svg) in &plots {
            directory.write(name, svg.as_bytes())?;
        }
        directory.write("report.html", self.page(&plots).as_bytes())?;
        directory.write(RESULT, format!("{}\n", self.to_json()).as_bytes())?;
        Ok(directory.into_path())
    }

    /// Replays that did not finish properly.
    fn failed(&self) -> Vec<String> {
        let mut failed = Vec::new();
        for (name, Replayed { unfinished, counters, .. }) in &self.replayed {
            if *unfinished > 0 {
                failed.push(format!("{name}: {} unfinished", counted(*unfinished, "thread")));
            }
            if counters.lost_agents > 0 || !counters.agent_errors.is_empty() {
                failed.push(format!("{name}: its agent was turned out"));
            }
        }
        failed
    }
}

impl Compared {
    fn rows(&self) -> impl Iterator<Item = (&str, &Schedule)> {
        let policies = self.replayed.iter().map(|(name, outcome)| (&**name, &outcome.schedule));
        std::iter::once((LINUX, &self.linux)).chain(policies)
    }

    /// The recording in a line.
    fn recorded(&self) -> String {
        let Header { scope, duration_ns, cpus, .. } = &self.workload.header;
        format!(
            "{scope}; {}, {}, {} ms of CPU time in {} ms on {}",
            counted(self.workload.threads.len(), "thread"),
            counted(self.workload.runs().count(), "run"),
            millis(self.workload.cpu_ns()),
            millis(*duration_ns),
            counted(*cpus, "CPU"),
        )
    }

    /// How the figures are to be read, the most important first.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> =
            interference(&self.workload).replace(",\n", ", ").lines().map(str::to_owned).collect();
        let Header { dropped_events, unfollowed_threads, repaired, .. } = self.workload.header;
        if dropped_events + unfollowed_threads > 0 {
            let incomplete = format!(
                "Incomplete: {} and {} lost while it was recorded, {} guessed.",
                counted(dropped_events, "event"),
                counted(unfollowed_threads, "thread"),
                counted(repaired, "transition")
            );
            notes.insert(0, incomplete);
        }
        notes.push(
            "wait: from when a thread is woken until it runs. Policies: the host of the paper, its agent on a SmartNIC, in \
             virtual time; every run needs the CPU time that was recorded (docs/guide/record.md)."
                .to_owned(),
        );
        notes
    }

    /// The policy under which the workload ends first, against the recording, in a sentence.
    fn conclusion(&self) -> String {
        let finished = self.replayed.iter().filter(|(_, replayed)| replayed.unfinished == 0);
        let Some((name, Replayed { schedule, .. })) =
            finished.min_by_key(|(_, replayed)| replayed.schedule.makespan_ns)
        else {
            return "In simulation, the workload ends under none of the policies.".to_owned();
        };
        let first = match self.replayed.len() {
            1 => String::new(),
            all => format!(" first of {all} policies,"),
        };
        let of = |schedule: &Schedule| {
            let cores = counted(schedule.cores, "core");
            let Schedule { makespan_ns, latency, .. } = schedule;
            (millis(*makespan_ns), micros(latency.p99_ns), cores)
        };
        let ((ours, wait, cores), (theirs, waited, on)) = (of(schedule), of(&self.linux));
        format!(
            "In simulation, \"{name}\" ends the workload{first} after {ours} ms on {cores}, with a p99 wait of {wait} us; \
             recorded under Linux it took {theirs} ms on {on}, beside whatever else ran, with a p99 wait of {waited} us."
        )
    }

    /// The plots, by file name.
    fn plots(&self) -> Result<Vec<(&'static str, String)>, Failure> {
        let plot = |file: &'static str, title: &str, axis: &str, of: fn(&Schedule) -> f64| {
            let rows = self.rows().map(|(name, schedule)| (name.to_owned(), of(schedule)));
            let rows: Vec<(String, f64)> = rows.collect();
            let title = format!("{}: {title}", self.name);
            let svg = bars::lengths(&title, axis, &rows)
                .map_err(|error| Failure::Cannot(format!("{file}: cannot be drawn: {error}")))?;
            Ok::<_, Failure>((file, svg))
        };
        let makespan = |schedule: &Schedule| schedule.makespan_ns as f64 / 1e6;
        let wait = |schedule: &Schedule| schedule.latency.p99_ns as f64 / 1e3;
        Ok(vec![
            plot("makespan.svg", "time until the last thread ends", "milliseconds", makespan)?,
            plot("wait.svg", "p99 wait for a core", "microseconds", wait)?,
        ])
    }

    fn table(&self) -> Table {
        Table::new(1, HEAD).with(self.rows().map(|(name, schedule)| cells(name, schedule).into()))
    }

    fn page(&self, plots: &[(&str, String)]) -> String {
        let body = html! {
            p.lead { "A recorded workload, replayed under policies: " (self.recorded()) "." }
            p { strong { (self.conclusion()) } }
            section {
                h2 { "Schedules" }
                @for note in self.notes() { p { (note) } }
                (wave_report::table(&self.table()))
                @for (_, svg) in plots { (figure(svg)) }
            }
            p { "Wave " (wave_apps::machine::version()) ". Every thread's part is in " (RESULT) "." }
        };
        document(&self.name, &body)
    }

    /// The complete result, with every thread's part.
    fn to_json(&self) -> Value {
        let mut schedules: Vec<Value> =
            self.rows().map(|(name, schedule)| self.schedule_json(name, schedule)).collect();
        for (row, (_, outcome)) in schedules[1..].iter_mut().zip(&self.replayed) {
            row["unfinished_threads"] = outcome.unfinished.into();
            row["lost_agents"] = outcome.counters.lost_agents.into();
            row["trace_hash"] = format!("{:016x}", outcome.trace_hash).into();
        }
        let (runs, blocked_ns) = self.workload.woken_from_outside();
        json!({
            "workload": self.name,
            "host": "sim",
            "version": wave_apps::machine::version(),
            "recorded": self.workload.header,
            "cores": self.cores,
            "conclusion": self.conclusion(),
            "runs": self.workload.runs().count(),
            "woken_from_outside": { "runs": runs, "blocked_ns": blocked_ns },
            "schedules": schedules,
        })
    }

    fn schedule_json(&self, name: &str, schedule: &Schedule) -> Value {
        let latency = |latency: &Latency| {
            json!({
                "count": latency.count,
                "p50_ns": latency.p50_ns,
                "p99_ns": latency.p99_ns,
                "max_ns": latency.max_ns,
            })
        };
        let threads = self.workload.threads.iter().zip(&schedule.threads);
        let threads = threads.map(|(recorded, thread)| {
            json!({
                "pid": recorded.pid,
                "process": recorded.process,
                "name": recorded.name,
                "runs": recorded.runs.len(),
                "cpu_ns": recorded.cpu_ns(),
                "wait": latency(&thread.latency),
                "ended_ns": thread.ended_ns,
                "preemptions": thread.preemptions,
            })
        });
        json!({
            "scheduled_by": name,
            "cores": schedule.cores,
            "makespan_ns": schedule.makespan_ns,
            "cpu_ns": schedule.cpu_ns,
            "cpu_use": schedule.cpu_use(),
            "wait": latency(&schedule.latency),
            "switches": schedule.switches,
            "preemptions": schedule.preemptions,
            "threads": threads.collect::<Vec<_>>(),
        })
    }
}

/// Columns of the table.
const HEAD: [&str; 9] = [
    "scheduled by",
    "cores",
    "makespan\nms",
    "CPU use\n%",
    "wait p50\nus",
    "p99\nus",
    "max\nus",
    "switches",
    "preempted",
];

fn cells(name: &str, schedule: &Schedule) -> [String; 9] {
    let Latency { p50_ns, p99_ns, max_ns, .. } = schedule.latency;
    [
        name.to_owned(),
        schedule.cores.to_string(),
        format!("{:.1}", schedule.makespan_ns as f64 / 1e6),
        format!("{:.1}", schedule.cpu_use() * 100.0),
        micros(p50_ns),
        micros(p99_ns),
        micros(max_ns),
        schedule.switches.to_string(),
        schedule.preemptions.to_string(),
    ]
}

fn millis(ns: u64) -> String {
    short(ns as f64 / 1e6)
}
