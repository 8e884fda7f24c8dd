//! `grpc-timeout`: at most eight digits and a unit.

use wave_core::clock::Nanos;

/// An invalid timeout: the client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("grpc-timeout is one to eight digits and one of H, M, S, m, u, n")]
pub struct BadTimeout;

/// How long the client waits, from the arrival of its request.
pub fn parse(value: &[u8]) -> Result<Nanos, BadTimeout> {
    let (unit, digits) = value.split_last().ok_or(BadTimeout)?;
    let nanos: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return Err(BadTimeout),
    };
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(BadTimeout);
    }
    let count = digits.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    Ok(Nanos(count.saturating_mul(nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_known() {
        for (text, nanos) in [
            ("1H", 3_600_000_000_000),
            ("2M", 120_000_000_000),
            ("3S", 3_000_000_000),
            ("100m", 100_000_000),
            ("7u", 7_000),
            ("00000009n", 9),
            ("0n", 0),
            ("99999999H", u64::MAX),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(Nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn a_malformed_timeout_is_refused() {
        for text in ["", "S", "1", "1s", "123456789n", "-1S", "+1S", " 1S", "1 S", "1.5S", "1SS"] {
            assert_eq!(parse(text.as_bytes()), Err(BadTimeout), "{text}");
        }
    }
}
