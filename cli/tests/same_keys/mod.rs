//! Native and simulated results beside each other.

use serde_json::Value;

/// Objects have the same keys, all the way down, but for where one of them is null.
pub fn have_the_same_keys(native: &Value, simulated: &Value, path: &str) {
    match (native, simulated) {
        (Value::Object(native), Value::Object(simulated)) => {
            assert!(native.keys().eq(simulated.keys()), "{path}: {native:?} and {simulated:?}");
            for (key, value) in native {
                have_the_same_keys(value, &simulated[key], &format!("{path}.{key}"));
            }
        }
        (Value::Array(native), Value::Array(simulated)) => {
            for (native, simulated) in native.iter().zip(simulated) {
                have_the_same_keys(native, simulated, path);
            }
        }
        _ => {}
    }
}
