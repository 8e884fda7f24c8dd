use proptest::prelude::*;

use super::*;
use crate::kinds::requests::scenario::{Scenario, Transport, read};
use wave_scenario::Source;

const BASE: &str = r#"name = "cores"
kind = "load"
[run]
loads_per_second = [1000, 2000]
[host]
max_threads = 64
[[variant]]
name = "Linux"
placement = "linux"
[[variant]]
name = "offload, PCIe-like"
placement = "offload"
policy = "fifo"
link = "model:mount-evans"
"#;

/// Number of lines of [`BASE`], including the line of `[sweep]`.
const BEFORE: usize = 15;

fn sweep_of(text: &str) -> Result<Sweep<Scenario>, ScenarioError> {
    let path = Path::new("scenarios/x.toml");
    parse_sweep(path, text, &|text| read(&Source::new(path, text), &["fifo", "shinjuku"]))
}

/// [`BASE`] with `axes` in its sweep.
fn sweep(axes: &str) -> Result<Sweep<Scenario>, ScenarioError> {
    sweep_of(&format!("{BASE}[sweep]\n{axes}"))
}

fn message(axes: &str) -> String {
    sweep(axes).expect_err("the sweep is refused").to_string()
}

/// Paths that a property test varies, each with a getter of its field in a scenario.
type Field = (&'static str, fn(&Scenario) -> u64);
const FIELDS: [Field; 5] = [
    ("run.seed", |scenario| scenario.run.seed),
    ("host.cores", |scenario| scenario.variants[0].host.cores.into()),
    ("workload.keys", |scenario| scenario.workload.keys),
    ("host.spin_us", |scenario| scenario.variants[1].host.spin_us),
    ("variant[offload, PCIe-like].prestage", |scenario| {
        scenario.variants[1].agent().unwrap().prestage.into()
    }),
];

proptest! {
    #[test]
    fn every_combination_occurs_once_in_file_order(
        lists in prop::collection::vec(
            prop::collection::btree_set(1u64..60, 1..4).prop_map(Vec::from_iter).prop_shuffle(), 1..4),
        order in Just((0..FIELDS.len()).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let fields: Vec<Field> = order.iter().map(|index| FIELDS[*index]).collect();
        let axes: String =
            lists.iter().zip(&fields).map(|(list, (path, _))| format!("\"{path}\" = {list:?}\n")).collect();
        let sweep = sweep(&axes).unwrap();
        let paths: Vec<&str> = sweep.axes.iter().map(|axis| axis.path.as_str()).collect();
        prop_assert_eq!(paths, fields[..lists.len()].iter().map(|field| field.0).collect::<Vec<_>>());
        // Nested loops over the lists, the last innermost.
        let mut expected: Vec<Vec<u64>> = vec![vec![]];
        for list in &lists {
            expected = expected.iter()
                .flat_map(|head| list.iter().map(move |value| [head.as_slice(), &[*value]].concat()))
                .collect();
        }
        let found: Vec<Vec<u64>> = sweep.expansions.iter()
            .map(|each| fields[..lists.len()].iter().map(|(_, of)| of(&each.scenario)).collect())
            .collect();
        prop_assert_eq!(&found, &expected);
        for (each, values) in sweep.expansions.iter().zip(expected) {
            let told: Vec<u64> = each.at.iter().zip(&lists).map(|(at, list)| list[*at]).collect();
            prop_assert_eq!(told, values);
        }
    }
}

#[test]
fn file_without_a_sweep_is_one_scenario() {
    let sweep = sweep_of(BASE).unwrap();
    assert_eq!((sweep.axes.len(), sweep.expansions.len()), (0, 1));
    assert_eq!(sweep.expansions[0].scenario.variants.len(), 2);
}

#[test]
fn value_is_put_at_its_path() {
    let text = BASE.replace("\n[run]", "\nworkload.classes = [{ name = \"GET\", weight = 1 }, { name = \"RANGE\", weight = 1 }]\n[run]")
        + "[sweep]\n\"workload.classes[RANGE].weight\" = [0.5]\nhost.cores = [3]\n\"variant.cores\" = [2]\n\
           \"run.loads_per_second\" = [[7, 8]]\n\"variant[offload, PCIe-like].decisions\" = [{ transport = \"dma-sync\" }]\n";
    let sweep = sweep_of(&text).unwrap();
    let scenario = &sweep.expansions[0].scenario;
    let weights: Vec<f64> = scenario.workload.classes.iter().map(|class| class.weight).collect();
    assert_eq!(weights, [1.0, 0.5]);
    assert!(scenario.variants.iter().all(|variant| variant.host.cores == 2));
    assert_eq!(scenario.run.loads_per_second, [7.0, 8.0]);
    // Without quotes it is a table in a table, with the same path.
    assert_eq!(sweep.axes[1].path, "host.cores");
    let decisions = scenario.variants[1].agent().unwrap().decisions;
    assert_eq!(decisions.transport, Transport::DmaSync);
}

#[test]
fn bad_axis_is_refused_with_its_name_and_the_allowed_values() {
    let cases = [
        (
            "",
            0,
            "[sweep] is empty: a sweep over nothing, expected lists of values, as `\"host.cores\" = [1, 2]`",
        ),
        (
            "\"run.seed\" = [1]\n\"host.cores\" = []",
            2,
            "[sweep] \"host.cores\" is []: a sweep over nothing, expected at least one value",
        ),
        (
            "\"host.cores\" = 16",
            1,
            "[sweep] \"host.cores\" is 16, expected a list of values, as [16]",
        ),
        (
            "\"host.cores\" = [1, 2, 1]",
            1,
            "[sweep] \"host.cores\" has 1 twice, expected each value once",
        ),
        (
            "\"run.seed\" = [1]\n\"host.coers\" = [1]",
            2,
            "[sweep] with \"host.coers\" = 1: unknown field `coers`, expected one of `cores`, `max_threads`, \
             `prestage`, `spin_us`, `machine`, `threads`",
        ),
        (
            "\"run.seed\" = [1]\n\"host.cores\" = [1, 0]",
            2,
            "[sweep] with \"host.cores\" = 0: `host.cores` is 0, expected 1 to 240",
        ),
        (
            "\"host.cores\" = [\"many\"]",
            1,
            "[sweep] with \"host.cores\" = \"many\": `host.cores`: invalid type: string \"many\", \
             expected a whole number, 0 or more",
        ),
        (
            "\"run.seconds\" = [-1.5]",
            1,
            "[sweep] with \"run.seconds\" = -1.5: `run.seconds` is -1.5, expected 0.001 to 3600",
        ),
        (
            "\"host.cores\" = [1, 2]\n\"host.max_threads\" = [4, 1]",
            1,
            "[sweep] with \"host.cores\" = 2, \"host.max_threads\" = 1: `host.max_threads` is 1, \
             expected at least `host.cores`, which is 2",
        ),
        (
            "\"variant.prestage\" = [0]",
            1,
            "[sweep] with \"variant.prestage\" = 0: `variant.prestage` has no meaning with placement = \"linux\", \
             which has no agent",
        ),
        (
            "\"variant[offload].prestage\" = [0]",
            1,
            "[sweep] with \"variant[offload].prestage\" = 0: no `variant` is named \"offload\", \
             expected one of \"Linux\", \"offload, PCIe-like\"",
        ),
        (
            "\"host..cores\" = [1]",
            1,
            "[sweep] \"host..cores\" is no path, expected fields with dots between, as host.cores, \
             variant.prestage or variant[name of one].prestage",
        ),
        (
            "\"name.first\" = [1]",
            1,
            "[sweep] with \"name.first\" = 1: `name` is \"cores\", expected a table with `first` in it",
        ),
        (
            "\"description\" = [\"a\"]",
            1,
            "[sweep] \"description\" changes nothing but a name, expected a field that a run depends on",
        ),
        (
            "\"kind\" = [\"load\", \"ladder\"]",
            1,
            "[sweep] \"kind\" cannot be swept: a sweep is of one kind",
        ),
    ];
    for (axes, line, expected) in cases {
        assert_eq!(message(axes), format!("scenarios/x.toml:{}: {expected}", BEFORE + line));
    }
}

#[test]
fn sweep_with_too_many_scenarios_is_refused() {
    let values: Vec<u32> = (1..=101).collect();
    let refused = message(&format!("\"run.seed\" = {values:?}\n\"workload.keys\" = {values:?}\n"));
    assert!(
        refused.ends_with("[sweep] makes 101 x 101 scenarios, expected 10000 at most"),
        "{refused}"
    );
}

#[test]
fn errors_outside_of_the_sweep_keep_their_lines() {
    let refused = |from: &str, to: &str| {
        let text = BASE.replace(from, to) + "[sweep]\n\"host.cores\" = [1, 2]\n";
        sweep_of(&text).expect_err("the sweep is refused").to_string()
    };
    assert!(refused("policy", "polcy").starts_with("scenarios/x.toml:13: unknown field `polcy`"));
    assert!(refused("[1000, 2000]", "[2000, 1000]").starts_with("scenarios/x.toml:4: "));
    assert!(refused("kind = \"load\"", "kind = ").starts_with("scenarios/x.toml:2: "));
    // Of a sweep between other tables, lines below keep their numbers as well.
    let sweep = "[sweep]\n\"host.cores\" = [\n  1,\n  2,\n]\n";
    let text = BASE.replace("[host]", &format!("{sweep}[host]")).replace("policy", "polcy");
    let refused = sweep_of(&text).expect_err("this is to be refused").to_string();
    assert!(refused.starts_with("scenarios/x.toml:18: unknown field `polcy`"), "{refused}");
}

#[test]
fn scenario_with_a_sweep_is_refused_as_a_single_scenario() {
    let text = format!("{BASE}[sweep]\n\"host.cores\" = [1]\n");
    let refused = refuse_sweep(Path::new("x.toml"), &text).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "x.toml:15: [sweep] makes many scenarios of this one: run them with `wave sweep`, or remove the table"
    );
}
