//! The time that a modelled link takes on this machine: its stated costs, and the model's own overhead.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use wave_core::clock::Nanos;
use wave_core::link::{Home, Mapping, Port, Side, Span, Window};

use super::rows::spin_until;
use super::{Spread, cpus, measured_cost};
use crate::costs::Costs;
use crate::memory::Memory;
use crate::model::{ModelPort, RealTime, Timebase, extra_lines};

/// Number of lines of each kind of mapping.
const LINES: u32 = 32;
/// Words of a message: as many words of a line are stored or loaded at a time.
const WORDS: usize = 6;

/// The measured operation. The other side touches the lines in between, as a peer does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    /// The host loads words of uncached lines.
    FarLoad,
    /// The host stores words of uncached lines.
    FarStore,
    /// The host writes and publishes write-combining lines.
    Drain,
    /// The host drops write-through lines.
    Flush,
    /// The host prefetches write-through lines, and loads them after they have arrived.
    Prefetched,
    /// The agent loads words of near lines that it maps uncached.
    NearUncached,
    /// The agent loads near lines that the host wrote.
    Near,
    /// The agent writes and publishes lines of host memory.
    Submit,
}

const ROWS: [Row; 8] = [
    Row::FarLoad,
    Row::FarStore,
    Row::Drain,
    Row::Flush,
    Row::Prefetched,
    Row::NearUncached,
    Row::Near,
    Row::Submit,
];

impl Row {
    fn side(self) -> Side {
        match self {
            Row::NearUncached | Row::Near | Row::Submit => Side::Agent,
            _ => Side::Host,
        }
    }

    /// The lines that this row uses.
    fn span(self) -> Span {
        let first = match self {
            Row::FarLoad | Row::FarStore => 0,
            Row::NearUncached => LINES,
            Row::Drain | Row::Near => 2 * LINES,
            Row::Flush | Row::Prefetched => 3 * LINES,
            Row::Submit => return Span { home: Home::Host, line: 0, lines: LINES },
        };
        Span { home: Home::Nic, line: first, lines: LINES }
    }

    /// Touches a line as the other side does before the measurement.
    fn touch(self, port: &impl Port, line: u32, value: u64) {
        let window = port.window(self.span().home);
        match self {
            Row::FarStore | Row::Drain | Row::Submit => {
                black_box(window.load(line, 0));
            }
            _ => (0..WORDS).for_each(|word| window.store(line, word, value)),
        }
    }

    /// Nanoseconds per line.
    fn time(self, port: &impl Port) -> f64 {
        let Span { home, line, lines } = self.span();
        let window = port.window(home);
        let mut words = [0; WORDS];
        let all = line..line + lines;
        let start = Instant::now();
        match self {
            Row::FarLoad | Row::NearUncached | Row::Near => all.for_each(|line| {
                window.read_line(line, &mut words);
                black_box(&words);
            }),
            Row::FarStore => {
                all.for_each(|line| (0..WORDS).for_each(|word| window.store(line, word, 1)));
            }
            Row::Drain | Row::Submit => all.for_each(|line| {
                window.write_line(line, &words, 1);
                window.publish();
            }),
            Row::Flush => all.for_each(|line| window.flush(line)),
            Row::Prefetched => {
                all.clone().for_each(|line| window.flush(line));
                let start = Instant::now();
                all.clone().for_each(|line| window.prefetch(line));
                let issued = start.elapsed();
                wait(Nanos::from_micros(50));
                let start = Instant::now();
                all.for_each(|line| {
                    window.read_line(line, &mut words);
                    black_box(&words);
                });
                let both = issued + start.elapsed();
                return both.as_nanos() as f64 / f64::from(lines);
            }
        }
        start.elapsed().as_nanos() as f64 / f64::from(lines)
    }
}

fn wait(span: Nanos) {
    RealTime.spend(span);
}

/// Measures the costs of `stated`, a link that is not coherent, as its model on the real clock has them here.
/// Medians of `chunks` chunks. Times in flight are left unchanged. `Ok(None)` if there is only one CPU.
///
/// # Panics
///
/// If the link is coherent.
pub fn modelled(stated: &Costs, chunks: usize) -> io::Result<Option<Costs>> {
    assert!(!stated.coherent, "a coherent link's costs are those of its line transfers");
    let (nic, host) = (4 * LINES, LINES);
    let (memory, _fd) = Memory::create("wave-measure", nic, host, extra_lines(nic, host))?;
    let memory = Arc::new(memory);
    let mapped = |row: Row, mapping| (row.span(), mapping);
    let port = |side| {
        let page_types = match side {
            Side::Host => vec![
                mapped(Row::Drain, Mapping::WriteCombining),
                mapped(Row::Flush, Mapping::WriteThrough),
            ],
            Side::Agent => vec![mapped(Row::NearUncached, Mapping::Uncached)],
        };
        ModelPort::new(Arc::clone(&memory), side, stated, &page_types, RealTime, 1)
            .expect("the lines are there")
    };
    let (_pinned, cpus) = cpus::pin_here(&mut Vec::new());
    let Some((_, other)) = cpus else { return Ok(None) };
    let ports = [port(Side::Host), port(Side::Agent)];
    let [host, agent] = ports;
    let chunks = chunks.max(1);
    let steps = 2 * (chunks * ROWS.len()) as u64;
    let turn = AtomicU64::new(0);
    // Both threads go through the same rows; one touches, the other measures.
    let side = |side: Side, port: ModelPort<RealTime>| {
        let mut found = vec![vec![]; ROWS.len()];
        for step in 0..steps {
            let row = (step / 2) as usize % ROWS.len();
            let measures = ROWS[row].side() == side;
            // First one side touches the lines, then the other measures.
            if (step % 2 == 1) != measures {
                continue;
            }
            spin_until(&turn, step);
            wait(Nanos::from_micros(5));
            if measures {
                found[row].push(ROWS[row].time(&port));
            } else {
                let Span { line, lines, .. } = ROWS[row].span();
                (line..line + lines).for_each(|line| ROWS[row].touch(&port, line, step));
                port.window(ROWS[row].span().home).publish();
            }
            turn.store(step + 1, Release);
        }
        while turn.load(Acquire) < steps {
            std::hint::spin_loop();
        }
        found
    };
    let (mut found, agents) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _ = cpus::pin(&[other]);
            side(Side::Agent, agent)
        });
        let host = side(Side::Host, host);
        (host, thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    for (all, more) in found.iter_mut().zip(agents) {
        all.extend(more);
    }
    let per = |row: Row, operations: usize| {
        let at = ROWS.iter().position(|other| *other == row).expect("all are listed");
        let each = found[at].iter().map(|ns| ns / operations as f64).collect();
        Spread::of(each).expect("there is a chunk")
    };
    let mut costs = stated.clone();
    costs.name = format!("{}-here", stated.name);
    costs.description = format!("{}, modelled on this machine", stated.name);
    for (cost, row, operations, how) in [
        (&mut costs.host_read, Row::FarLoad, WORDS, "modelled loads of what the agent changed"),
        (&mut costs.host_write, Row::FarStore, WORDS, "modelled stores"),
        (&mut costs.line_drain, Row::Drain, 1, "modelled lines written and published"),
        (&mut costs.flush, Row::Flush, 1, "modelled flushes"),
        (&mut costs.prefetch_residue, Row::Prefetched, 1, "modelled prefetches and their use"),
        (&mut costs.agent_access_uncached, Row::NearUncached, WORDS, "modelled near loads"),
        (&mut costs.line_transfer, Row::Near, 1, "near lines that the host changed"),
        (&mut costs.dma_submit, Row::Submit, 1, "modelled lines written by the copy engine"),
    ] {
        *cost = measured_cost(per(row, operations), how);
    }
    Ok(Some(costs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::SourceKind;

    #[test]
    fn the_model_takes_at_least_its_stated_costs() {
        let stated = Costs::builtin("mount-evans").unwrap();
        let Some(here) = modelled(&stated, 3).unwrap() else {
            return;
        };
        for (what, here, stated) in [
            ("host_read", &here.host_read, &stated.host_read),
            ("host_write", &here.host_write, &stated.host_write),
            ("line_drain", &here.line_drain, &stated.line_drain),
            ("flush", &here.flush, &stated.flush),
            ("agent_access_uncached", &here.agent_access_uncached, &stated.agent_access_uncached),
            ("dma_submit", &here.dma_submit, &stated.dma_submit),
        ] {
            // The clock counts whole nanoseconds, and costs are rounded to them.
            assert!(here.ns >= stated.ns - 1.0, "{what}: {} < {}", here.ns, stated.ns);
            assert_eq!(here.source.kind, SourceKind::Measured);
        }
        assert!(here.line_transfer.ns > 0.0);
        assert_eq!(Costs::parse(&here.to_toml()).unwrap(), here);
    }
}
