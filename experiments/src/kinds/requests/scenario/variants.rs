//! Meaning of the variants: which placements, links and mappings go together.

use wave_core::layout::CORES_MAX;
use wave_scenario::{ScenarioError, Source};
use wave_sched::policies;

use super::form::{self, Form};
use super::{
    Agent, Home, Host, Kind, Link, Mapping, Placement, Queue, Scheduler, Transport, Variant,
    is_coherent,
};
use crate::ground::fields::distinct_names;

/// Checks every variant, and fills in what it leaves to the host.
pub(super) fn check(
    form: &Form,
    kind: Kind,
    source: &Source<'_>,
    policies: &[&str],
) -> Result<Vec<Variant>, ScenarioError> {
    let least = if kind == Kind::Ladder { 2 } else { 1 };
    let count = form.variant.len();
    if count < least {
        let why = format!("{count} [[variant]], expected at least {least}");
        return Err(source.refuse("kind", why));
    }
    let host = &form.host;
    if host.max_threads < host.cores {
        let at = if source.has("host.max_threads") { "host.max_threads" } else { "host.cores" };
        let why = format!(
            "`host.max_threads` is {}, expected at least `host.cores`, which is {}",
            host.max_threads, host.cores
        );
        return Err(source.refuse(at, why));
    }
    distinct_names(source, form.variant.iter().map(|variant| &variant.name))?;
    let checked = form.variant.iter().enumerate().map(|(index, written)| {
        let at = format!("variant[{index}]");
        Written { written, at, host, kind, source, policies }.check()
    });
    checked.collect()
}

/// A variant as written, and its place.
struct Written<'a> {
    written: &'a form::Variant,
    /// Its path, as `variant[0]`.
    at: String,
    /// Values for every variant that does not override them.
    host: &'a form::Host,
    kind: Kind,
    source: &'a Source<'a>,
    policies: &'a [&'a str],
}

impl Written<'_> {
    fn refuse<T>(&self, field: &str, why: impl Into<String>) -> Result<T, ScenarioError> {
        Err(self.source.refuse(&format!("{}.{field}", self.at), why))
    }

    fn check(&self) -> Result<Variant, ScenarioError> {
        let Written { written, host, .. } = self;
        let cores = written.cores.unwrap_or(host.cores);
        let most = host.max_threads.min(CORES_MAX as u32);
        if cores > most {
            return self
                .refuse("cores", format!("`variant.cores` is {cores}, expected 1 to {most}"));
        }
        let scheduler = match written.placement {
            form::Placement::Linux => self.linux()?,
            form::Placement::OnHost => Scheduler::Agent(self.agent(Placement::OnHost)?),
            form::Placement::Offload => Scheduler::Agent(self.agent(Placement::Offload)?),
        };
        let host = Host {
            cores,
            max_threads: host.max_threads,
            spin_us: host.spin_us,
            threads: written.threads.unwrap_or(host.threads),
        };
        Ok(Variant { name: written.name.clone(), host, scheduler })
    }

    /// A variant without an agent: fields about an agent are refused.
    fn linux(&self) -> Result<Scheduler, ScenarioError> {
        let needs_agent = match self.kind {
            Kind::Load | Kind::Ladder => None,
            Kind::Crash(_) | Kind::Enclaves(_) | Kind::Chaos(_) => Some(self.kind.name()),
        };
        if let Some(kind) = needs_agent {
            let why = format!(
                "placement = \"linux\" has no agent, kind = \"{kind}\" expects onhost or offload"
            );
            return self.refuse("placement", why);
        }
        let of_agents = [
            "policy",
            "link",
            "messages",
            "decisions",
            "prestage",
            "prefetch",
            "agent_ghz",
            "threads",
        ];
        let of_agents = of_agents.map(|field| format!("{}.{field}", self.at));
        let why = "has no meaning with placement = \"linux\", which has no agent";
        self.source.without(&of_agents.each_ref().map(String::as_str), why)?;
        Ok(Scheduler::Linux)
    }

    fn agent(&self, placement: Placement) -> Result<Agent, ScenarioError> {
        let Written { written, policies, .. } = self;
        let known = || {
            let names: Vec<String> = policies.iter().map(|name| format!("`{name}`")).collect();
            format!("one of {}", names.join(", "))
        };
        let policy = &written.policy;
        if !self.source.has(&format!("{}.policy", self.at)) {
            return self
                .refuse("placement", format!("`variant.policy` is missing, expected {}", known()));
        }
        // A user's program checks the settings of its policies itself.
        let are_shipped = *policies == policies::NAMES;
        let name = policy.split(':').next().unwrap_or_default();
        if !policies.contains(&name) {
            let own = if are_shipped { "; --agent PROGRAM runs policies of your own" } else { "" };
            let why = format!("`variant.policy` is \"{policy}\", expected {}{own}", known());
            return self.refuse("policy", why);
        }
        if let (true, Err(error)) = (are_shipped, policies::check(policy)) {
            return self.refuse("policy", format!("`variant.policy`: {error}"));
        }
        let link = written.link.clone().beside(self.source.path);
        if placement == Placement::OnHost && link != Link::Shm {
            let why = format!(
                "`variant.link` is \"{link}\", expected shm: placement = \"onhost\" shares the host's memory"
            );
            return self.refuse("link", why);
        }
        let messages = Queue::messages(&link);
        let decisions = Queue::decisions(&link);
        Ok(Agent {
            placement,
            program: None,
            policy: policy.clone(),
            messages: self.queue("messages", Home::Nic, &written.messages, messages, &link)?,
            decisions: self.queue("decisions", Home::Host, &written.decisions, decisions, &link)?,
            prestage: written.prestage.unwrap_or(self.host.prestage),
            prefetch: written.prefetch,
            ghz: written.agent_ghz,
            link,
        })
    }

    /// One direction's queues; `sink` is the memory of the side that reads them.
    fn queue(
        &self,
        field: &str,
        sink: Home,
        written: &Option<form::Queue>,
        default: Queue,
        link: &Link,
    ) -> Result<Queue, ScenarioError> {
        let Some(written) = written else { return Ok(default) };
        if *link == Link::Shm {
            let why = format!(
                "`variant.{field}` has no meaning over shm, where memory is shared and write-back"
            );
            return self.refuse(field, why);
        }
        let refuse = |why: String| self.refuse(field, format!("`variant.{field}`: {why}"));
        let transport = written.transport.unwrap_or(default.transport);
        if transport != Transport::Mmio {
            if written.home.is_some_and(|home| home != sink) {
                let sink = if sink == Home::Nic { "nic" } else { "host" };
                return refuse(format!(
                    "copied {field} are in the memory of the side that reads them, expected home = \"{sink}\""
                ));
            }
            let mut mappings = [written.host, written.agent].into_iter().flatten();
            if mappings.any(|mapping| mapping != Mapping::WriteBack) {
                return refuse(
                    "with DMA each side reaches only its own memory, expected write-back on both"
                        .to_owned(),
                );
            }
            let (host, agent) = (Mapping::WriteBack, Mapping::WriteBack);
            return Ok(Queue { transport, home: sink, host, agent });
        }
        let queue = Queue {
            transport,
            home: written.home.unwrap_or(default.home),
            host: written.host.unwrap_or(default.host),
            agent: written.agent.unwrap_or(default.agent),
        };
        let crosses = matches!(link, Link::Builtin(name) if !is_coherent(name));
        if crosses && queue.home == Home::Host {
            return refuse(format!(
                "transport = \"mmio\" with home = \"host\" cannot be over {link}, \
                 whose card reaches the host's memory by dma-sync or dma-async"
            ));
        }
        if crosses && queue.host == Mapping::WriteBack {
            return refuse(format!(
                "host = \"write-back\" with home = \"nic\" would be incoherent over {link}, \
                 expected uncached, write-combining or write-through"
            ));
        }
        Ok(queue)
    }
}
