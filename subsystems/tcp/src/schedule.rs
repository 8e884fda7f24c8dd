//! The flow scheduler: which flow speaks or sends next (thesis 4.3.4, without rates yet), and whose delayed acknowledgement is due.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::waiting::Queues;

use crate::datapath::FlowId;
use crate::pipeline::{Outcome, asked};

/// What the scheduler knows of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    generation: u32,
    is_here: bool,
    /// What only the control plane asks for: bits of [`asked`].
    asked: u8,
    /// Copies and transmissions under way, and turns and requests that the stages have not ended.
    under_way: u32,
    is_frozen: bool,
    is_later: bool,
}

/// The scheduler of one flow group.
#[derive(Debug)]
pub struct Schedule {
    /// Flows with something to say that is no data.
    due: Queues,
    /// Flows that may have data to send.
    ready: Queues,
    /// Flows whose statistics have changed.
    changed: Queues,
    /// Delayed acknowledgements. At most one for each flow; one that is there comes up no later than a new one.
    later: VecDeque<(Nanos, u32)>,
    known: Vec<Known>,
}

impl Schedule {
    /// A schedule with room for `flows` flows.
    pub fn new(flows: u32) -> Schedule {
        Schedule {
            due: Queues::new(1, flows),
            ready: Queues::new(1, flows),
            changed: Queues::new(1, flows),
            later: VecDeque::with_capacity(flows as usize),
            known: alloc::vec![Known::default(); flows as usize],
        }
    }

    /// Adds a flow.
    pub fn install(&mut self, id: FlowId) {
        // An entry in `later` of the flow that had the index before is this flow's now.
        let known = &mut self.known[id.index as usize];
        let (generation, is_later) = (id.generation, known.is_later);
        *known = Known { generation, is_here: true, is_later, ..Known::default() };
        push(&mut self.ready, id.index);
        push(&mut self.changed, id.index);
    }

    /// Removes a flow.
    pub fn remove(&mut self, id: FlowId) {
        for queue in [&mut self.due, &mut self.ready, &mut self.changed] {
            queue.remove(id.index);
        }
        self.known[id.index as usize].is_here = false;
    }

    /// Takes what became of an entry.
    pub fn take(&mut self, outcome: &Outcome) {
        let Some(id) = outcome.flow else { return };
        let Some(known) = self.known_mut(id) else { return };
        known.is_frozen |= outcome.is_frozen;
        if outcome.must_reset {
            known.asked |= asked::ABORT;
        }
        if let Some(at) = outcome.look_at
            && !core::mem::replace(&mut known.is_later, true)
        {
            self.later.push_back((at, id.index));
        }
        if outcome.must_speak || outcome.must_reset {
            push(&mut self.due, id.index);
        }
        if outcome.may_send {
            push(&mut self.ready, id.index);
        }
        if outcome.has_changed {
            push(&mut self.changed, id.index);
        }
    }

    /// The control plane asks for something.
    pub fn ask(&mut self, id: FlowId, bit: u8) {
        if let Some(known) = self.known_mut(id) {
            known.asked |= bit;
            push(&mut self.due, id.index);
        }
    }

    /// What is known of a flow that has not left.
    fn known_mut(&mut self, id: FlowId) -> Option<&mut Known> {
        let known = self.known.get_mut(id.index as usize)?;
        (known.is_here && known.generation == id.generation).then_some(known)
    }

    /// The next flow with something to say, and what it was asked for.
    pub fn next_due(&mut self) -> Option<(FlowId, u8)> {
        let flow = self.due.pop(0)?;
        Some((self.name(flow), core::mem::take(&mut self.known[flow as usize].asked)))
    }

    /// The next flow that may send.
    pub fn next_ready(&mut self) -> Option<FlowId> {
        self.ready.pop(0).map(|flow| self.name(flow))
    }

    /// The next flow whose statistics have changed.
    pub fn next_changed(&mut self) -> Option<FlowId> {
        self.changed.pop(0).map(|flow| self.name(flow))
    }

    /// The next flow whose delayed acknowledgement may be due.
    pub fn next_timer(&mut self, now: Nanos) -> Option<FlowId> {
        let (_, flow) = self.later.front().copied().filter(|(at, _)| *at <= now)?;
        self.later.pop_front();
        self.known[flow as usize].is_later = false;
        Some(self.name(flow))
    }

    /// When a delayed acknowledgement may be due.
    pub fn next_timer_at(&self) -> Option<Nanos> {
        self.later.front().map(|(at, _)| *at)
    }

    fn name(&self, flow: u32) -> FlowId {
        FlowId { index: flow, generation: self.known[flow as usize].generation }
    }

    /// Whether a flow waits to speak or to send.
    pub fn is_busy(&self) -> bool {
        !(self.due.is_empty() && self.ready.is_empty())
    }

    /// Something of a flow is under way: a turn, a request, a copy, a transmission.
    pub fn begin(&mut self, id: FlowId) {
        if let Some(known) = self.known_mut(id) {
            known.under_way += 1;
        }
    }

    /// Something that [`Schedule::begin`] counted is over.
    pub fn end(&mut self, id: FlowId) {
        if let Some(known) = self.known_mut(id) {
            known.under_way = known.under_way.saturating_sub(1);
        }
    }

    /// A transmission of the flow with this index is over; it cannot have left before. An index beyond the table's is ignored.
    pub fn end_transmission(&mut self, flow: u32) {
        if let Some(known) = self.known.get_mut(flow as usize) {
            known.under_way = known.under_way.saturating_sub(1);
        }
    }

    /// Whether a flow is frozen, and nothing of it is under way.
    pub fn is_frozen(&self, id: FlowId) -> bool {
        let Some(known) = self.known.get(id.index as usize) else { return false };
        let is_it = known.is_here && known.generation == id.generation;
        is_it && known.is_frozen && known.under_way == 0 && !self.due.contains(id.index)
    }
}

fn push(queue: &mut Queues, flow: u32) {
    if !queue.contains(flow) {
        queue.push(0, flow);
    }
}
