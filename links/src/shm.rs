//! A link of ordinary, coherent shared memory: the cheapest link.
//!
//! Every operation is one bounds check and plain loads and stores; nothing is held back, so
//! publishing and flushing do nothing.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence, fence};

use wave_core::link::{Dma, Home, LINE_WORDS, Port, Span, Ticket, Window};

use crate::eviction::Eviction;
use crate::memory::Memory;

type Line = [AtomicU64; LINE_WORDS];

/// A view of one region of coherent memory.
#[derive(Clone, Debug)]
pub struct ShmWindow {
    base: NonNull<Line>,
    lines: u32,
    eviction: Eviction,
    _memory: Arc<Memory>,
}

// SAFETY: `base` points into the mapping that `_memory` keeps alive, which any thread may use and
// which is reached as atomic words only.
unsafe impl Send for ShmWindow {}

impl ShmWindow {
    /// Creates a view of the region at `home`.
    pub fn new(memory: Arc<Memory>, home: Home) -> ShmWindow {
        let words = memory.region(home);
        let lines = memory.lines(home);
        assert_eq!(words.len(), lines as usize * LINE_WORDS);
        let base = NonNull::from(words).cast();
        ShmWindow { base, lines, eviction: Eviction::new(can_evict()), _memory: memory }
    }

    #[inline(always)]
    fn line(&self, line: u32) -> &Line {
        if line >= self.lines {
            outside(line, self.lines);
        }
        // SAFETY: `line` is within the region that `base` points to, which has `lines` lines of
        // eight words (asserted in `new`) and lives as long as `_memory`.
        unsafe { self.base.add(line as usize).as_ref() }
    }
}

#[cold]
#[inline(never)]
fn outside(line: u32, lines: u32) -> ! {
    panic!("line {line} lies outside a region of {lines} lines");
}

impl Window for ShmWindow {
    #[inline(always)]
    fn load(&self, line: u32, word: usize) -> u64 {
        self.line(line)[word].load(Acquire)
    }

    #[inline(always)]
    fn store(&self, line: u32, word: usize, value: u64) {
        self.line(line)[word].store(value, Release);
    }

    #[inline(always)]
    fn read_line(&self, line: u32, words: &mut [u64]) {
        let source = &self.line(line)[..words.len()];
        for (word, source) in words.iter_mut().zip(source) {
            *word = source.load(Relaxed);
        }
    }

    #[inline(always)]
    fn write_line(&self, line: u32, words: &[u64], last: u64) {
        let target = self.line(line);
        for (target, word) in target[..LINE_WORDS - 1][..words.len()].iter().zip(words) {
            target.store(*word, Relaxed);
        }
        target[LINE_WORDS - 1].store(last, Release);
    }

    #[inline(always)]
    fn publish(&self) {
        compiler_fence(Release);
    }

    #[inline(always)]
    fn fence(&self) {
        fence(SeqCst);
    }

    #[inline(always)]
    fn flush(&self, _line: u32) {}

    #[inline(always)]
    fn prefetch(&self, line: u32) {
        prefetch(self.line(line));
    }

    #[inline(always)]
    fn release(&self, line: u32) {
        if self.eviction.next() {
            evict(self.line(line));
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn can_evict() -> bool {
    use std::arch::x86_64::__cpuid;
    // In a virtual machine, CPUID traps to the hypervisor: ask only once.
    static CAN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CAN.get_or_init(|| __cpuid(0).eax >= 7 && __cpuid(7).ebx & 1 << 23 != 0)
}

#[cfg(not(target_arch = "x86_64"))]
fn can_evict() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn evict(line: &Line) {
    // SAFETY: evicting a line of coherent memory changes no value; `can_evict` has checked that
    // the instruction exists.
    unsafe {
        std::arch::asm!("clflushopt [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn evict(_line: &Line) {}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch(line: &Line) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch is a hint and touches no memory; SSE is part of x86_64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn prefetch(_line: &Line) {}

/// A copy engine within coherent memory: a copy is done when the call returns.
#[derive(Clone, Debug)]
pub struct ShmDma {
    nic: ShmWindow,
    host: ShmWindow,
}

impl ShmDma {
    fn window(&self, home: Home) -> &ShmWindow {
        match home {
            Home::Nic => &self.nic,
            Home::Host => &self.host,
        }
    }
}

impl Dma for ShmDma {
    fn copy(&self, from: Span, to: Span) -> Ticket {
        assert_eq!(
            from.lines, to.lines,
            "source and target of a copy must have the same number of lines"
        );
        let (source, target) = (self.window(from.home), self.window(to.home));
        for offset in 0..from.lines {
            let source = source.line(from.line + offset);
            let target = target.line(to.line + offset);
            // A reader that finds a new last word in the copy must also find the words written before it.
            let last = source[LINE_WORDS - 1].load(Acquire);
            for (target, source) in target.iter().zip(&source[..LINE_WORDS - 1]) {
                target.store(source.load(Relaxed), Release);
            }
            target[LINE_WORDS - 1].store(last, Release);
        }
        Ticket(0)
    }

    #[inline(always)]
    fn is_done(&self, _ticket: Ticket) -> bool {
        true
    }
}

/// One context's access to coherent memory.
#[derive(Clone, Debug)]
pub struct ShmPort {
    nic: ShmWindow,
    host: ShmWindow,
    dma: ShmDma,
}

impl ShmPort {
    /// Access to both regions of `memory`.
    pub fn new(memory: &Arc<Memory>) -> ShmPort {
        let nic = ShmWindow::new(memory.clone(), Home::Nic);
        let host = ShmWindow::new(memory.clone(), Home::Host);
        let dma = ShmDma { nic: nic.clone(), host: host.clone() };
        ShmPort { nic, host, dma }
    }

    pub(crate) fn into_parts(self) -> (ShmWindow, ShmWindow, ShmDma) {
        (self.nic, self.host, self.dma)
    }
}

impl Port for ShmPort {
    type Window = ShmWindow;
    type Dma = ShmDma;

    #[inline(always)]
    fn window(&self, home: Home) -> &ShmWindow {
        match home {
            Home::Nic => &self.nic,
            Home::Host => &self.host,
        }
    }

    #[inline(always)]
    fn dma(&self) -> &ShmDma {
        &self.dma
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(lines_nic: u32, lines_host: u32) -> ShmPort {
        let (memory, _fd) = Memory::create("test", lines_nic, lines_host, 0).unwrap();
        ShmPort::new(&Arc::new(memory))
    }

    #[test]
    fn a_short_line_leaves_the_words_between_alone() {
        let port = port(4, 4);
        let nic = port.window(Home::Nic);
        nic.write_line(3, &[1, 2, 3, 4, 5, 6, 7], 8);
        nic.write_line(3, &[9], 10);
        let mut words = [0; 8];
        nic.read_line(3, &mut words);
        assert_eq!(words, [9, 2, 3, 4, 5, 6, 7, 10]);
        assert_eq!(port.window(Home::Host).load(3, 7), 0);
    }

    #[test]
    fn a_copy_is_done_at_once() {
        let port = port(4, 4);
        port.window(Home::Nic).write_line(1, &[1], 2);
        port.window(Home::Nic).write_line(2, &[3], 4);
        let from = Span { home: Home::Nic, line: 1, lines: 2 };
        let to = Span { home: Home::Host, line: 0, lines: 2 };
        let ticket = port.dma().copy(from, to);
        assert!(port.dma().is_done(ticket));
        assert_eq!(port.window(Home::Host).load(0, 0), 1);
        assert_eq!(port.window(Home::Host).load(1, 7), 4);
    }

    #[test]
    #[should_panic(expected = "line 4 lies outside a region of 4 lines")]
    fn a_line_outside_the_region_panics() {
        port(4, 8).window(Home::Nic).load(4, 0);
    }

    #[test]
    #[should_panic]
    fn a_line_has_only_seven_words_before_its_last() {
        port(4, 8).window(Home::Nic).write_line(0, &[0; 8], 0);
    }

    #[test]
    fn a_reader_in_another_thread_sees_whole_lines() {
        let port = port(1, 1);
        let other = port.clone();
        let writer = std::thread::spawn(move || {
            for lap in 1..=20_000u64 {
                while other.window(Home::Host).load(0, 0) + 1 != lap {
                    std::thread::yield_now();
                }
                other.window(Home::Nic).write_line(0, &[lap; 7], lap);
            }
        });
        for lap in 1..=20_000u64 {
            while port.window(Home::Nic).load(0, 7) != lap {
                std::thread::yield_now();
            }
            let mut words = [0; 7];
            port.window(Home::Nic).read_line(0, &mut words);
            assert_eq!(words, [lap; 7]);
            port.window(Home::Host).store(0, 0, lap);
        }
        writer.join().unwrap();
    }
}
