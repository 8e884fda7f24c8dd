//! Traffic between two wires in memory: checksums, segmentation of super-packets, and the adversary.

mod common;

use common::{Head, addresses, bytes, read_tcp, receive_all, tcp};
use proptest::prelude::*;
use wave_wires::{
    Adversity, Checksum, CsumPlace, Fates, Frame, Memory, Offload, PacketError, RawPart, Sent, Wire,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each segment is a separate TCP packet, and together they have the super-packet's bytes (RFC 9293 3.1).
    #[test]
    fn super_packets_are_cut_into_correct_segments(
        is_v6: bool,
        sequence: u32,
        flags: [bool; 3],
        payload_bytes in 1usize..20_000,
        segment_bytes in 1u16..1400,
        split in 0.0..1.0,
        id: u16,
        options in 0usize..=10,
    ) {
        let payload_bytes = payload_bytes.min(usize::from(segment_bytes) * 200);
        let mut header = tcp(sequence);
        [header.fin, header.psh, header.cwr] = flags;
        header.set_options_raw(&vec![1; options * 4]).unwrap();
        let (from, to) = addresses(is_v6);
        let mut head = Head::new(from, to, header, payload_bytes, 0);
        if !is_v6 {
            // Sets the identification, which invalidates the IP checksum: the wire sets that when it cuts.
            head.bytes[18..20].copy_from_slice(&id.to_be_bytes());
        }
        let payload = bytes(payload_bytes);
        let is_cut = payload_bytes > usize::from(segment_bytes);
        prop_assume!(is_cut);
        let (a, b) = payload.split_at((payload_bytes as f64 * split) as usize);
        let (mut ours, mut theirs) = Memory::pair(&Adversity::default());
        let parts = [RawPart::of(a), RawPart::of(b)];
        let sent = ours.send(&head.bytes, parts, head.offload(segment_bytes)).unwrap();
        prop_assert_eq!(sent, Sent::Taken);
        let frames = receive_all(&mut theirs);
        let count = payload_bytes.div_ceil(segment_bytes.into());
        prop_assert_eq!(frames.len(), count);
        let mut whole = Vec::new();
        for (number, (_, frame)) in frames.iter().enumerate() {
            let tcp = read_tcp(frame).unwrap();
            prop_assert_eq!(tcp.sequence_number(), sequence.wrapping_add(whole.len() as u32));
            prop_assert_eq!(tcp.cwr(), flags[2] && number == 0, "CWR goes with the first");
            let is_last = number + 1 == count;
            prop_assert_eq!([tcp.fin(), tcp.psh()], [flags[0] && is_last, flags[1] && is_last]);
            if !is_v6 {
                let expected = id.wrapping_add(number as u16);
                prop_assert_eq!(u16::from_be_bytes([frame[18], frame[19]]), expected);
            }
            prop_assert!(is_last || tcp.payload().len() == usize::from(segment_bytes));
            whole.extend_from_slice(tcp.payload());
        }
        prop_assert_eq!(whole, payload);
    }

    #[test]
    fn checksums_are_completed(is_v6: bool, sequence: u32, payload in prop::collection::vec(any::<u8>(), 0..1300)) {
        let (from, to) = addresses(is_v6);
        let head = Head::new(from, to, tcp(sequence), payload.len(), 0);
        let (mut ours, mut theirs) = Memory::pair(&Adversity::default());
        // A packet of one segment is not cut, with or without `segment_bytes`.
        for segment_bytes in [0, 1300] {
            prop_assert_eq!(head.send(&mut ours, &payload, segment_bytes), Sent::Taken);
            let frame = theirs.receive().unwrap().unwrap();
            prop_assert_eq!(read_tcp(&frame).unwrap().payload(), &payload[..]);
        }
        // A receiver that forwards a frame completes a checksum that its kernel left to it.
        let mut frame = Frame::copied_from(&[&head.bytes[..], &payload].concat());
        frame.partial = Some(head.place);
        frame.complete_checksum();
        prop_assert_eq!(read_tcp(&frame).unwrap().payload(), &payload[..]);
    }
}

#[test]
fn packets_that_do_not_fit_are_refused() {
    let (mut ours, theirs) = Memory::pair(&Adversity { gso_bytes: 30_000, ..Adversity::default() });
    let (from, to) = addresses(false);
    let payload = bytes(65_536);
    let mut error = |head: &[u8], payload_bytes: usize, offload: Offload| {
        let parts = [RawPart::of(&payload[..payload_bytes]), RawPart::EMPTY];
        let error = ours.send(head, parts, offload).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        *error.get_ref().unwrap().downcast_ref::<PacketError>().unwrap()
    };
    let head = Head::new(from, to, tcp(1), 0, 0);
    let plain = Offload::default();
    assert_eq!(error(&head.bytes[..13], 0, plain), PacketError::Short(13));
    let long = PacketError::Long { bytes: 1501, most: 1500 };
    assert_eq!(error(&head.bytes, 1461, head.offload(0)), long);
    assert_eq!(error(&head.bytes, 3000, head.offload(1461)), long);
    let long = PacketError::Long { bytes: 30_001, most: 30_000 };
    assert_eq!(error(&head.bytes, 29_961, head.offload(1000)), long);
    let outside = Some(CsumPlace { start: 34, offset: 19 });
    let outside = Offload { segment_bytes: 0, checksum: outside };
    assert_eq!(error(&head.bytes, 10, outside), PacketError::Place(54));
    let unsummed = Offload { segment_bytes: 1000, checksum: None };
    assert_eq!(error(&head.bytes, 3000, unsummed), PacketError::Uncuttable);
    let udp = Some(CsumPlace { start: 34, offset: 6 });
    let udp = Offload { segment_bytes: 1000, checksum: udp };
    assert_eq!(error(&head.bytes, 3000, udp), PacketError::Uncuttable);
    let mut arp = head.bytes.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(error(&arp, 3000, head.offload(1000)), PacketError::Uncuttable);
    assert_eq!(theirs.due(), None, "nothing was sent");
    assert_eq!(ours.counters().sent.frames, 0);
}

/// Sends 40 super-packets of five segments each, one every 10 us.
fn send_some(wire: &mut Memory, ecn: u8) {
    let (from, to) = addresses(false);
    let payload = bytes(5000);
    for number in 0..40 {
        let head = Head::new(from, to, tcp(number * 5000), payload.len(), ecn);
        wire.advance(u64::from(number) * 10_000);
        let _ = head.send(wire, &payload, 1000);
    }
}

fn deliveries(adversity: &Adversity) -> (Vec<(u64, Vec<u8>)>, Fates) {
    let (mut ours, mut theirs) = Memory::pair(adversity);
    send_some(&mut ours, 2);
    (receive_all(&mut theirs), ours.fates())
}

fn hostile(seed: u64) -> Adversity {
    Adversity {
        seed,
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        reorder_ns: 100_000,
        corrupt: 0.1,
        truncate: 0.1,
        ce_mark: 0.1,
        full: 0.1,
        delay_ns: 1_000..=50_000,
        rate_bits: 1_000_000_000,
        ..Adversity::default()
    }
}

#[test]
fn equal_seeds_give_equal_deliveries() {
    let (first, fates) = deliveries(&hostile(7));
    assert_eq!(deliveries(&hostile(7)), (first.clone(), fates));
    assert_ne!(deliveries(&hostile(8)).0, first);
    // Traffic from the other end does not change the deliveries.
    let (mut ours, mut theirs) = Memory::pair(&hostile(7));
    let (from, to) = addresses(false);
    for _ in 0..20 {
        let _ = Head::new(to, from, tcp(1), 100, 0).send(&mut theirs, &bytes(100), 0);
    }
    send_some(&mut ours, 2);
    let mut again = Vec::new();
    while let Some(due_ns) = theirs.due() {
        theirs.advance(due_ns);
        while let Some(frame) = theirs.receive().unwrap() {
            again.push(frame.to_vec());
        }
        while ours.receive().unwrap().is_some() {}
    }
    assert_eq!(again, first.into_iter().map(|(_, frame)| frame).collect::<Vec<_>>());
}

#[test]
fn every_segment_is_accounted_for() {
    for seed in 0..50 {
        let (frames, fates) = deliveries(&hostile(seed));
        let arrived = fates.segments - fates.lost - fates.overflowed + fates.duplicated;
        assert_eq!(frames.len() as u64, arrived, "seed {seed}: {fates:?}");
    }
    let (_, fates) = deliveries(&hostile(3));
    let Fates { lost, duplicated, reordered, corrupted, truncated, marked, .. } = fates;
    let each = [lost, duplicated, reordered, corrupted, truncated, marked];
    assert!(each.iter().all(|&count| count > 0), "{fates:?}");
}

#[test]
fn one_faults_probability_does_not_change_which_segments_others_hit() {
    let (without, _) = deliveries(&Adversity { corrupt: 0.0, ..hostile(5) });
    let (with, _) = deliveries(&Adversity { corrupt: 0.3, ..hostile(5) });
    let shape = |frames: &[(u64, Vec<u8>)]| {
        frames.iter().map(|(due_ns, frame)| (*due_ns, frame.len())).collect::<Vec<_>>()
    };
    assert_eq!(shape(&with), shape(&without));
    assert_ne!(with, without);
}

#[test]
fn segments_of_one_super_packet_are_lost_independently() {
    let (frames, fates) = deliveries(&Adversity { loss: 0.3, seed: 2, ..Adversity::default() });
    assert_eq!(frames.len() as u64, 200 - fates.lost);
    let firsts: std::collections::BTreeSet<u32> =
        frames.iter().map(|(_, frame)| read_tcp(frame).unwrap().sequence_number() / 5000).collect();
    assert!(firsts.len() > 35 && fates.lost > 40, "{} of 40, {fates:?}", firsts.len());
}

#[test]
fn every_corruption_is_detected_by_a_checksum() {
    let (frames, _) = deliveries(&Adversity { corrupt: 1.0, ..Adversity::default() });
    let (clean, _) = deliveries(&Adversity::default());
    assert_eq!(frames.len(), clean.len());
    for ((_, frame), (_, clean)) in frames.iter().zip(&clean) {
        let flipped: u32 = frame.iter().zip(clean).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!((1..=8).contains(&flipped), "{flipped} bits");
        // An Ethernet header has no checksum here.
        assert!(frame[..14] != clean[..14] || read_tcp(frame).is_err());
    }
}

#[test]
fn congestion_is_marked_only_for_ecn_capable_senders() {
    for (ecn, is_v6) in [(0, false), (1, false), (2, false), (0, true), (2, true)] {
        let adversity = Adversity { ce_mark: 1.0, ..Adversity::default() };
        let (mut ours, mut theirs) = Memory::pair(&adversity);
        let (from, to) = addresses(is_v6);
        let head = Head::new(from, to, tcp(1), 100, ecn);
        assert_eq!(head.send(&mut ours, &bytes(100), 0), Sent::Taken);
        let frame = theirs.receive().unwrap().unwrap();
        let seen = if is_v6 { frame[15] >> 4 } else { frame[15] } & 3;
        assert_eq!(seen, if ecn == 0 { 0 } else { 3 });
        read_tcp(&frame).unwrap();
        assert_eq!(ours.fates().marked, u64::from(ecn != 0));
    }
}

#[test]
fn bottleneck_delays_by_length_and_marks_by_backlog() {
    let adversity = Adversity {
        rate_bits: 1_000_000_000,
        delay_ns: 5_000..=5_000,
        ce_backlog_bytes: 2_500,
        ..Adversity::default()
    };
    let (mut ours, mut theirs) = Memory::pair(&adversity);
    let (from, to) = addresses(false);
    // 1,250 bytes take 10 us.
    let head = Head::new(from, to, tcp(1), 1196, 2);
    for _ in 0..5 {
        assert_eq!(head.send(&mut ours, &bytes(1196), 0), Sent::Taken);
    }
    assert!(theirs.receive().unwrap().is_none(), "the segment arrived too early");
    let frames = receive_all(&mut theirs);
    let times: Vec<u64> = frames.iter().map(|(due_ns, _)| *due_ns).collect();
    assert_eq!(times, [15_000, 25_000, 35_000, 45_000, 55_000]);
    let marks: Vec<bool> = frames.iter().map(|(_, frame)| frame[15] & 3 == 3).collect();
    assert_eq!(marks, [false, false, false, true, true]);
}

#[test]
fn only_reordered_segments_are_overtaken() {
    let order = |adversity: &Adversity| {
        let (frames, fates) = deliveries(adversity);
        let numbers: Vec<u32> =
            frames.iter().map(|(_, frame)| read_tcp(frame).unwrap().sequence_number()).collect();
        (numbers.is_sorted(), fates.reordered)
    };
    let jitter = Adversity { delay_ns: 0..=100_000, ..Adversity::default() };
    assert_eq!(order(&jitter), (true, 0));
    let (is_sorted, reordered) = order(&Adversity { reorder: 0.2, reorder_ns: 50_000, ..jitter });
    assert!(!is_sorted && reordered > 0);
}

#[test]
fn receiver_that_holds_all_buffers_starves_and_recovers() {
    let adversity = Adversity { frames_max: 2, ..Adversity::default() };
    let (mut ours, mut theirs) = Memory::pair(&adversity);
    let (from, to) = addresses(false);
    for number in 0..3 {
        let head = Head::new(from, to, tcp(number), 1, 0);
        assert_eq!(head.send(&mut ours, &[number as u8], 0), Sent::Taken);
    }
    let first = theirs.receive().unwrap().unwrap();
    let second = theirs.receive().unwrap().unwrap();
    assert_eq!((first.checksum, first.segment_bytes), (Checksum::Unknown, 0));
    assert!(theirs.receive().unwrap().is_none());
    assert_eq!(theirs.counters().dropped.starved, 1);
    drop(first);
    let third = theirs.receive().unwrap().unwrap();
    assert_eq!([second.last(), third.last()], [Some(&1), Some(&2)]);
    assert_eq!((theirs.counters().received.frames, theirs.counters().received.bytes), (3, 165));
}

#[test]
fn full_wires_and_queues_are_counted_by_cause() {
    let (mut ours, theirs) = Memory::pair(&Adversity { full: 1.0, ..Adversity::default() });
    let (from, to) = addresses(false);
    let head = Head::new(from, to, tcp(1), 5000, 0);
    assert_eq!(head.send(&mut ours, &bytes(5000), 1000), Sent::Full);
    assert_eq!((ours.counters().dropped.full, theirs.due()), (1, None));
    let (mut ours, mut theirs) =
        Memory::pair(&Adversity { segments_max: 3, ..Adversity::default() });
    assert_eq!(head.send(&mut ours, &bytes(5000), 1000), Sent::Taken);
    assert_eq!((ours.fates().overflowed, receive_all(&mut theirs).len()), (2, 3));
}
