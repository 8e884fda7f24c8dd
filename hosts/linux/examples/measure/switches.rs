//! Measures instructions per wake-up and per switch of the mechanism, of a BPF scheduler that decides by itself
//! (`bpf/fifo.bpf.c`), and of the kernel's own scheduler, EEVDF: on one kernel and one CPU, with the same threads.
//!
//! It needs a machine whose clock counts instructions (`cargo xtask vm run --icount`): a nanosecond is then
//! one instruction, of the kernel or of any program.
//!
//! A round wakes all threads, one after another, and then lets each run once. The waker is in the real-time
//! class, so no thread runs before all are awake. The counts are of:
//!
//! - a *wake-up*: the waker's system call, with all of the scheduler's work in it;
//! - a *switch*, from one thread's run to the next one's: the first thread's system call that sleeps, the choice
//!   of the next thread, and that thread's return from its own system call.
//!
//! The agent's part is counted separately. It is the usual agent with its FIFO policy, but the waker steps it by
//! hand: after the wake-ups it reads the messages and leaves a decision for each thread, and then it sleeps while
//! the core switches from one thread to the next. So a switch is the cost for a host core whose agent is on another
//! machine and prestages. The agent's instructions are counted, too. Like an agent on a NIC, it never parks, so its
//! doorbell is not rung.
//!
//! A tick or a kernel thread disturbs a few rounds; the median over the rounds excludes them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{MapCore, ObjectBuilder};
use wave_agent::{Attached, Registry, attach};
use wave_core::agent::{Agent, Step};
use wave_core::clock::Nanos;
use wave_core::outcome::Code;
use wave_linux::sched::{self, Enclave, Options, Stats};

use crate::Error;
use crate::ring::Ring;

/// Number of threads that take turns, and of decisions that are prestaged.
const THREADS: usize = 64;
/// Rounds before counting starts, in which memory is touched for the first time.
const WARM_UP: usize = 8;
/// Number of counted rounds.
const ROUNDS: usize = 101;
/// File that makes the kernel count each BPF program's runs and time.
const PROGRAM_STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

pub fn measure() -> Result<(), Error> {
    enter_class(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)?;
    eevdf()?;
    bpf_fifo()?;
    wave()
}

fn eevdf() -> Result<(), Error> {
    let ring = Ring::start(THREADS, || enter_class(libc::SCHED_OTHER, 0))?;
    report("eevdf", &counted(&ring, || Ok(()))?);
    Ok(())
}

fn bpf_fifo() -> Result<(), Error> {
    let program = include_bytes!(concat!(env!("OUT_DIR"), "/fifo.bpf.o"));
    let mut object = ObjectBuilder::default().open_memory(program)?.load()?;
    let mut ops =
        object.maps_mut().find(|map| map.name() == "fifo").ok_or("the object has no map `fifo`")?;
    let _link = ops.attach_struct_ops()?;
    let ring = Ring::start(THREADS, || sched::join(0))?;
    report("bpf_fifo", &counted(&ring, || Ok(()))?);
    programs("bpf_fifo", "fifo_", || counted(&ring, || Ok(())))
}

fn wave() -> Result<(), Error> {
    let socket = wave_process::places::socket("measure")?;
    let mut options = Options::new(&socket, vec![0]);
    options.config.prestage = THREADS as u16;
    options.config.decisions.entries = (2 * THREADS).next_power_of_two() as u32;
    // The clock is slow here, and the agent sleeps on purpose.
    options.config.patience = Nanos::from_millis(5_000);
    let enclave = Enclave::start(options)?;
    let ring = Ring::start(THREADS, || sched::join(0))?;
    let mut agent = SteppedAgent::attach(&socket, &enclave)?;
    let before = enclave.stats();
    let costs = counted(&ring, || agent.step())?;
    held(&before, &enclave.stats())?;
    report("wave", &costs);
    programs("wave", "wave_", || counted(&ring, || agent.step()))
}

/// Checks that the agent decided every switch, and that none of its decisions was refused.
fn held(before: &Stats, after: &Stats) -> Result<(), Error> {
    let (before, after) = (&before.cores[0], &after.cores[0]);
    let count = |outcomes: &[(Code, u64)], complete: bool| -> u64 {
        let wanted = outcomes.iter().filter(|(code, _)| (*code == Code::Complete) == complete);
        wanted.map(|(_, count)| count).sum()
    };
    let more = |complete| count(&after.outcomes, complete) - count(&before.outcomes, complete);
    let by_itself = after.fallback_switches - before.fallback_switches;
    let switches = ((WARM_UP + ROUNDS) * THREADS) as u64;
    if (more(true), more(false), by_itself) == (switches, 0, 0) {
        return Ok(());
    }
    Err(format!(
        "{} switches of {switches} were decided on, {} decisions were refused, and the host chose {by_itself} \
         times by itself: nothing was measured",
        more(true),
        more(false)
    )
    .into())
}

/// An agent that runs only when it is stepped.
struct SteppedAgent {
    agent: Agent<
        Box<dyn wave_core::policy::Policy + Send>,
        (),
        wave_links::AnyPort,
        wave_agent::HostBell,
    >,
    start: Instant,
    _kept: (wave_agent::OwnBell, wave_agent::HostLine),
}

impl SteppedAgent {
    fn attach(socket: &Path, enclave: &Enclave) -> Result<SteppedAgent, Error> {
        let Attached { layout, port, host_bells, own_bell, connection, .. } = attach(socket)?;
        let policy = Registry::shipped().make("fifo", &layout.config)?;
        let agent = Agent::new(layout, port, host_bells, policy, ());
        let mut agent =
            SteppedAgent { agent, start: Instant::now(), _kept: (own_bell, connection) };
        agent.agent.announce();
        while !enclave.stats().agent_decides || enclave.stats().snapshots == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The core switches to the new window, and asks; the snapshot says so again.
        std::thread::sleep(Duration::from_millis(20));
        agent.step()?;
        Ok(agent)
    }

    /// Steps until there is nothing left to do.
    fn step(&mut self) -> Result<(), Error> {
        loop {
            match self.agent.step(Nanos(self.start.elapsed().as_nanos() as u64))? {
                Step::Progress => {}
                Step::Idle(_) => return Ok(()),
                Step::Revoked => return Err("the host has turned the agent out".into()),
            }
        }
    }
}

/// Costs in instructions per thread and round.
struct Costs {
    wakeup: f64,
    switch: f64,
    /// Cost of `decide`, for one wake-up and one switch together.
    decide: f64,
}

/// The medians over the rounds.
fn counted(ring: &Ring, mut decide: impl FnMut() -> Result<(), Error>) -> Result<Costs, Error> {
    let (mut wakeups, mut switches, mut decisions) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        let mut decided_ns = 0;
        let took = ring.round(|| {
            let start = Instant::now();
            let result = decide();
            decided_ns += start.elapsed().as_nanos() as u64;
            result
        })?;
        if round >= WARM_UP {
            wakeups.push(took.wakeups_ns);
            switches.push(took.switches_ns);
            decisions.push(decided_ns);
        }
    }
    let per = |mut values: Vec<u64>, count: usize| {
        values.sort_unstable();
        values[values.len() / 2] as f64 / count as f64
    };
    Ok(Costs {
        wakeup: per(wakeups, THREADS),
        switch: per(switches, THREADS - 1),
        decide: per(decisions, THREADS),
    })
}

fn report(name: &str, costs: &Costs) {
    println!("{name}.wakeup_instructions {:.1}", costs.wakeup);
    println!("{name}.switch_instructions {:.1}", costs.switch);
    if name == "wave" {
        println!("agent_instructions_per_switch {:.1}", costs.decide);
    }
}

/// Prints the kernel's counts for each program while `run` runs: instructions and runs per thread and round,
/// including those of the counting itself.
fn programs(
    name: &str,
    prefix: &str,
    run: impl FnOnce() -> Result<Costs, Error>,
) -> Result<(), Error> {
    let counters = || -> BTreeMap<String, (u64, u64)> {
        let all = ProgInfoIter::default();
        let named = all.map(|program| {
            let name = program.name.to_string_lossy().into_owned();
            (name, (program.run_time_ns, program.run_cnt))
        });
        named.filter(|(name, _)| name.starts_with(prefix)).collect()
    };
    std::fs::write(PROGRAM_STATS, "1")?;
    let before = counters();
    run()?;
    let after = counters();
    std::fs::write(PROGRAM_STATS, "0")?;
    let events = ((WARM_UP + ROUNDS) * THREADS) as f64;
    let mut total = 0.0;
    for (program, (ns, runs)) in after {
        let (ns_before, runs_before) = before.get(&program).copied().unwrap_or_default();
        let (ns, runs) = ((ns - ns_before) as f64, (runs - runs_before) as f64);
        if runs > 0.0 {
            println!("{name}.programs.{program}.instructions {:.1}", ns / events);
            println!("{name}.programs.{program}.runs {:.2}", runs / events);
            total += ns / events;
        }
    }
    println!("{name}.programs_instructions {total:.1}");
    Ok(())
}

/// Puts the calling thread into a scheduling class.
fn enter_class(policy: i32, priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter is valid for the duration of the call; nothing else is touched.
    match unsafe { libc::sched_setscheduler(0, policy, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
