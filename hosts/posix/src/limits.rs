//! Payload memory within this process's limits: RLIMIT_AS (`ulimit -v`) and RLIMIT_FSIZE (`ulimit -f`), to which a file in memory is
//! held as well.
//!
//! Payload memory takes addresses, not pages. Without limits, a program has addresses for every connection that an agent gives it, with
//! rings of full size. Under limits it has fewer connections and smaller rings, and the program keeps most of its addresses.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use wave_links::Payload;
use wave_tcp::context::FILL_MAX;

use crate::agent_window::ToeError;
use crate::socket::FIRST_FILL;
use crate::toe::Options;

/// The share of a program's free address space that payload memory takes: one part in `SHARE`.
const SHARE: u64 = 4;
/// Rings are halved until there is room for this number of connections, but not below what another process can take over.
const CONNECTIONS_WANTED: u64 = 512;
const RING_BYTES_WANTED: u32 = FILL_MAX;
/// Rings are halved further, but not below the part that is populated at first, until there is room for this number of connections.
const CONNECTIONS_MIN: u64 = 32;

/// Payload memory of a program below valgrind.
pub const VALGRIND_BYTES: u64 = 32 << 20;

/// Creates payload memory. Returns it with its file and the sizes of new rings in it (receive, send): those of `options`, or less under
/// this process's limits.
///
/// # Errors
/// The limits leave no room for a connection, or the system has no descriptor.
pub fn payload_within_limits(options: &Options) -> Result<(Payload, OwnedFd, [u32; 2]), ToeError> {
    let limit = [file_bytes_max(), address_bytes_max()].into_iter().flatten().min();
    let mut bytes = options.payload_bytes.min(limit.unwrap_or(u64::MAX));
    loop {
        let rings = ring_bytes(bytes, options);
        if bytes < rings.map(u64::from).iter().sum() {
            return Err(io::Error::from(Errno::NOMEM).into());
        }
        match Payload::create("wave-tcp-payload", bytes) {
            Ok((payload, file)) => return Ok((payload, file, rings)),
            Err(error) => bytes = smaller_size(bytes, &error).ok_or(error)?,
        }
    }
}

/// The size to try after the system has refused `bytes` bytes with this error, if another size may help.
fn smaller_size(bytes: u64, error: &io::Error) -> Option<u64> {
    match error.raw_os_error().map(Errno::from_raw_os_error)? {
        // Other limits: of locked memory after mlockall(2), or the machine's own.
        Errno::NOMEM | Errno::AGAIN => Some(bytes / 2),
        // Valgrind's answer. Its leak check reads the whole mapping, and so makes it resident.
        Errno::INVAL if bytes > VALGRIND_BYTES => Some(VALGRIND_BYTES),
        _ => None,
    }
}

/// The largest file that this process may create.
fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Payload memory's share of the address space that is left to this process.
fn address_bytes_max() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    // The first field is the size in pages (proc_pid_statm(5)).
    let about = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let used = about.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    let used = used.map_or(limit / 2, |pages| pages * rustix::param::page_size() as u64);
    Some(limit.saturating_sub(used) / SHARE)
}

/// Sizes of rings (receive, send) in a memory of `bytes` bytes.
fn ring_bytes(bytes: u64, options: &Options) -> [u32; 2] {
    let mut rings = [options.receive_bytes, options.send_bytes];
    if bytes >= options.payload_bytes {
        return rings;
    }
    for (least, connections) in
        [(RING_BYTES_WANTED, CONNECTIONS_WANTED), (FIRST_FILL, CONNECTIONS_MIN)]
    {
        let has_room =
            |rings: [u32; 2]| bytes / rings.map(u64::from).iter().sum::<u64>() >= connections;
        while !has_room(rings) && rings.iter().any(|ring| *ring > least) {
            rings = rings.map(|ring| if ring > least { ring / 2 } else { ring });
        }
    }
    rings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_shrink_with_the_memory_and_keep_room_for_connections() {
        const MIB: u64 = 1 << 20;
        let options = Options::default();
        let sizes = |bytes: u64| ring_bytes(bytes, &options).map(|ring| ring >> 10);
        assert_eq!(sizes(options.payload_bytes), [1024, 4096]);
        assert_eq!(sizes(8192 * MIB), [1024, 4096]);
        assert_eq!(sizes(1024 * MIB), [256, 1024]);
        // Enough for a child to take connections over, as long as there is room for a few.
        assert_eq!(sizes(100 * MIB), [256, 256]);
        assert_eq!(sizes(16 * MIB), [256, 256]);
        assert_eq!(sizes(4 * MIB), [64, 64]);
        assert_eq!(sizes(MIB), [16, 16]);
        // A program's own sizes are kept unless the limits force smaller ones.
        let small =
            Options { payload_bytes: 16 << 10, receive_bytes: 4096, send_bytes: 4096, ..options };
        assert_eq!(ring_bytes(16 << 10, &small), [4096, 4096]);
        assert_eq!(ring_bytes(8 << 10, &small), [4096, 4096]);
    }
}
