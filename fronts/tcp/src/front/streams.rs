//! Shared connections: the front's side of [`crate::streams`].

use wave_core::clock::Nanos;
use wave_tcp::context::demotion::Cause;
use wave_tcp::context::{ContextId, Event, FILL_MAX, Request};
use wave_tcp::control::{RingCopy, Stack};
use wave_tcp::datapath::FlowId;
use wave_wires::{Frame, Wire};

use super::TcpFront;
use crate::admitted::Lent;
use crate::front_datapath::FrontDatapath;
use crate::refusal_log::{Refusal, TAKES_NO_EVENTS};
use crate::streams::{Need, Owner, Streams, Turn};
use crate::wire_port::ProcessPayloads;

impl<W: Wire, D: FrontDatapath> TcpFront<W, D> {
    /// Copies a connection's rings from one process to another. The stack has checked that both have the memory.
    pub(super) fn copy_rings(&mut self, now: Nanos, copy: &RingCopy) {
        let payload = |process: u16| self.processes.payload(process);
        if let [Some(from), Some(to)] = copy.processes.map(payload) {
            let mut bytes = vec![0; FILL_MAX as usize];
            for ((from_ring, to_ring), count) in copy.from.iter().zip(copy.to).zip(copy.bytes) {
                let part = &mut bytes[..count as usize];
                let read = from.read(from_ring.offset, part);
                let written = to.write(to_ring.offset, part);
                debug_assert!(read.is_ok() && written.is_ok(), "{read:?}, {written:?}");
            }
        }
        if let Some(renamed) = self.stack.rings_copied(now, copy.flow)
            && let Some((owner, socket)) = self.streams.renamed(copy.flow, renamed)
        {
            self.notify_demoted(now, owner, socket);
        }
    }

    /// Takes a process's message about connections of which others may have descriptors, and answers.
    pub(super) fn take_shared(&mut self, at: usize, context: u16) -> bool {
        let Some(admitted) = self.processes[at].as_mut() else { return true };
        if let Some((text, fds)) = admitted.process.receive_shared() {
            let words = text.chunks_exact(8).map(|word| word.try_into().expect("eight bytes"));
            for (word, placeholder) in words.zip(fds) {
                let flow = FlowId::from_word(u64::from_le_bytes(word));
                let owner = self.stack.owner(flow).filter(|one| one.0.process == at as u16);
                if let Some((owner, socket)) = owner {
                    let secret = self.stack.family(owner.process);
                    self.streams.share(flow, (owner, socket), secret, placeholder);
                }
            }
        }
        let port = self.streams.port();
        admitted.send(&mut self.shares, context, Event::Door { port })
    }

    /// Serves processes that want to use others' connections, and moves bytes of streams. Returns whether there was anything to do.
    pub(super) fn serve_streams(&mut self, now: Nanos, is_called: bool) -> bool {
        if !is_called && self.streams.is_idle() {
            return false;
        }
        let (ready, is_at_door) = self.streams.poll_ready();
        let mut worked = !ready.is_empty();
        if is_at_door || self.streams.next_poll().is_some_and(|at| at <= now) {
            worked |= self.serve_door(now, is_at_door);
        }
        for id in ready {
            self.relay(now, id);
        }
        for (id, flow) in self.streams.abandoned(now) {
            self.streams.forget(id);
            self.stack.release_hold(flow);
        }
        worked
    }

    fn serve_door(&mut self, now: Nanos, is_ready: bool) -> bool {
        let processes = &self.processes;
        let owner =
            |process: u16| match processes.get(usize::from(process)).and_then(Option::as_ref) {
                Some(admitted) if admitted.is_gone => Owner::Gone,
                Some(admitted) if admitted.process.is_inside() => Owner::Inside,
                Some(admitted) => Owner::Outside(admitted.drained),
                None => Owner::Gone,
            };
        let is_changing_owner = |flow| self.stack.is_changing_owner(flow);
        let needs = self.streams.serve_door(now, self.turn, is_ready, owner, is_changing_owner);
        let worked = !needs.is_empty();
        for need in needs {
            match need {
                Need::Stop(process) => {
                    if let Some(Some(admitted)) = self.processes.get_mut(usize::from(process)) {
                        admitted.process.stop();
                    }
                }
                Need::Hold { id, flow, owner, socket } => {
                    if !self.hold(id, flow) {
                        self.streams.forget(id);
                    }
                    self.notify_demoted(now, owner, socket);
                }
                Need::Take { from, request } => self.take(now, from, request),
                Need::Poll => {}
                Need::LogDemotion { process, cause } => self.log_demotion(now, process, cause),
            }
        }
        worked
    }

    /// Logs only errors from now on.
    pub fn set_quiet(&mut self) {
        self.is_quiet = true;
    }

    /// Tells people that a process is slower, once for each cause.
    fn log_demotion(&mut self, now: Nanos, process: u16, cause: Cause) {
        let admitted = self.processes.get_mut(usize::from(process)).and_then(Option::as_mut);
        let Some(admitted) = admitted.filter(|_| !self.is_quiet) else { return };
        if admitted.is_first_demotion(cause) {
            // Another process may have the number of one that has gone.
            let name = (!admitted.is_gone).then(|| admitted.process.program()).flatten();
            self.refusals.log_demotion(now, admitted.process.peer(), name.as_deref(), cause);
        }
    }

    fn take(&mut self, now: Nanos, from: ContextId, request: Request) {
        if let Some(Some(admitted)) = self.processes.get_mut(usize::from(from.process)) {
            let memory = Lent(admitted.process.payload_mut());
            self.stack.request(now, from, request, memory);
        }
    }

    /// Hands pending takeovers to the stack, before a successor replaces this agent.
    pub(super) fn release_takeovers(&mut self, now: Nanos) {
        let takeovers: Vec<(ContextId, Request)> = self.streams.drain_takeovers().collect();
        takeovers.into_iter().for_each(|(from, request)| self.take(now, from, request));
    }

    /// Holds a connection. Returns false if it is over.
    fn hold(&mut self, id: u64, flow: FlowId) -> bool {
        let Some(held) = self.stack.hold(flow) else { return false };
        self.streams.hold(id, held);
        true
    }

    /// Tells a process that was asked to stop that it may go on.
    pub(super) fn notify_demoted(&mut self, now: Nanos, owner: ContextId, socket: u32) {
        let at = usize::from(owner.process);
        if let Some(Some(admitted)) = self.processes.get_mut(at)
            && !admitted.send(&mut self.shares, owner.context, Event::Demoted { socket })
        {
            self.evict(now, at, Refusal::new("is turned out", TAKES_NO_EVENTS));
        }
    }

    /// Moves bytes between a connection and its stream.
    fn relay(&mut self, now: Nanos, id: u64) {
        if self.stack.room_for_requests() < 2 {
            return self.streams.rearm(id);
        }
        let Some(relay) = self.streams.relay(id) else { return };
        let context = relay.held.context;
        let Some(Some(admitted)) = self.processes.get_mut(usize::from(context.process)) else {
            return;
        };
        relay.fill(admitted.process.payload_mut());
        let turn = relay.turn(admitted.process.payload());
        let (flow, update) = (relay.held.flow, relay.update());
        let end = match turn {
            Turn::Open => None,
            Turn::Ended => Some(Request::Close { flow }),
            Turn::Reset => Some(Request::Abort { flow }),
        };
        for request in update.map(Request::Update).into_iter().chain(end) {
            let memory = Lent(admitted.process.payload_mut());
            self.stack.request(now, context, request, memory);
        }
        if turn == Turn::Open {
            self.streams.rearm(id);
        } else if let Some(relay) = self.streams.relay(id) {
            relay.finish(turn == Turn::Ended);
        }
    }

    /// Handles an event of a held connection. Returns it if its process must get it, too.
    pub(super) fn on_held(&mut self, now: Nanos, id: u64, event: Event) -> Option<Event> {
        match event {
            Event::Progress(progress) => {
                self.streams.relay(id)?.progress(&progress);
                self.relay(now, id);
                None
            }
            Event::Closed { .. } | Event::Failed { .. } => {
                // What has arrived is passed on, as far as there is room.
                if let Some(relay) = self.streams.relay(id) {
                    let at = usize::from(relay.held.context.process);
                    if let Some(Some(admitted)) = self.processes.get_mut(at) {
                        let _ = relay.turn(admitted.process.payload());
                    }
                }
                self.streams.forget(id);
                Some(event)
            }
            _ => None,
        }
    }

    /// Called before a process that has gone is forgotten: others may have descriptors of its connections.
    pub(super) fn hold_shared_connections(&mut self, now: Nanos, at: usize) {
        let is_inside =
            self.processes[at].as_ref().is_some_and(|admitted| admitted.process.is_inside());
        for (id, flow) in self.streams.left_by(at as u16) {
            if !is_inside && self.hold(id, flow) {
                continue;
            }
            if is_inside {
                // Nobody knows how far it has read.
                self.streams.counts.torn += 1;
                let context = ContextId { process: at as u16, context: 0 };
                if let Some(admitted) = &mut self.processes[at] {
                    let memory = Lent(admitted.process.payload_mut());
                    self.stack.request(now, context, Request::Abort { flow }, memory);
                }
            }
            self.streams.forget(id);
        }
    }
}

/// Whether a connection that a process cannot take over may still become a stream of the kernel's: then nobody is refused anything. If that
/// fails as well, the process reports it.
pub(super) fn may_be_demoted<D: FrontDatapath>(
    streams: &Streams,
    stack: &Stack<Frame, D>,
    flow: FlowId,
) -> bool {
    streams.shared(flow).is_some_and(|flow| stack.owner(flow).is_some())
}

/// The connection that a request of its owner is about, unless it asks for another process's.
pub(super) fn flow_of(request: &Request) -> Option<FlowId> {
    match *request {
        Request::Update(update) => Some(update.flow),
        Request::Close { flow }
        | Request::Abort { flow }
        | Request::QueryTcpInfo { flow }
        | Request::Accept { flow }
        | Request::ShutdownRead { flow }
        | Request::Configure { flow, .. } => Some(flow),
        _ => None,
    }
}

/// The socket that an event is about.
pub(super) fn socket_of(event: &Event) -> Option<u32> {
    match *event {
        Event::Progress(progress) => Some(progress.socket),
        Event::TcpInfo(info) => Some(info.socket),
        Event::Closed { socket }
        | Event::Failed { socket, .. }
        | Event::SoftError { socket, .. } => Some(socket),
        _ => None,
    }
}
