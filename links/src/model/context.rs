//! One context of a modelled link: the costs of its accesses and the values that they see.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};

use wave_core::clock::Nanos;
use wave_core::link::{Home, LINE_BYTES, LINE_WORDS, Mapping, Side, Span};

use super::charges::Charges;
use super::pcie::Carried;
use super::setup::{Access, ModelError, Prices, access_table};
use super::stamps::Stamps;
use super::time::Timebase;
use crate::costs::Costs;
use crate::memory::Memory;

/// Write-combining buffers of a CPU; also lines that an agent stages for its copy engine.
const BUFFERS_MAX: usize = 10;
const WHOLE_LINE: u8 = 0xff;
const WORD_BYTES: u64 = (LINE_BYTES / LINE_WORDS) as u64;

pub(super) struct Context<T> {
    stamps: Stamps,
    time: T,
    side: Side,
    prices: Prices,
    access: [Box<[Access]>; 2],
    state: RefCell<State>,
}

struct State {
    /// The latest time that this context has seen, in nanoseconds.
    now: u64,
    /// When the last posted store becomes visible.
    last_visible: u64,
    buffers: Vec<Buffer>,
    caches: [Cache; 2],
    charges: Charges,
    random: u64,
}

/// Stores that wait in this context for a publish.
struct Buffer {
    home: Home,
    line: u32,
    words: [u64; LINE_WORDS],
    mask: u8,
}

/// Lines as this context last saw them, allocated in runs at the first use of one of them: a context
/// uses few of all lines.
struct Cache(Vec<Option<Box<[Line; LINES_TOGETHER]>>>);

#[derive(Clone, Copy)]
struct Line {
    /// [`ABSENT`], [`CACHED`], or the arrival time of a prefetched line that was not used yet.
    ready: u64,
    /// Coherent links: the line's stamp when this context last saw it.
    seen: u64,
    /// Write-through lines: their words.
    words: [u64; LINE_WORDS],
}

const LINES_TOGETHER: usize = 64;
const UNUSED: Line = Line { ready: ABSENT, seen: 0, words: [0; LINE_WORDS] };

impl Cache {
    fn new(lines: u32) -> Cache {
        Cache((0..(lines as usize).div_ceil(LINES_TOGETHER)).map(|_| None).collect())
    }

    #[inline]
    fn line(&mut self, line: u32) -> &mut Line {
        let (run, at) = (line as usize / LINES_TOGETHER, line as usize % LINES_TOGETHER);
        &mut self.0[run].get_or_insert_with(|| Box::new([UNUSED; LINES_TOGETHER]))[at]
    }
}

const ABSENT: u64 = 0;
const CACHED: u64 = 1;

impl<T> std::fmt::Debug for Context<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("side", &self.side).finish_non_exhaustive()
    }
}

impl<T: Timebase> Context<T> {
    pub fn new(
        memory: Arc<Memory>,
        side: Side,
        costs: &Costs,
        page_types: &[(Span, Mapping)],
        time: T,
        seed: u64,
    ) -> Result<Context<T>, ModelError> {
        let stamps = Stamps::new(memory).ok_or(ModelError::NoRoom)?;
        let access = access_table(&stamps, side, costs.coherent, page_types)?;
        let cache = |home| Cache::new(stamps.lines(home));
        let state = RefCell::new(State {
            now: 0,
            last_visible: 0,
            buffers: Vec::with_capacity(BUFFERS_MAX),
            caches: [cache(Home::Nic), cache(Home::Host)],
            charges: Charges::default(),
            random: seed,
        });
        Ok(Context { stamps, time, side, prices: Prices::new(costs, side), access, state })
    }

    /// Whether a copy with this time of arrival has arrived.
    pub fn has_arrived(&self, then: u64) -> bool {
        let arrived = self.time.now().0 >= then;
        if !arrived {
            self.time.on_empty_poll();
        }
        arrived
    }

    pub fn charges(&self) -> Charges {
        self.state.borrow().charges
    }

    pub fn take_charges(&self) -> Charges {
        std::mem::take(&mut self.state.borrow_mut().charges)
    }

    /// Loads `words.len()` words of a line, from `first` on.
    #[inline(never)] // so that links of other kinds pay nothing for it
    pub fn load(&self, home: Home, line: u32, first: usize, words: &mut [u64]) {
        assert!(first + words.len() <= LINE_WORDS, "a line has {LINE_WORDS} words");
        let state = &mut *self.state.borrow_mut();
        match self.access(home, line) {
            Access::Near => self.load_near(state, home, line, first, words),
            Access::NearUncached => {
                self.occupy_near(state, words.len() as u64);
                self.load_near(state, home, line, first, words);
            }
            Access::Coherent => self.load_coherent(state, home, line, first, words),
            Access::Through => self.load_through(state, home, line, first, words),
            Access::Engine => {
                self.drain_line(state, home, line);
                self.load_far(state, home, line, first, words);
            }
            Access::Uncached | Access::Combining => {
                self.drain_line(state, home, line);
                for (offset, word) in words.iter_mut().enumerate() {
                    let word = std::slice::from_mut(word);
                    self.load_far(state, home, line, first + offset, word);
                }
            }
        }
    }

    /// Stores the words of a line that `mask` names.
    #[inline(never)]
    pub fn store(&self, home: Home, line: u32, words: [u64; LINE_WORDS], mask: u8) {
        let state = &mut *self.state.borrow_mut();
        match self.access(home, line) {
            Access::Near => self.store_near(state, home, line, &words, mask),
            Access::NearUncached => {
                self.occupy_near(state, u64::from(mask.count_ones()));
                self.store_near(state, home, line, &words, mask);
            }
            Access::Coherent => {
                let visible = self.post(state, home, line, &words, mask, 0);
                let cached = state.caches[home as usize].line(line);
                cached.seen = visible.max(cached.seen);
            }
            Access::Uncached | Access::Through => {
                for word in words_of(mask) {
                    let start = self.tick(state);
                    let occupied = self.prices.host_write;
                    self.post(state, home, line, &words, 1 << word, occupied);
                    state.charges.far_stores.charge(occupied);
                    self.time.carried(Carried::write(home, WORD_BYTES));
                    self.time.spend_until(Nanos(start.saturating_add(occupied)));
                    // Without effect if the line is not cached.
                    state.caches[home as usize].line(line).words[word] = words[word];
                }
            }
            Access::Combining | Access::Engine => self.buffer(state, home, line, &words, mask),
        }
    }

    /// Stores a line: the words in `mask` as given, the rest zero.
    pub fn store_line(&self, home: Home, line: u32, words: [u64; LINE_WORDS], mask: u8) {
        let combining = self.access(home, line) == Access::Combining;
        self.store(home, line, words, if combining { WHOLE_LINE } else { mask });
    }

    /// Drains the region's buffers; buffers of the CPU drain in any order.
    pub fn publish(&self, home: Home) {
        let state = &mut *self.state.borrow_mut();
        if self.side == Side::Host {
            for left in (1..state.buffers.len()).rev() {
                let chosen = state.below(left as u64 + 1) as usize;
                state.buffers.swap(left, chosen);
            }
        }
        while let Some(index) = state.buffers.iter().position(|buffer| buffer.home == home) {
            self.drain(state, index);
        }
    }

    pub fn fence(&self, home: Home) {
        self.publish(home);
        fence(SeqCst);
    }

    /// Drops a write-through line from the cache.
    pub fn flush(&self, home: Home, line: u32) {
        if self.access(home, line) == Access::Through {
            let state = &mut *self.state.borrow_mut();
            state.caches[home as usize].line(line).ready = ABSENT;
            state.charges.flushes.charge(self.prices.flush);
            self.time.spend(Nanos(self.prices.flush));
        }
    }

    /// Starts to fetch a write-through line, or a line of a coherent link that changed.
    pub fn prefetch(&self, home: Home, line: u32) {
        let access = self.access(home, line);
        if !matches!(access, Access::Through | Access::Coherent) {
            return;
        }
        let state = &mut *self.state.borrow_mut();
        let arrives = match access {
            Access::Through if state.caches[home as usize].line(line).ready == ABSENT => {
                let now = self.tick(state);
                // Like a demand load, it follows this context's own posted stores, and sees them.
                let horizon = now.max(state.last_visible);
                let cached = state.caches[home as usize].line(line);
                self.sample(home, line, 0, &mut cached.words, horizon);
                let served = state.last_visible.max(now + self.prices.there);
                self.time.carried(Carried::read(home, LINE_BYTES as u64));
                served + self.prices.back
            }
            Access::Coherent => {
                let now = self.tick(state);
                let newest = self.stamps.newest(home, line, now.max(state.last_visible));
                let cached = state.caches[home as usize].line(line);
                if newest <= cached.seen {
                    return;
                }
                cached.seen = newest;
                now + self.prices.line_transfer + self.time.held_up().0
            }
            _ => return,
        };
        state.caches[home as usize].line(line).ready = arrives.max(CACHED + 1);
        state.charges.prefetches += 1;
    }

    /// Starts a copy. Returns its time of arrival.
    pub fn copy(&self, from: Span, to: Span) -> u64 {
        assert_eq!(
            from.lines, to.lines,
            "source and target of a copy must have the same number of lines"
        );
        let state = &mut *self.state.borrow_mut();
        let start = self.tick(state);
        let kib = f64::from(from.lines) * LINE_BYTES as f64 / 1024.0;
        let carried = (kib * self.prices.dma_ns_per_kib).round() as u64;
        let jitter = state.below(self.prices.dma_flight / 2 + 1);
        let submitted = start.saturating_add(self.prices.dma_submit);
        let flight = self.prices.dma_flight + carried + jitter + self.time.held_up().0;
        let arrives = submitted.saturating_add(flight);
        let horizon = start.max(state.last_visible);
        let mut last = arrives;
        for offset in 0..from.lines {
            let (source, target) = (from.line + offset, to.line + offset);
            self.access(from.home, source);
            self.access(to.home, target);
            self.wait_for_words(state, to.home, target, WHOLE_LINE);
            let mut words = [0; LINE_WORDS];
            self.sample(from.home, source, 0, &mut words, horizon);
            let seen = self.time.staged(to.home, target, &words, Nanos(arrives)).0;
            for (word, value) in words.into_iter().enumerate() {
                self.stamps.put(to.home, target, word, value, seen);
            }
            self.time.stored(to.home, target, WHOLE_LINE, Nanos(seen));
            last = last.max(seen);
        }
        let bytes = u64::from(from.lines) * LINE_BYTES as u64;
        // The engine belongs to the NIC: it writes to host memory, and reads from it.
        self.time.carried(match to.home {
            Home::Host => Carried::write(Home::Host, bytes),
            Home::Nic => Carried::read(Home::Host, bytes),
        });
        state.charges.copies.charge(self.prices.dma_submit);
        self.time.spend_until(Nanos(submitted));
        last
    }

    fn access(&self, home: Home, line: u32) -> Access {
        let table = &self.access[home as usize];
        match table.get(line as usize) {
            Some(access) => *access,
            None => panic!("line {line} lies outside a region of {} lines", table.len()),
        }
    }

    /// Reads the clock, and keeps the time as the latest seen.
    fn tick(&self, state: &mut State) -> u64 {
        state.now = state.now.max(self.time.now().0);
        state.now
    }

    fn occupy_near(&self, state: &mut State, words: u64) {
        for _ in 0..words {
            state.charges.near_accesses.charge(self.prices.near_access);
        }
        self.time.spend(Nanos(words * self.prices.near_access));
    }

    fn load_near(&self, state: &mut State, home: Home, line: u32, first: usize, words: &mut [u64]) {
        if self.prices.line_transfer > 0 {
            self.bring_near(state, home, line);
        }
        for (offset, word) in words.iter_mut().enumerate() {
            let index = first + offset;
            // The clock is read only if the last known time does not decide.
            if self.stamps.stamp(home, line, index) > state.now {
                self.tick(state);
            }
            *word = self.stamps.word(home, line, index, state.now);
        }
    }

    /// Brings a line of near memory that the other side changed into the cache.
    #[cold] // only measured links charge for it
    #[inline(never)]
    fn bring_near(&self, state: &mut State, home: Home, line: u32) {
        let newest = self.stamps.newest(home, line, self.tick(state));
        let cached = state.caches[home as usize].line(line);
        if newest > cached.seen {
            cached.seen = newest;
            self.time.spend(Nanos(self.prices.line_transfer));
            state.charges.line_transfers.charge(self.prices.line_transfer);
        }
    }

    fn store_near(&self, state: &mut State, home: Home, line: u32, words: &[u64; 8], mask: u8) {
        for word in words_of(mask) {
            let stamp = self.stamps.stamp(home, line, word);
            let in_flight = stamp > state.now && stamp > self.tick(state);
            self.stamps.put_near(home, line, word, words[word], in_flight);
        }
        self.time.stored(home, line, mask, Nanos(state.now));
    }

    /// Loads words across the link: the load pushes this context's posted stores, is served on the other
    /// side, and on its way back pushes the peer's.
    fn load_far(&self, state: &mut State, home: Home, line: u32, first: usize, words: &mut [u64]) {
        let start = self.tick(state);
        let there = self.prices.there.saturating_add(self.time.held_up().0);
        let served = start.saturating_add(there).max(state.last_visible);
        self.time.spend_until(Nanos(served));
        // No load below may happen before that time.
        fence(SeqCst);
        let horizon = self.tick(state).max(served);
        self.sample(home, line, first, words, horizon);
        let pushed = self.stamps.arrival(other(self.side));
        let mut done = served.saturating_add(self.prices.back);
        if pushed <= self.believable(horizon) {
            done = done.max(pushed);
        }
        self.time.spend_until(Nanos(done));
        fence(SeqCst);
        state.charges.far_loads.charge(done - start);
        self.time.carried(Carried::read(home, words.len() as u64 * WORD_BYTES));
    }

    /// Reads several words at once, the last one first: a reader that finds a new last word in the
    /// result must also find the words that were written before it.
    fn sample(&self, home: Home, line: u32, first: usize, words: &mut [u64], horizon: u64) {
        for (offset, word) in words.iter_mut().enumerate().rev() {
            *word = self.stamps.word(home, line, first + offset, horizon);
        }
    }

    fn load_through(
        &self,
        state: &mut State,
        home: Home,
        line: u32,
        first: usize,
        words: &mut [u64],
    ) {
        let ready = state.caches[home as usize].line(line).ready;
        if ready == ABSENT {
            let mut fetched = [0; LINE_WORDS];
            self.load_far(state, home, line, 0, &mut fetched);
            state.caches[home as usize].line(line).words = fetched;
        } else {
            self.await_prefetch(state, ready);
            state.charges.cache_hits += 1;
        }
        let cached = state.caches[home as usize].line(line);
        cached.ready = CACHED;
        words.copy_from_slice(&cached.words[first..][..words.len()]);
        if ready != ABSENT {
            let horizon = self.tick(state).max(state.last_visible);
            let fresh = |word: usize| self.stamps.word(home, line, word, horizon);
            let stale = words.iter().enumerate().any(|(at, word)| *word != fresh(first + at));
            state.charges.stale_hits += u64::from(stale);
        }
    }

    fn load_coherent(
        &self,
        state: &mut State,
        home: Home,
        line: u32,
        first: usize,
        words: &mut [u64],
    ) {
        let horizon = self.tick(state).max(state.last_visible);
        let newest = self.stamps.newest(home, line, horizon);
        let Line { ready, seen, .. } = *state.caches[home as usize].line(line);
        if newest > seen {
            let transfer = self.prices.line_transfer + self.time.held_up().0;
            self.time.spend_until(Nanos(state.now.saturating_add(transfer)));
            fence(SeqCst);
            state.charges.line_transfers.charge(transfer);
        } else if ready != ABSENT {
            self.await_prefetch(state, ready);
        }
        let horizon = self.tick(state).max(state.last_visible);
        let newest = self.stamps.newest(home, line, horizon);
        let cached = state.caches[home as usize].line(line);
        (cached.ready, cached.seen) = (ABSENT, newest);
        for (offset, word) in words.iter_mut().enumerate() {
            *word = self.stamps.word(home, line, first + offset, horizon);
        }
    }

    /// Waits for a line that was prefetched to arrive at `ready`, on its first use.
    fn await_prefetch(&self, state: &mut State, ready: u64) {
        if ready == CACHED {
            return;
        }
        let now = self.tick(state);
        let end = ready.max(now).saturating_add(self.prices.prefetch_residue);
        if end > now {
            self.time.spend_until(Nanos(end));
            state.charges.prefetch_waits.charge(end - now);
        }
        state.charges.prefetch_hits += u64::from(ready <= now);
    }

    /// Posts the named words of a line, which leave after `occupied` from now. Returns their time of arrival.
    fn post(
        &self,
        state: &mut State,
        home: Home,
        line: u32,
        words: &[u64; LINE_WORDS],
        mask: u8,
        occupied: u64,
    ) -> u64 {
        self.wait_for_words(state, home, line, mask);
        let flown = state.now.saturating_add(occupied).saturating_add(self.prices.flight);
        // If a coherent link stalls, transfers wait, not stores.
        let held_up = if self.prices.coherent { 0 } else { self.time.held_up().0 };
        let arrives = state.last_visible.max(flown.saturating_add(held_up));
        state.last_visible = self.time.staged(home, line, words, Nanos(arrives)).0;
        for word in words_of(mask) {
            self.stamps.put(home, line, word, words[word], state.last_visible);
        }
        self.stamps.posted(self.side, state.last_visible);
        self.time.stored(home, line, mask, Nanos(state.last_visible));
        state.last_visible
    }

    /// The latest time until which a store announced by the peer can be under way. The peer may lie, so the wait is bounded.
    fn believable(&self, now: u64) -> u64 {
        now.saturating_add(self.prices.wait_max).saturating_add(self.time.held_up().0)
    }

    /// Waits until the last stores to the named words of a line have arrived.
    fn wait_for_words(&self, state: &mut State, home: Home, line: u32, mask: u8) {
        let now = self.tick(state);
        let stamps = words_of(mask).map(|word| self.stamps.stamp(home, line, word));
        let honest = stamps.filter(|stamp| *stamp <= self.believable(now));
        let last = honest.max().unwrap_or(0);
        if last > now {
            self.time.spend_until(Nanos(last));
            state.charges.stalls.charge(last - now);
            self.tick(state);
        }
    }

    fn buffer(&self, state: &mut State, home: Home, line: u32, words: &[u64; 8], mask: u8) {
        let same = |buffer: &Buffer| buffer.home == home && buffer.line == line;
        let index = state.buffers.iter().position(same).unwrap_or_else(|| {
            if state.buffers.len() == BUFFERS_MAX {
                self.drain(state, 0);
            }
            state.buffers.push(Buffer { home, line, words: [0; LINE_WORDS], mask: 0 });
            state.buffers.len() - 1
        });
        let buffer = &mut state.buffers[index];
        for word in words_of(mask) {
            buffer.words[word] = words[word];
        }
        buffer.mask |= mask;
    }

    /// A context sees its own buffered stores: a load of the line drains them first.
    fn drain_line(&self, state: &mut State, home: Home, line: u32) {
        let same = |buffer: &Buffer| buffer.home == home && buffer.line == line;
        if let Some(index) = state.buffers.iter().position(same) {
            self.drain(state, index);
        }
    }

    fn drain(&self, state: &mut State, index: usize) {
        let Buffer { home, line, words, mask } = state.buffers.remove(index);
        let occupied = match self.side {
            Side::Host => self.prices.line_drain,
            Side::Agent => self.prices.dma_submit,
        };
        // A stall for the last store comes first and is charged as such.
        self.wait_for_words(state, home, line, mask);
        let start = self.tick(state);
        if mask == WHOLE_LINE || self.side == Side::Agent {
            self.post(state, home, line, &words, mask, occupied);
            self.time.carried(Carried::write(home, u64::from(mask.count_ones()) * WORD_BYTES));
        } else {
            let mut left = mask;
            while left != 0 {
                let chosen = state.below(u64::from(left.count_ones())) as usize;
                let word = words_of(left).nth(chosen).expect("chosen below their number");
                left &= !(1 << word);
                self.post(state, home, line, &words, 1 << word, occupied);
                self.time.carried(Carried::write(home, WORD_BYTES));
                // The next word arrives perceptibly later.
                state.last_visible += self.prices.flight / 8 + 1;
            }
        }
        state.charges.line_drains.charge(occupied);
        self.time.spend_until(Nanos(start.saturating_add(occupied)));
    }
}

impl State {
    /// A random number below `bound` (splitmix64; the bias at these bounds does not matter).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::Host => Side::Agent,
        Side::Agent => Side::Host,
    }
}

/// The words that a mask names, in ascending order.
fn words_of(mask: u8) -> impl Iterator<Item = usize> {
    (0..LINE_WORDS).filter(move |word| mask & (1 << word) != 0)
}
