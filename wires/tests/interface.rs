//! Real interfaces: one end of a veth pair in a network namespace of the test, the other in a second one with Linux's
//! stack. The machine's own interfaces are not touched. Needs root.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{Head, bytes, read_tcp};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, NetSlice, PacketBuilder, SlicedPacket,
    TcpHeader,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_wires::{
    Frame, Interface, InterfaceError, InterfaceOptions, MTU_MIN, Offload, RawPart, Sent, Wire,
};

/// Timeout of the tests, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
/// The kernel's addresses at our end of the cable and at the other end.
const KERNELS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

fn own_network() -> std::io::Result<()> {
    // SAFETY: only this thread moves, and it has nothing open in the namespace that it leaves.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Runs ip(8) in the calling thread's network namespace.
fn ip(line: &str) {
    let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {line}: {output:?}");
}

/// The thread at the other end of the cable, in its own network namespace.
struct Peer {
    works: mpsc::Sender<Box<dyn FnOnce() + Send>>,
}

impl Peer {
    /// Runs `work` on the peer's thread, after its present work.
    fn run(&self, work: impl FnOnce() + Send + 'static) {
        self.works.send(Box::new(work)).unwrap();
    }

    /// Runs `work` on the peer's thread, and waits for its result.
    fn get<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (says, hears) = mpsc::channel();
        self.run(move || drop(says.send(work())));
        hears.recv_timeout(PATIENCE).unwrap()
    }
}

/// Runs a test in a network namespace with one end of a cable, or skips it.
fn at_a_cable(test: impl FnOnce(&Peer) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return wave_skip::skip("network namespaces need root");
    }
    if Command::new("ip").arg("-V").output().is_err() {
        return wave_skip::skip("ip(8) is not installed: apt-get install iproute2");
    }
    let thread = std::thread::spawn(move || {
        own_network()?;
        let (works, wanted) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (says, hears) = mpsc::channel();
        let peer = std::thread::spawn(move || {
            let _ = says.send(own_network().map(|()| rustix::thread::gettid().as_raw_nonzero()));
            wanted.into_iter().for_each(|work| work());
        });
        let tid = hears.recv().expect("the thread sends its result before it ends")?;
        ip(&format!("link add wavetest0 type veth peer name wavetest1 netns {tid}"));
        ip(&format!("address add {KERNELS}/24 dev wavetest0"));
        ip("link set wavetest0 up");
        let there = Peer { works };
        there.get(|| {
            ip(&format!("address add {THEIRS}/24 dev wavetest1"));
            ip("link set wavetest1 up");
        });
        test(&there);
        drop(there);
        peer.join().unwrap();
        std::io::Result::Ok(())
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => wave_skip::skip(format!("cannot create a network namespace: {error}")),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn open() -> Interface {
    Interface::open(&InterfaceOptions::new("wavetest0", OURS)).unwrap()
}

fn send(wire: &mut Interface, frame: &[u8]) {
    let parts = [RawPart::EMPTY; 2];
    assert_eq!(wire.send(frame, parts, Offload::default()).unwrap(), Sent::Taken);
}

fn arp(wire: &Interface, operation: ArpOperation, to: [u8; 6]) -> Vec<u8> {
    let mac = wire.limits().mac;
    let (hardware, protocol) = (ArpHardwareId::ETHERNET, EtherType::IPV4);
    let (ours, theirs) = (OURS.octets(), THEIRS.octets());
    let packet = ArpPacket::new(hardware, protocol, operation, &mac, &ours, &to, &theirs).unwrap();
    let mut frame = Vec::new();
    let link = if operation == ArpOperation::REQUEST { [0xff; 6] } else { to };
    PacketBuilder::ethernet2(mac, link).arp(packet).write(&mut frame).unwrap();
    frame
}

/// Receives frames until `wanted` returns a result. Answers ARP requests for our Ethernet address meanwhile.
fn next<T>(wire: &mut Interface, mut wanted: impl FnMut(&Frame) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        assert!(
            start.elapsed() < PATIENCE,
            "the expected frame did not arrive: {:?}",
            wire.counters()
        );
        let Some(frame) = wire.receive().unwrap() else {
            let fd = wire.as_fd().unwrap();
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
            && question.target_protocol_addr() == OURS.octets()
        {
            let asker = question.sender_hw_addr().try_into().unwrap();
            let answer = arp(wire, ArpOperation::REPLY, asker);
            send(wire, &answer);
        }
    }
}

/// Asks for the Ethernet address of the other end, by ARP.
fn ask(wire: &mut Interface) -> [u8; 6] {
    let question = arp(wire, ArpOperation::REQUEST, [0; 6]);
    send(wire, &question);
    next(wire, |frame| match SlicedPacket::from_ethernet(frame) {
        Ok(SlicedPacket { net: Some(NetSlice::Arp(answer)), .. })
            if answer.operation() == ArpOperation::REPLY =>
        {
            Some(answer.sender_hw_addr().try_into().unwrap())
        }
        _ => None,
    })
}

/// A copy of a frame, with its checksum completed.
fn whole(frame: &Frame) -> Frame {
    let mut whole = Frame::copied_from(frame);
    whole.partial = frame.partial;
    whole.complete_checksum();
    whole
}

#[test]
fn super_packets_pass_whole_in_both_directions() {
    at_a_cable(|peer| {
        let mut wire = open();
        assert_eq!(wire.limits().mtu, 1500);
        let theirs = ask(&mut wire);
        let (says, hears) = mpsc::channel();
        peer.run(move || {
            let listener = TcpListener::bind((THEIRS, 0)).unwrap();
            says.send(listener.local_addr().unwrap().port()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            let mut got = vec![0; 60_000];
            stream.read_exact(&mut got).unwrap();
            assert!(got == bytes(60_000));
            stream.write_all(&bytes(100_000)).unwrap();
        });
        let port = hears.recv_timeout(PATIENCE).unwrap();
        let macs = [wire.limits().mac, theirs];
        let (from, to) = (IpAddr::V4(OURS), IpAddr::V4(THEIRS));
        let segment = |sequence: u32, acknowledges: Option<u32>, payload_bytes: usize| {
            let mut tcp = TcpHeader::new(4000, port, sequence, 65_535);
            tcp.syn = acknowledges.is_none();
            tcp.ack = acknowledges.is_some();
            tcp.psh = payload_bytes > 0;
            tcp.acknowledgment_number = acknowledges.unwrap_or(0);
            Head::between(macs, from, to, tcp, payload_bytes, 0)
        };
        assert_eq!(segment(99, None, 0).send(&mut wire, &[], 0), Sent::Taken);
        let begin = next(&mut wire, |frame| {
            let whole = whole(frame);
            let tcp = read_tcp(&whole).ok().filter(|tcp| tcp.syn() && tcp.ack())?;
            Some(tcp.sequence_number() + 1)
        });
        assert_eq!(segment(100, Some(begin), 0).send(&mut wire, &[], 0), Sent::Taken);
        let payload = bytes(60_000);
        let head = segment(100, Some(begin), payload.len());
        assert_eq!(head.send(&mut wire, &payload, 1460), Sent::Taken);
        let ours = 100 + payload.len() as u32;
        let (mut got, mut longest) = (Vec::new(), 0);
        while got.len() < 100_000 {
            let new = next(&mut wire, |frame| {
                let whole = whole(frame);
                let tcp = read_tcp(&whole).ok().filter(|tcp| !tcp.payload().is_empty())?;
                let is_next = tcp.sequence_number() == begin + got.len() as u32;
                longest = longest.max(frame.len());
                Some(if is_next { tcp.payload().to_vec() } else { Vec::new() })
            });
            got.extend(new);
            let acknowledgement = segment(ours, Some(begin + got.len() as u32), 0);
            assert_eq!(acknowledgement.send(&mut wire, &[], 0), Sent::Taken);
        }
        assert!(got == bytes(100_000));
        assert!(longest > 1514, "no super-packet was received");
        assert!(wire.counters().sent.frames < 100, "{:?}", wire.counters());
    });
}

/// The kernel's stack at our end neither answers for us nor resets our connections.
#[test]
fn kernel_at_this_end_ignores_frames_to_our_address() {
    at_a_cable(|peer| {
        let mut wire = open();
        let (says, hears) = mpsc::channel();
        peer.run(move || {
            // Only this test answers, by a SYN-ACK. A reset from the kernel would end the connection at once.
            let stream = TcpStream::connect_timeout(&(OURS, 9).into(), PATIENCE);
            says.send(stream.map(|_| ()).map_err(|error| error.to_string())).unwrap();
        });
        let syn = next(&mut wire, |frame| {
            let whole = whole(frame);
            let tcp = read_tcp(&whole).ok().filter(|tcp| tcp.syn() && !tcp.ack())?;
            let theirs: [u8; 6] = frame[6..12].try_into().unwrap();
            assert_eq!(frame[..6], wire_mac(), "the frame is not for our own Ethernet address");
            Some((theirs, tcp.source_port(), tcp.sequence_number()))
        });
        let (theirs, port, sequence) = syn;
        let mut tcp = TcpHeader::new(9, port, 1, 65_535);
        (tcp.syn, tcp.ack, tcp.acknowledgment_number) = (true, true, sequence + 1);
        let macs = [wire.limits().mac, theirs];
        let head = Head::between(macs, IpAddr::V4(OURS), IpAddr::V4(THEIRS), tcp, 0, 0);
        assert_eq!(head.send(&mut wire, &[], 0), Sent::Taken);
        assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), Ok(()));
        // Packets for the kernel's own address go to the kernel, and not to the wire.
        peer.get(|| {
            let refused = TcpStream::connect_timeout(&(KERNELS, 9).into(), PATIENCE);
            assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        });
        while let Some(frame) = wire.receive().unwrap() {
            let is_ip = frame[12..14] == [8, 0];
            assert!(!is_ip || frame[30..34] == OURS.octets(), "{frame:?}");
        }
    });
}

/// The Ethernet address of a wire that [`open`] opens in this thread's namespace.
fn wire_mac() -> [u8; 6] {
    open().limits().mac
}

#[test]
fn interface_that_is_down_loses_frames_and_its_deletion_is_an_error() {
    at_a_cable(|_| {
        let mut wire = open();
        let question = arp(&wire, ArpOperation::REQUEST, [0; 6]);
        ip("link set wavetest0 down");
        assert!(wire.receive().unwrap().is_none());
        let lost = wire.send(&question, [RawPart::EMPTY; 2], Offload::default()).unwrap();
        assert_eq!((lost, wire.counters().dropped.down), (Sent::Lost, 1));
        ip("link set wavetest0 up");
        ask(&mut wire);
        ip("link set wavetest0 down");
        assert!(wire.receive().unwrap().is_none());
        ip("link delete wavetest0");
        let error = wire.receive().unwrap_err();
        assert!(error.to_string().contains("wavetest0 was deleted"), "{error}");
        let parts = [RawPart::EMPTY; 2];
        assert!(wire.send(&question, parts, Offload::default()).is_err());
    });
}

#[test]
fn deletion_of_an_interface_that_is_up_is_an_error() {
    at_a_cable(|_| {
        let mut wire = open();
        ip("link delete wavetest0");
        let fd = wire.as_fd().unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        let error = wire.receive().unwrap_err();
        assert!(error.to_string().contains("wavetest0 was deleted"), "{error}");
    });
}

#[test]
fn errors_name_the_cause_and_the_remedy() {
    at_a_cable(|_| {
        let open = |name: &str| Interface::open(&InterfaceOptions::new(name, OURS)).unwrap_err();
        assert!(matches!(open("a/b"), InterfaceError::Name(_)));
        assert!(matches!(open("wavetest9"), InterfaceError::Missing { .. }));
        assert!(matches!(open("lo"), InterfaceError::NotEthernet { .. }));
        ip("link set wavetest0 mtu 100");
        let error = open("wavetest0");
        assert!(matches!(error, InterfaceError::Mtu { mtu: 100, .. }), "{error}");
        assert!(error.to_string().contains(&MTU_MIN.to_string()), "{error}");
        ip("link set wavetest0 mtu 1500 down");
        let error = open("wavetest0");
        assert!(matches!(error, InterfaceError::Down { .. }), "{error}");
        assert!(error.to_string().contains("ip link set dev wavetest0 up"), "{error}");
        ip("link set wavetest0 up");
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_RAW);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = open("wavetest0");
        assert!(matches!(error, InterfaceError::Privilege { .. }), "{error}");
    });
}
