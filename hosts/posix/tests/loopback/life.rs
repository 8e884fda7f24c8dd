//! Beginning and end of connections, and errors when the agent dies.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use crate::agent::Agent;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use wave_core::clock::Nanos;
use wave_front_tcp::{Door, DoorOptions, Received};
use wave_posix::{KeepAlive, Listener, Options, SocketOptions, Stream, Toe, ToeError};
use wave_tcp::context::{Event, Progress, Reason, Request};
use wave_tcp::datapath::FlowId;

/// Long enough for any machine; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn anywhere() -> SocketAddr {
    "0.0.0.0:0".parse().unwrap()
}

fn listen(toe: &Toe, backlog: u16) -> (Listener, SocketAddr) {
    let listener = toe.listen(anywhere(), backlog).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn pair(toe: &Toe) -> (Listener, Stream, Stream) {
    let (listener, address) = listen(toe, 4);
    let near = toe.connect_stream(address, None).unwrap();
    let (far, _) = listener.accept().unwrap();
    (listener, near, far)
}

#[test]
fn end_of_stream_is_read_after_all_bytes() {
    let agent = Agent::start(1);
    let toe = Toe::connect(agent.path()).unwrap();
    let (_listener, mut near, mut far) = pair(&toe);
    near.write_all(b"last words").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(near.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut words = String::new();
    far.read_to_string(&mut words).unwrap();
    assert_eq!((words.as_str(), far.read(&mut [0]).unwrap()), ("last words", 0));
    // The other direction is still open.
    far.write_all(b"answer").unwrap();
    drop(far);
    words.clear();
    near.read_to_string(&mut words).unwrap();
    assert_eq!(words, "answer");
    near.shutdown(Shutdown::Read).unwrap();
    assert_eq!(near.read(&mut [0]).unwrap(), 0);
}

#[test]
fn closing_with_unread_bytes_resets_the_connection() {
    let agent = Agent::start(2);
    let toe = Toe::connect(agent.path()).unwrap();
    let (_listener, mut near, mut far) = pair(&toe);
    near.write_all(b"unread").unwrap();
    near.flush().unwrap();
    assert!(!far.readable().unwrap().is_empty());
    drop(far);
    let error = near.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(near.write(b"x").unwrap_err().kind(), ErrorKind::ConnectionReset);

    let (_listener, mut near, mut far) = pair(&toe);
    near.write_all(b"read").unwrap();
    far.read_exact(&mut [0; 4]).unwrap();
    far.abort();
    assert_eq!(near.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(near.error().map(|error| error.kind()), Some(ErrorKind::ConnectionReset));
}

#[test]
fn connect_and_listen_fail_with_the_same_errors_as_on_linux() {
    let agent = Agent::start(3);
    let toe = Toe::connect(agent.path()).unwrap();
    let nowhere = "192.0.2.1:9".parse().unwrap();
    let error = toe.connect_stream(nowhere, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let (listener, address) = listen(&toe, 1);
    assert_eq!(toe.listen(address, 1).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(listener);
    assert_eq!(toe.listen(address, 1).unwrap().local_addr().unwrap(), address);

    let (listener, address) = listen(&toe, 1);
    listener.set_nonblocking(true);
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut stream = toe.connect_stream(address, None).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1)));
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);

    // With a full backlog, connection requests get no answer.
    let _waiting: Vec<_> = (0..8).map(|_| toe.begin_connect(address).unwrap()).collect();
    let error = toe.connect_stream(address, Some(Duration::from_millis(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn many_connections_are_accepted_through_few_slots() {
    let agent = Agent::start(4);
    let server = Toe::connect(agent.path()).unwrap();
    let (listener, address) = listen(&server, 3);
    let path = agent.path();
    let client = std::thread::spawn(move || {
        let toe = Toe::connect(path).unwrap();
        let streams: Vec<_> = (0..50).map(|_| toe.begin_connect(address).unwrap()).collect();
        for (at, mut stream) in streams.iter().enumerate() {
            stream.write_all(&[at as u8; 100]).unwrap();
        }
        for (at, mut stream) in streams.iter().enumerate() {
            let mut back = [0; 100];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, [at as u8; 100]);
        }
    });
    let mut seen = [false; 50];
    let mut streams = Vec::new();
    for _ in 0..50 {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 100];
        stream.read_exact(&mut bytes).unwrap();
        assert!(!std::mem::replace(&mut seen[usize::from(bytes[0])], true));
        stream.write_all(&bytes).unwrap();
        streams.push(stream);
    }
    server.flush();
    client.join().unwrap();
}

#[test]
fn rings_are_freed_when_connections_end() {
    let agent = Agent::start(5);
    // Memory for the two ends of one connection.
    let options = Options {
        payload_bytes: 4 * 4096,
        receive_bytes: 4096,
        send_bytes: 4096,
        ..Options::default()
    };
    let toe = Toe::connect_with(agent.path(), &options).unwrap();
    let (listener, address) = listen(&toe, 1);
    for round in 0..20_u8 {
        let mut near = loop {
            // The previous connection may not have ended yet.
            match toe.begin_connect(address) {
                Ok(stream) => break stream,
                Err(error) => assert_eq!(error.raw_os_error(), Some(105), "{error}"),
            }
        };
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[round; 5]).unwrap();
        let mut bytes = [0; 5];
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [round; 5]);
        let full = toe.begin_connect(address).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(105));
    }
}

#[test]
fn full_request_queue_delays_requests_and_loses_none() {
    let agent = Agent::start(6);
    let toe = Toe::connect(agent.path()).unwrap();
    let (_listener, mut near, mut far) = pair(&toe);
    agent.set_deaf(true);
    for at in 0..3_000_u32 {
        near.write_all(&at.to_le_bytes()).unwrap();
        near.flush().unwrap();
    }
    far.set_read_timeout(Some(Duration::from_millis(5)));
    // The agent may have processed some requests before it went deaf.
    let mut first = vec![0; 12_000];
    let mut got = 0;
    while let Ok(more) = far.read(&mut first[got..]) {
        got += more;
    }
    agent.set_deaf(false);
    far.set_read_timeout(None);
    far.read_exact(&mut first[got..]).unwrap();
    let numbers: Vec<u32> =
        first.chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
    assert!(numbers.iter().copied().eq(0..3_000));
}

#[test]
fn polling_for_readiness_misses_no_event() {
    let agent = Agent::start(7);
    let server = Toe::connect(agent.path()).unwrap();
    let (listener, address) = listen(&server, 2);
    let path = agent.path();
    let client = std::thread::spawn(move || {
        let toe = Toe::connect(path).unwrap();
        let mut stream = toe.connect_stream(address, None).unwrap();
        for at in 0..500_u32 {
            stream.write_all(&at.to_le_bytes()).unwrap();
            let mut back = [0; 4];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(u32::from_le_bytes(back), at);
        }
    });
    listener.set_nonblocking(true);
    let mut stream = None;
    let mut is_over = false;
    while !is_over {
        if !server.poll_ready().unwrap() {
            let mut fds = [PollFd::new(&server, PollFlags::IN)];
            poll(&mut fds, None).unwrap();
            continue;
        }
        if stream.is_none() && listener.is_ready() {
            stream = listener.accept().ok().map(|(stream, _)| stream);
            stream.iter().for_each(|stream| stream.set_nonblocking(true));
        }
        let Some(mut stream) = stream.as_ref() else { continue };
        while stream.readiness().is_readable {
            let mut bytes = [0; 64];
            let got = stream.read(&mut bytes).unwrap();
            is_over = got == 0;
            if is_over {
                break;
            }
            assert!(stream.readiness().is_writable);
            stream.write_all(&bytes[..got]).unwrap();
        }
    }
    client.join().unwrap();
}

#[test]
fn poll_ready_reports_events_processed_by_a_read_of_another_stream() {
    let agent = Agent::start(10);
    let client = Toe::connect(agent.path()).unwrap();
    let server = Toe::connect(agent.path()).unwrap();
    let (listener, address) = listen(&server, 2);
    let [(mut near, far), (mut other_near, mut other_far)] = [(); 2].map(|()| {
        let near = client.connect_stream(address, None).unwrap();
        (near, listener.accept().unwrap().0)
    });
    while server.poll_ready().unwrap() {}
    // The agent reports the first stream's bytes first.
    near.write_all(b"a").unwrap();
    near.flush().unwrap();
    other_near.write_all(b"b").unwrap();
    other_near.flush().unwrap();
    other_far.read_exact(&mut [0]).unwrap();
    assert!(far.readiness().is_readable);
    assert!(server.poll_ready().unwrap());
}

#[test]
fn next_changed_returns_each_stream_with_news_once() {
    let agent = Agent::start(11);
    let toe = Toe::connect(agent.path()).unwrap();
    let (listener, address) = listen(&toe, 8);
    let near: Vec<Stream> = (0..4).map(|_| toe.connect_stream(address, None).unwrap()).collect();
    // The first stream's bytes arrive before it is accepted.
    (&near[0]).write_all(b"early").unwrap();
    toe.flush();
    let mut far: Vec<Stream> = (0..4).map(|_| listener.accept().unwrap().0).collect();
    near.iter().chain(&far).for_each(|stream| stream.set_nonblocking(true));
    (&near[2]).write_all(b"late").unwrap();
    let [first, third] = [0, 2].map(|at| index_of_peer(&far, &near[at]));
    let mut named = BTreeMap::new();
    // The agent may deliver the bytes in parts, and each part is news.
    let mut has =
        |at: usize, bytes: usize| far[at].readable().is_ok_and(|came| came.len() == bytes);
    let end = Instant::now() + PATIENCE;
    while !(has(first, 5) && has(third, 4)) {
        assert!(Instant::now() < end, "the bytes do not arrive");
        toe.poll_ready().unwrap();
    }
    while let Some(id) = toe.next_changed() {
        *named.entry(id).or_insert(0) += 1;
    }
    for stream in &far {
        assert_eq!(named.get(&stream.id()), Some(&1), "an accepted stream is returned once");
    }
    // Two unread bytes do not make it return the stream again; new bytes do.
    let third = &far[third];
    (&*third).read_exact(&mut [0; 2]).unwrap();
    while toe.poll_ready().unwrap() {}
    while let Some(id) = toe.next_changed() {
        assert!(far.iter().all(|stream| stream.id() != id), "no bytes have arrived there since");
    }
    (&near[2]).write_all(b"later").unwrap();
    loop {
        toe.poll_ready().unwrap();
        let mut ids = std::iter::from_fn(|| toe.next_changed());
        if ids.any(|id| id == third.id()) {
            break;
        }
        assert!(Instant::now() < end, "new bytes are not reported");
    }
    let indices: BTreeSet<usize> =
        near.iter().chain(&far).map(|stream| stream.id().index()).collect();
    assert_eq!(indices.len(), 8);
}

/// The index of the other end of `stream`.
fn index_of_peer(streams: &[Stream], stream: &Stream) -> usize {
    let local = stream.local_addr().unwrap();
    streams.iter().position(|peer| peer.peer_addr().unwrap() == local).unwrap()
}

/// Exchanges bytes over new connections until a call fails.
fn talk(toe: &Toe) -> std::io::Result<()> {
    loop {
        let listener = toe.listen(anywhere(), 2)?;
        let mut near = toe.connect_stream(listener.local_addr()?, None)?;
        let (mut far, _) = listener.accept()?;
        for _ in 0..20 {
            near.write_all(&[1; 5_000])?;
            far.read_exact(&mut [0; 5_000])?;
            far.write_all(&[2; 100])?;
            near.read_exact(&mut [0; 100])?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn death_of_the_agent_at_any_time_resets_everything(turns in 0_u64..3_000) {
        let agent = Agent::start(turns);
        agent.die_after(turns);
        match Toe::connect(agent.path()) {
            // The agent died before it accepted the program.
            Err(ToeError::HungUp | ToeError::Socket(_)) => {}
            Err(other) => panic!("{other}"),
            Ok(toe) => {
                let error = talk(&toe).unwrap_err();
                prop_assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                let error = toe.listen(anywhere(), 1).unwrap_err();
                prop_assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                let error = toe.begin_connect(anywhere()).unwrap_err();
                prop_assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        }
    }
}

#[test]
fn bytes_received_before_the_agents_death_are_read_and_pollers_wake() {
    let mut agent = Agent::start(8);
    let toe = Toe::connect(agent.path()).unwrap();
    let (listener, mut near, mut far) = pair(&toe);
    near.write_all(b"came").unwrap();
    near.flush().unwrap();
    assert!(!far.readable().unwrap().is_empty());
    while toe.poll_ready().unwrap() {}
    agent.kill();
    let mut fds = [PollFd::new(&toe, PollFlags::IN)];
    poll(&mut fds, None).unwrap();
    while toe.poll_ready().is_ok() {}
    let mut bytes = [0; 8];
    assert_eq!(far.read(&mut bytes).unwrap(), 4);
    for result in [far.read(&mut bytes), near.read(&mut bytes), near.write(&bytes)] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn nonblocking_reads_alone_detect_a_dead_agent() {
    let mut agent = Agent::start(9);
    let toe = Toe::connect(agent.path()).unwrap();
    let (_listener, near, _far) = pair(&toe);
    near.set_nonblocking(true);
    agent.kill();
    let error = loop {
        let error = (&near).read(&mut [0]).unwrap_err();
        if error.kind() != ErrorKind::WouldBlock {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn options_reach_the_agent_and_warnings_reach_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut door = Door::bind(&path, DoorOptions::default()).unwrap();
    let flow = FlowId { index: 3, generation: 9 };
    let agent = std::thread::spawn(move || {
        let mut process = loop {
            if let Some(process) = door.poll(Nanos(0)).unwrap() {
                break process;
            }
            std::thread::yield_now();
        };
        process.announce();
        let (mut name, mut configured) = (0, Vec::new());
        while !process.has_hung_up() {
            let mut answer = None;
            let taken = process.poll(1, |_, request| match request {
                Received::Request(Request::Connect { socket, .. }) => {
                    name = socket;
                    answer = Some(Event::Connected { socket, flow, local: anywhere(), mss: 1460 });
                }
                Received::Request(Request::Configure { flow: of, options }) => {
                    configured.push((of, options));
                    let reason = Reason::NoNeighbour;
                    answer = Some(Event::SoftError { socket: name, reason });
                }
                other => println!("{other:?}"),
            });
            taken.unwrap();
            if let Some(event) = answer {
                process.send(0, &event).unwrap();
                process.publish();
            }
            std::thread::yield_now();
        }
        configured
    });
    let toe = Toe::connect(&path).unwrap();
    let stream = toe.begin_connect("192.0.2.1:1".parse().unwrap()).unwrap();
    let keep_alive = Some(KeepAlive::default());
    let options = SocketOptions { keep_alive, hop_limit: 9, ..SocketOptions::default() };
    // Before the connection is established.
    stream.set_options(options).unwrap();
    let soft_error = || loop {
        toe.poll_ready().unwrap();
        if let Some(soft_error) = stream.take_soft_error() {
            break soft_error.raw_os_error();
        }
        std::thread::yield_now();
    };
    assert_eq!(soft_error(), Some(Reason::NoNeighbour.errno()));
    assert!(stream.take_soft_error().is_none());
    // And back to the defaults.
    stream.set_options(SocketOptions::default()).unwrap();
    assert_eq!(stream.options(), SocketOptions::default());
    assert_eq!(soft_error(), Some(Reason::NoNeighbour.errno()));
    let wrong = SocketOptions { hop_limit: 0, ..options };
    assert_eq!(stream.set_options(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    drop((stream, toe));
    assert_eq!(agent.join().unwrap(), [(flow, options), (flow, SocketOptions::default())]);
}

/// Runs an agent that answers connection requests with the events `lies`. Returns the program's error.
fn lie(lies: impl Fn(u32) -> Vec<Event> + Send + 'static) -> std::io::Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut door = Door::bind(&path, DoorOptions::default()).unwrap();
    let agent = std::thread::spawn(move || {
        let mut process = loop {
            if let Some(process) = door.poll(Nanos(0)).unwrap() {
                break process;
            }
            std::thread::yield_now();
        };
        process.announce();
        while !process.has_hung_up() {
            let mut asked = None;
            let taken = process.poll(1, |_, request| match request {
                Received::Request(Request::Connect { socket, .. }) => asked = Some(socket),
                other => println!("{other:?}"),
            });
            taken.unwrap();
            for event in asked.map(&lies).into_iter().flatten() {
                process.send(0, &event).unwrap();
            }
            process.publish();
            std::thread::yield_now();
        }
    });
    let toe = Toe::connect(&path).unwrap();
    let connected = toe.connect_stream("192.0.2.1:1".parse().unwrap(), None);
    let error = connected.and_then(|mut stream| stream.read(&mut [0; 10])).unwrap_err();
    drop(toe);
    agent.join().unwrap();
    error
}

#[test]
fn impossible_events_from_the_agent_reset_its_connections() {
    let flow = FlowId { index: 0, generation: 0 };
    let connected = move |socket| Event::Connected { socket, flow, local: anywhere(), mss: 1460 };
    let progress = |socket, received, acknowledged| {
        Event::Progress(Progress { socket, received, acknowledged, is_finished: false })
    };
    type Lie = fn(u32, Event, Event) -> Vec<Event>;
    let lies: [Lie; 3] = [
        |_, connected, _| vec![connected, connected],
        |_, connected, beyond| vec![connected, beyond],
        |socket, connected, _| {
            vec![
                Event::Accepted {
                    listener: 1,
                    socket,
                    flow: FlowId { index: 0, generation: 0 },
                    remote: anywhere(),
                    mss: 1460,
                },
                connected,
            ]
        },
    ];
    for lie_of in lies {
        let error =
            lie(move |socket| lie_of(socket, connected(socket), progress(socket, 2 << 20, 0)));
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let error = lie(move |socket| vec![connected(socket), progress(socket, 0, 1)]);
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn refusal_has_the_agents_text_and_bad_ring_sizes_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    assert!(matches!(Toe::connect(&path), Err(ToeError::Socket(_))));
    let options = DoorOptions { payload_bytes_max: 4096, ..DoorOptions::default() };
    let mut door = Door::bind(&path, options).unwrap();
    let agent = std::thread::spawn(move || {
        while door.poll(Nanos(0)).is_ok() {
            std::thread::yield_now();
        }
    });
    let error = Toe::connect(&path).unwrap_err();
    assert!(matches!(&error, ToeError::Refused(why) if why.contains("at most 4096")), "{error}");
    agent.join().unwrap();
    for receive_bytes in [0, 4095, 1 << 25] {
        let options = Options { receive_bytes, ..Options::default() };
        assert!(matches!(Toe::connect_with(&path, &options), Err(ToeError::Rings { .. })));
    }
}
