//! The bake-off: net bytes saved against refaults per second, for SOL, DAMON's proactive reclaim, MGLRU's aging and eviction,
//! and `memory.reclaim`, on the same programs.
//!
//! Each setting of each tool gets a fresh process with the same accesses, in a cgroup of its own, and the same time.
//! Results are measured from outside and alike for all tools: pages read back from swap by the cgroup's own counter, the
//! process's bytes in swap that have left memory, and the memory that compressed swap and the tool take.
#![forbid(unsafe_code)]
// Only the project's own programs use this crate, and its documentation is built with private items.
#![allow(rustdoc::private_intra_doc_links)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

mod cgroup;
mod curve;
pub mod medians;
mod pattern;
mod places;
mod plan;
pub mod program;
mod redis;
pub mod report;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use wave_linux::memory::{AccessBits, Figures, Process, Swap, Zram};

pub use plan::Plan;

use cgroup::{Cgroup, Controller};
use pattern::Pattern;
use places::Places;
use program::{Program, python_program};
use redis::redis_program;
use report::{KEPT_UP, Point, ProgramResult, Results};
use tools::{Running, Setting, Statistics};

use wave_app_memory::swap;
use wave_experiments::ground::{Failure, Journal};
use wave_experiments::kinds::{Experiment, Host, Kind, Wanted, digest};
use wave_report::Report;
use wave_scenario::SwapOn;
use wave_scenario::reference::fields_of;
use wave_scenario::size::Size;
use wave_terminal::Progress;

pub static KIND: Kind = Kind {
    names: &["memory-bakeoff"],
    about: "Memory saved by SOL, DAMON, MGLRU and `memory.reclaim` at equal refaults.",
    commands: "`sudo wave run FILE`, on a kernel that has all of them",
    examples: &[include_str!("example.toml")],
    fields: fields_of::<Plan>,
    takes_agent: false,
    read: |wished| {
        let plan = plan::read(wished.source)?;
        Ok(Box::new(BakeOff { plan, file: wished.source.path.to_path_buf() }))
    },
};

/// A bake-off, and its file.
struct BakeOff {
    plan: Plan,
    file: PathBuf,
}

impl Experiment for BakeOff {
    fn name(&self) -> &str {
        &self.plan.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(&self.plan, [])
    }

    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        if wanted.host != Host::User || wanted.live || wanted.record.is_some() {
            let why = "a bake-off runs on the real kernel: it takes no --host, --live or --record";
            return Err(Failure::Scenario(format!("{}: {why}", self.plan.name)));
        }
        Ok(())
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        // When interrupted, it undoes its changes to the machine.
        let results = run(&self.plan, &self.file, wanted.quiet, journal)?;
        Ok(Box::new(results))
    }
}

/// Interval at which savings are sampled.
const SAMPLE: Duration = Duration::from_millis(100);
/// The command that runs the bake-off in a virtual machine with everything that it needs.
const IN_VM: &str =
    "cargo xtask vm run --icount --module zram --timeout 3600 -- target/release/wave run";

/// Writes to one of the kernel's files.
fn put(file: &Path, value: &str) -> Result<(), Failure> {
    std::fs::write(file, value)
        .map_err(|error| Failure::Cannot(format!("{} <- {value}: {error}", file.display())))
}

/// Checks that everything needed is there, without changing anything.
fn check_requirements(plan: &Plan, file: &Path) -> Result<(), Failure> {
    let refuse = |what: &str| {
        Err(Failure::Cannot(format!(
            "{}: {what}. A suitable kernel runs in a virtual machine: {IN_VM} {}",
            plan.name,
            file.display()
        )))
    };
    if !rustix::process::geteuid().is_root() {
        let why = "paging out other processes' memory needs root: run this as root";
        return Err(Failure::Cannot(format!("{}: {why}", plan.name)));
    }
    let mut missing = tools::missing(&plan.settings());
    if !Controller::is_there() {
        missing.push("the memory controller of cgroup v2".to_owned());
    }
    if !missing.is_empty() {
        return refuse(&format!("this kernel lacks {}", missing.join("; ")));
    }
    if let Err(error) = AccessBits::open() {
        return refuse(&error.to_string());
    }
    let programs = [
        (Pattern::Redis, redis_program(), "redis is not installed: apt-get install redis-tools"),
        (
            Pattern::PythonDict,
            python_program(),
            "python3 is not installed: apt-get install python3",
        ),
    ];
    for (pattern, program, why) in programs {
        let wanted = plan.program.iter().any(|program| program.pattern == pattern);
        if wanted && program.is_none() {
            return Err(Failure::Cannot(format!("{}: {why}", plan.name)));
        }
    }
    Ok(())
}

/// Runs every point that is not yet in `journal`.
pub fn run(plan: &Plan, file: &Path, quiet: bool, journal: &Journal) -> Result<Results, Failure> {
    check_requirements(plan, file)?;
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        wave_terminal::interrupt::register_unless_ignored(signal, &end)?;
    }
    let settings = plan.settings();
    let points = plan.swap_on.len() * plan.program.len() * settings.len();
    let progress = Progress::new(points as u64, quiet);
    journal.follow(&progress);
    let started = journal.started();
    let Size(swap_bytes) = plan.swap;
    // Undone in reverse order, on drop.
    let places = Places::take()?;
    let statistics = Statistics::pause()?;
    let controller = Controller::enable()?;
    let mut ground = Ground { plan, end, places, progress, swap: None };
    let mut programs = Vec::new();
    for swap_on in &plan.swap_on {
        ground.swap = Some(swap::set_up(*swap_on, swap_bytes).map_err(Failure::cannot)?);
        for planned in &plan.program {
            let mut points = Vec::new();
            for setting in &settings {
                let names = [planned.name.as_str(), swap_on.name(), setting.tool()];
                let key = format!("{}, {}", names.join(", "), setting.describe());
                points.push(journal.point(&key, || ground.point(planned, setting))?);
            }
            programs.push(ProgramResult::new(planned, *swap_on, points));
        }
        ground.swap.take().map_or(Ok(()), Swap::take_down).map_err(Failure::cannot)?;
    }
    let mut facts = ground.facts(&statistics);
    facts.extend(journal.fact());
    drop((controller, statistics));
    Ok(Results::new(plan, started, programs, facts))
}

struct Ground<'a> {
    plan: &'a Plan,
    end: Arc<AtomicBool>,
    places: Places,
    progress: Progress,
    /// Dropped last. None between points.
    swap: Option<Swap>,
}

/// Counters at one moment; results are differences of two.
struct Counters {
    at: Instant,
    pages_in: u64,
    pages_out: u64,
    major_faults: u64,
    accesses: u64,
    cpu: Duration,
}

impl Counters {
    fn now(cgroup: &Cgroup, program: &Program, tool: &Running) -> Result<Counters, Failure> {
        Ok(Counters {
            at: Instant::now(),
            pages_in: cgroup.counter("pswpin")?,
            pages_out: cgroup.counter("pswpout")?,
            major_faults: cgroup.counter("pgmajfault")?,
            accesses: program.accesses(),
            cpu: tool.cpu(),
        })
    }
}

impl Ground<'_> {
    fn check_interrupted(&self) -> Result<(), Failure> {
        match self.end.load(Ordering::SeqCst) {
            true => Err(Failure::Cannot(
                "interrupted; all changes to the machine are undone".to_owned(),
            )),
            false => Ok(()),
        }
    }

    fn wait(&self, until: Instant) -> Result<(), Failure> {
        while Instant::now() < until {
            self.check_interrupted()?;
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(SAMPLE));
        }
        Ok(())
    }

    /// The zram device below the swap, if there is one.
    fn zram(&self) -> Option<(Zram, &Path)> {
        let path = self.swap.as_ref()?.path();
        Some((Zram::of(path)?, path))
    }

    /// Makes zram release the gaps between freed pieces, as it would when the machine runs out of memory.
    fn compact(&self) -> Result<(), Failure> {
        match self.zram().and_then(|(_, path)| path.file_name()) {
            Some(name) => put(&Path::new("/sys/block").join(name).join("compact"), "1"),
            None => Ok(()),
        }
    }

    /// Memory that compressed swap takes; 0 if swap is not compressed.
    fn compressed_bytes(&self) -> u64 {
        self.zram().map_or(0, |(zram, _)| zram.memory_used_bytes)
    }

    /// Measures one setting of one tool on a fresh process.
    fn point(&self, planned: &plan::Program, setting: &Setting) -> Result<Point, Failure> {
        self.check_interrupted()?;
        self.progress.begin(&format!(
            "{}: {}: {}",
            planned.name,
            setting.tool(),
            setting.describe()
        ));
        // Dropped after the program, so that its processes have ended.
        let cgroup = Cgroup::make()?;
        let program = Program::start(planned, self.plan.seed, &cgroup, self.places, || {
            self.check_interrupted()
        })?;
        let process = Process::open(program.pid()).map_err(Failure::cannot)?;
        let figures = || Figures::of(&process).map_err(Failure::cannot);
        let (before, compressed_before) = (figures()?, self.compressed_bytes());
        let mut tool = setting.start(program.pid(), &cgroup, self.places)?;
        let [warmup_seconds, seconds] = self.plan.times(planned, setting);
        self.wait(Instant::now() + Duration::from_secs_f64(warmup_seconds))?;
        self.compact()?;
        let first = Counters::now(&cgroup, &program, &tool)?;
        let until = first.at + Duration::from_secs_f64(seconds);
        let (mut resident, mut swapped, mut samples) = (0.0, 0.0, 0.0);
        let (mut compressed, mut cached) = (0.0, 0.0);
        while Instant::now() < until {
            self.wait((Instant::now() + SAMPLE).min(until))?;
            let Figures { resident_bytes, swapped_bytes, .. } = figures()?;
            resident += resident_bytes as f64;
            swapped += swapped_bytes as f64;
            compressed += self.compressed_bytes().saturating_sub(compressed_before) as f64;
            cached += cgroup.counter("swapcached")? as f64;
            samples += 1.0;
        }
        tool.check()?;
        let last = Counters::now(&cgroup, &program, &tool)?;
        let tool_bytes = tool.memory_bytes() as f64;
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        let rate = |of: fn(&Counters) -> u64| (of(&last) - of(&first)) as f64 / seconds;
        self.progress.end();
        let accesses_per_second = rate(|counters| counters.accesses);
        Ok(Point {
            tool: setting.tool().to_owned(),
            setting: setting.describe(),
            shipped: setting.is_shipped(),
            tuned: tool.tuned(),
            warmup_seconds,
            seconds,
            resident_before_bytes: before.resident_bytes,
            resident_bytes: resident / samples,
            swapped_bytes: swapped / samples,
            compressed_bytes: compressed / samples,
            cached_bytes: cached / samples,
            tool_bytes,
            net_saved_bytes: (swapped - compressed - cached) / samples - tool_bytes,
            refaults_per_second: rate(|counters| counters.pages_in),
            pages_out_per_second: rate(|counters| counters.pages_out),
            major_faults_per_second: rate(|counters| counters.major_faults),
            accesses_per_second,
            kept_up: accesses_per_second >= KEPT_UP * planned.accesses_per_second,
            core_share: last.cpu.saturating_sub(first.cpu).as_secs_f64() / seconds,
        })
    }

    fn facts(&self, statistics: &Statistics) -> Vec<(String, String)> {
        let fact = |what: &str, how: &str| (what.to_owned(), how.to_owned());
        let mut facts = vec![
            fact("refaults", "pages read back from swap, by the cgroup's pswpin, for any cause"),
            fact(
                "net saved",
                "the process's bytes in swap, less those that are still in memory (the cgroup's swapcached), less the memory \
                 that compressed swap takes for them, averaged over the measured time, less the tool's own memory at \
                 the end of that time",
            ),
            fact(
                "what a tool takes",
                "anonymous and shared memory that its processes have since it began, in proportion where it is shared; \
                 BPF maps; DAMON's regions. Not the clean pages of programs' files, and not the kernel's other objects",
            ),
            fact(
                "every tool",
                "the same process and accesses from the same seed, started anew; pages of 4 KiB (no huge pages); the \
                 same time, but for settings of any tool that need longer to settle, and are measured for longer",
            ),
        ];
        let Places { shared, aside } = self.places;
        facts.push((
            format!("CPU {shared}: the program and the thread that pages it out; CPU {aside}: our agent, redis's client"),
            "no page-out interrupts another CPU: in an emulated machine that would take longer than everything else".into(),
        ));
        if self.plan.swap_on.contains(&SwapOn::Zram) {
            facts.push(fact(
                "zram was compacted once before it was measured",
                "a machine short of memory would get the gaps between freed pieces back, too",
            ));
        }
        if self.plan.swap_on.contains(&SwapOn::File) {
            facts.push(fact(
                "swap in a file",
                "takes no memory once the kernel has freed the written pages",
            ));
        }
        if statistics.were_on() {
            facts.push(fact(
                "DAMON's statistics (damon_stat) were switched off for the run",
                "they clear accessed bits of all memory, and block other uses of DAMON",
            ));
        }
        facts
    }
}
