//! How connections end: by their hosts, by a reset, or because their process has gone (RFC 9293, 3.6).

use wave_core::clock::Nanos;

use super::super::shares::Kind;
use super::super::time_wait::{TIME_WAIT_LASTS, TimeWaitEntry};
use super::super::{Action, CLOSED_PER_POLL, GoneProcess, Stack};
use super::{Connection, FIN_WAIT, ORPHAN_LASTS, ORPHANS_ONE_OF, Teardown, Timer};
use crate::context::{ContextId, Event, Filled, Reason, Tail, Update};
use crate::datapath::{Command, Datapath, Established, Fin, FlowId, Output};
use crate::flow::optional_time::OptionalTime;
use crate::seq::seq_of;
use crate::trace::Point;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Closes a connection for its host, which reads and writes no more.
    pub(in crate::control) fn close(&mut self, now: Nanos, from: ContextId, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        if connection.context.process != from.process || connection.closed_at.is_some() {
            return;
        }
        let Some(state) = self.data.inspect(flow) else { return };
        let received = state.receiving.received;
        let Some(connection) = self.connection(flow) else { return };
        connection.record_close(received);
        if received > state.receiving.read.max(connection.read_reported) {
            return self.reset(now, flow, Reason::Reset);
        }
        self.enter_fin_wait_2(now, flow, &state);
    }

    /// Handles streams that ended before the host closed.
    fn enter_fin_wait_2(&mut self, now: Nanos, flow: FlowId, state: &Established) {
        let Some(connection) = self.connection(flow) else { return };
        if state.sending.fin != Fin::Acknowledged {
            return;
        }
        if connection.fin_received {
            self.end(now, flow);
        } else {
            self.start_timer(flow, Timer::FinWait, Some(now + FIN_WAIT));
        }
    }

    /// Resets a connection for its host.
    pub(in crate::control) fn abort(&mut self, from: ContextId, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        if connection.context.process == from.process {
            self.reset(Nanos(0), flow, Reason::Reset);
        }
    }

    /// Sends a reset, and starts the connection's teardown.
    pub(in crate::control) fn reset(&mut self, now: Nanos, flow: FlowId, reason: Reason) {
        self.end_with(now, flow, Command::Abort, reason);
    }

    /// Like [`Stack::reset`], but in answer to a segment.
    pub(in crate::control) fn refuse(&mut self, now: Nanos, flow: FlowId) {
        self.end_with(now, flow, Command::Refuse, Reason::Reset);
    }

    fn end_with(&mut self, now: Nanos, flow: FlowId, how: Command, reason: Reason) {
        if self.connection(flow).is_none_or(|connection| connection.teardown.is_some()) {
            return;
        }
        self.data.command(now, flow, how);
        // Nothing precedes the reset: no FIN of a close with unread data.
        self.data.freeze(flow);
        self.drop_connection(flow, reason);
    }

    /// Starts a connection's teardown without a word to the peer, which knows or will get a reset.
    pub(in crate::control) fn drop_connection(&mut self, flow: FlowId, reason: Reason) {
        let Some(connection) = self.connection(flow) else { return };
        if connection.teardown.is_some() {
            return;
        }
        // A host that has closed learns only that the connection is over.
        connection.teardown = Some(match connection.closed_at {
            Some(_) => Teardown::Closed { remembers: false },
            None => Teardown::Failed(reason),
        });
        self.counters.resets += 1;
        self.start_timer(flow, Timer::None, None);
        self.tearing_down.push_back(flow);
    }

    /// Ends a connection: both streams have ended, or the wait for the peer's FIN is over.
    pub(super) fn end(&mut self, _now: Nanos, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        if connection.teardown.is_some() {
            return;
        }
        let remembers = !connection.is_passive && connection.fin_received;
        connection.teardown = Some(Teardown::Closed { remembers });
        self.data.freeze(flow);
        self.start_timer(flow, Timer::None, None);
        self.tearing_down.push_back(flow);
    }

    /// Removes the torn-down flows that have no copy or packet in flight. Returns whether one was removed.
    pub(in crate::control) fn remove_torn_down(&mut self, now: Nanos) -> bool {
        let mut has_removed = false;
        for _ in 0..self.tearing_down.len() {
            let Some(flow) = self.tearing_down.pop_front() else { break };
            let Some(state) = self.data.export(flow) else {
                // A reset is still to be sent, or a copy is under way.
                if self.connection(flow).is_some() {
                    self.tearing_down.push_back(flow);
                }
                continue;
            };
            has_removed = true;
            let Some(connection) = self.connections[flow.index as usize].take() else { continue };
            let Connection { context, socket, listener, teardown, orphan_until, .. } = connection;
            self.count_accepted(context.process, listener);
            self.release_share(context.process, Kind::Connection);
            self.orphans -= u32::from(!orphan_until.is_none());
            let has_failed = matches!(teardown, Some(Teardown::Failed(_)));
            self.trace.put(now, Point::Leaves, Some(flow), [has_failed.into(), 0]);
            let event = match teardown {
                Some(Teardown::Failed(reason)) => Event::Failed { socket, reason },
                Some(Teardown::Closed { remembers: true }) => {
                    self.trace.put(now, Point::TimeWait, Some(flow), [0; 2]);
                    self.enter_time_wait(now, &state);
                    Event::Closed { socket }
                }
                _ => Event::Closed { socket },
            };
            self.notify(context, event);
            self.queue_release(context.process);
        }
        has_removed
    }

    fn enter_time_wait(&mut self, now: Nanos, state: &Established) {
        let Established { sending, receiving, timestamps, .. } = state;
        let over = TimeWaitEntry {
            until: now + TIME_WAIT_LASTS,
            seq: seq_of(sending.base, sending.written + 1),
            expected: seq_of(receiving.base, receiving.received + 1),
            recent: timestamps.map(|stamps| stamps.recent),
            offset: timestamps.map_or(0, |stamps| stamps.offset),
            mac: state.peer_mac,
            answered_at: OptionalTime::NONE,
        };
        self.time_wait.insert(state.tuple, over);
    }

    /// Closes connections of processes that have gone, some in each poll.
    pub(in crate::control) fn close_orphans(&mut self, now: Nanos) {
        let Some(GoneProcess { process, next: from, reads }) = self.gone.pop_front() else {
            return;
        };
        let to = (from + CLOSED_PER_POLL).min(self.bounds.flows);
        for index in from..to {
            let Some(connection) = &mut self.connections[index as usize] else { continue };
            if connection.context.process != process
                || !connection.orphan_until.is_none()
                || connection.is_held
                || self.takes.iter().any(|take| take.is_offer_of(connection.flow))
            {
                continue;
            }
            connection.orphan_until = (now + ORPHAN_LASTS).into();
            self.orphans += 1;
            let Connection { flow, context, socket, closed_at, .. } = *connection;
            let (read_reported, written_reported) =
                (connection.read_reported, connection.written_reported);
            let Some(state) = self.data.inspect(flow) else { continue };
            let Established { sending, receiving, .. } = state;
            let reported = receiving.read.max(read_reported);
            let read = reads.position(context.context, socket, reported, receiving.received);
            if closed_at.is_none() && receiving.received > read {
                self.reset(now, flow, Reason::Reset);
                continue;
            }
            if self.orphans > (self.bounds.flows / ORPHANS_ONE_OF).max(1) {
                self.counters.orphans_reset += 1;
                self.reset(now, flow, Reason::Reset);
                continue;
            }
            let written = sending.written.max(written_reported);
            let (is_finished, is_eager, filled) = (true, state.is_eager, Filled::default());
            let finish =
                Update { flow, written, read, is_finished, is_eager, tail: Tail::Whole, filled };
            self.requests.push_back((context, finish));
            if closed_at.is_none() {
                if let Some(connection) = self.connection(flow) {
                    connection.record_close(receiving.received);
                }
                self.enter_fin_wait_2(now, flow, &state);
            }
        }
        if to < self.bounds.flows {
            self.gone.push_front(GoneProcess { process, next: to, reads });
        } else {
            self.lingering.push(process);
            self.queue_release(process);
        }
    }

    /// Releases a process that has gone, if nothing of it is left.
    pub(in crate::control) fn queue_release(&mut self, process: u16) {
        let Some(at) = self.lingering.iter().position(|one| *one == process) else { return };
        if !self.connections.iter().flatten().any(|one| one.context.process == process) {
            self.lingering.swap_remove(at);
            let before = self.submitted + self.requests.len() as u64;
            self.released.push_back((process, before));
        }
    }

    /// Releases the numbers of processes whose requests are all done: no request may be attributed to the next process with the
    /// same number.
    pub(in crate::control) fn report_released(&mut self) {
        let done = self.submitted - self.data.requests_in_flight() as u64;
        while let Some((process, before)) = self.released.front().copied()
            && before <= done
        {
            self.released.pop_front();
            self.out.push_back(Output::Control(Action::Released(process)));
        }
    }
}
