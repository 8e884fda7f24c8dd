//! Raw HTTP/2 connections and the calls on them, all on one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::{LocalSet, spawn_local, yield_now};

use super::calls::Calls;
use super::reply::{Failure, STATUSES, receive};
use crate::arrivals::Load;
use crate::cpu::monotonic_ns;
use crate::generator::{Refused, Request, Server};
use crate::recorder::Recorder;

/// Maximum number of calls that wait for a stream; further calls are refused.
const WAITING_MAX: usize = 100_000;
/// Flow-control window of a stream: large enough that the server never waits.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
/// Time from a connection's end, or a failed attempt, to the next attempt.
const RECONNECT: Duration = Duration::from_millis(20);
/// Time limit of an attempt to connect.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Number of tasks that the runtime polls in a round, and of calls that one burst may leave to it.
const CALLS_PER_ROUND: u64 = 16;

/// Outcomes of the calls due after the warm-up.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) statuses: [u64; STATUSES],
    pub(super) failures: [u64; Failure::ALL.len()],
    /// Calls with status OK and a wrong reply.
    pub(super) wrong: u64,
}

/// Connections to one server.
pub(super) struct Client {
    runtime: Runtime,
    local: LocalSet,
    shared: Rc<Shared>,
    submitted: u64,
}

/// State that all tasks of a client share.
pub(super) struct Shared {
    addresses: Vec<SocketAddr>,
    streams: usize,
    calls: Calls,
    recorder: Recorder,
    connections: Vec<Connection>,
    /// Connection at which the search for a stream begins.
    turn: Cell<usize>,
    waiting: RefCell<VecDeque<Request>>,
    in_flight: Cell<usize>,
    counts: RefCell<Counts>,
    /// Number of the load: calls left over from an abandoned load are not waited for in the next.
    load: Cell<u64>,
    /// Source of the next call of a free stream, in a closed loop.
    closed: RefCell<Option<Load>>,
    next_id: Cell<u64>,
    last_error: RefCell<Option<io::Error>>,
}

#[derive(Default)]
struct Connection {
    sender: RefCell<Option<SendRequest<Bytes>>>,
    in_flight: Cell<usize>,
}

impl Client {
    /// A client that starts to connect.
    pub(super) fn new(
        addresses: Vec<SocketAddr>,
        connections: usize,
        streams: usize,
        calls: Calls,
        recorder: Recorder,
    ) -> io::Result<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Rc::new(Shared {
            addresses,
            streams,
            calls,
            recorder,
            connections: (0..connections).map(|_| Connection::default()).collect(),
            turn: Cell::new(0),
            waiting: RefCell::default(),
            in_flight: Cell::new(0),
            counts: RefCell::default(),
            load: Cell::new(0),
            closed: RefCell::new(None),
            next_id: Cell::new(0),
            last_error: RefCell::new(None),
        });
        let local = LocalSet::new();
        for number in 0..connections {
            let shared = Rc::clone(&shared);
            local.spawn_local(async move { shared.stay_connected(number).await });
        }
        Ok(Client { runtime, local, shared, submitted: 0 })
    }

    /// Waits until all connections are established.
    pub(super) fn wait_connected(&self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        let is_up = |connection: &Connection| connection.sender.borrow().is_some();
        while !self.shared.connections.iter().all(is_up) {
            if Instant::now() > deadline {
                let last = self.shared.last_error.borrow_mut().take();
                return Err(last.unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
            }
            self.run_for(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// A handle to the shared state, for use while the client is borrowed.
    pub(super) fn shared(&self) -> Rc<Shared> {
        Rc::clone(&self.shared)
    }

    /// Starts a load: resets the counts, with no call in flight.
    pub(super) fn begin(&self) {
        self.shared.load.set(self.shared.load.get() + 1);
        self.shared.in_flight.set(0);
        *self.shared.counts.borrow_mut() = Counts::default();
    }

    /// Makes every stream send `load`'s next call as soon as it is free, until `time` is over. The arrivals' times are
    /// ignored.
    pub(super) fn keep_busy(&self, load: Load, time: Duration) {
        let streams = self.shared.connections.len() * self.shared.streams;
        let until = Instant::now() + time;
        *self.shared.closed.borrow_mut() = Some(load);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            // Each stream's task continues by itself; streams that lost their connection start again here.
            self.local.block_on(&self.runtime, async {
                for _ in self.shared.in_flight.get()..streams {
                    self.shared.call_next();
                }
            });
            self.run_for(left.min(Duration::from_millis(5)));
        }
        self.shared.closed.borrow_mut().take();
    }

    /// Waits for calls in flight, for at most `patience`, and returns the number left. Calls not yet sent are dropped.
    pub(super) fn drain(&self, patience: Duration) -> u64 {
        let deadline = Instant::now() + patience;
        let left = || self.shared.in_flight.get() + self.shared.waiting.borrow().len();
        while left() > 0 && Instant::now() < deadline {
            self.run_for(Duration::from_millis(1));
        }
        let unanswered = left() as u64;
        self.shared.waiting.borrow_mut().clear();
        unanswered
    }

    pub(super) fn counts(&self) -> Counts {
        self.shared.counts.borrow().clone()
    }

    fn run_for(&self, time: Duration) {
        self.local.block_on(&self.runtime, async { tokio::time::sleep(time).await });
    }
}

impl Server for Client {
    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        self.submitted += 1;
        let _inside = self.local.enter();
        self.shared.submit(request)
    }

    /// Runs the tasks that are ready.
    fn between(&mut self) {
        let rounds = 1 + std::mem::take(&mut self.submitted) / CALLS_PER_ROUND;
        self.local.block_on(&self.runtime, async {
            for _ in 0..rounds {
                yield_now().await;
            }
            self.shared.send_waiting();
        });
    }
}

impl Shared {
    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Sends a call, or queues it until a stream is free.
    fn submit(self: &Rc<Shared>, request: Request) -> Result<(), Refused> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            match self.stream() {
                Ok(Some(number)) => self.send(number, request),
                Ok(None) => waiting.push_back(request),
                Err(failure) => self.count_failure(&request, failure),
            }
            return Ok(());
        }
        if waiting.len() >= WAITING_MAX {
            return Err(Refused);
        }
        waiting.push_back(request);
        Ok(())
    }

    /// Sends waiting calls while streams are free.
    fn send_waiting(self: &Rc<Shared>) {
        while !self.waiting.borrow().is_empty() {
            let stream = self.stream();
            if let Ok(None) = stream {
                return;
            }
            let Some(request) = self.waiting.borrow_mut().pop_front() else { return };
            match stream {
                Ok(Some(number)) => self.send(number, request),
                Ok(None) | Err(_) => self.count_failure(&request, Failure::Unconnected),
            }
        }
    }

    /// A connection with a free stream, round-robin; None if all streams are in use.
    fn stream(&self) -> Result<Option<usize>, Failure> {
        let mut found = Err(Failure::Unconnected);
        for step in 0..self.connections.len() {
            let number = (self.turn.get() + step) % self.connections.len();
            let connection = &self.connections[number];
            let mut sender = connection.sender.borrow_mut();
            let Some(sender) = &mut *sender else { continue };
            found = Ok(None);
            let room = self.streams.min(sender.current_max_send_streams());
            if connection.in_flight.get() >= room {
                continue;
            }
            let mut unheard = Context::from_waker(Waker::noop());
            if let Poll::Ready(Ok(())) = sender.poll_ready(&mut unheard) {
                self.turn.set((number + 1) % self.connections.len());
                return Ok(Some(number));
            }
        }
        found
    }

    /// Sends a call on a connection with a free stream.
    fn send(self: &Rc<Shared>, number: usize, request: Request) {
        let (head, message) = self.calls.request(request.class, request.key);
        let connection = &self.connections[number];
        let sent = match &mut *connection.sender.borrow_mut() {
            None => Err(Failure::Unconnected),
            Some(sender) => sender.send_request(head, false).map_err(Failure::from).and_then(
                |(response, mut stream)| {
                    stream.send_data(message, true)?;
                    Ok(response)
                },
            ),
        };
        match sent {
            Err(failure) => self.count_failure(&request, failure),
            Ok(response) => {
                connection.in_flight.set(connection.in_flight.get() + 1);
                self.in_flight.set(self.in_flight.get() + 1);
                let (shared, load) = (Rc::clone(self), self.load.get());
                spawn_local(async move {
                    shared.answered(load, number, request, response).await;
                });
            }
        }
    }

    async fn answered(
        self: Rc<Shared>,
        load: u64,
        number: usize,
        request: Request,
        response: ResponseFuture,
    ) {
        let reply = receive(response).await;
        let end_ns = monotonic_ns();
        let connection = &self.connections[number];
        connection.in_flight.set(connection.in_flight.get() - 1);
        if load != self.load.get() {
            return;
        }
        self.in_flight.set(self.in_flight.get() - 1);
        match reply {
            Err(failure) => self.count_failure(&request, failure),
            Ok(reply) => {
                if self.recorder.counts(request.intended_ns) {
                    let right = reply.status != 0
                        || self.calls.is_right(request.class, request.key, &reply.messages);
                    let mut counts = self.counts.borrow_mut();
                    counts.statuses[reply.status] += 1;
                    counts.wrong += u64::from(!right);
                }
                if reply.status == 0 {
                    self.recorder.done_at(0, &request, end_ns);
                }
            }
        }
        self.send_waiting();
        self.call_next();
    }

    /// Sends the next call of a closed loop.
    fn call_next(self: &Rc<Shared>) {
        let Some(arrival) = self.closed.borrow_mut().as_mut().and_then(Iterator::next) else {
            return;
        };
        // Without a connection there is no call.
        let Ok(Some(number)) = self.stream() else { return };
        let id = self.next_id.replace(self.next_id.get() + 1);
        let intended_ns = monotonic_ns();
        let request = Request { id, class: arrival.class, intended_ns, key: arrival.key };
        self.recorder.submitted(&request, false);
        self.send(number, request);
    }

    fn count_failure(&self, request: &Request, failure: Failure) {
        if self.recorder.counts(request.intended_ns) {
            self.counts.borrow_mut().failures[failure as usize] += 1;
        }
    }

    /// Connects, and reconnects whenever the connection has ended. No call is sent twice.
    async fn stay_connected(self: Rc<Shared>, number: usize) {
        loop {
            if let Err(error) = self.connect(number).await {
                *self.last_error.borrow_mut() = Some(error);
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    async fn connect(&self, number: usize) -> io::Result<()> {
        let connect = async {
            let socket = TcpStream::connect(&*self.addresses).await?;
            socket.set_nodelay(true)?;
            let mut http2 = h2::client::Builder::new();
            http2
                .initial_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .enable_push(false);
            http2.handshake(socket).await.map_err(io::Error::other)
        };
        let (sender, connection) = tokio::time::timeout(CONNECT_PATIENCE, connect).await??;
        *self.connections[number].sender.borrow_mut() = Some(sender);
        let ended = connection.await;
        self.connections[number].sender.borrow_mut().take();
        ended.map_err(io::Error::other)
    }
}
