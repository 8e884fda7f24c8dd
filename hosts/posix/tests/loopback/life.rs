//! How connections begin and end, and what programs see when the agent does.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use crate::agent::Agent;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use wave_core::clock::Nanos;
use wave_front_tcp::{Door, DoorOptions, Taken};
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
fn the_end_of_a_stream_is_read_after_its_bytes() {
    let agent = Agent::start(1);
    let toe = Toe::connect(agent.path()).unwrap();
    let (_listener, mut near, mut far) = pair(&toe);
    near.write_all(b"last words").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(near.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut words = String::new();
    far.read_to_string(&mut words).unwrap();
    assert_eq!((words.as_str(), far.read(&mut [0]).unwrap()), ("last words", 0));
    // The other direction is open.
    far.write_all(b"answer").unwrap();
    drop(far);
    words.clear();
    near.read_to_string(&mut words).unwrap();
    assert_eq!(words, "answer");
    near.shutdown(Shutdown::Read).unwrap();
    assert_eq!(near.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_peer_that_goes_without_reading_resets() {
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
fn connecting_and_listening_fail_with_the_errors_of_linux() {
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

    // A backlog that is full leaves callers without an answer.
    let _waiting: Vec<_> = (0..8).map(|_| toe.begin_connect(address).unwrap()).collect();
    let error = toe.connect_stream(address, Some(Duration::from_millis(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn many_connections_come_through_few_slots() {
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
fn rings_come_back_when_connections_have_ended() {
    let agent = Agent::start(5);
    // Room for one connection with both of its ends.
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
            // The last one may not be over yet.
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
fn a_full_queue_of_requests_delays_and_loses_nothing() {
    let agent = Agent::start(6);
    let toe = Toe::connect(agent.path()).unwrap();
    let (_listener, mut near, mut far) = pair(&toe);
    agent.set_deaf(true);
    for at in 0..3_000_u32 {
        near.write_all(&at.to_le_bytes()).unwrap();
        near.flush().unwrap();
    }
    far.set_read_timeout(Some(Duration::from_millis(5)));
    // Some may have been taken before.
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
fn readiness_is_polled_and_nothing_is_missed() {
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
fn news_that_another_streams_read_took_is_still_told() {
    let agent = Agent::start(10);
    let client = Toe::connect(agent.path()).unwrap();
    let server = Toe::connect(agent.path()).unwrap();
    let (listener, address) = listen(&server, 2);
    let [(mut near, far), (mut other_near, mut other_far)] = [(); 2].map(|()| {
        let near = client.connect_stream(address, None).unwrap();
        (near, listener.accept().unwrap().0)
    });
    while server.poll_ready().unwrap() {}
    // The agent speaks of the first stream first.
    near.write_all(b"a").unwrap();
    near.flush().unwrap();
    other_near.write_all(b"b").unwrap();
    other_near.flush().unwrap();
    other_far.read_exact(&mut [0]).unwrap();
    assert!(far.readiness().is_readable);
    assert!(server.poll_ready().unwrap());
}

/// Talks until something fails.
#[test]
fn only_streams_with_news_are_named_and_each_once() {
    let agent = Agent::start(11);
    let toe = Toe::connect(agent.path()).unwrap();
    let (listener, address) = listen(&toe, 8);
    let near: Vec<Stream> = (0..4).map(|_| toe.connect_stream(address, None).unwrap()).collect();
    // Its bytes come before it is accepted.
    (&near[0]).write_all(b"early").unwrap();
    toe.flush();
    let far: Vec<Stream> = (0..4).map(|_| listener.accept().unwrap().0).collect();
    near.iter().chain(&far).for_each(|stream| stream.set_nonblocking(true));
    let first = peer_of(&far, &near[0]);
    (&near[2]).write_all(b"late").unwrap();
    let third = peer_of(&far, &near[2]);
    let mut named = BTreeMap::new();
    let is_there = |stream: &Stream| stream.readiness().is_readable;
    let end = Instant::now() + PATIENCE;
    while !(is_there(first) && is_there(third)) {
        assert!(Instant::now() < end, "the bytes do not come");
        toe.poll_ready().unwrap();
    }
    while let Some(id) = toe.next_changed() {
        *named.entry(id).or_insert(0) += 1;
    }
    for stream in &far {
        assert_eq!(named.get(&stream.id()), Some(&1), "accepted, and so named once");
    }
    // Two bytes of four do not name it again; new ones do.
    (&*third).read_exact(&mut [0; 2]).unwrap();
    while toe.poll_ready().unwrap() {}
    while let Some(id) = toe.next_changed() {
        assert!(far.iter().all(|stream| stream.id() != id), "nothing has come there since");
    }
    (&near[2]).write_all(b"later").unwrap();
    loop {
        toe.poll_ready().unwrap();
        let mut ids = std::iter::from_fn(|| toe.next_changed());
        if ids.any(|id| id == third.id()) {
            break;
        }
        assert!(Instant::now() < end, "new bytes are not told of");
    }
    let indices: BTreeSet<usize> =
        near.iter().chain(&far).map(|stream| stream.id().index()).collect();
    assert_eq!(indices.len(), 8);
}

/// The other end of a stream.
fn peer_of<'a>(streams: &'a [Stream], stream: &Stream) -> &'a Stream {
    let local = stream.local_addr().unwrap();
    streams.iter().find(|peer| peer.peer_addr().unwrap() == local).unwrap()
}

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
    fn an_agent_that_dies_at_any_time_resets_everything(turns in 0_u64..3_000) {
        let agent = Agent::start(turns);
        agent.die_after(turns);
        match Toe::connect(agent.path()) {
            // It died before it let the program in.
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
fn what_came_before_the_agent_died_is_read_and_pollers_wake() {
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
fn a_program_that_only_looks_hears_of_the_agents_death_too() {
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
fn options_reach_the_agent_and_its_warnings_the_program() {
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
                Taken::Request(Request::Connect { socket, .. }) => {
                    name = socket;
                    answer = Some(Event::Connected { socket, flow, local: anywhere(), mss: 1460 });
                }
                Taken::Request(Request::Configure { flow: of, options }) => {
                    configured.push((of, options));
                    let reason = Reason::NoNeighbour;
                    answer = Some(Event::Warned { socket: name, reason });
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
    // Before the connection is there.
    stream.set_options(options).unwrap();
    let warning = || loop {
        toe.poll_ready().unwrap();
        if let Some(warning) = stream.take_warning() {
            break warning.raw_os_error();
        }
        std::thread::yield_now();
    };
    assert_eq!(warning(), Some(Reason::NoNeighbour.errno()));
    assert!(stream.take_warning().is_none());
    // And back to what they were.
    stream.set_options(SocketOptions::default()).unwrap();
    assert_eq!(stream.options(), SocketOptions::default());
    assert_eq!(warning(), Some(Reason::NoNeighbour.errno()));
    let wrong = SocketOptions { hop_limit: 0, ..options };
    assert_eq!(stream.set_options(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    drop((stream, toe));
    assert_eq!(agent.join().unwrap(), [(flow, options), (flow, SocketOptions::default())]);
}

/// An agent that says `lies` about the first connection that is asked for.
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
                Taken::Request(Request::Connect { socket, .. }) => asked = Some(socket),
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
fn an_agent_that_lies_resets_its_connections() {
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
fn programs_are_refused_in_words_and_bad_options_by_kind() {
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
    assert!(
        matches!(&error, ToeError::Refused(why) if why.contains("allowed are 4096")),
        "{error}"
    );
    agent.join().unwrap();
    for receive_bytes in [0, 4095, 1 << 25] {
        let options = Options { receive_bytes, ..Options::default() };
        assert!(matches!(Toe::connect_with(&path, &options), Err(ToeError::Rings { .. })));
    }
}
