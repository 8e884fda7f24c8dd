//! A server of RPCs and an agent's dispatcher, over real windows.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wave_agent::{Attached, HostBell, attach, attach_rpc};
use wave_core::agent::{Front, Step};
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_core::policy::{Note, Progress};
use wave_links::{AnyPort, LinkSpec};
use wave_rpc::dispatch::{Arrival, Dispatch, Event, Refused};
use wave_rpc::extents::PayloadConfig;
use wave_rpc::steer;
use wave_sched::policies::by_name;
use wave_user::Enclave;
use wave_user::rpc::{Call, Code, END, Event as Came, Method, Methods, Options, Server, Status};

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("wave-rpc-{}-{name}.sock", std::process::id()))
}

/// Most steps with progress before a condition must hold. The largest message takes some 32,000 over the smallest rings, where
/// a step takes one entry.
const STEPS_MAX: u64 = 1_000_000;

/// An agent without a front.
struct Agent {
    dispatch: Dispatch<AnyPort, HostBell>,
    // Dropping it hangs up, which ends the incarnation.
    _attached: wave_agent::HostLine,
    start: Instant,
    /// Reply messages of each call, in order.
    replies: HashMap<Subject, Vec<Vec<u8>>>,
    ended: HashMap<Subject, Status>,
    /// Notes for a scheduler, if there is one.
    notes: Arc<Mutex<Vec<Note>>>,
    /// Calls whose replies are left unread.
    unread: HashSet<Subject>,
}

impl Agent {
    fn new(server: &Server, steering: &str) -> Agent {
        let Attached { layout, port, host_bells, connection, .. } =
            attach_rpc(server.socket(), true).unwrap();
        let steering = steer::by_name(steering, &layout.config).unwrap();
        let mut dispatch = Dispatch::new(layout, port, host_bells, steering);
        dispatch.announce();
        let (replies, ended) = (HashMap::new(), HashMap::new());
        let (start, notes) = (Instant::now(), Arc::default());
        let unread = HashSet::new();
        let mut agent =
            Agent { dispatch, _attached: connection, start, replies, ended, notes, unread };
        agent.until(|agent| agent.dispatch.is_ready());
        agent
    }

    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn step(&mut self) -> Step {
        let mut events = Vec::new();
        let step = self.dispatch.step(self.now(), &mut events).unwrap();
        assert_ne!(step, Step::Revoked);
        let notes = self.dispatch.take_notes().map(|note| note.to_note());
        self.notes.lock().unwrap().extend(notes);
        for event in events {
            match event {
                Event::Service(service) => assert!(!service.methods.is_empty()),
                Event::Headers { .. } | Event::Taken { .. } => {}
                Event::Message { call, message, end, .. } => {
                    if !self.unread.contains(&call) {
                        self.dispatch.grant(call, message.len() as u32);
                    }
                    self.replies.entry(call).or_default().push(message.to_vec());
                    if end {
                        assert!(
                            self.ended.insert(call, Status::ok()).is_none(),
                            "a call ended twice"
                        );
                    }
                }
                Event::Status { call, status, .. } | Event::Stopped { call, status } => {
                    assert!(self.ended.insert(call, status).is_none(), "a call ended twice");
                }
            }
        }
        step
    }

    /// Steps until `is_so`. As a large message takes thousands of steps, there are two bounds: on the time without progress,
    /// and on the number of steps with progress.
    fn until(&mut self, is_so: impl Fn(&Agent) -> bool) {
        let (mut last, mut steps) = (Instant::now(), 0);
        while !is_so(self) {
            if self.step() == Step::Progress {
                last = Instant::now();
                steps += 1;
                assert!(
                    steps <= STEPS_MAX,
                    "the condition does not hold after {steps} steps with progress"
                );
            }
            assert!(
                last.elapsed() < Duration::from_secs(30),
                "no progress for 30 s, and the condition does not hold"
            );
            std::thread::yield_now();
        }
    }

    fn begin(&mut self, arrival: Arrival) -> Result<Subject, Refused> {
        let now = self.now();
        self.dispatch.begin(now, arrival)
    }

    fn call(&mut self, method: u16, message: &[u8]) -> Subject {
        let message = Some(Bytes::copy_from_slice(message));
        self.begin(Arrival { method, message, end: true, ..Arrival::default() }).unwrap()
    }

    fn end(&mut self, call: Subject) -> Status {
        self.until(|agent| agent.ended.contains_key(&call));
        self.ended[&call].clone()
    }
}

fn echo(_call: &mut Call<'_>, request: &[u8]) -> Result<Vec<u8>, Status> {
    Ok(request.to_vec())
}

fn method(path: &str) -> Method {
    Method { path: path.into(), client_streams: true, server_streams: true, ..Method::default() }
}

/// Echoes each message of the stream.
fn echo_each(call: &mut Call<'_>) -> Result<(), Status> {
    while let Some(message) = call.receive()? {
        call.send(&message)?;
    }
    call.trailer("count", b"all").map_err(|error| Status::new(Code::Internal, error.to_string()))
}

#[test]
fn calls_of_all_kinds_are_served_over_rings_of_any_size_and_every_link() {
    for link in ["shm", "stingray"] {
        let link = LinkSpec::builtin(link).unwrap_or_else(|| panic!("there is no link {link}"));
        for (entries, extents) in [(2, 0), (2, 1), (4, 4), (1024, 0), (1024, 8)] {
            let name = format!("kinds-{}-{entries}-{extents}", link.name());
            let mut options = Options::new(socket(&name)).workers(2).over(link.clone());
            options.yields_cpu = true;
            options.config.pools = PayloadConfig { extents, lines: 64, inline_max: 80 }.pools();
            options.config.messages.entries = entries;
            options.config.decisions.entries = entries;
            options.config.prestage = 1;
            let methods =
                Methods::new().unary("/t.T/Echo", echo).method(method("/t.T/Each"), echo_each);
            let server = Server::start(options, methods).unwrap();
            let mut agent = Agent::new(&server, "jbsq");
            for size in [0, 1, 32, 33, 88, 89, 5_000, 300_000] {
                let message: Vec<u8> = (0..size).map(|at| at as u8).collect();
                let call = agent.call(0, &message);
                assert_eq!(agent.end(call), Status::ok());
                assert_eq!(agent.replies[&call], [message]);
            }
            let call = agent.begin(Arrival { method: 1, ..Arrival::default() }).unwrap();
            let messages: Vec<Vec<u8>> =
                (0..100_u8).map(|n| vec![n; usize::from(n) * 20]).collect();
            for message in &messages {
                agent.dispatch.message(call, Bytes::copy_from_slice(message), false, false);
            }
            agent.dispatch.half_close(call);
            assert_eq!(agent.end(call), Status::ok());
            assert_eq!(agent.replies[&call], messages);
            assert_eq!(agent.dispatch.open(), 0);
        }
    }
}

#[test]
fn cancelled_calls_end_and_expired_ones_never_begin() {
    let begun = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&begun);
    let wait = move |call: &mut Call<'_>, _: &[u8]| {
        count.fetch_add(1, Ordering::SeqCst);
        while !call.is_cancelled() {
            std::hint::spin_loop();
        }
        Err(Status::new(Code::Cancelled, "it was given up"))
    };
    let server = Server::start(
        Options::new(socket("cancel")),
        Methods::new().unary("/t.T/Wait", wait).unary("/t.T/Echo", echo),
    );
    let server = server.unwrap();
    let mut agent = Agent::new(&server, "jbsq:k=4");
    let first = agent.call(0, b"");
    while begun.load(Ordering::SeqCst) == 0 {
        agent.step();
    }
    // Calls that wait behind the first one, in the worker's queue or in the agent's.
    let deadline = Some(agent.now() + Nanos::from_millis(20));
    let late: Vec<Subject> = (0..6)
        .map(|_| {
            let message = Some(Bytes::new());
            agent.begin(Arrival { deadline, message, end: true, ..Arrival::default() }).unwrap()
        })
        .collect();
    for call in late {
        assert_eq!(agent.end(call).code, Code::DeadlineExceeded);
    }
    agent.dispatch.cancel(first, Code::Cancelled);
    let after = agent.call(1, b"after");
    assert_eq!(agent.end(after), Status::ok());
    assert!(
        !agent.ended.contains_key(&first),
        "the front, having cancelled the call, must not see it end"
    );
    assert_eq!(begun.load(Ordering::SeqCst), 1, "an expired call was begun");
    agent.until(|agent| agent.dispatch.open() == 0);
    let counts = agent.dispatch.counts();
    assert_eq!((counts.expired, counts.cancelled, counts.answered), (6, 1, 1));
}

#[test]
fn replacement_agent_serves_the_same_methods() {
    let options = Options::new(socket("replace")).workers(3);
    let server = Server::start(options, Methods::new().unary("/t.T/Echo", echo)).unwrap();
    for round in 0..20_u8 {
        let mut agent = Agent::new(&server, "rss");
        let calls: Vec<Subject> = (0..50).map(|n| agent.call(0, &[round, n])).collect();
        // Some rounds end before all calls are answered.
        if round % 2 == 0 {
            for (n, call) in calls.into_iter().enumerate() {
                assert_eq!(agent.end(call), Status::ok());
                assert_eq!(agent.replies[&call], [[round, n as u8]]);
            }
        }
    }
    let start = Instant::now();
    while server.has_agent() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the server does not notice that the agent has gone"
        );
    }
    assert_eq!(server.stats().attached, 20);
    assert_eq!(server.stats().faults, 0);
}

#[test]
fn polled_worker_may_answer_out_of_order() {
    let options = Options::new(socket("polled"));
    let methods = Methods::new().unary("/t.T/Echo", |_, _| unreachable!("nobody calls handlers"));
    let (server, mut workers) = Server::start_polled(options, methods).unwrap();
    let mut worker = workers.pop().unwrap();
    let stop = Arc::new(AtomicU32::new(0));
    let stopped = Arc::clone(&stop);
    let poller = std::thread::spawn(move || {
        let mut open: Vec<(Subject, Vec<u8>)> = Vec::new();
        while stopped.load(Ordering::SeqCst) == 0 {
            match worker.poll() {
                Some(Came::Begin { call, message, .. }) => {
                    open.push((call, message.unwrap_or_default().to_vec()));
                }
                Some(_) => {}
                None if open.len() >= 3 => {
                    // The last call is answered first.
                    while let Some((call, message)) = open.pop() {
                        worker.message(call, &message, END).unwrap();
                    }
                    worker.publish();
                }
                None => worker.wait(),
            }
        }
    });
    let mut agent = Agent::new(&server, "jbsq:k=3");
    for round in 0..100_u8 {
        let calls = [0, 1, 2].map(|n| agent.call(0, &[round, n]));
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(agent.end(call), Status::ok());
            assert_eq!(agent.replies[&call], [[round, n as u8]]);
        }
    }
    stop.store(1, Ordering::SeqCst);
    poller.join().unwrap();
}

#[test]
fn enclave_threads_serve_with_and_without_a_scheduling_agent() {
    let enclave = Enclave::start(wave_user::Options::new(socket("enclave"))).unwrap();
    // Nobody wakes a thread that waits while its reply is being copied.
    let link = LinkSpec::builtin("stingray").expect("it is built in");
    let mut options = Options::new(socket("threads")).workers(5).over(link);
    options.config.pools = PayloadConfig { extents: 1, lines: 2, inline_max: 40 }.pools();
    let methods = Methods::new().unary("/t.T/Echo", echo).method(method("/t.T/Each"), echo_each);
    let server = Server::start_threads(options, methods, &enclave).unwrap();
    for round in 0..10_u8 {
        let mut agent = Agent::new(&server, "jbsq");
        let message = |n: u8| [round, n].repeat(usize::from(n) * 5);
        let calls: Vec<Subject> = (0..50).map(|n| agent.call(0, &message(n))).collect();
        let stream = agent.begin(Arrival { method: 1, ..Arrival::default() }).unwrap();
        for n in 0..20 {
            agent.dispatch.message(stream, Bytes::copy_from_slice(&[n]), n == 19, false);
        }
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(agent.end(call), Status::ok());
            assert_eq!(agent.replies[&call], [message(n as u8)]);
        }
        assert_eq!(agent.end(stream), Status::ok());
        assert_eq!(agent.replies[&stream].len(), 20);
    }
    drop(server);
}

/// A front that tells a scheduler of requests.
struct Teller(Arc<Mutex<Vec<Note>>>);

impl Front for Teller {
    fn poll(&mut self, _now: Nanos, notes: &mut Vec<Note>) -> Progress {
        notes.append(&mut self.0.lock().unwrap());
        Progress::Done
    }
}

/// Runs a scheduler of an enclave's threads that gets notes of an agent's requests, until it is revoked.
fn schedule(enclave: &Enclave, agent: &Agent) -> std::thread::JoinHandle<()> {
    let Attached { layout, port, host_bells, connection, .. } = attach(enclave.socket()).unwrap();
    let teller = Teller(Arc::clone(&agent.notes));
    std::thread::spawn(move || {
        let policy = by_name("fifo", &layout.config).unwrap();
        let mut agent =
            wave_core::agent::Agent::with_front(layout, port, host_bells, policy, (), teller);
        agent.announce();
        let start = Instant::now();
        while agent.step(Nanos(start.elapsed().as_nanos() as u64)).unwrap() != Step::Revoked
            && !connection.hung_up()
        {
            std::thread::yield_now();
        }
    })
}

#[test]
fn a_thread_whose_reply_is_being_copied_awaits_no_note() {
    let enclave = Enclave::start(wave_user::Options::new(socket("scheduled"))).unwrap();
    // Extents of two lines, so that a reply needs several copies one after another.
    let link = LinkSpec::builtin("stingray").expect("it is built in");
    let mut options = Options::new(socket("copied")).workers(2).over(link);
    options.config.pools = PayloadConfig { extents: 1, lines: 2, inline_max: 40 }.pools();
    let methods = Methods::new().unary("/t.T/Echo", echo);
    let server = Server::start_threads(options, methods, &enclave).unwrap();
    let mut agent = Agent::new(&server, "jbsq");
    let scheduler = schedule(&enclave, &agent);
    agent.until(|_| enclave.stats().agents > 0);
    for round in 0..50_u8 {
        let message = [round].repeat(1_000);
        let call = agent.call(0, &message);
        assert_eq!(agent.end(call), Status::ok());
        assert_eq!(agent.replies[&call], [message]);
    }
    // No note reaches the awaiting threads any more; the host's own queue runs them.
    enclave.kill_agent();
    scheduler.join().unwrap();
    drop(server);
}

#[test]
fn panicking_handler_ends_only_its_own_call() {
    let boom = |_: &mut Call<'_>, _: &[u8]| -> Result<Vec<u8>, Status> { panic!("on purpose") };
    let methods = Methods::new().unary("/t.T/Boom", boom).unary("/t.T/Echo", echo);
    let server = Server::start(Options::new(socket("panic")), methods).unwrap();
    let mut agent = Agent::new(&server, "jbsq");
    let (boom, echo) = (agent.call(0, b""), agent.call(1, b"x"));
    assert_eq!(agent.end(boom).code, Code::Internal);
    assert_eq!(agent.end(echo), Status::ok());
}

#[test]
fn worker_reports_served_calls_and_busy_time() {
    const CALL: Duration = Duration::from_millis(2);
    let slow = |_: &mut Call<'_>, _: &[u8]| {
        std::thread::sleep(CALL);
        Ok(Vec::new())
    };
    let methods = Methods::new().unary("/t.T/Slow", slow);
    let server = Server::start(Options::new(socket("work")), methods).unwrap();
    let mut agent = Agent::new(&server, "jbsq:k=4");
    let calls: Vec<Subject> = (0..10).map(|_| agent.call(0, b"")).collect();
    for call in calls {
        assert_eq!(agent.end(call), Status::ok());
    }
    // The counters are updated once the worker has found no other call.
    let served = |server: &Server| server.work().iter().map(|work| work.calls).sum::<u64>();
    while served(&server) < 10 {
        std::thread::yield_now();
    }
    assert_eq!(served(&server), 10);
    assert!(server.work()[0].busy.0 >= 10 * CALL.as_nanos() as u64);
}

/// Replies until the call is cancelled.
fn replies_for_ever(call: &mut Call<'_>) -> Result<(), Status> {
    let reply = [7; 1_000];
    loop {
        call.send(&reply)?;
    }
}

/// Opens more streams than workers may hold, of clients that read nothing and of clients that send nothing, and checks that
/// other calls are served.
fn streams_hold_nobody_up(server: &Server, agent: &mut Agent) {
    let mut open = Vec::new();
    for _ in 0..20 {
        let unread = agent.begin(Arrival { method: 1, ..Arrival::default() }).unwrap();
        agent.unread.insert(unread);
        let silent = agent.begin(Arrival { method: 2, ..Arrival::default() }).unwrap();
        open.extend([unread, silent]);
        let call = agent.call(0, b"x");
        assert_eq!(agent.end(call), Status::ok());
    }
    // A slow reader and a late sender are still served.
    let [.., read, spoken] = open[..] else { panic!("there are streams") };
    agent.dispatch.message(spoken, Bytes::from_static(b"late"), true, false);
    assert_eq!(agent.end(spoken), Status::ok());
    assert_eq!(agent.replies[&spoken], [b"late"]);
    agent.until(|agent| agent.replies.get(&read).is_some_and(|replies| replies.len() >= 60));
    let was = agent.replies[&read].len();
    agent.unread.clear();
    agent.dispatch.grant(read, 1_000 * was as u32);
    agent.until(|agent| agent.replies[&read].len() > 10 * was);
    for call in open {
        agent.dispatch.cancel(call, Code::Cancelled);
    }
    agent.until(|agent| agent.dispatch.open() == 0);
    assert_eq!(server.stats().faults, 0);
}

/// Replies must not wait in a buffer of the CPU, or in extents, for the handler's next pause; nor a cancellation at the agent for
/// its next event, or for extents that the worker has not returned.
#[test]
fn replies_and_cancellations_travel_while_a_handler_works() {
    for link in ["shm", "stingray"] {
        for size in [4, 4_096] {
            let works = move |call: &mut Call<'_>| -> Result<(), Status> {
                call.headers(&[("k", b"v")])?;
                call.send(&vec![7; size])?;
                while !call.is_cancelled() {
                    std::hint::spin_loop();
                }
                Ok(())
            };
            let methods = Methods::new().method(method("/t.T/Works"), works);
            let options = Options::new(socket(&format!("works-{link}-{size}")));
            let server = Server::start(options.over(LinkSpec::builtin(link).unwrap()), methods);
            let server = server.unwrap();
            let mut agent = Agent::new(&server, "jbsq");
            let call = agent.begin(Arrival { method: 0, ..Arrival::default() }).unwrap();
            agent.until(|agent| agent.replies.contains_key(&call));
            assert_eq!(agent.replies[&call], [vec![7; size]]);
            // More than the extents hold.
            agent.dispatch.message(call, vec![1; 1 << 20].into(), false, false);
            for _ in 0..100 {
                agent.step();
            }
            agent.dispatch.cancel(call, Code::Cancelled);
            agent.until(|agent| agent.dispatch.open() == 0);
        }
    }
}

/// A last reply or a status must not wait in a buffer of the CPU for the handler that the worker runs next.
#[test]
fn end_of_a_call_does_not_wait_for_the_next_handler() {
    let has_ended = Arc::new(AtomicU32::new(0));
    let waits = {
        let has_ended = Arc::clone(&has_ended);
        move |call: &mut Call<'_>| {
            while has_ended.load(Ordering::SeqCst) == 0 && !call.is_cancelled() {
                std::hint::spin_loop();
            }
        }
    };
    let wait = waits.clone();
    // It pauses after its last message, and then returns.
    let sends = |call: &mut Call<'_>| (0..16).try_for_each(|_| call.send(b"x"));
    let methods = Methods::new()
        .method(method("/t.T/Sends"), sends)
        .unary("/t.T/Waits", move |call, _| {
            wait(call);
            Ok(Vec::new())
        })
        .method(Method { path: "/t.T/Replies".into(), ..Method::default() }, move |call| {
            call.reply(b"x")?;
            waits(call);
            Ok(())
        });
    let link = LinkSpec::builtin("stingray").unwrap();
    let server = Server::start(Options::new(socket("ends")).over(link), methods).unwrap();
    let mut agent = Agent::new(&server, "jbsq:k=4");
    let first = agent.begin(Arrival { method: 0, ..Arrival::default() }).unwrap();
    let waiting = agent.call(1, b"");
    assert_eq!(agent.end(first), Status::ok());
    has_ended.store(1, Ordering::SeqCst);
    assert_eq!(agent.end(waiting), Status::ok());
    has_ended.store(0, Ordering::SeqCst);
    let replied = agent.call(2, b"");
    assert_eq!(agent.end(replied), Status::ok());
    has_ended.store(1, Ordering::SeqCst);
}

fn streams() -> Methods {
    Methods::new()
        .unary("/t.T/Echo", echo)
        .method(method("/t.T/Replies"), replies_for_ever)
        .method(method("/t.T/Each"), echo_each)
}

#[test]
fn unread_and_silent_streams_hold_up_no_worker() {
    for steering in ["jbsq:k=1", "jbsq:k=4", "rss:ahead=4", "multi-queue:k=1", "darc"] {
        let options = Options { yields_cpu: true, ..Options::new(socket("streams")).workers(2) };
        let server = Server::start(options, streams()).unwrap();
        streams_hold_nobody_up(&server, &mut Agent::new(&server, steering));
    }
}

#[test]
fn unread_and_silent_streams_hold_up_no_thread() {
    let enclave = Enclave::start(wave_user::Options::new(socket("stream-enclave"))).unwrap();
    let options = Options::new(socket("stream-threads")).workers(2);
    let server = Server::start_threads(options, streams(), &enclave).unwrap();
    let mut agent = Agent::new(&server, "jbsq");
    streams_hold_nobody_up(&server, &mut agent);
    // The same with a scheduler that runs only threads that notes or messages name.
    let scheduler = schedule(&enclave, &agent);
    agent.until(|_| enclave.stats().agents > 0);
    streams_hold_nobody_up(&server, &mut agent);
    enclave.kill_agent();
    scheduler.join().unwrap();
    drop(server);
}

#[test]
fn suspended_handlers_end_with_their_agent_or_server() {
    let ended = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ended);
    let wait = move |call: &mut Call<'_>| {
        let result = call.receive().map(drop);
        count.fetch_add(1, Ordering::SeqCst);
        result
    };
    let methods = Methods::new().unary("/t.T/Echo", echo).method(method("/t.T/Wait"), wait);
    let server = Server::start(Options::new(socket("suspended")), methods).unwrap();
    for round in 1..=2 {
        let mut agent = Agent::new(&server, "jbsq");
        for _ in 0..10 {
            agent.begin(Arrival { method: 1, ..Arrival::default() }).unwrap();
        }
        // Once this call is answered, the streams before it have begun, as the worker takes calls in order.
        let call = agent.call(0, b"x");
        assert_eq!(agent.end(call), Status::ok());
        if round == 1 {
            drop(agent);
            while ended.load(Ordering::SeqCst) < 10 {
                std::thread::yield_now();
            }
        } else {
            drop(server);
            assert_eq!(ended.load(Ordering::SeqCst), 20);
            return;
        }
    }
}

#[test]
fn a_handler_that_reads_on_after_its_last_reply_ends() {
    let answers_first = |call: &mut Call<'_>| {
        call.reply(b"early")?;
        while call.receive()?.is_some() {}
        Ok(())
    };
    let methods = Methods::new().method(method("/t.T/Early"), answers_first);
    let server = Server::start(Options::new(socket("early")), methods).unwrap();
    let mut agent = Agent::new(&server, "jbsq:k=1");
    let call = agent.begin(Arrival { method: 0, ..Arrival::default() }).unwrap();
    assert_eq!(agent.end(call), Status::ok());
    // A handler that stayed suspended would keep the server from ending.
    drop(agent);
    drop(server);
}
