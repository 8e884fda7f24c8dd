//! Parses and formats memory sizes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A size in bytes, in files as text with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Size(pub u64);

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Size, String> {
        parse(&text).map(Size)
    }
}

impl From<Size> for String {
    /// Exact, with the largest unit that divides it.
    fn from(Size(bytes): Size) -> String {
        let whole = UNITS.iter().find(|(_, factor)| bytes % factor == 0);
        let (unit, factor) = whole.unwrap_or(&("B", 1));
        format!("{}{unit}", bytes / factor)
    }
}

/// Parses a size such as `512MiB`, `4G` or `1.5GiB`; a bare number is bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size: expected, for example, 512MiB, 4G or 1.5GiB");
    let end = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let known = |(name, _): &&(&str, u64)| {
        let short = &name[..1];
        [*name, &name.replace('i', ""), short].iter().any(|known| known.eq_ignore_ascii_case(unit))
    };
    let factor = match unit {
        "" => 1,
        _ => UNITS.iter().find(known).map(|(_, factor)| *factor).ok_or_else(wrong)?,
    };
    let bytes = number * factor as f64;
    if (1.0..=(1_u64 << 50) as f64).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// Formats with three digits and a unit: 1.25 GiB, 300 MiB, 0 B.
pub fn show(bytes: u64) -> String {
    let (unit, factor) = UNITS.iter().find(|(_, factor)| bytes >= *factor).unwrap_or(&("B", 1));
    let number = bytes as f64 / *factor as f64;
    let decimals = if *factor == 1 || number >= 100.0 {
        0
    } else if number >= 10.0 {
        1
    } else {
        2
    };
    format!("{number:.decimals$} {unit}")
}

/// Formats a difference.
pub fn show_signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", show(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_units_are_parsed() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1KiB", 1024),
            ("1.5GiB", 3 << 29),
            ("4G", 4 << 30),
            ("512 mb", 512 << 20),
            ("2tib", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "-1G", "1X", "0", "1e30T", "NaN"] {
            assert!(parse(text).unwrap_err().contains("512MiB"), "{text}");
        }
    }

    #[test]
    fn size_is_the_same_after_its_text_was_parsed() {
        for bytes in [1, 1023, 3 << 29, 3 << 30, (1 << 40) + 1] {
            assert_eq!(Size::try_from(String::from(Size(bytes))), Ok(Size(bytes)));
        }
        assert_eq!(String::from(Size(3 << 30)), "3GiB");
    }

    #[test]
    fn sizes_are_shown_with_three_digits() {
        assert_eq!(
            [0, 1023, 5 << 29, 300 << 20].map(show),
            ["0 B", "1023 B", "2.50 GiB", "300 MiB"]
        );
        assert_eq!(show_signed(-2048), "-2.00 KiB");
    }
}
