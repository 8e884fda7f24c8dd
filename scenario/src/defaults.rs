//! Defaults of scenarios. Every default is here.

use wave_links::costs::Costs;

use super::model::{Class, Home, Link, Mapping, Operation, Queue, Transport};

/// `workload.keys`: small enough to stay in memory, large enough to miss the L2 cache.
pub const KEYS: u64 = 100_000;
/// Default of `workload.value_bytes`.
pub const VALUE_BYTES: u32 = 64;
/// `workload.service_us`: CPU time of a GET, calibrated (Wave 7.2.2).
pub const SERVICE_US: f64 = 10.0;
/// `run.seconds`: length of one point.
pub const SECONDS: f64 = 1.5;
/// `run.warmup_seconds`: first part of the point, which is not counted.
pub const WARMUP_SECONDS: f64 = 0.3;
/// Default of `run.seed`.
pub const SEED: u64 = 1;
/// `run.rounds` of a ladder.
pub const LADDER_ROUNDS: u32 = 24;
/// Rounds of a native run whose scenario has no `run.rounds`.
pub const ROUNDS: u32 = 20;
/// The shortest warm-up of a trial and the shortest trial after it, where a point is divided among these rounds, in seconds.
pub const TRIAL_SECONDS: (f64, f64) = (0.015, 0.05);
/// `run.refine`: loads in addition to those listed.
pub const REFINE: u32 = 0;
/// Default of `run.compare.at`.
pub const COMPARE_AT: f64 = 0.8;
/// Default of `run.search.probes`.
pub const PROBES: u32 = 9;
/// `host.cores`: worker cores of an enclave.
pub const CORES: u32 = 1;
/// `host.machine`: the user-level runtime, which `wave run` without `--host` uses as well.
pub const MACHINE: &str = "user";
/// Default of `host.max_threads`.
pub const MAX_THREADS: u32 = 4096;
/// `host.prestage`: decisions left in a core's queue before it asks.
pub const PRESTAGE: u32 = 2;
/// `host.spin_us`: an idle core spins this long, then parks.
pub const SPIN_US: u64 = 50;
/// `variant.prefetch`: the host asks for the line of its next decision before it needs it (Wave 5.4).
pub const PREFETCH: bool = true;
/// Default of `variant.link`.
pub const LINK: Link = Link::Shm;
/// Default of `crash.kills`.
pub const KILLS: u32 = 20;
/// `crash.every_ms`: time between two kills; twenty times the scheduling watchdog's period.
pub const EVERY_MS: u64 = 400;
pub const CHAOS_THREADS: u32 = 8;
/// Default of `enclaves.count`.
pub const ENCLAVES: u32 = 2;

/// `workload.keys` of a cached database: a few GiB.
pub const CACHED_KEYS: u64 = 8_000_000;
/// `workload.value_bytes` of a cached database.
pub const CACHED_VALUE_BYTES: u32 = 256;
/// `workload.block_bytes`: RocksDB's own default.
pub const BLOCK_BYTES: u32 = 4096;
/// Default of `workload.cache`.
pub const CACHE_BYTES: u64 = 3 << 30;
/// Default of `workload.gets_per_second`.
pub const GETS_PER_SECOND: f64 = 40_000.0;
/// Default of `workload.hot_keys`.
pub const HOT_KEYS: f64 = 0.2;
/// Default of `workload.hot_gets`.
pub const HOT_GETS: f64 = 0.999;
/// Default of `workload.map_every_us`.
pub const MAP_EVERY_US: u64 = 200;
/// `workload.map_bytes`: memory that is mapped, touched and unmapped.
pub const MAP_BYTES: u32 = 64 << 10;
/// `run.seconds` of a memory scenario.
pub const MEMORY_SECONDS: f64 = 165.0;
/// `run.warmup_seconds` of a memory scenario: three epochs of 38.4 s (Wave 4.2).
pub const MEMORY_WARMUP_SECONDS: f64 = 120.0;
/// `memory.slowdown_percent`: limit on the share of time that the programs lose to refaults.
pub const SLOWDOWN_PERCENT: f64 = 1.0;
/// `memory.pressure_percent`: limit on the share of time in which some task waits for memory.
pub const PRESSURE_PERCENT: f64 = 10.0;

/// `workload.range_us` of an RPC scenario (Wave 7.3).
pub const RANGE_US: f64 = 10_000.0;
/// `workload.range_percent` of an RPC scenario.
pub const RANGE_PERCENT: f64 = 0.5;
/// `workload.get_slo_us` and `workload.range_slo_us`: the SLOs that requests carry.
pub const SLO_US: [u32; 2] = [50, 10_000];
/// `workload.range_pairs`: a reply of some hundred bytes.
pub const RANGE_PAIRS: u32 = 10;
/// Default of `run.get_p99_us`.
pub const GET_P99_US: u32 = 300;
/// Default of `workload.connections`.
pub const CONNECTIONS: u32 = 4;
/// `host.threads` of an RPC scenario: threads that serve calls, and so the number of calls served at once.
pub const RPC_THREADS: u32 = 128;
/// `variant.steer`: a thread holds one call.
pub const STEER: &str = "jbsq:k=1";
/// `variant.steer` of workers with cores: the next call is there when one ends.
pub const STEER_TO_CORES: &str = "jbsq:k=2";

/// `workload.classes`: GETs only.
pub fn classes(service_us: f64) -> Vec<Class> {
    vec![Class { name: "GET".to_owned(), weight: 1.0, service_us, operation: Operation::Get }]
}

/// `variant.messages` over `link`: how each side maps the queues from host to agent.
///
/// Over a link that is not coherent, with every optimisation of Wave 5.3 that fits this direction.
pub fn messages(link: &Link) -> Queue {
    match link {
        Link::Shm => Queue { home: Home::Host, ..coherent() },
        Link::Builtin(name) if is_coherent(name) => coherent(),
        Link::Builtin(_) | Link::File(_) => Queue { host: Mapping::WriteCombining, ..coherent() },
    }
}

/// `variant.decisions` over `link`: how each side maps the queues from agent to host.
///
/// Over a link that is not coherent, with every optimisation of Wave 5.3 that fits this direction.
pub fn decisions(link: &Link) -> Queue {
    match link {
        Link::Shm => Queue { home: Home::Host, ..coherent() },
        Link::Builtin(name) if is_coherent(name) => coherent(),
        Link::Builtin(_) | Link::File(_) => Queue { host: Mapping::WriteThrough, ..coherent() },
    }
}

/// Whether the built-in link of that name is coherent.
pub fn is_coherent(builtin: &str) -> bool {
    Costs::builtin(builtin).is_some_and(|costs| costs.coherent)
}

/// Loads and stores to NIC memory, cached by both sides.
const fn coherent() -> Queue {
    Queue {
        transport: Transport::Mmio,
        home: Home::Nic,
        host: Mapping::WriteBack,
        agent: Mapping::WriteBack,
    }
}
