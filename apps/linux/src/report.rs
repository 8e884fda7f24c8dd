//! Counts of an enclave in the kernel: the same at the end of a run and in `wave linux status`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wave_core::outcome::Code;
use wave_linux::sched::Stats;

use wave_terminal::{Table, counted};

/// Counts of one enclave at the end of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Name of the enclave; None if it is the only one.
    pub name: Option<String>,
    /// The processes whose threads are in the enclave.
    pub what: String,
    /// The policy of our agent; None while another's decides.
    pub policy: Option<String>,
    /// Seconds since the threads joined.
    pub seconds: f64,
    /// CPU of the agent, if this command has started it.
    pub agent_cpu: Option<usize>,
    /// The device behind which agents attach; then none is started here.
    pub device: Option<String>,
    /// Whether an agent decides now.
    #[serde(default)]
    pub agent_decides: bool,
    /// Process of the deciding agent, if it is on this machine.
    pub agent_pid: Option<i32>,
    pub cores: Vec<Core>,
    /// Number of outcomes by kind.
    pub outcomes: BTreeMap<String, u64>,
    /// Agents that have attached so far.
    pub agents: u64,
    pub agents_lost: u64,
    /// Of these, agents turned out by the watchdog.
    pub watchdog: u64,
    /// Of these, agents that wrote invalid entries.
    pub faults: u64,
    /// Number of times that the BPF program turned an agent out because no watchdog was watching.
    pub unwatched: u64,
    pub snapshots: u64,
    /// Number of times that the host ran a thread that had waited too long.
    pub starved: u64,
    /// Threads that found no free slot and stayed with the host.
    pub threads_without_slot: u64,
    /// Why the kernel turned the scheduler out, if it did.
    pub turned_out: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Core {
    pub cpu: usize,
    /// Switches that the agent decided on.
    pub switches_by_agent: u64,
    /// Switches that the host decided on.
    pub switches_by_host: u64,
    /// Decisions that were not carried out.
    pub refused: u64,
}

impl Report {
    /// Fills in the counts of `stats`.
    pub fn count(&mut self, stats: &Stats, cpus: &[usize]) {
        self.agent_decides = stats.agent_decides;
        self.agent_pid = (stats.agent_decides && stats.agent_pid != 0).then_some(stats.agent_pid);
        self.cores.clear();
        self.outcomes.clear();
        for (core, &cpu) in stats.cores.iter().zip(cpus) {
            let mut refused = 0;
            for &(code, count) in &core.outcomes {
                *self.outcomes.entry(code.name().to_owned()).or_default() += count;
                refused += if code == Code::Complete { 0 } else { count };
            }
            self.cores.push(Core {
                cpu,
                switches_by_agent: core.switches,
                switches_by_host: core.fallback_switches,
                refused,
            });
        }
        self.agents = stats.agents;
        self.agents_lost = stats.lost_agents;
        self.watchdog = stats.barks;
        self.faults = stats.faults;
        self.unwatched = stats.unwatched;
        self.snapshots = stats.snapshots;
        self.starved = stats.starved;
        self.threads_without_slot = stats.without_slot;
        self.turned_out.clone_from(&stats.turned_out);
    }

    pub fn to_text(&self) -> String {
        let mut cores = Table::new(2, ["core", "CPU", "by the agent", "by the host", "refused"]);
        for (at, core) in self.cores.iter().enumerate() {
            let counts = [core.switches_by_agent, core.switches_by_host, core.refused];
            let row = [at as u64, core.cpu as u64].into_iter().chain(counts);
            cores.push(row.map(|number| number.to_string()));
        }
        let outcomes: Vec<String> =
            self.outcomes.iter().map(|(code, count)| format!("{code} {count}")).collect();
        let outcomes = if outcomes.is_empty() { "none".to_owned() } else { outcomes.join(", ") };
        let name = self.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let who = match (&self.device, &self.policy, self.agent_cpu) {
            (Some(device), ..) => format!("agent behind {device}"),
            (None, Some(policy), Some(cpu)) => format!("{policy}, agent on CPU {cpu}"),
            (None, ..) => "an agent not started by this command".to_owned(),
        };
        let Report { agents, agents_lost, watchdog, faults, snapshots, .. } = self;
        let mut text = format!(
            "{name}{who}; {}, {:.3} s\n{cores}\nOutcomes: {outcomes}\nAgents: {agents} attached, \
             {agents_lost} lost ({watchdog} to the watchdog, {faults} that wrote nonsense); \
             {}",
            self.what,
            self.seconds,
            counted(*snapshots, "snapshot"),
        );
        if self.unwatched > 0 {
            text += &format!(
                "\nThe kernel's program turned the agent out {} times, as `wave run` itself was late by more than \
                 the patience; give more (--patience, or patience_ms in a file)",
                self.unwatched
            );
        }
        if self.starved > 0 {
            text += &format!(
                "\nStarved: {} times a thread had waited for 10 s, and the host gave it a run: the policy lets \
                 others run for as long as they like",
                self.starved
            );
        }
        if self.threads_without_slot > 0 {
            let threads = counted(self.threads_without_slot, "thread");
            text += &format!("\nNo room: {threads} stayed with the host");
        }
        if let Some(why) = &self.turned_out {
            text += &format!("\nThe kernel turned the scheduler out: {why}");
        }
        text
    }
}
