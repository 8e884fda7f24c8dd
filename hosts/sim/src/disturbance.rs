//! Disturbances: CPU time that something outside of the modelled host takes from its contexts.
//!
//! A context that has lost its CPU goes on once the disturbance is over. A step of work in progress completes meanwhile, so the context
//! loses the disturbance's length less the rest of that step: microseconds.

use wave_core::clock::Nanos;

use crate::enclave::Enclave;
use crate::requests::Requests;

/// The contexts that a disturbance stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stops {
    /// A core of the host.
    Core(u16),
    /// The agent and the generators, which may share a CPU.
    Outside,
}

/// A time for which contexts have no CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disturbance {
    /// Its start, on the world's clock.
    pub at: Nanos,
    /// Its length.
    pub lasts: Nanos,
    /// The contexts that it stops.
    pub stops: Stops,
}

impl Disturbance {
    /// Lets the world run up to its begin, and stops its contexts.
    pub(crate) fn strike(self, enclave: &Enclave, requests: &Requests) {
        let (world, until) = (enclave.world(), self.at + self.lasts);
        world.run_until(self.at);
        let tasks = match self.stops {
            Stops::Core(core) => enclave.core_task(core).into_iter().collect(),
            Stops::Outside => {
                let mut tasks = requests.generators();
                tasks.extend(enclave.agent_task());
                tasks
            }
        };
        tasks.into_iter().for_each(|task| world.stop(task, until));
    }
}

#[cfg(test)]
mod tests {
    use wave_links::costs::Costs;

    use super::*;
    use crate::experiment::serve_disturbed;
    use crate::paper::{self, Rung};
    use crate::requests::{Arrival, Class, Load, Service, Threads};

    /// The latencies of requests of 10 us, of which 20,000 arrive in a second, in nanoseconds: the median, and the share above 1 ms.
    fn served(disturbances: Vec<Disturbance>) -> (u64, f64) {
        let mut setup = paper::wave(1, Rung::Prestaged, "fifo");
        setup.costs = Costs::builtin("coherent").unwrap();
        let service = Service::Fixed(Nanos::from_micros(10));
        let load = Load {
            per_second: 20_000.0,
            classes: vec![Class { name: "GET".into(), weight: 1.0, service }],
            threads: Threads::PerRequest,
            overhead: Nanos(0),
            warmup: Nanos(0),
            measure: Nanos::from_millis(200),
            generators: 1,
        };
        let arrivals = (0..4000).map(|at| Arrival { at: Nanos::from_micros(50 * at), class: 0 });
        let outcome = serve_disturbed(&setup, &load, arrivals.collect(), disturbances).unwrap();
        let latencies = &outcome.served.latencies[0];
        let slow = latencies.count_between(1_000_000, u64::MAX) as f64 / latencies.len() as f64;
        (latencies.value_at_quantile(0.5), slow)
    }

    #[test]
    fn disturbances_delay_the_requests_that_arrive_meanwhile() {
        let (quiet, none) = served(Vec::new());
        assert!(quiet < 25_000 && none == 0.0, "{quiet} ns, {none}");
        for stops in [Stops::Core(0), Stops::Outside] {
            // Five of 4 ms in 200 ms: three quarters of those requests wait for more than 1 ms.
            let disturbances = (0..5).map(|one| Disturbance {
                at: Nanos::from_millis(10 + 40 * one),
                lasts: Nanos::from_millis(4),
                stops,
            });
            let (median, slow) = served(disturbances.collect());
            assert!(median < 2 * quiet, "{median} ns");
            assert!((0.065..0.11).contains(&slow), "{stops:?}: {slow}");
        }
    }
}
