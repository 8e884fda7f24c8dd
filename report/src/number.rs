//! Formatting of numbers.

/// At least three significant digits, with no more decimals than needed: 0.42, 7.13, 42.0, 1350.
pub fn short(number: f64) -> String {
    let size = number.abs();
    if !number.is_finite() {
        "-".to_owned()
    } else if size >= 100.0 || number == 0.0 {
        format!("{number:.0}")
    } else if size >= 10.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.2}")
    }
}

/// Nanoseconds as microseconds.
pub fn micros(ns: u64) -> String {
    short(ns as f64 / 1e3)
}

/// A rate per second, in thousands.
pub fn thousands(per_second: f64) -> String {
    if per_second.is_finite() { format!("{:.1}", per_second / 1e3) } else { "-".to_owned() }
}

/// The difference of `value` from `reference`: +4.6%.
pub fn difference(value: f64, reference: f64) -> String {
    if reference > 0.0 && value.is_finite() {
        format!("{:+.1}%", (value / reference - 1.0) * 100.0)
    } else {
        "-".to_owned()
    }
}
