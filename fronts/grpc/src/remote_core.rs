//! A connection core, as the first core sees it: its requests go to the dispatcher, and events of its calls go back.

use bytes::Bytes;
use wave_agent::lanes::{LANE_BYTES, PIECES_PER_STEP};
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_rpc::dispatch::{Event, Refused};
use wave_rpc::status::{Code, Status};

use crate::host::{Own, Owner, RemoteEnd, unavailable};
use crate::lanes::{ToCore, ToHost};
use crate::shared::Totals;

/// An open call of this connection core, by its remote slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    generation: u32,
    /// The dispatcher's name for the call.
    here: Subject,
}

#[derive(Debug)]
pub struct RemoteCore {
    queues: RemoteEnd,
    calls: Vec<Option<Open>>,
    /// Number of the last host for which the core begins calls.
    ready: Option<u32>,
}

impl RemoteCore {
    /// The connection core at the other end of these queues.
    pub fn new(queues: RemoteEnd) -> RemoteCore {
        RemoteCore { queues, calls: Vec::new(), ready: None }
    }

    /// Handles a bounded number of the core's requests, but none while the core has not taken earlier events. `hosts` is the
    /// number of hosts attached so far. Returns whether there was a request.
    pub fn take_requests(
        &mut self,
        core: usize,
        hosts: u32,
        mut host: Option<&mut Own>,
        now: Nanos,
    ) -> bool {
        for taken in 0..PIECES_PER_STEP {
            if self.queues.events.is_behind() {
                return taken > 0;
            }
            let Some(request) = self.queues.requests.take() else { return taken > 0 };
            // Requests for a host that has gone are dropped: the connection core itself answers their calls.
            if let Some(own) = &mut host {
                self.pass_on(core, hosts, own, now, request);
            }
        }
        true
    }

    fn pass_on(&mut self, core: usize, hosts: u32, own: &mut Own, now: Nanos, request: ToHost) {
        match request {
            ToHost::Begin { host, call, arrival } if host == hosts => {
                match own.begin(now, arrival, Owner::Core { core, call }) {
                    Ok(here) => self.open(call, here),
                    Err(error @ Refused::Full) => {
                        self.refuse(call, Status::new(Code::ResourceExhausted, error.to_string()));
                    }
                    Err(Refused::NoHost) => self.refuse(call, unavailable(None)),
                }
            }
            ToHost::Begin { .. } => {}
            ToHost::Ready(host) => self.ready = Some(host),
            ToHost::Message { call, message, end, compressed } => {
                if let Some(here) = self.here(call) {
                    own.dispatch.message(here, message, end, compressed);
                }
            }
            ToHost::HalfClose(call) => {
                if let Some(here) = self.here(call) {
                    own.dispatch.half_close(here);
                }
            }
            ToHost::Grant(call, bytes) => {
                if let Some(here) = self.here(call) {
                    own.dispatch.grant(here, bytes);
                }
            }
            ToHost::Cancel(call, why) => {
                if let Some(here) = self.here(call) {
                    own.dispatch.cancel(here, why);
                    self.calls[call.id as usize] = None;
                }
            }
        }
    }

    /// Passes an event of a call on. `here` is the dispatcher's name for the call, from the event.
    pub fn on_event(
        &mut self,
        (here, call): (Subject, Subject),
        mut event: Event,
        own: &mut Own,
        totals: &Totals,
    ) {
        // Events of a call that was given up in this step may still follow.
        if self.here(call) != Some(here) {
            return;
        }
        let of = match &mut event {
            Event::Message { call: of, message, .. } => {
                let on_way = self.queues.events.on_way();
                if on_way >= LANE_BYTES && totals.check_room(on_way + message.len()).is_err() {
                    own.dispatch.cancel(here, Code::ResourceExhausted);
                    self.calls[call.id as usize] = None;
                    return self.refuse(call, Totals::no_room());
                }
                of
            }
            Event::Headers { call: of, .. }
            | Event::Status { call: of, .. }
            | Event::Stopped { call: of, .. }
            | Event::Taken { call: of, .. } => of,
            Event::Service(_) => return,
        };
        *of = call;
        let ends = matches!(event, Event::Status { .. } | Event::Stopped { .. });
        if ends || matches!(event, Event::Message { end: true, .. }) {
            self.calls[call.id as usize] = None;
        }
        self.queues.events.send(ToCore::Event(event));
    }

    pub fn send(&mut self, event: ToCore) {
        if matches!(event, ToCore::Gone) {
            self.calls.clear();
        }
        self.queues.events.send(event);
    }

    /// Whether the core begins calls for this host.
    pub fn is_ready(&self, host: u32) -> bool {
        self.ready == Some(host)
    }

    /// Whether there is no request from the core.
    pub fn has_no_request(&self) -> bool {
        self.queues.requests.is_empty()
    }

    /// Publishes events for the core. Returns whether some still wait for room.
    pub fn flush(&mut self) -> bool {
        self.queues.events.flush();
        self.queues.events.is_behind()
    }

    fn open(&mut self, call: Subject, here: Subject) {
        let slot = call.id as usize;
        if self.calls.len() <= slot {
            self.calls.resize(slot + 1, None);
        }
        self.calls[slot] = Some(Open { generation: call.generation, here });
    }

    /// The dispatcher's name for a call of the core, while the dispatcher has it.
    fn here(&self, call: Subject) -> Option<Subject> {
        let open = self.calls.get(call.id as usize).copied().flatten();
        open.filter(|open| open.generation == call.generation).map(|open| open.here)
    }

    fn refuse(&mut self, call: Subject, status: Status) {
        self.queues.events.send(ToCore::Event(Event::Status {
            call,
            status,
            trailers: Bytes::new(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use wave_agent::{HostLine, attach_rpc};
    use wave_core::agent::Step;
    use wave_rpc::dispatch::{Arrival, Dispatch};
    use wave_rpc::steer;
    use wave_user::rpc::{Methods, Options, Server};

    use super::*;
    use crate::host::{Host, Remote};
    use crate::slots::Ready;

    /// A real host, and one connection core whose queues the test reads.
    struct Pair {
        own: Own,
        first: RemoteCore,
        remote: Host,
        totals: Totals,
        start: Instant,
        _connection: HostLine,
        _server: Server,
        _folder: tempfile::TempDir,
    }

    impl Pair {
        fn new(held_max: usize) -> Pair {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("host");
            let echo = Methods::new().unary("/t.T/Echo", |_, request| Ok(request.to_vec()));
            let server = Server::start(Options::new(&socket).workers(1), echo).unwrap();
            let attached = attach_rpc(&socket, true).unwrap();
            let config = attached.layout.config;
            let steering = steer::by_name("jbsq", &config).unwrap();
            let mut dispatch =
                Dispatch::new(attached.layout, attached.port, attached.host_bells, steering);
            dispatch.announce();
            let (remote, end) = Remote::new(Arc::new(Ready::default()), Arc::new(Ready::default()));
            let mut pair = Pair {
                own: Own::new(dispatch, config.subjects),
                first: RemoteCore::new(end),
                remote: Host::Remote(remote),
                totals: Totals::new(held_max),
                start: Instant::now(),
                _connection: attached.connection,
                _server: server,
                _folder: folder,
            };
            while !pair.own.dispatch.is_ready() {
                pair.serve();
            }
            pair
        }

        fn now(&self) -> Nanos {
            Nanos(self.start.elapsed().as_nanos() as u64)
        }

        fn send(&mut self, event: ToCore) {
            self.first.send(event);
        }

        /// One step of the connection core. Returns the events that it gets.
        fn take_events(&mut self) -> (Step, Vec<Event>) {
            let mut events = Vec::new();
            let step = self.remote.step(self.now(), &mut events).unwrap();
            (step, events)
        }

        fn begin(&mut self, slot: u32, message: &'static [u8]) -> Subject {
            let message = Some(Bytes::from_static(message));
            let arrival = Arrival { message, end: true, ..Arrival::default() };
            self.remote.begin(self.now(), arrival, slot).unwrap()
        }

        /// The first core handles requests for its only host, number 1.
        fn asked(&mut self) -> bool {
            let now = self.now();
            self.first.take_requests(0, 1, Some(&mut self.own), now)
        }

        /// One step of the first core with the host.
        fn serve(&mut self) {
            let mut events = Vec::new();
            let step = self.own.dispatch.step(self.now(), &mut events).unwrap();
            assert_ne!(step, Step::Revoked);
            for event in events {
                let (Event::Headers { call: here, .. }
                | Event::Message { call: here, .. }
                | Event::Status { call: here, .. }
                | Event::Stopped { call: here, .. }
                | Event::Taken { call: here, .. }) = event
                else {
                    continue;
                };
                let Some(Owner::Core { core: 0, call }) = self.own.owner(here) else { panic!() };
                self.first.on_event((here, call), event, &mut self.own, &self.totals);
            }
            std::thread::yield_now();
        }

        /// All events that the connection core gets until none of its calls is open.
        fn replies(&mut self) -> Vec<Event> {
            let mut events = Vec::new();
            while self.own.dispatch.open() > 0 {
                self.serve();
                events.extend(self.take_events().1);
            }
            events
        }
    }

    const READY: ToCore = ToCore::Ready { host: 1, spin: Nanos(0) };

    #[test]
    fn call_for_an_earlier_host_never_begins() {
        let mut pair = Pair::new(1 << 20);
        pair.send(ToCore::Ready { host: 0, spin: Nanos(0) });
        pair.take_events();
        pair.begin(3, b"x");
        pair.send(ToCore::Gone);
        pair.send(READY);
        assert!(pair.asked());
        assert_eq!((pair.own.dispatch.open(), pair.own.dispatch.counts().begun), (0, 0));
        // The connection core answers that call without the first core, and the next call is served.
        assert_eq!(pair.take_events().0, Step::Revoked);
        pair.remote = pair.remote.gone().unwrap();
        pair.take_events();
        let call = pair.begin(3, b"x");
        pair.asked();
        let message = Bytes::from_static(b"x");
        let answer = Event::Message { call, message, end: true, compress: false };
        assert_eq!(pair.replies().pop(), Some(answer));
    }

    #[test]
    fn late_request_for_an_ended_call_affects_no_other_call() {
        let mut pair = Pair::new(1 << 20);
        pair.send(READY);
        pair.take_events();
        let first = pair.begin(7, b"1");
        pair.asked();
        pair.replies();
        // The client's reset crosses with the answer, and another call gets the slot.
        let second = pair.begin(7, b"2");
        pair.remote.cancel(first, Code::Cancelled);
        pair.remote.message(first, Bytes::from_static(b"late"), true, false);
        pair.asked();
        let answer = pair.replies().pop();
        assert!(
            matches!(&answer, Some(Event::Message { call, message, .. }) if *call == second && message == "2"),
            "{answer:?}"
        );
        assert_eq!(pair.own.dispatch.counts().cancelled, 0);
    }

    #[test]
    fn cancelled_call_gets_no_more_events() {
        let mut pair = Pair::new(1 << 20);
        pair.send(READY);
        pair.take_events();
        let call = pair.begin(0, b"x");
        pair.asked();
        // A worker has the call now, and answers.
        pair.serve();
        pair.remote.cancel(call, Code::Cancelled);
        pair.asked();
        while pair.own.dispatch.open() > 0 {
            pair.serve();
        }
        assert!(pair.take_events().1.is_empty());
        assert_eq!(pair.own.dispatch.counts().cancelled, 1);
    }

    /// A core that takes no events must not fill the first core's memory, neither by requests nor by replies.
    #[test]
    fn core_that_takes_no_events_is_not_served_and_its_replies_are_bounded() {
        static LARGE: [u8; 1 << 20] = [1; 1 << 20];
        let mut pair = Pair::new(LANE_BYTES + (2 << 20));
        pair.send(READY);
        pair.take_events();
        for slot in 0..8 {
            pair.begin(slot, &LARGE);
        }
        while pair.asked() {}
        assert_eq!(pair.own.dispatch.counts().begun, 8);
        while pair.own.dispatch.counts().answered + pair.own.dispatch.counts().cancelled < 8
            || pair.own.dispatch.open() > 0
        {
            pair.serve();
        }
        pair.begin(8, b"x");
        assert!(!pair.asked(), "requests of a core that has not taken its events");
        let (_, events) = pair.take_events();
        let answered =
            events.iter().filter(|event| matches!(event, Event::Message { end: true, .. })).count();
        let refused = events.iter().filter(|event| {
            matches!(event, Event::Status { status, .. } if status.code == Code::ResourceExhausted)
        });
        assert_eq!((answered, refused.count()), (6, 2));
        assert!(pair.asked());
    }
}
