//! Calls that wait: for bytes, for room, for other threads, for the kernel's descriptors, and across an agent's death.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use wave_readiness::Waiter;

use super::agents::{ADDRESSES, Network};
use crate::address::{Family, encode};
use crate::sockets::{Sockets, Verdict};
use crate::sys;
use crate::wait::Thread;

/// Timeout of the tests, long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 7000;

fn socket() -> c_int {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap().into_raw_fd()
}

pub(super) fn ours<T>(verdict: Verdict<T>) -> Result<T, Errno> {
    match verdict {
        Verdict::Ours(answer) => answer,
        Verdict::Kernels => panic!("the call was left to the kernel"),
    }
}

pub(super) fn listener(sockets: &Sockets, end: usize) -> c_int {
    let fd = socket();
    let own = SocketAddr::new(IpAddr::V4(ADDRESSES[end]), PORT);
    ours(sockets.bind(fd, encode(own, Family::V4).bytes())).unwrap();
    ours(sockets.listen(fd, 16)).unwrap();
    fd
}

/// Connects to the other end's listener.
pub(super) fn connect(sockets: &Sockets, end: usize) -> c_int {
    let fd = socket();
    let remote = SocketAddr::new(IpAddr::V4(ADDRESSES[1 - end]), PORT);
    ours(sockets.connect(fd, encode(remote, Family::V4).bytes())).unwrap();
    fd
}

pub(super) fn accept(sockets: &Sockets, listener: c_int) -> c_int {
    ours(sockets.accept(listener, libc::SOCK_CLOEXEC)).unwrap().fd
}

pub(super) fn send(sockets: &Sockets, fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    ours(sockets.send(fd, &[IoSlice::new(bytes)], 0))
}

pub(super) fn receive(
    sockets: &Sockets,
    fd: c_int,
    into: &mut [u8],
    flags: c_int,
) -> Result<usize, Errno> {
    ours(sockets.receive(fd, &mut [IoSliceMut::new(into)], flags))
}

pub(super) fn close(sockets: &Sockets, fds: &[c_int]) {
    for fd in fds {
        sockets.close(*fd).unwrap();
        sys::close(*fd);
    }
}

#[test]
fn send_waits_for_room_and_receive_waits_for_bytes() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    // More bytes than fit into both rings.
    let sent: Vec<u8> = (0..6_000_000_u32).map(|at| (at / 3) as u8).collect();
    thread::scope(|scope| {
        let sends = scope.spawn(|| {
            let fd = connect(&client, 0);
            assert_eq!(send(&client, fd, &sent), Ok(sent.len()));
            fd
        });
        let fd = accept(&server, listener);
        let mut got = vec![0; sent.len()];
        assert_eq!(receive(&server, fd, &mut got, libc::MSG_WAITALL), Ok(got.len()));
        assert!(got == sent);
        let there = sends.join().unwrap();
        // The end of the stream ends a wait with MSG_WAITALL.
        send(&client, there, b"last").unwrap();
        close(&client, &[there]);
        assert_eq!(receive(&server, fd, &mut got, libc::MSG_WAITALL), Ok(4));
        assert_eq!(receive(&server, fd, &mut got, 0), Ok(0));
        close(&server, &[fd, listener]);
    });
}

#[test]
fn socket_timeouts_end_blocking_calls() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let fd = connect(&client, 0);
    let there = accept(&server, listener);
    let shorten = |sockets: &Sockets, fd: c_int, of: Timeout| {
        let short = Some(Duration::from_millis(5));
        sockopt::set_socket_timeout(sys::fd(fd), of, short).unwrap();
        sockets.option_was_set(fd);
    };
    shorten(&client, fd, Timeout::Recv);
    assert_eq!(receive(&client, fd, &mut [0], 0), Err(Errno::AGAIN));
    shorten(&server, listener, Timeout::Recv);
    assert_eq!(ours(server.accept(listener, 0)).unwrap_err(), Errno::AGAIN);
    shorten(&client, fd, Timeout::Send);
    // Send until no room is left: first a write is taken in part, then a write fails.
    let bytes = vec![7; 1 << 20];
    let mut taken = 0;
    let stopped = loop {
        match send(&client, fd, &bytes) {
            Ok(count) => taken += count,
            Err(error) => break error,
        }
    };
    assert_eq!(stopped, Errno::AGAIN);
    assert!(taken >= 1 << 20, "{taken}");
    // Connections inherit their listener's timeouts.
    let inherited = ours(server.accept(listener, 0)).unwrap_err();
    assert_eq!(inherited, Errno::AGAIN);
    close(&client, &[fd]);
    close(&server, &[there, listener]);
}

#[test]
fn blocked_thread_is_woken_by_other_threads_calls() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    thread::scope(|scope| {
        // One thread accepts, and each of the others serves one connection.
        let serves = scope.spawn(|| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let fd = accept(&server, listener);
                    let server = &server;
                    scope.spawn(move || {
                        let mut byte = [0];
                        while receive(server, fd, &mut byte, 0) == Ok(1) {
                            send(server, fd, &byte).unwrap();
                        }
                        close(server, &[fd]);
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let fds: Vec<c_int> = (0..4).map(|_| connect(&client, 0)).collect();
        for at in 0..200 {
            let fd = fds[at * 7 % 4];
            send(&client, fd, &[at as u8]).unwrap();
            let mut byte = [0];
            assert_eq!(receive(&client, fd, &mut byte, 0), Ok(1));
            assert_eq!(byte, [at as u8]);
        }
        // One thread waits for bytes, and another shuts the socket down.
        let (first, client_too) = (fds[0], &client);
        let waits = scope.spawn(move || receive(client_too, first, &mut [0], 0));
        let start = Instant::now();
        while !waits.is_finished() {
            assert!(start.elapsed() < PATIENCE);
            let _ = client.shutdown(fds[0], libc::SHUT_RD);
            thread::yield_now();
        }
        assert_eq!(waits.join().unwrap(), Ok(0));
        close(&client, &fds);
        serves.join().unwrap();
    });
    close(&server, &[listener]);
}

#[test]
fn death_of_the_agent_resets_its_connections_and_wakes_every_waiter() {
    let mut network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let fds: Vec<c_int> = (0..3).map(|_| connect(&client, 0)).collect();
    let there: Vec<c_int> = fds.iter().map(|_| accept(&server, listener)).collect();
    send(&server, there[1], b"before").unwrap();
    let mut bytes = [0; 16];
    assert_eq!(receive(&client, fds[1], &mut bytes, libc::MSG_PEEK), Ok(6));
    thread::scope(|scope| {
        let waits = scope.spawn(|| receive(&client, fds[0], &mut [0], 0));
        let polls = scope.spawn(|| {
            let mut polled = [libc::pollfd { fd: fds[2], events: libc::POLLIN, revents: 0 }];
            client.poll(&mut polled, None, None).map(|_| polled[0].revents)
        });
        // A doorbell that has hung up would keep a thread from sleeping.
        let (begun, begins) = std::sync::mpsc::channel();
        let listens = scope.spawn(|| {
            let thread = Thread::new(&client, None).unwrap();
            let begun = begun;
            begun.send(thread.bell().is_some()).unwrap();
            let start = Instant::now();
            while thread.bell().is_some() {
                assert!(start.elapsed() < PATIENCE);
                thread.park();
                thread.unpark();
                thread.process_events();
            }
        });
        assert_eq!(begins.recv(), Ok(true));
        network.kill(0);
        listens.join().unwrap();
        assert_eq!(waits.join().unwrap(), Err(Errno::CONNRESET));
        let events = polls.join().unwrap().unwrap();
        assert_eq!(events, libc::POLLIN | libc::POLLHUP | libc::POLLERR);
    });
    // Bytes that had arrived are read first.
    assert_eq!(receive(&client, fds[1], &mut bytes, 0), Ok(6));
    assert_eq!(receive(&client, fds[1], &mut bytes, 0), Err(Errno::CONNRESET));
    assert_eq!(send(&client, fds[1], b"x"), Err(Errno::PIPE));
    // Without an agent, a new socket is the kernel's.
    let fd = socket();
    let remote = SocketAddr::new(IpAddr::V4(ADDRESSES[1]), PORT);
    let answer = client.connect(fd, encode(remote, Family::V4).bytes());
    assert_eq!(answer, Verdict::Kernels);
    sys::close(fd);
    close(&client, &fds);
    close(&server, &there);
    close(&server, &[listener]);
}

#[test]
fn listeners_move_to_the_next_agent_and_are_not_ready_meanwhile() {
    let mut network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let set_nonblocking =
        |is_on| assert!(server.set_nonblocking(listener, is_on) == Verdict::Kernels);
    set_nonblocking(true);
    let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let number = set.as_raw_fd();
    let readable = || Event { flags: EventFlags::IN, data: EventData::new_u64(1) };
    ours(server.epoll_control(number, libc::EPOLL_CTL_ADD, listener, Some(readable()))).unwrap();
    let wait = |timeout| {
        let mut events = [readable(); 4];
        ours(server.epoll_wait(number, &mut events, Some(timeout), None)).unwrap()
    };
    for _ in 0..3 {
        let fd = connect(&client, 0);
        assert_eq!(wait(PATIENCE), 1);
        let there = accept(&server, listener);
        // A connection that is not accepted ends with the agent.
        let unaccepted = connect(&client, 0);
        assert_eq!(wait(PATIENCE), 1);
        network.kill(1);
        assert_eq!(receive(&server, there, &mut [0], 0), Err(Errno::CONNRESET));
        // Without an agent, the listener is not ready and reports no error.
        assert_eq!(wait(Duration::from_millis(20)), 0);
        assert_eq!(ours(server.accept(listener, 0)).unwrap_err(), Errno::AGAIN);
        network.start(1);
        // The set still contains the listener. Its port is closed until the listener has found the new agent.
        thread::scope(|scope| {
            let waits = scope.spawn(|| wait(PATIENCE));
            while !is_open(&client) {}
            assert_eq!(waits.join().unwrap(), 1);
        });
        close(&server, &[there, accept(&server, listener)]);
        close(&client, &[fd, unaccepted]);
    }
    // An accept(2) that is waiting continues with the next agent as well.
    set_nonblocking(false);
    network.kill(1);
    thread::scope(|scope| {
        let waits = scope.spawn(|| accept(&server, listener));
        network.start(1);
        while !is_open(&client) {}
        close(&server, &[waits.join().unwrap(), listener]);
    });
}

/// Whether end 1 accepts connections. If so, it gets one.
fn is_open(client: &Sockets) -> bool {
    let fd = socket();
    let remote = SocketAddr::new(IpAddr::V4(ADDRESSES[1]), PORT);
    let connected = ours(client.connect(fd, encode(remote, Family::V4).bytes()));
    assert!(matches!(connected, Ok(()) | Err(Errno::CONNREFUSED)), "{connected:?}");
    close(client, &[fd]);
    connected.is_ok()
}

#[test]
fn exit_without_close_after_end_of_stream_sends_no_reset() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let fd = connect(&client, 0);
    let there = accept(&server, listener);
    send(&client, fd, b"all").unwrap();
    let mut got = [0; 8];
    assert_eq!(receive(&server, there, &mut got, 0), Ok(3));
    ours(client.shutdown(fd, libc::SHUT_WR)).unwrap();
    assert_eq!(receive(&server, there, &mut got, 0), Ok(0));
    // The server's sockets vanish, as at exit(2).
    drop(server);
    assert_eq!(receive(&client, fd, &mut got, 0), Ok(0));
    close(&client, &[fd]);
    sys::close(there);
    sys::close(listener);
}

#[test]
fn nonblocking_calls_alone_detect_a_dead_agent() {
    let mut network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let fd = connect(&client, 0);
    let there = accept(&server, listener);
    network.kill(1);
    let start = Instant::now();
    let ended = loop {
        match receive(&server, there, &mut [0], libc::MSG_DONTWAIT) {
            Err(Errno::AGAIN) => thread::yield_now(),
            ended => break ended,
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert_eq!(ended, Err(Errno::CONNRESET));
    close(&client, &[fd]);
    close(&server, &[there, listener]);
}

#[test]
fn socket_bound_at_a_dead_agent_listens_at_the_next_one() {
    let mut network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let fd = socket();
    let own = SocketAddr::new(IpAddr::V4(ADDRESSES[1]), PORT);
    ours(server.bind(fd, encode(own, Family::V4).bytes())).unwrap();
    network.kill(1);
    assert_eq!(ours(server.listen(fd, 16)), Err(Errno::NETDOWN));
    network.start(1);
    ours(server.listen(fd, 16)).unwrap();
    let there = connect(&client, 0);
    let accepted = accept(&server, fd);
    close(&client, &[there]);
    close(&server, &[accepted, fd]);
}

#[test]
fn so_reuseport_shares_a_port_within_a_process_and_between_processes() {
    let network = Network::new();
    let (client, server, other) = (network.sockets(0), network.sockets(1), network.sockets(1));
    let own = SocketAddr::new(IpAddr::V4(ADDRESSES[1]), PORT);
    let listen = |sockets: &Sockets, reuses: bool| {
        let fd = socket();
        sockopt::set_socket_reuseport(sys::fd(fd), reuses).unwrap();
        ours(sockets.bind(fd, encode(own, Family::V4).bytes()))?;
        ours(sockets.listen(fd, 16)).map(|()| fd)
    };
    let listeners = [&server, &server, &other].map(|of| (of, listen(of, true).unwrap()));
    assert_eq!(listen(&server, false), Err(Errno::ADDRINUSE));
    assert_eq!(listen(&other, false), Err(Errno::ADDRINUSE));
    // All listeners wait, so they get connections in turn.
    for (sockets, fd) in listeners {
        let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        assert_eq!(sockets.poll(&mut polled, Some(Duration::ZERO), None), Ok(0));
    }
    let fds: Vec<c_int> = (0..6).map(|_| connect(&client, 0)).collect();
    for (sockets, listener) in listeners {
        let accepted = [accept(sockets, listener), accept(sockets, listener)];
        close(sockets, &accepted);
        close(sockets, &[listener]);
    }
    close(&client, &fds);
}

#[test]
fn held_bytes_are_sent_when_tcp_cork_is_cleared_or_after_200_ms() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let fd = connect(&client, 0);
    let there = accept(&server, listener);
    // Nagle's algorithm must not hold small segments back.
    sockopt::set_tcp_nodelay(sys::fd(fd), true).unwrap();
    client.option_was_set(fd);
    let cork = |is_on| {
        sockopt::set_tcp_cork(sys::fd(fd), is_on).unwrap();
        client.cork_was_set(fd);
    };
    let send_before_more = |bytes| ours(client.send(fd, &[IoSlice::new(bytes)], libc::MSG_MORE));
    let mut got = [0; 8];
    let start = Instant::now();
    assert_eq!(send_before_more(b"a"), Ok(1));
    // They are sent whatever the program does meanwhile; here it sleeps in poll(2).
    let short = Some(Duration::from_millis(1));
    let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    loop {
        let taken = receive(&server, there, &mut got, libc::MSG_DONTWAIT);
        if taken == Ok(1) {
            break;
        }
        assert_eq!(taken, Err(Errno::AGAIN));
        assert!(start.elapsed() < PATIENCE);
        client.poll(&mut polled, short, None).unwrap();
    }
    assert!(start.elapsed() >= Duration::from_millis(200));
    // The next bytes without MSG_MORE take the held ones with them.
    send_before_more(b"b").unwrap();
    send(&client, fd, b"c").unwrap();
    assert_eq!(receive(&server, there, &mut got[..2], libc::MSG_WAITALL), Ok(2));
    let start = Instant::now();
    cork(true);
    send(&client, fd, b"d").unwrap();
    send(&client, fd, b"e").unwrap();
    let early = receive(&server, there, &mut got, libc::MSG_DONTWAIT);
    assert!(early == Err(Errno::AGAIN) || start.elapsed() >= Duration::from_millis(200));
    let early = early.unwrap_or(0);
    if early < 2 {
        cork(false);
        let rest = receive(&server, there, &mut got[early..2], libc::MSG_WAITALL);
        assert_eq!(rest, Ok(2 - early));
    }
    assert_eq!(&got[..2], b"de");
    // The end of the stream is not held back, and follows all bytes.
    cork(true);
    send(&client, fd, b"f").unwrap();
    close(&client, &[fd]);
    assert_eq!(receive(&server, there, &mut got, libc::MSG_WAITALL), Ok(1));
    assert_eq!(receive(&server, there, &mut got, 0), Ok(0));
    close(&server, &[there, listener]);
}

#[test]
fn corked_bytes_are_sent_without_a_further_call_of_the_program() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let fd = connect(&client, 0);
    let there = accept(&server, listener);
    sockopt::set_tcp_cork(sys::fd(fd), true).unwrap();
    client.cork_was_set(fd);
    // Two full segments are sent at once; the agent sends the rest after a while.
    let bytes = [7; 4_000];
    assert_eq!(send(&client, fd, &bytes), Ok(4_000));
    let mut got = [0; 4_000];
    assert_eq!(receive(&server, there, &mut got, libc::MSG_WAITALL), Ok(4_000));
    assert_eq!(got, bytes);
    close(&client, &[fd]);
    close(&server, &[there, listener]);
}

/// The event that resets the connection arrives while the call waits for the agent's answer.
#[test]
fn tcp_info_is_answered_while_unwanted_bytes_reset_the_connection() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    for _ in 0..500 {
        let fd = connect(&client, 0);
        let there = accept(&server, listener);
        ours(client.shutdown(fd, libc::SHUT_RDWR)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| send(&server, there, b"unwanted").unwrap());
            let deadline = Instant::now() + PATIENCE;
            while ours(client.option(fd, libc::SOL_SOCKET, libc::SO_ERROR)) == Ok(vec![0; 4]) {
                let info = ours(client.option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)).unwrap();
                assert!(info.len() > 100);
                assert!(Instant::now() < deadline, "the connection was not reset");
            }
        });
        close(&client, &[fd]);
        close(&server, &[there]);
    }
    close(&server, &[listener]);
}

#[test]
fn tcp_maxseg_applies_to_future_connections() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let mss = |sockets: &Sockets, fd| {
        let value = ours(sockets.option(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG)).unwrap();
        c_int::from_ne_bytes(value.try_into().unwrap())
    };
    let listener = listener(&server, 1);
    // The timestamp option takes 12 bytes of the MSS.
    let first = connect(&client, 0);
    let whole = mss(&client, first);
    sys::set_mss_max(listener, 1_000);
    server.option_was_set(listener);
    let second = connect(&client, 0);
    assert_eq!(mss(&client, second), 988);
    let third = socket();
    sys::set_mss_max(third, 600);
    let remote = SocketAddr::new(IpAddr::V4(ADDRESSES[1]), PORT);
    ours(client.connect(third, encode(remote, Family::V4).bytes())).unwrap();
    assert_eq!(mss(&client, third), 588);
    let there = [(); 3].map(|()| accept(&server, listener));
    assert_eq!(there.map(|fd| mss(&server, fd)), [whole, 988, 588]);
    assert!(whole > 988, "{whole}");
    close(&client, &[first, second, third]);
    close(&server, &there);
    close(&server, &[listener]);
}

#[test]
fn shared_listener_accepts_from_the_agent_and_the_kernel() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let fd = socket();
    assert_eq!(
        server.bind(fd, encode("0.0.0.0:0".parse().unwrap(), Family::V4).bytes()),
        Verdict::Kernels
    );
    ours(server.listen(fd, 16)).unwrap();
    let name = rustix::net::getsockname(sys::fd(fd)).unwrap();
    let port = SocketAddr::try_from(name).unwrap().port();
    let by_agent = || {
        let client_fd = socket();
        let remote = SocketAddr::new(IpAddr::V4(ADDRESSES[1]), port);
        ours(client.connect(client_fd, encode(remote, Family::V4).bytes())).unwrap();
        client_fd
    };
    let select = || {
        let mut reads = vec![0_u64; fd as usize / 64 + 1];
        reads[fd as usize / 64] = 1 << (fd % 64);
        let sets = [Some(&mut reads[..]), None, None];
        server.select(fd as usize + 1, sets, Some(PATIENCE), None)
    };
    let poll = || {
        let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        server.poll(&mut polled, Some(PATIENCE), None)
    };
    for wait in [&select as &dyn Fn() -> Result<usize, Errno>, &poll] {
        let first = by_agent();
        assert_eq!(wait(), Ok(1));
        let accepted = accept(&server, fd);
        assert!(server.has(accepted));
        let local = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(wait(), Ok(1));
        let kernels = accept(&server, fd);
        assert!(!server.has(kernels));
        // accept(2) waits for both at once, although the program never set O_NONBLOCK.
        let waits = thread::scope(|scope| {
            let waits = scope.spawn(|| accept(&server, fd));
            let last = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            drop(last);
            waits.join().unwrap()
        });
        close(&server, &[accepted, kernels, waits]);
        close(&client, &[first]);
        drop(local);
    }
    assert_eq!(ours(server.is_nonblocking(fd)), Ok(false));
    close(&server, &[fd]);
}

#[test]
fn epoll_reports_room_level_and_edge_triggered() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let fd = connect(&client, 0);
    let there = accept(&server, listener);
    let bytes = vec![7; 1 << 20];
    for flags in [EventFlags::OUT, EventFlags::OUT | EventFlags::ET] {
        let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let number = set.as_raw_fd();
        let mut event = Event { flags, data: EventData::new_u64(1) };
        let add = libc::EPOLL_CTL_ADD;
        ours(client.epoll_control(number, add, fd, Some(event))).unwrap();
        let mut wait = |timeout| {
            let events = std::slice::from_mut(&mut event);
            ours(client.epoll_wait(number, events, Some(timeout), None)).unwrap()
        };
        assert_eq!(wait(PATIENCE), 1);
        // poll(2) reports no room below a third of the ring, so no write has to fail first.
        let has_room = || {
            let mut polled = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
            client.poll(&mut polled, Some(Duration::ZERO), None) == Ok(1)
        };
        let mut sent = 0;
        while has_room() {
            let part = [IoSlice::new(&bytes[..90_000])];
            sent += ours(client.send(fd, &part, libc::MSG_DONTWAIT)).unwrap();
        }
        let mut got = vec![0; sent];
        assert_eq!(receive(&server, there, &mut got, libc::MSG_WAITALL), Ok(sent));
        assert_eq!(wait(PATIENCE), 1);
        client.close(number).unwrap();
    }
    close(&client, &[fd]);
    close(&server, &[there, listener]);
}

#[test]
fn epoll_control_on_a_pipe_fails() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let fd = connect(&client, 0);
    let there = accept(&server, listener);
    let (reader, _writer) = std::io::pipe().unwrap();
    let event = Event { flags: EventFlags::IN, data: EventData::new_u64(1) };
    let add = libc::EPOLL_CTL_ADD;
    let added = client.epoll_control(reader.as_raw_fd(), add, fd, Some(event));
    // The kernel answers with EINVAL.
    assert!(!matches!(added, Verdict::Ours(Ok(_))), "{added:?}");
    close(&client, &[fd]);
    close(&server, &[there, listener]);
}

#[test]
fn epoll_set_holds_kernel_files_and_sockets_added_before_they_became_ours() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let number = set.as_raw_fd();
    let event = |flags, data| Event { flags, data: EventData::new_u64(data) };
    let control = |fd: c_int, flags, data| {
        let add = libc::EPOLL_CTL_ADD;
        match client.epoll_control(number, add, fd, Some(event(flags, data))) {
            Verdict::Ours(answer) => answer,
            Verdict::Kernels => epoll::add(&set, sys::fd(fd), EventData::new_u64(data), flags),
        }
        .unwrap();
    };
    let (reading, writing) = std::io::pipe().unwrap();
    control(reading.as_raw_fd(), EventFlags::IN, 1);
    // The socket is added before it is connected, and thus before it is ours.
    let early = socket();
    control(early, EventFlags::IN | EventFlags::ET, 2);
    let remote = SocketAddr::new(IpAddr::V4(ADDRESSES[1]), PORT);
    ours(client.connect(early, encode(remote, Family::V4).bytes())).unwrap();
    let there = accept(&server, listener);
    let wait = |timeout| {
        let mut events = [event(EventFlags::empty(), 0); 8];
        let count = ours(client.epoll_wait(number, &mut events, Some(timeout), None)).unwrap();
        events[..count].iter().map(|event| event.data.u64()).collect::<Vec<_>>()
    };
    assert!(wait(Duration::ZERO).is_empty());
    send(&server, there, b"news").unwrap();
    assert_eq!(wait(PATIENCE), [2]);
    assert!(wait(Duration::ZERO).is_empty());
    rustix::io::write(&writing, b"x").unwrap();
    assert_eq!(wait(PATIENCE), [1]);
    close(&client, &[early]);
    rustix::io::read(&reading, &mut [0]).unwrap();
    assert!(wait(Duration::ZERO).is_empty());
    close(&server, &[there, listener]);
    client.close(number).unwrap();
}
