//! Hostile programs, each a process of its own with windows that it writes by hand.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{AGENT_READY, PROTOCOL_VERSION};
use wave_core::link::{Doorbell, Home, Port, Window as _};
use wave_core::queue::{PushError, Tag};
use wave_front_tcp::{EVENTS_MAX, PROCESSES_MAX};
use wave_links::socket::{Connection, SocketError};
use wave_links::{Payload, SocketBell};
use wave_posix::{Options, Toe};
use wave_tcp::context::{
    Event, FILL_MAX, Filled, HostFailure, QUEUE_ENTRIES, Reason, Request, Sharing, SocketOptions,
    Tail, Update,
};
use wave_tcp::datapath::{FlowId, Ring};

use crate::agent::{Agent, BOUNDS, FAR, NEAR, PATIENCE, STRANGER, start};
use crate::common::Program;
use crate::good::{PORT, SINK};

/// Number of set-up steps at whose beginning `die` can end.
pub const STEPS: u32 = 9;
/// Payload memory of most windows.
const PAYLOAD_BYTES: u64 = 64 << 20;
/// Length of most rings.
const RING_BYTES: u32 = 4_096;

/// Starts an attack in a process of its own.
pub fn attack(agent: &Agent, what: &str) -> Child {
    start(what, agent.folder())
}

/// Waits until an attack prints a line that ends with `what`.
pub fn said(attack: &mut Child, what: &str) {
    let output = attack.stdout.as_mut().unwrap();
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with(what)), "the attack ended without printing `{what}`");
}

/// Runs the attack of this name.
pub fn run(role: &str, path: &Path) {
    if let Some(role) = role.strip_prefix("as-stranger ") {
        // Changes this thread's user only; the kernel reports that one to the agent.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(STRANGER)).unwrap();
        return run(role, path);
    }
    let (name, number) = role.split_once(' ').unwrap_or((role, "0"));
    let number = number.parse().unwrap();
    match name {
        "garbage" => garbage(path, number),
        "holes" => holes(path),
        "greed" => greed(path),
        "windows" => hold(&windows(path, 16)),
        "spans" => spans(path),
        "newcomer" => newcomer(path),
        "events" => events(path),
        "die" => die(path, number),
        "silence" => silence(path),
        "ports" => ports(path),
        "beyond" => beyond(path),
        "complaints" => complaints(path),
        "system-ports" => system_ports(path),
        other => panic!("no attack {other}"),
    }
}

/// Reports that the attack holds all that it can get, and keeps it until the process is killed or the test has ended.
fn hold<T>(_what: &T) {
    println!("holds");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

/// A window with its first context.
struct Window {
    program: Program,
    requests: Sender,
    events: Receiver,
    next: u32,
}

fn connect(path: &Path) -> Connection {
    let start = Instant::now();
    loop {
        match Connection::connect(path) {
            Ok(connection) => return connection,
            Err(SocketError::Path { source, .. })
                if source.kind() == std::io::ErrorKind::WouldBlock =>
            {
                assert!(start.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Window {
    /// Offers a window, and waits until the agent accepts it.
    ///
    /// # Errors
    /// The agent's reason for a refusal; empty if it gave none.
    fn open(path: &Path, contexts: u16, payload_bytes: u64) -> Result<Window, String> {
        let program = Program::over(|| connect(path), contexts, payload_bytes);
        let _ = program.offer();
        Window::of(program)
    }

    fn of(program: Program) -> Result<Window, String> {
        let ready = AGENT_READY | u64::from(PROTOCOL_VERSION);
        while program.port.window(Home::Nic).load(program.layout.agent, 0) != ready {
            if let Some(why) = program.connection.refusal() {
                return Err(why);
            }
            if program.connection.hung_up() {
                return Err(program.connection.refusal().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let (requests, events) = (program.requests(0), program.events(0));
        Ok(Window { program, requests, events, next: 0 })
    }

    fn hung_up(&self) -> bool {
        self.program.connection.hung_up()
    }

    /// Pushes an entry. Returns false if the agent has hung up.
    fn push(&mut self, tag: Tag, words: &[u64; 6]) -> bool {
        loop {
            match self.requests.push(&self.program.port, tag, words) {
                Ok(()) => {
                    self.requests.publish(&self.program.port);
                    return true;
                }
                Err(PushError::Full(_)) if !self.hung_up() => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(_) => return false,
            }
        }
    }

    fn ask(&mut self, request: Request) {
        let (tag, words) = request.to_words();
        assert!(self.push(tag, &words), "the agent hung up at {request:?}");
    }

    /// The next event, except progress and warnings.
    fn event(&mut self) -> Event {
        loop {
            match self.any_event() {
                Event::Progress(_) | Event::SoftError { .. } => {}
                event => return event,
            }
        }
    }

    fn any_event(&mut self) -> Event {
        let start = Instant::now();
        loop {
            if let Some(entry) = self.events.pop(&self.program.port).unwrap() {
                return Event::from_entry(&entry).unwrap();
            }
            assert!(!self.hung_up() && start.elapsed() < PATIENCE, "no event");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// A new socket with a pair of unused rings, of which the first has memory.
    fn rings(&mut self, bytes: u32) -> (u32, Ring, Ring) {
        self.next += 1;
        let at =
            u64::from(self.next) * 2 * u64::from(bytes) % (PAYLOAD_BYTES - 2 * u64::from(bytes));
        let at = at / u64::from(bytes) * u64::from(bytes);
        self.program.payload.populate(at, RING_BYTES).unwrap();
        (self.next, Ring { offset: at, bytes }, Ring { offset: at + u64::from(bytes), bytes })
    }

    fn connect(&mut self, remote: SocketAddr, local_port: u16, bytes: u32) -> (u32, Ring) {
        let (socket, receive, send) = self.rings(bytes);
        let filled = RING_BYTES;
        self.ask(Request::Connect {
            socket,
            remote,
            local_port,
            mss_max: u16::MAX,
            receive,
            send,
            filled,
        });
        (socket, send)
    }

    /// Connects to the sink.
    fn flow(&mut self, bytes: u32) -> (u32, FlowId, Ring) {
        let (socket, send) = self.connect(SocketAddr::from((FAR, SINK)), 0, bytes);
        match self.event() {
            Event::Connected { socket: which, flow, .. } if which == socket => (socket, flow, send),
            other => panic!("{other:?}"),
        }
    }

    fn listen(&mut self, port: u16) -> Option<Reason> {
        self.next += 1;
        let (listener, local) = (self.next, SocketAddr::from((NEAR, port)));
        self.ask(Request::Listen { listener, local, backlog: 64, sharing: Sharing::default() });
        match self.event() {
            Event::Listening { .. } => None,
            Event::NotListening { reason, .. } => Some(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Expects that a connection fails for this reason.
    fn fails(&mut self, socket: u32, reason: Reason) {
        assert_eq!(self.event(), Event::Failed { socket, reason });
    }
}

fn update(flow: FlowId, written: u64, filled: Filled) -> Request {
    Request::Update(Update {
        flow,
        written,
        read: 0,
        is_finished: false,
        is_eager: true,
        tail: Tail::Whole,
        filled,
    })
}

/// A pseudo-random generator.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }

    /// A word of any size; often a small one, or the end of a range.
    fn any(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(64),
            1 => self.below(64) << 32 | self.below(64),
            2 => self.below(PAYLOAD_BYTES) & !4_095,
            3 => u64::MAX - self.below(4_097),
            4 => 1 << self.below(64),
            _ => self.word(),
        }
    }
}

/// Writes nonsense wherever a program can write.
fn garbage(path: &Path, seed: u32) {
    let mut random = Random(u64::from(seed) + 1);
    for round in 0..40 {
        let contexts = 1 + random.below(3) as u16;
        let mut window = Window::open(path, contexts, PAYLOAD_BYTES).unwrap();
        if round % 2 == 0 {
            let flows: VecDeque<_> = (0..3).map(|_| window.flow(RING_BYTES)).collect();
            for (_, flow, _) in flows {
                window.ask(update(flow, 0, Filled::default()));
            }
            assert_eq!(window.listen(9_000), None);
        }
        for _ in 0..200 {
            let tag = Tag { kind: random.below(11) as u16, flags: random.word() as u8 };
            let words = std::array::from_fn(|_| random.any());
            let goes_on = match random.below(100) {
                0 => {
                    let ring = window.program.layout.messages[0].ring;
                    let line = ring.first + random.below(ring.entries.into()) as u32;
                    let words = std::array::from_fn::<_, 7, _>(|_| random.any());
                    let home = window.program.layout.messages[0].home;
                    window.program.port.window(home).write_line(line, &words, random.any());
                    !window.hung_up()
                }
                1 => {
                    let place = window.program.layout.decisions[0];
                    let credit = random.any();
                    window.program.port.window(place.home).store(place.ring.credit, 0, credit);
                    !window.hung_up()
                }
                2 => {
                    window.program.bells.iter().for_each(SocketBell::ring);
                    true
                }
                _ => window.push(tag, &words),
            };
            if !goes_on {
                break;
            }
        }
    }
}

/// Bytes of memory that a file occupies.
fn resident(file: &OwnedFd) -> u64 {
    File::from(file.try_clone().unwrap()).metadata().unwrap().blocks() * 512
}

/// Lends memory without pages, and tries to take lent pages away.
fn holes(path: &Path) {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let mut program = Program::over(|| connect(path), 1, PAYLOAD_BYTES);
    let [nic, host, _] = program.lines;
    program.memory = Payload::create("hollow", u64::from(nic + host) * 64).unwrap().1;
    program.offer().unwrap();
    let refused = Window::of(program).err().unwrap();
    assert!(refused.contains("no page at byte 0"), "{refused}");

    let mut program = Program::over(|| connect(path), 1, PAYLOAD_BYTES);
    program.files = vec![wave_links::Memory::create("sealed", 64, 64, 0).unwrap().1];
    program.offer().unwrap();
    let refused = Window::of(program).err().unwrap();
    assert!(refused.contains("cannot be sealed"), "{refused}");

    let mut window = Window::open(path, 1, PAYLOAD_BYTES).unwrap();
    let payload = window.program.files[0].try_clone().unwrap();
    for file in [&window.program.memory, &payload] {
        assert_eq!(fallocate(file, punch, 0, 4_096), Err(Errno::PERM));
        assert!(File::from(file.try_clone().unwrap()).set_len(0).is_err());
    }
    assert!(Payload::map(payload.as_fd(), PAYLOAD_BYTES).is_err());

    // Rings without memory, or with less than `filled` says.
    let remote = SocketAddr::from((FAR, SINK));
    let ring = |offset, bytes| Ring { offset, bytes };
    let (receive, send) = (ring(32 << 20, 1 << 20), ring(33 << 20, 1 << 20));
    for (socket, filled) in [(1_001, 1), (1_002, 4_097), (1_003, (1 << 20) + 1), (1_004, u32::MAX)]
    {
        if socket > 1_001 {
            window.program.payload.populate(receive.offset, 4_096).unwrap();
        }
        window.ask(Request::Connect {
            socket,
            remote,
            local_port: 0,
            mss_max: u16::MAX,
            receive,
            send,
            filled,
        });
        window.fails(socket, Reason::Invalid);
        assert_eq!(window.listen(9_001 + filled as u16 % 100), None);
        let listener = window.next;
        window.ask(Request::Slot { listener, socket, receive, send, filled });
        window.fails(socket, Reason::Invalid);
        window.ask(Request::Unlisten { listener });
    }
    assert_eq!(resident(&payload), 4_096);

    // An open connection: written bytes without memory, `filled` without memory, and `filled` beyond the limit of one step.
    type Lie = fn(&Payload, Ring) -> (u64, Filled);
    let lies: [Lie; 4] = [
        |_, _| (1, Filled::default()),
        |_, _| (5_000, Filled { receive: 0, send: 8_192 }),
        |_, _| (0, Filled { receive: 2 * RING_BYTES, send: 0 }),
        |payload, ring| {
            payload.populate(ring.offset, ring.bytes).unwrap();
            (1, Filled { receive: 0, send: FILL_MAX + 4_096 })
        },
    ];
    for lie in lies {
        let (socket, flow, send) = window.flow(1 << 20);
        let before = resident(&payload);
        let (written, filled) = lie(&window.program.payload, send);
        let own = resident(&payload) - before;
        window.ask(update(flow, written, filled));
        window.fails(socket, Reason::Invalid);
        assert_eq!(resident(&payload), before + own, "the agent has filled a hole");
    }
    // An honest connection.
    let (socket, flow, send) = window.flow(1 << 20);
    window.program.payload.populate(send.offset, 8_192).unwrap();
    let before = resident(&payload);
    window.ask(update(flow, 8_192, Filled { receive: 0, send: 8_192 }));
    loop {
        match window.any_event() {
            Event::Progress(progress) if progress.acknowledged == 8_192 => break,
            Event::Progress(_) => {}
            other => panic!("{other:?} of {socket}"),
        }
    }
    assert_eq!(resident(&payload), before);
}

/// Opens windows until the agent refuses more.
fn windows(path: &Path, contexts: u16) -> Vec<Window> {
    let mut windows = Vec::new();
    loop {
        assert!(windows.len() < PROCESSES_MAX);
        match Window::open(path, contexts, 1 << 20) {
            Ok(window) => windows.push(window),
            Err(why) => {
                assert!(why.contains("share"), "{why}");
                return windows;
            }
        }
    }
}

/// Takes all windows, connections, listeners and handshakes that the agent gives.
fn greed(path: &Path) {
    let Ok(mut window) = Window::open(path, 64, PAYLOAD_BYTES) else { return hold(&()) };
    let windows = windows(path, 1);
    let mut connections = 0;
    loop {
        window.connect(SocketAddr::from((FAR, SINK)), 0, RING_BYTES);
        match window.event() {
            Event::Connected { .. } => connections += 1,
            Event::Failed { reason: Reason::TooMany, .. } => break,
            other => panic!("{other:?} after {connections}"),
        }
    }
    assert!(connections <= BOUNDS.flows * 3 / 4);
    let mut listeners = 0;
    while let Some(port) =
        Some(10_000 + (getpid().as_raw_nonzero().get() % 1_000 * 20) as u16 + listeners)
    {
        match window.listen(port) {
            None => listeners += 1,
            Some(Reason::TooMany) => break,
            Some(other) => panic!("{other:?} after {listeners}"),
        }
    }
    assert!(u32::from(listeners) <= BOUNDS.listeners * 3 / 4);
    // No host has this address: the handshakes wait for a neighbour.
    let (mut half_open, mut failed) = (0, false);
    while !failed {
        window.connect(SocketAddr::from(([10, 0, 0, 77], 9)), 0, RING_BYTES);
        half_open += 1;
        // Refusals come at once.
        while let Some(entry) = window.events.pop(&window.program.port).unwrap() {
            failed |= matches!(
                Event::from_entry(&entry),
                Ok(Event::Failed { reason: Reason::TooMany, .. })
            );
        }
        assert!(half_open < 1_000_000);
    }
    hold(&(window, windows));
}

/// Offers rings spread over payload memories of 64 GiB.
fn spans(path: &Path) {
    const RING: u32 = 512 << 20;
    let mut windows = Vec::new();
    let mut taken = 0;
    for number in 0..4 {
        let mut window = Window::open(path, 1, 64 << 30).unwrap();
        assert_eq!(window.listen(20_000 + number), None);
        let listener = window.next;
        for slot in 0..64 {
            let ring = |at: u64| Ring { offset: at * u64::from(RING), bytes: RING };
            let (receive, send, filled) = (ring(2 * slot), ring(2 * slot + 1), RING_BYTES);
            window.program.payload.populate(receive.offset, RING_BYTES).unwrap();
            let socket = slot as u32;
            window.ask(Request::Slot { listener, socket, receive, send, filled });
        }
        // Events are in the order of requests: all failures arrive before the answer to this request.
        window.next += 1;
        let (listener, local, backlog) = (window.next, SocketAddr::from((NEAR, 80)), 1);
        window.ask(Request::Listen { listener, local, backlog, sharing: Sharing::default() });
        taken += 64;
        loop {
            match window.event() {
                Event::Failed { reason: Reason::NoRoom, .. } => taken -= 1,
                Event::Listening { .. } => break window.ask(Request::Unlisten { listener }),
                other => panic!("{other:?}"),
            }
        }
        windows.push(window);
    }
    // Two rings of half a GiB have 512 spans. The program gets three quarters of all spans, less those of others.
    assert!((90..=96).contains(&taken), "{taken}");
    hold(&windows);
}

/// An honest program that comes late.
fn newcomer(path: &Path) {
    let options = Options { patience: PATIENCE, ..Options::default() };
    let toe = Toe::connect_with(path, &options).unwrap();
    let listener = toe.listen(SocketAddr::from((NEAR, 0)), 4).unwrap();
    let mut stream = toe.connect_stream(SocketAddr::from((FAR, SINK)), Some(PATIENCE)).unwrap();
    stream.write_all(&[7; 50_000]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(listener);
}

/// Causes more and more events, and takes none.
fn events(path: &Path) {
    let mut window = Window::open(path, 2, PAYLOAD_BYTES).unwrap();
    let ring = Ring { offset: 0, bytes: RING_BYTES };
    let (remote, local_port) = (SocketAddr::from((FAR, SINK)), 0);
    let mut pushed = 0_u64;
    loop {
        let (receive, send, filled) = (ring, ring, 2 * RING_BYTES);
        let socket = pushed as u32;
        let request = Request::Connect {
            socket,
            remote,
            local_port,
            mss_max: u16::MAX,
            receive,
            send,
            filled,
        };
        let (tag, words) = request.to_words();
        if !window.push(tag, &words) {
            break;
        }
        pushed += 1;
        assert!(pushed < 10_000_000, "the agent does not turn the program out");
    }
    // The program's share of waiting events, and the contents of both queues.
    let share = u64::from(EVENTS_MAX) * 3 / 4 + 2 * u64::from(QUEUE_ENTRIES);
    assert!((10_000..=share + 1_000).contains(&pushed), "{pushed} events");
}

/// Sets up connections in a loop, and kills itself by SIGKILL at the beginning of a step, or never.
fn die(path: &Path, at: u32) {
    let step = |number: u32| {
        if number == at {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    };
    println!("begins");
    std::io::stdout().flush().unwrap();
    loop {
        step(0);
        let connect = || {
            let connection = connect(path);
            step(1);
            connection
        };
        let program = Program::over(connect, 2, PAYLOAD_BYTES);
        program.offer().unwrap();
        step(2);
        let mut window = Window::of(program).unwrap();
        step(3);
        let listener = 1_000_000;
        let local = SocketAddr::from((NEAR, 0));
        window.ask(Request::Listen { listener, local, backlog: 4, sharing: Sharing::default() });
        step(4);
        for _ in 0..4 {
            let (socket, receive, send) = window.rings(RING_BYTES);
            window.ask(Request::Slot { listener, socket, receive, send, filled: RING_BYTES });
        }
        step(5);
        let (_, send) = window.connect(SocketAddr::from((FAR, SINK)), 0, RING_BYTES);
        step(6);
        let flow = loop {
            if let Event::Connected { flow, .. } = window.event() {
                break flow;
            }
        };
        window.program.payload.populate(send.offset, RING_BYTES).unwrap();
        window.ask(update(flow, 1_000, Filled { receive: RING_BYTES, send: RING_BYTES }));
        step(7);
        window.ask(Request::Close { flow });
        step(8);
        assert_eq!(at, STEPS);
    }
}

/// Holds connections that offer nothing, and opens new ones for those that end.
fn silence(path: &Path) {
    let mut held: Vec<Connection> = Vec::new();
    let parent = rustix::process::getppid();
    let (mut has_said, start) = (false, Instant::now());
    while rustix::process::getppid() == parent {
        let was_refused = |connection: &Connection| {
            connection.refusal().is_some_and(|why| why.contains("too many connections"))
        };
        let is_refused = held.iter().any(was_refused);
        held.retain(|connection| !connection.hung_up());
        while held.len() < 40 {
            match Connection::connect(path) {
                Ok(connection) => held.push(connection),
                Err(_) => break,
            }
        }
        // A refusal shows that the share of waiting connections is used up.
        if !has_said && is_refused {
            has_said = true;
            println!("holds");
            std::io::stdout().flush().unwrap();
        }
        assert!(has_said || start.elapsed() < PATIENCE, "no connection was refused");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Claims ports and connections of other programs.
fn ports(path: &Path) {
    let mut window = Window::open(path, 1, PAYLOAD_BYTES).unwrap();
    assert_eq!(window.listen(PORT), Some(Reason::AddressInUse));
    let remote = SocketAddr::from((FAR, SINK));
    let (socket, _) = window.connect(remote, PORT, RING_BYTES);
    window.fails(socket, Reason::AddressInUse);
    for index in 0..BOUNDS.flows {
        for generation in 0..16 {
            let flow = FlowId { index, generation };
            window.ask(update(flow, 1, Filled { receive: u32::MAX, send: u32::MAX }));
            window.ask(Request::Abort { flow });
            window.ask(Request::Close { flow });
            window.ask(Request::Configure { flow, options: SocketOptions::default() });
        }
    }
    for listener in 0..100 {
        let (socket, receive, send) = window.rings(RING_BYTES);
        window.ask(Request::Unlisten { listener });
        window.ask(Request::Slot { listener, socket, receive, send, filled: RING_BYTES });
        window.fails(socket, Reason::Invalid);
    }
}

/// Claims to have written more than its ring holds.
fn beyond(path: &Path) {
    let mut window = Window::open(path, 1, PAYLOAD_BYTES).unwrap();
    let (socket, flow, ring) = window.flow(RING_BYTES);
    window.ask(update(flow, u64::from(ring.bytes) + 1, Filled { receive: RING_BYTES, send: 0 }));
    window.fails(socket, Reason::Invalid);
}

/// Reports failures and meets limits again and again.
fn complaints(path: &Path) {
    let mut window = Window::open(path, 1, PAYLOAD_BYTES).unwrap();
    for _ in 0..5_000 {
        for failure in [HostFailure::NotTakenOver, HostFailure::NoRings, HostFailure::NoMemory] {
            window.ask(Request::Report { failure });
        }
        assert_eq!(window.listen(80), Some(Reason::NotPermitted));
    }
    // Connections that fail for the network's reasons are nobody's business.
    let (socket, _) = window.connect(SocketAddr::from((FAR, 9)), 0, RING_BYTES);
    window.fails(socket, Reason::Refused);
    hold(&window);
}

/// Claims system ports, as a user without the right to them.
fn system_ports(path: &Path) {
    let mut window = Window::open(path, 1, PAYLOAD_BYTES).unwrap();
    assert_eq!(window.listen(80), Some(Reason::NotPermitted));
    assert_eq!(window.listen(8_080), None);
    let (socket, _) = window.connect(SocketAddr::from((FAR, SINK)), 80, RING_BYTES);
    window.fails(socket, Reason::NotPermitted);
    window.flow(RING_BYTES);
    let options = Options { patience: PATIENCE, ..Options::default() };
    let toe = Toe::connect_with(path, &options).unwrap();
    let refused = toe.listen(SocketAddr::from((NEAR, 1_023)), 1).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}
