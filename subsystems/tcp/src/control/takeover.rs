//! Connections that change owners: a child of fork(2) takes a connection that its parent has accepted (docs/adr/0068), and
//! connections that a process has not accepted go to others that share the port (docs/adr/0103). Any process that knows the secret
//! may take a lent connection (docs/adr/0078).
//!
//! The flow is frozen until it has nothing in flight. Then the caller copies its rings from one memory to the other, and the
//! flow is installed again. Segments that the peer sends meanwhile are lost, and retransmitted.

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use super::connection::Timer;
use super::shares::Kind;
use super::{Action, Call, Slot, Stack};
use crate::context::{ContextId, Event, FILL_MAX, Filled, Progress, Reason, Sharing};
use crate::datapath::{Datapath, FlowId, Output, Ring};
use crate::flow::optional_time::OptionalTime;

/// Limit of connections that wait to change owners.
const TAKEOVERS_MAX: usize = 256;
/// Limit of connections lent at a time.
const LENT_MAX: usize = 1_024;
/// Longest time that a process waits for outstanding requests of a connection's owner.
const PATIENCE: Nanos = Nanos::from_millis(4_000);

/// A connection that is changing owners.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Takeover {
    flow: FlowId,
    to: NewOwner,
    progress: Phase,
}

/// A connection that any process that knows the secret may take.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Lent {
    flow: FlowId,
    secret: u128,
    /// The process that has lent it, while it exists. `family` is the family of that process, and `is_own` says whether it
    /// owned the connection.
    lender: Option<u16>,
    family: u128,
    is_own: bool,
}

/// The new owner.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum NewOwner {
    /// A process that knows the positions up to which the connection was read and written, and waits no longer than `until`.
    Child { context: ContextId, slot: Slot, read: u64, written: u64, until: Nanos },
    /// Any other listener that shares the port.
    Any { from: ContextId, sharing: Sharing },
    /// The listener that was chosen, and one of its slots.
    Listener { from: ContextId, sharing: Sharing, context: ContextId, name: u32, slot: Slot },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Phase {
    Waits,
    /// The flow is frozen.
    Frozen,
    /// The copy was requested.
    Carried,
}

/// A copy of a connection's rings: `bytes` from the beginning of each ring in `from` to the beginning of its counterpart in
/// `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCopy {
    /// The connection.
    pub flow: FlowId,
    /// The old owner and the new owner.
    pub processes: [u16; 2],
    /// The old receive ring and send ring.
    pub from: [Ring; 2],
    /// The new receive ring and send ring.
    pub to: [Ring; 2],
    /// Bytes to copy of the receive ring and the send ring, at most [`FILL_MAX`] each.
    pub bytes: [u32; 2],
}

impl Takeover {
    /// Whether this offers `flow` to other listeners.
    pub(super) fn is_offer_of(&self, flow: FlowId) -> bool {
        self.flow == flow && !matches!(self.to, NewOwner::Child { .. })
    }

    /// Whether the flow was not frozen or copied yet.
    pub(super) fn is_unstarted(&self) -> bool {
        self.progress == Phase::Waits
    }

    /// Process, slot and backed memory of the new owner, once it is known.
    pub(super) fn memory(&self) -> Option<(u16, Slot, Filled)> {
        self.to.destination().map(|(context, slot, filled)| (context.process, slot, filled))
    }

    /// Starts over: the flow is not frozen any more.
    pub(super) fn restart(&mut self) {
        self.progress = Phase::Waits;
    }
}

impl NewOwner {
    /// Whether a process offers the connection, or is the new owner.
    fn is_of(&self, process: u16) -> bool {
        let from = match self {
            NewOwner::Child { .. } => None,
            NewOwner::Any { from, .. } | NewOwner::Listener { from, .. } => Some(*from),
        };
        let owner = self.destination().map(|(context, ..)| context);
        from.into_iter().chain(owner).any(|context| context.process == process)
    }

    /// Context, slot and backed memory of the new owner, once it is known.
    fn destination(&self) -> Option<(ContextId, Slot, Filled)> {
        match *self {
            NewOwner::Any { .. } => None,
            NewOwner::Child { context, slot, .. } => {
                Some((context, slot, Filled { receive: FILL_MAX, send: FILL_MAX }))
            }
            NewOwner::Listener { context, slot, .. } => {
                Some((context, slot, Filled { receive: slot.filled, send: 0 }))
            }
        }
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Sets the family of a process; 0 is none.
    pub(super) fn join(&mut self, process: u16, secret: u128) {
        let at = usize::from(process);
        if at >= self.families.len() {
            self.families.resize(at + 1, 0);
        }
        self.families[at] = secret;
    }

    /// The secret of a process's family; 0 is none.
    pub fn family(&self, process: u16) -> u128 {
        self.families.get(usize::from(process)).copied().unwrap_or(0)
    }

    /// Lends a connection of a process. A process may lend as many as it leaves free for others; beyond that, its oldest loan
    /// ends.
    pub(super) fn lend(&mut self, process: u16, flow: FlowId, secret: u128) {
        let mut lent = core::mem::take(&mut self.lent);
        lent.retain(|lent| lent.flow != flow && self.connection(lent.flow).is_some());
        self.lent = lent;
        let Some(connection) = self.connection(flow).filter(|_| secret != 0) else { return };
        let is_own = connection.context.process == process;
        let is_its = |lent: &Lent| lent.lender == Some(process);
        if self.lent.iter().filter(|lent| is_its(lent)).count() >= LENT_MAX - self.lent.len() {
            match self.lent.iter().position(is_its) {
                Some(first) => self.lent.remove(first),
                None => return,
            };
        }
        let (lender, family) = (Some(process), self.family(process));
        self.lent.push(Lent { flow, secret, lender, family, is_own });
    }

    /// Whether a connection is changing owners.
    pub fn is_changing_owner(&self, flow: FlowId) -> bool {
        self.takes.iter().any(|take| take.flow == flow)
    }

    /// Whether a process is entitled to take a connection over, as far as is known yet.
    pub fn may_be_taken_over(&self, flow: FlowId, by: u16) -> bool {
        let owner = self.owner(flow);
        owner.is_some_and(|(owner, _)| self.may_take_over(flow, owner.process, by) == Some(true))
    }

    /// Whether a process may take a connection: it is in the owner's family, or the connection was lent to it. `None` if the
    /// owner has not named its family yet, because the child's queue may be read before its parent's.
    fn may_take_over(&self, flow: FlowId, owner: u16, child: u16) -> Option<bool> {
        let [of_owner, of_child] = [owner, child].map(|process| self.family(process));
        let lent = self.lent.iter().find(|lent| lent.flow == flow && lent.secret == of_child);
        match lent.filter(|_| owner != child) {
            Some(lent) if lent.is_own => return Some(true),
            Some(lent) if lent.family != 0 => {
                return (of_owner != 0).then_some(of_owner == lent.family);
            }
            _ => {}
        }
        match (owner != child && of_child != 0, of_owner) {
            (true, 0) => None,
            (may_be, _) => Some(may_be && of_owner == of_child),
        }
    }

    /// Number of connections that a process waits to take.
    fn takeovers_of(&self, process: u16) -> usize {
        let owners = self.takes.iter().filter_map(|take| take.to.destination());
        owners.filter(|(context, ..)| context.process == process).count()
    }

    /// Whether a process has as many takeovers under way as it leaves free for others. Then it may start no more.
    fn is_at_takeover_limit(&self, process: u16) -> bool {
        let own = self.takes.iter().filter(|take| take.to.is_of(process)).count();
        own >= TAKEOVERS_MAX.saturating_sub(self.takes.len())
    }

    /// Whether a process has room for one more connection, besides those that it waits to take.
    fn has_takeover_room(&self, process: u16) -> bool {
        let more = 1 + self.takeovers_of(process) as u32;
        self.shares.has_room(process, Kind::Connection as usize, more)
    }

    /// Starts taking over a connection. `read` and `written` are the positions up to which it was read and written.
    ///
    /// # Errors
    /// `Invalid`: the family has no such connection. `TooMany`: the process has used up its share. `NoRoom`: too many takeovers
    /// wait.
    pub(super) fn take_over(
        &mut self,
        now: Nanos,
        context: ContextId,
        flow: FlowId,
        slot: Slot,
        [read, written]: [u64; 2],
    ) -> Result<(), Reason> {
        let connection = self.connection(flow).filter(|one| one.has_host() && !one.is_held);
        let owner = connection.map(|connection| connection.context.process);
        let is_refused = owner
            .is_none_or(|owner| self.may_take_over(flow, owner, context.process) == Some(false));
        if is_refused || self.takes.iter().any(|other| other.flow == flow) {
            return Err(Reason::Invalid);
        }
        if !self.has_takeover_room(context.process) {
            self.counters.beyond_share += 1;
            return Err(Reason::TooMany);
        }
        if self.is_at_takeover_limit(context.process) {
            return Err(Reason::NoRoom);
        }
        let to = NewOwner::Child { context, slot, read, written, until: now + PATIENCE };
        self.takes.push(Takeover { flow, to, progress: Phase::Waits });
        Ok(())
    }

    /// The program has accepted a connection: it is no longer its listener's.
    pub(super) fn accept(&mut self, from: ContextId, flow: FlowId) {
        if let Some(connection) = self.connection(flow)
            && connection.context.process == from.process
        {
            let name = connection.listener.take();
            self.count_accepted(from.process, name);
        }
    }

    /// Counts a connection that has left its listener, if it had one.
    pub(super) fn count_accepted(&mut self, process: u16, name: Option<u32>) {
        if let Some(at) = name.and_then(|name| self.listener_named(process, name)) {
            self.listeners[at].unaccepted -= 1;
        }
    }

    /// Offers the connections that a listener's program has not accepted to others that share the port, in the order of their arrival.
    /// There are `count`.
    pub(super) fn offer_unaccepted(
        &mut self,
        from: ContextId,
        (name, sharing): (u32, Sharing),
        mut count: u32,
    ) {
        for index in 0..self.connections.len() {
            if count == 0 {
                break;
            }
            let Some(connection) = &mut self.connections[index] else { continue };
            if (connection.context.process, connection.listener) != (from.process, Some(name)) {
                continue;
            }
            count -= 1;
            connection.listener = None;
            let (flow, has_host) = (connection.flow, connection.has_host());
            // A program that uses a connection before it says that it has accepted it is at fault.
            let is_untouched = (connection.read_reported, connection.written_reported) == (0, 0);
            if !has_host {
                continue;
            }
            if !is_untouched || self.is_at_takeover_limit(from.process) {
                self.reset(Nanos(0), flow, Reason::Reset);
                continue;
            }
            self.takes.push(Takeover {
                flow,
                to: NewOwner::Any { from, sharing },
                progress: Phase::Waits,
            });
        }
        // The oldest is accepted first. Takeovers of another kind have no order.
        let arrived =
            |take: &Takeover| self.connections[take.flow.index as usize].map(|one| one.arrived);
        self.takes.sort_by_key(arrived);
    }

    /// Whether a connection is on offer that a listener may have.
    pub(super) fn has_offer_for(&self, at: usize) -> bool {
        let listener = &self.listeners[at];
        self.takes.iter().any(|take| {
            let NewOwner::Any { from, sharing } = take.to else { return false };
            let connection = self.connections[take.flow.index as usize].as_ref();
            connection.is_some_and(|one| super::accepts_at(listener.local, one.tuple().local))
                && self.may_share(from, sharing, listener)
        })
    }

    /// Puts connections back on offer for which a slot of such a listener was chosen, by its context and name.
    pub(super) fn reoffer(&mut self, notifies: bool, is_its: impl Fn(ContextId, u32) -> bool) {
        for at in 0..self.takes.len() {
            let Takeover { flow, to, progress } = self.takes[at];
            if let NewOwner::Listener { from, sharing, context, name, slot } = to
                && is_its(context, name)
            {
                let (to, progress) = (NewOwner::Any { from, sharing }, progress.min(Phase::Frozen));
                self.takes[at] = Takeover { flow, to, progress };
                if notifies {
                    self.notify(context, Event::Unused { socket: slot.socket });
                }
            }
        }
    }

    /// Drops the takeovers of a process that has gone. Its lent connections stay lent, and its offered ones stay on offer.
    pub(super) fn drop_takeovers(&mut self, process: u16) {
        let lent = self.lent.iter_mut().filter(|lent| lent.lender == Some(process));
        lent.for_each(|lent| lent.lender = None);
        self.reoffer(false, |context, _| context.process == process);
        let is_its = |take: &Takeover| {
            take.to.destination().is_some_and(|(context, ..)| context.process == process)
        };
        while let Some(at) = self.takes.iter().position(is_its) {
            let Takeover { flow, progress, .. } = self.takes.remove(at);
            if progress >= Phase::Frozen {
                self.reset(Nanos(0), flow, Reason::Reset);
            }
        }
    }

    /// Advances all takeovers: requests the copies of connections that have nothing in flight. Returns whether there is more to do
    /// at once.
    pub(super) fn advance_takeovers(&mut self, now: Nanos) -> bool {
        let mut is_busy = false;
        let mut at = 0;
        while at < self.takes.len() {
            match self.advance_takeover(now, at) {
                Ok(has_more) => {
                    is_busy |= has_more;
                    at += 1;
                }
                Err(reason) => {
                    let Takeover { flow, to, progress } = self.takes.remove(at);
                    if progress >= Phase::Frozen || !matches!(to, NewOwner::Child { .. }) {
                        self.reset(now, flow, reason);
                    }
                    match to {
                        NewOwner::Child { context, slot, .. } => {
                            self.refused(context, Call::TakeOver(flow), reason);
                            self.notify(context, Event::Failed { socket: slot.socket, reason });
                        }
                        NewOwner::Listener { context, slot, .. } => {
                            self.notify(context, Event::Unused { socket: slot.socket });
                        }
                        NewOwner::Any { .. } => {}
                    }
                }
            }
        }
        is_busy
    }

    fn advance_takeover(&mut self, now: Nanos, at: usize) -> Result<bool, Reason> {
        let Takeover { flow, to, progress } = self.takes[at];
        let connection = self.connection(flow).filter(|one| one.has_host());
        let connection = connection.ok_or(Reason::Reset)?;
        let (owner, had) = (connection.context.process, connection.filled);
        let reported = (connection.read_reported, connection.written_reported);
        let shut = connection.shut_reported;
        let local = connection.tuple().local;
        if let NewOwner::Any { from, sharing } = to {
            let Some(chosen) = self.choose_new_owner(from, local, sharing)? else {
                return Ok(false);
            };
            self.takes[at].to = chosen;
            return Ok(true);
        }
        let state = self.data.inspect(flow).ok_or(Reason::Reset)?;
        let written = state.sending.written;
        if let NewOwner::Child { context, read, written: expected, until, .. } = to {
            let may_take_over = self.may_take_over(flow, owner, context.process);
            if may_take_over == Some(false) {
                return Err(Reason::Invalid);
            }
            if shut.read || shut.write {
                // The new owner does not know.
                return Err(Reason::NoRoom);
            }
            if written.max(reported.1) > expected || state.receiving.read.max(reported.0) > read {
                // The owner has written or read more: the new owner would read the same bytes again.
                return Err(Reason::NoRoom);
            }
            if may_take_over.is_none() || written < expected {
                // The owner's requests have not arrived yet.
                return if now < until { Ok(false) } else { Err(Reason::TimedOut) };
            }
        }
        let Some((context, slot, filled)) = to.destination() else { return Ok(false) };
        if had.receive > filled.receive.min(FILL_MAX) || had.send > filled.send {
            return Err(Reason::NoRoom);
        }
        if progress == Phase::Waits {
            self.data.freeze(flow);
            self.takes[at].progress = Phase::Frozen;
        }
        if progress == Phase::Carried || !self.data.frozen(flow) {
            return Ok(true);
        }
        self.takes[at].progress = Phase::Carried;
        self.out.push_back(Output::Control(Action::CopyRings(RingCopy {
            flow,
            processes: [owner, context.process],
            from: [state.receiving.ring, state.sending.ring],
            to: [slot.receive, slot.send],
            bytes: [had.receive, had.send],
        })));
        Ok(true)
    }

    /// Chooses a listener with a slot, in turn, and takes the slot; `None` if there is none at present.
    ///
    /// # Errors
    /// No other listener shares the port any more.
    fn choose_new_owner(
        &mut self,
        from: ContextId,
        local: SocketAddr,
        sharing: Sharing,
    ) -> Result<Option<NewOwner>, Reason> {
        let all = || {
            let all = self.listeners.iter().enumerate();
            all.filter(|(_, one)| {
                super::accepts_at(one.local, local) && self.may_share(from, sharing, one)
            })
        };
        all().next().ok_or(Reason::Reset)?;
        let may_have = || {
            all().filter(|(_, one)| {
                !one.slots.is_empty() && self.has_takeover_room(one.context.process)
            })
        };
        let turn = self.turn % may_have().count().max(1);
        let Some((at, _)) = may_have().nth(turn) else { return Ok(None) };
        self.turn = self.turn.wrapping_add(1);
        let listener = &mut self.listeners[at];
        let (context, name) = (listener.context, listener.name);
        let slot = listener.slots.pop_front();
        Ok(slot.map(|slot| NewOwner::Listener { from, sharing, context, name, slot }))
    }

    /// Reports that the rings of a connection were copied. Returns the connection's new name, and its new owner's name for it; `None` if
    /// the copy must be made again, or the connection has ended.
    pub fn rings_copied(&mut self, now: Nanos, flow: FlowId) -> Option<(FlowId, ContextId, u32)> {
        let is_it = |take: &Takeover| take.flow == flow && take.progress == Phase::Carried;
        let at = self.takes.iter().position(is_it)?;
        let (context, slot, filled) = self.takes[at].to.destination()?;
        let Some(mut state) = self.data.export(flow) else {
            // The data path has started work since then. This flow has not moved, but the copy must be requested again.
            self.takes[at].progress = Phase::Frozen;
            return None;
        };
        let Takeover { to, .. } = self.takes.remove(at);
        self.lent.retain(|lent| lent.flow != flow);
        let socket = slot.socket;
        self.set_timer(flow.index, None);
        let mut connection = self.connections[flow.index as usize].take()?;
        let (owner, owners_name) = (connection.context, connection.socket);
        self.count_accepted(owner.process, connection.listener.take());
        // If the owner has gone, this may have been its last connection.
        self.queue_release(owner.process);
        (state.context, state.socket) = (context, socket);
        (state.receiving.ring, state.sending.ring) = (slot.receive, slot.send);
        (state.receiving.filled, state.sending.filled) = (filled.receive, filled.send);
        if let NewOwner::Child { read, .. } = to {
            state.receiving.read = state.receiving.read.max(read.min(state.receiving.received));
        }
        // There is room: a flow has just left.
        let flow = self.install(now, &state).ok()?;
        self.release_share(owner.process, Kind::Connection);
        self.acquire_share(context.process, Kind::Connection);
        (connection.flow, connection.context, connection.socket) = (flow, context, socket);
        if let NewOwner::Listener { name, .. } = to
            && let Some(at) = self.listener_named(context.process, name)
        {
            connection.listener = Some(name);
            self.listeners[at].unaccepted += 1;
        }
        connection.filled = filled;
        connection.read_reported = state.receiving.read;
        connection.timed.1 = OptionalTime::NONE;
        let timeout = now + connection.round_trip.timeout();
        self.connections[flow.index as usize] = Some(connection);
        let is_outstanding = state.sending.acknowledged < state.sending.written;
        match is_outstanding {
            true => self.start_timer(flow, Timer::Retransmit, Some(timeout)),
            false => self.start_timer(flow, Timer::None, None),
        }
        self.notify(owner, Event::Taken { socket: owners_name });
        let (local, remote) = (state.tuple.local, state.tuple.remote);
        let mss = state.sending.mss;
        self.notify(
            context,
            match to {
                NewOwner::Listener { name: listener, .. } => {
                    Event::Accepted { listener, socket, flow, remote, mss }
                }
                _ => Event::Connected { socket, flow, local, mss },
            },
        );
        let progress = Progress {
            socket,
            received: state.receiving.received,
            acknowledged: state.sending.acknowledged,
            is_finished: state.receiving.fin == Some(state.receiving.received),
        };
        self.notify(context, Event::Progress(progress));
        Some((flow, context, socket))
    }
}
