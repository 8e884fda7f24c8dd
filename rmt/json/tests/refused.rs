//! What is refused, and in which words.

use wave_rmt_json::{Arena, ENTRIES_MAX, ReadError, TEXT_BYTES_MAX, read};

const EVERYTHING: &str = include_str!("everything.json");

fn refusal(text: &str) -> String {
    read(text, &Arena::new()).map(|_| "accepted").unwrap_err().to_string()
}

/// The refusal of the whole with one part replaced.
fn refusal_with(part: &str, by: &str) -> String {
    assert!(EVERYTHING.contains(part), "{part}");
    refusal(&EVERYTHING.replacen(part, by, 1))
}

#[test]
fn errors_name_the_place_and_the_remedy() {
    for (part, by, expected) in [
        (
            r#"{"to": "length", "value": {"minimum""#,
            r#"{"to": "lenght", "value": {"minimum""#,
            r#"egress[1].actions[0].ops[2].to: no field named "lenght"; did you mean "length"?"#,
        ),
        (
            r#"[{"field": "seen"}, {"field": "length"}]"#,
            r#"[{"field": "seen"}, {"field": "elsewhere"}]"#,
            "egress[1].actions[0].ops[0].value.subtract[1].field: no field named \"elsewhere\"; declare it in the pipeline's `fields`",
        ),
        (
            r#"{"run": "clear"}"#,
            r#"{"run": "cleer"}"#,
            r#"egress[2].gateway.rows[0].then.run: no action named "cleer"; did you mean "clear"?"#,
        ),
        (
            r#""instruction": "most""#,
            r#""instruction": "clear""#,
            "registers[1].instructions[2]: no action runs \"most\"; remove it, or name it in an action's `access`",
        ),
        (
            r#"{"state": "option"}"#,
            r#"{"state": "optional"}"#,
            r#"parser[0].next.cases[0].next.state: no parser state named "optional"; did you mean "option"?"#,
        ),
        (
            r#"{"name": "flow", "bits": 16}"#,
            r#"{"name": "kind", "bits": 16}"#,
            r#"fields[1].name: there is another field named "kind" before it; choose another name"#,
        ),
        (
            r#"{"when": [1, 2], "word": 1"#,
            r#"{"when": [1, 8], "word": 1"#,
            "registers[0].instructions[0].outputs[1].when[1]: result 8; take less than 8: the instruction has 3 comparators",
        ),
        (
            r#""name": "mix","#,
            "\"name\": \"mi\\u001bx\",",
            r#"egress[1].name: "mi\u{1b}x" is no name; take 1 to 40 letters of ASCII, digits, `_` and `-`"#,
        ),
    ] {
        assert_eq!(refusal_with(part, by), expected);
    }
}

/// The remedy stands behind a name that fills the screen.
#[test]
fn long_names_hide_no_remedy() {
    for by in ["x".repeat(5000), "ü".repeat(5000), "\\u0000".repeat(5000)] {
        let refusal = refusal_with(r#""name": "mix""#, &format!("\"name\": \"{by}\""));
        assert!(
            refusal.ends_with("take 1 to 40 letters of ASCII, digits, `_` and `-`"),
            "{refusal}"
        );
        assert!(refusal.chars().count() < 500, "{refusal}");
    }
}

#[test]
fn other_forms_are_refused_with_the_line() {
    for (part, by, expected) in [
        (
            r#"{"name": "kind", "bits": 8}"#,
            r#"{"name": "kind", "bits": 4294967296}"#,
            "fields[0].bits: invalid value: integer `4294967296`, expected a whole number from 1 to 32 at line 4 column ",
        ),
        (
            r#"{"name": "kind", "bits": 8}"#,
            r#"{"name": "kind", "bits": 0}"#,
            "fields[0].bits: invalid value: integer `0`, expected a whole number from 1 to 32",
        ),
        (
            r#"{"name": "kind", "bits": 8}"#,
            r#"["kind", 8]"#,
            "fields[0]: invalid type: sequence, expected an object at line 4",
        ),
        (
            r#""intrinsic""#,
            r#""intrinsics""#,
            "intrinsics: unknown field `intrinsics`, expected one of `name`, `fields`",
        ),
        (
            r#"{"name": "kind", "bits": 8}"#,
            r#"{"name": "kind"}"#,
            "fields[0]: missing field `bits` at line 4",
        ),
        (
            r#"{"name": "kind", "bits": 8}"#,
            r#"{"name": "kind", "bits": 8, "bits": 8}"#,
            "fields[0]: duplicate field `bits` at line 4",
        ),
        (
            r#""otherwise": "lookup""#,
            r#""otherwise": 7"#,
            "egress[0].gateway.otherwise: expected a word in quotes, or an object with one key at line ",
        ),
        (
            r#""otherwise": "lookup""#,
            r#""otherwise": {"run": "age", "skip": 1}"#,
            "egress[0].gateway.otherwise: expected a word in quotes, or an object with one key at line ",
        ),
        (
            r#""otherwise": "lookup""#,
            r#""otherwise": "look""#,
            "egress[0].gateway.otherwise: unknown variant `look`, expected one of `lookup`, `run`, `skip` at line ",
        ),
        (
            r#""otherwise": "lookup""#,
            r#""otherwise": "run""#,
            r#"egress[0].gateway.otherwise: "run" needs a value; write {"run": ...} at line "#,
        ),
        (
            r#""otherwise": "lookup""#,
            r#""otherwise": {"lookup": 1}"#,
            r#"egress[0].gateway.otherwise: "lookup" has no value; write "lookup" at line "#,
        ),
        (
            r#"[{"field": "length"}, {"data": 0}]"#,
            r#"[{"field": "length"}]"#,
            "ingress[0].actions[0].ops[1].value.add: invalid length 1, expected a list of two operands at line ",
        ),
        (
            r#"{"add": [{"field": "length"}, {"data": 0}]}"#,
            r#""add""#,
            r#"ingress[0].actions[0].ops[1].value: "add" needs a value; write {"add": ...} at line "#,
        ),
        (
            r#"{"field": "kind", "mask": 128,"#,
            r#"{"field": {"name": "kind"}, "mask": 128,"#,
            "egress[0].gateway.rows[0].all[0].field: invalid type: map, expected a string at line ",
        ),
    ] {
        let refusal = refusal_with(part, by);
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    assert_eq!(refusal("{}"), "missing field `name` at line 1 column 2");
    assert_eq!(
        refusal("{\"name\": \"one\",\n}"),
        "not JSON: key must be a string at line 2 column 1"
    );
}

#[test]
fn more_than_the_limits_is_refused() {
    let long = " ".repeat(TEXT_BYTES_MAX + 1);
    assert_eq!(read(&long, &Arena::new()), Err(ReadError::TooLong));
    let filled = format!("{EVERYTHING}{}", " ".repeat(TEXT_BYTES_MAX - EVERYTHING.len()));
    assert!(read(&filled, &Arena::new()).is_ok());
    // A register has 64 entries, one has 256, and two tables have 160.
    let entries = |count: u32| format!("\"entries\": {count}");
    let rest = 256 + 160;
    let fits = EVERYTHING.replacen(&entries(64), &entries(ENTRIES_MAX - rest), 1);
    assert!(read(&fits, &Arena::new()).is_ok());
    assert_eq!(
        refusal_with(&entries(64), &entries(ENTRIES_MAX - rest + 1)),
        "ingress[1].lookup.direct.entries: 32 entries; take fewer: all registers and tables together have at most 4194304"
    );
    let table = r#"{"name": "table"}"#;
    let tables = |count: usize| {
        format!(r#"{{"name": "many", "egress": [{}]}}"#, vec![table; count].join(","))
    };
    assert!(read(&tables(320), &Arena::new()).is_ok());
    assert_eq!(refusal(&tables(321)), "egress: 321 elements; remove some: at most 320 are read");
    let bits = vec![r#"{"field": "kind", "value": 0}"#; 17].join(",");
    assert_eq!(
        refusal_with(r#"{"field": "kind", "mask": 3, "value": 2}"#, &bits),
        "egress[0].gateway.rows[1].all: 17 elements; remove some: at most 16 are read"
    );
}
