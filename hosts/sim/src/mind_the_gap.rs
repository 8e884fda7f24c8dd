//! "Mind the Gap: A Case for Informed Request Scheduling at the NIC" (HotNets '19): its experiments as setups and loads.
//! Policies, queues and the agent's loop are the real ones; machine, link, and the two Arm cores beside the deciding one
//! are models. The paper's printed figures are in `data/paper.toml`.

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::link::{Home, Mapping, Transport};
use wave_links::costs::Costs;

use crate::agent::{AgentSetup, PolicyText};
use crate::enclave::Setup;
use crate::experiment;
use crate::machine::Machine;
use crate::requests::{Class, Load, Service, Threads};

/// The dispatcher of requests to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Shinjuku: a core of the host, which shares cache lines with the workers. A worker has one request at a time.
    Host,
    /// Shinjuku-Offload: three Arm cores of a Stingray, over packets.
    Offload,
    /// The SmartNIC that section 5.1 asks for: coherent memory, interrupts of its own, a scheduler at line rate.
    Ideal,
}

/// The figures of the three systems, from files.
#[derive(Clone, Debug)]
pub struct Model {
    /// `machines/shinjuku.toml`.
    pub host: Machine,
    /// `machines/shinjuku-offload.toml`, some of whose figures are fitted.
    pub offload: Machine,
    /// `machines/shinjuku-ideal.toml`.
    pub ideal: Machine,
    /// Seed of every setup, in particular of its arrivals.
    pub seed: u64,
}

/// The most requests in the system at once, like contexts in Shinjuku. Further requests wait in front of them.
const CONTEXTS: u32 = 512;
/// Polling time of workers: longer than any of them ever waits, so that none parks.
const SPIN: Nanos = Nanos::from_millis(100);
/// Entries of a decision queue. An agent without shared memory reads the credit across the link, once per three quarters of a
/// ring.
const DECISIONS: u32 = 4096;
/// Overload offered to find the highest rate that is served, relative to what workers could serve.
const OVERLOAD: f64 = 1.1;

impl Model {
    /// The files that come with this crate.
    pub fn builtin() -> Model {
        let machine = |name: &str| Machine::builtin(name).expect("built in");
        Model {
            host: machine("shinjuku"),
            offload: machine("shinjuku-offload"),
            ideal: machine("shinjuku-ideal"),
            seed: 1,
        }
    }

    /// A system of `workers` workers, each with at most `outstanding` requests, the running one included. Without a
    /// slice, requests run to completion.
    pub fn setup(
        &self,
        system: System,
        workers: u16,
        outstanding: u16,
        slice_us: Option<u32>,
    ) -> Setup {
        let link = |name| Costs::builtin(name).expect("built in");
        let (machine, costs, mut config) = match system {
            System::Host => (&self.host, link("shinjuku"), Config::coherent(workers)),
            System::Offload => (&self.offload, link("stingray"), pushed(workers)),
            System::Ideal => (&self.ideal, snooped(link("ideal")), pushed(workers)),
        };
        // The networker is one core, with one queue of requests.
        config.contexts = 2;
        config.subjects = CONTEXTS;
        config.spin = SPIN;
        config.prestage = outstanding - 1;
        let policy = match (slice_us, system) {
            (None, _) => "fifo".to_owned(),
            // Interrupts by packets are too slow: the worker's own timer ends its slice (3.4.4).
            (Some(slice), System::Offload) => format!("shinjuku:slice_us={slice},timer=core"),
            (Some(slice), _) => format!("shinjuku:slice_us={slice}"),
        };
        Setup {
            config,
            costs,
            agent: AgentSetup {
                policy: PolicyText::shipped(policy),
                ghz: machine.agent_ghz.value,
                parks: false,
            },
            machine: machine.clone(),
            prefetch: false,
            seed: self.seed,
        }
    }
}

/// Coherent memory as section 5.1 proposes to use it: the NIC writes decisions to lines that workers poll, and snoops on the
/// lines that they write. A line is on its way for as long as a reader would wait for it; no side waits.
fn snooped(link: Costs) -> Costs {
    let one_way = link.line_transfer.clone();
    let mut costs = link;
    costs.coherent = false;
    costs.line_transfer.ns = 0.0;
    costs.dma_submit.ns = 0.0;
    (costs.posted_flight, costs.dma_flight) = (one_way.clone(), one_way);
    costs
}

/// Decisions are stored into host memory, each a packet over a Stingray; messages go into NIC memory.
fn pushed(workers: u16) -> Config {
    let mut config = Config::pcie(workers);
    config.decisions.transport = Transport::Mmio;
    config.decisions.home = Home::Host;
    config.decisions.host = Mapping::WriteBack;
    config.decisions.entries = DECISIONS;
    config
}

/// Requests that all take `service`.
pub fn fixed(service: Nanos) -> Vec<Class> {
    vec![Class { name: "fixed".into(), weight: 1.0, service: Service::Fixed(service) }]
}

/// The requests of Figure 2: 99.5% of 5 us, and 0.5% of 100 us.
pub fn bimodal() -> Vec<Class> {
    let class = |name: &str, weight, us| {
        let service = Service::Fixed(Nanos::from_micros(us));
        Class { name: name.into(), weight, service }
    };
    vec![class("short", 99.5, 5), class("long", 0.5, 100)]
}

/// An open loop of these requests on a setup, measured for `measure`.
pub fn load(setup: &Setup, classes: Vec<Class>, per_second: f64, measure: Nanos) -> Load {
    Load {
        per_second,
        classes,
        threads: Threads::Pool(CONTEXTS),
        overhead: setup.machine.request_overhead.nanos(),
        warmup: Nanos(measure.0 / 4),
        measure,
        generators: 1,
    }
}

/// The most requests of this length that a setup serves, per second, under an overload that the number of contexts
/// bounds. Hardly depends on a seed.
///
/// # Panics
///
/// If the setup cannot be laid out.
pub fn throughput(setup: &Setup, service: Nanos, measure: Nanos) -> f64 {
    let cycle = service + setup.machine.request_overhead.nanos();
    let per_second = OVERLOAD * f64::from(setup.config.cores) * 1e9 / cycle.0 as f64;
    let load = load(setup, fixed(service), per_second, measure);
    let outcome = experiment::serve(setup, &load).expect("the setups can be laid out");
    outcome.served.finished_within as f64 * 1e9 / measure.0 as f64
}

/// By how many percent the throughput of 4 workers with requests of 1 us grows from one outstanding request to five: the
/// fitted row of Figure 3.
pub fn gain_of_five(model: &Model) -> f64 {
    let most = |outstanding| {
        let setup = model.setup(System::Offload, 4, outstanding, None);
        throughput(&setup, Nanos::from_micros(1), FIGURE_3)
    };
    100.0 * (most(5) / most(1) - 1.0)
}

/// How long Figure 3's throughputs are measured.
pub const FIGURE_3: Nanos = Nanos::from_millis(20);
