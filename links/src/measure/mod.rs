//! Measures the actual costs of this machine's memory, doorbells or PCI device.
//!
//! The rows of the Wave paper's Table 2, and further figures that a model needs. Rows are measured in
//! interleaved chunks, so that a slow moment of the machine affects all of them; each is the median of
//! its chunks with the 5th and 95th percentile. Nothing is subtracted, not even the loop.

mod bar;
mod cpus;
mod modelled;
mod rows;

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use wave_core::link::{Home, LINE_BYTES};

use crate::costs::{Cost, Costs, Source, SourceKind};
use crate::memory::{Memory, SharedMap};
pub use modelled::modelled;
use rows::Lines;

/// How long a measurement takes.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of chunks per row.
    pub chunks: usize,
    /// Number of operations per chunk.
    pub operations: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { chunks: 101, operations: 256 }
    }
}

/// A row: nanoseconds per operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// 5th percentile of the chunks.
    pub p5_ns: f64,
    /// Median over chunks, in nanoseconds.
    pub median_ns: f64,
    /// 95th percentile over chunks, in nanoseconds.
    pub p95_ns: f64,
}

impl Spread {
    fn of(mut chunks: Vec<f64>) -> Option<Spread> {
        if chunks.is_empty() {
            return None;
        }
        chunks.sort_by(f64::total_cmp);
        let at = |share: f64| chunks[((chunks.len() - 1) as f64 * share).round() as usize];
        Some(Spread { p5_ns: at(0.05), median_ns: at(0.5), p95_ns: at(0.95) })
    }
}

/// The measured rows. A row is missing if this machine, or the caller's permissions, cannot
/// provide it.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The memory that was measured.
    pub subject: String,
    /// Whether the memory is coherent (not a device's).
    pub coherent: bool,
    /// Time to load a word across the link.
    pub word_read: Option<Spread>,
    /// Time to store a word across the link.
    pub word_write: Option<Spread>,
    /// Time to load a line that was flushed.
    pub line_read: Option<Spread>,
    /// Time to flush a cached line.
    pub flush: Option<Spread>,
    /// Time to load a line that was flushed, and prefetched in good time.
    pub prefetched_read: Option<Spread>,
    /// Time to store a line around the cache (it combines in a buffer), with a fence.
    pub line_write: Option<Spread>,
    /// Time to ring a doorbell without a waiter.
    pub bell_send: Option<Spread>,
    /// Time to take a ring that has arrived.
    pub bell_receive: Option<Spread>,
    /// Time from ringing until the waiting thread on another CPU runs.
    pub bell_end_to_end: Option<Spread>,
    /// Time from storing a line until a spinning reader on another CPU sees it.
    pub line_transfer: Option<Spread>,
    /// Problems during the measurement, such as threads that could not be pinned.
    pub warnings: Vec<String>,
}

/// Measures memory that two processes share on this machine, and its doorbells.
pub fn shared_memory(effort: Effort) -> io::Result<Measured> {
    let (memory, _fd) = Memory::create("wave-measure", 256, 0, 0)?;
    let mut measured = Measured {
        subject: "shared memory of this machine".to_owned(),
        coherent: true,
        ..Measured::default()
    };
    let (pinned, cpus) = cpus::pin_here(&mut measured.warnings);
    let lines = Lines { words: memory.region(Home::Nic), may_write: true };
    rows::one_thread(&mut measured, lines, effort);
    rows::doorbell(&mut measured, effort)?;
    match cpus {
        Some((_, other)) => rows::two_threads(&mut measured, lines, other, effort)?,
        None => {
            measured.warnings.push("only one CPU: rows between two CPUs were not measured".into())
        }
    }
    drop(pinned);
    Ok(measured)
}

/// Measures one line of a PCI device's memory, given as its `resourceN` file in sysfs
/// (`resourceN_wc` maps it write-combining). Any other file is refused.
///
/// Only the 64-byte line at byte `read_at` is ever read, and only the one at `write_at` written;
/// both must be multiples of 64. Even reading a device's registers can have effects: the caller
/// must know that these lines are memory.
pub fn pci_bar(
    path: &Path,
    read_at: u64,
    write_at: Option<u64>,
    effort: Effort,
) -> io::Result<Measured> {
    lines_of(&bar::open(path)?, path, read_at, write_at, effort)
}

fn lines_of(
    file: &File,
    path: &Path,
    read_at: u64,
    write_at: Option<u64>,
    effort: Effort,
) -> io::Result<Measured> {
    let map_line = |at: u64| {
        if !at.is_multiple_of(LINE_BYTES as u64) {
            let error = format!("offset {at} is not a multiple of {LINE_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        // Touching bytes beyond the end would raise SIGBUS.
        if file.metadata()?.len() < at.saturating_add(LINE_BYTES as u64) {
            let error = format!("offset {at} lies beyond the end of {}", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let page = wave_process::heap::page_bytes() as u64;
        let within = (at % page) as usize;
        let map = SharedMap::new(file.as_fd(), at - within as u64, within + LINE_BYTES)?;
        Ok((map, within / 8))
    };
    let mut measured =
        Measured { subject: format!("device memory {}", path.display()), ..Measured::default() };
    let (pinned, _) = cpus::pin_here(&mut measured.warnings);
    let (map, first) = map_line(read_at)?;
    rows::one_thread(
        &mut measured,
        Lines { words: &map.words()[first..], may_write: false },
        effort,
    );
    if let Some(at) = write_at {
        let (map, first) = map_line(at)?;
        rows::writes(
            &mut measured,
            Lines { words: &map.words()[first..], may_write: true },
            effort,
        );
    }
    drop(pinned);
    Ok(measured)
}

impl Measured {
    /// All rows with their names.
    pub fn rows(&self) -> [(&'static str, Option<Spread>); 10] {
        [
            ("64-bit read", self.word_read),
            ("64-bit write", self.word_write),
            ("line read after flush", self.line_read),
            ("line flush", self.flush),
            ("line read after prefetch", self.prefetched_read),
            ("line write around the cache", self.line_write),
            ("doorbell send", self.bell_send),
            ("doorbell receive", self.bell_receive),
            ("doorbell end to end", self.bell_end_to_end),
            ("line transfer between CPUs", self.line_transfer),
        ]
    }

    /// The costs of a modelled link like this one. Costs that were not measured come from a built-in
    /// link, as `assumed`.
    pub fn costs(&self, name: &str) -> Costs {
        let base = if self.coherent { "coherent" } else { "mount-evans" };
        let mut costs = Costs::builtin(base).expect("it is built in");
        costs.name = name.to_owned();
        costs.description = format!("Measured on {}", self.subject);
        let read = if self.coherent { self.line_read } else { self.word_read };
        let half = |spread: Spread| Spread {
            p5_ns: spread.p5_ns / 2.0,
            median_ns: spread.median_ns / 2.0,
            p95_ns: spread.p95_ns / 2.0,
        };
        let flight = if self.coherent { None } else { read.map(half) };
        let kick = self.kick_flight();
        for (cost, row, how) in [
            (&mut costs.host_read, read, "a load"),
            (&mut costs.host_write, self.word_write, "a store"),
            (&mut costs.line_drain, self.line_write, "a line stored around the cache, and a fence"),
            (&mut costs.posted_flight, flight, "half of a load"),
            (&mut costs.flush, self.flush, "a line flushed"),
            (&mut costs.kick_send, self.bell_send, "an eventfd write"),
            (&mut costs.kick_flight, kick, "end to end, less send and receive"),
            (&mut costs.kick_receive, self.bell_receive, "an eventfd read"),
            (&mut costs.line_transfer, self.line_transfer, "half of a round trip between CPUs"),
        ] {
            match row {
                Some(row) => *cost = measured_cost(row, how),
                None => {
                    let note = format!("as {base} ({})", cost.source);
                    cost.source = Source { kind: SourceKind::Assumed, note };
                }
            }
        }
        costs
    }

    fn kick_flight(&self) -> Option<Spread> {
        let (all, send, receive) = (self.bell_end_to_end?, self.bell_send?, self.bell_receive?);
        let ends = send.median_ns + receive.median_ns;
        let less = |ns: f64| (ns - ends).max(0.0);
        Some(Spread {
            p5_ns: less(all.p5_ns),
            median_ns: less(all.median_ns),
            p95_ns: less(all.p95_ns),
        })
    }
}

fn measured_cost(row: Spread, how: &str) -> Cost {
    let mut note = how.to_owned();
    let _ = write!(note, ", p5 {:.1} to p95 {:.1} ns", row.p5_ns, row.p95_ns);
    let ns = (row.median_ns * 10.0).round() / 10.0;
    Cost { ns, source: Source { kind: SourceKind::Measured, note } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Effort = Effort { chunks: 3, operations: 8 };

    #[test]
    fn shared_memory_gives_a_cost_file() {
        let before = cpus::allowed().unwrap();
        let measured = shared_memory(QUICK).unwrap();
        assert_eq!(cpus::allowed().unwrap(), before);
        assert!(measured.word_read.is_some() && measured.bell_send.is_some());
        assert_eq!(measured.line_transfer.is_some(), before.len() > 1);
        let costs = measured.costs("here");
        assert_eq!(costs.kick_send.source.kind, SourceKind::Measured);
        assert_eq!(costs.dma_flight.source.kind, SourceKind::Assumed);
        assert_eq!(Costs::parse(&costs.to_toml()).unwrap(), costs);
    }

    #[test]
    fn a_bar_is_written_only_where_allowed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7u8; 8192]).unwrap();
        let before = std::fs::read(file.path()).unwrap();
        let measure =
            |read_at, write_at| lines_of(file.as_file(), file.path(), read_at, write_at, QUICK);
        let measured = measure(4160, None).unwrap();
        assert!(measured.word_read.is_some() && measured.word_write.is_none());
        assert_eq!(std::fs::read(file.path()).unwrap(), before);
        let measured = measure(0, Some(4160)).unwrap();
        assert!(measured.word_write.is_some());
        let after = std::fs::read(file.path()).unwrap();
        assert_eq!(after[..4160], before[..4160]);
        assert_eq!(after[4224..], before[4224..]);
        assert!(measure(8192, None).is_err());
        assert!(measure(8, None).is_err());
    }

    #[test]
    fn a_file_that_is_not_a_bar_is_refused_unchanged() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("resource0");
        std::fs::write(&path, [7u8; 8192]).unwrap();
        let link = scratch.path().join("resource2");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        // A file of the kernel that is no BAR; and a device, whose state opening alone may change.
        for other in [&path, &link, Path::new("/sys/kernel/uevent_seqnum"), Path::new("/dev/zero")]
        {
            let error = pci_bar(other, 0, Some(0), QUICK).unwrap_err();
            assert!(error.to_string().contains("not a PCI BAR"), "{}: {error}", other.display());
        }
        assert_eq!(std::fs::read(&path).unwrap(), [7u8; 8192]);
    }

    #[test]
    fn a_spread_is_made_of_percentiles() {
        let spread = Spread::of((0..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!(spread, Spread { p5_ns: 5.0, median_ns: 50.0, p95_ns: 95.0 });
        assert_eq!(Spread::of(vec![]), None);
    }
}
