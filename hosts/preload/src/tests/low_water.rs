//! SO_RCVLOWAT: calls that wait, listeners, and marks that can never be reached.

use std::ffi::c_int;
use std::thread;
use std::time::Duration;

use super::agents::Network;
use super::blocking::{accept, close, connect, listener, receive, send};
use crate::sockets::Sockets;
use crate::sys;

fn set(sockets: &Sockets, fd: c_int, bytes: usize) {
    sys::set_low_water(sys::fd(fd), bytes);
    sockets.low_water_was_set(fd);
}

fn is_readable(sockets: &Sockets, fd: c_int, timeout: Option<Duration>) -> bool {
    let mut entry = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    sockets.poll(&mut entry, timeout, None).unwrap() > 0
}

#[test]
fn connections_inherit_their_listeners_low_water_mark_and_receivers_wait_for_it() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    set(&server, listener, 1_000);
    let far = connect(&client, 0);
    let near = accept(&server, listener);
    assert_eq!(sys::low_water(sys::fd(near)), 1_000);
    thread::scope(|scope| {
        let waits = scope.spawn(|| receive(&server, near, &mut [0; 5_000], 0));
        // The receiver may sleep or not: it takes all four in either case.
        for _ in 0..4 {
            send(&client, far, &[1; 250]).unwrap();
        }
        assert_eq!(waits.join().unwrap(), Ok(1_000));
    });
    send(&client, far, &[1; 999]).unwrap();
    // Without waiting, fewer bytes are received.
    while receive(&server, near, &mut [0; 5_000], libc::MSG_DONTWAIT | libc::MSG_PEEK) != Ok(999) {
        thread::yield_now();
    }
    assert!(!is_readable(&server, near, Some(Duration::ZERO)));
    // The end of the stream is reported whatever has arrived.
    close(&client, &[far]);
    assert!(is_readable(&server, near, None));
    assert_eq!(receive(&server, near, &mut [0; 5_000], 0), Ok(999));
    assert_eq!(receive(&server, near, &mut [0; 5_000], 0), Ok(0));
    close(&server, &[near, listener]);
}

#[test]
fn low_water_mark_beyond_the_ring_is_reached_when_the_ring_is_full() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let listener = listener(&server, 1);
    let far = connect(&client, 0);
    let near = accept(&server, listener);
    set(&server, near, 2 << 20);
    // As much as both rings take.
    assert_eq!(send(&client, far, &vec![7; 4 << 20]), Ok(4 << 20));
    assert!(is_readable(&server, near, None));
    let there = server.ioctl(near, libc::FIONREAD);
    let crate::sockets::Verdict::Ours(Ok(there)) = there else { panic!("{there:?}") };
    assert!(there > 1_000_000, "{there}");
    // A receiver gets as many bytes as the mark says, since it empties the ring.
    let mut bytes = vec![0; 3 << 20];
    let count = receive(&server, near, &mut bytes, 0).unwrap();
    assert!(count >= 2 << 20 && bytes[..count].iter().all(|byte| *byte == 7), "{count}");
    close(&client, &[far]);
    close(&server, &[near, listener]);
}
