//! Native and simulated results beside each other.

use std::collections::BTreeSet;

use serde_json::Value;

/// The paths of the keys of `value` and of all below it. The elements of an array have its path.
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

/// Both have the same keys, all the way down, but for those below what is null in the other, or one of the arrays
/// `may_be_empty` without elements.
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
    fn every_element_of_an_array_is_compared_and_null_has_any_keys() {
        let one = json!({ "a": [{ "b": 1 }, { "c": { "d": 1 } }] });
        assert_eq!(keys(&one).into_iter().collect::<Vec<_>>(), [".a", ".a.b", ".a.c", ".a.c.d"]);
        assert!(are_alike(&one, &json!({ "a": [{ "b": 2, "c": null }] }), &[]));
        for other in [json!({ "a": [] }), json!({ "a": [{ "b": 1 }] }), json!({})] {
            assert!(!are_alike(&one, &other, &[]) && !are_alike(&other, &one, &[]), "{other}");
        }
        assert!(are_alike(&one, &json!({ "a": [] }), &[".a"]));
    }
}
