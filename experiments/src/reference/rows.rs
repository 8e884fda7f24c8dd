//! Meanings of fields, and the examples that give defaults and ranges.

use wave_scenario::reference::{DESCRIPTION, KIND, NAME, Row, row};

pub(super) const BAKEOFF_EXAMPLE: &str = r#"name = "my-bakeoff"
kind = "memory-bakeoff"
seed = 1
warmup_seconds = 7
seconds = 3
swap = "512MiB"
slow = { warmup_seconds = 80, seconds = 48 }

[[program]]
name = "hot set"
pattern = "hot-set"
memory = "128MiB"
accesses_per_second = 40_000

[[wave]]
policy = "sol"
slow = true

[[damon]]
age_ms = 800
intervals_goal = { accesses_percent = 4, aggregations = 3, sample_us = [5_000, 1_000_000] }
stall_us_per_second = 1_000

[[mglru]]
age_ms = 800
generations = 2

[[reclaim]]
every_ms = 1_000
share_percent = 5
stall_percent = 1
"#;

pub(super) const ENCLAVE_EXAMPLE: &str = r#"[[enclave]]
name = "build"
cpus = "0"
command = ["make", "-j2"]

[[enclave]]
name = "server"
cpus = "1-2"
policy = "shinjuku:slice_us=2000"
pid = 1234
"#;

const SLOW: &str = "Whether the setting gets the times of `slow`.";

pub(super) const BAKEOFF: &[Row] = &[
    NAME,
    DESCRIPTION,
    KIND,
    row("seed", "Seed of every program's accesses.").range("any"),
    row("warmup_seconds", "Time from the start of a tool until its figures count.").range("0.1 to 3600"),
    row("seconds", "Time of measurement, after the warm-up.").range("0.1 to 3600"),
    row("slow", "Times of settings with `slow = true`."),
    row("slow.warmup_seconds", "`warmup_seconds` of slow settings.").range("0.1 to 3600"),
    row("slow.seconds", "`seconds` of slow settings, at least.").range("0.1 to 3600"),
    row("swap", "Size of the swap that is set up for the run, as `512MiB`."),
    row("swap_on", "Places of that swap, each once; everything is run with each.").default("[\"zram\"]"),
    row("program", "Programs whose memory is managed, at least one."),
    row("program.name", "Name in tables, distinct for each program."),
    row("program.pattern", "Accesses of the program (docs/guide/memory-bakeoff.md)."),
    row("program.judge", "Whether the program is a judge: no setting of ours was chosen in view of its results.")
        .default("false"),
    row("program.memory", "Size of its memory, as `128MiB`."),
    row("program.accesses_per_second", "Touches of pages; GETs of redis; lookups in Python's dict.")
        .range("1 to 100000000"),
    row("program.phase_seconds", "Length of a phase, for patterns that have phases.")
        .default("4.0")
        .range("0.1 to 3600"),
    row("program.seconds", "`seconds` of this program; whole phases.")
        .default("`seconds`")
        .range("0.1 to 3600"),
    row("wave", "Settings of our policies, at least one."),
    row("wave.policy", "Policy of the memory's agent, one of `wave policies`."),
    row("wave.limits", "Whether the host has its shipped limits on refaults and pressure, or none.").default("false"),
    row("wave.slow", SLOW).default("false"),
    row("damon", "Settings of DAMON's proactive reclaim, at least one."),
    row("damon.sample_us", "Sampling interval.").default("5000").range("above 0"),
    row("damon.aggregate_us", "Aggregation interval.").default("100000").range("`damon.sample_us` or more"),
    row("damon.update_us", "Interval between searches for new mappings.")
        .default("1000000")
        .range("`damon.sample_us` or more"),
    row("damon.regions", "Fewest and most regions.").default("[10, 1000]").range("3 or more"),
    row("damon.age_ms", "Age without accesses at which memory is paged out.").range("1 or more"),
    row("damon.accesses_max", "Accesses in an aggregation up to which a region counts as not accessed.")
        .default("0")
        .range("any"),
    row("damon.intervals_goal", "Makes DAMON tune its intervals."),
    row("damon.intervals_goal.accesses_percent", "Share of the observable accesses that DAMON should observe.")
        .range("0.01 to 100"),
    row("damon.intervals_goal.aggregations", "Aggregations over which that share is taken.").range("1 or more"),
    row("damon.intervals_goal.sample_us", "Shortest and longest sampling interval, with `damon.sample_us` between them.")
        .range("1 or more"),
    row(
        "damon.stall_us_per_second",
        "Makes DAMON page out, oldest first, until some task stalls on memory for this long in a second.",
    )
    .default("none")
    .range("1 to 1000000"),
    row("damon.slow", SLOW).default("false"),
    row("mglru", "Settings of MGLRU's aging and eviction, at least one."),
    row("mglru.age_ms", "Interval at which a generation begins.").range("1 or more"),
    row("mglru.generations", "Generations after which memory is evicted.").range("2 to 3"),
    row("mglru.slow", SLOW).default("false"),
    row("reclaim", "Settings of reclaim by a cgroup's `memory.reclaim`, at least one."),
    row("reclaim.every_ms", "Interval of reclaiming.").range("1 or more"),
    row("reclaim.share_percent", "Share of the group's memory reclaimed each time, without stalls.")
        .range("above 0, 100 at most"),
    row("reclaim.stall_percent", "Share of stalled time at which nothing is reclaimed.")
        .range("above 0, 100 at most"),
    row("reclaim.slow", SLOW).default("false"),
];

pub(super) const ENCLAVES: &[Row] = &[
    row("enclave", "Enclaves, each with one of `command`, `pid` and `cgroup`."),
    row("enclave.name", "Name in results: letters, digits, `-` and `_`, distinct for each enclave."),
    row("enclave.cpus", "CPUs of its threads, as `0-3,8`."),
    row("enclave.policy", "Policy of its agent, one of `wave policies`.").default("\"fifo\""),
    row(
        "enclave.patience_ms",
        "Time for which a thread may wait while a core is idle before the host turns the agent out.",
    )
    .default("20")
    .range("1 to 60000"),
    row("enclave.command", "Program to start, with its arguments.").default("none"),
    row("enclave.pid", "Running process to schedule, with its children.")
        .default("none")
        .range("above 0"),
    row("enclave.cgroup", "Folder of a cgroup (v2) whose processes to schedule.").default("none"),
];
