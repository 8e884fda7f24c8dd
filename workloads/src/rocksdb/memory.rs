//! Check that a database fits into memory.

use super::Error;

/// Refuses a database that is larger than the system's available memory, since its files are in memory.
pub(super) fn check(keys: u64, value_bytes: usize) -> Result<(), Error> {
    // The kernel's own estimate, in KiB. Without one, the check passes.
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = |text: &str| text.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
    let Some(available_kib) = available.and_then(kib) else { return Ok(()) };
    let needed_kib = (u128::from(keys) * (value_bytes as u128 + size_of::<u64>() as u128)) >> 10;
    if needed_kib <= u128::from(available_kib) {
        return Ok(());
    }
    Err(Error::TooLarge {
        keys,
        value_bytes,
        needed_mib: u64::try_from(needed_kib >> 10).unwrap_or(u64::MAX),
        available_mib: available_kib >> 10,
    })
}
