//! `wave run --host linux -- COMMAND`: an unmodified program's threads under an agent, on the real
//! kernel.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wave_core::clock::Nanos;
use wave_core::outcome::Code;
use wave_linux::sched::{self, DeviceOptions, Enclave, Options, Stats};

use super::Failure;
use super::agent::AgentProcess;
use super::recording::Log;
use crate::commands::table;

/// How often the command, and the agent, are looked after.
const LOOK: Duration = Duration::from_millis(5);
/// A new agent follows one that was lost after this long, so that one that cannot live is no storm.
const REST: Duration = Duration::from_millis(100);
/// How long an agent may take to attach.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);
/// How long the command waits for one from behind a device.
const DEVICE_PATIENCE: Duration = Duration::from_secs(30);

/// What to run, and how.
pub struct Wanted<'a> {
    /// Program and arguments.
    pub command: &'a [String],
    /// The agent's policy.
    pub policy: &'a str,
    /// The device that an agent comes from, where none is started here.
    pub device: Option<DeviceOptions>,
    /// The CPUs that become the enclave's cores.
    pub cpus: Option<&'a str>,
    /// How long a thread may wait for a decision before the host turns the agent out.
    pub patience: Option<Nanos>,
    /// Where agents write their logs.
    pub record: Option<&'a Path>,
    /// The command's output goes to our standard error: ours is for the result.
    pub json: bool,
}

/// What came of it.
pub struct Ran {
    status: ExitStatus,
    took: Duration,
    stats: Stats,
    cpus: Vec<usize>,
    decider: Decider,
}

/// Who decided.
enum Decider {
    /// An agent of this machine.
    Here { policy: String, seat: usize },
    /// One behind a device.
    Behind(String),
}

/// Runs the command to its end, and starts another agent whenever one is lost.
pub fn run(wanted: &Wanted<'_>) -> Result<Ran, Failure> {
    let (cpus, seat) = seats(wanted.cpus)?;
    let socket = std::env::temp_dir().join(format!("wave-linux-{}.sock", std::process::id()));
    let mut options = Options::new(socket, cpus.clone());
    let shares = cpus.contains(&seat);
    if shares {
        eprintln!(
            "wave run: no CPU is left outside the enclave: the agent shares CPU {seat}, where it comes before the \
             command's threads"
        );
        // Its threads would never run beside an agent that spins: the kernel prefers other classes.
        options.config.spin = Nanos(0);
    }
    if let Some(patience) = wanted.patience {
        options.config.patience = patience;
    }
    options.device.clone_from(&wanted.device);
    let enclave = Enclave::start(options).map_err(Failure::cannot)?;
    let mut agents = 0;
    let mut start_agent = || {
        let log = wanted.record.map(|folder| log(folder, agents, wanted.policy)).transpose()?;
        agents += 1;
        AgentProcess::start(enclave.socket(), wanted.policy, seat, shares, log)
    };
    let here = wanted.device.is_none();
    let mut agent = if here { Some(start_agent()?) } else { None };
    if let Some(device) = &wanted.device {
        eprintln!("wave run: waiting for an agent behind {}", device.address);
    }
    let began = Instant::now();
    while !enclave.stats().agent_decides {
        if !here && began.elapsed() > DEVICE_PATIENCE {
            eprintln!("wave run: no agent yet; the host decides until one attaches");
            break;
        }
        let left = agent.as_mut().and_then(|agent| agent.wait_for_end(Duration::ZERO));
        if let Some(status) = left {
            return Err(Failure::Cannot(format!("the agent left at once ({status})")));
        }
        if here && began.elapsed() > ATTACH_PATIENCE {
            return Err(Failure::Cannot("the agent did not attach within 10 s".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let [program, arguments @ ..] = wanted.command else {
        return Err(Failure::Scenario("there is no command: wave run --host linux -- CMD".into()));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if wanted.json {
        command.stdout(Stdio::from(std::io::stderr()));
    }
    // An interrupt is the command's; what it leaves is still to be shown.
    sched::ignore_interrupts();
    let began = Instant::now();
    let mut child = sched::spawn(command).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::Scenario(format!("`{program}`: no such command")),
        _ => Failure::Cannot(format!("`{program}` cannot be started: {error}")),
    })?;
    let mut lost_at: Option<Instant> = None;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(Failure::cannot)? {
            break status;
        }
        let ended =
            agent.as_mut().is_some_and(|agent| agent.wait_for_end(Duration::ZERO).is_some());
        if ended {
            agent = None;
            lost_at = Some(Instant::now());
            eprintln!("wave run: the agent is gone; the host decides until another is there");
        }
        if here && agent.is_none() && lost_at.is_none_or(|at| at.elapsed() >= REST) {
            agent = Some(start_agent()?);
        }
        std::thread::sleep(LOOK);
    };
    let took = began.elapsed();
    let stats = enclave.stats();
    let decider = match &wanted.device {
        None => Decider::Here { policy: wanted.policy.to_owned(), seat },
        Some(device) => Decider::Behind(device.address.clone()),
    };
    Ok(Ran { status, took, stats, cpus, decider })
}

/// The enclave's CPUs, and the agent's.
fn seats(cpus: Option<&str>) -> Result<(Vec<usize>, usize), Failure> {
    let online =
        std::fs::read_to_string("/sys/devices/system/cpu/online").map_err(Failure::cannot)?;
    let online = sched::parse_cpus(&online);
    let last = *online.last().unwrap_or(&0);
    let Some(text) = cpus else {
        let cores = if online.len() > 1 { &online[..online.len() - 1] } else { &online[..] };
        return Ok((cores.to_vec(), last));
    };
    let cores = sched::parse_cpus(text);
    if cores.is_empty() {
        return Err(Failure::Scenario(format!("--cpus {text}: no CPUs; write 0-3,8 for example")));
    }
    let outside = online.iter().rev().find(|cpu| !cores.contains(cpu));
    let seat = *outside.unwrap_or(&last);
    Ok((cores, seat))
}

fn log(folder: &Path, number: usize, policy: &str) -> Result<Log, Failure> {
    std::fs::create_dir_all(folder).map_err(Failure::cannot)?;
    let name = policy.split(':').next().unwrap_or(policy);
    let path: PathBuf = folder.join(format!("{name}-{number}.wavelog"));
    Ok(Log { path, about: format!("wave run --host linux, agent {number}") })
}

impl Ran {
    /// The command's own exit code; 128 and more for a signal, as shells have it.
    pub fn exit_code(&self) -> u8 {
        use std::os::unix::process::ExitStatusExt;
        let code = self.status.code();
        let signal = || self.status.signal().map_or(1, |signal| 128 + signal);
        u8::try_from(code.unwrap_or_else(signal)).unwrap_or(1)
    }

    /// Rules that were broken.
    pub fn failed(&self) -> Vec<String> {
        let why = self.stats.turned_out.iter();
        why.map(|why| format!("the kernel turned the scheduler out: {why}")).collect()
    }

    fn outcomes(&self) -> Vec<(Code, u64)> {
        let all = self.stats.cores.iter().flat_map(|core| &core.outcomes);
        let count = |code: &Code| -> u64 {
            all.clone().filter(|(other, _)| other == code).map(|(_, count)| count).sum()
        };
        let counted = Code::ALL.iter().map(|code| (*code, count(code)));
        counted.filter(|(_, count)| *count > 0).collect()
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut cores = table(&["core", "CPU", "by the agent", "by the host", "refused"]);
        for (at, (core, cpu)) in self.stats.cores.iter().zip(&self.cpus).enumerate() {
            let refused = core.outcomes.iter().filter(|(code, _)| *code != Code::Complete);
            let refused: u64 = refused.map(|(_, count)| count).sum();
            let row = [at as u64, *cpu as u64, core.switches, core.fallback_switches, refused];
            cores.add_row(row.map(|number| number.to_string()));
        }
        let outcomes: Vec<String> = self
            .outcomes()
            .iter()
            .map(|(code, count)| format!("{} {count}", code.name()))
            .collect();
        let Stats { agents, lost_agents, barks, faults, snapshots, .. } = &self.stats;
        format!(
            "{}; {:.3} s\n{cores}\nOutcomes: {}\nAgents: {agents} attached, \
             {lost_agents} lost ({barks} to the watchdog, {faults} that wrote nonsense); \
             {snapshots} snapshots",
            match &self.decider {
                Decider::Here { policy, seat } => format!("{policy}, agent on CPU {seat}"),
                Decider::Behind(device) => format!("Agent behind {device}"),
            },
            self.took.as_secs_f64(),
            if outcomes.is_empty() { "none".to_owned() } else { outcomes.join(", ") },
        )
    }

    /// For machines.
    pub fn to_json(&self) -> Value {
        let outcomes: serde_json::Map<String, Value> = self
            .outcomes()
            .into_iter()
            .map(|(code, count)| (code.name().to_owned(), count.into()))
            .collect();
        let cores = self.stats.cores.iter().zip(&self.cpus).map(|(core, cpu)| {
            json!({
                "cpu": cpu,
                "switches_by_agent": core.switches,
                "switches_by_host": core.fallback_switches,
            })
        });
        let (policy, seat, device) = match &self.decider {
            Decider::Here { policy, seat } => (Some(policy), Some(seat), None),
            Decider::Behind(device) => (None, None, Some(device)),
        };
        json!({
            "host": "linux",
            "policy": policy,
            "device": device,
            "exit_code": self.exit_code(),
            "seconds": self.took.as_secs_f64(),
            "agent_cpu": seat,
            "cores": cores.collect::<Vec<_>>(),
            "outcomes": outcomes,
            "agents": self.stats.agents,
            "agents_lost": self.stats.lost_agents,
            "watchdog": self.stats.barks,
            "faults": self.stats.faults,
            "snapshots": self.stats.snapshots,
            "threads_without_slot": self.stats.without_slot,
            "turned_out": self.stats.turned_out,
        })
    }
}
