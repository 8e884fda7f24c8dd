//! Replacement: the front hands its state to a successor, or replaces another agent.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use wave_agent::Seat;
use wave_core::clock::Nanos;
use wave_links::socket::Connection;
use wave_process::say;
use wave_tcp::datapath::{Datapath, Settings};
use wave_tcp::steering::Steering;
use wave_tcp::trace::Trace;
use wave_wires::{Frame, Wire};

use super::{ListeningSockets, TcpFront, termination_flag};
use crate::admitted::Admitted;
use crate::captures::Captures;
use crate::door::{Door, DoorOptions};
use crate::front_datapath::{FrontDatapath, STEPS_PER_POLL};
use crate::groups::{GroupWires, Groups, Sender};
use crate::handover::{
    AgentInfo, HandoverError, Kept, Predecessor, Sockets, Successors, WireKind, from_machine_time,
    send, send_commit, send_info, send_stay, to_machine_time,
};
use crate::process::Process;
use crate::report_socket::ReportSocket;
use crate::streams::Streams;
use crate::traces::Traces;

/// Most polls until nothing is in progress, and again until connections are frozen. A poll takes some tens of microseconds.
const SETTLING_POLLS_MAX: usize = 4096;

/// The parts that a replaceable front needs.
pub(super) struct Replaceable {
    successors: Successors,
    wire: WireKind,
    /// Name of the wire's network interface in Linux.
    name: String,
}

impl<W: Wire, D: Datapath<Frame>> TcpFront<W, Box<D>> {
    /// Takes over from a running agent, which leaves, with the data path that `make` makes. `wire` was opened from its wire's
    /// descriptor. The returned front must run at once: no other agent serves the connections.
    ///
    /// # Errors
    /// The other agent continues, or has died.
    pub fn take_over(
        wire: W,
        make: impl FnOnce(Settings, Arc<Trace>) -> D,
        from: Predecessor,
        seat: Seat,
    ) -> Result<TcpFront<W, Box<D>>, HandoverError> {
        TcpFront::replace(from, seat, |info, listening, _| {
            let data = listening.single_datapath(&wire, info.bounds, make);
            Ok((wire, data))
        })
    }
}

impl<W: Wire + Send + 'static, D: Datapath<Frame> + Send + 'static>
    TcpFront<Sender<W>, Groups<W, D>>
{
    /// Like [`TcpFront::take_over`], from an agent with flow groups. The wires were opened from the descriptors of its groups'
    /// wires, in their order, and the senders from copies of them.
    ///
    /// # Errors
    /// The other agent continues, or has died.
    pub fn take_over_groups(
        wires: GroupWires<W>,
        make: impl FnMut(Settings, Arc<Trace>) -> D,
        from: Predecessor,
        seat: Seat,
    ) -> Result<TcpFront<Sender<W>, Groups<W, D>>, HandoverError> {
        TcpFront::replace(from, seat, |info, listening, start| {
            listening.groups(wires, info.bounds, start, make)
        })
    }
}

impl<W: Wire, D: FrontDatapath> TcpFront<W, D> {
    /// Lets agents that connect to `successors` replace this one. They continue with the descriptor of the wire, whose name in
    /// Linux is `name`.
    pub fn replaceable(self, successors: Successors, wire: WireKind, name: &str) -> Self {
        let name = name.to_owned();
        TcpFront { replaceable: Some(Replaceable { successors, wire, name }), ..self }
    }

    /// Takes over from a running agent, with a wire and data paths that `make` makes.
    fn replace(
        from: Predecessor,
        seat: Seat,
        make: impl FnOnce(&AgentInfo, &ListeningSockets, Instant) -> io::Result<(W, D)>,
    ) -> Result<TcpFront<W, D>, HandoverError> {
        let info = &from.info;
        let sockets = from.sockets.try_clone()?;
        let options = DoorOptions {
            allowed: info.allowed.clone(),
            trusted: info.trusted.clone(),
            payload_bytes_max: info.payload_bytes_max,
        };
        let start = from_machine_time(info.clock_ns);
        let ends = termination_flag()?;
        // Sockets remove their files on drop. The files belong to the other agent until it leaves, so no error path may drop
        // them.
        let successors = ManuallyDrop::new(Successors::adopt(sockets.successors, &info.door)?);
        let listening = ManuallyDrop::new(ListeningSockets {
            streams: Streams::to_restore()?,
            door: Door::adopt(sockets.door, &info.door, options)?,
            reports: ReportSocket::adopt(sockets.reports, &info.door),
            captures: Captures::adopt(sockets.captures, &info.door, &info.name),
            traces: Traces::adopt(sockets.traces, &info.door),
        });
        // Everything slow is done while the other agent still serves.
        let (wire, data) = make(info, &listening, start)?;
        let (listening, address) =
            (ManuallyDrop::into_inner(listening), (info.address, info.bounds));
        let front = TcpFront::assemble(wire, data, listening, address, start, ends);
        let successors = ManuallyDrop::into_inner(successors);
        let mut front = ManuallyDrop::new(front.replaceable(successors, info.wire, &info.name));
        front.seat = seat;
        let (kept, fds) = from.receive()?;
        front.restore(kept, fds)?;
        from.replace()?;
        let mut front = ManuallyDrop::into_inner(front);
        let now = front.now();
        for process in front.lost.clone() {
            front.stack.reset_all_of(now, process);
            front.stack.remove_process(process);
        }
        Ok(front)
    }

    /// Whether a successor has replaced this agent. Then this one must touch nothing any more, not even by a drop.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    pub(super) fn successor_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.replaceable.iter().flat_map(|replaceable| replaceable.successors.fds())
    }

    /// Hands over to a new agent if one is ready. Returns whether that was tried.
    pub(super) fn poll_successors(&mut self, now: Nanos) -> bool {
        let Some(mut replaceable) = self.replaceable.take() else { return false };
        let (wire, name) = (replaceable.wire, &replaceable.name);
        let ready = replaceable.successors.poll(now, |listener, connection| {
            let (steering, wires) = match self.stack.data.spread() {
                Some((steering, wires)) => (Some(steering), wires),
                None => (None, self.wire_port.wire.as_fd().into_iter().collect()),
            };
            if wires.is_empty() {
                return Ok(());
            }
            let sockets = Sockets {
                door: self.door.listener(),
                reports: self.reports.listener(),
                captures: self.captures.listener(),
                traces: self.traces.listener(),
                successors: listener,
            };
            send_info(connection, &self.describe(wire, name, steering), &wires, &sockets)
        });
        self.replaceable = Some(replaceable);
        let Some(connection) = ready else { return false };
        match self.hand_over(&connection) {
            Ok(()) => self.is_replaced = true,
            Err(error) => {
                say!(
                    "wave tcp: a successor could not replace this agent, so this one continues: {error}"
                );
                // Connections that are not frozen yet cannot be thawed.
                let _ = self.drain(|front, _| front.stack.is_frozen());
                let now = self.now();
                self.stack.thaw(now);
                self.stack.data.unpause();
                send_stay(connection);
            }
        }
        true
    }

    fn describe(&self, wire: WireKind, name: &str, steering: Option<Steering>) -> AgentInfo {
        let options = self.door.options();
        AgentInfo {
            version: AgentInfo::VERSION,
            datapath: self.stack.data.name().to_owned(),
            wire,
            steering,
            name: name.to_owned(),
            address: *self.stack.address(),
            bounds: self.stack.bounds(),
            door: self.door.path().to_owned(),
            allowed: options.allowed.clone(),
            trusted: options.trusted.clone(),
            payload_bytes_max: options.payload_bytes_max,
            clock_ns: to_machine_time(self.start),
        }
    }

    /// Hands everything over. After an error the connections are still this agent's, but may be frozen.
    fn hand_over(&mut self, to: &Connection) -> Result<(), HandoverError> {
        self.release_takeovers(self.now());
        self.stack.data.pause();
        self.drain(|front, now| front.stack.is_at_rest(now))?;
        self.stack.freeze();
        // A timer may have ended a connection in between, so segments may be in progress again.
        self.drain(|front, now| front.stack.is_at_rest(now) && front.stack.is_frozen())?;
        self.live_processes_mut().for_each(Process::publish);
        let (kept, fds) = self.export_state();
        send(to, &kept, &fds)?;
        Ok(send_commit(to)?)
    }

    /// Works, without taking requests or frames in, until the condition holds and nothing is in progress.
    fn drain(&mut self, is_so: impl Fn(&mut Self, Nanos) -> bool) -> Result<(), HandoverError> {
        for _ in 0..SETTLING_POLLS_MAX {
            let now = self.now();
            self.send_held(now);
            let stack = &mut self.stack;
            self.wire_port.discard_held(&mut |ticket| stack.complete(now, ticket));
            self.stack.data.discard_held(now);
            self.stack.poll(now, STEPS_PER_POLL, &mut self.outputs);
            let is_quiet = self.outputs.is_empty();
            self.perform(now);
            if is_quiet && !self.wire_port.is_behind() && is_so(self, now) {
                return Ok(());
            }
        }
        Err(io::Error::other("this agent's work did not come to an end").into())
    }

    fn export_state(&self) -> (Kept, Vec<BorrowedFd<'_>>) {
        let mut fds = Vec::new();
        let mut processes = Vec::with_capacity(self.processes.len());
        for admitted in &self.processes {
            processes.push(admitted.as_ref().map(|admitted| {
                let (kept, of_process) = admitted.hand_over();
                fds.extend(of_process);
                kept
            }));
        }
        let before = fds.len();
        fds.extend(self.door.waiting());
        let waiting = fds.len() - before;
        let (streams, of_streams) = self.streams.hand_over();
        fds.extend(of_streams);
        let (stack, admission) = (self.stack.state(), self.admission);
        (Kept { stack, processes, waiting, streams, admission }, fds)
    }

    /// Restores another agent's state, without any effect that processes or peers can see.
    fn restore(&mut self, kept: Kept, fds: Vec<OwnedFd>) -> Result<(), HandoverError> {
        let now = self.now();
        let Kept { stack, processes, waiting, streams, admission } = kept;
        self.admission = admission;
        let (mut fds, threads) = (fds.into_iter(), self.stack.data.threads());
        for (at, kept) in (0..).zip(processes) {
            let restored = kept.map(|kept| {
                let own = fds.by_ref().take(kept.process.descriptors()).collect();
                Admitted::restore(at, kept, own, threads)
            });
            let admitted = match restored.transpose() {
                Ok(admitted) => admitted,
                Err(error) => {
                    say!("wave tcp: the connections of one process cannot be taken over: {error}");
                    self.lost.push(at);
                    None
                }
            };
            let mut admitted = admitted;
            if let Some(admitted) = &mut admitted {
                self.shares.acquire_restored(admitted);
                self.stack.data.add_process(at, admitted.process.lend_to_threads());
            }
            self.processes.push(admitted.map(Box::new));
        }
        for fd in fds.by_ref().take(waiting) {
            self.door.adopt_waiting(now, fd)?;
        }
        self.streams.restore(streams, fds.collect())?;
        stack.visit_memory(&mut |process, ring, bytes| {
            if let Some(Some(admitted)) = self.processes.get_mut(usize::from(process)) {
                admitted.process.payload_mut().assume_backed(ring.offset, bytes);
            }
        });
        let misfit =
            |error| HandoverError::Other(format!("its state does not fit this agent: {error}"));
        self.stack.restore(now, stack).map_err(misfit)
    }
}
