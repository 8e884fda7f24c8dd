//! Meaning of the variants: which placements, links and mappings go together.

use toml::Spanned;
use wave_core::layout::CORES_MAX;
use wave_links::costs::Costs;
use wave_sched::policies;

use super::{ScenarioError, Source};
use crate::defaults;
use crate::file::{RawHost, RawKind, RawPlacement, RawQueue, RawVariant};
use crate::model::{
    Agent, Home, Host, Kind, Link, Mapping, Placement, Queue, Scheduler, Transport, Variant,
};

/// Fills in defaults and checks every variant.
pub(super) fn check(
    raw: Option<Vec<Spanned<RawVariant>>>,
    host: RawHost,
    kind: &Kind,
    written_kind: &Spanned<RawKind>,
    source: Source<'_>,
) -> Result<Vec<Variant>, ScenarioError> {
    let raw = raw.unwrap_or_default();
    let least = if *kind == Kind::Ladder { 2 } else { 1 };
    if raw.len() < least {
        let message = format!("{} [[variant]], expected at least {least}", raw.len());
        return Err(source.refuse(written_kind.span(), message));
    }
    let shared = Shared {
        host: Host {
            cores: source.within(
                "host.cores",
                host.cores.as_ref(),
                defaults::CORES,
                1..=CORES_MAX as u32,
            )?,
            max_threads: source.within(
                "host.max_threads",
                host.max_threads.as_ref(),
                defaults::MAX_THREADS,
                1..=1_048_576,
            )?,
            spin_us: source.within(
                "host.spin_us",
                host.spin_us.as_ref(),
                defaults::SPIN_US,
                0..=1_000_000,
            )?,
            threads: host.threads.unwrap_or_default(),
        },
        prestage: source.within(
            "host.prestage",
            host.prestage.as_ref(),
            defaults::PRESTAGE,
            0..=PRESTAGE_MAX,
        )?,
        needs_agent: match kind {
            Kind::Crash(_) => Some("crash"),
            Kind::Enclaves(_) => Some("enclaves"),
            Kind::Chaos(_) => Some("chaos"),
            Kind::Load | Kind::Ladder => None,
        },
    };
    if shared.host.max_threads < shared.host.cores {
        let message = format!(
            "`host.max_threads` is {}, expected at least `host.cores`, which is {}",
            shared.host.max_threads, shared.host.cores
        );
        let at = host
            .max_threads
            .as_ref()
            .map(Spanned::span)
            .or_else(|| host.cores.as_ref().map(Spanned::span));
        return Err(source.refuse(at.unwrap_or(0..0), message));
    }
    let mut variants: Vec<Variant> = Vec::with_capacity(raw.len());
    for raw in &raw {
        let others = variants.iter().map(|other| other.name.as_str());
        source.variant_name(&raw.get_ref().name, others)?;
        variants.push(variant(raw, shared, source)?);
    }
    Ok(variants)
}

/// Maximum number of prestaged decisions: as many as any queue is certain to hold.
const PRESTAGE_MAX: u32 = 64;

/// Range of the clock rate of an agent's core, in GHz: from a microcontroller's to more than any processor's.
pub const GHZ_MIN: f64 = 0.1;
pub const GHZ_MAX: f64 = 10.0;

/// Values for every variant that does not override them.
#[derive(Clone, Copy)]
struct Shared {
    host: Host,
    prestage: u32,
    /// The kind of scenario, if it needs an agent.
    needs_agent: Option<&'static str>,
}

fn variant(
    raw: &Spanned<RawVariant>,
    shared: Shared,
    source: Source<'_>,
) -> Result<Variant, ScenarioError> {
    let raw = raw.get_ref();
    let mut host = shared.host;
    host.cores = source.within(
        "variant.cores",
        raw.cores.as_ref(),
        host.cores,
        1..=host.max_threads.min(CORES_MAX as u32),
    )?;
    host.threads = raw.threads.as_ref().map_or(host.threads, |threads| *threads.get_ref());
    let scheduler = match raw.placement.get_ref() {
        RawPlacement::Linux => linux(raw, shared, source)?,
        RawPlacement::OnHost => Scheduler::Agent(agent(raw, Placement::OnHost, shared, source)?),
        RawPlacement::Offload => Scheduler::Agent(agent(raw, Placement::Offload, shared, source)?),
    };
    Ok(Variant { name: raw.name.get_ref().clone(), host, scheduler })
}

/// A variant without an agent: fields about an agent are refused.
fn linux(raw: &RawVariant, shared: Shared, source: Source<'_>) -> Result<Scheduler, ScenarioError> {
    if let Some(kind) = shared.needs_agent {
        let message = format!(
            "placement = \"linux\" has no agent, kind = \"{kind}\" expects onhost or offload"
        );
        return Err(source.refuse(raw.placement.span(), message));
    }
    let said = [
        ("policy", raw.policy.as_ref().map(Spanned::span)),
        ("link", raw.link.as_ref().map(Spanned::span)),
        ("messages", raw.messages.as_ref().map(Spanned::span)),
        ("decisions", raw.decisions.as_ref().map(Spanned::span)),
        ("prestage", raw.prestage.as_ref().map(Spanned::span)),
        ("prefetch", raw.prefetch.as_ref().map(Spanned::span)),
        ("agent_ghz", raw.agent_ghz.as_ref().map(Spanned::span)),
        ("threads", raw.threads.as_ref().map(Spanned::span)),
    ];
    if let Some((field, Some(span))) = said.into_iter().find(|(_, span)| span.is_some()) {
        let message = format!(
            "`variant.{field}` has no meaning with placement = \"linux\", which has no agent"
        );
        return Err(source.refuse(span, message));
    }
    Ok(Scheduler::Linux)
}

fn agent(
    raw: &RawVariant,
    placement: Placement,
    shared: Shared,
    source: Source<'_>,
) -> Result<Agent, ScenarioError> {
    let Some(policy) = &raw.policy else {
        let message = format!("`variant.policy` is missing, expected {}", one_of(source.policies));
        return Err(source.refuse(raw.placement.span(), message));
    };
    let name = policy.get_ref().split(':').next().unwrap_or_default();
    if !source.policies.contains(&name) {
        let own = match source.policies == policies::NAMES {
            true => "; --agent PROGRAM runs policies of your own",
            false => "",
        };
        let (policy_name, known) = (policy.get_ref(), one_of(source.policies));
        let message = format!("`variant.policy` is \"{policy_name}\", expected {known}{own}");
        return Err(source.refuse(policy.span(), message));
    }
    // A user's program checks the settings of its policies itself: see `check_policy`.
    let are_shipped = source.policies == policies::NAMES;
    if let (true, Err(error)) = (are_shipped, policies::check(policy.get_ref())) {
        return Err(source.refuse(policy.span(), format!("`variant.policy`: {error}")));
    }
    let link = raw.link.as_ref().map_or(Ok(defaults::LINK), |link| self::link(link, source))?;
    if let (Placement::OnHost, Some(written), true) = (placement, &raw.link, link != Link::Shm) {
        let message = format!(
            "`variant.link` is \"{link}\", expected shm: placement = \"onhost\" shares the host's memory"
        );
        return Err(source.refuse(written.span(), message));
    }
    Ok(Agent {
        placement,
        program: None,
        policy: policy.get_ref().clone(),
        messages: queue(
            "messages",
            Home::Nic,
            raw.messages.as_ref(),
            defaults::messages(&link),
            &link,
            source,
        )?,
        decisions: queue(
            "decisions",
            Home::Host,
            raw.decisions.as_ref(),
            defaults::decisions(&link),
            &link,
            source,
        )?,
        prestage: source.within(
            "variant.prestage",
            raw.prestage.as_ref(),
            shared.prestage,
            0..=PRESTAGE_MAX,
        )?,
        prefetch: raw.prefetch.as_ref().map_or(defaults::PREFETCH, |prefetch| *prefetch.get_ref()),
        ghz: raw
            .agent_ghz
            .as_ref()
            .map(|ghz| source.within("variant.agent_ghz", Some(ghz), 1.0, GHZ_MIN..=GHZ_MAX))
            .transpose()?,
        link,
    })
}

/// A relative path starts from the scenario's directory.
pub fn link(written: &Spanned<String>, source: Source<'_>) -> Result<Link, ScenarioError> {
    match written.get_ref().as_str() {
        "shm" => Ok(Link::Shm),
        other => match other.strip_prefix("model:") {
            Some(file) if file.ends_with(".toml") => {
                let directory = source.path.parent().unwrap_or(source.path);
                Ok(Link::File(directory.join(file)))
            }
            Some(name) if Costs::builtin(name).is_some() => Ok(Link::Builtin(name.to_owned())),
            _ => {
                let names = Costs::builtin_names().iter().map(|name| format!("`model:{name}`"));
                let names: Vec<_> = names.collect();
                let message = format!(
                    "`variant.link` is \"{other}\", \
                     expected one of `shm`, {}, `model:` and a path to a .toml file",
                    names.join(", ")
                );
                Err(source.refuse(written.span(), message))
            }
        },
    }
}

/// One direction's queues; `sink` is the memory of the side that reads them.
fn queue(
    field: &str,
    sink: Home,
    written: Option<&Spanned<RawQueue>>,
    default: Queue,
    link: &Link,
    source: Source<'_>,
) -> Result<Queue, ScenarioError> {
    let Some(written) = written else {
        return Ok(default);
    };
    if *link == Link::Shm {
        let message = format!(
            "`variant.{field}` has no meaning over shm, where memory is shared and write-back"
        );
        return Err(source.refuse(written.span(), message));
    }
    let raw = written.get_ref();
    let transport = raw.transport.unwrap_or(default.transport);
    let refuse =
        |why: String| Err(source.refuse(written.span(), format!("`variant.{field}`: {why}")));
    if transport != Transport::Mmio {
        let queue =
            Queue { transport, home: sink, host: Mapping::WriteBack, agent: Mapping::WriteBack };
        if raw.home.is_some_and(|home| home != sink) {
            let sink = if sink == Home::Nic { "nic" } else { "host" };
            return refuse(format!(
                "copied {field} are in the memory of the side that reads them, expected home = \"{sink}\""
            ));
        }
        if [raw.host, raw.agent].into_iter().flatten().any(|mapping| mapping != Mapping::WriteBack)
        {
            return refuse(
                "with DMA each side reaches only its own memory, expected write-back on both"
                    .to_owned(),
            );
        }
        return Ok(queue);
    }
    let queue = Queue {
        transport,
        home: raw.home.unwrap_or(default.home),
        host: raw.host.unwrap_or(default.host),
        agent: raw.agent.unwrap_or(default.agent),
    };
    let crosses = matches!(link, Link::Builtin(name) if !defaults::is_coherent(name));
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

fn one_of(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    format!("one of {}", names.join(", "))
}
