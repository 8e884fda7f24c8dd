//! The host's side: reports mappings, carries out decisions, sends readings.
//!
//! One thread owns it, with the window's one core and its control context. Free of I/O except for [`Tiers`], which the Linux
//! host and the simulator implement.
//!
//! ```text
//!  Table ── STRIP messages ──────────────────> agent
//!  Tiers ── bits ──> Table ── readings (bulk) ─> agent
//!    ^                                             │
//!    └── clear, page out, bring back <── apply <── decisions, one queue
//! ```

use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::control::HostControl;
use wave_core::host::{HostCore, Mechanism, Next};
use wave_core::layout::{Config, Layout, PoolConfig};
use wave_core::link::{Port, Transport};
use wave_core::message::Decision;
use wave_core::outcome::{Code, Counts};
use wave_core::snapshot::CoreRecord;

use crate::guard::{Guard, Held};
use crate::table::{Bits, Table};
use crate::wire::{self, Action, BATCH_PAGES, Place, STRIP_BATCHES};

/// The pool that carries readings.
pub const READINGS: usize = 0;
/// Words of readings that are gathered before they are sent.
const ENOUGH_WORDS: usize = 2_048;
/// The most words in one strip's readings: each batch in a reading of its own.
const STRIP_WORDS_MAX: usize = 64 * 5;
/// Number of scans in a row with every page of a batch young after which the batch is suspect.
const SUSPECT_SCANS: u8 = 3;

/// The configuration of an enclave of at most `strips` strips: one core, decisions in a queue that is pushed to the host,
/// readings as bulk data.
pub fn config(strips: u32) -> Config {
    let mut config = Config::coherent(1);
    config.contexts = 1;
    config.subjects = strips;
    config.prestage = 32;
    config.subsystem = crate::SUBSYSTEM.id;
    config.pools[READINGS] =
        PoolConfig { extents: 8, lines: 512, transport: Transport::DmaAsync, ..PoolConfig::NONE };
    // Twice the longest scan period, plus time to page out in between.
    config.patience = Nanos::from_millis(30_000);
    config
}

/// The owner of the pages: a kernel, or a model.
pub trait Tiers {
    /// Time on the host's monotonic clock.
    fn now(&self) -> Nanos;

    /// Reads the access bits of a strip. `None` if its program has ended or executed another.
    fn read(&mut self, place: Place) -> Option<Bits>;

    /// Clears the access bits of batches. Returns the batches whose bits cannot be cleared.
    fn clear(&mut self, place: Place, batches: u64) -> u64;

    /// Moves batches to the slow tier, in pieces, except pages that `seen` shows as young, and batches for which that would
    /// save nothing.
    ///
    /// # Errors
    /// UNSUPPORTED, INVALID_TARGET, NOT_PERMITTED: no later attempt can succeed. HELD: the slow tier is full.
    fn page_out(&mut self, place: Place, batches: u64, seen: &Bits) -> Result<Cost, Code>;

    /// Estimates the cost of these batches in the slow tier, except for pages that `seen` shows as young. By default
    /// [`Cost::NONE`]: a model's pages have no contents.
    fn cost(&mut self, _place: Place, _batches: u64, _seen: &Bits) -> Cost {
        Cost::NONE
    }

    /// Moves batches to the fast tier, in pieces.
    ///
    /// # Errors
    /// As for [`Tiers::page_out`].
    fn bring_back(&mut self, place: Place, batches: u64) -> Result<(), Code>;
}

/// The cost of pages in a slow tier that is the machine's own memory, compressed. An estimate.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Bytes per page of each batch.
    pub bytes: [u16; STRIP_BATCHES as usize],
    /// Batches that were not moved: they do not compress.
    pub incompressible: u64,
}

impl Cost {
    /// The cost in a slow tier outside the machine's memory.
    pub const NONE: Cost = Cost { bytes: [0; STRIP_BATCHES as usize], incompressible: 0 };
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Scans that were carried out.
    pub scans: u64,
    /// Batches that were read.
    pub batches_read: u64,
    /// Batches that were cleared because a page was young.
    pub batches_cleared: u64,
    /// Pages that went to the slow tier.
    pub pages_out: u64,
    /// Pages that stayed when they were to be paged out: another process maps them too, or the kernel holds them. A page counts
    /// each time it stays.
    pub stayed: u64,
    /// Pages that were brought back before they were touched.
    pub pages_brought_back: u64,
    /// Pages that came back because they were touched.
    pub refaults: u64,
    /// Refaults that were a sweep's: touched once, and not again.
    pub swept: u64,
    /// Page-outs that the guard held back because of refaults.
    pub held_for_refaults: u64,
    /// Page-outs that the guard held back because of pressure.
    pub held_for_pressure: u64,
    /// Pages that would have been paged out, had it not been a dry run.
    pub dry_pages: u64,
    /// Bytes that these would have taken in compressed memory. An estimate.
    pub dry_compressed_bytes: u64,
    /// Pages of batches that were left out because they do not compress.
    pub incompressible: u64,
    /// Batches that were left out because clearing their bits has no effect: memory that a fork shares.
    pub unclearable: u64,
}

/// Result of a step of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call `step` again at once.
    Progress,
    /// Nothing to do until a doorbell rings, or for a moment.
    Idle,
}

/// A violation of the protocol by the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The agent wrote invalid data.
    Nonsense,
    /// The agent let strips wait for longer than the configuration's patience.
    Late,
}

/// State that outlives an agent.
#[derive(Debug)]
pub struct State {
    /// The strips, as the host knows them.
    pub table: Table,
    /// The limits on refaults and pressure.
    pub guard: Guard,
    /// Counts of completed work.
    pub totals: Totals,
    /// A dry run: nothing is paged out, only counted.
    pub dry_run: bool,
    /// Per strip and batch: number of scans in a row with every page young.
    suspects: Vec<[u8; 64]>,
    extent: Vec<u64>,
}

impl State {
    /// State for at most `strips` strips.
    pub fn new(strips: u32, guard: Guard, dry_run: bool) -> State {
        let table = Table::new(strips);
        let (totals, suspects) = (Totals::default(), Vec::new());
        State { table, guard, totals, dry_run, suspects, extent: Vec::new() }
    }

    fn refaulted(&mut self, now: Nanos, pages: u64) {
        self.totals.refaults += pages;
        self.guard.refaulted(now, pages);
    }

    fn scan<T: Tiers>(&mut self, tiers: &mut T, place: Place, id: u32, batches: u64) -> Option<()> {
        let bits = tiers.read(place)?;
        let now = tiers.now();
        let seen = self.table.read(id, batches, &bits, now, &mut self.extent);
        self.totals.scans += 1;
        self.totals.batches_read += seen.batches;
        self.refaulted(now, seen.refaults);
        for (then, pages) in seen.swept {
            self.totals.swept += pages;
            self.guard.swept(now, then, pages);
        }
        let young = wire::bits(batches)
            .filter(|batch| bits.young[*batch as usize] != 0)
            .fold(0, |mask, batch| mask | 1 << batch);
        let failed = if young != 0 { tiers.clear(place, young) } else { 0 };
        self.totals.batches_cleared += u64::from(young.count_ones());
        self.table.cleared(id, batches, failed, now);
        self.suspect(tiers, place, id, batches, &bits)
    }

    /// Clearing memory that a fork shares reports success but has no effect: batches whose pages stay young although they were
    /// cleared a moment ago are left out.
    fn suspect<T: Tiers>(
        &mut self,
        tiers: &mut T,
        place: Place,
        id: u32,
        batches: u64,
        bits: &Bits,
    ) -> Option<()> {
        let at = id as usize;
        if self.suspects.len() <= at {
            self.suspects.resize(at + 1, [0; 64]);
        }
        let mut suspects = 0;
        for batch in wire::bits(batches) {
            let lane = batch as usize;
            // A few pages may well be touched again within microseconds.
            let many = bits.present[lane].count_ones() >= BATCH_PAGES / 2;
            let all = many && bits.young[lane] == bits.present[lane];
            let count = &mut self.suspects[at][lane];
            *count = if all { *count + 1 } else { 0 };
            if *count >= SUSPECT_SCANS {
                *count = 0;
                suspects |= 1_u64 << batch;
            }
        }
        if suspects == 0 {
            return Some(());
        }
        let after = tiers.read(place)?;
        let stuck = wire::bits(suspects).filter(|batch| {
            let (young, present) = (after.young[*batch as usize], after.present[*batch as usize]);
            // A program touches few pages in this short time.
            let stays = young.count_ones() * 8 > present.count_ones() * 7;
            stays && bits.huge >> (batch / wire::UNIT_BATCHES) & 1 == 0
        });
        let stuck: u64 = stuck.fold(0, |mask, batch| mask | 1 << batch);
        self.totals.unclearable += u64::from(stuck.count_ones());
        self.table.leave_unclearable(id, stuck);
        Some(())
    }

    fn page_out<T: Tiers>(
        &mut self,
        tiers: &mut T,
        place: Place,
        id: u32,
        batches: u64,
    ) -> Result<(), Code> {
        if self.dry_run {
            let bits = tiers.read(place).ok_or(Code::TargetNotFound)?;
            let fresh = self.table.would_page_out(id, batches);
            let Cost { bytes, incompressible } = tiers.cost(place, fresh, &bits);
            for batch in wire::bits(fresh).map(|batch| batch as usize) {
                let pages = u64::from((bits.present[batch] & !bits.young[batch]).count_ones());
                if incompressible >> batch & 1 != 0 {
                    self.totals.incompressible += pages;
                    continue;
                }
                self.totals.dry_pages += pages;
                self.totals.dry_compressed_bytes += pages * u64::from(bytes[batch]);
            }
            return Err(Code::Held);
        }
        match self.guard.held(tiers.now()) {
            Some(Held::Slowdown | Held::Refaults) => self.totals.held_for_refaults += 1,
            Some(Held::Pressure) => self.totals.held_for_pressure += 1,
            None => {
                let before = tiers.read(place).ok_or(Code::TargetNotFound)?;
                // Paging out a part of a page that has become huge since the last look would split it.
                if self.table.note_huge(id, &before) {
                    return Err(Code::TargetStale);
                }
                let refaults = self.table.count_refaults(id, batches, &before, tiers.now());
                self.refaulted(tiers.now(), refaults);
                // Leave pages that were touched since they were scanned, as they would be touched again: a batch is cold as a
                // whole, but a few of its pages may be an allocator's.
                let Cost { bytes, incompressible } = tiers.page_out(place, batches, &before)?;
                let incompressible = incompressible & batches;
                let batches = batches & !incompressible;
                self.totals.incompressible += wire::bits(incompressible)
                    .map(|batch| u64::from(before.present[batch as usize].count_ones()))
                    .sum::<u64>();
                self.table.leave_incompressible(id, incompressible);
                if batches == 0 {
                    return Err(Code::Unsupported);
                }
                let after = tiers.read(place).ok_or(Code::TargetNotFound)?;
                let moved = self.table.paged_out(id, batches, &bytes, &before, &after);
                self.totals.pages_out += moved.pages;
                self.totals.stayed += moved.stayed;
                if moved.partial == 0 {
                    return Ok(());
                }
                // The kernel accepted the advice for all pages, but some stayed: only the page table shows which.
                self.table.show(id, batches, &after, &mut self.extent);
                return Err(Code::Partial);
            }
        }
        Err(Code::Held)
    }
}

/// Checks decisions against the table, and carries them out.
struct Hands<'a, T> {
    state: &'a mut State,
    tiers: &'a mut T,
}

impl<T: Tiers> Mechanism for Hands<'_, T> {
    type Work = ();

    fn apply(&mut self, decision: &Decision) -> Result<(), Code> {
        let Hands { state, tiers } = self;
        let action = Action::from_number(decision.kind).ok_or(Code::UnsupportedVersion)?;
        let id = decision.subject.id;
        let (place, mapped, sequence) =
            state.table.find(decision.subject).ok_or(Code::TargetNotFound)?;
        if action != Action::Scan && decision.sequence != sequence {
            return Err(Code::TargetStale);
        }
        // Moving a part of a huge page would split it.
        let huge = state.table.huge(id);
        let asked = decision.argument & mapped;
        let whole = wire::bits(wire::firsts(huge))
            .map(|first| 0xff << first)
            .filter(|unit: &u64| asked & unit == *unit)
            .fold(0, |mask, unit| mask | unit);
        let batches = asked & (!wire::whole(huge) | whole);
        if batches == 0 {
            return Err(Code::InvalidTarget);
        }
        match action {
            Action::Scan => {
                state.scan(*tiers, place, id, batches).ok_or(Code::TargetNotFound)?;
            }
            Action::PageOut => state.page_out(*tiers, place, id, batches)?,
            Action::BringBack => {
                // Pages that have come back by themselves are refaults.
                let bits = tiers.read(place).ok_or(Code::TargetNotFound)?;
                let now = tiers.now();
                let refaults = state.table.count_refaults(id, batches, &bits, now);
                state.refaulted(now, refaults);
                tiers.bring_back(place, batches)?;
                state.totals.pages_brought_back += state.table.brought_back(id, batches);
            }
        }
        Ok(())
    }
}

/// The host's ends of one incarnation's window.
#[derive(Debug)]
pub struct Server {
    core: HostCore,
    control: HostControl,
    patience: Nanos,
    wants_snapshot: bool,
    decided: Nanos,
    answered: u64,
    rings: bool,
}

impl Server {
    /// The ends of a fresh window. Panics unless the window has one core and extents that hold a strip's readings.
    pub fn new(layout: &Layout, run: u32, now: Nanos) -> Server {
        let Config { cores, patience, .. } = layout.config;
        let readings = layout.config.bulk();
        assert!(cores == 1 && readings.words() >= STRIP_WORDS_MAX, "{:?}", layout.config);
        Server {
            core: HostCore::new(layout, 0, run, true),
            control: HostControl::new(layout),
            patience,
            wants_snapshot: true,
            decided: now,
            answered: 0,
            rings: false,
        }
    }

    /// The control context, for the code that lets agents attach.
    pub fn control(&self) -> &HostControl {
        &self.control
    }

    /// The core's record for a snapshot.
    pub fn record(&self) -> CoreRecord {
        self.core.record()
    }

    /// Number of outcomes, by code.
    pub fn counts(&self) -> &Counts {
        self.core.counts()
    }

    /// Whether the agent sleeps and must be woken by its doorbell; cleared by reading.
    pub fn take_ring(&mut self) -> bool {
        core::mem::take(&mut self.rings)
    }

    /// Does a bounded amount of work: at most one decision.
    ///
    /// # Errors
    /// The agent violated the protocol and must be revoked.
    pub fn step<P: Port, T: Tiers>(
        &mut self,
        port: &P,
        state: &mut State,
        tiers: &mut T,
    ) -> Result<Step, Fault> {
        let requests = self.control.poll(port);
        self.wants_snapshot |= requests.resync;
        if self.wants_snapshot {
            let cores = [self.core.record()];
            if self.control.send_snapshot(port, &cores, state.table.records()) {
                self.wants_snapshot = false;
                // Earlier readings are of lives that the agent does not know.
                state.extent.clear();
                state.table.report_all();
            }
        }
        let mut step = Step::Idle;
        if !self.wants_snapshot {
            state.table.send_reports(|message| self.control.send(port, message));
            let held_up = state.extent.len() >= ENOUGH_WORDS && !self.send(port, state);
            if !held_up {
                step = self.poll_core(port, state, tiers);
            }
        }
        let signals = [self.core.take_signals(), self.control.take_signals()];
        self.rings |= signals.iter().any(|signals| signals.ring_agent());
        self.wants_snapshot |= signals.iter().any(|signals| signals.lost());
        if requests.fault || signals.iter().any(|signals| signals.fault()) {
            return Err(Fault::Nonsense);
        }
        // Refused decisions do not count as progress of the agent.
        let counts = self.core.counts();
        let answered = [Code::Complete, Code::Held, Code::Partial];
        let answered: u64 = answered.into_iter().map(|code| counts.get(code)).sum();
        let now = tiers.now();
        if answered != self.answered || state.table.is_empty() {
            (self.answered, self.decided) = (answered, now);
        } else if now.since(self.decided) > self.patience {
            return Err(Fault::Late);
        }
        Ok(step)
    }

    fn poll_core<P: Port, T: Tiers>(&mut self, port: &P, state: &mut State, tiers: &mut T) -> Step {
        let now = tiers.now();
        match self.core.poll(port, now, &mut Hands { state, tiers }) {
            Next::Run(()) => {
                self.core.finish();
                Step::Progress
            }
            Next::Spin => {
                self.send(port, state);
                Step::Progress
            }
            Next::Park => {
                self.send(port, state);
                // If no extent is free, the agent rings when it returns one.
                if self.control.is_copying() { Step::Progress } else { Step::Idle }
            }
        }
    }

    /// Sends the gathered readings. Returns whether none is left.
    fn send<P: Port>(&mut self, port: &P, state: &mut State) -> bool {
        let limit = self.control.bulk_words();
        while !state.extent.is_empty() {
            let words = whole_readings(&state.extent, limit);
            if !self.control.send_bulk(port, &state.extent[..words]) {
                return false;
            }
            state.extent.drain(..words);
        }
        true
    }
}

/// The most words, up to `limit`, that are whole readings.
fn whole_readings(words: &[u64], limit: usize) -> usize {
    let mut readings = wire::Readings::new(words);
    let mut whole = 0;
    while readings.next().is_some() && readings.at() <= limit {
        whole = readings.at();
    }
    whole
}
