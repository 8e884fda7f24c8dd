use std::path::{Path, PathBuf};

use wave_scenario::{ScenarioError, Source, kind_of};

use super::*;
use crate::ground::fields::Trials;
use crate::kinds::requests::NAMES;
use crate::sweep::axes::parse_sweep;

const POLICIES: &[&str] = &["fifo", "shinjuku"];

const GOOD: &str = r#"name = "good"
kind = "load"
[run]
loads_per_second = [1000, 2000]
[[variant]]
name = "a"
placement = "offload"
policy = "fifo"
link = "model:mount-evans"
"#;

fn parse_text(text: &str) -> Result<Scenario, ScenarioError> {
    read(&Source::new(Path::new("scenarios/x.toml"), text), POLICIES)
}

fn message(text: &str) -> String {
    parse_text(text).expect_err("the scenario is refused").to_string()
}

/// The error message of GOOD with `from` replaced.
fn message_with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from} is not in the valid scenario");
    message(&GOOD.replacen(from, to, 1))
}

fn scenarios() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let entries = std::fs::read_dir(directory).expect("scenarios/ exists");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files
}

#[test]
fn shipped_scenarios_are_accepted_and_named_after_their_files() {
    let files = scenarios();
    assert!(files.len() >= 4, "only {} scenarios", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file that was listed");
        let named = |name: &str, description: &str| {
            assert_eq!(Some(name), file.file_stem().and_then(|stem| stem.to_str()));
            assert!(!description.is_empty(), "{} has no description", file.display());
        };
        if kind_of(&file, &text, NAMES).is_err() {
            continue; // A test of all kinds reads those.
        }
        // A file with a [sweep] is many scenarios; of the others, each is exactly one.
        let shipped = wave_sched::policies::NAMES;
        let read = |text: &str| read(&Source::new(&file, text), shipped);
        let sweep = parse_sweep(&file, &text, &read).unwrap_or_else(|error| panic!("{error}"));
        let scenario = &sweep.expansions[0].scenario;
        named(&scenario.name, &scenario.description);
    }
}

#[test]
fn demonstration_takes_less_than_a_minute() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/rocksdb-fifo.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let scenario = read(&Source::new(&file, &text), POLICIES).unwrap();
    let loads = &scenario.run.loads_per_second;
    let turns = loads.len() * scenario.variants.len() * scenario.run.rounds as usize;
    assert!(scenario.run.seconds * turns as f64 <= 45.0 && scenario.run.rounds >= 20);
}

#[test]
fn native_rounds_share_a_point_unless_the_file_says_otherwise() {
    let trials = |run: &str| {
        let text = GOOD.replace("[[variant]]", &format!("{run}\n[[variant]]"));
        let Trials { rounds, warmup_seconds, measured_seconds } =
            parse_text(&text).unwrap().run.trials();
        (rounds, warmup_seconds, measured_seconds)
    };
    assert_eq!(trials("seconds = 2.5\nwarmup_seconds = 0.5"), (20, 0.025, 0.1));
    // No trial is too short for a p99.
    assert_eq!(trials("seconds = 0.2\nwarmup_seconds = 0.1"), (20, 0.015, 0.05));
    assert_eq!(trials("rounds = 8\nseconds = 0.5\nwarmup_seconds = 0.25"), (8, 0.25, 0.25));
}

#[test]
fn native_loads_of_a_search_are_as_many_as_its_probes() {
    let search = "search = { low = 1_000, high = 8_000, probes = 4 }";
    let run = parse_text(&GOOD.replace("loads_per_second = [1000, 2000]", search)).unwrap().run;
    let loads: Vec<f64> = run.loads().into_iter().map(f64::round).collect();
    assert_eq!(loads, [1_000.0, 2_000.0, 4_000.0, 8_000.0]);
}

#[test]
fn missing_fields_have_defaults() {
    let scenario = parse_text(GOOD).unwrap();
    assert_eq!(
        scenario.workload.classes,
        [Class {
            name: "GET".into(),
            weight: 1.0,
            service_us: Some(10.0),
            operation: Operation::Get
        }]
    );
    assert_eq!(scenario.run.seconds, 1.5);
    assert_eq!(scenario.run.loads_per_second, [1000.0, 2000.0]);
    let agent = scenario.variants[0].agent().unwrap();
    assert_eq!(agent.link, Link::Builtin("mount-evans".into()));
    assert_eq!(agent.messages.host, Mapping::WriteCombining);
    assert_eq!(agent.decisions.host, Mapping::WriteThrough);
    assert_eq!((agent.prestage, agent.prefetch), (2, true));
}

#[test]
fn class_is_a_get_or_a_range() {
    let classes = "[workload]\nclasses = [{ name = \"GET\", weight = 1 }, \
                   { name = \"R\", weight = 1, operation = \"range\" }]\n[run]\n";
    let scenario = parse_text(&GOOD.replace("[run]\n", classes)).unwrap();
    let operations: Vec<_> =
        scenario.workload.classes.iter().map(|class| class.operation).collect();
    assert_eq!(operations, [Operation::Get, Operation::Range]);
}

#[test]
fn comparison_load_defaults_to_four_fifths_of_saturation() {
    let compare = |text: &str| {
        parse_text(&GOOD.replace("[[variant]]", &format!("{text}\n[[variant]]")))
            .unwrap()
            .run
            .compare
    };
    assert_eq!(compare(""), None);
    let at = |at| Some(Compare { with: "a".into(), at });
    assert_eq!(compare("compare = { with = \"a\" }"), at(0.8));
    assert_eq!(compare("compare = { with = \"a\", at = 0.5 }"), at(0.5));
}

#[test]
fn variant_overrides_the_host_section() {
    let text = GOOD.replace("[[variant]]", "[host]\nprestage = 5\ncores = 3\n[[variant]]")
        + "prestage = 7\ncores = 2\n";
    let scenario = parse_text(&text).unwrap();
    assert_eq!(scenario.variants[0].agent().unwrap().prestage, 7);
    assert_eq!(scenario.variants[0].host.cores, 2);
}

#[test]
fn link_model_path_is_relative_to_the_scenario() {
    let scenario = parse_text(&GOOD.replace("model:mount-evans", "model:links/mine.toml")).unwrap();
    assert_eq!(
        scenario.variants[0].agent().unwrap().link,
        Link::File("scenarios/links/mine.toml".into())
    );
}

#[test]
fn copied_queues_are_in_their_readers_memory() {
    let scenario =
        parse_text(&(GOOD.to_owned() + "decisions = { transport = \"dma-async\" }\n")).unwrap();
    let decisions = scenario.variants[0].agent().unwrap().decisions;
    assert_eq!((decisions.home, decisions.host), (Home::Host, Mapping::WriteBack));
    let refused =
        message(&(GOOD.to_owned() + "decisions = { transport = \"dma-async\", home = \"nic\" }\n"));
    assert_eq!(
        refused,
        "scenarios/x.toml:10: `variant.decisions`: copied decisions are in the memory of the side that reads them, \
         expected home = \"host\""
    );
}

#[test]
fn crash_runs_as_long_as_its_kills() {
    let text = "name = \"c\"\nkind = \"crash\"\n[crash]\nkills = 10\nevery_ms = 200\nload_per_second = 500\n\
                [[variant]]\nname = \"a\"\nplacement = \"onhost\"\npolicy = \"fifo\"\n";
    let run = parse_text(text).unwrap().run;
    assert_eq!(run.loads_per_second, [500.0]);
    assert!((run.seconds - run.warmup_seconds - 2.0).abs() < 1e-9);
}

#[test]
fn wrong_form_is_refused_with_line_field_and_allowed_values() {
    assert_eq!(
        message_with("policy = ", "polcy = "),
        "scenarios/x.toml:8: unknown field `polcy`, expected one of `name`, `placement`, `policy`, `link`, \
         `messages`, `decisions`, `cores`, `prestage`, `prefetch`, `agent_ghz`, `threads`"
    );
    assert_eq!(
        message_with("[run]\n", "[run]\nseed = \"one\"\n"),
        "scenarios/x.toml:4: `run.seed`: invalid type: string \"one\", expected a whole number, 0 or more"
    );
    assert_eq!(
        message_with("[run]\n", "[run]\nseconds = \"long\"\n"),
        "scenarios/x.toml:4: `run.seconds`: invalid type: string \"long\", expected a number"
    );
    assert_eq!(
        message_with("\"offload\"", "\"offloaded\""),
        "scenarios/x.toml:7: `variant[0].placement`: unknown variant `offloaded`, \
         expected one of `linux`, `onhost`, `offload`"
    );
    assert_eq!(
        message_with("name = \"a\"\n", ""),
        "scenarios/x.toml:5: `variant[0]`: missing field `name`"
    );
    assert_eq!(message_with("kind = \"load\"\n", ""), "scenarios/x.toml:1: missing field `kind`");
    assert_eq!(
        message_with("[[variant]]", "[host]\ncores = -1\n[[variant]]"),
        "scenarios/x.toml:6: `host.cores`: invalid value: integer `-1`, expected a whole number, 0 or more"
    );
    assert_eq!(
        message_with("policy = \"fifo\"", "messages = { home = \"nick\" }"),
        "scenarios/x.toml:8: `variant[0].messages.home`: unknown variant `nick`, expected `nic` or `host`"
    );
    assert_eq!(
        message_with("[1000, 2000]", "[1000, \"many\"]"),
        "scenarios/x.toml:4: `run.loads_per_second[1]`: invalid type: string \"many\", expected a number"
    );
    assert!(message_with("kind = \"load\"", "kind = ").starts_with("scenarios/x.toml:2: "));
}

#[test]
fn wrong_meaning_is_refused_with_line_field_and_allowed_values() {
    let cases = [
        (
            message_with("\"good\"", "\"Not/Good\""),
            "1: `name`: \"Not/Good\", expected lowercase letters, digits and single hyphens",
        ),
        (
            message_with("loads_per_second = [1000, 2000]\n", ""),
            "3: [run] needs `loads_per_second` or a table [run.search]",
        ),
        (
            message_with("[[variant]]", "[run.search]\nlow = 1\nhigh = 2\n[[variant]]"),
            "5: [run] has both `loads_per_second` and [run.search], expected one of them",
        ),
        (
            message_with("[1000, 2000]", "[\n  1000,\n  3000,\n  2000,\n]"),
            "7: `run.loads_per_second` has 2000 after 3000, expected ascending values",
        ),
        (
            message_with("[1000, 2000]", "[]"),
            "4: `run.loads_per_second` is empty, expected at least one value",
        ),
        (
            message_with("[1000, 2000]", "[0]"),
            "4: `run.loads_per_second` is 0, expected 0.001 to 100000000",
        ),
        (
            message_with("[run]", "[run]\nseconds = 1\nwarmup_seconds = 1"),
            "5: `run.warmup_seconds` is 1, expected less than `run.seconds`, which is 1",
        ),
        (
            message_with("loads_per_second = [1000, 2000]", "search = { low = 5, high = 4 }"),
            "4: `run.search.high` is 4, expected more than `run.search.low`, which is 5",
        ),
        (
            message_with("[[variant]]", "[host]\ncores = 0\n[[variant]]"),
            "6: `host.cores` is 0, expected 1 to 240",
        ),
        (
            message_with("[[variant]]", "[host]\nprestage = 65\n[[variant]]"),
            "6: `host.prestage` is 65, expected 0 to 64",
        ),
        (
            message_with("[[variant]]", "[host]\ncores = 8\nmax_threads = 4\n[[variant]]"),
            "7: `host.max_threads` is 4, expected at least `host.cores`, which is 8",
        ),
        (
            message_with("\"fifo\"", "\"fofi\""),
            "8: `variant.policy` is \"fofi\", expected one of `fifo`, `shinjuku`",
        ),
        (
            message_with("policy = \"fifo\"\n", ""),
            "7: `variant.policy` is missing, expected one of `fifo`, `shinjuku`",
        ),
        (
            message_with("model:mount-evans", "pcie"),
            "9: `variant[0].link`: \"pcie\", expected one of `shm`, `model:mount-evans`, `model:coherent`, `model:on-host`, `model:stingray`, `model:ideal`, `model:shinjuku`, \
             `model:` and a path to a .toml file",
        ),
        (
            message_with("\"offload\"", "\"onhost\""),
            "9: `variant.link` is \"model:mount-evans\", expected shm: placement = \"onhost\" shares the host's memory",
        ),
        (
            message_with("\"offload\"\npolicy = \"fifo\"", "\"linux\""),
            "8: `variant.link` has no meaning with placement = \"linux\", which has no agent",
        ),
        (
            message_with(
                "\"fifo\"",
                "\"fifo\"\ndecisions = { home = \"nic\", host = \"write-back\" }",
            ),
            "9: `variant.decisions`: host = \"write-back\" with home = \"nic\" would be incoherent over \
             model:mount-evans, expected uncached, write-combining or write-through",
        ),
        (
            message_with("\"fifo\"", "\"fifo\"\ndecisions = { home = \"host\" }"),
            "9: `variant.decisions`: transport = \"mmio\" with home = \"host\" cannot be over model:mount-evans, \
             whose card reaches the host's memory by dma-sync or dma-async",
        ),
        (
            message_with("model:mount-evans\"", "shm\"\nmessages = { home = \"nic\" }"),
            "10: `variant.messages` has no meaning over shm, where memory is shared and write-back",
        ),
        (
            message_with(
                "[[variant]]",
                "[[variant]]\nname = \"A!\"\nplacement = \"linux\"\n[[variant]]",
            ),
            "9: `variant.name` is \"a\", whose file of results would be `a`, as another variant's; expected another name",
        ),
        (
            message_with("[[variant]]", "[crash]\nload_per_second = 1\n[[variant]]"),
            "5: [crash] has a meaning only with kind = \"crash\"",
        ),
        (
            message_with("\"load\"", "\"crash\""),
            "2: kind = \"crash\" needs a table [crash] with `load_per_second`",
        ),
        (
            message(
                "name = \"x\"\nkind = \"ladder\"\nrun.loads_per_second = [1, 2]\n\
                 [[variant]]\nname = \"a\"\nplacement = \"linux\"\n",
            ),
            "3: kind = \"ladder\" needs one load in `run.loads_per_second`, above every variant's capacity: \
             a ladder compares throughputs under overload, and takes no [run.search]",
        ),
        (
            message(
                "name = \"x\"\nkind = \"ladder\"\nrun.loads_per_second = [1]\nrun.rounds = 0\n\
                 [[variant]]\nname = \"a\"\nplacement = \"linux\"\n",
            ),
            "4: `run.rounds` is 0, expected 6 or more: fewer rounds give no interval",
        ),
        (
            message_with("[run]", "[workload]\nclasses = [{ name = \"GET\", weight = -1 }]\n[run]"),
            "4: `workload.classes.weight` is -1, expected 0.000000001 to 1000000000",
        ),
        (
            message_with("[run]", "[host]\nmachine = \"ghos\"\n[run]"),
            "4: `host.machine` is \"ghos\", expected one of `ghost`, `ghost-on-host`, `user`, `shinjuku`, \
             `shinjuku-offload`, `shinjuku-ideal`, or a path to a .toml file",
        ),
        (
            message_with("[[variant]]", "refine = 17\n[[variant]]"),
            "5: `run.refine` is 17, expected 0 to 16",
        ),
        (
            message(
                "name = \"x\"\nkind = \"enclaves\"\nrun.loads_per_second = [1]\nrun.refine = 2\n\
                 [[variant]]\nname = \"a\"\nplacement = \"offload\"\npolicy = \"fifo\"\n",
            ),
            "4: `run.refine` has a meaning only with kind = \"load\" and `loads_per_second`",
        ),
        (
            message_with("[[variant]]", "rounds = 3\n[[variant]]"),
            "5: `run.rounds` is 3, expected 0, or 6 or more: fewer rounds give no interval",
        ),
        (
            message_with("[[variant]]", "compare = { with = \"b\" }\n[[variant]]"),
            "5: `run.compare.with` is \"b\", expected the name of a variant",
        ),
        (
            message_with("[[variant]]", "compare = { with = \"a\", at = 80 }\n[[variant]]"),
            "5: `run.compare.at` is 80, expected 0.01 to 1",
        ),
        (
            message(
                "name = \"x\"\nkind = \"enclaves\"\nrun.loads_per_second = [1]\nrun.compare.with = \"a\"\n\
                 [[variant]]\nname = \"a\"\nplacement = \"offload\"\npolicy = \"fifo\"\n",
            ),
            "4: `run.compare` has a meaning only with kind = \"load\"",
        ),
        (
            message("name = \"x\"\nkind = \"load\"\nrun.loads_per_second = [1]\n"),
            "2: 0 [[variant]], expected at least 1",
        ),
    ];
    for (message, expected) in cases {
        assert_eq!(message, format!("scenarios/x.toml:{expected}"));
    }
}

#[test]
fn machine_is_a_name_or_a_file_relative_to_the_scenario() {
    let machine = |text: &str| parse_text(text).unwrap().machine;
    assert_eq!(machine(GOOD), Machine::Builtin("user".into()));
    let with = |name| GOOD.replace("[run]", &format!("[host]\nmachine = \"{name}\"\n[run]"));
    assert_eq!(machine(&with("ghost")), Machine::Builtin("ghost".into()));
    assert_eq!(machine(&with("mine.toml")), Machine::File("scenarios/mine.toml".into()));
}

#[test]
fn absurd_values_are_refused_with_line_and_allowed_values() {
    let run = |line: &str| message_with("loads_per_second = [1000, 2000]", line);
    let host = |line: &str| message_with("[[variant]]", &format!("[host]\n{line}\n[[variant]]"));
    let workload = |line: &str| message_with("[run]", &format!("[workload]\n{line}\n[run]"));
    let crash = |lines: &str| {
        message(&format!(
            "name = \"c\"\nkind = \"crash\"\n[crash]\n{lines}\n[[variant]]\nname = \"a\"\n\
             placement = \"offload\"\npolicy = \"fifo\"\n"
        ))
    };
    let chaos = "name = \"c\"\nkind = \"chaos\"\n[[variant]]\nname = \"a\"\nplacement = \"offload\"\npolicy = \"fifo\"\n";
    let enclaves = chaos.replace("chaos\"", "enclaves\"\nrun.search = { low = 1, high = 2 }");
    let rate = "expected 0.001 to 100000000";
    let many: Vec<String> = (1..=1001).map(|load| load.to_string()).collect();
    let long = "a".repeat(101);
    for (message, line, expected) in [
        (run("loads_per_second = [1e12]"), 4, &*format!("is 1000000000000, {rate}")),
        (run("loads_per_second = [1e300]"), 4, &format!("is 1{}..., {rate}", "0".repeat(23))),
        (run("loads_per_second = [1e-9]"), 4, &format!("is 0.000000001, {rate}")),
        (run("loads_per_second = [nan]"), 4, "is NaN, expected 0.001"),
        (run("search = { low = 1, high = 1e12 }"), 4, "`run.search.high` is 1000000000000"),
        (run("search = { low = 1e-9, high = 1 }"), 4, "`run.search.low` is 0.000000001"),
        (
            run(&format!("loads_per_second = [{}]", many.join(", "))),
            4,
            "has 1001 values, expected 1000",
        ),
        (run("loads_per_second = [1]\nseconds = 1e9"), 5, "expected 0.001 to 3600"),
        (run("loads_per_second = [1]\nseconds = 1e-9"), 5, "expected 0.001 to 3600"),
        (run("loads_per_second = [1]\nseconds = inf"), 5, "is inf, expected 0.001 to 3600"),
        (
            run("loads_per_second = [1e8]\nseconds = 100"),
            4,
            "1e10 requests in one point, expected 1e9",
        ),
        (
            run("search = { low = 1, high = 1e8 }\nseconds = 100"),
            4,
            "`run.search.high` is 100000000, for",
        ),
        (
            run("loads_per_second = [1]\nseconds = 1\nwarmup_seconds = 0.9999"),
            6,
            "expected less than",
        ),
        (host("cores = 241"), 6, "`host.cores` is 241, expected 1 to 240"),
        (workload("classes = [{ name = \"G\", weight = 1e308 }]"), 4, "to 1000000000"),
        (workload("classes = [{ name = \"G\", weight = 1e-320 }]"), 4, "to 1000000000"),
        (
            message_with("name = \"good\"", &format!("name = \"{long}\"")),
            1,
            "single hyphens, 100 at most",
        ),
        (
            message_with("name = \"a\"", &format!("name = \"{long}\"")),
            6,
            "has 101 bytes, expected 100",
        ),
        (crash("load_per_second = 1e12"), 4, rate),
        (crash("load_per_second = 1\nevery_ms = 0"), 5, "`crash.every_ms` is 0, expected 1"),
        (
            crash("load_per_second = 1\nkills = 100000\nevery_ms = 3600000"),
            5,
            "expected 86400 s at most",
        ),
        (crash("load_per_second = 1e8\nkills = 100"), 4, "requests in one point, expected 1e9"),
        (message(chaos), 2, "it needs a class with operation = \"range\""),
        (message(&enclaves), 3, "expected `run.loads_per_second`"),
    ] {
        assert!(message.starts_with(&format!("scenarios/x.toml:{line}: ")), "{message}");
        assert!(message.contains(expected), "{message} has no: {expected}");
    }
}
