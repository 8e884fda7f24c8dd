//! A flow group: its data path, its wire, and the processes' memory. Its thread locks it for a turn; between turns the control
//! plane can.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use wave_agent::lanes::{In, Out, PIECES_PER_STEP, ROOM_EVERY, Weigh};
use wave_core::clock::Nanos;
use wave_links::LentPayload;
use wave_tcp::context::{ContextId, Event, Update};
use wave_tcp::datapath::{
    Batch, Command, Datapath, FlowId, Limits, OUTPUTS_PER_STEP, Output, Packet, Path, Ring,
    Statistics,
};
use wave_wires::{Frame, Wire};

use super::bell::Bell;
use crate::front_datapath::{FRAMES_PER_TURN, POLLS_PER_TURN, STEPS_PER_POLL};
use crate::wire_port::{ProcessPayloads, WirePort, copy};

/// Most flows whose statistics are read after one poll of the data path, and by the control plane in one poll.
pub(super) const STATISTICS_PER_POLL: usize = 64;
/// Most packets from other groups and the control plane that wait for the data path. Each has a buffer of a wire.
const PACKETS_MAX: usize = FRAMES_PER_TURN + 64;
/// Most packets on their way to the control plane. Each has a buffer of the wire.
const CONTROL_PACKETS_MAX: u32 = 64;

/// What the control plane sends a group. Flows have the ids of the group's data path.
#[derive(Debug)]
pub(super) enum Order {
    /// A frame of the group's that arrived elsewhere, or comes from the control plane.
    Packet(Packet<Frame>),
    Request(ContextId, Update),
    /// Pages of this ring of a process, from its first byte on, have memory.
    Filled(u16, Ring, u32),
    Command(FlowId, Command),
    Pace(FlowId, Limits),
    /// The control plane has processed a loss or a mark.
    Resume(FlowId),
    SetPath(FlowId, Path),
}

impl Weigh for Order {}

/// What a group sends the control plane. Flows have the ids of the group's data path.
#[derive(Debug)]
pub(super) enum Report {
    Notify(ContextId, Event),
    Control(Packet<Frame>, Option<FlowId>),
    Statistics(Statistics),
}

impl Weigh for Report {}

pub(super) struct Engine<W, D> {
    pub(super) data: D,
    pub(super) wire_port: WirePort<W>,
    pub(super) memory: Memory,
    pub(super) orders: In<Order>,
    pub(super) reports: Out<Report, Bell>,
    packets: VecDeque<Packet<Frame>>,
    requests: VecDeque<(ContextId, Update)>,
    outputs: VecDeque<Output<Frame>>,
    /// Requests taken from the control plane.
    taken: u64,
    /// Number of reports sent.
    pub(super) sent: u64,
    /// Packets on their way to the control plane, shared with the front's thread.
    control_packets: Arc<AtomicU32>,
    /// When the next turn is due, if nothing arrives before.
    pub(super) next: Option<Nanos>,
}

/// The processes' payload memories, as this group has mapped them.
#[derive(Default)]
pub(super) struct Memory(pub(super) Vec<Option<LentPayload>>);

impl Memory {
    /// Pages of this ring, from its first byte on, have memory.
    pub(super) fn filled(&mut self, process: u16, ring: Ring, bytes: u32) {
        if let Some(Some(payload)) = self.0.get_mut(usize::from(process)) {
            payload.assume_backed(ring.offset, bytes);
        }
    }
}

impl ProcessPayloads for Memory {
    fn payload(&self, process: u16) -> Option<&LentPayload> {
        self.0.get(usize::from(process))?.as_ref()
    }
}

impl<W: Wire, D: Datapath<Frame>> Engine<W, D> {
    pub(super) fn new(
        data: D,
        wire_port: WirePort<W>,
        (orders, reports): (In<Order>, Out<Report, Bell>),
        control_packets: Arc<AtomicU32>,
    ) -> Engine<W, D> {
        Engine {
            data,
            wire_port,
            memory: Memory::default(),
            orders,
            reports,
            packets: VecDeque::with_capacity(PIECES_PER_STEP + FRAMES_PER_TURN),
            requests: VecDeque::with_capacity(PIECES_PER_STEP),
            outputs: VecDeque::with_capacity(STEPS_PER_POLL * OUTPUTS_PER_STEP),
            taken: 0,
            sent: 0,
            control_packets,
            next: None,
        }
    }

    /// Lower bound of the number of requests that are done. They are done in order.
    pub(super) fn done(&self) -> u64 {
        let open = self.requests.len() + self.data.requests_in_flight();
        self.taken.saturating_sub(open as u64)
    }

    /// Whether the group may take frames from its wire.
    pub(super) fn may_receive(&self) -> bool {
        !self.wire_port.is_full() && !self.reports.is_behind()
    }

    /// Carries out the control plane's orders, at most `most`. Returns whether there were any.
    pub(super) fn take_orders(&mut self, now: Nanos, most: usize) -> bool {
        let mut count = 0;
        while count < most
            && let Some(order) = self.orders.take()
        {
            count += 1;
            match order {
                // A data path that does not keep up loses it, as any cable may.
                Order::Packet(packet) if self.packets.len() < PACKETS_MAX => {
                    self.packets.push_back(packet);
                }
                Order::Packet(_) => {}
                Order::Request(context, update) => {
                    self.taken += 1;
                    self.requests.push_back((context, update));
                }
                Order::Filled(process, ring, bytes) => self.memory.filled(process, ring, bytes),
                Order::Command(flow, command) => {
                    self.data.command(now, flow, command);
                    // The control plane freezes it next. Nothing may precede the reset until then.
                    if matches!(command, Command::Abort | Command::Refuse) {
                        self.data.freeze(flow);
                    }
                }
                Order::Resume(flow) => self.data.resume(flow),
                Order::Pace(flow, limits) => self.data.pace(flow, limits),
                Order::SetPath(flow, path) => self.data.set_path(flow, path),
            }
        }
        count > 0
    }

    /// Sends the control plane a report.
    fn report(&mut self, report: Report) {
        if let Report::Control(..) = report
            && self.control_packets.fetch_add(1, Ordering::Relaxed) >= CONTROL_PACKETS_MAX
        {
            // Otherwise they would use up the wire's buffers. The frame is lost, as on any cable.
            self.control_packets.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.sent += 1;
        self.reports.send(report);
    }

    /// Sends segments that have waited for the wire.
    fn send_held(&mut self, now: Nanos) {
        let data = &mut self.data;
        self.wire_port.send_held(&self.memory, &mut |ticket| data.complete(now, ticket));
    }

    /// Loses segments that wait for the wire.
    pub(super) fn discard_held(&mut self, now: Nanos) {
        let data = &mut self.data;
        self.wire_port.discard_held(&mut |ticket| data.complete(now, ticket));
    }

    fn perform(&mut self, now: Nanos, output: Output<Frame>) {
        match output {
            Output::Send(segment) => {
                let data = &mut self.data;
                let mut done = |ticket| data.complete(now, ticket);
                self.wire_port.send(&self.memory, segment, &mut done);
            }
            Output::Write(write) => {
                copy(&self.memory, &write);
                self.data.complete(now, write.ticket);
            }
            Output::Notify(context, event) => self.report(Report::Notify(context, event)),
            Output::Control((packet, flow)) => self.report(Report::Control(packet, flow)),
        }
    }

    /// Returns whether there may be more.
    fn report_statistics(&mut self) -> bool {
        for _ in 0..STATISTICS_PER_POLL {
            let Some(statistics) = self.data.next_statistics() else { return false };
            self.report(Report::Statistics(statistics));
        }
        true
    }

    /// Works for a bounded time, and shorter if the control plane waits for the group's lock; takes frames only if it
    /// `receives`. Returns whether there was anything to do.
    pub(super) fn turn(&mut self, now: Nanos, receives: bool, is_wanted: &AtomicBool) -> bool {
        let mut worked = self.take_orders(now, PIECES_PER_STEP);
        self.send_held(now);
        let is_stuck = self.wire_port.is_full() || self.reports.is_behind();
        if !is_stuck {
            if receives {
                let (wire_port, packets) = (&mut self.wire_port, &mut self.packets);
                worked |= wire_port.receive(FRAMES_PER_TURN, |packet| packets.push_back(packet));
            }
            for _ in 0..POLLS_PER_TURN {
                let Engine { data, packets, requests, outputs, .. } = self;
                data.submit(now, &mut Batch { packets, requests });
                data.poll(now, STEPS_PER_POLL, outputs);
                if outputs.is_empty() {
                    break;
                }
                worked = true;
                while let Some(output) = self.outputs.pop_front() {
                    self.perform(now, output);
                }
                self.report_statistics();
                if is_wanted.load(Ordering::Relaxed) {
                    break;
                }
            }
            worked |= self.report_statistics();
        }
        self.next = self.next(now, is_stuck, receives);
        self.reports.flush();
        worked
    }

    /// When the next turn is due, if nothing arrives before.
    fn next(&mut self, now: Nanos, is_stuck: bool, receives: bool) -> Option<Nanos> {
        let of_data = self.data.poll(now, 0, &mut self.outputs);
        if is_stuck {
            return Some(if receives { now + ROOM_EVERY } else { now });
        }
        let is_behind = self.wire_port.is_behind() || self.reports.is_behind();
        let has_work =
            !(self.packets.is_empty() && self.requests.is_empty() && self.orders.is_empty());
        // Where no frames are taken, the control plane waits for the end of all work.
        let is_due = has_work || is_behind && !receives;
        let soon = [is_due.then_some(now), is_behind.then(|| now + ROOM_EVERY)];
        soon.into_iter().chain([of_data]).flatten().min()
    }
}
