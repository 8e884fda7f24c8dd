//! Machine, time and version of a run.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use wave_report::model::Machine;

/// The version of this program: the output of `git describe`, if the build was given it (`WAVE_VERSION`), or else the crate's
/// version.
pub fn version() -> &'static str {
    option_env!("WAVE_VERSION").filter(|text| !text.is_empty()).unwrap_or(env!("CARGO_PKG_VERSION"))
}

/// Identifies this binary: another build's results are not this one's, whatever its version.
pub fn build() -> String {
    // This path works even if the file has been replaced meanwhile.
    let program = std::fs::read("/proc/self/exe");
    let digest = program.map(|bytes| hash(&bytes)).unwrap_or_default();
    format!("{}-{digest}", version())
}

/// The first 16 hexadecimal digits of the SHA-256 of `bytes`.
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// This machine; `cpus` of its CPUs may be used.
pub fn machine(cpus: usize) -> Machine {
    Machine { cpus: cpus as u32, model: cpu_model(), kernel: kernel() }
}

/// Release of the kernel, as `uname -r` prints it.
pub fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Model name of the first CPU.
pub fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        matches!(key.trim(), "model name" | "Model" | "Processor").then(|| value.trim().to_owned())
    });
    named.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The time now, as RFC 3339 in UTC.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(since.as_secs())
}

fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days counted from 1 March 0000, in eras of 400 years (H. Hinnant, "chrono-compatible
    // low-level date algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(super::rfc3339(seconds), text);
        }
    }
}
