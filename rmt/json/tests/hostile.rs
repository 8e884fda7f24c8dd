//! Files from anyone: each is refused with a place and a sentence, or accepted; what is accepted can be checked, placed, written and run.

mod packets;

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_pcg::Pcg32;
use serde_json::{Map, Value, json};
use wave_core_testing::{Replay, rng, seeds};
use wave_rmt::check::place;
use wave_rmt::devices::DEVICES;
use wave_rmt::{Pipeline, examples};
use wave_rmt_json::{Arena, ReadError, TEXT_BYTES_MAX, read, write};

const EVERYTHING: &str = include_str!("everything.json");
/// Files of each seed.
const FILES: usize = 5;

#[test]
fn mutated_files_are_refused_with_a_place_or_can_be_run() {
    let mut bases = vec![EVERYTHING.to_owned()];
    bases.extend(examples::EXAMPLES.iter().map(|(example, _)| write(example).unwrap()));
    let (mut accepted, mut refused) = (0, 0);
    let seeds = seeds(4000);
    let is_whole = seeds.end - seeds.start >= 4000;
    for seed in seeds {
        let _replay = Replay(seed, "-p wave-rmt-json --test hostile");
        let rng = &mut rng(seed);
        for _ in 0..FILES {
            // The smallest base has every part.
            let base = if rng.random_ratio(3, 4) { &bases[0] } else { bases.choose(rng).unwrap() };
            match judge(&mutated(base, rng), rng) {
                true => accepted += 1,
                false => refused += 1,
            }
        }
    }
    // Mutations that nothing notices, or that all are refused, test nothing.
    assert!(
        !is_whole || accepted > refused / 20 && refused > accepted / 20,
        "{accepted} {refused}"
    );
}

/// Whether a file is accepted.
fn judge(text: &str, rng: &mut Pcg32) -> bool {
    let arena = Arena::new();
    match read(text, &arena) {
        Ok(pipeline) => {
            can_be_used(&pipeline);
            packets::pass_some(&pipeline, rng);
            true
        }
        Err(error) => {
            is_a_sentence(&error, text);
            false
        }
    }
}

/// What the commands do with a pipeline.
fn can_be_used(pipeline: &Pipeline<'_>) {
    for device in DEVICES {
        let shape = pipeline.check(device);
        let placement = place(pipeline, device);
        for violation in shape.iter().chain(&placement.violations) {
            let text = violation.to_string();
            assert!(text.ends_with('.') && !text.contains(char::is_control), "{text}");
        }
        let total = placement.total();
        assert_eq!(total.tables as usize, pipeline.ingress.len() + pipeline.egress.len());
    }
    let (text, arena) = (write(pipeline).unwrap(), Arena::new());
    assert_eq!(read(&text, &arena).as_ref(), Ok(pipeline));
}

fn is_a_sentence(error: &ReadError, text: &str) {
    let message = error.to_string();
    assert!(!message.contains(char::is_control) && message.len() < 4000, "{message:?}");
    let value: Result<Value, _> = serde_json::from_str(text);
    match error {
        ReadError::TooLong => assert!(text.len() > TEXT_BYTES_MAX, "{} bytes", text.len()),
        ReadError::NotJson(_) => assert!(value.is_err(), "{message}"),
        ReadError::NotPipeline { path, what } => {
            assert!(what.split_whitespace().count() >= 3, "{message}");
            let of_rust = ["expected struct", "newtype", "tuple", "expected unit", "::"];
            assert!(!of_rust.iter().any(|word| what.contains(word)), "{message}");
            // Keys that are cut or escaped are no steps; of a key that a file has twice, the value has one.
            let quotes = |text: &str| text.matches('"').count();
            if let Ok(value) = value
                && !path.contains('\\')
                && !path.contains("...")
                && quotes(text) == quotes(&value.to_string())
            {
                assert!(leads_somewhere(&value, path), "{message}\n{text}");
            }
        }
    }
}

/// Whether the file has a value at this path. Keys may have dots and brackets.
fn leads_somewhere(value: &Value, path: &str) -> bool {
    if path.is_empty() {
        return true;
    }
    match value {
        Value::Array(items) => items.iter().enumerate().any(|(index, item)| {
            path.strip_prefix(&format!("[{index}]")).is_some_and(|rest| leads_somewhere(item, rest))
        }),
        Value::Object(entries) => entries.iter().any(|(key, entry)| {
            let paths = [Some(path), path.strip_prefix('.')];
            let mut rests =
                paths.iter().flatten().filter_map(|path| path.strip_prefix(key.as_str()));
            rests.any(|rest| leads_somewhere(entry, rest))
        }),
        _ => false,
    }
}

fn mutated(base: &str, rng: &mut Pcg32) -> String {
    match rng.random_range(0..10) {
        0 => random_json(rng, 0).to_string(),
        1..4 => {
            let mut bytes = base.as_bytes().to_vec();
            for _ in 0..rng.random_range(1..4) {
                mutate_bytes(&mut bytes, rng);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
        _ => {
            let mut value: Value = serde_json::from_str(base).unwrap();
            let donor = value.clone();
            for _ in 0..rng.random_range(1..4) {
                mutate_value(&mut value, &donor, rng);
            }
            value.to_string()
        }
    }
}

fn mutate_bytes(bytes: &mut Vec<u8>, rng: &mut Pcg32) {
    let at = rng.random_range(0..bytes.len());
    let end = (at + rng.random_range(1..40)).min(bytes.len());
    match rng.random_range(0..5) {
        0 => bytes[at] ^= 1 << rng.random_range(0..8),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let copy = bytes[at..end].to_vec();
            drop(bytes.splice(at..at, copy));
        }
        3 => bytes[at] = *b"{}[]\",:0919-e.\\\0\x1b".choose(rng).unwrap(),
        // A digit, so that the text stays JSON.
        _ => {
            if let Some(digit) = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *digit = rng.random_range(b'0'..=b'9');
            }
        }
    }
}

/// Changes a node of the value that random steps lead to.
fn mutate_value(value: &mut Value, donor: &Value, rng: &mut Pcg32) {
    let is_here = rng.random_ratio(1, 8);
    match value {
        Value::Array(items) if !items.is_empty() && !is_here => {
            let index = rng.random_range(0..items.len());
            match rng.random_range(0..12) {
                0 => drop(items.remove(index)),
                1 => items.insert(index, items[index].clone()),
                2 => {
                    let other = rng.random_range(0..items.len());
                    items.swap(index, other);
                }
                3 => items.extend(vec![items[index].clone(); rng.random_range(1..300)]),
                _ => mutate_value(&mut items[index], donor, rng),
            }
        }
        Value::Object(entries) if !entries.is_empty() && !is_here => {
            let keys: Vec<String> = entries.keys().cloned().collect();
            let key = keys.choose(rng).unwrap();
            match rng.random_range(0..16) {
                0 => drop(entries.remove(key)),
                1 => {
                    let moved = entries.remove(key).unwrap_or_default();
                    entries.insert(random_text(rng), moved);
                }
                2 => drop(entries.insert(random_text(rng), part(donor, rng))),
                _ => mutate_value(&mut entries[key.as_str()], donor, rng),
            }
        }
        Value::Number(_) if rng.random_ratio(4, 5) => *value = random_number(rng),
        other => {
            *other = match rng.random_range(0..3) {
                0 => random_json(rng, 2),
                1 => random_text(rng).into(),
                _ => part(donor, rng),
            }
        }
    }
}

/// A part of a value that random steps lead to.
fn part(value: &Value, rng: &mut Pcg32) -> Value {
    let inner: Vec<&Value> = match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(entries) => entries.values().collect(),
        _ => vec![],
    };
    match inner.choose(rng) {
        Some(inner) if rng.random_ratio(7, 8) => part(inner, rng),
        _ => value.clone(),
    }
}

fn random_json(rng: &mut Pcg32, depth: usize) -> Value {
    let size = rng.random_range(0..4);
    match rng.random_range(0..if depth < 5 { 7 } else { 5 }) {
        0 => Value::Null,
        1 => rng.random::<bool>().into(),
        2 | 3 => random_number(rng),
        4 => random_text(rng).into(),
        5 => (0..size).map(|_| random_json(rng, depth + 1)).collect(),
        _ => {
            let entries = (0..size).map(|_| (random_text(rng), random_json(rng, depth + 1)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
    }
}

/// Words and names of the format, and others.
fn random_text(rng: &mut Pcg32) -> String {
    const TEXTS: &[&str] = &[
        "name",
        "fields",
        "bits",
        "egress",
        "run",
        "skip",
        "set",
        "add",
        "constant",
        "field",
        "hash",
        "lookup",
        "when",
        "gateway",
        "inputs",
        "state",
        "sum",
        "flow",
        "touch",
        "last",
        "start",
        "option",
        "high",
        "low",
        "lenght",
        "",
        " ",
        "\u{1b}[2J",
        "\u{2028}\u{0}",
        "ü",
        "#3",
    ];
    match rng.random_range(0..20) {
        0 => "x".repeat(rng.random_range(0..5000)),
        _ => (*TEXTS.choose(rng).unwrap()).to_owned(),
    }
}

fn random_number(rng: &mut Pcg32) -> Value {
    const NUMBERS: &[u64] = &[
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        9,
        15,
        16,
        17,
        31,
        32,
        33,
        40,
        63,
        64,
        100,
        127,
        128,
        129,
        255,
        256,
        257,
        4095,
        65_535,
        65_536,
        1 << 20,
        1 << 22,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        1 << 63,
        u64::MAX,
    ];
    match rng.random_range(0..8) {
        0 => json!(-i64::from(rng.random::<i32>())),
        1 => json!(i64::MIN),
        2 => json!(rng.random_range(-2.0..1e20)),
        _ => json!(NUMBERS.choose(rng).unwrap()),
    }
}
