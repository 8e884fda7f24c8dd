//! Comparison of the keys of native and simulated results.

use std::collections::BTreeSet;

use serde_json::Value;

/// Paths of the keys of `value` and of everything below it. The elements of an array have the array's path.
pub fn keys(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    visit(value, "", &mut |path, _| {
        found.insert(path.to_owned());
    });
    found.remove("");
    found
}

fn visit(value: &Value, path: &str, see: &mut impl FnMut(&str, &Value)) {
    see(path, value);
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| visit(value, &format!("{path}.{name}"), see));
        }
        Value::Array(all) => all.iter().for_each(|value| visit(value, path, see)),
        _ => {}
    }
}

/// Checks that both have the same keys at every depth, except below a null in the other, or below an empty array listed in
/// `may_be_empty`.
pub fn have_the_same_keys(native: &Value, simulated: &Value, may_be_empty: &[&str]) {
    for (one, other, of) in [(native, simulated, "native"), (simulated, native, "simulated")] {
        let mut blanks = Vec::new();
        visit(other, "", &mut |path, value| {
            let is_empty = value.as_array().is_some_and(Vec::is_empty);
            if value.is_null() || (is_empty && may_be_empty.contains(&path)) {
                blanks.push(format!("{path}."));
            }
        });
        let (one, other) = (keys(one), keys(other));
        let only = one.difference(&other);
        let only: Vec<_> =
            only.filter(|key| !blanks.iter().any(|blank| key.starts_with(blank))).collect();
        assert!(only.is_empty(), "only in the {of} result: {only:?}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn are_alike(one: &Value, other: &Value, may_be_empty: &[&str]) -> bool {
        std::panic::catch_unwind(|| have_the_same_keys(one, other, may_be_empty)).is_ok()
    }

    #[test]
    fn array_elements_are_all_compared_and_null_matches_any_keys() {
        let one = json!({ "a": [{ "b": 1 }, { "c": { "d": 1 } }] });
        assert_eq!(keys(&one).into_iter().collect::<Vec<_>>(), [".a", ".a.b", ".a.c", ".a.c.d"]);
        assert!(are_alike(&one, &json!({ "a": [{ "b": 2, "c": null }] }), &[]));
        for other in [json!({ "a": [] }), json!({ "a": [{ "b": 1 }] }), json!({})] {
            assert!(!are_alike(&one, &other, &[]) && !are_alike(&other, &one, &[]), "{other}");
        }
        assert!(are_alike(&one, &json!({ "a": [] }), &[".a"]));
    }
}
