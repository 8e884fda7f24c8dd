//! Real TAP devices, each test in its own network namespace (network_namespaces(7)), which vanishes with its thread: the
//! machine's own interfaces are not touched. Needs root.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::{Head, addresses, bytes, read_tcp};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, Icmpv4Slice, Icmpv4Type, LinkSlice,
    NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use wave_wires::{
    Checksum, Frame, MTU_MIN, Offload, RawPart, Sent, Tap, TapError, TapOptions, Wire,
};

/// Timeout of the tests, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Linux chooses the lowest free number, which is 0 in an empty network namespace.
const PATTERN: &str = "wavetest%d";

/// Bytes of a segment for a peer that announced no maximum (RFC 9293 3.7.1).
const DEFAULT_MSS: u16 = 536;

/// Runs a test in an empty network namespace, or skips it.
fn in_a_network(test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return wave_skip::skip("creating TAP devices needs root");
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return wave_skip::skip(format!("/dev/net/tun: {error}"));
    }
    let thread = std::thread::spawn(|| {
        own_network()?;
        test();
        std::io::Result::Ok(())
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => wave_skip::skip(format!("cannot create a network namespace: {error}")),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Moves the calling thread into an empty network namespace, with a `/sys` that shows it.
fn own_network() -> std::io::Result<()> {
    // SAFETY: only this thread moves, and it has nothing open in the namespace that it leaves.
    if unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None::<&std::ffi::CStr>)?;
    Ok(())
}

fn open() -> Tap {
    Tap::open(&TapOptions::new(PATTERN)).unwrap()
}

/// Opens a TAP device, and configures Linux's end with the test's peer address.
fn configured() -> Tap {
    let mut tap = open();
    tap.configure(addresses(false).1, 24, 1500).unwrap();
    tap
}

fn send(tap: &mut Tap, frame: &[u8]) {
    let parts = [RawPart::EMPTY; 2];
    assert_eq!(tap.send(frame, parts, Offload::default()).unwrap(), Sent::Taken);
}

fn v4(address: IpAddr) -> [u8; 4] {
    let IpAddr::V4(address) = address else { panic!("{address}") };
    address.octets()
}

fn arp(tap: &Tap, operation: ArpOperation, to: [u8; 6]) -> Vec<u8> {
    let (ours, theirs) = addresses(false);
    let mac = tap.limits().mac;
    let (hardware, protocol) = (ArpHardwareId::ETHERNET, EtherType::IPV4);
    let packet =
        ArpPacket::new(hardware, protocol, operation, &mac, &v4(ours), &to, &v4(theirs)).unwrap();
    let mut frame = Vec::new();
    let link = if operation == ArpOperation::REQUEST { [0xff; 6] } else { to };
    PacketBuilder::ethernet2(mac, link).arp(packet).write(&mut frame).unwrap();
    frame
}

/// Receives frames until `wanted` returns a result. Answers Linux's ARP requests for our Ethernet address meanwhile.
fn next<T>(tap: &mut Tap, mut wanted: impl FnMut(&Frame) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        assert!(
            start.elapsed() < PATIENCE,
            "the expected frame did not arrive: {:?}",
            tap.counters()
        );
        let Some(frame) = tap.receive().unwrap() else {
            let fd = tap.as_fd().unwrap();
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&second)).unwrap();
            continue;
        };
        if let Some(found) = wanted(&frame) {
            return found;
        }
        if let Ok(SlicedPacket { net: Some(NetSlice::Arp(question)), .. }) =
            SlicedPacket::from_ethernet(&frame)
            && question.operation() == ArpOperation::REQUEST
        {
            let asker = question.sender_hw_addr().try_into().unwrap();
            let answer = arp(tap, ArpOperation::REPLY, asker);
            send(tap, &answer);
        }
    }
}

/// Asks for Linux's Ethernet address, by ARP. From then on, Linux knows ours.
fn ask(tap: &mut Tap) -> [u8; 6] {
    let question = arp(tap, ArpOperation::REQUEST, [0; 6]);
    send(tap, &question);
    next(tap, |frame| match SlicedPacket::from_ethernet(frame) {
        Ok(SlicedPacket { net: Some(NetSlice::Arp(answer)), .. })
            if answer.operation() == ArpOperation::REPLY =>
        {
            Some(answer.sender_hw_addr().try_into().unwrap())
        }
        _ => None,
    })
}

#[test]
fn linux_answers_arp_and_echo() {
    in_a_network(|| {
        let mut tap = configured();
        assert_eq!(tap.name().unwrap(), "wavetest0");
        assert!(tap.is_made());
        assert_eq!(tap.limits().mtu, 1500);
        let theirs = ask(&mut tap);
        assert_ne!(theirs, tap.limits().mac);
        let payload = bytes(1000);
        let (from, to) = addresses(false);
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(tap.limits().mac, theirs);
        let builder = builder.ipv4(v4(from), v4(to), 64).icmpv4_echo_request(7, 1);
        builder.write(&mut frame, &payload).unwrap();
        // Sent in three pieces, which Linux sees as one packet.
        let (head, rest) = frame.split_at(42);
        let (a, b) = rest.split_at(333);
        let parts = [RawPart::of(a), RawPart::of(b)];
        assert_eq!(tap.send(head, parts, Offload::default()).unwrap(), Sent::Taken);
        let answer = next(&mut tap, |frame| {
            let packet = SlicedPacket::from_ethernet(frame).ok()?;
            assert!(
                matches!(packet.link, Some(LinkSlice::Ethernet2(_))),
                "a virtio header is left in the frame"
            );
            let Some(TransportSlice::Icmpv4(icmp)) = packet.transport else { return None };
            let reply: Icmpv4Slice<'_> = icmp;
            matches!(reply.icmp_type(), Icmpv4Type::EchoReply(_)).then(|| reply.payload().to_vec())
        });
        assert_eq!(answer, payload);
        assert!(tap.counters().sent.frames >= 2 && tap.counters().received.frames >= 2);
    });
}

#[test]
fn super_packets_pass_whole_in_both_directions() {
    in_a_network(|| {
        let mut tap = configured();
        let theirs = ask(&mut tap);
        let (from, to) = addresses(false);
        let listener = TcpListener::bind((to, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let macs = [tap.limits().mac, theirs];
        let segment = |sequence: u32, acknowledges: Option<u32>, payload_bytes: usize| {
            let mut tcp = TcpHeader::new(4000, port, sequence, 65_535);
            tcp.syn = acknowledges.is_none();
            tcp.ack = acknowledges.is_some();
            tcp.psh = payload_bytes > 0;
            tcp.acknowledgment_number = acknowledges.unwrap_or(0);
            Head::between(macs, from, to, tcp, payload_bytes, 0)
        };
        assert_eq!(segment(99, None, 0).send(&mut tap, &[], 0), Sent::Taken);
        let (begin, window) = next(&mut tap, |frame| {
            let (mut whole, vouched) = (Frame::copied_from(frame), frame.checksum);
            whole.partial = frame.partial;
            whole.complete_checksum();
            let tcp = read_tcp(&whole).ok().filter(|tcp| tcp.syn() && tcp.ack())?;
            assert_eq!((tcp.acknowledgment_number(), vouched), (100, Checksum::Good));
            Some((tcp.sequence_number() + 1, usize::from(tcp.window_size())))
        });
        assert_eq!(segment(100, Some(begin), 0).send(&mut tap, &[], 0), Sent::Taken);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();

        // Into Linux: a packet socket that sees all frames sees one packet, and the program gets all its bytes.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let all = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(eth::ALL));
        let all = all.unwrap();
        let payload = bytes(window.min(65_535 - 40));
        assert!(payload.len() > 40_000, "a window of {window}");
        let head = segment(100, Some(begin), payload.len());
        assert_eq!(head.send(&mut tap, &payload, 1460), Sent::Taken);
        let mut got = vec![0; payload.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == payload);
        let mut longest = 0;
        let mut frame = vec![0; 70_000];
        while let Ok((bytes, _)) = recv(&all, &mut frame[..], RecvFlags::empty()) {
            longest = longest.max(bytes);
        }
        assert_eq!(longest, head.bytes.len() + payload.len());
        let ours = 100 + payload.len() as u32;

        // Out of Linux: packets longer than the MTU, whose checksums Linux has left to us.
        let answer = bytes(100_000);
        let copy = answer.clone();
        let writer = std::thread::spawn(move || stream.write_all(&copy).map(|()| stream));
        let mut got = Vec::new();
        let mut longest = 0;
        while got.len() < answer.len() {
            let new = next(&mut tap, |frame| {
                let mut whole = Frame::copied_from(frame);
                whole.partial = frame.partial;
                whole.complete_checksum();
                let tcp = read_tcp(&whole).ok().filter(|tcp| !tcp.payload().is_empty())?;
                let is_next = tcp.sequence_number() == begin + got.len() as u32;
                if is_next && frame.len() > 1514 {
                    assert_eq!(
                        (frame.checksum, frame.segment_bytes),
                        (Checksum::Good, DEFAULT_MSS)
                    );
                    longest = longest.max(frame.len());
                }
                Some(if is_next { tcp.payload().to_vec() } else { Vec::new() })
            });
            got.extend(new);
            let acknowledgement = segment(ours, Some(begin + got.len() as u32), 0);
            assert_eq!(acknowledgement.send(&mut tap, &[], 0), Sent::Taken);
        }
        assert!(got == answer);
        assert!(longest > 1514, "no super-packet was sent by Linux");
        drop(writer.join().unwrap().unwrap());
    });
}

#[test]
fn device_that_is_down_loses_frames() {
    in_a_network(|| {
        let mut tap = open();
        let frame = arp(&tap, ArpOperation::REQUEST, [0; 6]);
        let sent = tap.send(&frame, [RawPart::EMPTY; 2], Offload::default()).unwrap();
        assert_eq!((sent, tap.counters().dropped.down), (Sent::Lost, 1));
        assert!(tap.receive().unwrap().is_none());
    });
}

#[test]
fn frames_in_use_are_bounded() {
    in_a_network(|| {
        let options = TapOptions { frames: 1, ..TapOptions::new(PATTERN) };
        let mut tap = Tap::open(&options).unwrap();
        tap.configure(addresses(false).1, 24, 1500).unwrap();
        let question = arp(&tap, ArpOperation::REQUEST, [0; 6]);
        send(&mut tap, &question);
        let held = next(&mut tap, |frame| Some(Frame::copied_from(frame)));
        assert_eq!(
            tap.counters().dropped.starved,
            0,
            "the copied frame counted as the wire's: {}",
            held.len()
        );
        send(&mut tap, &question);
        let start = Instant::now();
        let held = loop {
            if let Some(frame) = tap.receive().unwrap() {
                break frame;
            }
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        };
        assert!(tap.receive().unwrap().is_none());
        assert_eq!(tap.counters().dropped.starved, 1);
        drop(held);
        send(&mut tap, &question);
        next(&mut tap, |_| Some(()));
    });
}

fn interfaces() -> String {
    fs::read_to_string("/proc/thread-self/net/dev").unwrap()
}

#[test]
fn only_persistent_devices_outlive_their_last_wire() {
    in_a_network(|| {
        let tap = open();
        assert!(interfaces().contains("wavetest0:"));
        drop(tap);
        assert!(!interfaces().contains("wavetest"));
        let persistent = TapOptions { persistent: true, ..TapOptions::new("wavetest7") };
        let mac = Tap::open(&persistent).unwrap().limits().mac;
        assert!(interfaces().contains("wavetest7:"));
        // A wire that attached to an existing device leaves it in place.
        let found = Tap::open(&TapOptions::new("wavetest7")).unwrap();
        assert_eq!((found.is_made(), found.limits().mac), (false, mac));
        drop(found);
        assert!(interfaces().contains("wavetest7:"));
    });
}

#[test]
fn configure_sets_linuxs_address_and_route() {
    in_a_network(|| {
        let mut tap = open();
        let (_, v6) = addresses(true);
        tap.configure(v6, 64, 1280).unwrap();
        assert_eq!(tap.limits().mtu, 1280);
        tap.configure(v6, 64, 9000).unwrap();
        assert_eq!(tap.limits().mtu, 9000);
        let list = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        assert!(list.contains("fd000000000000000000000000000001"), "{list}");
        for (prefix, mask) in [(24, "00FFFFFF"), (16, "0000FFFF")] {
            tap.configure(addresses(false).1, prefix, 1500).unwrap();
            let routes = fs::read_to_string("/proc/thread-self/net/route").unwrap();
            // 10.77.0.0, as a word in the machine's byte order.
            let route = if cfg!(target_endian = "little") { ["00004D0A", mask] } else { [""; 2] };
            assert!(route.iter().all(|word| routes.contains(word)), "{prefix}: {routes}");
        }
    });
}

#[test]
fn errors_name_the_cause_and_the_remedy() {
    in_a_network(|| {
        let mut tap = open();
        let (_, address) = addresses(false);
        let error = Tap::open(&TapOptions::new("wavetest0")).unwrap_err();
        assert!(matches!(&error, TapError::Busy { name } if name == "wavetest0"), "{error}");
        let error = Tap::open(&TapOptions::new("lo")).unwrap_err();
        assert!(matches!(error, TapError::NotATap { .. }), "{error}");
        let error = tap.configure(address, 24, 100).unwrap_err();
        assert!(matches!(error, TapError::Mtu { mtu: 100, least: MTU_MIN }), "{error}");
        let error = tap.configure(address, 33, 1500).unwrap_err();
        assert!(matches!(error, TapError::Prefix { prefix: 33, most: 32 }), "{error}");
        let one_queue =
            Tap::open(&TapOptions { multi_queue: true, ..TapOptions::new("wavetest0") });
        let error = one_queue.unwrap_err();
        assert!(matches!(error, TapError::Queues { multi_queue: false, .. }), "{error}");
        let persistent =
            |name: &str| TapOptions { persistent: true, ..TapOptions::new(name.to_owned()) };
        let own = |owner: u32, name: &str| {
            let made = Tap::open(&persistent(name)).unwrap();
            let fd = made.as_fd().unwrap().as_raw_fd();
            // SAFETY: no memory is involved.
            let set = unsafe { libc::ioctl(fd, libc::TUNSETOWNER, libc::c_ulong::from(owner)) };
            assert_eq!(set, 0);
        };
        own(4_321, "wavetest2");
        own(0, "wavetest3");
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        let error = Tap::open(&TapOptions::new("wavetest1")).unwrap_err();
        assert!(matches!(error, TapError::Privilege { .. }), "{error}");
        let error = tap.configure(address, 24, 1500).unwrap_err();
        assert!(matches!(error, TapError::Privilege { .. }), "{error}");
        assert!(error.to_string().contains("ip tuntap add dev wavetest0"), "{error}");
        let error = Tap::open(&TapOptions::new("wavetest2")).unwrap_err();
        assert!(matches!(error, TapError::AnotherUsers { uid: 4_321, .. }), "{error}");
        // The user for whom a device was created needs no privilege.
        assert!(!Tap::open(&TapOptions::new("wavetest3")).unwrap().is_made());
    });
}

#[test]
fn device_with_multiple_queues_has_a_wire_per_thread() {
    in_a_network(|| {
        let options = TapOptions { multi_queue: true, ..TapOptions::new("wavetest0") };
        let mut first = Tap::open(&options).unwrap();
        let second = Tap::open(&options).unwrap();
        assert_eq!([first.is_made(), second.is_made()], [true, false]);
        first.configure(addresses(false).1, 24, 1500).unwrap();
        assert_eq!(first.limits(), second.limits());
        // A wire may be opened in one thread and polled in another. Linux chooses the wire for each answer.
        let mut wires = [first, second];
        let question = arp(&wires[0], ArpOperation::REQUEST, [0; 6]);
        let thread = std::thread::spawn(move || {
            for sender in 0..2 {
                send(&mut wires[sender], &question);
                let start = Instant::now();
                let is_answer = |frame: Frame| frame[12..14] == [8, 6] && frame[21] == 2;
                while !wires.iter_mut().any(|wire| wire.receive().unwrap().is_some_and(is_answer)) {
                    assert!(start.elapsed() < PATIENCE);
                    std::thread::yield_now();
                }
            }
        });
        thread.join().unwrap();
    });
}
