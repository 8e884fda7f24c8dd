//! The flow scheduler: chooses the flow that acknowledges or sends next (thesis 4.3.4), and finds due delayed acknowledgements.
//!
//! Flows that may send take turns. A paced flow first waits in a time wheel until its rate allows the next segment; flows
//! without a rate bypass the wheel.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::waiting::Queues;

use crate::datapath::{Command, FlowId};
use crate::pipeline::Outcome;
use crate::planted::{Planted, is_planted};
use crate::wheel::Wheel;

/// How much lost time a paced flow may make up for, because timers are late and the wheel has slots.
const CATCH_UP: Nanos = Nanos::from_millis(1);

/// The scheduler's state of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    generation: u32,
    is_installed: bool,
    /// Commands for the flow's next turn: bits of [`Command::bit`].
    commands: u16,
    /// Number of copies and transmissions under way, and of turns and requests that the stages have not finished.
    under_way: u32,
    is_frozen: bool,
    has_delayed: bool,
    /// Nanoseconds that 1,024 bytes take at the flow's rate, so that no turn needs a division (thesis 4.4.1.1); 0 without a
    /// rate.
    interval: u64,
    /// A paced flow sends nothing before this time.
    send_at: Nanos,
    /// A paced flow has a turn. It gets only one at a time, because the cost of a turn is known at its end.
    has_turn: bool,
    /// It may send again once that turn is over.
    wants_turn: bool,
}

/// The scheduler of one flow group.
#[derive(Debug)]
pub struct Schedule {
    /// Flows with something other than data to send or to report.
    announcing: Queues,
    /// Flows that may send data now.
    ready: Queues,
    /// Paced flows that may send data later.
    wheel: Wheel,
    /// Flows whose statistics have changed.
    changed: Queues,
    /// Delayed acknowledgements, at most one for each flow: an existing one is due no later than a new one.
    delayed: VecDeque<(Nanos, u32)>,
    flows: Vec<Turns>,
}

impl Schedule {
    /// A schedule with room for `flows` flows.
    pub fn new(flows: u32) -> Schedule {
        Schedule {
            announcing: Queues::new(1, flows),
            ready: Queues::new(1, flows),
            wheel: Wheel::new(flows),
            changed: Queues::new(1, flows),
            delayed: VecDeque::with_capacity(flows as usize),
            flows: alloc::vec![Turns::default(); flows as usize],
        }
    }

    /// Adds a flow, with a rate in bytes per second or without one.
    pub fn install(&mut self, id: FlowId, rate: Option<u64>) {
        // An entry in `delayed` of the previous flow with this index now belongs to this flow.
        let turns = &mut self.flows[id.index as usize];
        let (generation, has_delayed) = (id.generation, turns.has_delayed);
        let interval = interval(rate);
        *turns =
            Turns { generation, is_installed: true, has_delayed, interval, ..Turns::default() };
        push(&mut self.ready, id.index);
        push(&mut self.changed, id.index);
    }

    /// Removes a flow.
    pub fn remove(&mut self, id: FlowId) {
        for queue in [&mut self.announcing, &mut self.ready, &mut self.changed] {
            queue.remove(id.index);
        }
        self.wheel.remove(id.index);
        self.flows[id.index as usize].is_installed = false;
    }

    /// Sets or removes a flow's rate, in bytes per second.
    pub fn pace(&mut self, id: FlowId, rate: Option<u64>) {
        let Some(turns) = self.flow_mut(id) else { return };
        turns.interval = interval(rate);
        // A new rate takes effect with the next segment; removing the rate takes effect at once.
        if turns.interval == 0
            && core::mem::take(&mut turns.wants_turn) | self.wheel.contains(id.index)
        {
            self.wheel.remove(id.index);
            push(&mut self.ready, id.index);
        }
    }

    /// Processes the outcome of an entry.
    pub fn process_outcome(&mut self, now: Nanos, outcome: &Outcome) {
        let Some(id) = outcome.flow else { return };
        let Some(turns) = self.flow_mut(id) else { return };
        turns.is_frozen |= outcome.is_frozen;
        if outcome.must_reset {
            turns.commands |= Command::Abort.bit();
        }
        let mut may_send = outcome.may_send;
        if turns.has_turn
            && let Some(bytes) = outcome.transmitted
        {
            turns.has_turn = false;
            turns.send_at = turns.send_at + Nanos(u64::from(bytes) * turns.interval / 1024);
            may_send |= core::mem::take(&mut turns.wants_turn);
        }
        let has_rate = turns.interval != 0;
        if let Some(at) = outcome.check_at
            && !core::mem::replace(&mut turns.has_delayed, true)
        {
            self.delayed.push_back((at, id.index));
        }
        if outcome.must_announce || outcome.must_reset {
            push(&mut self.announcing, id.index);
        }
        if may_send && has_rate {
            self.wait_for_rate(now, id.index);
        } else if may_send {
            push(&mut self.ready, id.index);
        }
        if outcome.has_changed {
            push(&mut self.changed, id.index);
        }
    }

    /// Lets a paced flow send as soon as its rate allows.
    fn wait_for_rate(&mut self, now: Nanos, flow: u32) {
        let turns = &mut self.flows[flow as usize];
        if turns.has_turn {
            turns.wants_turn = true;
            return;
        }
        let waits = self.wheel.contains(flow) || self.ready.contains(flow);
        if !waits && turns.send_at <= now {
            push(&mut self.ready, flow);
        } else if !waits {
            self.wheel.insert(now, turns.send_at, flow);
        }
    }

    /// Adds a command to a flow's next turn.
    pub fn add_command(&mut self, id: FlowId, command: Command) {
        if let Some(turns) = self.flow_mut(id) {
            turns.commands |= command.bit();
            push(&mut self.announcing, id.index);
        }
    }

    /// The state of a flow that was not removed.
    fn flow_mut(&mut self, id: FlowId) -> Option<&mut Turns> {
        let turns = self.flows.get_mut(id.index as usize)?;
        let is_it = turns.generation == id.generation || is_planted(Planted::OldNamesObeyed);
        (turns.is_installed && is_it).then_some(turns)
    }

    /// The next flow with something other than data to send or to report, and the bits of its commands.
    pub fn next_announcement(&mut self) -> Option<(FlowId, u16)> {
        let flow = self.announcing.pop(0)?;
        Some((self.flow_id(flow), core::mem::take(&mut self.flows[flow as usize].commands)))
    }

    /// The next flow that may send data.
    pub fn next_ready(&mut self, now: Nanos) -> Option<FlowId> {
        if !self.wheel.is_empty() {
            let ready = &mut self.ready;
            self.wheel.advance(now, |flow| push(ready, flow));
        }
        let flow = self.ready.pop(0)?;
        let turns = &mut self.flows[flow as usize];
        if turns.interval != 0 {
            turns.has_turn = true;
            turns.send_at = turns.send_at.max(Nanos(now.0.saturating_sub(CATCH_UP.0)));
        }
        Some(self.flow_id(flow))
    }

    /// The next flow whose statistics have changed.
    pub fn next_changed(&mut self) -> Option<FlowId> {
        self.changed.pop(0).map(|flow| self.flow_id(flow))
    }

    /// The next flow whose delayed acknowledgement may be due.
    pub fn next_timer(&mut self, now: Nanos) -> Option<FlowId> {
        let (_, flow) = self.delayed.front().copied().filter(|(at, _)| *at <= now)?;
        self.delayed.pop_front();
        self.flows[flow as usize].has_delayed = false;
        Some(self.flow_id(flow))
    }

    /// When the next delayed acknowledgement may be due, or a paced flow may send.
    pub fn next_timer_at(&self) -> Option<Nanos> {
        let delayed = self.delayed.front().map(|(at, _)| *at);
        [delayed, self.wheel.next_at()].into_iter().flatten().min()
    }

    fn flow_id(&self, flow: u32) -> FlowId {
        FlowId { index: flow, generation: self.flows[flow as usize].generation }
    }

    /// Whether a flow waits for a turn.
    pub fn is_busy(&self) -> bool {
        !(self.announcing.is_empty() && self.ready.is_empty())
    }

    /// Counts work of a flow as under way: a turn, a request, a copy or a transmission.
    pub fn begin(&mut self, id: FlowId) {
        if let Some(turns) = self.flow_mut(id) {
            turns.under_way += 1;
        }
    }

    /// Ends work that [`Schedule::begin`] counted.
    pub fn end(&mut self, id: FlowId) {
        if let Some(turns) = self.flow_mut(id) {
            turns.under_way = turns.under_way.saturating_sub(1);
        }
    }

    /// Ends a transmission of the flow with this index, which cannot have been removed before. An index beyond the table is
    /// ignored.
    pub fn end_transmission(&mut self, flow: u32) {
        if let Some(turns) = self.flows.get_mut(flow as usize) {
            turns.under_way = turns.under_way.saturating_sub(1);
        }
    }

    /// Whether a flow is frozen and has nothing under way.
    pub fn is_frozen(&self, id: FlowId) -> bool {
        let Some(turns) = self.flows.get(id.index as usize) else { return false };
        let is_it = turns.is_installed && turns.generation == id.generation;
        let is_idle = turns.under_way == 0 || is_planted(Planted::FrozenWhileCopying);
        is_it && turns.is_frozen && is_idle && !self.announcing.contains(id.index)
    }
}

/// Nanoseconds that 1,024 bytes take at a rate; 0 without a rate.
fn interval(rate: Option<u64>) -> u64 {
    rate.map_or(0, |rate| (1024 * 1_000_000_000 / rate.max(1)).max(1))
}

fn push(queue: &mut Queues, flow: u32) {
    if !queue.contains(flow) {
        queue.push(0, flow);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn id(index: u32) -> FlowId {
        FlowId { index, generation: 1 }
    }

    /// Ends a flow's turn to send, in which it sent `bytes`.
    fn sent(schedule: &mut Schedule, now: Nanos, flow: FlowId, bytes: u32) {
        let outcome = Outcome {
            flow: Some(flow),
            may_send: true,
            transmitted: Some(bytes),
            ..Outcome::default()
        };
        schedule.process_outcome(now, &outcome);
    }

    #[test]
    fn unpaced_flows_take_turns_and_a_paced_flow_sends_when_its_rate_allows() {
        let mut schedule = Schedule::new(3);
        for index in 0..3 {
            // 1,024 bytes take a millisecond.
            schedule.install(id(index), (index == 1).then_some(1_024_000));
        }
        let start = Nanos::from_millis(50);
        let mut turns = Vec::new();
        for turn in 0..600 {
            let now = start + Nanos::from_micros(10 * turn);
            let flow = schedule.next_ready(now).unwrap();
            turns.push((now, flow.index));
            sent(&mut schedule, now, flow, 1_024);
        }
        let of = |flow| turns.iter().filter(move |(_, index)| *index == flow);
        // It makes up for one millisecond, and is late by at most one slot.
        let at: Vec<_> = of(1).map(|(now, _)| now.since(start).0 / 100_000).collect();
        assert_eq!(at, [0, 0, 10, 20, 30, 40, 50]);
        assert!(of(0).count().abs_diff(of(2).count()) <= 7);
    }

    #[test]
    fn a_flow_whose_rate_is_removed_may_send_at_once() {
        let mut schedule = Schedule::new(1);
        schedule.install(id(0), Some(1_024));
        let now = Nanos::from_millis(5_000);
        let flow = schedule.next_ready(now).unwrap();
        // A wish to send during a turn waits for the end of the turn.
        let may_send = Outcome { flow: Some(flow), may_send: true, ..Outcome::default() };
        schedule.process_outcome(now, &may_send);
        assert_eq!(schedule.next_ready(now), None);
        sent(&mut schedule, now, flow, 1_024);
        assert_eq!(schedule.next_ready(now), None);
        assert!(schedule.next_timer_at().is_some_and(|at| at > now));
        schedule.pace(flow, None);
        assert_eq!((schedule.next_ready(now), schedule.next_timer_at()), (Some(flow), None));
    }
}
