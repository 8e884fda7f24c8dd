//! The measurements of the single rows.

use std::hint::black_box;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Instant;

use wave_core::clock::Clock;
use wave_core::link::{Doorbell, LINE_WORDS, Waiter};

use super::{Effort, Measured, Spread, cpus};
use crate::doorbell::EventFd;
use crate::model::RealTime;

/// Memory to measure: whole lines.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    pub words: &'a [AtomicU64],
    pub may_write: bool,
}

impl<'a> Lines<'a> {
    fn line(self, operation: usize) -> &'a [AtomicU64] {
        let lines = self.words.len() / LINE_WORDS;
        &self.words[operation % lines * LINE_WORDS..][..LINE_WORDS]
    }
}

/// Rows that one thread measures on its own.
pub(super) fn one_thread(measured: &mut Measured, lines: Lines<'_>, effort: Effort) {
    let mut reads = vec![];
    let (mut flushes, mut flushed, mut prefetched) = (vec![], vec![], vec![]);
    for _ in 0..effort.chunks {
        reads.push(per_operation(effort, |operation| {
            black_box(lines.line(operation)[0].load(Acquire));
        }));
        if cfg!(target_arch = "x86_64") {
            // One line at a time, so that a device's single line can be measured as well.
            let (mut flush_ns, mut read_ns, mut prefetched_ns) = (0.0, 0.0, 0.0);
            for operation in 0..effort.operations {
                let line = lines.line(operation);
                flush_ns += once(|| flush(line));
                read_ns += once(|| read_and_wait(line));
                flush(line);
                prefetch(line);
                let issued = Instant::now();
                while issued.elapsed().as_nanos() < 2_000 {
                    std::hint::spin_loop();
                }
                prefetched_ns += once(|| read_and_wait(line));
            }
            let operations = effort.operations as f64;
            flushes.push(flush_ns / operations);
            flushed.push(read_ns / operations);
            prefetched.push(prefetched_ns / operations);
        }
    }
    measured.word_read = Spread::of(reads);
    measured.flush = Spread::of(flushes);
    measured.line_read = Spread::of(flushed);
    measured.prefetched_read = Spread::of(prefetched);
    if lines.may_write {
        writes(measured, lines, effort);
    }
}

/// Measures the rows of stores.
pub(super) fn writes(measured: &mut Measured, lines: Lines<'_>, effort: Effort) {
    assert!(lines.may_write);
    let (mut words, mut whole) = (vec![], vec![]);
    for _ in 0..effort.chunks {
        words.push(per_operation(effort, |operation| {
            lines.line(operation)[0].store(operation as u64, Release);
        }));
        if cfg!(target_arch = "x86_64") {
            whole.push(per_operation(effort, |operation| {
                stream(lines.line(operation), operation as u64);
            }));
        }
    }
    measured.word_write = Spread::of(words);
    measured.line_write = Spread::of(whole);
}

/// Measures a doorbell's two ends in one thread.
pub(super) fn doorbell(measured: &mut Measured, effort: Effort) -> io::Result<()> {
    let bell = EventFd::new()?;
    let (mut sends, mut receives) = (vec![], vec![]);
    for _ in 0..effort.chunks {
        sends.push(per_operation(effort, |_| bell.ring()));
        let mut receive_ns = 0.0;
        for _ in 0..effort.operations {
            bell.ring();
            receive_ns += once(|| {
                bell.drain();
            });
        }
        receives.push(receive_ns / effort.operations as f64);
    }
    measured.bell_send = Spread::of(sends);
    measured.bell_receive = Spread::of(receives);
    Ok(())
}

/// Measures the rows between this thread and a thread on CPU `other`.
pub(super) fn two_threads(
    measured: &mut Measured,
    lines: Lines<'_>,
    other: usize,
    effort: Effort,
) -> io::Result<()> {
    assert!(lines.may_write);
    let (there, back) = (&lines.line(0)[0], &lines.line(2)[0]);
    let (bell, answer) = (EventFd::new()?, EventFd::new()?);
    let woken = AtomicU64::new(0);
    there.store(0, SeqCst);
    back.store(0, SeqCst);
    let rounds = (effort.chunks * effort.operations) as u64;
    let (mut transfers, mut kicks) = (vec![], vec![]);
    let warning = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let pinned = cpus::pin(&[other]);
            for round in 1..=rounds {
                spin_until(there, round);
                back.store(round, Release);
            }
            for _ in 0..effort.chunks {
                bell.wait(None);
                woken.store(RealTime.now().0, Release);
                answer.ring();
            }
            pinned.err().map(|error| error.to_string())
        });
        let mut round = 0;
        for _ in 0..effort.chunks {
            let both_ways = per_operation(effort, |_| {
                round += 1;
                there.store(round, Release);
                spin_until(back, round);
            });
            transfers.push(both_ways / 2.0);
        }
        for _ in 0..effort.chunks {
            // Give the other thread time to fall asleep in its wait: that is what is measured.
            std::thread::sleep(std::time::Duration::from_micros(200));
            let sent = RealTime.now();
            bell.ring();
            answer.wait(None);
            kicks.push(woken.load(Acquire).saturating_sub(sent.0) as f64);
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    measured.warnings.extend(warning);
    measured.line_transfer = Spread::of(transfers);
    measured.bell_end_to_end = Spread::of(kicks);
    Ok(())
}

pub(super) fn spin_until(word: &AtomicU64, value: u64) {
    let mut looks = 0u32;
    while word.load(Acquire) != value {
        std::hint::spin_loop();
        looks += 1;
        // Unpinned threads may share a CPU.
        if looks.is_multiple_of(1 << 16) {
            std::thread::yield_now();
        }
    }
}

fn per_operation(effort: Effort, mut operation: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    for index in 0..effort.operations {
        operation(index);
    }
    start.elapsed().as_nanos() as f64 / effort.operations as f64
}

fn once(operation: impl FnOnce()) -> f64 {
    let start = Instant::now();
    operation();
    start.elapsed().as_nanos() as f64
}

/// Loads a word, and waits until its value has arrived.
fn read_and_wait(line: &[AtomicU64]) {
    black_box(line[0].load(Relaxed));
    #[cfg(target_arch = "x86_64")]
    // SAFETY: lfence only orders; SSE2 is part of x86_64.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
}

fn flush(line: &[AtomicU64]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the address is that of a live line, and clflush changes no memory.
    unsafe {
        std::arch::x86_64::_mm_clflush(line.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
    fence(SeqCst);
}

fn prefetch(line: &[AtomicU64]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint and touches no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Stores a line around the cache, and waits until it has left.
fn stream(line: &[AtomicU64], value: u64) {
    #[cfg(target_arch = "x86_64")]
    for word in line {
        let value = value as i64;
        // SAFETY: the instruction stores the eight bytes of a live, aligned AtomicU64, which is
        // one access to the hardware; assembly, because the intrinsic would be a plain access to
        // the compiler, of a word that others may access at the same time.
        unsafe {
            std::arch::asm!("movnti [{}], {}", in(reg) word.as_ptr(), in(reg) value,
                options(nostack, preserves_flags));
        }
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: sfence only orders; SSE is part of x86_64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (line, value);
}
