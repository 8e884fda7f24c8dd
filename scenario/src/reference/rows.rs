//! Meanings of fields, and the examples that give defaults and ranges.

use super::{Row, row};

pub(super) const REQUEST_EXAMPLES: &[&str] = &[
    r#"name = "my-load"
kind = "load"

[workload]
classes = [
    { name = "GET", weight = 99.5 },
    { name = "RANGE", weight = 0.5, service_us = 1_000, operation = "range" },
]

[run]
seconds = 1.5
loads_per_second = [5_000, 10_000, 20_000]
compare = { with = "agent" }

[[variant]]
name = "linux"
placement = "linux"

[[variant]]
name = "agent"
placement = "offload"
policy = "shinjuku:slice_us=30"
"#,
    r#"name = "my-ladder"
kind = "ladder"

[run]
loads_per_second = [100_000]

[[variant]]
name = "no prestage"
placement = "offload"
policy = "fifo"
link = "model:mount-evans"
prestage = 0

[[variant]]
name = "prestage"
placement = "offload"
policy = "fifo"
link = "model:mount-evans"
"#,
    r#"name = "my-crash"
kind = "crash"

[crash]
load_per_second = 10_000

[[variant]]
name = "agent"
placement = "offload"
policy = "fifo"
"#,
    r#"name = "my-enclaves"
kind = "enclaves"

[run]
loads_per_second = [5_000, 10_000]

[[variant]]
name = "agents"
placement = "offload"
policy = "fifo"
"#,
    r#"name = "my-chaos"
kind = "chaos"

[workload]
classes = [{ name = "RANGE", weight = 1, service_us = 1_000, operation = "range" }]

[[variant]]
name = "agent"
placement = "offload"
policy = "shinjuku:slice_us=30"
"#,
];

/// Its fields are in no smallest file.
pub(super) const SEARCH_EXAMPLE: &str = r#"name = "my-search"
kind = "load"

[run]
search = { low = 1_000, high = 100_000 }

[[variant]]
name = "agent"
placement = "offload"
policy = "fifo"
"#;

pub(super) const MEMORY_EXAMPLE: &str = r#"name = "my-memory"
kind = "memory"

[[variant]]
name = "without"

[[variant]]
name = "SOL"
policy = "sol"
"#;

pub(super) const RPC_EXAMPLE: &str = r#"name = "my-rpc"
kind = "rpc"

[run]
loads_per_second = [1_000, 2_000, 4_000]

[[variant]]
name = "agent"
placement = "offload-all"
policy = "shinjuku:slice_us=30"

[[variant]]
name = "tonic"
placement = "tonic"
"#;

pub(super) const UDP_EXAMPLE: &str = r#"name = "my-udp"
kind = "udp"

[run]
outstanding = [1, 2, 4, 8]
"#;

pub(super) const UDP_PREEMPTION_EXAMPLE: &str = r#"name = "my-preemption"
kind = "udp-preemption"

[run]
loads_per_second = [10_000, 20_000, 40_000]
"#;

pub(super) const UDP_FEEDBACK_EXAMPLE: &str = r#"name = "my-overload"
kind = "udp-feedback"

[run]
loads = [0.5, 1, 2]
"#;

pub const NAME: Row = row(
    "name",
    "Names the folder of the results: lowercase letters, digits and single hyphens, 100 at most.",
);
pub const DESCRIPTION: Row =
    row("description", "One paragraph for the reader of the results.").default("\"\"");
pub const KIND: Row = row("kind", "Kind of the scenario.");
const VARIANT_NAME: Row = row(
    "variant.name",
    "Name in results; it needs letters or digits, which must differ from every other variant's; 100 bytes at most.",
);
const SEED: Row = row("run.seed", "Seed of every random stream.").default("1").range("any");
const SECONDS: Row = row("run.seconds", "Length of a point, warm-up included.");
const WARMUP: Row = row("run.warmup_seconds", "First part of it, which is not counted.")
    .default("the lesser of 0.3 and half of `run.seconds`")
    .range("0 to 0.9 of `run.seconds`");
const LOADS: Row =
    row("run.loads_per_second", "Loads to offer, in ascending order, 1,000 at most.");
const LINK: &str = "Link between host and agent: `shm`; `model:NAME`, a cost file of links/costs; or `model:PATH.toml`, \
                    relative to the scenario.";

pub(super) const REQUESTS: &[Row] = &[
    NAME,
    DESCRIPTION,
    row(
        "kind",
        "`load`: latency and throughput under each load; `ladder`: throughputs under overload, as steps from \
         the first variant to the last; `crash`: agents that end under load; `enclaves`: several enclaves at once; `chaos`: preemption without end, \
         with everything checked.",
    ),
    row("workload", "Database and requests."),
    row("workload.keys", "Keys in the database."),
    row("workload.value_bytes", "Size of a value."),
    row("workload.service_us", "CPU time of a request, calibrated."),
    row("workload.classes", "Classes of requests, at least one. `chaos` needs one with `operation = \"range\"`.")
        .default("one class, `GET`"),
    row("workload.classes.name", "Name in results, distinct for each class."),
    row("workload.classes.weight", "Share of the requests, relative to the other classes."),
    row("workload.classes.service_us", "CPU time of a request of this class.")
        .default("`workload.service_us`"),
    row(
        "workload.classes.operation",
        "Operation on RocksDB: a GET of one key, or keys in order for as long as the service takes.",
    )
    .default("\"get\""),
    row("run", "Lengths and loads of points. `crash` and `chaos` need none."),
    row("run.seconds", "Length of a point, warm-up included. Not with `crash`."),
    row("run.warmup_seconds", "First part of it, which is not counted; less than `run.seconds`."),
    SEED,
    row(
        "run.loads_per_second",
        "Loads to offer, in ascending order, 1,000 at most. `load` needs this or `run.search`, `enclaves` needs \
         this, `ladder` needs one load that is more than any variant can serve.",
    )
    .default("none"),
    row(
        "run.rounds",
        "Rounds in which every variant runs each load once, in random order. 0, or at least 6. `run.seconds` is the length of one trial, \
         but with 0 that of a point, which is divided among 20 rounds. With `ladder` 24 by default.",
    ),
    row(
        "run.refine",
        "Further loads for each variant, near its saturation. Only `load`, beside `run.loads_per_second`, on a simulated host.",
    ),
    row(
        "run.search",
        "Search for saturations on a simulated host. A native run instead offers `probes` loads from `low` to `high`, each the same factor \
         above the last, in every round. Only `load`.",
    ),
    row("run.search.low", "Lowest load to try."),
    row("run.search.high", "Highest load to try, above `low`."),
    row("run.search.probes", "Points to spend."),
    row("run.compare", "Compares all variants with one of them. Only `load`."),
    row("run.compare.with", "Variant that the others are compared with. What it serves sets the load."),
    row(
        "run.compare.at",
        "Load as a share of what that variant serves (simulated: of its saturation). A native run takes the highest of its loads up to it.",
    ),
    row(
        "run.equal_cores",
        "Whether each offloaded variant also runs with as many cores as the `onhost` variant and its agent have together, unless it has so many. Only `load`.",
    )
    .default("true"),
    row("host", "The host's side; variants may differ from it."),
    row("host.cores", "Worker cores of an enclave."),
    row("host.max_threads", "Threads that an enclave can hold, no fewer than `host.cores`."),
    row("host.prestage", "Decisions left in a core's queue before it asks (Wave 5.4)."),
    row("host.spin_us", "Time for which an idle core spins before it parks."),
    row(
        "host.machine",
        "Costs of a simulated host: a file of hosts/sim/machines by its name, or a path to a `.toml` file, relative to the \
         scenario.",
    )
    .default("\"user\""),
    row(
        "host.threads",
        "User-level threads, preempted at safe points; or a pthread each, preempted anywhere. Only `user` is simulated.",
    )
    .default("\"user\""),
    row("variant", "Each is a curve or row of the results: at least one, and at least two with `ladder`.").required(),
    VARIANT_NAME,
    row(
        "variant.placement",
        "`linux`: plain threads under the kernel's scheduler, with no field below but `cores`, and not with `crash`, \
         `enclaves` and `chaos`; `onhost`: an agent on one of the host's cores; `offload`: an agent on a core of its own.",
    ),
    row("variant.policy", "Policy of the agent, one of `wave policies`. Every agent needs one.").default("none"),
    row(
        "variant.link",
        "`shm`; `model:NAME`, a cost file of links/costs; or `model:PATH.toml`, relative to the scenario. `onhost` has `shm`.",
    )
    .default("\"shm\""),
    row("variant.messages", "How the queues from host to agent are reached (Wave 5.3). Only over a modelled link."),
    row("variant.messages.transport", "Loads and stores; or copies by DMA, waited for or polled.")
        .default("\"mmio\""),
    row("variant.messages.home", "Side in whose memory the entries are; with DMA the reader's.")
        .default("\"nic\""),
    row("variant.messages.host", "Mapping of that memory by the host; with DMA `write-back`.")
        .default("`write-back` over a coherent link, else `write-combining`"),
    row("variant.messages.agent", "Mapping of that memory by the agent; with DMA `write-back`.")
        .default("\"write-back\""),
    row("variant.decisions", "How the queues from agent to host are reached (Wave 5.3). Only over a modelled link."),
    row("variant.decisions.transport", "Loads and stores; or copies by DMA, waited for or polled.")
        .default("\"mmio\""),
    row("variant.decisions.home", "Side in whose memory the entries are; with DMA the reader's.")
        .default("\"nic\""),
    row("variant.decisions.host", "Mapping of that memory by the host; with DMA `write-back`.")
        .default("`write-back` over a coherent link, else `write-through`"),
    row("variant.decisions.agent", "Mapping of that memory by the agent; with DMA `write-back`.")
        .default("\"write-back\""),
    row("variant.cores", "`host.cores` of this variant, `host.max_threads` at most.")
        .default("`host.cores`")
        .range("1 to 240"),
    row("variant.prestage", "`host.prestage` of this variant.").default("`host.prestage`"),
    row("variant.prefetch", "Whether the host asks for the line of its next decision before it needs it (Wave 5.4).")
        .default("true"),
    row("variant.agent_ghz", "Clock rate of the agent's core in GHz. Only with `--host sim`.")
        .default("the machine's")
        .range("0.1 to 10"),
    row("variant.threads", "`host.threads` of this variant.").default("`host.threads`"),
    row("crash", "Kills of agents. Only `crash`, which needs it."),
    row("crash.kills", "Agents to kill for each variant."),
    row("crash.every_ms", "Time between two kills; all together a day at most."),
    row("crash.load_per_second", "Load during the kills."),
    row("enclaves", "Only `enclaves`."),
    row("enclaves.count", "Enclaves, each with cores and an agent."),
    row("chaos", "Only `chaos`."),
    row("chaos.threads", "Threads of a variant."),
];

pub(super) const MEMORY: &[Row] = &[
    NAME,
    DESCRIPTION,
    KIND,
    row("workload", "Database and GETs."),
    row("workload.keys", "Keys in the database."),
    row("workload.value_bytes", "Size of a value."),
    row("workload.block_bytes", "Size of RocksDB's blocks."),
    row("workload.cache", "Size of RocksDB's cache, which must hold all blocks.")
        .default("\"3GiB\""),
    row("workload.service_us", "CPU time of a GET, calibrated."),
    row("workload.gets_per_second", "GETs, which arrive at random."),
    row("workload.hot_keys", "Share of the keys, the first in order, that are hot."),
    row("workload.hot_gets", "Share of the GETs that go to hot keys."),
    row("workload.map_every_us", "Interval at which a probe maps, touches and unmaps memory."),
    row("run", "Lengths of a variant's run."),
    row("run.seconds", "Length of a variant's run, warm-up included."),
    row("run.warmup_seconds", "First part of it, which is not counted.")
        .default("the lesser of 120 and half of `run.seconds`")
        .range("0 to `run.seconds` - 1"),
    SEED,
    row("memory", "Swap, and limits of the host."),
    row("memory.swap", "Size of the swap that is set up for the run.")
        .default("1.25 times `workload.cache`"),
    row("memory.swap_on", "Place of that swap: compressed memory, or a file.")
        .default("`zram`, or `file` where the kernel has no zram"),
    row(
        "memory.slowdown_percent",
        "Nothing is paged out while refaults cost the program more than this share of the time.",
    ),
    row(
        "memory.refaults_percent",
        "Nothing is paged out while more pages come back in a minute, in percent of the resident ones.",
    )
    .default("none: no such limit")
    .range("0 to 100"),
    row(
        "memory.pressure_percent",
        "Nothing is paged out while some task waits for memory for more than this share of the time.",
    ),
    row("variant", "Runs to compare. The first has no policy; every other has one."),
    VARIANT_NAME,
    row("variant.policy", "Policy of the memory's agent, one of `wave policies`.")
        .default("none: memory is not managed"),
    row("variant.slowdown_percent", "`memory.slowdown_percent` of this variant.")
        .default("`memory.slowdown_percent`"),
    row("variant.refaults_percent", "`memory.refaults_percent` of this variant.")
        .default("`memory.refaults_percent`")
        .range("0 to 100"),
];

pub(super) const RPC: &[Row] = &[
    NAME,
    DESCRIPTION,
    KIND,
    row("workload", "Database and calls."),
    row("workload.keys", "Keys in the database."),
    row("workload.value_bytes", "Size of a value."),
    row("workload.get_us", "CPU time of a GET, calibrated."),
    row("workload.range_us", "CPU time of a RANGE, calibrated."),
    row("workload.range_percent", "Share of RANGEs among the calls."),
    row("workload.range_pairs", "Pairs of key and value in a RANGE's reply."),
    row("workload.get_slo_us", "SLO that a GET's request states."),
    row("workload.range_slo_us", "SLO that a RANGE's request states."),
    row("workload.connections", "TCP connections of the clients."),
    row("run", "Lengths and loads of points."),
    SECONDS,
    WARMUP,
    SEED,
    row(
        "run.rounds",
        "Rounds in which every variant runs each load once, in random order. 0, or at least 6. `run.seconds` is the length of one trial, \
         but with 0 that of a point, which is divided among 20 rounds.",
    ),
    LOADS,
    row("run.compare_at", "One of `run.loads_per_second`, at which the table compares all variants.")
        .default("the lowest load")
        .range("one of `run.loads_per_second`"),
    row("run.refine", "Further loads for each variant, near its saturation, on a simulated host."),
    row("run.get_p99_us", "Limit on a GET's p99 that defines saturation."),
    row("host", "The host's side."),
    row("host.cores", "Cores of the host."),
    row("host.threads", "Workers that are threads, where a policy schedules them."),
    row("variant", "Placements to compare, at least one."),
    VARIANT_NAME,
    row(
        "variant.placement",
        "`offload-all`: RPC stack and scheduler in one agent beside the host; `onhost-all`: that agent on one of the host's \
         cores; `onhost-scheduler`: an agent with the stack beside the host, one with the scheduler on a core of the host; \
         `sidecar`: an agent with the stack on a core of the host, and no scheduler; `tonic`: no agent.",
    ),
    row("variant.policy", "Policy of the scheduler, one of `wave policies`. `sidecar` and `tonic` have none.").default("none"),
    row("variant.steer", "Steering of calls to workers, one of `wave policies`. `tonic` has none.")
        .default("`jbsq:k=1`; with `sidecar` `jbsq:k=2`"),
    row(
        "variant.link",
        "`shm`; `model:NAME`, a cost file of links/costs; or `model:PATH.toml`, relative to the scenario. Only \
         `offload-all` and `onhost-scheduler` have another than `shm`.",
    )
    .default("\"shm\""),
    row(
        "variant.stack_cores",
        "Cores of the RPC stack. Only with `--host sim`; not with `sidecar` and `tonic`.",
    )
    .default("the paper's")
    .range("1 to 240"),
    row(
        "variant.agent_ghz",
        "Clock rate, in GHz, of the agent's cores, which also run the stack. Only with `--host sim` and the placements `offload-all` \
         and `onhost-all`.",
    )
    .default("the paper's")
    .range("0.1 to 10"),
];

pub(super) const UDP: &[Row] = &[
    NAME,
    DESCRIPTION,
    KIND,
    row("workload", "Requests and their clients."),
    row("workload.work_us", "Work of each request."),
    row("workload.sockets", "Sockets of the clients."),
    row("workload.under_way", "Requests in flight on each socket."),
    row("run", "Measurements."),
    row("run.seconds", "Length of one measurement."),
    row(
        "run.rounds",
        "Rounds in which each value is measured once, in random order. Fewer than 6 give no interval.",
    ),
    row(
        "run.outstanding",
        "Outstanding requests per worker: values in ascending order, 64 at most.",
    ),
    row("host", "The host's side."),
    row("host.workers", "Worker cores."),
    row("host.link", LINK).default("\"shm\""),
];

pub(super) const UDP_PREEMPTION: &[Row] = &[
    NAME,
    DESCRIPTION,
    KIND,
    row("workload", "Requests and their clients."),
    row("workload.short_us", "Work of a short request."),
    row("workload.long_us", "Work of a long request, more than that of a short one."),
    row("workload.long_percent", "Share of the long requests."),
    row("workload.sockets", "Sockets of the clients."),
    row("run", "Lengths and loads of points."),
    SECONDS,
    WARMUP,
    row("run.seed", "Seed of arrivals and classes."),
    LOADS,
    row(
        "run.rounds",
        "Rounds in which both systems run each load once, in random order. Fewer than 6 give no interval.",
    ),
    row("host", "The host's side."),
    row("host.cores", "Worker cores."),
    row("host.threads", "Threads that serve requests."),
    row(
        "host.outstanding",
        "Maximum number of requests that a core holds, the running one included.",
    ),
    row("host.slice_us", "Length of a slice with preemption."),
    row("host.link", LINK).default("\"shm\""),
];

pub(super) const UDP_FEEDBACK: &[Row] = &[
    NAME,
    DESCRIPTION,
    KIND,
    row("workload", "Requests and their clients."),
    row("workload.work_us", "Work of each request."),
    row("workload.sockets", "Sockets of each kind of sender."),
    row("run", "Lengths and loads of measurements."),
    row("run.seconds", "Length of one measurement, warm-up included."),
    WARMUP,
    row("run.seed", "Seed of arrivals."),
    row(
        "run.loads",
        "Loads to offer as multiples of the capacity, in ascending order, 32 at most.",
    ),
    row(
        "run.rounds",
        "Rounds in which both kinds of sender run each load once, in random order. Fewer than 6 give no interval.",
    ),
    row("run.limit_us", "Time from due to reply within which a reply counts as goodput."),
    row("run.queue_target", "Open requests at the host at which the windows aim."),
    row("host", "The host's side."),
    row("host.workers", "Worker cores."),
    row("host.outstanding", "Maximum number of requests that each worker holds."),
    row("host.link", LINK).default("\"shm\""),
];
