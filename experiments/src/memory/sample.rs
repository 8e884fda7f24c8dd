//! The state of managed programs at one moment of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wave_linux::memory::{Held, Stats};

use super::size::{show, show_signed};

pub(super) const PAGE_BYTES: u64 = 4096;

/// State at one moment.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Sample {
    /// Seconds since the run began.
    pub seconds: f64,
    /// Memory of all programs in the fast tier.
    pub resident_bytes: u64,
    pub swapped_bytes: u64,
    /// Memory that host and agent take themselves; None if not modelled.
    pub tool_bytes: Option<u64>,
    /// Memory that compressed swap takes for this run's page-outs: estimated from a sample of the pages. None if not modelled.
    pub compressed_bytes: Option<u64>,
    /// This run's bytes in swap, minus what compressed swap, host and agent take; None if not modelled.
    pub net_saved_bytes: Option<i64>,
    /// Pages that came back because they were touched, since the start.
    pub refaults: u64,
    /// Refaults in the last minute.
    pub refaults_per_minute: u64,
    /// Refaults that were part of a sweep: touched once, and not again.
    pub swept: u64,
    /// Share of the last minute that the programs lost because pages came back, in percent.
    pub slowdown_percent: f64,
    /// Pages that were paged out, since the start.
    pub pages_out: u64,
    /// Batches that were read, since the start.
    pub batches_read: u64,
    /// CPU time of the host's thread: reading, clearing, paging out.
    pub host_cpu_seconds: f64,
    /// CPU time of the agent: deciding.
    pub agent_cpu_seconds: f64,
    /// Why nothing is paged out now, if so.
    pub held: Option<String>,
    /// Batches by the time between their last two scans: milliseconds, batches.
    pub batches_by_interval_ms: Vec<(u32, u64)>,
}

impl Sample {
    /// From the enclave's statistics; `tool_bytes` is what host and agent take.
    pub fn of(stats: &Stats, time: Duration, agent_cpu: Duration, tool_bytes: u64) -> Sample {
        // Bytes that others have in swap do not count, and pages that came back may not have been noticed yet.
        let paged_out = stats.account.pages * PAGE_BYTES;
        let own = stats.swapped_bytes.min(paged_out) as f64;
        let cost = stats.account.bytes as f64 * own / paged_out.max(1) as f64;
        Sample {
            seconds: time.as_secs_f64(),
            resident_bytes: stats.resident_bytes,
            swapped_bytes: stats.swapped_bytes,
            tool_bytes: Some(tool_bytes),
            compressed_bytes: Some(cost as u64),
            net_saved_bytes: Some((own - cost) as i64 - tool_bytes as i64),
            refaults: stats.totals.refaults,
            refaults_per_minute: stats.refaults_per_minute,
            swept: stats.totals.swept,
            slowdown_percent: 100.0 * stats.slowdown,
            pages_out: stats.totals.pages_out,
            batches_read: stats.totals.batches_read,
            host_cpu_seconds: stats.cpu.as_secs_f64(),
            agent_cpu_seconds: agent_cpu.as_secs_f64(),
            held: held(stats).map(str::to_owned),
            batches_by_interval_ms: stats.intervals_ms.clone(),
        }
    }

    pub(super) fn net_saved(&self) -> i64 {
        self.net_saved_bytes.unwrap_or(0)
    }

    /// One line, for output that is not a terminal.
    pub fn line(&self) -> String {
        let Sample { seconds, resident_bytes, swapped_bytes, .. } = self;
        let held = self.held.as_ref().map(|why| format!(", held back: {why}")).unwrap_or_default();
        format!(
            "{seconds:6.0} s  resident {}, swapped {}, net saved {}, {} refaults in the last minute cost {:.2}% of it{held}",
            show(*resident_bytes),
            show(*swapped_bytes),
            show_signed(self.net_saved()),
            self.refaults_per_minute,
            self.slowdown_percent
        )
    }
}

fn held(stats: &Stats) -> Option<&'static str> {
    match stats.held {
        _ if stats.swap_bytes == 0 => Some("there is no swap"),
        _ if stats.swap_full => Some("swap is full"),
        held => held.map(held_by_guard),
    }
}

/// Why the guard holds page-outs back.
pub fn held_by_guard(held: Held) -> &'static str {
    match held {
        Held::Slowdown => "pages that come back cost the programs too much time",
        Held::Refaults => "pages come back too often",
        Held::Pressure => "tasks wait for memory",
    }
}
