//! A link within one thread that does, from a seed, the worst that `wave_core::link` permits.
//!
//! * Stores to near (or coherent) memory wait in a store buffer until the next fence, in order.
//! * Uncached and write-through stores across the link are posted: word by word, in order, late.
//! * Write-combined lines are held until published; half of all links evict some of them earlier.
//!   Partly filled lines are torn into words in any order.
//! * Write-through lines are served as they were first seen, until flushed.
//! * An agent's stores to host memory leave when published, and arrive late.
//! * A load across the link first pushes the context's own posted stores, and on its return those that
//!   the other side had posted. Nothing pushes copies.
//! * Every other copy takes its source when it starts, the others as late as possible; their lines
//!   arrive in any order.
//!
//! Nothing arrives without a call: [`Link::tick`] delivers a part, [`Link::settle`] all of it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::layout::Layout;
use wave_core::link::{Dma, Doorbell, Home, LINE_WORDS, Mapping, Port, Side, Span, Ticket, Window};

type Line = [u64; LINE_WORDS];
const FULL: u8 = 0xff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Coherent, behind a store buffer.
    Near,
    Uncached,
    Combining,
    Through,
    /// The agent's way into host memory.
    Engine,
}

/// Words of a line on their way.
#[derive(Clone, Copy, Debug)]
struct Write {
    order: u64,
    home: Home,
    line: u32,
    mask: u8,
    words: Line,
}

impl Write {
    fn only(self, mask: u8) -> Write {
        Write { mask, ..self }
    }
}

#[derive(Debug)]
struct Context {
    side: Side,
    access: [Vec<Access>; 2],
    /// Stores to near memory, in order.
    near: VecDeque<Write>,
    /// Stores across the link, in order.
    posted: VecDeque<Write>,
    /// Stores that wait for a publish.
    gathered: BTreeMap<(u8, u32), Write>,
    cache: BTreeMap<(u8, u32), Line>,
}

#[derive(Debug)]
struct Copying {
    ticket: u64,
    from: Span,
    to: Span,
    pending: Vec<u32>,
    /// The source's contents, if they were taken at the start of the copy.
    taken: Option<Vec<Line>>,
}

#[derive(Debug)]
struct State {
    rng: Pcg32,
    evicts: bool,
    coherent: bool,
    memory: [Vec<Line>; 2],
    contexts: Vec<Context>,
    copies: Vec<Copying>,
    tickets: u64,
    order: u64,
}

impl State {
    fn read(&self, home: Home, line: u32) -> Line {
        self.memory[home as usize][line as usize]
    }

    fn arrive(&mut self, write: Write) {
        let line = &mut self.memory[write.home as usize][write.line as usize];
        overlay(line, &write);
    }

    fn near_one(&mut self, context: usize) -> bool {
        let write = self.contexts[context].near.pop_front();
        write.map(|write| self.arrive(write)).is_some()
    }

    /// A posted store is a release: near stores before it are seen before it.
    fn posted_one(&mut self, context: usize) -> bool {
        let Some(write) = self.contexts[context].posted.pop_front() else { return false };
        while self.contexts[context].near.front().is_some_and(|near| near.order < write.order) {
            self.near_one(context);
        }
        self.arrive(write);
        true
    }

    fn post(&mut self, context: usize, write: Write) {
        self.contexts[context].posted.push_back(write);
    }

    fn push_posted(&mut self, context: usize) {
        while self.posted_one(context) {}
    }

    /// Lets a gathered line leave: whole if it is full or the engine's, else torn into words.
    fn evict(&mut self, context: usize, key: (u8, u32)) {
        let Some(write) = self.contexts[context].gathered.remove(&key) else { return };
        let access = self.access(context, write.home, write.line);
        if write.mask == FULL || access == Access::Engine {
            return self.post(context, write);
        }
        let mut words: Vec<u8> = (0..8).filter(|word| write.mask & 1 << word != 0).collect();
        while !words.is_empty() {
            let at = self.rng.random_range(0..words.len());
            let mask = 1 << words.swap_remove(at);
            self.post(context, write.only(mask));
        }
    }

    fn publish(&mut self, context: usize, home: Home) {
        loop {
            let lines =
                self.contexts[context].gathered.range((home as u8, 0)..=(home as u8, u32::MAX));
            let keys: Vec<_> = lines.map(|(key, _)| *key).collect();
            if keys.is_empty() {
                return;
            }
            let key = keys[self.rng.random_range(0..keys.len())];
            self.evict(context, key);
        }
    }

    fn copy_one_line(&mut self) {
        if self.copies.is_empty() {
            return;
        }
        let which = self.rng.random_range(0..self.copies.len());
        let count = self.copies[which].pending.len();
        let at = self.rng.random_range(0..count);
        let copying = &mut self.copies[which];
        let offset = copying.pending.swap_remove(at);
        let (from, to) = (copying.from, copying.to);
        let taken = copying.taken.as_ref().map(|lines| lines[offset as usize]);
        if copying.pending.is_empty() {
            self.copies.swap_remove(which);
        }
        let line = taken.unwrap_or_else(|| self.read(from.home, from.line + offset));
        self.memory[to.home as usize][(to.line + offset) as usize] = line;
    }

    fn tick(&mut self) {
        let context = self.rng.random_range(0..self.contexts.len());
        match self.rng.random_range(0..8) {
            0 | 1 => drop(self.posted_one(context)),
            2 | 3 => drop(self.near_one(context)),
            4..=6 => self.copy_one_line(),
            _ if self.evicts => {
                let mut keys = self.contexts[context].gathered.iter();
                let key = keys.next().filter(|(_, write)| write.mask == FULL).map(|(key, _)| *key);
                if let Some(key) = key {
                    self.evict(context, key);
                }
            }
            _ => {}
        }
    }

    fn access(&self, context: usize, home: Home, line: u32) -> Access {
        self.contexts[context].access[home as usize][line as usize]
    }

    fn store(&mut self, context: usize, home: Home, line: u32, words: Line, mask: u8) {
        let access = self.access(context, home, line);
        self.order += 1;
        let write = Write { order: self.order, home, line, mask, words };
        let words = (0..8).filter(|word| mask & 1 << word != 0);
        let singles = words.map(|word| write.only(1 << word));
        let this = &mut self.contexts[context];
        match access {
            Access::Near => this.near.extend(singles),
            Access::Uncached => this.posted.extend(singles),
            Access::Through => {
                this.posted.extend(singles);
                if let Some(cached) = this.cache.get_mut(&(home as u8, line)) {
                    overlay(cached, &write);
                }
            }
            Access::Combining | Access::Engine => {
                let empty = write.only(0);
                let gathered =
                    self.contexts[context].gathered.entry((home as u8, line)).or_insert(empty);
                overlay(&mut gathered.words, &write);
                gathered.mask |= mask;
                gathered.order = write.order;
            }
        }
    }

    fn fetch(&mut self, context: usize, home: Home, line: u32) -> Line {
        self.push_posted(context);
        let words = self.read(home, line);
        let other = |context: &Context, side| context.side != side;
        let side = self.contexts[context].side;
        for peer in 0..self.contexts.len() {
            if other(&self.contexts[peer], side) {
                self.push_posted(peer);
            }
        }
        words
    }

    /// The line as the context sees it, its own stores included.
    fn load(&mut self, context: usize, home: Home, line: u32) -> Line {
        let key = (home as u8, line);
        let mut words = match self.access(context, home, line) {
            Access::Near => {
                let mut words = self.read(home, line);
                let own = self.contexts[context].near.iter();
                own.filter(|write| (write.home, write.line) == (home, line))
                    .for_each(|write| overlay(&mut words, write));
                words
            }
            Access::Through => match self.contexts[context].cache.get(&key) {
                Some(words) => *words,
                None => {
                    let words = self.fetch(context, home, line);
                    self.contexts[context].cache.insert(key, words);
                    words
                }
            },
            _ => self.fetch(context, home, line),
        };
        if let Some(write) = self.contexts[context].gathered.get(&key) {
            overlay(&mut words, write);
        }
        words
    }

    fn prefetch(&mut self, context: usize, home: Home, line: u32) {
        let key = (home as u8, line);
        if self.access(context, home, line) != Access::Through
            || self.contexts[context].cache.contains_key(&key)
        {
            return;
        }
        let mut words = self.read(home, line);
        let own = self.contexts[context].posted.iter();
        own.filter(|write| (write.home, write.line) == (home, line))
            .for_each(|write| overlay(&mut words, write));
        self.contexts[context].cache.insert(key, words);
    }

    /// Drains the store buffer as far as it holds stores to `home`.
    fn fence(&mut self, context: usize, home: Home) {
        self.publish(context, home);
        while self.contexts[context].near.iter().any(|write| write.home == home) {
            self.near_one(context);
        }
    }
}

fn overlay(words: &mut Line, write: &Write) {
    for (at, word) in words.iter_mut().enumerate() {
        if write.mask & 1 << at != 0 {
            *word = write.words[at];
        }
    }
}

/// A link; clones share it.
#[derive(Clone, Debug)]
pub struct Link(Rc<RefCell<State>>);

impl Link {
    /// Zeroed memory for `layout`. On a coherent link every access is coherent.
    pub fn new(layout: &Layout, coherent: bool, seed: u64) -> Link {
        Link::of_size(layout.nic_lines, layout.host_lines, coherent, seed)
    }

    /// Zeroed memory of `lines` lines.
    pub fn of_size(nic_lines: u32, host_lines: u32, coherent: bool, seed: u64) -> Link {
        let mut rng = super::rng(seed);
        let memory = |lines| vec![[0; LINE_WORDS]; lines as usize];
        Link(Rc::new(RefCell::new(State {
            evicts: rng.random(),
            rng,
            coherent,
            memory: [memory(nic_lines), memory(host_lines)],
            contexts: Vec::new(),
            copies: Vec::new(),
            tickets: 0,
            order: 0,
        })))
    }

    /// Creates one more context of `side`.
    pub fn port(&self, side: Side, layout: &Layout) -> NastyPort {
        self.port_with(side, &layout.mappings(side))
    }

    /// Creates one more context of `side` with these page types.
    pub fn port_with(&self, side: Side, page_types: &[(Span, Mapping)]) -> NastyPort {
        let mut state = self.0.borrow_mut();
        let far = match side {
            Side::Host => (Home::Nic, Access::Uncached),
            Side::Agent => (Home::Host, Access::Engine),
        };
        let table = |home| {
            let access = match state.coherent || home != far.0 {
                true => Access::Near,
                false => far.1,
            };
            vec![access; state.memory[home as usize].len()]
        };
        let mut access = [table(Home::Nic), table(Home::Host)];
        for (span, mapping) in page_types {
            let lines = span.line as usize..(span.line + span.lines) as usize;
            for access in &mut access[span.home as usize][lines] {
                *access = match (*access, mapping) {
                    (Access::Uncached, Mapping::WriteCombining) => Access::Combining,
                    (Access::Uncached, Mapping::WriteThrough) => Access::Through,
                    (other, _) => other,
                };
            }
        }
        let context = state.contexts.len();
        state.contexts.push(Context {
            side,
            access,
            near: VecDeque::new(),
            posted: VecDeque::new(),
            gathered: BTreeMap::new(),
            cache: BTreeMap::new(),
        });
        let view = |home| View { state: Rc::clone(&self.0), context, home };
        let (nic, host) = (view(Home::Nic), view(Home::Host));
        NastyPort { nic, host, dma: Engine { state: Rc::clone(&self.0), context } }
    }

    /// Delivers a few pending stores and copies at most.
    pub fn tick(&self) {
        self.0.borrow_mut().tick();
    }

    /// Delivers everything that has left. Stores that wait for a publish keep waiting.
    pub fn settle(&self) {
        let mut state = self.0.borrow_mut();
        for context in 0..state.contexts.len() {
            state.push_posted(context);
            while state.near_one(context) {}
        }
        while !state.copies.is_empty() {
            state.copy_one_line();
        }
    }

    /// How many copies were begun.
    pub fn copies(&self) -> u64 {
        self.0.borrow().tickets
    }

    /// The word as it is in memory, for either side.
    pub fn peek(&self, home: Home, line: u32, word: usize) -> u64 {
        self.0.borrow().memory[home as usize][line as usize][word]
    }

    /// Changes a word, as a hostile peer would.
    pub fn poke(&self, home: Home, line: u32, word: usize, value: u64) {
        self.0.borrow_mut().memory[home as usize][line as usize][word] = value;
    }

    /// How many lines a region has.
    pub fn lines(&self, home: Home) -> u32 {
        self.0.borrow().memory[home as usize].len() as u32
    }
}

/// One context's access to the window.
#[derive(Debug)]
pub struct NastyPort {
    nic: View,
    host: View,
    dma: Engine,
}

/// One context's view of one region.
#[derive(Debug)]
pub struct View {
    state: Rc<RefCell<State>>,
    context: usize,
    home: Home,
}

/// One context's copy engine.
#[derive(Debug)]
pub struct Engine {
    state: Rc<RefCell<State>>,
    context: usize,
}

impl Port for NastyPort {
    type Window = View;
    type Dma = Engine;

    fn window(&self, home: Home) -> &View {
        match home {
            Home::Nic => &self.nic,
            Home::Host => &self.host,
        }
    }

    fn dma(&self) -> &Engine {
        &self.dma
    }
}

impl Window for View {
    fn load(&self, line: u32, word: usize) -> u64 {
        self.state.borrow_mut().load(self.context, self.home, line)[word]
    }

    fn store(&self, line: u32, word: usize, value: u64) {
        let mut words = [0; LINE_WORDS];
        words[word] = value;
        self.state.borrow_mut().store(self.context, self.home, line, words, 1 << word);
    }

    fn read_line(&self, line: u32, words: &mut [u64]) {
        let read = self.state.borrow_mut().load(self.context, self.home, line);
        words.copy_from_slice(&read[..words.len()]);
    }

    fn write_line(&self, line: u32, words: &[u64], last: u64) {
        let mut all = [0; LINE_WORDS];
        all[..LINE_WORDS - 1][..words.len()].copy_from_slice(words);
        all[LINE_WORDS - 1] = last;
        let mut state = self.state.borrow_mut();
        let combining = state.access(self.context, self.home, line) == Access::Combining;
        let given = ((1u16 << words.len()) - 1) as u8 | 1 << (LINE_WORDS - 1);
        let mask = if combining { FULL } else { given };
        state.store(self.context, self.home, line, all, mask);
    }

    fn publish(&self) {
        self.state.borrow_mut().publish(self.context, self.home);
    }

    fn fence(&self) {
        self.state.borrow_mut().fence(self.context, self.home);
    }

    fn flush(&self, line: u32) {
        self.state.borrow_mut().contexts[self.context].cache.remove(&(self.home as u8, line));
    }

    fn prefetch(&self, line: u32) {
        self.state.borrow_mut().prefetch(self.context, self.home, line);
    }
}

impl Dma for Engine {
    fn copy(&self, from: Span, to: Span) -> Ticket {
        assert_eq!(
            from.lines, to.lines,
            "source and target of a copy must have the same number of lines"
        );
        let mut state = self.state.borrow_mut();
        while state.near_one(self.context) {}
        state.tickets += 1;
        let ticket = state.tickets;
        let pending: Vec<u32> = (0..from.lines).collect();
        for span in [from, to] {
            assert!((span.line + span.lines) as usize <= state.memory[span.home as usize].len());
        }
        if !pending.is_empty() {
            let lines = (0..from.lines).map(|line| state.read(from.home, from.line + line));
            let taken = ticket.is_multiple_of(2).then(|| lines.collect());
            state.copies.push(Copying { ticket, from, to, pending, taken });
        }
        Ticket(ticket)
    }

    fn is_done(&self, ticket: Ticket) -> bool {
        let mut state = self.state.borrow_mut();
        // Waiting for a copy advances time.
        state.tick();
        state.copies.iter().all(|copying| copying.ticket != ticket.0)
    }
}

/// A doorbell that remembers a ring. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Bell(Rc<Cell<bool>>);

impl Bell {
    /// Whether it was rung since the last time.
    pub fn take(&self) -> bool {
        self.0.take()
    }
}

impl Doorbell for Bell {
    fn ring(&self) {
        self.0.set(true);
    }
}
