//! Several enclaves in one host process, each with cores and an agent of its own, loaded at once.
//!
//! Then the first enclave's agent is killed under load. The other enclaves must be unaffected: no agent lost, no decision by
//! the fallback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wave_workloads::generator::{self, Refused, Request, Server};
use wave_workloads::point as measured;

use crate::ground::point::{DRAIN_PATIENCE, Terms, with_use};
use crate::ground::seating::{self, Seating};
use crate::ground::service::Work;
use crate::ground::system::{Delta, EnclaveServer, Hosted, Sample};
use crate::ground::{
    Failure, Found, Ground, mix, pin_housekeeping, take_generators_seat, variant_result,
};
use crate::kinds::requests::scenario::{Agent, Scenario, Variant};
use wave_process::words::counted;
use wave_report::model::{Point, VariantResult};

/// Number of steps that [`run`] reports.
pub(crate) fn steps(scenario: &Scenario) -> u64 {
    (scenario.variants.len() * (scenario.run.loads_per_second.len() + 1)) as u64
}

/// Loads the enclaves of each variant in turn.
pub(crate) fn run(ground: &Ground<'_>, count: u32) -> Result<Found, Failure> {
    let loads = &ground.scenario.run.loads_per_second;
    let mut found = Found::default();
    let mut rows = Vec::new();
    for variant in &ground.scenario.variants {
        let agent = variant.agent().ok_or_else(|| {
            Failure::Scenario(format!("{}: an enclave needs an agent", variant.name))
        })?;
        let (result, states) =
            ground.journal.point(&variant.name, || one(ground, variant, agent, count, loads))?;
        found.failed.extend(complaints(&variant.name, &states));
        rows.extend(states.iter().map(|state| state.to_json(&variant.name)));
        found.variants.push(result);
    }
    found.extra = json!({ "undisturbed": found.failed.is_empty(), "enclaves": Value::Array(rows) });
    Ok(found)
}

/// Loads the enclaves of one variant.
fn one(
    ground: &Ground<'_>,
    variant: &Variant,
    agent: &Agent,
    count: u32,
    loads: &[f64],
) -> Result<(VariantResult, Vec<State>), Failure> {
    let mut group = Group::start(ground, variant, agent, count)?;
    let mut result = variant_result(variant);
    result.workers *= count;
    for load in loads {
        let name = format!("{}: {:.0} k/s to each", variant.name, load / 1e3);
        ground.begin(&name);
        result.points.push(group.point(*load, false)?);
        ground.end();
    }
    ground.begin(&format!("{}: killing the first agent", variant.name));
    group.point(loads[0], true)?;
    ground.end();
    Ok((result, group.states()))
}

/// Enclaves that share one load.
struct Group {
    hosted: Vec<Hosted>,
    server: Dispatch,
    work: Arc<Work>,
    terms: Terms,
    seating: Seating,
    /// Requests done by each enclave so far.
    done: Vec<u64>,
}

/// Gives each request to the enclave that its class names.
struct Dispatch {
    servers: Vec<EnclaveServer>,
    classes: usize,
}

impl Server for Dispatch {
    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        self.servers[usize::from(request.class.0) / self.classes].submit(request)
    }
}

impl Group {
    fn start(
        ground: &Ground<'_>,
        variant: &Variant,
        agent: &Agent,
        count: u32,
    ) -> Result<Group, Failure> {
        let cores = variant.host.cores as usize;
        let all_cores = cores * count as usize;
        let workload = &ground.scenario.workload;
        let seating = seating::seat(&ground.cpus, all_cores, count as usize);
        let mix = mix(workload, count);
        let work = Work::new(Arc::clone(&ground.service), &mix, all_cores);
        pin_housekeeping(&seating, &ground.cpus)?;
        let mut hosted = Vec::new();
        for (index, cpus) in seating.workers.chunks(cores).enumerate() {
            let logs = ground.logs(&format!("{} enclave {}", variant.name, index + 1));
            hosted.push(Hosted::start(variant.host, agent, &seating, index, cpus, logs)?);
        }
        let enclaves = hosted.iter().map(|hosted| Arc::downgrade(&hosted.enclave));
        ground.feed.watch(enclaves.collect(), &work);
        take_generators_seat(&seating)?;
        let servers = hosted.iter().enumerate().map(|(index, hosted)| {
            let mut server = hosted.server(&work);
            server.first_core = index * cores;
            server
        });
        let server = Dispatch { servers: servers.collect(), classes: workload.classes.len() };
        let done = vec![0; count as usize];
        let terms = Terms::new(workload, &ground.scenario.run, mix, &seating);
        Ok(Group { hosted, server, work, terms, seating, done })
    }

    /// Loads every enclave with `per_second`; with `kills`, the first enclave's agent is killed meanwhile.
    fn point(&mut self, per_second: f64, kills: bool) -> Result<Point, Failure> {
        let Group { hosted, server, work, terms, seating, done } = self;
        let hosts: Vec<&Hosted> = hosted.iter().collect();
        let before = Sample::of(&hosts);
        let load = terms.load(per_second * hosted.len() as f64);
        let half = terms.settings.warm_up + terms.settings.duration / 2;
        let over = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            let (first, over) = (&hosted[0], &over);
            if kills {
                scope.spawn(move || {
                    std::thread::sleep(half);
                    let agent = first.agent.as_ref().filter(|_| !over.load(Ordering::SeqCst));
                    // An agent that cannot be killed is not lost, which the final check reports.
                    let _ = agent.map(|agent| agent.signal(Signal::KILL));
                });
            }
            let report = generator::run(load, &terms.settings, &work.recorder, server);
            over.store(true, Ordering::SeqCst);
            report
        });
        work.recorder.drain(DRAIN_PATIENCE);
        std::thread::sleep(Duration::from_millis(3));
        let after = Sample::of(&hosts);
        let recorded = work.recorder.collect();
        let measured = measured::Point::new(&report, &recorded);
        if recorded.outstanding > 0 {
            let text = format!("{} requests were lost", recorded.outstanding);
            return Err(Failure::Check(text));
        }
        for (done, classes) in done.iter_mut().zip(recorded.classes.chunks(server.classes)) {
            *done += classes.iter().map(|(_, latencies)| latencies.len()).sum::<u64>();
        }
        let delta = Delta::between(&before, &after, seating.workers.len());
        Ok(with_use(measured, &delta))
    }

    fn states(&self) -> Vec<State> {
        let each = self.hosted.iter().zip(&self.server.servers).zip(&self.done).enumerate();
        each.map(|(index, ((hosted, server), &done))| {
            let stats = hosted.enclave.stats();
            State {
                enclave: index + 1,
                submitted: server.submitted,
                refused: server.refused,
                measured_done: done,
                alive: hosted.enclave.alive() as u64,
                lost_agents: stats.lost_agents,
                fallback_switches: stats.cores.iter().map(|core| core.fallback_switches).sum(),
                killed: index == 0,
            }
        })
        .collect()
    }
}

/// Final state of one enclave.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct State {
    pub enclave: usize,
    pub submitted: u64,
    pub refused: u64,
    /// Requests done, without warm-ups.
    pub measured_done: u64,
    pub alive: u64,
    pub lost_agents: u64,
    pub fallback_switches: u64,
    /// Whether its agent was killed.
    pub killed: bool,
}

impl State {
    pub fn to_json(self, variant: &str) -> Value {
        json!({
            "variant": variant,
            "enclave": self.enclave,
            "sent": self.submitted,
            // Every accepted request is a thread; a thread no longer alive is done.
            "done": self.submitted - self.refused - self.alive,
            "refused": self.refused,
            "measured": self.measured_done,
            "agent_killed": self.killed,
            "lost_agents": self.lost_agents,
            "fallback_switches": self.fallback_switches,
        })
    }
}

pub(crate) fn complaints(variant: &str, states: &[State]) -> Vec<String> {
    let mut complaints = Vec::new();
    for state in states {
        let mut complain = |what: String| {
            complaints.push(format!("{variant}: enclave {}: {what}", state.enclave));
        };
        if state.alive > 0 {
            complain(format!("{} requests never ended", state.alive));
        }
        let expected = u64::from(state.killed);
        if state.lost_agents != expected {
            complain(format!("lost {}, not {expected}", counted(state.lost_agents, "agent")));
        }
        if !state.killed && state.fallback_switches > 0 {
            complain(format!("{} switches were decided by the fallback", state.fallback_switches));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(enclave: usize, lost_agents: u64, fallback_switches: u64) -> State {
        State {
            enclave,
            submitted: 10,
            refused: 1,
            measured_done: 8,
            alive: 0,
            lost_agents,
            fallback_switches,
            killed: enclave == 1,
        }
    }

    #[test]
    fn only_the_enclave_of_a_killed_agent_may_fall_back() {
        assert!(complaints("a", &[state(1, 1, 500), state(2, 0, 0)]).is_empty());
        assert_eq!(complaints("a", &[state(1, 1, 500), state(2, 0, 1)]).len(), 1);
        assert_eq!(complaints("a", &[state(1, 1, 500), state(2, 1, 1)]).len(), 2);
        assert_eq!(complaints("a", &[state(1, 0, 0), state(2, 0, 0)]).len(), 1);
    }
}
