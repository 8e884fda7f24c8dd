//! The simulator's side: this machine as calibrated, and its simulated results.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_links::costs::{Cost, Costs, Source, SourceKind};
use wave_sim::experiment;
use wave_sim::machine::{Figure, Machine};
use wave_sim::requests::Arrival;
use wave_workloads::arrivals::Load;
use wave_workloads::point::Point;

use wave_experiments::ground::fields::Link;
use wave_experiments::kinds::requests::scenario::{Scenario, Variant};
use wave_experiments::kinds::requests::sim::{Simulated, point};
use wave_terminal::Failure;

/// Calibrated model of this machine.
#[derive(Clone, Debug)]
pub struct Model {
    /// The machine model with its own costs.
    pub machine: Machine,
    /// Costs of its shared memory, as a link.
    pub shm: Costs,
    /// Costs of the ladder's modelled link on this machine.
    pub modelled: Costs,
}

impl Model {
    /// A variant on this machine.
    pub fn simulated(&self, scenario: &Scenario, variant: &Variant) -> Result<Simulated, Failure> {
        let mut simulated = Simulated::new(scenario, variant)?;
        let setup = &mut simulated.setup;
        setup.agent.ghz = self.machine.agent_ghz.value;
        setup.machine = self.machine.clone();
        if variant.agent().is_some_and(|agent| agent.link == Link::Shm) {
            setup.costs = self.shm.clone();
        } else {
            if let Some(points) = &mut setup.machine.safe_points {
                points.ring_core.value = points.ring_core.value.max(setup.costs.kick_send.ns);
            }
            let (kick_send, kick_flight) = (&setup.costs.kick_send, &setup.costs.kick_flight);
            setup.costs = Costs {
                kick_send: kick_send.clone(),
                kick_flight: kick_flight.clone(),
                ..self.modelled.clone()
            };
            // A modelled doorbell rings a real one, and adds only the rest of its cost.
            for (stated, real) in [
                (&mut setup.costs.kick_send, &self.shm.kick_send),
                (&mut setup.costs.kick_flight, &self.shm.kick_flight),
            ] {
                if real.ns > stated.ns {
                    *stated = real.clone();
                }
            }
        }
        Ok(simulated)
    }

    /// Simulates `load`, counted from `warm_up_ns` for `measured_ns`: with the same arrivals as a native run, so that the two
    /// do not differ by chance.
    pub fn run(
        &self,
        simulated: &Simulated,
        load: &Load,
        warm_up_ns: u64,
        measured_ns: u64,
    ) -> Result<Point, Failure> {
        let mut modelled = simulated.load(load.rate_per_second());
        modelled.overhead = self.machine.request_overhead.nanos();
        (modelled.warmup, modelled.measure) = (Nanos(warm_up_ns), Nanos(measured_ns));
        let end_ns = warm_up_ns + measured_ns;
        let arrivals: Rc<[Arrival]> = load
            .clone()
            .take_while(|arrival| arrival.at_ns < end_ns)
            .map(|arrival| Arrival { at: Nanos(arrival.at_ns), class: arrival.class.0.into() })
            .collect();
        let outcome = experiment::serve_given(&simulated.setup, &modelled, arrivals)
            .map_err(|error| Failure::Scenario(error.to_string()))?;
        if let Some(error) = outcome.counters.agent_errors.first() {
            return Err(Failure::Check(format!("the simulated agent left: {error}")));
        }
        Ok(point(&modelled, &outcome))
    }
}

/// A figure of a machine, and its source.
pub fn figure(kind: SourceKind, value: f64, note: &str) -> Figure {
    Figure { value: tenths(value), source: Source { kind, note: note.to_owned() } }
}

/// A measured cost of a link.
pub fn cost(ns: f64, note: &str) -> Cost {
    Cost { ns: tenths(ns), source: Source { kind: SourceKind::Measured, note: note.to_owned() } }
}

/// Rounds to the precision of measurements.
pub fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
