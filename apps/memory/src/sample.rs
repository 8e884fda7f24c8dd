//! The state of managed programs at one moment of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wave_linux::memory::{Held, Stats};

use wave_scenario::size::{show, show_signed};

pub(super) const PAGE_BYTES: u64 = 4096;

/// State at one moment.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Sample {
    /// Seconds since the run began.
    pub seconds: f64,
    /// Memory of all programs in the fast tier.
    pub resident_bytes: u64,
    pub swapped_bytes: u64,
    /// Memory that host and agent take themselves, with the table of compressed swap that the run has added; None if not
    /// modelled.
    pub tool_bytes: Option<u64>,
    /// Memory that compressed swap takes for this run's page-outs: estimated from a sample of the pages. None if not modelled.
    pub compressed_bytes: Option<u64>,
    /// This run's bytes in swap that are still in memory, too: the kernel has not freed them. None if not modelled.
    #[serde(default)]
    pub cached_bytes: Option<u64>,
    /// This run's bytes in swap, minus those still in memory, and minus what compressed swap, host and agent take; None if not
    /// modelled.
    pub net_saved_bytes: Option<i64>,
    /// Pages that came back because they were touched, since the start.
    pub refaults: u64,
    /// How often a thread of the programs has waited for a page, for any cause, since the start: the kernel's count.
    #[serde(default)]
    pub major_faults: u64,
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
        let cached = own.min(stats.cached_bytes as f64);
        let cost = stats.account.bytes as f64 * own / paged_out.max(1) as f64;
        Sample {
            seconds: time.as_secs_f64(),
            resident_bytes: stats.resident_bytes,
            swapped_bytes: stats.swapped_bytes,
            tool_bytes: Some(tool_bytes),
            compressed_bytes: Some(cost as u64),
            cached_bytes: Some(cached as u64),
            net_saved_bytes: Some((own - cached - cost) as i64 - tool_bytes as i64),
            refaults: stats.totals.refaults,
            major_faults: stats.major_faults,
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

    /// The state when all programs have ended; `self` is the last sample while they lived. Of the pages that were in
    /// swap then, and of those paged out since, the ones that threads have waited for were back in memory at the end.
    pub(super) fn at_end(&self, time: Duration, stats: &Stats) -> Sample {
        let part = |of: Option<u64>| of.unwrap_or(0) as i64;
        let (tool, cost) = (part(self.tool_bytes), part(self.compressed_bytes));
        let own = self.net_saved() + tool + part(self.cached_bytes) + cost;
        let waits = stats.major_faults.saturating_sub(self.major_faults);
        let out = stats.totals.pages_out.saturating_sub(self.pages_out);
        let back = self.swapped_bytes.min(waits.saturating_sub(out) * PAGE_BYTES);
        let stays = 1.0 - back.min(own.max(0) as u64) as f64 / own.max(1) as f64;
        let scaled = |bytes: i64| (bytes as f64 * stays) as i64;
        let (cost, cached) = (scaled(cost), scaled(part(self.cached_bytes)));
        let swapped_bytes = self.swapped_bytes - back;
        // No scan has seen some of the pages that came back: the next one may be due seconds later.
        let gone = stats.totals.pages_out.saturating_sub(stats.totals.pages_brought_back);
        let came_back = gone.saturating_sub(swapped_bytes / PAGE_BYTES).min(stats.major_faults);
        Sample {
            seconds: time.as_secs_f64(),
            resident_bytes: self.resident_bytes + back,
            swapped_bytes,
            compressed_bytes: self.compressed_bytes.map(|_| cost as u64),
            cached_bytes: self.cached_bytes.map(|_| cached as u64),
            net_saved_bytes: self.net_saved_bytes.map(|_| scaled(own) - cost - cached - tool),
            refaults: stats.totals.refaults.max(came_back),
            major_faults: stats.major_faults,
            pages_out: stats.totals.pages_out,
            host_cpu_seconds: stats.cpu.as_secs_f64().max(self.host_cpu_seconds),
            ..self.clone()
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

#[cfg(test)]
mod tests {
    use super::*;
    use wave_linux::memory::Account;
    use wave_memory::serve::Totals;

    const MIB: u64 = 1 << 20;

    /// 64 MiB paged out, of which 20 are in swap: they take 5 MiB there, and 2 MiB are host's and agent's.
    fn stats() -> Stats {
        Stats {
            resident_bytes: 44 * MIB,
            swapped_bytes: 20 * MIB,
            account: Account { pages: 20 * MIB / PAGE_BYTES, bytes: 5 * MIB },
            totals: Totals { pages_out: 64 * MIB / PAGE_BYTES, ..Totals::default() },
            major_faults: 44 * MIB / PAGE_BYTES,
            ..Stats::default()
        }
    }

    fn sample(stats: &Stats) -> Sample {
        Sample::of(stats, Duration::from_secs(7), Duration::ZERO, 2 * MIB)
    }

    #[test]
    fn pages_in_the_swap_cache_are_not_saved() {
        assert_eq!(sample(&stats()).net_saved(), 13 * MIB as i64);
        let all = sample(&Stats { cached_bytes: 500 * MIB, ..stats() });
        assert_eq!((all.cached_bytes, all.net_saved()), (Some(20 * MIB), -7 * MIB as i64));
    }

    #[test]
    fn what_a_program_touches_before_it_ends_is_not_saved_at_its_end() {
        let last = sample(&stats());
        let end = |waits: u64, out: u64| {
            let major_faults = last.major_faults + waits;
            let totals = Totals { pages_out: last.pages_out + out, ..Totals::default() };
            let ended =
                Stats { resident_bytes: 0, swapped_bytes: 0, totals, major_faults, ..stats() };
            let end = last.at_end(Duration::from_secs(8), &ended);
            (end.net_saved() / MIB as i64, end.refaults)
        };
        let pages = |mib: u64| mib * MIB / PAGE_BYTES;
        assert_eq!(end(0, 0), (13, pages(44)), "no scan had seen what came back");
        assert_eq!(end(pages(10), 0), (5, pages(54)));
        assert_eq!(end(pages(10), pages(6)), (10, pages(54)), "some went out again");
        assert_eq!(end(pages(20), 0), (-2, pages(64)));
        assert_eq!(end(pages(300), 0), (-2, pages(64)), "it has also read files");
    }
}
