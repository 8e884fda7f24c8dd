//! A checked scenario of threads that serve requests, with every default filled in. [`form`] has the fields of its file.

mod check;
mod form;
mod variants;

use std::path::PathBuf;

use serde::Serialize;
use wave_links::costs::Costs;

pub use self::check::read;
pub(crate) use self::form::Form;
pub use self::form::{
    Class, Compare, Crash, Home, Mapping, Operation, Run, Search, Threads, Transport, Workload,
};
use crate::ground::fields::Link;

/// An experiment: the compared variants, and their load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scenario {
    /// Names the output directory: lowercase letters, digits and hyphens.
    pub name: String,
    /// One paragraph for the reader of the results; may be empty.
    pub description: String,
    /// The kind of experiment run on each variant.
    pub kind: Kind,
    /// The operations of the requests.
    pub workload: Workload,
    /// Times, seed and loads.
    pub run: Run,
    /// Costs of a simulated host's own work; unused elsewhere.
    pub machine: Machine,
    /// The compared variants: at least one, with distinct [`wave_report::slug`]s.
    pub variants: Vec<Variant>,
}

/// Costs of a simulated host's own work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// A machine built into the simulator, by name.
    Builtin(String),
    File(PathBuf),
}

/// The kind of experiment run on each variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Latency and throughput at each load.
    Load,
    /// Throughputs under overload, as steps from the first variant to the last. There is one load.
    Ladder,
    /// The agent is killed repeatedly under load. There is one load.
    Crash(Crash),
    /// This many enclaves with an agent each, loaded at once.
    Enclaves(u32),
    /// This many threads of a variant that verify everything they read and allocate while they are preempted. There is no load.
    Chaos(u32),
}

/// A row, or a curve, of the results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Variant {
    /// Name of the variant in results.
    pub name: String,
    pub host: Host,
    /// What decides which thread runs.
    pub scheduler: Scheduler,
}

/// The host's side of a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Worker cores of an enclave, at least 1.
    pub cores: u32,
    /// Threads an enclave can hold; no fewer than `cores`.
    pub max_threads: u32,
    /// An idle core spins this long, then parks.
    pub spin_us: u64,
    /// Kind of the threads. A simulated host has only user-level ones.
    pub threads: Threads,
}

/// What decides which thread runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The kernel's own scheduler, with plain threads.
    Linux,
    Agent(Agent),
}

/// An agent, and its link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agent {
    /// Whether it takes a core from the enclave.
    pub placement: Placement,
    /// Its program; None for `wave agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// Name of the policy that it runs.
    pub policy: String,
    /// The link between agent and host.
    pub link: Link,
    /// The queues from host to agent.
    pub messages: Queue,
    /// The queues from agent to host.
    pub decisions: Queue,
    /// Decisions left in a core's queue before it asks, at most 64; 0 for none.
    pub prestage: u32,
    /// Whether the host asks for the line of its next decision before it needs it.
    pub prefetch: bool,
    /// Clock rate of its core, in GHz, on a simulated host. None: the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ghz: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// On one of the host's cores.
    OnHost,
    /// On a core that is not the host's.
    Offload,
}

/// How one direction's queues are reached (Wave 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// How an entry gets across.
    pub transport: Transport,
    /// The side whose memory holds the entries.
    pub home: Home,
    /// How the host maps these lines.
    pub host: Mapping,
    /// How the agent maps these lines.
    pub agent: Mapping,
}

impl Kind {
    /// Its name in files and results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Load => "load",
            Kind::Ladder => "ladder",
            Kind::Crash(_) => "crash",
            Kind::Enclaves(_) => "enclaves",
            Kind::Chaos(_) => "chaos",
        }
    }
}

impl Scenario {
    /// All agents of its variants.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.variants.iter().filter_map(Variant::agent)
    }

    /// All agents of its variants.
    pub fn agents_mut(&mut self) -> impl Iterator<Item = &mut Agent> {
        self.variants.iter_mut().filter_map(|variant| match &mut variant.scheduler {
            Scheduler::Linux => None,
            Scheduler::Agent(agent) => Some(agent),
        })
    }
}

impl Variant {
    /// `linux`, `onhost` or `offload`, as in the file.
    pub fn placement(&self) -> &'static str {
        match &self.scheduler {
            Scheduler::Linux => "linux",
            Scheduler::Agent(Agent { placement: Placement::OnHost, .. }) => "onhost",
            Scheduler::Agent(Agent { placement: Placement::Offload, .. }) => "offload",
        }
    }

    /// The agent, unless the kernel's scheduler decides.
    pub fn agent(&self) -> Option<&Agent> {
        match &self.scheduler {
            Scheduler::Linux => None,
            Scheduler::Agent(agent) => Some(agent),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Builtin(name) => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Queue {
    /// `variant.messages` over `link`: how each side maps the queues from host to agent.
    ///
    /// Over a link that is not coherent, with every optimisation of Wave 5.3 that fits this direction.
    pub fn messages(link: &Link) -> Queue {
        Queue::over(link, Mapping::WriteCombining)
    }

    /// `variant.decisions` over `link`: how each side maps the queues from agent to host, with the same optimisations.
    pub fn decisions(link: &Link) -> Queue {
        Queue::over(link, Mapping::WriteThrough)
    }

    /// Write-back in the memory of the coherent side; else in the NIC's, as the `host` maps it.
    fn over(link: &Link, host: Mapping) -> Queue {
        let (home, host) = match link {
            Link::Shm => (Home::Host, Mapping::WriteBack),
            Link::Builtin(name) if is_coherent(name) => (Home::Nic, Mapping::WriteBack),
            Link::Builtin(_) | Link::File(_) => (Home::Nic, host),
        };
        Queue { transport: Transport::Mmio, home, host, agent: Mapping::WriteBack }
    }
}

/// Whether the built-in link of that name is coherent.
fn is_coherent(builtin: &str) -> bool {
    Costs::builtin(builtin).is_some_and(|costs| costs.coherent)
}

#[cfg(test)]
mod tests;
