//! Files at the limits of the reader: the checker and the interpreter take them.

mod packets;

use serde_json::{Value, json};
use wave_core_testing::rng;
use wave_rmt::check::{Rule, place};
use wave_rmt::devices::TOFINO2;
use wave_rmt::parser::{NotParsed, parse};
use wave_rmt::{Phv, Pipeline};
use wave_rmt_json::{Arena, ENTRIES_MAX, TEXT_BYTES_MAX, read};

/// Reads, checks and places a file, and passes packets.
fn use_all(file: &Value, see: impl FnOnce(&Pipeline<'_>, &[Rule])) {
    let arena = Arena::new();
    let text = file.to_string();
    assert!(text.len() <= TEXT_BYTES_MAX, "{} bytes", text.len());
    let pipeline = read(&text, &arena).unwrap();
    let shape = pipeline.check(&TOFINO2);
    let placement = place(&pipeline, &TOFINO2);
    let _ = placement.total();
    packets::pass_some(&pipeline, &mut rng(1));
    let rules: Vec<_> =
        shape.iter().chain(&placement.violations).map(|violation| violation.rule).collect();
    see(&pipeline, &rules);
}

fn fields(count: usize) -> Vec<Value> {
    (0..count).map(|field| json!({ "name": format!("f{field}"), "bits": 32 })).collect()
}

#[test]
fn parser_that_goes_in_circles_ends() {
    let go = |state: &str| json!({ "otherwise": { "state": state } });
    let file = json!({
        "name": "circle",
        "parser": [
            { "name": "a", "advance": 0, "next": go("b") },
            { "name": "b", "advance": 0, "next": go("a") },
        ],
    });
    use_all(&file, |pipeline, rules| {
        assert_eq!(rules, []);
        let parsed = parse(pipeline.parser, &[0; 64], &mut Phv::default());
        assert_eq!(parsed, Err(NotParsed::TooManySteps));
    });
}

/// Every pair of tables is compared, row by row and match by match.
#[test]
fn most_gateways_are_compared() {
    let row = |table: u64| {
        let bits = |field: u64| json!({ "field": format!("f{}", field % 2), "value": 0 });
        let mut all: Vec<_> = (0..3).map(bits).collect();
        all.push(json!({ "field": "f2", "value": table }));
        json!({ "all": all, "then": "lookup" })
    };
    let table = |number: u64| {
        json!({
            "name": "t",
            "gateway": { "rows": vec![row(number); 16], "otherwise": "skip" },
            "actions": [{ "name": "a", "ops": [{ "to": "f3", "value": { "set": { "constant": 1 } } }] }],
        })
    };
    let tables: Vec<_> = (0..320).map(table).collect();
    let file = json!({ "name": "many", "fields": fields(4), "egress": tables });
    use_all(&file, |pipeline, rules| {
        assert_eq!(pipeline.egress.len(), 320);
        assert!(rules.contains(&Rule::GatewayRows));
    });
}

/// The sums of what the tables take do not overflow.
#[test]
fn most_entries_of_the_widest_tables_are_counted() {
    let key: Vec<_> = (0..128).map(|field| format!("f{field}")).collect();
    let exact = |entries: u32| {
        let exact = json!({ "key": key, "entries": entries, "data_bits": 65_535 });
        json!({ "name": "t", "stage": 0, "lookup": { "exact": exact } })
    };
    let direct = |entries: u32| {
        let direct = json!({ "index": "f0", "entries": entries, "data_bits": 65_535 });
        json!({ "name": "t", "stage": 0, "lookup": { "direct": direct } })
    };
    let many = |first: Value, rest: Value| [vec![first], vec![rest; 319]].concat();
    for (first, rest) in
        [(exact(ENTRIES_MAX - 319), exact(1)), (direct(ENTRIES_MAX - 319), direct(1))]
    {
        let file = json!({ "name": "wide", "fields": fields(128), "egress": many(first, rest) });
        use_all(&file, |_, rules| assert!(rules.contains(&Rule::StageBudget), "{rules:?}"));
    }
}

/// Registers are looked for in every action.
#[test]
fn most_registers_and_actions_are_checked() {
    let register = |id: usize| json!({ "name": format!("r{id}"), "bits": 32, "entries": 1 });
    let action = |action: usize| json!({ "name": format!("a{action}") });
    let actions: Vec<_> = (0..128).map(action).collect();
    let file = json!({
        "name": "many",
        "registers": (0..128).map(register).collect::<Vec<_>>(),
        "egress": vec![json!({ "name": "t", "actions": actions }); 320],
    });
    use_all(&file, |_, rules| assert!(rules.contains(&Rule::Names)));
}

/// A constant beyond a word would overflow a comparator's sum.
#[test]
fn largest_constants_are_added() {
    for (constant, relation) in [(4_294_967_295i64, "greater"), (-4_294_967_295, "less")] {
        let compare = json!({
            "kind": "serial", "memory": { "minus": "low" }, "input": { "minus": "first" },
            "constant": constant, "relation": relation,
        });
        let file = json!({
            "name": "sum",
            "fields": fields(1),
            "registers": [{
                "name": "r", "bits": 32, "entries": 1,
                "instructions": [{ "name": "i", "compares": vec![compare; 16] }],
            }],
            "egress": [{
                "name": "t",
                "actions": [{
                    "name": "a",
                    "access": { "register": "r", "instruction": "i", "index": "f0", "inputs": { "first": "f0" } },
                }],
            }],
        });
        use_all(&file, |_, rules| assert_eq!(rules, [Rule::Comparators]));
    }
}
