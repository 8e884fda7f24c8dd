//! Attaching over real sockets: if one side misbehaves or stops at any step, the other side names the side
//! at fault and continues.

mod common;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use common::{socket, start, wait_for};
use wave_agent::{AttachError, Attached, Exit, HostLine, Registry, Seat, attach, run};
use wave_core::clock::Nanos;
use wave_core::control::Revoked;
use wave_core::layout::{AGENT_READY, Config, HeaderError, Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Doorbell, Home, Port, Side, Window};
use wave_links::socket::{Connection, Listener, Offer, SocketError};
use wave_links::{EventFd, LinkSpec, MapError, Memory};
use wave_user::{Enclave, Mode};

/// A hand-made host that can be wrong in any single respect.
struct Faker {
    listener: Listener,
    layout: Layout,
    memory: Memory,
    file: OwnedFd,
}

impl Faker {
    fn new(name: &str) -> Faker {
        let layout = Layout::new(Config {
            subsystem: wave_sched::SUBSYSTEM.id,
            subjects: 16,
            ..Config::coherent(1)
        })
        .unwrap();
        let (memory, file) = Memory::create(name, layout.nic_lines, layout.host_lines, 0).unwrap();
        Faker { listener: Listener::bind(&socket(name), &[]).unwrap(), layout, memory, file }
    }

    fn path(&self) -> PathBuf {
        self.listener.path().into()
    }

    fn lines(&self) -> [u32; 3] {
        [self.layout.nic_lines, self.layout.host_lines, 0]
    }

    fn write_header(&mut self) {
        let (memory, _) = Memory::create("unused", 1, 0, 0).unwrap();
        let memory = std::sync::Arc::new(std::mem::replace(&mut self.memory, memory));
        let port = LinkSpec::Shm.port(&memory, Side::Host, &[]).unwrap();
        write_header(&self.layout, port.window(Home::Nic));
    }

    fn accept(&self) -> Connection {
        loop {
            if let Some(connection) = self.listener.accept().unwrap() {
                return connection;
            }
            std::thread::yield_now();
        }
    }

    /// Makes an offer to one agent and returns that agent's result.
    fn offer(
        &self,
        version: u32,
        lines: [u32; 3],
        memory: BorrowedFd<'_>,
        doorbells: usize,
        link: &str,
    ) -> AttachError {
        let path = self.path();
        let agent = std::thread::spawn(move || attach(&path).map(drop).unwrap_err());
        let connection = self.accept();
        let bells: Vec<_> = (0..doorbells).map(|_| EventFd::new().unwrap()).collect();
        let doorbells: Vec<_> = bells.iter().map(AsFd::as_fd).collect();
        let subsystem = wave_sched::SUBSYSTEM.id;
        let offer =
            Offer { version, subsystem, lines, memory, doorbells: &doorbells, files: &[], link };
        connection.send_offer(&offer).unwrap();
        agent.join().unwrap()
    }
}

#[test]
fn agent_refuses_a_window_that_differs_from_its_offer() {
    let mut host = Faker::new("wrong-window");
    let bells = host.layout.doorbells();
    let lines = host.lines();
    let more = [lines[0] + 1, lines[1], lines[2]];

    let error = host.offer(PROTOCOL_VERSION, more, host.file.as_fd(), bells, "shm");
    assert!(matches!(&error, AttachError::Map(MapError::WrongSize { .. })), "{error}");

    // SAFETY: the name is a C string; the descriptor is new and belongs to nobody else.
    let unsealed = unsafe {
        OwnedFd::from_raw_fd(libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_ALLOW_SEALING))
    };
    let bytes = (u64::from(lines[0]) + u64::from(lines[1])) * 64;
    File::from(unsealed.try_clone().unwrap()).set_len(bytes).unwrap();
    let error = host.offer(PROTOCOL_VERSION, lines, unsealed.as_fd(), bells, "shm");
    assert!(matches!(&error, AttachError::Map(MapError::Unsealed { .. })), "{error}");

    let null = File::open("/dev/null").unwrap();
    let error = host.offer(PROTOCOL_VERSION, lines, null.as_fd(), bells, "shm");
    assert!(matches!(&error, AttachError::Map(MapError::NotMemfd)), "{error}");

    // A window without a header.
    let error = host.offer(PROTOCOL_VERSION, lines, host.file.as_fd(), bells, "shm");
    assert!(matches!(&error, AttachError::Header(HeaderError::Magic)), "{error}");

    host.write_header();
    // A file that is as small as offered, with a layout that needs more.
    let (small, small_file) = Memory::create("small", 16, 16, 0).unwrap();
    for (at, word) in {
        let memory = Memory::map(host.file.as_fd(), lines[0], lines[1], 0).unwrap();
        let words = memory.region(Home::Nic)[..16].iter();
        words.map(|word| word.load(std::sync::atomic::Ordering::Relaxed)).collect::<Vec<_>>()
    }
    .into_iter()
    .enumerate()
    {
        small.region(Home::Nic)[at].store(word, std::sync::atomic::Ordering::Relaxed);
    }
    let error = host.offer(PROTOCOL_VERSION, [16, 16, 0], small_file.as_fd(), bells, "shm");
    let truncated = matches!(&error, AttachError::Header(HeaderError::Truncated { .. }));
    assert!(truncated && error.to_string().starts_with("peer's fault"), "{error}");

    for wrong in [0, bells - 1, bells + 1] {
        let error = host.offer(PROTOCOL_VERSION, lines, host.file.as_fd(), wrong, "shm");
        assert!(
            matches!(&error, AttachError::Doorbells { have, need } if (*have, *need) == (wrong, bells)),
            "{error}"
        );
        assert!(error.to_string().starts_with("peer's fault"));
    }

    let error = host.offer(PROTOCOL_VERSION, lines, host.file.as_fd(), bells, "carrier pigeon");
    assert!(matches!(&error, AttachError::Link(_)), "{error}");

    let version = PROTOCOL_VERSION + 7;
    let error = host.offer(version, lines, host.file.as_fd(), bells, "shm");
    let text = error.to_string();
    assert!(matches!(&error, AttachError::Socket(SocketError::Version { .. })), "{text}");
    let both = [version, PROTOCOL_VERSION].map(|version| text.contains(&version.to_string()));
    assert_eq!(both, [true, true], "{text}");

    let memory = Memory::map(host.file.as_fd(), lines[0], lines[1], 0).unwrap();
    let word = &memory.region(Home::Nic)[2];
    let honest = word.fetch_xor(7 << 48, std::sync::atomic::Ordering::Relaxed);
    let error = host.offer(PROTOCOL_VERSION, lines, host.file.as_fd(), bells, "shm");
    assert!(matches!(&error, AttachError::Subsystem { .. }), "{error}");
    let both = "the offer names subsystem 1, but its window's header names subsystem 6";
    assert!(error.to_string().contains(both), "{error}");
    word.store(honest, std::sync::atomic::Ordering::Relaxed);

    // The same in the header, as an offer cannot be trusted.
    memory.region(Home::Nic)[1].store(u64::from(version), std::sync::atomic::Ordering::Relaxed);
    let error = host.offer(PROTOCOL_VERSION, lines, host.file.as_fd(), bells, "shm");
    let text = error.to_string();
    assert!(matches!(&error, AttachError::Header(HeaderError::Version { .. })), "{text}");
    let both = [version, PROTOCOL_VERSION].map(|version| text.contains(&version.to_string()));
    assert_eq!(both, [true, true], "{text}");
}

#[test]
fn agent_survives_a_host_that_goes_away_at_any_step() {
    // The host goes before it listens.
    let error = attach(&socket("nobody")).unwrap_err();
    assert!(matches!(&error, AttachError::Socket(SocketError::Path { .. })), "{error}");

    // The host goes after it listens, before it accepts.
    let mut host = Faker::new("goes");
    let path = host.path();
    let agent = std::thread::spawn(move || attach(&path).map(drop).unwrap_err());
    drop(host.accept());
    let error = agent.join().unwrap();
    assert!(matches!(&error, AttachError::Socket(SocketError::HungUp)), "{error}");

    // The host sends a refusal instead of an offer.
    let path = host.path();
    let agent = std::thread::spawn(move || attach(&path).map(drop).unwrap_err());
    host.accept().refuse("not today").unwrap();
    let error = agent.join().unwrap();
    assert!(error.to_string().ends_with("not today"), "{error}");

    // The host goes after the offer, without answering the announcement.
    host.write_header();
    let path = host.path();
    let agent = std::thread::spawn(move || {
        let attached = attach(&path).unwrap();
        let policy = Registry::shipped().make("fifo", &attached.layout.config).unwrap();
        run(attached, policy, (), Seat::Shared).unwrap()
    });
    let connection = host.accept();
    let bells: Vec<_> = (0..host.layout.doorbells()).map(|_| EventFd::new().unwrap()).collect();
    let doorbells: Vec<_> = bells.iter().map(AsFd::as_fd).collect();
    let (version, lines, memory) = (PROTOCOL_VERSION, host.lines(), host.file.as_fd());
    let offer = Offer {
        version,
        subsystem: wave_sched::SUBSYSTEM.id,
        lines,
        memory,
        doorbells: &doorbells,
        files: &[],
        link: "shm",
    };
    connection.send_offer(&offer).unwrap();
    drop(connection);
    assert_eq!(agent.join().unwrap(), Exit::HostGone);
}

fn serves(enclave: &Enclave) {
    let handles: Vec<_> = (0..20u64)
        .map(|index| {
            enclave.spawn(0, move || {
                wave_user::yield_now();
                index
            })
        })
        .collect();
    for (index, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.unwrap().join().unwrap(), index as u64);
    }
}

#[test]
fn host_survives_an_agent_that_goes_away_at_any_step() {
    let enclave = start("survives", |_| {});
    // The agent connects and goes.
    drop(Connection::connect(enclave.socket()).unwrap());
    serves(&enclave);
    // More agents than there is room for candidates connect, and none announces itself.
    let silent: Vec<_> = (0..8).map(|_| Connection::connect(enclave.socket()).unwrap()).collect();
    serves(&enclave);
    drop(silent);
    // The agent takes the offer and goes; or maps the window and goes, announced or not.
    wait_for("room for a candidate", || attach(enclave.socket()).is_ok());
    serves(&enclave);
    assert_eq!(enclave.stats().agents, 0);
    let attached = attach(enclave.socket()).unwrap();
    announce(&enclave, &attached);
    // The agent decides nothing, and goes.
    let waiting = enclave.spawn(0, || 5).unwrap();
    drop(attached);
    assert_eq!(waiting.join().unwrap(), 5);
    serves(&enclave);
    let stats = enclave.stats();
    assert_eq!((stats.mode, stats.lost_agents, stats.faults), (Mode::Fallback, 1, 0));

    // After all that, a good agent can attach.
    let attached = attach(enclave.socket()).unwrap();
    let policy = Registry::shipped().make("fifo", &attached.layout.config).unwrap();
    let agent = std::thread::spawn(move || run(attached, policy, (), Seat::Shared));
    wait_for("the good agent", || enclave.stats().mode == Mode::Agent);
    serves(&enclave);
    assert_eq!(enclave.stats().agents, 2);
    drop(enclave);
    assert_eq!(agent.join().unwrap().unwrap(), Exit::Revoked(Revoked::Ended));
}

/// Nothing reads there, so each poll(2) of the control thread would return at once.
#[test]
fn an_agent_that_writes_to_its_socket_is_turned_out() {
    let enclave = start("stray", |_| {});
    let attached = attach(enclave.socket()).unwrap();
    announce(&enclave, &attached);
    let HostLine::Socket(connection) = &attached.connection else { panic!("not a socket") };
    connection.refuse("a stray message").unwrap();
    wait_for("its end", || enclave.stats().lost_agents == 1);
    serves(&enclave);
}

/// Announces the enclave's first agent, which decides nothing.
fn announce(enclave: &Enclave, attached: &Attached) {
    let nic = attached.port.window(Home::Nic);
    nic.store(attached.layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
    nic.fence();
    attached.host_bells[attached.layout.control_vector()].ring();
    wait_for("the announcement", || enclave.stats().agents == 1);
}

#[test]
fn revoked_agent_learns_the_reason() {
    let enclave = start("why", |_| {});
    let agent = |agents| {
        let attached = attach(enclave.socket()).unwrap();
        let policy = Registry::shipped().make("fifo", &attached.layout.config).unwrap();
        let agent = std::thread::spawn(move || run(attached, policy, (), Seat::Shared));
        wait_for("the agent", || enclave.stats().agents == agents);
        wait_for("its mode", || enclave.stats().mode == Mode::Agent);
        agent
    };
    let left = |agent: std::thread::JoinHandle<Result<Exit, _>>| agent.join().unwrap().unwrap();
    let (first, second) = (agent(1), agent(2));
    assert_eq!(left(first), Exit::Revoked(Revoked::Replaced));
    enclave.kill_agent();
    assert_eq!(left(second), Exit::Revoked(Revoked::TurnedOut));
    let third = agent(3);
    drop(enclave);
    assert_eq!(left(third), Exit::Revoked(Revoked::Ended));
}

#[test]
fn agent_of_another_version_is_refused_with_both_versions() {
    let enclave = start("version", |_| {});
    let connection = Connection::connect(enclave.socket()).unwrap();
    let offer = connection.receive_offer(PROTOCOL_VERSION, None).unwrap();
    let [nic, host, extra] = offer.lines;
    let memory = Memory::map(offer.memory.as_fd(), nic, host, extra).unwrap();
    let memory = std::sync::Arc::new(memory);
    let port = LinkSpec::Shm.port(&memory, Side::Agent, &[]).unwrap();
    let layout = wave_core::layout::read_header(port.window(Home::Nic), nic, host).unwrap();
    port.window(Home::Nic).store(layout.agent, 0, AGENT_READY | 77);
    EventFd::from_fd(offer.doorbells[layout.control_vector()].try_clone().unwrap()).unwrap().ring();
    let error = connection.receive_offer(PROTOCOL_VERSION, None).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("77") && text.contains(&PROTOCOL_VERSION.to_string()), "{text}");
    let error = connection.receive_offer(PROTOCOL_VERSION, None).unwrap_err();
    assert!(matches!(error, SocketError::HungUp), "the host keeps a refused agent: {error}");
    serves(&enclave);
    assert_eq!(enclave.stats().agents, 0);
}

/// The watchdog turns out an attached agent that decides nothing.
#[test]
fn an_agent_that_decides_nothing_is_turned_out() {
    let enclave = start("lazy", |options| options.config.patience = Nanos::from_millis(20));
    let attached = attach(enclave.socket()).unwrap();
    announce(&enclave, &attached);
    serves(&enclave);
    let stats = enclave.stats();
    assert_eq!((stats.mode, stats.lost_agents, stats.barks), (Mode::Fallback, 1, 1));
    assert_ne!(
        attached.port.window(Home::Nic).load(attached.layout.incarnation, 0),
        wave_core::layout::INCARNATION_LIVE,
        "the agent's window is not revoked"
    );
}
