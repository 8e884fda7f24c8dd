//! A scenario's variant as a setup of the simulator.

use std::collections::HashSet;

use wave_core::clock::Nanos;
use wave_links::costs::Costs;
use wave_sim::agent::{AgentSetup, PolicyText};
use wave_sim::enclave::Setup;
use wave_sim::machine::Machine;
use wave_sim::paper;
use wave_sim::requests::{Class, Load, Service, Threads};

use super::own_policy::policy_of;
use crate::ground::fields::Link;
use crate::ground::{Failure, links, system};
use crate::kinds::requests::scenario::{Agent, Placement, Scenario, Variant};

/// Host cores for which one context submits requests: creating a thread across a PCIe-like link takes most of a microsecond.
const CORES_PER_GENERATOR: u32 = 8;

/// A variant, ready to be loaded.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The enclave, its link and its agent.
    pub setup: Setup,
    classes: Vec<Class>,
    overhead: Nanos,
    warmup: Nanos,
    measure: Nanos,
    generators: usize,
}

impl Simulated {
    /// The variant with the scenario's seed.
    ///
    /// # Errors
    ///
    /// It has no agent, a file cannot be read, or the enclave's window cannot be laid out.
    pub fn new(scenario: &Scenario, variant: &Variant) -> Result<Simulated, Failure> {
        let bad = |error: &dyn std::fmt::Display| {
            Failure::Scenario(format!("{}, {}: {error}", scenario.name, variant.name))
        };
        let agent = variant.agent().ok_or_else(|| {
            bad(&"placement = \"linux\" cannot be simulated: there is no model of the kernel's \
                  scheduler")
        })?;
        let (machine, parks) = machine(&scenario.machine, agent)?;
        let mut config = system::config(variant.host, agent);
        let generators = variant.host.cores.div_ceil(CORES_PER_GENERATOR);
        // One for each generator, and the control context.
        config.contexts = generators as u16 + 1;
        config.check().map_err(|error| bad(&error))?;
        let setup = Setup {
            config,
            costs: costs(&agent.link, &machine)?,
            agent: AgentSetup {
                policy: match &agent.program {
                    None => PolicyText::shipped(&agent.policy),
                    Some(program) => policy_of(program.clone(), &agent.policy),
                },
                ghz: agent.ghz.unwrap_or(machine.agent_ghz.value),
                parks,
            },
            machine,
            prefetch: agent.prefetch,
            seed: scenario.run.seed,
        };
        setup.check().map_err(|error| bad(&error))?;
        let nanos = |seconds: f64| Nanos((seconds * 1e9).round() as u64);
        let class = |class: &crate::kinds::requests::scenario::Class| Class {
            name: class.name.clone(),
            weight: class.weight,
            service: Service::Fixed(Nanos(
                (scenario.workload.service_us(class) * 1e3).round() as u64
            )),
        };
        Ok(Simulated {
            // Measuring a context switch takes as long as a point, and most machines do not need it.
            overhead: if setup.machine.crossings_per_request.value == 1.0 {
                setup.machine.request_overhead.nanos()
            } else {
                paper::overhead(&setup)
            },
            setup,
            classes: scenario.workload.classes.iter().map(class).collect(),
            warmup: nanos(scenario.run.warmup_seconds),
            // One point as long as all rounds: nothing disturbs it.
            measure: nanos(
                (scenario.run.seconds - scenario.run.warmup_seconds)
                    * f64::from(scenario.run.rounds.max(1)),
            ),
            generators: generators as usize,
        })
    }

    /// The scenario's load at that rate: a thread per request, as in the runtime.
    pub fn load(&self, per_second: f64) -> Load {
        Load {
            per_second,
            classes: self.classes.clone(),
            threads: Threads::PerRequest,
            overhead: self.overhead,
            warmup: self.warmup,
            measure: self.measure,
            generators: self.generators,
        }
    }

    /// Service time of each class, in nanoseconds.
    pub fn service_ns(&self) -> Vec<u64> {
        self.classes.iter().map(|class| class.service.mean().0).collect()
    }
}

/// Facts about the figures of all these variants: their machines' and their links'.
pub fn facts(all: &[Simulated]) -> Vec<(String, String)> {
    let machines = || all.iter().map(|of| &of.setup.machine);
    let mut facts: Vec<(String, String)> = machines()
        .map(|machine| (format!("machine {}", machine.name), machine.description.clone()))
        .collect();
    facts.extend([
        (
            format!("a context submits requests for {CORES_PER_GENERATOR} cores at most"),
            "assumed: one alone could not offer as much".to_owned(),
        ),
        (
            "shared memory is simulated as a coherent link".to_owned(),
            "assumed: a line from another core takes what the link `coherent` says (`on-host` \
             for the machines of the paper)"
                .to_owned(),
        ),
    ]);
    facts.extend(machines().flat_map(|machine| {
        let figures = machine.all().into_iter();
        figures.map(|(name, figure)| {
            let what = format!("{}: {} {}", machine.name, name.replace('_', " "), figure.value);
            (what, figure.source.to_string())
        })
    }));
    facts.extend(all.iter().flat_map(|of| links::facts(&of.setup.costs)));
    let mut seen = HashSet::new();
    facts.retain(|fact| seen.insert(fact.clone()));
    facts
}

/// The machine, and whether its agents park.
fn machine(
    of: &crate::kinds::requests::scenario::Machine,
    agent: &Agent,
) -> Result<(Machine, bool), Failure> {
    match of {
        crate::kinds::requests::scenario::Machine::Builtin(name) => {
            // The paper's agent on the host runs on one of the host's own cores.
            let name = match (name.as_str(), agent.placement) {
                ("ghost", Placement::OnHost) => "ghost-on-host",
                (name, _) => name,
            };
            let machine = Machine::builtin(name);
            let machine = machine.ok_or_else(|| Failure::Scenario(format!("no machine {name}")))?;
            // The paper's agents always poll (Wave 4.1).
            Ok((machine, !is_ghost(name)))
        }
        crate::kinds::requests::scenario::Machine::File(path) => {
            let bad = |error: &dyn std::fmt::Display| {
                Failure::Scenario(format!("{}: {error}", path.display()))
            };
            let text = std::fs::read_to_string(path).map_err(|error| bad(&error))?;
            Ok((Machine::parse(&text).map_err(|error| bad(&error))?, true))
        }
    }
}

fn is_ghost(machine: &str) -> bool {
    machine.starts_with("ghost")
}

/// The link's costs. Shared memory has those of coherent memory between two cores.
fn costs(link: &Link, machine: &Machine) -> Result<Costs, Failure> {
    let builtin = |name| Ok(Costs::builtin(name).expect("these are built in"));
    match link {
        Link::Shm if is_ghost(&machine.name) => builtin("on-host"),
        Link::Shm => builtin("coherent"),
        Link::Builtin(_) | Link::File(_) => links::costs(link).transpose().expect("it is modelled"),
    }
}
