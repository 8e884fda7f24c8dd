//! A link whose every access is model-checked, for tests of orderings.

use std::collections::BTreeMap;
use std::sync::Arc as StdArc;
use std::sync::Mutex as StdMutex;

use ::loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use ::loom::sync::atomic::{AtomicU64, fence};
use ::loom::sync::{Arc, Condvar, Mutex};
use wave_core::link::{Dma, Doorbell, Home, LINE_WORDS, Port, Span, Ticket, Window};

pub type Place = (u8, u32, usize);

/// Words that threads race for are loom's; the others belong to one thread at a time.
struct Memory {
    raced: BTreeMap<Place, AtomicU64>,
    quiet: StdMutex<BTreeMap<Place, u64>>,
}

#[derive(Clone)]
pub struct View {
    memory: StdArc<Memory>,
    home: Home,
}

impl View {
    fn load(&self, line: u32, word: usize, order: ::loom::sync::atomic::Ordering) -> u64 {
        let place = (self.home as u8, line, word);
        match self.memory.raced.get(&place) {
            Some(word) => word.load(order),
            None => self.memory.quiet.lock().unwrap().get(&place).copied().unwrap_or(0),
        }
    }

    fn store(&self, line: u32, word: usize, value: u64, order: ::loom::sync::atomic::Ordering) {
        let place = (self.home as u8, line, word);
        match self.memory.raced.get(&place) {
            Some(word) => word.store(value, order),
            None => drop(self.memory.quiet.lock().unwrap().insert(place, value)),
        }
    }
}

/// Orderings as [`wave_core::link`] requires them, and no stronger.
impl Window for View {
    fn load(&self, line: u32, word: usize) -> u64 {
        self.load(line, word, Acquire)
    }
    fn store(&self, line: u32, word: usize, value: u64) {
        self.store(line, word, value, Release);
    }
    fn read_line(&self, line: u32, words: &mut [u64]) {
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.load(line, at, Relaxed);
        }
    }
    fn write_line(&self, line: u32, words: &[u64], last: u64) {
        for (at, word) in words.iter().enumerate() {
            self.store(line, at, *word, Relaxed);
        }
        self.store(line, LINE_WORDS - 1, last, Release);
    }
    fn publish(&self) {}
    fn fence(&self) {
        fence(SeqCst);
    }
    fn flush(&self, _line: u32) {}
    fn prefetch(&self, _line: u32) {}
}

#[derive(Clone)]
pub struct LoomPort {
    pub nic: View,
    pub host: View,
    dma: Copying,
}

/// A copy engine that copies at once, by the CPU.
#[derive(Clone)]
pub struct Copying(View, View);

impl Dma for Copying {
    fn copy(&self, from: Span, to: Span) -> Ticket {
        let view = |home| if home == Home::Nic { &self.0 } else { &self.1 };
        for line in 0..from.lines {
            let last = LINE_WORDS - 1;
            let lap = view(from.home).load(from.line + line, last, Acquire);
            for word in 0..last {
                let value = view(from.home).load(from.line + line, word, Relaxed);
                view(to.home).store(to.line + line, word, value, Relaxed);
            }
            view(to.home).store(to.line + line, last, lap, Release);
        }
        Ticket(0)
    }
    fn is_done(&self, _ticket: Ticket) -> bool {
        true
    }
}

impl Port for LoomPort {
    type Window = View;
    type Dma = Copying;
    fn window(&self, home: Home) -> &View {
        if home == Home::Nic { &self.nic } else { &self.host }
    }
    fn dma(&self) -> &Copying {
        &self.dma
    }
}

pub fn port(raced: impl Iterator<Item = Place>) -> LoomPort {
    let memory = StdArc::new(Memory {
        raced: raced.map(|place| (place, AtomicU64::new(0))).collect(),
        quiet: StdMutex::default(),
    });
    let view = |home| View { memory: memory.clone(), home };
    let (nic, host) = (view(Home::Nic), view(Home::Host));
    LoomPort { dma: Copying(nic.clone(), host.clone()), nic, host }
}

#[derive(Clone)]
pub struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Default for Bell {
    fn default() -> Bell {
        Bell(Arc::new((Mutex::new(false), Condvar::new())))
    }
}

impl Bell {
    /// Without a timeout: a sleeper that is not rung sleeps for ever, which loom reports.
    pub fn wait(&self) {
        let mut rung = self.0.0.lock().unwrap();
        while !*rung {
            rung = self.0.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl Doorbell for Bell {
    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }
}

pub fn check(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 100_000;
    builder.check(body);
}
