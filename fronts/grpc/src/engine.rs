//! The calls of one core of a front, between their connections and the dispatcher.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use h2::Reason;
use http::Method;
use http::request::Parts;
use wave_agent::lanes::ROOM_EVERY;
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_rpc::dispatch::{Event, HostGone, Queues};
use wave_rpc::service::Service;
use wave_rpc::status::{Code, Status};
use wave_rpc::window::Load;

use crate::admission::Leave;
use crate::call::{Call, Fate, Route};
use crate::host::{Host, Own, Owner, unavailable};
use crate::http2_stream::Stream;
use crate::lanes::ToCore;
use crate::limits::{CALL_BYTES, RESET_SOON};
use crate::methods::Methods;
use crate::orca;
use crate::peer::Peer;
use crate::reflection;
use crate::remote_core::RemoteCore;
use crate::reply;
use crate::request::{self, Refusal};
use crate::shared::Shared;
use crate::slots::{Ready, Slots};

/// Most expired calls that one step ends.
const EXPIRED_PER_STEP: usize = 64;

pub struct Engine {
    /// State that all calls share.
    pub shared: Shared,
    pub peers: Vec<Rc<Peer>>,
    calls: Slots<Call>,
    ready: Arc<Ready>,
    woken: Vec<u32>,
    events: Vec<Event>,
    was_serving: bool,
    /// The connection cores, on the first core of a front that has some. This core then has no calls of its own.
    cores: Vec<RemoteCore>,
    /// Number of hosts attached so far.
    hosts: u32,
    /// When the host's load was last sampled.
    measured: Nanos,
    /// Last state of the host that connection cores were told: whether one is attached, and whether it is ready.
    announced: (bool, bool),
}

impl Engine {
    /// An engine without calls. `cores` bring the calls of their connections. `ready` is rung when there is something to do.
    pub fn new(shared: Shared, cores: Vec<RemoteCore>, ready: Arc<Ready>) -> Engine {
        Engine {
            shared,
            peers: Vec::new(),
            calls: Slots::new(Arc::clone(&ready)),
            ready,
            woken: Vec::new(),
            events: Vec::new(),
            was_serving: false,
            cores,
            hosts: 0,
            measured: Nanos(0),
            announced: (false, false),
        }
    }

    /// The dispatcher, if there is one on this core.
    pub fn own(&mut self) -> Option<&mut Own> {
        self.shared.host.as_mut().and_then(Host::own_mut)
    }

    /// Whether a draining core may end: no connection is open, no call is left, and everything from other cores is processed.
    /// Also if no part is left that could answer.
    pub fn is_empty(&self) -> bool {
        let is_alone = self.shared.host.as_ref().is_some_and(Host::is_abandoned);
        let has_no_request = !self.is_behind() && self.cores.iter().all(RemoteCore::has_no_request);
        self.peers.is_empty() && self.open() == 0 && has_no_request || is_alone
    }

    /// Ends a connection of this core, if it is still open.
    pub fn end(&self, leave: Leave) {
        match self.peers.iter().find(|peer| peer.id() == leave.id) {
            Some(peer) if leave.at_once => peer.cut(),
            Some(peer) => peer.end(),
            None => {}
        }
    }

    /// Number of calls that have not ended.
    pub fn open(&self) -> usize {
        self.calls.len()
    }

    /// Begins the call of a request, or refuses it.
    pub fn accept(&mut self, parts: &Parts, mut stream: Stream, peer: &Rc<Peer>) {
        self.shared.counts.calls += 1;
        peer.begin();
        let accepted = request::read(parts).and_then(|request| {
            let route = self.route(parts.uri.path())?;
            peer.check_room(CALL_BYTES + request.metadata.len()).map_err(Refusal::Grpc)?;
            Ok((route, request))
        });
        let (route, request) = match accepted {
            Ok(accepted) => accepted,
            Err(refusal) => {
                // A malformed request counts as an early reset.
                peer.finish(self.shared.stepped, refusal == Refusal::Malformed);
                self.shared.counts.ended += 1;
                let templates = &self.shared.templates;
                // A failure means that the client has gone, and needs no answer.
                let _ = match refusal {
                    Refusal::Malformed => {
                        stream.reset(Reason::PROTOCOL_ERROR);
                        Ok(())
                    }
                    Refusal::Http(code) => {
                        let text = (parts.method != Method::HEAD).then_some(reply::NOT_GRPC);
                        // The task ends with the connection, which bounds the number of such tasks.
                        let answer = stream.respond_at_end(reply::not_grpc(code), text);
                        tokio::task::spawn_local(answer);
                        return;
                    }
                    Refusal::Grpc(status) => {
                        stream.respond(templates.refusal(&status, false), true)
                    }
                    Refusal::Encoding(status) => {
                        stream.respond(templates.refusal(&status, true), true)
                    }
                };
                return;
            }
        };
        let came = self.shared.stepped;
        let deadline = request.timeout.map(|timeout| self.shared.now() + timeout);
        let max = self.shared.limits.message_bytes;
        let call = Call::new(stream, Rc::clone(peer), route, request, (came, deadline), max);
        let slot = self.calls.insert(call);
        self.advance(slot);
        // The next step hands the call over.
        self.ready.ring();
    }

    fn route(&self, path: &str) -> Result<Route, Refusal> {
        match path {
            "/grpc.health.v1.Health/Check" => return Ok(Route::Check),
            "/grpc.health.v1.Health/Watch" => return Ok(Route::Watch(None, None)),
            path if reflection::PATHS.contains(&path) => return Ok(Route::Reflection),
            _ => {}
        }
        // Before it is ready, the methods may be those of the host before it.
        let is_ready = self.shared.host.as_ref().is_some_and(Host::is_ready);
        let methods = self.shared.methods.as_ref().filter(|_| is_ready);
        let found = methods.and_then(|methods| methods.find(path));
        // A host that knows its load better serves load reports itself.
        if path == orca::PATH && found.is_none() {
            return Ok(Route::Load(None));
        }
        if methods.is_none() {
            return Err(Refusal::Grpc(unavailable(self.shared.host.as_ref())));
        }
        found.map(Route::Host).ok_or_else(|| {
            let shown: String = path.chars().take(200).collect();
            let text = format!("the host has no method {shown}");
            Refusal::Grpc(Status::new(Code::Unimplemented, text))
        })
    }

    /// Takes a host that was attached.
    pub fn attach(&mut self, host: Own) {
        self.shared.host = Some(Host::Own(Box::new(host)));
        self.hosts = self.hosts.wrapping_add(1);
    }

    /// Why the host has gone, according to its window; if the window says nothing, it hung up.
    pub fn why(&self) -> HostGone {
        let own = self.shared.host.as_ref().and_then(Host::own);
        own.map_or(HostGone::HungUp, |own| own.dispatch.why_gone())
    }

    /// Forgets a host that has gone, and answers its calls at once.
    pub fn detach(&mut self) {
        self.shared.host = self.shared.host.take().and_then(Host::gone);
        self.notify_cores();
        for slot in self.calls.used() {
            let Some((call, _)) = self.calls.get(slot) else { continue };
            // Calls that have not begun yet were meant for its methods, too.
            if call.is_hosts() {
                call.on_host_gone(&mut self.shared);
                self.advance(slot);
            }
        }
    }

    /// Begins to drain: no more calls are accepted, and open ones may finish.
    pub fn drain(&mut self) {
        self.shared.is_draining = true;
        for peer in &self.peers {
            peer.end();
        }
        // Watch streams never finish on their own.
        for slot in self.calls.used() {
            self.advance(slot);
        }
    }

    /// One round: events of the host, woken calls, and expired calls.
    ///
    /// # Errors
    /// The host has gone, and was detached.
    pub fn step(&mut self, now: Nanos) -> Result<Step, HostGone> {
        self.shared.stepped = now;
        let mut progress = self.ready.take_rung();
        progress |= self.attend();
        progress |= self.expire(now);
        progress |= self.take_requests(now);
        let mut until = self.shared.deadlines.first().map(|(at, _)| *at);
        if let Some(host) = &mut self.shared.host {
            let mut events = std::mem::take(&mut self.events);
            let stepped = host.step(now, &mut events);
            for event in events.drain(..) {
                self.on_event(event);
            }
            self.events = events;
            match stepped {
                Ok(Step::Progress) => progress = true,
                Ok(Step::Idle(at)) => until = until.into_iter().chain(at).min(),
                Ok(Step::Revoked) => {
                    let gone = self.why();
                    self.detach();
                    return Err(gone);
                }
                Err(error) => {
                    self.detach();
                    return Err(error.into());
                }
            }
        }
        if now.since(self.measured) >= orca::POLL_EVERY {
            self.measure(now);
        }
        self.send_health();
        self.notify_cores();
        if self.flush() {
            until = until.into_iter().chain([now + ROOM_EVERY]).min();
        }
        Ok(if progress { Step::Progress } else { Step::Idle(until) })
    }

    /// Whether a connection has left work for the next step.
    pub fn is_rung(&self) -> bool {
        self.ready.is_rung()
    }

    /// Whether clients have to wait, because other cores have not taken earlier messages yet.
    pub fn is_behind(&self) -> bool {
        self.shared.host.as_ref().is_some_and(Host::is_behind)
    }

    /// Takes requests of connection cores. Returns whether there were any.
    fn take_requests(&mut self, now: Nanos) -> bool {
        let mut any = false;
        for (at, core) in self.cores.iter_mut().enumerate() {
            let own = self.shared.host.as_mut().and_then(Host::own_mut);
            any |= core.take_requests(at, self.hosts, own, now);
        }
        any
    }

    /// Tells connection cores of a host that came, is ready, or went.
    fn notify_cores(&mut self) {
        let host = self.shared.host.as_ref();
        let state = (host.is_some(), host.is_some_and(Host::is_ready));
        if self.cores.is_empty() || std::mem::replace(&mut self.announced, state) == state {
            return;
        }
        let (number, spin) = (self.hosts, host.map_or(Nanos(0), Host::spin));
        for core in &mut self.cores {
            core.send(match state {
                (false, _) => ToCore::Gone,
                (true, false) => ToCore::Attached,
                (true, true) => ToCore::Ready { host: number, spin },
            });
        }
    }

    /// Whether calls on every core reach the host from now on, until it goes.
    pub fn takes_calls(&self) -> bool {
        let is_ready = self.shared.host.as_ref().is_some_and(Host::is_ready);
        is_ready && self.cores.iter().all(|core| core.is_ready(self.hosts))
    }

    /// Publishes entries for other cores. Returns whether there was no room for all of them.
    fn flush(&mut self) -> bool {
        if let Some(host) = &mut self.shared.host {
            host.flush();
        }
        let mut is_behind = false;
        for core in &mut self.cores {
            is_behind |= core.flush();
        }
        is_behind
    }

    /// Looks at the calls that were woken.
    fn attend(&mut self) -> bool {
        let mut woken = std::mem::take(&mut self.woken);
        self.ready.take(&mut woken);
        let any = !woken.is_empty();
        for slot in woken.drain(..) {
            self.calls.attend(slot);
            self.advance(slot);
        }
        self.woken = woken;
        any
    }

    fn expire(&mut self, now: Nanos) -> bool {
        for ended in 0..EXPIRED_PER_STEP {
            let first = self.shared.deadlines.first().copied();
            let Some((at, slot)) = first.filter(|(at, _)| *at <= now) else { return ended > 0 };
            self.shared.deadlines.remove(&(at, slot));
            if let Some((call, _)) = self.calls.get(slot) {
                call.expire(&mut self.shared);
                self.advance(slot);
            }
        }
        true
    }

    fn send_health(&mut self) {
        let is_serving = self.shared.is_serving();
        if std::mem::replace(&mut self.was_serving, is_serving) != is_serving {
            for slot in self.calls.used() {
                self.advance(slot);
            }
        }
    }

    /// Samples the host's load. Does nothing on a core that does not have its queues.
    pub fn measure(&mut self, now: Nanos) {
        self.measured = now;
        if !matches!(self.shared.host, Some(Host::Remote(_))) {
            let own = self.shared.host.as_ref().and_then(Host::own);
            let queues = own.map_or(Queues::default(), |own| own.dispatch.queues());
            self.shared.totals.load.sample(now, queues);
        }
    }

    fn on_event(&mut self, event: Event) {
        let is_own = self.shared.host.as_ref().is_some_and(|host| host.own().is_some());
        let is_ok = match &event {
            Event::Message { end: true, .. } => Some(true),
            Event::Status { status, .. } => Some(status.code == Code::Ok),
            Event::Stopped { .. } => Some(false),
            _ => None,
        };
        if let Some(is_ok) = is_ok.filter(|_| is_own) {
            self.shared.totals.load.end(is_ok);
        }
        let subject = match event {
            Event::Service(service) => return self.on_service(service),
            Event::Headers { call, .. }
            | Event::Message { call, .. }
            | Event::Status { call, .. }
            | Event::Stopped { call, .. }
            | Event::Taken { call, .. } => call,
        };
        let Some(host) = &mut self.shared.host else { return };
        match host.owner(subject) {
            Some(Owner::Slot(slot)) => self.on_call(slot, subject, event),
            Some(Owner::Core { core, call }) => {
                let Some(own) = host.own_mut() else { return };
                self.cores[core].on_event((subject, call), event, own, &self.shared.totals);
            }
            None => {}
        }
    }

    fn on_service(&mut self, service: Service) {
        for core in &mut self.cores {
            core.send(ToCore::Event(Event::Service(service.clone())));
        }
        self.shared.methods = Some(Rc::new(Methods::new(service)));
    }

    fn on_call(&mut self, slot: u32, subject: Subject, event: Event) {
        let Some((call, _)) = self.calls.get(slot) else { return };
        // Events of a call that was given up in this step may still follow.
        if call.subject() != Some(subject) {
            return;
        }
        let shared = &mut self.shared;
        let went = match event {
            Event::Headers { metadata, .. } => call.on_headers(shared, &metadata),
            Event::Message { message, end, compress, .. } => {
                call.on_reply(shared, message, compress, end)
            }
            Event::Status { status, trailers, .. } => {
                call.on_status(shared, &status, &trailers);
                Ok(())
            }
            Event::Stopped { status, .. } => {
                call.on_stopped(shared, &status);
                Ok(())
            }
            Event::Taken { bytes, messages, .. } => {
                call.on_taken(Load { bytes, messages });
                Ok(())
            }
            Event::Service(_) => Ok(()),
        };
        match went {
            Ok(()) => self.advance(slot),
            Err(_) => self.settle(slot, Fate::Gone),
        }
    }

    fn advance(&mut self, slot: u32) {
        let Some((call, waker)) = self.calls.get(slot) else { return };
        let fate = call.advance(&mut self.shared, slot, &mut Context::from_waker(waker));
        self.settle(slot, fate);
    }

    fn settle(&mut self, slot: u32, fate: Fate) {
        let Some((call, _)) = self.calls.get(slot) else { return };
        let shared = &mut self.shared;
        let (holds, due) = match fate {
            Fate::Open => (call.holds(), call.due()),
            Fate::Ended | Fate::Gone => (0, None),
        };
        call.peer().hold(call.held, holds);
        call.held = holds;
        if call.timed != due {
            set_deadline(&mut shared.deadlines, call.timed, due, slot);
            call.timed = due;
        }
        if fate == Fate::Open {
            return;
        }
        call.give_up(shared, Code::Cancelled);
        let peer = call.peer();
        let is_reset = fate == Fate::Gone;
        *(if is_reset { &mut shared.counts.gone } else { &mut shared.counts.ended }) += 1;
        let is_soon = is_reset && shared.stepped.since(call.came()) < RESET_SOON;
        peer.finish(shared.stepped, is_soon);
        if peer.floods() {
            peer.wake();
        }
        self.calls.remove(slot);
    }
}

fn set_deadline(
    deadlines: &mut BTreeSet<(Nanos, u32)>,
    was: Option<Nanos>,
    is: Option<Nanos>,
    slot: u32,
) {
    if let Some(at) = was {
        deadlines.remove(&(at, slot));
    }
    if let Some(at) = is {
        deadlines.insert((at, slot));
    }
}
