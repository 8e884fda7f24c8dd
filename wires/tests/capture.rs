//! Captures, read back by an independent implementation.

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Head, addresses, bytes, read_tcp, tcp};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use wave_wires::{Adversity, Capture, CaptureOptions, Filter, Memory, Sent, Wire};

/// An output that outlives its capture.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Captured {
    time: Duration,
    flags: u32,
    original_bytes: u32,
    frame: Vec<u8>,
}

fn read(output: &Shared) -> Vec<Captured> {
    let bytes = output.0.lock().unwrap().clone();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            let [EnhancedPacketOption::Flags(flags)] = packet.options[..] else {
                panic!("{:?}", packet.options);
            };
            frames.push(Captured {
                time: packet.timestamp,
                flags,
                original_bytes: packet.original_len,
                frame: packet.data.to_vec(),
            });
        }
    }
    let options = &reader.interfaces()[0].options;
    assert!(options.contains(&InterfaceDescriptionOption::IfTsResol(9)), "{options:?}");
    assert!(options.contains(&InterfaceDescriptionOption::IfName("wave".into())), "{options:?}");
    frames
}

/// A capture of the first of two wires. Its clock starts at a second and counts frames.
fn capture(options: &CaptureOptions) -> (Capture<Memory>, Memory, Shared) {
    let (ours, theirs) = Memory::pair(&Adversity::default());
    let output = Shared::default();
    let mut time_ns = 5_000_000_000;
    let clock = Box::new(move || {
        time_ns += 1;
        time_ns
    });
    let capture = Capture::new(ours, Box::new(output.clone()), options, clock).unwrap();
    (capture, theirs, output)
}

#[test]
fn frames_of_both_directions_are_written_with_complete_checksums() {
    let (mut ours, mut theirs, output) = capture(&CaptureOptions::default());
    let (from, to) = addresses(false);
    let payload = bytes(9_001);
    let head = Head::new(from, to, tcp(1), payload.len(), 0);
    assert_eq!(head.send(&mut ours, &payload, 1400), Sent::Taken);
    let answer = Head::new(to, from, tcp(1), 3, 0);
    assert_eq!(answer.send(&mut theirs, b"yes", 0), Sent::Taken);
    let received = ours.receive().unwrap().unwrap().to_vec();
    assert_eq!(ours.frames(), 2);
    ours.finish().unwrap();
    let frames = read(&output);
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[0].time, Duration::new(5, 1));
    assert_eq!([frames[0].flags, frames[1].flags], [2, 1]);
    // The super-packet is recorded whole, although no cable would carry it so.
    assert_eq!(read_tcp(&frames[0].frame).unwrap().payload(), payload);
    assert_eq!(frames[1].frame, received);
}

#[test]
fn filters_select_frames_by_host_and_port() {
    let (from, to) = addresses(false);
    let [v4, v6] = [false, true].map(|is_v6| {
        let (from, to) = addresses(is_v6);
        Head::new(from, to, tcp(1), 0, 0).bytes
    });
    let host = |host| Filter { host: Some(host), port: None };
    let port = |port| Filter { host: None, port: Some(port) };
    let arp = {
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        arp[28..32].copy_from_slice(&[10, 77, 0, 2]);
        arp
    };
    assert!(Filter::default().matches(&[1; 20]));
    for host in [from, to].map(host) {
        assert!(host.matches(&v4) && !host.matches(&v6));
    }
    assert!(host(from).matches(&arp) && !host(to).matches(&arp) && !port(4000).matches(&arp));
    assert!(host(addresses(true).0).matches(&v6));
    assert!(!host("10.77.0.3".parse().unwrap()).matches(&v4));
    for frame in [&v4, &v6] {
        assert!(port(4000).matches(frame) && port(5000).matches(frame) && !port(80).matches(frame));
    }
    assert!(!Filter { host: Some(from), port: Some(80) }.matches(&v4));
    for end in 0..v4.len() {
        // A frame of any length must not panic.
        let _ = (port(80).matches(&v4[..end]), host(from).matches(&v4[..end]));
    }
    let options = CaptureOptions { filter: port(80), ..CaptureOptions::default() };
    let (mut ours, _theirs, output) = capture(&options);
    assert_eq!(Head::new(from, to, tcp(1), 0, 0).send(&mut ours, &[], 0), Sent::Taken);
    assert_eq!(read(&output), []);
}

#[test]
fn captures_are_bounded_and_the_wire_continues() {
    let options = CaptureOptions { snap_bytes: 60, bytes_max: 260, ..CaptureOptions::default() };
    let (mut ours, mut theirs, output) = capture(&options);
    let (from, to) = addresses(false);
    for _ in 0..3 {
        let head = Head::new(from, to, tcp(1), 100, 0);
        assert_eq!(head.send(&mut ours, &bytes(100), 0), Sent::Taken);
        assert!(theirs.receive().unwrap().is_some());
    }
    assert_eq!(ours.ended().map(io::Error::kind), Some(io::ErrorKind::StorageFull));
    let frames = read(&output);
    assert_eq!(frames.len() as u64, ours.frames());
    assert!((1..3).contains(&frames.len()));
    assert_eq!((frames[0].frame.len(), frames[0].original_bytes), (60, 154));
}
