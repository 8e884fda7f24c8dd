//! FlexTOE's data path on one core: the stages one after the other, on one packet at a time.
//!
//! What must stay in order stays so by two queues: packets enter the protocol stage in the order in which they came, and what a
//! copy makes true follows in the order in which the protocol stage decided, whatever copy completes first (thesis 4.3.2).

use alloc::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_core::waiting::Queues;

use crate::context::{ContextId, Moved};
use crate::counters::Counters;
use crate::datapath::{
    Batch, Checksum, Command, Datapath, Effect, Established, FlowId, Limits, NoRoom, Packet,
    Payload, Segment, Statistics, Ticket, Tuple, Write,
};
use crate::flow::state::{Post, Pre, Protocol, join, split};
use crate::packet::{Flags, PARTIAL_CHECKSUM};
use crate::planted::{Planted, is_planted};
use crate::seq::seq_of;
use crate::stages::acknowledge::rewind;
use crate::stages::receive::{ACKNOWLEDGE_AFTER, When, receive};
use crate::stages::transmit::{Sent, is_blocked, probe, transmit};
use crate::stages::{host, post, pre};
use crate::tuples::Tuples;

/// Packets and requests that wait, each.
const WAITING_MAX: usize = 256;
/// Copies under way.
const WRITES_MAX: usize = 1024;
/// This bit tells tickets of transmissions from those of copies.
const SEND: u64 = 1 << 63;

/// What a data path must know of the wire and of itself.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Our Ethernet address.
    pub mac: [u8; 6],
    /// Most bytes of payload in one super-packet that the wire cuts; 0 if it cuts none.
    pub super_bytes: u32,
    /// Connections at once.
    pub flows: u32,
    /// Keys the table of connections.
    pub key: (u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    pre: Pre,
    protocol: Protocol,
    post: Post,
}

/// A copy under way, and what follows.
#[derive(Clone, Copy, Debug)]
struct Copying {
    flow: FlowId,
    is_done: bool,
    landed: u64,
    acknowledge: Option<When>,
}

/// The data path.
#[derive(Debug)]
pub struct FlexToe<F> {
    settings: Settings,
    table: Tuples<Flow>,
    packets: VecDeque<Packet<F>>,
    requests: VecDeque<(ContextId, Moved)>,
    copying: VecDeque<Copying>,
    /// Ticket of the first one in `copying`.
    first_ticket: u64,
    /// Flows with something to say that is no data.
    due: Queues,
    /// Flows that may have data to send.
    ready: Queues,
    /// Flows whose statistics have changed.
    changed: Queues,
    /// Delayed acknowledgements.
    later: VecDeque<(Nanos, FlowId)>,
    /// What only the control plane asks for, by flow: bits of [`asked`].
    asked: alloc::vec::Vec<u8>,
    source: u8,
    counters: Counters,
}

mod asked {
    pub const PROBE: u8 = 1;
    pub const KEEP_ALIVE: u8 = 2;
    pub const CHALLENGE: u8 = 4;
    pub const ABORT: u8 = 8;
}

/// The four sources of work, in turns.
const SOURCES: u8 = 4;

impl<F: AsRef<[u8]>> FlexToe<F> {
    /// A data path without connections.
    pub fn new(settings: Settings) -> FlexToe<F> {
        let flows = settings.flows;
        FlexToe {
            settings,
            table: Tuples::new(flows, settings.key),
            packets: VecDeque::with_capacity(WAITING_MAX),
            requests: VecDeque::with_capacity(WAITING_MAX),
            copying: VecDeque::with_capacity(WRITES_MAX),
            first_ticket: 0,
            due: Queues::new(1, flows),
            ready: Queues::new(1, flows),
            changed: Queues::new(1, flows),
            later: VecDeque::with_capacity(flows as usize),
            asked: alloc::vec![0; flows as usize],
            source: 0,
            counters: Counters::default(),
        }
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn must_speak(&mut self, flow: u32) {
        if !self.due.contains(flow) {
            self.due.push(0, flow);
        }
    }

    fn may_send(&mut self, flow: u32) {
        if !self.ready.contains(flow) {
            self.ready.push(0, flow);
        }
    }

    fn has_changed(&mut self, flow: u32) {
        if !self.changed.contains(flow) {
            self.changed.push(0, flow);
        }
    }

    /// RX: pre, protocol, post, and the copy (thesis Figure 4.6).
    fn step_packet(&mut self, now: Nanos, effects: &mut VecDeque<Effect<F>>) {
        let Some(packet) = self.packets.pop_front() else { return };
        self.counters.in_segments += 1;
        let examined = pre::examine(packet.frame.as_ref(), packet.checksum == Checksum::Good);
        let (tuple, summary, payload) = match examined {
            Err(cause) => return self.counters.count(cause),
            Ok(pre::Examined::Control(tuple)) => {
                let flow = tuple.and_then(|tuple| self.table.find(&tuple));
                effects.push_back(Effect::Control(packet, flow));
                return;
            }
            Ok(pre::Examined::Data { tuple, summary, payload }) => (tuple, summary, payload),
        };
        let Some(id) = self.table.find(&tuple) else {
            effects.push_back(Effect::Control(packet, None));
            return;
        };
        let flow = self.table.get_mut(id).expect("it was found");
        if flow.protocol.is_frozen {
            self.counters.in_frozen += 1;
            return;
        }
        let received = receive(&mut flow.protocol, &summary, now);
        post::count(&mut flow.post, &received.acknowledged, &summary);
        if let Some(dropped) = received.dropped {
            self.counters.dropped(dropped);
        }
        if received.acknowledged.is_fast_retransmit {
            self.counters.fast_retransmits += 1;
        }
        if let Some(placed) = received.placed {
            let landed = flow.protocol.received;
            flow.post.under_way += 1;
            let ticket = Ticket(self.first_ticket + self.copying.len() as u64);
            let start = payload.start + placed.skip as usize;
            let write = Write {
                ticket,
                process: flow.post.context.process,
                ring: flow.post.receive,
                position: placed.position,
                frame: packet.frame,
                bytes: start..start + placed.bytes as usize,
            };
            effects.push_back(Effect::Write(write));
            let acknowledge = received.acknowledge;
            self.copying.push_back(Copying { flow: id, is_done: false, landed, acknowledge });
        } else {
            self.decided(now, id, received.acknowledge);
        }
        let flow = self.table.get(id).expect("it was found");
        if flow.protocol.next < flow.protocol.end() {
            self.may_send(id.index);
        }
        self.has_changed(id.index);
    }

    /// What the protocol stage decided may be said now.
    fn decided(&mut self, now: Nanos, id: FlowId, acknowledge: Option<When>) {
        let Some(flow) = self.table.get_mut(id) else { return };
        match acknowledge {
            Some(When::Now) => flow.protocol.acknowledge_now = true,
            Some(When::Later) if flow.protocol.acknowledge_at.is_none() => {
                let at = now + ACKNOWLEDGE_AFTER;
                flow.protocol.acknowledge_at = Some(at);
                // At most one entry for each flow. One that is there comes up no later than this.
                if !core::mem::replace(&mut flow.protocol.is_looked_after, true) {
                    self.later.push_back((at, id));
                }
            }
            _ => {}
        }
        self.must_speak(id.index);
        self.has_changed(id.index);
    }

    /// HC: what a host did (thesis Figure 4.4).
    fn step_request(&mut self) {
        let Some((context, moved)) = self.requests.pop_front() else { return };
        let id = moved.flow;
        let Some(flow) = self.table.get_mut(id) else {
            self.counters.old_requests += 1;
            return;
        };
        // Nobody moves another process's streams.
        if flow.post.context.process != context.process {
            self.counters.foreign_requests += 1;
            return;
        }
        // The context that used the connection last hears of it.
        flow.post.context = context;
        let outcome = host::moved(&mut flow.protocol, &moved, flow.post.send.bytes);
        flow.protocol.acknowledge_now |= outcome.opens_window;
        if outcome.is_wrong {
            flow.post.is_at_fault = true;
            self.counters.wrong_requests += 1;
            self.asked[id.index as usize] |= asked::ABORT;
            self.must_speak(id.index);
        }
        if outcome.has_more {
            self.may_send(id.index);
        }
        if outcome.opens_window {
            self.must_speak(id.index);
        }
        self.has_changed(id.index);
    }

    /// TX: protocol and post; the payload is the wire's to fetch (thesis Figure 4.5).
    fn step_send(&mut self, now: Nanos, effects: &mut VecDeque<Effect<F>>) {
        let Some(index) = self.ready.pop(0) else { return };
        let Some(flow) = self.table.of_mut(index) else { return };
        let mss = u32::from(flow.protocol.mss);
        let most = (self.settings.super_bytes / mss).max(1) * mss;
        if let Some(sent) = transmit(&mut flow.protocol, most) {
            self.emit(now, index, sent, effects);
            self.ready.push(0, index);
        } else if is_blocked(&flow.protocol) {
            self.has_changed(index);
        }
    }

    fn emit(&mut self, now: Nanos, index: u32, sent: Sent, effects: &mut VecDeque<Effect<F>>) {
        let Some(flow) = self.table.of_mut(index) else { return };
        let mss = flow.protocol.mss;
        let flags = Flags::ACK
            | if sent.fin { Flags::FIN } else { Flags::NONE }
            | if sent.push && sent.bytes > 0 { Flags::PSH } else { Flags::NONE };
        let head = post::head(
            self.settings.mac,
            &flow.pre,
            &mut flow.protocol,
            sent.seq,
            flags,
            sent.bytes,
            now,
        );
        self.counters.out_segments += 1;
        if sent.is_again {
            self.counters.retransmitted += 1;
        }
        let payload = if sent.bytes == 0 {
            Payload::None
        } else {
            Payload::Ring {
                process: flow.post.context.process,
                ring: flow.post.send,
                position: sent.position,
                bytes: sent.bytes,
            }
        };
        flow.post.under_way += 1;
        let segment_bytes = if sent.bytes > u32::from(mss) { mss } else { 0 };
        effects.push_back(Effect::Send(Segment {
            ticket: Some(Ticket(SEND | u64::from(index))),
            head,
            payload,
            checksum: Some(PARTIAL_CHECKSUM),
            segment_bytes,
        }));
        self.has_changed(index);
    }

    /// Acknowledgements, news, and what the control plane asked for.
    fn step_due(&mut self, now: Nanos, effects: &mut VecDeque<Effect<F>>) {
        let Some(index) = self.due.pop(0) else { return };
        let asked = core::mem::take(&mut self.asked[index as usize]);
        let Some(flow) = self.table.of_mut(index) else { return };
        if asked & asked::ABORT != 0 {
            // The segment that the peer expects, so that it is believed (RFC 5961, 3.2).
            let seq = seq_of(flow.protocol.send_base, flow.protocol.highest);
            let head = post::head(
                self.settings.mac,
                &flow.pre,
                &mut flow.protocol,
                seq,
                Flags::RST | Flags::ACK,
                0,
                now,
            );
            self.counters.out_resets += 1;
            effects.push_back(bare(head));
            flow.protocol.is_frozen = true;
            self.has_changed(index);
            return;
        }
        let probed = (asked & asked::PROBE != 0).then(|| probe(&mut flow.protocol)).flatten();
        if let Some(sent) = probed {
            self.counters.probes += 1;
            self.emit(now, index, sent, effects);
        }
        let Some(flow) = self.table.of_mut(index) else { return };
        if asked & asked::KEEP_ALIVE != 0 {
            let seq = seq_of(flow.protocol.send_base, flow.protocol.highest).minus(1);
            let head = post::head(
                self.settings.mac,
                &flow.pre,
                &mut flow.protocol,
                seq,
                Flags::ACK,
                0,
                now,
            );
            effects.push_back(bare(head));
        }
        let must = flow.protocol.acknowledge_now || asked & asked::CHALLENGE != 0;
        if must {
            let seq = seq_of(flow.protocol.send_base, flow.protocol.highest);
            let head = post::head(
                self.settings.mac,
                &flow.pre,
                &mut flow.protocol,
                seq,
                Flags::ACK,
                0,
                now,
            );
            self.counters.out_segments += 1;
            effects.push_back(bare(head));
        }
        if let Some(progress) = post::news(&flow.protocol, &mut flow.post) {
            effects.push_back(Effect::Notify(flow.post.context, progress));
        }
    }

    fn land(&mut self, now: Nanos) {
        let is_next = |copying: &Copying| copying.is_done || is_planted(Planted::NoSequencer);
        while self.copying.front().is_some_and(is_next) {
            let copying = self.copying.pop_front().expect("there is one");
            self.first_ticket += 1;
            if let Some(flow) = self.table.get_mut(copying.flow) {
                flow.post.under_way -= 1;
                flow.protocol.landed = flow.protocol.landed.max(copying.landed);
                self.decided(now, copying.flow, copying.acknowledge);
            }
        }
    }

    fn fire_later(&mut self, now: Nanos) {
        while let Some((_, id)) = self.later.front().copied().filter(|(at, _)| *at <= now) {
            self.later.pop_front();
            let Some(flow) = self.table.get_mut(id) else { continue };
            flow.protocol.is_looked_after = false;
            match flow.protocol.acknowledge_at {
                Some(due) if due <= now => {
                    flow.protocol.acknowledge_now = true;
                    self.counters.delayed_acknowledgements += 1;
                    self.must_speak(id.index);
                }
                // The acknowledgement that this entry was for went with data, and another one waits.
                Some(due) => {
                    flow.protocol.is_looked_after = true;
                    self.later.push_back((due, id));
                }
                None => {}
            }
        }
    }

    fn is_busy(&self) -> bool {
        !(self.packets.is_empty()
            && self.requests.is_empty()
            && self.due.is_empty()
            && self.ready.is_empty())
    }
}

/// A segment without payload, which nobody waits for.
fn bare<F>(head: crate::datapath::Head) -> Effect<F> {
    Effect::Send(Segment {
        ticket: None,
        head,
        payload: Payload::None,
        checksum: Some(PARTIAL_CHECKSUM),
        segment_bytes: 0,
    })
}

impl<F: AsRef<[u8]>> Datapath<F> for FlexToe<F> {
    fn submit(&mut self, _now: Nanos, batch: &mut Batch<'_, F>) {
        let room = (WAITING_MAX - self.packets.len()).min(batch.packets.len());
        self.packets.extend(batch.packets.drain(..room));
        let room = (WAITING_MAX - self.requests.len()).min(batch.requests.len());
        self.requests.extend(batch.requests.drain(..room));
    }

    fn complete(&mut self, now: Nanos, ticket: Ticket) {
        if ticket.0 & SEND != 0 {
            let index = ticket.0 as u32;
            if let Some(flow) = self.table.of_mut(index) {
                flow.post.under_way = flow.post.under_way.saturating_sub(1);
            }
            return;
        }
        let at = ticket.0.checked_sub(self.first_ticket).and_then(|at| usize::try_from(at).ok());
        if let Some(copying) = at.and_then(|at| self.copying.get_mut(at)) {
            copying.is_done = true;
            self.land(now);
        }
    }

    fn poll(
        &mut self,
        now: Nanos,
        budget: usize,
        effects: &mut VecDeque<Effect<F>>,
    ) -> Option<Nanos> {
        self.fire_later(now);
        for _ in 0..budget {
            // Each source in its turn; those that have nothing are passed over.
            let mut passed = 0;
            loop {
                let source = self.source;
                self.source = (source + 1) % SOURCES;
                let has_work = match source {
                    0 => !self.due.is_empty(),
                    1 => !self.packets.is_empty() && self.copying.len() < WRITES_MAX,
                    2 => !self.requests.is_empty(),
                    _ => !self.ready.is_empty(),
                };
                if has_work {
                    match source {
                        0 => self.step_due(now, effects),
                        1 => self.step_packet(now, effects),
                        2 => self.step_request(),
                        _ => self.step_send(now, effects),
                    }
                    break;
                }
                passed += 1;
                if passed == SOURCES {
                    return self.later.front().map(|(at, _)| *at);
                }
            }
        }
        if self.is_busy() { Some(now) } else { self.later.front().map(|(at, _)| *at) }
    }

    fn command(&mut self, _now: Nanos, id: FlowId, command: Command) {
        let Some(flow) = self.table.get_mut(id) else { return };
        let bit = match command {
            Command::Retransmit => {
                rewind(&mut flow.protocol);
                self.counters.timeouts += 1;
                self.may_send(id.index);
                return;
            }
            Command::Probe => asked::PROBE,
            Command::KeepAlive => asked::KEEP_ALIVE,
            Command::Challenge => asked::CHALLENGE,
            Command::Abort => asked::ABORT,
        };
        self.asked[id.index as usize] |= bit;
        self.must_speak(id.index);
    }

    /// Sets the window. A rate is not kept yet: nothing asks for one before there is Carousel.
    fn pace(&mut self, id: FlowId, limits: Limits) {
        let Some(flow) = self.table.get_mut(id) else { return };
        let grows = limits.window_bytes > flow.protocol.window_bytes;
        flow.protocol.window_bytes = limits.window_bytes;
        if grows && flow.protocol.next < flow.protocol.end() {
            self.may_send(id.index);
        }
    }

    fn drain_statistics(&mut self, budget: usize, read: &mut dyn FnMut(Statistics)) {
        for _ in 0..budget {
            let Some(index) = self.changed.pop(0) else { return };
            let flow_id = self.table.name(index);
            let Some(flow) = self.table.of_mut(index) else { continue };
            read(post::statistics(flow_id, &flow.protocol, &mut flow.post));
        }
    }

    fn install(&mut self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom> {
        let (pre, protocol, post) = split(established, now);
        let id = self.table.insert(pre.tuple, Flow { pre, protocol, post })?;
        self.asked[id.index as usize] = 0;
        self.may_send(id.index);
        self.has_changed(id.index);
        Ok(id)
    }

    fn freeze(&mut self, id: FlowId) {
        let Some(flow) = self.table.get_mut(id) else { return };
        flow.protocol.is_frozen = true;
        // An acknowledgement that waits for company goes alone: another engine would not know of it.
        flow.protocol.acknowledge_now |= flow.protocol.acknowledge_at.is_some();
        self.must_speak(id.index);
    }

    fn frozen(&self, id: FlowId) -> bool {
        let is_idle = |flow: &Flow| flow.protocol.is_frozen && flow.post.under_way == 0;
        self.table.get(id).is_some_and(is_idle) && !self.due.contains(id.index)
    }

    fn export(&mut self, id: FlowId) -> Option<Established> {
        if !self.frozen(id) {
            return None;
        }
        let Flow { pre, protocol, post } = self.table.remove(id)?;
        for queue in [&mut self.due, &mut self.ready, &mut self.changed] {
            queue.remove(id.index);
        }
        Some(join(&pre, &protocol, &post))
    }

    fn inspect(&self, id: FlowId) -> Option<Established> {
        self.table.get(id).map(|flow| join(&flow.pre, &flow.protocol, &flow.post))
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.table.find(tuple)
    }
}
