//! Hostile senders.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use wave_agent::ThreadFront;
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_udp::{Fate, UdpFront};
use wave_udp_client::CallError;
use wave_udp_client::wire::{HEADER_BYTES, Header, IDEMPOTENT, REPLY, Status};

use crate::fixture::{ECHO, Fixture, SetAtEnd, echo, options};

#[test]
fn bad_datagrams_are_counted_by_cause_and_good_ones_are_served() {
    let fixture = Fixture::new();
    let raw = fixture.raw();
    let good = raw.header(ECHO, 1).encode();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        bytes.to_vec()
    };
    let bad = [
        (Vec::new(), Fate::Short),
        (good[..HEADER_BYTES - 1].to_vec(), Fate::Short),
        (changed(0, b'x'), Fate::Magic),
        (changed(3, REPLY), Fate::Reply),
        (changed(2, 9), Fate::Version),
        // A wrong cookie, and a wrong incarnation.
        (changed(24, good[24] ^ 1), Fate::Unknown),
        (changed(16, good[16] ^ 1), Fate::Unknown),
    ];
    for (datagram, _) in &bad {
        raw.socket.send(datagram).unwrap();
    }
    let mut told: Vec<u8> = (0..3).map(|_| raw.reply().0.status).collect();
    told.sort_unstable();
    let unknown = Status::OUTCOME_UNKNOWN.0;
    assert_eq!(told, [Status::UNIMPLEMENTED.0, unknown, unknown]);
    assert_eq!(fixture.client().call(echo(b"good", false)).unwrap().message, b"good");
    assert_eq!(fixture.begun(), 1);
    let counts = fixture.leave();
    for (datagram, fate) in &bad {
        let same = bad.iter().filter(|(_, other)| other == fate).count() as u64;
        assert_eq!(counts.of(*fate), same, "{datagram:?}: {counts}");
    }
}

/// A stranger who forges another sender's address does not see its cookie.
#[test]
fn cookie_of_another_sender_is_rejected() {
    let fixture = Fixture::new();
    let (mine, theirs) = (fixture.raw(), fixture.raw());
    theirs.send(mine.header(ECHO, 5), b"stolen");
    assert_eq!(theirs.reply().0.status, Status::OUTCOME_UNKNOWN.0);
    theirs.send(Header { flags: IDEMPOTENT, ..mine.header(ECHO, 6) }, b"stolen");
    assert_eq!(theirs.reply().0.status, Status::CHALLENGE.0);
    assert_eq!(fixture.begun(), 0);
}

/// One sender fills its share; another sender is still served.
#[test]
fn flooding_sender_leaves_room_for_others() {
    const GOOD_CALLS: usize = 200;
    /// Four times what the host takes, and far less than the kernel's buffer, where all senders' datagrams wait.
    const BURST: u64 = 32;
    let fixture = Fixture::with(|options| {
        let mut options = options.workers(1);
        options.config.subjects = 8;
        options
    });
    let flood = fixture.raw();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (flood, is_over) = (&flood, &is_over);
        let _ends = SetAtEnd(is_over);
        scope.spawn(move || {
            flood.socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            let mut buffer = [0; 64];
            for id in 1.. {
                if is_over.load(SeqCst) {
                    break;
                }
                let header = flood.header(ECHO, id);
                let _ = flood.socket.send(&header.encode());
                if id % BURST == 0 {
                    (0..BURST).all(|_| flood.socket.recv(&mut buffer).is_ok());
                }
            }
        });
        let mut client = fixture.client();
        let mut refused = 0;
        let mut served = 0;
        while served < GOOD_CALLS {
            match client.call(echo(b"good", false)) {
                Ok(reply) => served += usize::from(reply.message == b"good"),
                Err(CallError::Refused { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(refused, 0, "the flood took all of the room");
    });
    let counts = fixture.leave();
    assert!(counts.of(Fate::Busy) > 0, "the flood did not reach its share: {counts}");
    assert!(counts.of(Fate::Begun) > GOOD_CALLS as u64, "{counts}");
}

/// Between two polls, the front looks after its host, its replies and its own end.
#[test]
fn poll_takes_a_bounded_part_of_a_flood() {
    /// Datagrams of one buffer, and of the buffers of one system call.
    const SEGMENTS: usize = 64;
    const BATCH: u64 = 32 * SEGMENTS as u64;
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder.path().join("host"), ([127, 0, 0, 1], 0).into());
    let mut front = UdpFront::new(options, Instant::now()).unwrap();
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    flood.connect(front.address()).unwrap();
    // The kernel splits the buffer into datagrams, and the front's socket gets them together.
    let buffer = Header::default().encode().repeat(SEGMENTS);
    let send = || {
        let length = HEADER_BYTES as u16;
        let split = [ControlMessage::UdpGsoSegments(&length)];
        let flags = MsgFlags::empty();
        sendmsg::<()>(flood.as_raw_fd(), &[IoSlice::new(&buffer)], &split, flags, None).unwrap()
    };
    for _ in 0..40 {
        send();
    }
    front.ender().end();
    let mut polls = 0;
    let mut received = 0;
    while received < 3 * BATCH / 2 {
        front.poll(Nanos(1_000_000 * polls), &mut Vec::new());
        polls += 1;
        let now = front.counts().of(Fate::Received);
        assert!(now - received <= BATCH, "{received}, then {now}");
        assert!(front.has_ended(), "a flood holds up the end");
        received = now;
        send();
    }
}
