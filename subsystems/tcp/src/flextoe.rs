//! FlexTOE's data path: the order in which entries enter, and the handling of their outcomes. An [`Executor`] runs the stages
//! between.
//!
//! ```text
//!  packets, requests ──┐                                                ┌──> segments, notices
//!  commands ───────────┼──> sequencer ──> executor: pre, protocol, ─────┤
//!  scheduler's turns ──┤                  post, in order again          └──> copies ──┐
//!  timers, copies done ┘ <────────────────────────────────────────────────────────────┘
//! ```

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use wave_core::clock::Nanos;

use crate::capabilities::Capabilities;
use crate::context::{ContextId, Update};
use crate::copies::Copies;
use crate::counters::Counters;
use crate::datapath::{
    Batch, Command, Counter, Datapath, Established, FlowId, Limits, NoRoom, OUTPUTS_PER_STEP,
    Output, Packet, Path, Settings, Statistics, Ticket, Tuple,
};
use crate::executors::{Executor, Inline};
use crate::pipeline::{Entry, Outcome, Point, SEND, Stamped, Work};
use crate::planted::{Planted, is_planted};
use crate::schedule::Schedule;
use crate::sequencer::Sequencer;
use crate::stages::arbiter::{Arbiter, ByStages};
use crate::stages::recover::Sack;
use crate::trace::{PointInfo, Trace};

/// Limit of waiting packets, and of waiting requests.
const WAITING_MAX: usize = 256;
/// Limit of copies under way.
const WRITES_MAX: usize = 1024;

/// Name of the data path.
pub const NAME: &str = ByStages::<Sack>::NAME;

/// A data path after FlexTOE's design, over an executor.
#[derive(Debug)]
pub struct FlexToe<F, E = Inline<F>> {
    executor: E,
    sequencer: Sequencer,
    schedule: Schedule,
    packets: VecDeque<Packet<F>>,
    requests: VecDeque<(ContextId, Update)>,
    copies: Copies,
    /// Packets in the executor, each of which may ask for a copy.
    packets_in_flight: usize,
    /// Outputs of entries that came out between polls: at most those of a full executor.
    held: VecDeque<Output<F>>,
    now: Nanos,
    source: u8,
    counters: Counters,
    trace: Arc<Trace>,
}

/// Number of sources of entries, which take turns. If a poll's budget is a multiple of this, it takes at least as many packets
/// as entries of any other source.
const SOURCES: u8 = 6;

impl<F: AsRef<[u8]>, A: Arbiter> FlexToe<F, Inline<F, A>> {
    /// A data path on one core, without connections, that passes its trace points in `trace`.
    pub fn with_trace(settings: Settings, trace: Arc<Trace>) -> FlexToe<F, Inline<F, A>> {
        let inline = Inline::traced(settings, Arc::clone(&trace));
        FlexToe::over(&settings, inline).traced(trace)
    }
}

impl<F: AsRef<[u8]>, E: Executor<F>> FlexToe<F, E> {
    /// A data path whose stages this executor runs, without connections.
    pub fn over(settings: &Settings, executor: E) -> FlexToe<F, E> {
        let held = VecDeque::with_capacity(executor.room() * OUTPUTS_PER_STEP);
        FlexToe {
            executor,
            sequencer: Sequencer::default(),
            schedule: Schedule::new(settings.flows),
            packets: VecDeque::with_capacity(WAITING_MAX),
            requests: VecDeque::with_capacity(WAITING_MAX),
            copies: Copies::new(WRITES_MAX),
            packets_in_flight: 0,
            held,
            now: Nanos(0),
            source: 0,
            counters: Counters::default(),
            trace: Arc::new(Trace::new(0)),
        }
    }

    /// Adds the sequencer's trace points. The executor has those of the stages.
    pub fn traced(self, trace: Arc<Trace>) -> FlexToe<F, E> {
        FlexToe { trace, ..self }
    }

    /// The next entry. The sources take turns; those that have nothing are skipped.
    fn next_entry(&mut self, now: Nanos) -> Option<Entry<F>> {
        for _ in 0..SOURCES {
            let source = self.source;
            self.source = (source + 1) % SOURCES;
            let entry = match source {
                0 => {
                    self.copies.pop().map(|(flow, copied)| Entry::Flow(flow, Work::Copied(copied)))
                }
                1 => self.schedule.next_timer(now).map(|flow| {
                    self.schedule.begin(flow);
                    Entry::Flow(flow, Work::Timer)
                }),
                // After all copies that are done, so that one acknowledgement covers them all.
                2 if !self.copies.has_done() => {
                    self.schedule.next_announcement().map(|(flow, commands)| {
                        self.schedule.begin(flow);
                        Entry::Flow(flow, Work::Announce(commands))
                    })
                }
                3 if self.copies.room() > self.packets_in_flight => {
                    let packet = self.packets.pop_front();
                    self.packets_in_flight += usize::from(packet.is_some());
                    packet.map(Entry::Packet)
                }
                4 => self.requests.pop_front().map(|(context, update)| {
                    self.schedule.begin(update.flow);
                    Entry::Flow(update.flow, Work::Request(context, update))
                }),
                5 => self.schedule.next_ready(now).map(|flow| {
                    self.schedule.begin(flow);
                    Entry::Flow(flow, Work::Transmit)
                }),
                _ => None,
            };
            if entry.is_some() {
                return entry;
            }
        }
        None
    }

    fn push(&mut self, now: Nanos, entry: Entry<F>) {
        let stamped = Stamped { number: self.sequencer.stamp(), now, entry };
        if self.trace.is_on() {
            self.trace_entry(now, &stamped.entry);
        }
        self.executor.push(stamped);
    }

    #[cold]
    fn trace_entry(&self, now: Nanos, entry: &Entry<F>) {
        let (point, flow, values) = entry.point();
        let waiting = [self.executor.in_flight() as u64, self.packets.len() as u64];
        self.trace.put(now, Point::Occupancy, None, waiting);
        self.trace.put(now, point, flow, values);
    }

    /// Removes one entry from the executor, and appends its outputs to `outputs`.
    fn pop(&mut self, waits: bool, outputs: &mut VecDeque<Output<F>>) -> bool {
        let Some(outcome) = self.executor.pop(waits, outputs) else { return false };
        self.retire(&outcome, outputs);
        true
    }

    fn retire(&mut self, outcome: &Outcome, outputs: &mut VecDeque<Output<F>>) {
        self.counters.add(&outcome.tally);
        self.packets_in_flight -= usize::from(outcome.tally.in_segments);
        self.schedule.process_outcome(self.now, outcome);
        let Some(id) = outcome.flow else { return };
        if outcome.ends_turn {
            self.schedule.end(id);
        }
        if let Some(copied) = outcome.copying
            && let Some(Output::Write(write)) = outputs.back_mut()
        {
            write.ticket = self.copies.begin(id, copied);
            self.schedule.begin(id);
        }
        for _ in 0..outcome.awaited {
            self.schedule.begin(id);
        }
    }

    /// Adds work by the control plane, ahead of all waiting input.
    fn run_work(&mut self, flow: FlowId, work: Work) {
        let mut held = core::mem::take(&mut self.held);
        while self.executor.room() == 0 {
            self.pop(true, &mut held);
        }
        self.push(self.now, Entry::Flow(flow, work));
        self.pop(false, &mut held);
        self.held = held;
    }

    /// Waits until the executor is empty.
    fn drain(&mut self) {
        let mut held = core::mem::take(&mut self.held);
        while self.pop(true, &mut held) {}
        self.held = held;
    }

    /// One step of a poll: an entry goes in, if there is one and room, and one comes out, if one is done. Returns whether there was
    /// anything to do.
    fn step(&mut self, now: Nanos, outputs: &mut VecDeque<Output<F>>) -> bool {
        if !self.held.is_empty() {
            let count = self.held.len().min(OUTPUTS_PER_STEP);
            outputs.extend(self.held.drain(..count));
            return true;
        }
        let entry = match self.executor.room() {
            0 => None,
            _ => self.next_entry(now),
        };
        let has_entry = entry.is_some();
        if let Some(entry) = entry {
            self.push(now, entry);
        }
        self.pop(!has_entry, outputs) || has_entry
    }

    /// Installs a connection, under its earlier name if there is one.
    fn install_flow(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        self.now = now;
        self.drain();
        let id = self.executor.install(now, name, established)?;
        self.schedule.install(id, established.limits.bytes_per_second);
        Ok(id)
    }

    fn is_busy(&self) -> bool {
        !(self.packets.is_empty()
            && self.requests.is_empty()
            && self.held.is_empty()
            && self.executor.in_flight() == 0)
            || self.copies.has_done()
            || self.schedule.is_busy()
    }
}

impl<F: AsRef<[u8]>, E: Executor<F>> Datapath<F> for FlexToe<F, E> {
    fn submit(&mut self, _now: Nanos, batch: &mut Batch<'_, F>) {
        let room = (WAITING_MAX - self.packets.len()).min(batch.packets.len());
        self.packets.extend(batch.packets.drain(..room));
        let room = (WAITING_MAX - self.requests.len()).min(batch.requests.len());
        self.requests.extend(batch.requests.drain(..room));
    }

    fn requests_in_flight(&self) -> usize {
        self.requests.len() + self.executor.in_flight()
    }

    fn complete(&mut self, _now: Nanos, ticket: Ticket) {
        if ticket.0 & SEND != 0 {
            self.schedule.end_transmission(ticket.0 as u32);
        } else {
            self.copies.complete(ticket);
        }
    }

    fn poll(
        &mut self,
        now: Nanos,
        budget: usize,
        outputs: &mut VecDeque<Output<F>>,
    ) -> Option<Nanos> {
        self.now = now;
        let budget = if is_planted(Planted::BudgetExceeded) { 8 * budget } else { budget };
        for _ in 0..budget {
            if !self.step(now, outputs) {
                return self.schedule.next_timer_at();
            }
        }
        if self.is_busy() { Some(now) } else { self.schedule.next_timer_at() }
    }

    fn command(&mut self, now: Nanos, id: FlowId, command: Command) {
        self.now = now;
        match command {
            Command::Retransmit | Command::DetectLoss | Command::ProbeTail | Command::Uncork => {
                self.run_work(id, Work::Command(command));
            }
            _ => self.schedule.add_command(id, command),
        }
    }

    fn pace(&mut self, id: FlowId, limits: Limits) {
        self.schedule.pace(id, limits.bytes_per_second);
        self.run_work(id, Work::Pace(limits));
    }

    fn set_path(&mut self, id: FlowId, path: Path) {
        self.drain();
        self.executor.set_path(id, path);
        self.run_work(id, Work::SetMss(path.mss));
    }

    fn next_statistics(&mut self) -> Option<Statistics> {
        loop {
            let id = self.schedule.next_changed()?;
            if let Some(statistics) = self.executor.statistics(id) {
                return Some(statistics);
            }
        }
    }

    fn resume(&mut self, id: FlowId) {
        self.run_work(id, Work::Resume);
    }

    fn install(&mut self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom> {
        self.install_flow(now, None, established)
    }

    fn restore(&mut self, now: Nanos, id: FlowId, established: &Established) -> Result<(), NoRoom> {
        self.install_flow(now, Some(id), established).map(drop)
    }

    fn reserve_generations(&mut self, generation: u32) {
        self.executor.reserve_generations(generation);
    }

    fn freeze(&mut self, id: FlowId) {
        self.run_work(id, Work::Freeze);
        // Later packets of the flow have no effect.
        self.drain();
    }

    fn frozen(&self, id: FlowId) -> bool {
        self.held.is_empty() && self.schedule.is_frozen(id)
    }

    fn export(&mut self, id: FlowId) -> Option<Established> {
        if !self.frozen(id) {
            return None;
        }
        // Entries in flight belong to other flows, or have no effect.
        self.drain();
        let established = self.executor.remove(id)?;
        self.schedule.remove(id);
        Some(established)
    }

    fn inspect(&self, id: FlowId) -> Option<Established> {
        self.executor.inspect(id)
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.executor.find(tuple)
    }

    fn name(&self) -> &'static str {
        self.executor.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { sack: self.executor.uses_sack(), ..Capabilities::ALL }
    }

    fn visit_counters(&self, visit: &mut dyn FnMut(Counter, u64)) {
        self.counters.visit(visit);
    }

    fn points(&self) -> &'static [PointInfo] {
        Point::ALL_INFO
    }
}
