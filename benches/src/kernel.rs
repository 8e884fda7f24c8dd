//! `wave bench kernel`: wake-ups of threads that an agent schedules through sched_ext, against the kernel's own
//! scheduler, EEVDF.
//!
//! As in schbench, messengers wake workers: each messenger wakes its own workers, one after the other, waits until all have
//! run, naps, and repeats. All threads are in the scheduling class under test, on the same CPUs: with an agent on another
//! CPU, and without. These and a single thread under the agent take turns.
//!
//! - A *wake-up* lasts from just before the messenger's system call to the worker's first instruction after it.
//! - *Message to decision* is the worker's run delay as the kernel counts it (schedstat): from the enqueueing of the
//!   worker, which sends the message, to a core's switch to it, which commits the decision. It is as exact as the clock
//!   of a core's queue, which stands still while the core chooses. For this measurement, one messenger and one worker
//!   have all cores to themselves, so that the worker waits for nothing else. EEVDF has no comparable value: it often
//!   enqueues a thread only when the target CPU turns to it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wave_core::clock::Nanos;
use wave_core::outcome::Code;
use wave_linux::sched::{self, Enclave, Options, Stats};
use wave_process::words::counted;
use wave_process::{cpus, places};

use wave_compare::{PerRound, in_turns, quantile};

use crate::SEED;
use crate::bench::{Bench, arguments};
use clap::Args;
use wave_apps::agent::AgentProcess;

pub static BENCH: Bench = Bench {
    name: "kernel",
    about: "Wake-ups of threads that an agent schedules through sched_ext, against the kernel's EEVDF",
    help: "Messengers wake workers, as in schbench, on all CPUs except the last, which is the agent's: under
an agent with the policy fifo, and under EEVDF. Times are in microseconds, medians over
the chunks of each chunk's p50 and p99.

  wakeup_ratio_vs_eevdf    Wave's p50 divided by EEVDF's
  wakeup_us                from just before the waking system call to the thread's first instruction
  message_to_decision_us   from a thread's enqueueing, which sends the message, to a core's switch to it,
                           which commits the decision; for a single thread on all cores

The bench needs root and Linux 6.13 or later with sched_ext. In a virtual machine without KVM it runs with
--patience 5000, but the times mean nothing.

Examples:
  sudo wave bench kernel
  sudo wave bench kernel --json | jq .wakeup_ratio_vs_eevdf

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why).",
    figures: &[

    ],
    short: &[],
    has_two_cpus: false,
    arguments: KernelArgs::augment_args,
    run: |matches, _| {
        let KernelArgs { chunks, patience } = arguments(matches)?;
        kernel(chunks, patience.map(Nanos::from_millis))
    },
};

#[derive(Args, Debug)]
struct KernelArgs {
    /// Number of chunks to measure of each; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// Milliseconds that a thread may wait for a decision while a core is idle; then the agent is ejected and
    /// the bench fails [default: 20].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    patience: Option<u64>,
}

const POLICY: &str = "fifo";
const MESSENGERS: usize = 2;
const ROUNDS: u32 = 200;
/// Length of a messenger's nap, in which the cores go idle.
const NAP: Duration = Duration::from_micros(200);
/// Steps of a worker's work.
const WORK: u64 = 10_000;

/// The scheduler of a chunk's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Wave,
    Eevdf,
}

impl Class {
    /// Moves the calling thread into the class.
    fn enter(self) -> Result<(), String> {
        match self {
            Class::Wave => sched::join(0).map_err(|error| format!("joining SCHED_EXT: {error}")),
            // Threads start in this class.
            Class::Eevdf => Ok(()),
        }
    }
}

struct Team {
    epoch: Instant,
    workers: Vec<Worker>,
    /// Number of workers that have not run yet in this round.
    left: AtomicU32,
}

#[derive(Default)]
struct Worker {
    /// The round for which the worker was last woken.
    round: AtomicU32,
    woken_ns: AtomicU64,
}

/// Latencies in microseconds.
#[derive(Debug, Default)]
struct Samples {
    wakeups: Vec<f64>,
    waits: Vec<f64>,
}

impl Team {
    fn new(workers: usize) -> Team {
        let workers = (0..workers).map(|_| Worker::default()).collect();
        Team { epoch: Instant::now(), workers, left: AtomicU32::new(0) }
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn lead(&self) {
        for round in 1..=ROUNDS {
            self.left.store(self.workers.len() as u32, Ordering::SeqCst);
            for worker in &self.workers {
                worker.woken_ns.store(self.now_ns(), Ordering::SeqCst);
                worker.round.store(round, Ordering::SeqCst);
                atomic_wait::wake_one(&worker.round);
            }
            loop {
                match self.left.load(Ordering::SeqCst) {
                    0 => break,
                    left => atomic_wait::wait(&self.left, left),
                }
            }
            std::thread::sleep(NAP);
        }
    }

    fn work(&self, me: usize, delay: &RunDelay, samples: &mut Samples) {
        let worker = &self.workers[me];
        for round in 1..=ROUNDS {
            let before = delay.read();
            while worker.round.load(Ordering::SeqCst) != round {
                atomic_wait::wait(&worker.round, round - 1);
            }
            let wakeup_ns = self.now_ns() - worker.woken_ns.load(Ordering::SeqCst);
            samples.wakeups.push(wakeup_ns as f64 / 1e3);
            if let (Some((ns_before, runs_before)), Some((ns, runs))) = (before, delay.read())
                // Otherwise the worker did not sleep, or was interrupted.
                && runs == runs_before + 1
            {
                samples.waits.push((ns - ns_before) as f64 / 1e3);
            }
            std::hint::black_box((0..WORK).fold(1, |sum, step| std::hint::black_box(sum + step)));
            if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                atomic_wait::wake_one(&self.left);
            }
        }
    }
}

/// The calling thread's run delay and number of runs.
struct RunDelay(File);

impl RunDelay {
    fn open() -> Result<RunDelay, String> {
        let path = "/proc/thread-self/schedstat";
        let delay = RunDelay(File::open(path).map_err(|error| format!("{path}: {error}"))?);
        match delay.read() {
            Some((_, runs)) if runs > 0 => Ok(delay),
            _ => Err("this kernel does not count how long threads wait to run: it takes one that \
                      was built with CONFIG_SCHED_INFO"
                .to_owned()),
        }
    }

    /// Run delay in nanoseconds, and number of runs.
    fn read(&self) -> Option<(u64, u64)> {
        let mut bytes = [0; 128];
        let count = self.0.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..count]).ok()?;
        let mut numbers = text.split_ascii_whitespace().skip(1).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

/// Measures one chunk: each messenger wakes `workers` workers, on these CPUs.
fn chunk(
    class: Class,
    messengers: usize,
    workers: usize,
    cores: &[usize],
) -> Result<Samples, String> {
    const WAIT: u32 = 0;
    const GO: u32 = 1;
    const GIVE_UP: u32 = 2;
    let teams: Vec<Team> = (0..messengers).map(|_| Team::new(workers)).collect();
    let start = AtomicU32::new(WAIT);
    let (sender, entered) = channel();
    // Everything that a thread needs exists before it enters the class.
    let player = |team: &Team, me: Option<usize>| -> Samples {
        let mut samples = Samples::default();
        samples.wakeups.reserve(ROUNDS as usize);
        samples.waits.reserve(ROUNDS as usize);
        let began = cpus::pin(cores).map_err(|error| error.to_string());
        let began = began.and_then(|()| RunDelay::open());
        let began = began.and_then(|delay| class.enter().map(|()| delay));
        let (delay, result) = match began {
            Ok(delay) => (Some(delay), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let _ = sender.send(result);
        while start.load(Ordering::SeqCst) == WAIT {
            atomic_wait::wait(&start, WAIT);
        }
        if start.load(Ordering::SeqCst) == GO {
            match (me, delay) {
                (Some(me), Some(delay)) => team.work(me, &delay, &mut samples),
                _ => team.lead(),
            }
        }
        samples
    };
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for team in &teams {
            for me in std::iter::once(None).chain((0..workers).map(Some)) {
                let player = &player;
                threads.push(scope.spawn(move || player(team, me)));
            }
        }
        let all: Result<Vec<()>, String> = entered.iter().take(threads.len()).collect();
        start.store(if all.is_ok() { GO } else { GIVE_UP }, Ordering::SeqCst);
        atomic_wait::wake_all(&start);
        let mut samples = Samples::default();
        for thread in threads {
            let more = thread.join().map_err(|_| "a thread panicked".to_owned())?;
            samples.wakeups.extend(more.wakeups);
            samples.waits.extend(more.waits);
        }
        all.map(|_| samples)
    })
}

/// The median and the p99 of a chunk's samples.
fn percentiles(samples: &[f64]) -> Result<[f64; 2], String> {
    match [0.5, 0.99].map(|share| quantile(samples, share)) {
        [Some(p50), Some(p99)] => Ok([p50, p99]),
        _ => Err("no thread slept before it was woken: nothing was measured".to_owned()),
    }
}

/// Runs the bench with this number of chunks per class.
pub fn kernel(chunks: u32, patience: Option<Nanos>) -> Result<Value, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    sched::check_kernel().map_err(|error| text(&error))?;
    let online = cpus::online().map_err(|error| text(&error))?;
    let (agent_cpu, cores) = match &online[..] {
        [cores @ .., agent] if !cores.is_empty() => (*agent, cores),
        _ => {
            return Err(format!(
                "the bench needs two CPUs, one of them for the agent; online are {online:?}"
            ));
        }
    };
    let socket = places::socket("kernel").map_err(|error| text(&error))?;
    let mut options = Options::new(socket, cores.to_vec());
    if let Some(patience) = patience {
        options.config.patience = patience;
    }
    let enclave = Enclave::start(options).map_err(|error| text(&error))?;
    let mut agent = AgentProcess::start(None, enclave.socket(), POLICY, agent_cpu, false, None)
        .map_err(|error| text(&error))?;
    wait_until_attached(&mut agent, &enclave)?;
    let of_all = |class| chunk(class, MESSENGERS, cores.len(), cores);
    let measured: [Vec<[f64; 2]>; 3] = in_turns(SEED, 1, chunks as usize, |row| match row {
        0 => percentiles(&of_all(Class::Wave)?.wakeups),
        1 => percentiles(&of_all(Class::Eevdf)?.wakeups),
        _ => percentiles(&chunk(Class::Wave, 1, 1, cores)?.waits),
    })?;
    let of = |row: usize| [0, 1].map(|at| PerRound::of(&measured[row], |chunk| chunk[at]));
    let [wave, eevdf, alone] = [0, 1, 2].map(of);
    let medians = |[p50, p99]: &[PerRound; 2]| json!({ "p50": p50.median(), "p99": p99.median() });
    let stats = enclave.stats();
    let per_chunk = u64::from(ROUNDS) * (MESSENGERS * cores.len() + 1) as u64;
    let wakeups = (1 + u64::from(chunks)) * per_chunk;
    check(&stats, wakeups)?;
    drop(enclave);
    let outcomes: serde_json::Map<_, _> =
        outcomes(&stats).map(|(code, count)| (code.name().to_owned(), count.into())).collect();
    Ok(json!({
        "bench": "kernel",
        "peer": "EEVDF (SCHED_OTHER), the same threads on the same CPUs",
        "policy": POLICY,
        "cores": cores.len(),
        "messengers": MESSENGERS,
        "workers": MESSENGERS * cores.len(),
        "chunks": chunks,
        "wakeup_ratio_vs_eevdf": wave[0].over(&eevdf[0]).estimate(),
        "wakeup_p99_ratio_vs_eevdf": wave[1].over(&eevdf[1]).estimate(),
        "wakeup_us": { "wave": medians(&wave), "eevdf": medians(&eevdf) },
        "wakeup_p50_us_over_chunks": { "wave": wave[0].spread(), "eevdf": eevdf[0].spread() },
        "message_to_decision_us": medians(&alone),
        "outcomes": outcomes,
    }))
}

fn wait_until_attached(agent: &mut AgentProcess, enclave: &Enclave) -> Result<(), String> {
    let attached = agent.wait_until(|| Ok(enclave.stats().agent_decides));
    attached.map_err(|error| error.to_string())
}

fn outcomes(stats: &Stats) -> impl Iterator<Item = (Code, u64)> {
    stats.cores.iter().flat_map(|core| &core.outcomes).fold(Vec::new(), add).into_iter()
}

fn add(mut sums: Vec<(Code, u64)>, (code, count): &(Code, u64)) -> Vec<(Code, u64)> {
    match sums.iter_mut().find(|(other, _)| other == code) {
        Some((_, sum)) => *sum += count,
        None => sums.push((*code, *count)),
    }
    sums
}

/// Checks that the agent decided on every wake-up.
fn check(stats: &Stats, wakeups: u64) -> Result<(), String> {
    if let Some(why) = &stats.turned_out {
        return Err(format!("the kernel ejected the scheduler: {why}"));
    }
    let by_itself: u64 = stats.cores.iter().map(|core| core.fallback_switches).sum();
    if stats.lost_agents != 0 || by_itself != 0 {
        return Err(format!(
            "lost {}, and the host decided {by_itself} times: nothing was measured; a slow machine \
             needs more --patience",
            counted(stats.lost_agents, "agent")
        ));
    }
    let decided: u64 =
        outcomes(stats).filter(|(code, _)| *code == Code::Complete).map(|(_, count)| count).sum();
    if decided < wakeups {
        return Err(format!(
            "nothing was measured: {wakeups} threads were woken, but only {decided} decisions were carried out"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eevdf_can_be_measured_without_sched_ext() {
        let cores = cpus::allowed().unwrap();
        let samples = chunk(Class::Eevdf, 1, 1, &cores).unwrap();
        assert_eq!(samples.wakeups.len(), ROUNDS as usize);
        assert!(samples.waits.len() <= samples.wakeups.len());
        let nowhere = chunk(Class::Eevdf, 1, 1, &[1 << 14]).unwrap_err();
        assert!(nowhere.contains("CPU"), "{nowhere}");
    }
}
