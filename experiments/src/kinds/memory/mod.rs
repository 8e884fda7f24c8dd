//! The memory of RocksDB under an agent, beside the same run without one (Wave 7.4).
//!
//! Each variant is a process of its own ([`process`]) that fills a database, holds all of it in its block cache, and serves
//! GETs at a fixed rate. Its resident set is read from outside; it reports the latencies of GETs itself.

mod page;
pub mod process;
pub mod report;
pub(crate) mod scenario;
mod served;
pub mod sim;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use wave_linux::memory::{
    Enclave, Figures, Group, Options, Process, StartError, Stats, Swap, Zram,
};
use wave_memory::wire::STRIP_BYTES;
use wave_process::cpus;
use wave_workloads::recorder;

use self::process::{INTERVAL, Interval, Order, Told};
pub use self::report::MemoryResult;
use self::report::{Compressed, Ran, Second};
pub use self::scenario::{Managed, Memory};
use self::served::{NICE, Served};
use super::{Experiment, Host, Kind, Wanted, digest, keep_when_interrupted, without_live};
use crate::ground::neighbours::Neighbours;
use crate::ground::seating::{self, Seating};
use crate::ground::{Failure, Journal, describe, planned};
use wave_app_memory::agent;
use wave_app_memory::overhead::Before;
use wave_app_memory::sample::Sample;
use wave_apps::agent::AgentProcess;
use wave_apps::machine;
use wave_report::number::short;
use wave_report::{Report, slug};
use wave_scenario::reference::fields_of;
use wave_terminal::Progress;

pub(super) static KIND: Kind = Kind {
    names: &["memory"],
    about: "Memory of a RocksDB process under an agent, compared with the same run without one.",
    commands: "`sudo wave run FILE`; `wave run FILE --host sim`",
    examples: &[include_str!("example.toml")],
    fields: fields_of::<Memory>,
    takes_agent: false,
    read: |wished| Ok(Box::new(scenario::read(wished.source)?)),
};

impl Experiment for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(self, [])
    }

    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        without_live("memory", &self.name, wanted)
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        let ran = match wanted.host {
            Host::Sim => {
                keep_when_interrupted(journal)?;
                sim::run(self, wanted.quiet, wanted.record, journal)
            }
            // When interrupted, it undoes its changes to the machine.
            Host::User => run(self, wanted.quiet, wanted.record, journal),
        };
        Ok(Box::new(ran?))
    }
}

/// A process that reports nothing for this long hangs.
const HEAR_PATIENCE: Duration = Duration::from_secs(30);
/// Room in the table, as a multiple of the cache.
const ROOM: u64 = 4;

/// Runs each variant in turn, except those that `journal` has. Agents write logs into the directory `record`, if given.
pub fn run(
    memory: &Memory,
    quiet: bool,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<MemoryResult, Failure> {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        wave_terminal::interrupt::register_unless_ignored(signal, &end)?;
    }
    if let Some(directory) = record {
        std::fs::create_dir_all(directory).map_err(|error| {
            Failure::Cannot(format!("{}: cannot be made: {error}", directory.display()))
        })?;
    }
    let started = journal.started();
    let cpus = cpus::allowed().map_err(Failure::cannot)?;
    let seating = seating::seat(&cpus, 1, 1);
    // Agent, enclave and probe stay off the CPU that serves.
    cpus::pin(&seating.housekeeping(&cpus)).map_err(Failure::cannot)?;
    let progress = Progress::new(2 * memory.variants.len() as u64, quiet);
    journal.follow(&progress);
    progress.say(&planned(memory.variants.len() as u64, memory.run.seconds));
    progress.say(&format!(
        "{}: GETs on CPU {}, everything else elsewhere",
        memory.name, seating.workers[0]
    ));
    // Taken down last.
    let swap = match memory.memory.swap_on {
        Some(swap_on) => wave_app_memory::swap::set_up(swap_on, memory.swap_bytes()),
        None => Swap::set_up(memory.swap_bytes()),
    };
    let swap = swap.map_err(Failure::cannot)?;
    let before = Neighbours::now();
    let ground = Ground { memory, seating, progress, swap, end, record };
    let one = |variant: &Managed| -> Result<Ran, Failure> {
        journal.point(&variant.name, || Kept::of(ground.variant(variant)?))?.ran()
    };
    let ran: Vec<Ran> = memory.variants.iter().map(one).collect::<Result<_, _>>()?;
    let mut facts = ground.facts(&ran);
    facts.extend(journal.fact());
    let if_disturbed = "the figures are disturbed: run again on a quiet machine";
    facts.extend(Neighbours::fact(Neighbours::since(before), journal, if_disturbed));
    let seating = describe(&ground.seating);
    let Ground { swap, .. } = ground;
    swap.take_down().map_err(Failure::cannot)?;
    let machine = machine::machine(cpus.len());
    Ok(MemoryResult::new(memory, "user", started, machine, seating, ran, facts))
}

/// A variant as kept in the journal.
#[derive(Deserialize, Serialize)]
struct Kept {
    ran: Ran,
    histograms: [String; 3],
}

impl Kept {
    fn of(ran: Ran) -> Result<Kept, Failure> {
        let histograms = ran.histograms.each_ref().map(recorder::encode);
        Ok(Kept { ran, histograms })
    }

    fn ran(self) -> Result<Ran, Failure> {
        let Kept { mut ran, histograms } = self;
        for (histogram, text) in ran.histograms.iter_mut().zip(&histograms) {
            *histogram = recorder::decode(text).map_err(Failure::cannot)?;
        }
        Ok(ran)
    }
}

struct Ground<'a> {
    memory: &'a Memory,
    seating: Seating,
    progress: Progress,
    swap: Swap,
    end: Arc<AtomicBool>,
    record: Option<&'a Path>,
}

impl Ground<'_> {
    fn check_running(&self) -> Result<(), Failure> {
        match self.end.load(Ordering::SeqCst) {
            true => Err(Failure::Cannot(
                "interrupted; all changes to the machine are undone".to_owned(),
            )),
            false => Ok(()),
        }
    }

    fn variant(&self, variant: &Managed) -> Result<Ran, Failure> {
        let workload = self.memory.workload.clone();
        self.progress
            .begin(&format!("{}: filling RocksDB with {} keys", variant.name, workload.keys));
        let order = Order {
            workload,
            seed: self.memory.run.seed,
            folder: std::env::temp_dir(),
            cpu: self.seating.workers[0],
            shares_cpu: self.seating.workers_yield,
        };
        let mut served = Served::start(&order)?;
        let ready = served.ready(|| self.check_running())?;
        self.progress.end();
        self.progress.begin(&format!("{}: {:.0} s", variant.name, self.memory.run.seconds));
        let target = Process::open(served.pid()).map_err(Failure::cannot)?;
        let resident_before = Figures::of(&target).map_err(Failure::cannot)?.resident_bytes;
        let manager = match &variant.policy {
            Some(policy) => Some(self.manage(served.pid(), policy, variant)?),
            None => None,
        };
        served.begin()?;
        let mut ran = Ran::new(variant, Some(ready), resident_before);
        let began = Instant::now();
        let mut heard = Instant::now();
        while ran
            .seconds
            .last()
            .is_none_or(|second| second.memory.seconds < self.memory.run.seconds)
        {
            self.check_running()?;
            let Some(told) = served.next_report(INTERVAL)? else {
                if heard.elapsed() > HEAR_PATIENCE {
                    let why = format!("RocksDB's process served nothing for {:?}", heard.elapsed());
                    return Err(Failure::Cannot(why));
                }
                continue;
            };
            heard = Instant::now();
            if let Told::Interval(interval) = told {
                let sample = self.sample(&target, manager.as_ref(), began.elapsed())?;
                let counts =
                    interval.seconds - INTERVAL.as_secs_f64() >= self.memory.run.warmup_seconds();
                add(&mut ran, &interval, sample, counts)?;
            }
        }
        ran.compressed = Zram::of(self.swap.path()).map(|zram| Compressed {
            held_bytes: zram.orig_bytes,
            memory_bytes: zram.memory_used_bytes,
        });
        if let Some(Manager { enclave, .. }) = &manager {
            ran.finish(&enclave.stats(), enclave.backend().name());
        }
        self.progress.end();
        Ok(ran)
    }

    fn manage(&self, pid: i32, policy: &str, variant: &Managed) -> Result<Manager, Failure> {
        let before = Before::now();
        let socket = wave_process::places::socket("memory").map_err(Failure::cannot)?;
        let strips = (ROOM * self.memory.workload.cache.0).div_ceil(STRIP_BYTES) as u32;
        let mut options = Options::new(socket, vec![Group::Process(pid)], strips);
        options.limits = self.memory.limits(variant);
        agent::set_patience(policy, &mut options.config)?;
        let enclave = Enclave::start(options).map_err(|error| match error {
            StartError::Target(_) | StartError::Nothing { .. } => Failure::Check(error.to_string()),
            error => Failure::cannot(error),
        })?;
        let log = self.record.map(|folder| folder.join(format!("{}.wavelog", slug(&variant.name))));
        let mut agent = agent::start(policy, enclave.socket(), log.as_deref(), None)?;
        agent::wait_until_attached(Some(&mut agent), &enclave, || self.end.load(Ordering::SeqCst))?;
        Ok(Manager { agent, enclave, before })
    }

    fn sample(
        &self,
        target: &Process,
        manager: Option<&Manager>,
        time: Duration,
    ) -> Result<Sample, Failure> {
        let figures = Figures::of(target).map_err(Failure::cannot)?;
        let (stats, agent_cpu, tool_bytes) = match manager {
            Some(Manager { agent, enclave, before }) => {
                let cpu = agent.cpu_time().unwrap_or_default();
                (enclave.stats(), cpu, before.grown(&[agent.pid().as_raw_pid()]))
            }
            None => (Stats::default(), Duration::ZERO, 0),
        };
        let Figures { resident_bytes, swapped_bytes, .. } = figures;
        let stats = Stats { resident_bytes, swapped_bytes, ..stats };
        Ok(Sample::of(&stats, time, agent_cpu, tool_bytes))
    }

    fn facts(&self, ran: &[Ran]) -> Vec<(String, String)> {
        let workload = &self.memory.workload;
        let percent = |share: f64| share * 100.0;
        let mut facts = Vec::new();
        if let Some(ready) = &ran[0].ready {
            facts.push((
                format!("RocksDB {}", ready.version),
                format!(
                    "the system's library; {} keys, values of {} bytes, blocks of {}, none compressed; {} in the \
                     block cache once all were read",
                    workload.keys,
                    workload.value_bytes,
                    workload.block_bytes,
                    wave_scenario::size::show(ready.held_bytes)
                ),
            ));
            facts.push((
                format!("bare GET {} ns (p50), {} ns (p99)", ready.bare.p50_ns, ready.bare.p99_ns),
                format!(
                    "measured in \"{}\" before the run, of keys all over; spun out to {} us",
                    ran[0].name, workload.service_us
                ),
            ));
        }
        facts.extend([
            (
                format!(
                    "{:.1}% of the GETs go to the first {:.0}% of the keys",
                    percent(workload.hot_gets),
                    percent(workload.hot_keys)
                ),
                format!(
                    "chosen; keys uniform on either side, {} GETs a second on one thread, arriving at random",
                    workload.gets_per_second
                ),
            ),
            (
                format!("RocksDB's process has nice {NICE}"),
                "so that other programs disturb less; the same in every variant".to_owned(),
            ),
            (
                format!("swap on {}", self.swap.path().display()),
                format!(
                    "{}, set up for the run",
                    wave_scenario::size::show(self.memory.swap_bytes())
                ),
            ),
        ]);
        facts.extend(limits(self.memory));
        facts.push((
            "net saved".to_owned(),
            "paged out, less what compressed swap takes for it (an estimate from sampled pages), less what host and agent \
             take: anonymous and shared memory since they began, in proportion where it is shared, and BPF maps"
                .to_owned(),
        ));
        facts
    }
}

/// The limits on refaults, as facts for the report.
fn limits(memory: &Memory) -> Vec<(String, String)> {
    let managed = memory.variants.iter().filter(|variant| variant.policy.is_some());
    let fact = |variant: &Managed| {
        let limits = memory.limits(variant);
        (
            format!(
                "{}: page-outs wait while refaults cost the program more than {}% of the time{}",
                variant.name,
                short(100.0 * limits.slowdown),
                match limits.refaults_per_minute {
                    f64::INFINITY => String::new(),
                    share => format!(
                        ", or above {}% of the resident pages refaulted in a minute",
                        short(100.0 * share)
                    ),
                }
            ),
            format!("chosen; or above {}% memory pressure", limits.pressure_percent),
        )
    };
    managed.map(fact).collect()
}

/// Host and agent. The agent ends first on drop.
struct Manager {
    agent: AgentProcess,
    enclave: Enclave,
    before: Before,
}

fn add(ran: &mut Ran, interval: &Interval, memory: Sample, counts: bool) -> Result<(), Failure> {
    let read = |text: &str| recorder::decode(text).map_err(Failure::cannot);
    let now = [read(&interval.gets)?, read(&interval.raw)?, read(&interval.maps)?];
    let [gets, raw, maps] = &now;
    let memory = Sample { seconds: interval.seconds, ..memory };
    let p = |of: &Histogram<u64>, share| of.value_at_quantile(share);
    ran.seconds.push(Second {
        counts,
        gets: Some(gets.len()),
        get_p50_ns: Some(p(gets, 0.5)),
        get_p99_ns: Some(p(gets, 0.99)),
        raw_p50_ns: Some(p(raw, 0.5)),
        raw_p99_ns: Some(p(raw, 0.99)),
        map_max_ns: Some(maps.max()),
        memory,
    });
    ran.wrong = Some(ran.wrong.unwrap_or(0) + interval.wrong);
    if counts {
        for (all, one) in ran.histograms.iter_mut().zip(&now) {
            all.add(one).map_err(Failure::cannot)?;
        }
    }
    Ok(())
}
