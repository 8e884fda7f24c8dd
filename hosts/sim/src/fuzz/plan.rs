//! The plan drawn from a seed: machine, link, queues, policy, workload and faults.

use rand::Rng;
use rand::seq::IndexedRandom;
use wave_core::clock::Nanos;
use wave_core::layout::{Config, QueueConfig};
use wave_core::link::{Home, Mapping, Transport};
use wave_core::modelled::{ModelSetup, ModelledHost};
use wave_core::subsystem::Subsystem;
use wave_links::costs::Costs;
use wave_sched::policies;

use super::faults::{FAULTS, Fault};
use super::invariant::Invariant;
use crate::agent::{AgentSetup, PolicyText, Skew};
use crate::enclave::{Setup, SetupError};
use crate::machine::Machine;
use crate::random::{self, Stream};

/// Messages that every history has at least.
pub const MESSAGES_MIN: u64 = 10_000;
/// The longest run of a thread.
pub const RUN_MAX: Nanos = Nanos::from_micros(20);

/// A fault and the time of its injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Virtual time of the fault.
    pub at: Nanos,
    /// Kind of the injected fault.
    pub fault: Fault,
    /// Duration of a fault that lasts; otherwise 0.
    pub lasts: Nanos,
    /// Seed of the fault's random details.
    pub seed: u64,
}

/// One enclave of a history.
#[derive(Clone, Debug)]
pub struct EnclavePlan {
    /// Setup of the enclave, without faults.
    pub setup: Setup,
    /// The first agent's clock.
    pub skew: Skew,
    /// The most threads (or subjects) alive at once.
    pub threads: u32,
    /// The subsystem whose modelled host takes the place of threads.
    pub subsystem: Option<&'static Subsystem>,
    /// How long the policy idles on purpose.
    pub on_purpose: Nanos,
    /// Faults in order of time.
    pub injections: Vec<Injection>,
}

/// A history to be run: enclaves, faults and a length.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed from which the plan is drawn.
    pub seed: u64,
    /// Enclaves that share nothing but the world.
    pub enclaves: Vec<EnclavePlan>,
    /// Length of the workload: the number of messages after which it stops.
    pub messages: u64,
    /// Users' rules for every enclave's policy.
    pub invariants: Vec<Invariant>,
}

/// Changes to a seed's plan: they name a smaller failing history.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Keep only these faults of the first enclave, by number.
    pub faults: Option<Vec<usize>>,
    /// Least number of messages, instead of the usual one.
    pub messages: Option<u64>,
    /// Number of threads at once.
    pub threads: Option<u32>,
    /// Keep only the first enclave.
    pub alone: bool,
    /// The subsystem whose modelled host takes the place of threads. It has a model and policies.
    pub subsystem: Option<&'static Subsystem>,
    /// Every agent's policy, instead of a drawn one.
    pub policy: Option<PolicyText>,
    /// Users' rules, of which those of this policy are checked.
    pub invariants: &'static [Invariant],
}

impl Overrides {
    /// The overrides as arguments of the command `fuzz`, each with a space before it.
    pub fn to_arguments(&self) -> String {
        let mut text = String::new();
        if let Some(faults) = &self.faults {
            let list: Vec<_> = faults.iter().map(ToString::to_string).collect();
            let list = if list.is_empty() { "none".to_owned() } else { list.join(",") };
            text += &format!(" --keep-faults {list}");
        }
        if let Some(messages) = self.messages {
            text += &format!(" --messages {messages}");
        }
        if let Some(threads) = self.threads {
            text += &format!(" --threads {threads}");
        }
        if self.alone {
            text += " --alone";
        }
        if let Some(subsystem) = self.subsystem {
            text += &format!(" --subsystem {}", subsystem.name);
        }
        if let Some(policy) = &self.policy {
            text += &format!(" --policy {}", policy.text());
        }
        text
    }
}

impl Plan {
    /// The plan of a seed. `wanted` restricts the faults; empty allows all.
    pub fn new(seed: u64, wanted: &[Fault]) -> Plan {
        let mut random = random::stream(seed, "plan", 0);
        let enclaves = if random.random_bool(0.15) { 2 } else { 1 };
        let kinds: Vec<Fault> = FAULTS
            .into_iter()
            .filter(|fault| wanted.is_empty() || wanted.contains(fault))
            .collect();
        let mut plans: Vec<_> =
            (0..enclaves).map(|index| enclave(&mut random, seed ^ index << 40)).collect();
        // Only the first enclave has faults; the others must not notice them.
        let first = &mut plans[0];
        let count = random.random_range(1..=4);
        let mut injections: Vec<_> =
            (0..count).map(|_| injection(&mut random, first, &kinds)).collect();
        // Include at least one fault that is certain to take effect, if any such is wanted.
        let certain: Vec<Fault> = kinds.iter().copied().filter(|kind| kind.is_certain()).collect();
        let has_certain =
            injections.iter().any(|injection: &Injection| injection.fault.is_certain());
        if !has_certain && !certain.is_empty() {
            injections.push(injection(&mut random, first, &certain));
        }
        injections.sort_by_key(|injection| injection.at);
        first.injections = injections;
        Plan { seed, enclaves: plans, messages: MESSAGES_MIN + 200, invariants: Vec::new() }
    }

    /// Checks each enclave's setup.
    ///
    /// # Errors
    /// The first setup that cannot run: an override's policy may refuse a drawn configuration.
    pub fn check(&self) -> Result<(), SetupError> {
        self.enclaves.iter().try_for_each(|enclave| enclave.setup.check())
    }

    /// The plan with these changes.
    pub fn with(mut self, overrides: &Overrides) -> Plan {
        if let Some(kept) = &overrides.faults {
            let injections = &mut self.enclaves[0].injections;
            let mut number = 0..;
            injections.retain(|_| kept.contains(&number.next().expect("endless")));
        }
        self.messages = overrides.messages.unwrap_or(self.messages);
        if let Some(threads) = overrides.threads {
            self.enclaves[0].threads = threads;
        }
        if overrides.alone {
            self.enclaves.truncate(1);
        }
        if let Some(subsystem) = overrides.subsystem {
            self.enclaves.iter_mut().for_each(|enclave| enclave.model(subsystem));
        }
        if let Some(policy) = &overrides.policy {
            for enclave in &mut self.enclaves {
                enclave.decide_by(policy);
            }
            let name = policy.name();
            let own = overrides.invariants.iter().filter(|own| own.policy == name);
            self.invariants = own.copied().collect();
        }
        self
    }
}

impl EnclavePlan {
    /// Replaces the policy. The host becomes patient enough for the time that the policy says it idles on purpose.
    fn decide_by(&mut self, policy: &PolicyText) {
        let AgentSetup { policy: decides, .. } = &mut self.setup.agent;
        *decides = policy.clone();
        // `Plan::check` says why a policy cannot be made.
        let made = policy.make(&self.setup.config);
        self.on_purpose = made.map_or(Nanos(0), |decider| decider.policy.idles_for());
        let patience = &mut self.setup.config.patience;
        *patience = (*patience).max(Nanos(self.on_purpose.0.saturating_mul(2)));
    }

    /// Replaces threads by a modelled host.
    ///
    /// # Panics
    /// If the subsystem has none, or no policy.
    fn model(&mut self, subsystem: &'static Subsystem) {
        let mut random = random::stream(self.setup.seed, "model", 0);
        let known = subsystem.policies.choose(&mut random).expect("a subsystem with policies");
        let make = subsystem.make.expect("a subsystem whose policies an agent runs");
        self.setup.agent.policy = PolicyText::of(make, known.name);
        self.setup.config.subsystem = subsystem.id;
        self.subsystem = Some(subsystem);
    }

    /// Makes the modelled host, if the plan has one. The same plan gives the same host.
    ///
    /// # Panics
    /// If the subsystem has none.
    pub fn host(&self) -> Option<Box<dyn ModelledHost>> {
        let make = self.subsystem?.model.expect("a subsystem with a model");
        let Setup { config, seed, .. } = &self.setup;
        let mut random = random::stream(*seed, "load", 0);
        let mut model = ModelSetup {
            cores: config.cores,
            subjects: self.threads.min(config.subjects),
            per_second: 1,
            seed: *seed,
        };
        // From a few runs at a time to more than all cores can serve.
        let runs = f64::from(config.cores) * 1e9 / make(&model).run_max().0.max(1) as f64;
        let load = runs * random.random_range(0.25..4.0);
        model.per_second = (load as u32).clamp(1, 1_000_000_000);
        Some(make(&model))
    }
}

fn injection(random: &mut Stream, enclave: &mut EnclavePlan, kinds: &[Fault]) -> Injection {
    let fault = *kinds.choose(random).expect("at least one kind");
    match fault {
        // These are properties of the whole history.
        Fault::FullQueue => enclave.setup.config.messages.entries = 8,
        Fault::ClockSkew => {
            enclave.skew =
                Skew { ahead: random.random_range(0..1 << 40), ppm: random.random_range(0..500) };
        }
        Fault::Reordered => {
            let messages = &mut enclave.setup.config.messages;
            if !enclave.setup.costs.coherent {
                messages.transport = Transport::DmaAsync;
                (messages.host, messages.agent) = (Mapping::WriteBack, Mapping::WriteBack);
            }
        }
        _ => {}
    }
    let patience = enclave.setup.config.patience.0;
    Injection {
        at: Nanos(random.random_range(500_000..5_000_000)),
        fault,
        lasts: Nanos(match fault {
            Fault::AgentStop => random.random_range(2 * patience..3 * patience),
            Fault::AgentContinue => random.random_range(patience / 8..patience / 2),
            Fault::LinkStall => random.random_range(20_000..patience / 2),
            Fault::LostKick | Fault::LateKick => random.random_range(200_000..2_000_000),
            // Some are shorter than one poll of a queue.
            Fault::CoreOffline => 1_000 << random.random_range(0..12),
            Fault::Hostile => random.random_range(patience / 8..4 * patience),
            _ => 0,
        }),
        seed: random.random(),
    }
}

fn enclave(random: &mut Stream, seed: u64) -> EnclavePlan {
    let link = *["mount-evans", "mount-evans", "coherent", "stingray", "on-host"]
        .choose(random)
        .expect("not empty");
    let mut costs = Costs::builtin(link).expect("built in");
    if random.random_bool(0.25) {
        disturb(random, &mut costs);
    }
    let cores = random.random_range(1..=16);
    let mut config = Config::coherent(cores);
    config.contexts = random.random_range(2..=5);
    config.subjects = random.random_range(64..=512);
    config.spin = Nanos(*[0, 5_000, 50_000].choose(random).expect("not empty"));
    config.patience = Nanos(random.random_range(2_000_000..6_000_000));
    config.messages = queue(random, costs.coherent, true);
    config.decisions = queue(random, costs.coherent, false);
    // At most half a ring.
    config.prestage = random.random_range(0..=4).min((config.decisions.entries / 2) as u16);
    let policy = *policies::NAMES.choose(random).expect("not empty");
    let mut machine = Machine::builtin("user").expect("built in");
    // These have streams of their own, so that seeds that draw nothing from them keep their history.
    let policy = with_slices(&mut random::stream(seed, "slices", 0), policy);
    if random::stream(seed, "interrupts", 0).random_bool(0.5) {
        machine.safe_points = None;
    }
    EnclavePlan {
        setup: Setup {
            config,
            costs,
            agent: AgentSetup {
                policy: PolicyText::shipped(policy),
                ghz: machine.agent_ghz.value,
                parks: random.random_bool(0.5),
            },
            machine,
            prefetch: random.random_bool(0.7),
            seed,
        },
        skew: Skew::default(),
        threads: random.random_range(4..=3 * u32::from(cores) + 4).min(config.subjects / 2),
        subsystem: None,
        on_purpose: Nanos(0),
        injections: Vec::new(),
    }
}

/// Gives a policy slices shorter than most runs, ended by the agent or by the core's own timer. Leaves
/// policies without slices as they are.
fn with_slices(random: &mut Stream, policy: &str) -> String {
    let slice = match policy {
        "shinjuku" | "multi-queue" => "slice_us",
        "round-robin" => "quantum_us",
        _ => return policy.to_owned(),
    };
    let timer = ["agent", "core"].choose(random).expect("not empty");
    format!("{policy}:{slice}={},timer={timer}", random.random_range(2..=12))
}

/// Makes each cost up to four times higher or lower, as of no particular link.
fn disturb(random: &mut Stream, costs: &mut Costs) {
    let flights = [&mut costs.posted_flight, &mut costs.kick_flight, &mut costs.dma_flight];
    let rest = [
        &mut costs.host_read,
        &mut costs.host_write,
        &mut costs.line_drain,
        &mut costs.flush,
        &mut costs.agent_access_uncached,
        &mut costs.kick_send,
        &mut costs.kick_receive,
        &mut costs.dma_submit,
        &mut costs.line_transfer,
    ];
    for cost in flights.into_iter().chain(rest) {
        // A power of two, so that every machine computes the same product.
        cost.ns = (cost.ns * [0.25, 0.5, 1.0, 2.0, 4.0][random.random_range(0..5)]).round();
    }
}

/// Draws the queues of one direction, from those that a configuration may have over such a link.
fn queue(random: &mut Stream, coherent: bool, messages: bool) -> QueueConfig {
    // The number of messages depends on the number of threads, that of decisions on prestaging.
    let sizes = if messages { [64, 256, 1024] } else { [4, 16, 256] };
    let entries = *sizes.choose(random).expect("not empty");
    let mut queue = QueueConfig {
        transport: Transport::Mmio,
        home: Home::Nic,
        host: Mapping::WriteBack,
        agent: Mapping::WriteBack,
        entries,
    };
    if random.random_bool(0.3) {
        queue.transport =
            *[Transport::DmaSync, Transport::DmaAsync].choose(random).expect("not empty");
        queue.home = if messages { Home::Nic } else { Home::Host };
        return queue;
    }
    if random.random_bool(0.1) {
        // Pushed decisions, pulled messages.
        queue.home = Home::Host;
        return queue;
    }
    if !coherent {
        let host = if messages { Mapping::WriteCombining } else { Mapping::WriteThrough };
        queue.host = if random.random_bool(0.7) { host } else { Mapping::Uncached };
        if random.random_bool(0.2) {
            queue.agent = Mapping::Uncached;
        }
    }
    queue
}
