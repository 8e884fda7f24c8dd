//! The Wave paper's experiments, as setups and loads. The printed figures are in `data/paper.toml`.

use serde::Deserialize;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::link::Mapping;
use wave_links::costs::Costs;

use crate::agent::{AgentSetup, PolicyText};
use crate::enclave::Setup;
use crate::experiment::{self, Switches};
use crate::machine::Machine;
use crate::requests::{Class, Load, Service, Threads};
use crate::rpc::RpcSetup;
use crate::rpc::costs::RpcCosts;

const PRINTED: &str = include_str!("../data/paper.toml");

/// One figure that a paper prints.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Id of the row, as documents cite it.
    pub id: String,
    /// The table or figure that it belongs to.
    pub group: String,
    /// Description of the row.
    pub text: String,
    /// Unit of the printed figure.
    pub unit: String,
    /// The figure, or the lower end of a range.
    pub low: f64,
    /// The figure, or the upper end of a range.
    pub high: f64,
    /// Place in the paper: table, figure or section.
    #[serde(rename = "where")]
    pub place: String,
}

/// Every figure, in the papers' order.
pub fn printed() -> Vec<Printed> {
    #[derive(Deserialize)]
    struct File {
        row: Vec<Printed>,
    }
    toml::from_str::<File>(PRINTED).expect("the file is tested").row
}

/// The optimisations of Wave 5.3 and 5.4, each on top of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The bottom rung: all mappings uncached.
    Baseline,
    /// The agent maps its own memory write-back (5.3.1).
    NicWriteBack,
    /// The host writes combined and reads through its cache (5.3.1, 5.3.2).
    HostCombining,
    /// Decisions are left ahead of time and prefetched (5.4).
    Prestaged,
}

impl Rung {
    /// All rungs, from the bottom.
    pub const ALL: [Rung; 4] =
        [Rung::Baseline, Rung::NicWriteBack, Rung::HostCombining, Rung::Prestaged];
}

/// The host's clock in section 7.
pub const HOST_GHZ: f64 = 3.5;

/// All figures of the paper's machine from files, both fitted and not.
#[derive(Clone, Debug)]
pub struct Model {
    /// The host and the NIC's cores: `machines/ghost.toml`.
    pub ghost: Machine,
    /// The host with the agent on a core of its own: `machines/ghost-on-host.toml`.
    pub ghost_on_host: Machine,
    /// The SmartNIC's link: `links/costs/mount-evans.toml`.
    pub mount_evans: Costs,
    /// Memory and interrupts within the host: `links/costs/on-host.toml`.
    pub on_host: Costs,
    /// The link to another socket: `links/costs/coherent.toml`.
    pub coherent: Costs,
    /// The RPC stack: `data/rpc.toml`.
    pub rpc: RpcCosts,
    /// Seed of every setup, in particular of its arrivals.
    pub seed: u64,
}

impl Model {
    /// The files that come with this crate and with `wave-links`.
    pub fn builtin() -> Model {
        let machine = |name: &str| Machine::builtin(name).expect("built in");
        let costs = |name: &str| Costs::builtin(name).expect("built in");
        Model {
            ghost: machine("ghost"),
            ghost_on_host: machine("ghost-on-host"),
            mount_evans: costs("mount-evans"),
            on_host: costs("on-host"),
            coherent: costs("coherent"),
            rpc: RpcCosts::builtin(),
            seed: 1,
        }
    }

    /// Wave on the paper's SmartNIC, with `cores` host cores, all of which run threads.
    pub fn wave(&self, cores: u16, rung: Rung, policy: &str) -> Setup {
        let prestaged = rung == Rung::Prestaged;
        let mut config = config(cores, u16::from(prestaged));
        if matches!(rung, Rung::Baseline | Rung::NicWriteBack) {
            config.messages.host = Mapping::Uncached;
            config.decisions.host = Mapping::Uncached;
        }
        if rung == Rung::Baseline {
            config.messages.agent = Mapping::Uncached;
            config.decisions.agent = Mapping::Uncached;
        }
        self.setup(config, &self.mount_evans, &self.ghost, policy, prestaged)
    }

    /// ghOSt on the host: the agent has a core of its own, beside `workers` cores that run threads.
    pub fn on_host(&self, workers: u16, prestaged: bool, policy: &str) -> Setup {
        let config = config(workers, u16::from(prestaged));
        self.setup(config, &self.on_host, &self.ghost_on_host, policy, prestaged)
    }

    /// The agent on the other socket of a host, its clock limited to `ghz` (7.3.3).
    pub fn over_upi(&self, workers: u16, ghz: f64, policy: &str) -> Setup {
        let mut setup =
            self.setup(config(workers, 1), &self.coherent, &self.ghost_on_host, policy, true);
        // Sending the interrupt takes the same instructions on either socket.
        setup.costs.kick_send = self.on_host.kick_send.clone();
        setup.agent.ghz = ghz;
        setup
    }

    /// RocksDB on `workers` cores behind an RPC stack (7.3), scheduled by `policy`. With `slo`, requests carry their
    /// SLOs.
    pub fn rpc(&self, placement: Placement, workers: u16, policy: &str, slo: bool) -> RpcSetup {
        let slo = if slo { SLO.to_vec() } else { Vec::new() };
        self.rpc_over(&self.mount_evans, placement, workers, policy, slo)
    }

    /// As [`Model::rpc`], with another link between host and NIC, and these SLOs for the requests of each class;
    /// none if the list is empty.
    pub fn rpc_over(
        &self,
        nic: &Costs,
        placement: Placement,
        workers: u16,
        policy: &str,
        slo: Vec<Nanos>,
    ) -> RpcSetup {
        let costs = &self.rpc;
        let scheduler = match placement {
            Placement::OffloadAll => {
                Setup { costs: nic.clone(), ..self.wave(workers, Rung::Prestaged, policy) }
            }
            _ => self.on_host(workers, true, policy),
        };
        let (link, stack) = match placement {
            Placement::OnHostAll => (scheduler.costs.clone(), costs.host.clone()),
            _ => (nic.clone(), costs.nic.clone()),
        };
        let read = nic.host_read.ns;
        let slo_words = if slo.is_empty() { 0.0 } else { costs.across.slo_words.value };
        let words = costs.across.header_words.value + slo_words;
        let note = match placement {
            Placement::OnHostScheduler => {
                let policy = scheduler.machine.agent_message.nanos();
                (Nanos((read * words) as u64) + policy, nic.host_read.nanos())
            }
            _ => (stack.note.nanos(), Nanos(0)),
        };
        let mut setup = RpcSetup {
            scheduler,
            link,
            stack,
            note,
            workers: RPC_WORKERS,
            steering: "jbsq:k=1".into(),
            prefetch: false,
            prestaged: false,
            slo,
        };
        setup.scheduler.config.subjects = RPC_WORKERS.into();
        setup
    }

    fn setup(
        &self,
        config: Config,
        costs: &Costs,
        machine: &Machine,
        policy: &str,
        prefetch: bool,
    ) -> Setup {
        Setup {
            config,
            costs: costs.clone(),
            // The paper's agents always poll (4.1).
            agent: AgentSetup {
                policy: PolicyText::shipped(policy),
                ghz: machine.agent_ghz.value,
                parks: false,
            },
            machine: machine.clone(),
            prefetch,
            seed: self.seed,
        }
    }
}

/// The configuration of queues, with cores that sleep as soon as they are idle, like a kernel's.
fn config(cores: u16, prestage: u16) -> Config {
    let mut config = Config::pcie(cores);
    config.contexts = 5;
    config.messages.entries = 256;
    config.spin = Nanos(0);
    config.prestage = prestage;
    config
}

/// [`Model::wave`], with the built-in files.
pub fn wave(cores: u16, rung: Rung, policy: &str) -> Setup {
    Model::builtin().wave(cores, rung, policy)
}

/// [`Model::on_host`], with the built-in files.
pub fn on_host(workers: u16, prestaged: bool, policy: &str) -> Setup {
    Model::builtin().on_host(workers, prestaged, policy)
}

/// [`Model::over_upi`], with the built-in files.
pub fn over_upi(workers: u16, ghz: f64, policy: &str) -> Setup {
    Model::builtin().over_upi(workers, ghz, policy)
}

/// The placement of the RPC stack and the scheduler (7.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Stack and scheduler on the host.
    OnHostAll,
    /// The RPC stack on the NIC, the scheduler on a core of the host.
    OnHostScheduler,
    /// Stack and scheduler on the NIC.
    OffloadAll,
}

impl Placement {
    /// All of them, in the paper's order.
    pub const ALL: [Placement; 3] =
        [Placement::OnHostAll, Placement::OnHostScheduler, Placement::OffloadAll];

    /// Name of the placement in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Placement::OnHostAll => "OnHost-All",
            Placement::OnHostScheduler => "OnHost-Scheduler",
            Placement::OffloadAll => "Offload-All",
        }
    }
}

/// The SLOs of a GET and a RANGE of 7.3, the same as a multi-queue policy's default objectives.
const SLO: [Nanos; 2] = [Nanos::from_micros(50), Nanos::from_millis(10)];

/// [`Model::rpc`], with the built-in files.
pub fn rpc(placement: Placement, workers: u16, policy: &str, slo: bool) -> RpcSetup {
    Model::builtin().rpc(placement, workers, policy, slo)
}

/// [`Model::rpc_over`], with the built-in files.
pub fn rpc_over(
    nic: &Costs,
    placement: Placement,
    workers: u16,
    policy: &str,
    slo: Vec<Nanos>,
) -> RpcSetup {
    Model::builtin().rpc_over(nic, placement, workers, policy, slo)
}

/// Threads of RocksDB: as many as a window has workers. The paper does not print its number.
pub const RPC_WORKERS: u16 = 240;

/// Table 3, rows 2 and 4: threads on one core that run and yield.
///
/// # Panics
///
/// If the setup cannot be laid out.
pub fn context_switch(setup: &Setup) -> Switches {
    let mut setup = setup.clone();
    setup.config.cores = 1;
    let (work, measure) = (Nanos::from_micros(10), Nanos::from_millis(4));
    experiment::switches(&setup, 3, work, measure).expect("a valid configuration")
}

/// The cost of a request for its core in addition to its service: the application's overhead, and the
/// context switches that the host does for it without the agent, each as long as in Table 3's benchmark
/// with this setup.
pub fn overhead(setup: &Setup) -> Nanos {
    let switches = context_switch(setup);
    let switch = Switches::median(&switches.switch_ns).unwrap_or(0);
    let more = setup.machine.crossings_per_request.value - 1.0;
    setup.machine.request_overhead.nanos() + Nanos((more * f64::from(switch)).round() as u64)
}

/// Load of 10 us GETs (Wave 7.2.2).
pub fn gets(per_second: f64, overhead: Nanos) -> Load {
    let get =
        Class { name: "GET".into(), weight: 1.0, service: Service::Fixed(Nanos::from_micros(10)) };
    Load {
        per_second,
        classes: vec![get],
        threads: Threads::Pool(400),
        overhead,
        warmup: Nanos::from_millis(10),
        measure: Nanos::from_millis(40),
        generators: 4,
    }
}

/// 99.5% GETs of 10 us and 0.5% RANGE scans of 10 ms (7.2.3).
pub fn gets_and_ranges(per_second: f64, overhead: Nanos) -> Load {
    let mut load = gets(per_second, overhead);
    load.classes[0].weight = 99.5;
    let service = Service::Fixed(Nanos::from_millis(10));
    load.classes.push(Class { name: "RANGE".into(), weight: 0.5, service });
    // A scan occupies its worker while it waits for its turns.
    load.threads = Threads::Pool(3000);
    load.warmup = Nanos::from_millis(60);
    load.measure = Nanos::from_millis(200);
    load
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_figure_has_a_unique_name_and_a_range() {
        let rows = printed();
        for (at, row) in rows.iter().enumerate() {
            assert!(row.low <= row.high, "{}", row.id);
            assert!(!row.text.is_empty() && !row.place.is_empty(), "{}", row.id);
            assert!(rows[..at].iter().all(|other| other.id != row.id), "{}", row.id);
        }
    }
}
