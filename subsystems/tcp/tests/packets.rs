//! Frames built by etherparse are parsed, and our frames are parsed by etherparse, with equal fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::{
    ArpHardwareId, ArpOperation as TheirOperation, EtherType as TheirEtherType, Icmpv4Type,
    Icmpv6Type, IpNumber, Ipv6Extensions, Ipv6RawExtHeader, NetSlice, PacketBuilder, SlicedPacket,
    TcpOptionElement, TcpOptionsIterator, TransportSlice,
};
use proptest::prelude::*;
use wave_tcp::packet::{
    ArpOperation, ArpPacket, Cause, DISCOVERY_BYTES, Discovery, Ecn, EthernetView, Flags,
    ICMP_REPLY_HEADERS_BYTES, Icmp, Icmp6, OPTIONS_BYTES_MAX, Options, Parsed, TcpHeader,
    build_advertisement, build_arp, build_echo_reply, build_solicitation, build_tcp, checksum,
    parse, partial_checksum, syn_port,
};
use wave_tcp::seq::Seq;

fn mac() -> impl Strategy<Value = [u8; 6]> {
    any::<[u8; 6]>().prop_map(|mut mac| {
        mac[0] &= !1;
        mac
    })
}

fn host() -> impl Strategy<Value = Ipv4Addr> {
    (1_u8..=223, any::<[u8; 3]>())
        .prop_filter("not loopback", |(first, _)| *first != 127)
        .prop_map(|(first, [a, b, c])| Ipv4Addr::new(first, a, b, c))
}

fn host6() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(Ipv6Addr::from_bits).prop_filter("of one host", |host| {
        !host.is_multicast() && !host.is_loopback() && host.to_ipv4_mapped().is_none()
    })
}

/// Two ends of the same address family.
fn sockets() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    let hosts = prop_oneof![
        (host(), host()).prop_map(|(one, other)| (IpAddr::V4(one), IpAddr::V4(other))),
        (host6(), host6()).prop_map(|(one, other)| (IpAddr::V6(one), IpAddr::V6(other))),
    ];
    (hosts, any::<(u16, u16)>()).prop_map(|(hosts, ports)| {
        (SocketAddr::new(hosts.0, ports.0), SocketAddr::new(hosts.1, ports.1))
    })
}

fn ecn() -> impl Strategy<Value = Ecn> {
    prop::sample::select(vec![Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::Congestion])
}

prop_compose! {
    fn block()(first: u32, bytes in 1_u32..1 << 31) -> (Seq, Seq) {
        (Seq(first), Seq(first).plus(bytes))
    }
}

prop_compose! {
    /// Options of a SYN segment or of another one, as they are parsed back.
    fn options(is_syn: bool)(
        mss in prop::option::of(1_u16..),
        scale in prop::option::of(0_u8..=14),
        sack_permitted: bool,
        timestamps: Option<(u32, u32)>,
        blocks in prop::collection::vec(block(), 0..=4),
    ) -> Options {
        if is_syn {
            return Options { mss, scale, sack_permitted, timestamps, ..Options::default() };
        }
        let mut options = Options { timestamps, ..Options::default() };
        let room = if timestamps.is_some() { 3 } else { 4 };
        blocks.into_iter().take(room).for_each(|block| options.push_sack(block));
        options
    }
}

prop_compose! {
    fn ends()(macs in (mac(), mac()), sockets in sockets(), ecn in ecn(), ttl: u8) -> TcpHeader {
        TcpHeader {
            source_mac: macs.0,
            destination_mac: macs.1,
            source: sockets.0,
            destination: sockets.1,
            ecn,
            ttl,
            seq: Seq(0),
            ack: None,
            flags: Flags::NONE,
            window: 0,
            options: Options::default(),
        }
    }
}

prop_compose! {
    fn header()(
        ends in ends(),
        seq: u32,
        ack: Option<u32>,
        flags: u8,
        window: u16,
        syn in options(true),
        other in options(false),
    ) -> TcpHeader {
        // The urgent pointer is not written, and ACK follows from the acknowledgement number.
        let flags = Flags(flags).without(Flags::URG | Flags::ACK);
        let options = if flags.contains(Flags::SYN) { syn } else { other };
        let flags = if ack.is_some() { flags | Flags::ACK } else { flags };
        TcpHeader { seq: Seq(seq), ack: ack.map(Seq), flags, window, options, ..ends }
    }
}

/// The frame of a segment, with the checksum completed as by a wire.
fn frame(header: &TcpHeader, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 114];
    let len = build_tcp(&mut frame, header, payload.len() as u32);
    frame.truncate(len);
    frame.extend_from_slice(payload);
    let place = partial_checksum(&header.source);
    let start = usize::from(place.start);
    let at = start + usize::from(place.offset);
    let sum = checksum::sum(&frame[start..]);
    frame[at..at + 2].copy_from_slice(&(!sum).to_be_bytes());
    frame
}

/// etherparse's IP header of a segment, with options or extension headers.
fn their_ip(header: &TcpHeader) -> etherparse::IpHeaders {
    match (header.source.ip(), header.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let ip = etherparse::Ipv4Header {
                ecn: etherparse::IpEcn::try_new(header.ecn as u8).unwrap(),
                source: source.octets(),
                destination: destination.octets(),
                time_to_live: header.ttl,
                protocol: IpNumber::TCP,
                // No-operation and end of options.
                options: [1, 1, 1, 0].into(),
                ..etherparse::Ipv4Header::default()
            };
            etherparse::IpHeaders::Ipv4(ip, Default::default())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ip = etherparse::Ipv6Header {
                traffic_class: header.ecn as u8,
                source: source.octets(),
                destination: destination.octets(),
                hop_limit: header.ttl,
                next_header: IpNumber::IPV6_HEADER_HOP_BY_HOP,
                ..etherparse::Ipv6Header::default()
            };
            // A router alert, and padding.
            let options = |next| Ipv6RawExtHeader::new_raw(next, &[5, 2, 0, 0, 1, 0]).unwrap();
            let extensions = Ipv6Extensions {
                hop_by_hop_options: Some(options(IpNumber::IPV6_DESTINATION_OPTIONS)),
                destination_options: Some(options(IpNumber::TCP)),
                ..Ipv6Extensions::default()
            };
            etherparse::IpHeaders::Ipv6(ip, extensions)
        }
        _ => unreachable!("both ends have the same family"),
    }
}

/// The IP header of a message from a router to this host.
fn their_router(to: IpAddr) -> etherparse::IpHeaders {
    let length = 0;
    match to {
        IpAddr::V4(to) => {
            let ip =
                etherparse::Ipv4Header::new(length, 9, IpNumber::ICMP, [10, 0, 0, 1], to.octets());
            etherparse::IpHeaders::Ipv4(ip.unwrap(), Default::default())
        }
        IpAddr::V6(to) => {
            let ip = etherparse::Ipv6Header {
                source: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 9).octets(),
                destination: to.octets(),
                hop_limit: 9,
                next_header: IpNumber::IPV6_ICMP,
                ..etherparse::Ipv6Header::default()
            };
            etherparse::IpHeaders::Ipv6(ip, Default::default())
        }
    }
}

fn their_options(options: &Options, is_syn: bool) -> Vec<TcpOptionElement> {
    use TcpOptionElement::*;
    let timestamp = options.timestamps.map(|(value, echo)| Timestamp(value, echo));
    let mut list = Vec::new();
    if is_syn {
        list.extend(options.mss.map(MaximumSegmentSize));
        list.extend(options.sack_permitted.then_some(SelectiveAcknowledgementPermitted));
        list.extend(timestamp);
        list.extend(options.scale.map(WindowScale));
    } else {
        list.extend(timestamp);
        let pairs: Vec<_> = options.sack_blocks().iter().map(|(a, b)| (a.0, b.0)).collect();
        if let [first, rest @ ..] = &pairs[..] {
            let mut more = [None; 3];
            rest.iter().enumerate().for_each(|(index, pair)| more[index] = Some(*pair));
            list.push(SelectiveAcknowledgement(*first, more));
        }
    }
    list
}

fn expect_segment(frame: &[u8], header: &TcpHeader, payload: &[u8]) -> Result<(), TestCaseError> {
    let Ok(Parsed::Tcp { ethernet, ip, segment }) = parse(frame, false) else {
        return Err(TestCaseError::fail(format!("{:?}", parse(frame, false))));
    };
    prop_assert_eq!(
        (ethernet.source, ethernet.destination),
        (header.source_mac, header.destination_mac)
    );
    prop_assert_eq!(ip.source, header.source.ip());
    prop_assert_eq!(ip.destination, header.destination.ip());
    prop_assert_eq!((ip.ecn, ip.ttl), (header.ecn, header.ttl));
    prop_assert_eq!(segment.source_port, header.source.port());
    prop_assert_eq!(segment.destination_port, header.destination.port());
    prop_assert_eq!((segment.seq, segment.ack), (header.seq, header.ack));
    prop_assert_eq!((segment.flags, segment.window), (header.flags, header.window));
    prop_assert_eq!(segment.options, header.options);
    prop_assert_eq!(&frame[segment.payload.clone()], payload);
    let flag = |flag| u32::from(header.flags.contains(flag));
    prop_assert_eq!(
        segment.sequence_len(),
        payload.len() as u32 + flag(Flags::SYN) + flag(Flags::FIN)
    );
    Ok(())
}

proptest! {
    #[test]
    fn a_built_segment_is_parsed_by_etherparse_and_by_us(
        header in header(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        padding in 0_usize..20,
    ) {
        let mut frame = frame(&header, &payload);
        frame.resize(frame.len() + padding, 0xa5);
        expect_segment(&frame, &header, &payload)?;

        let packet = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
        prop_assert_eq!(tcp.payload(), &payload[..]);
        let ends = (header.source.ip(), header.destination.ip());
        match packet.net {
            Some(NetSlice::Ipv4(ip)) => {
                let ip = ip.header();
                prop_assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
                prop_assert_eq!((ip.dont_fragment(), ip.ttl()), (true, header.ttl));
                prop_assert_eq!((IpAddr::V4(ip.source_addr()), IpAddr::V4(ip.destination_addr())), ends);
                prop_assert_eq!(ip.ecn().value(), header.ecn as u8);
                prop_assert_eq!(tcp.calc_checksum_ipv4(ip.source(), ip.destination()).unwrap(), tcp.checksum());
            }
            Some(NetSlice::Ipv6(ip)) => {
                let ip = ip.header();
                prop_assert_eq!((IpAddr::V6(ip.source_addr()), IpAddr::V6(ip.destination_addr())), ends);
                prop_assert_eq!((ip.hop_limit(), ip.traffic_class()), (header.ttl, header.ecn as u8));
                prop_assert_eq!(tcp.calc_checksum_ipv6(ip.source(), ip.destination()).unwrap(), tcp.checksum());
            }
            _ => panic!("no IP"),
        }
        prop_assert_eq!(tcp.source_port(), header.source.port());
        prop_assert_eq!(tcp.destination_port(), header.destination.port());
        prop_assert_eq!(tcp.sequence_number(), header.seq.0);
        prop_assert_eq!(tcp.ack().then_some(Seq(tcp.acknowledgment_number())), header.ack);
        prop_assert_eq!(tcp.window_size(), header.window);
        let bits = [tcp.fin(), tcp.syn(), tcp.rst(), tcp.psh(), tcp.ack(), tcp.urg(), tcp.ece(), tcp.cwr()];
        let flags = bits.into_iter().enumerate().map(|(bit, set)| u8::from(set) << bit).sum();
        prop_assert_eq!(Flags(flags), header.flags);
        let list: Vec<_> = tcp
            .options_iterator()
            .map(Result::unwrap)
            .filter(|option| *option != TcpOptionElement::Noop)
            .collect();
        prop_assert_eq!(list, their_options(&header.options, header.flags.contains(Flags::SYN)));
    }

    #[test]
    fn a_segment_built_by_etherparse_is_parsed(
        header in header(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        vlan in prop::option::of(0_u16..4096),
    ) {
        let mut tcp = etherparse::TcpHeader {
            fin: header.flags.contains(Flags::FIN),
            syn: header.flags.contains(Flags::SYN),
            rst: header.flags.contains(Flags::RST),
            psh: header.flags.contains(Flags::PSH),
            ack: header.ack.is_some(),
            ece: header.flags.contains(Flags::ECE),
            cwr: header.flags.contains(Flags::CWR),
            acknowledgment_number: header.ack.unwrap_or_default().0,
            ..etherparse::TcpHeader::new(
                header.source.port(), header.destination.port(), header.seq.0, header.window,
            )
        };
        let is_syn = header.flags.contains(Flags::SYN);
        tcp.set_options(&their_options(&header.options, is_syn)).unwrap();
        let builder = PacketBuilder::ethernet2(header.source_mac, header.destination_mac);
        let ip = their_ip(&header);
        let mut frame = Vec::new();
        match vlan {
            Some(id) => builder.single_vlan(id.try_into().unwrap()).ip(ip),
            None => builder.ip(ip),
        }
        .tcp_header(tcp)
        .write(&mut frame, &payload)
        .unwrap();
        expect_segment(&frame, &header, &payload)?;
        let Ok(Parsed::Tcp { ethernet, .. }) = parse(&frame, false) else { panic!("not a segment") };
        prop_assert_eq!(ethernet.vlan, vlan);
        let asks = is_syn && header.ack.is_none();
        prop_assert_eq!(syn_port(&frame), asks.then(|| header.destination.port()));
    }

    #[test]
    fn arp_packets_are_parsed_in_both_directions(
        operation in prop::sample::select(vec![ArpOperation::Request, ArpOperation::Reply]),
        macs in (mac(), mac()),
        hosts in (host(), host()),
    ) {
        let packet = ArpPacket {
            operation,
            sender_mac: macs.0,
            sender: hosts.0,
            target_mac: macs.1,
            target: hosts.1,
        };
        let mut frame = [0; 42];
        build_arp(&mut frame, &packet);
        let Some(NetSlice::Arp(theirs)) = SlicedPacket::from_ethernet(&frame).unwrap().net else {
            panic!("no ARP")
        };
        prop_assert_eq!(theirs.hw_addr_type(), ArpHardwareId::ETHERNET);
        prop_assert_eq!(theirs.proto_addr_type(), TheirEtherType::IPV4);
        prop_assert_eq!(theirs.operation() == TheirOperation::REQUEST, operation == ArpOperation::Request);
        prop_assert_eq!((theirs.sender_hw_addr(), theirs.target_hw_addr()), (&macs.0[..], &macs.1[..]));
        prop_assert_eq!(theirs.sender_protocol_addr(), &hosts.0.octets()[..]);
        prop_assert_eq!(theirs.target_protocol_addr(), &hosts.1.octets()[..]);

        let mut again = Vec::new();
        PacketBuilder::ethernet2(macs.0, macs.1).arp(theirs.to_packet()).write(&mut again).unwrap();
        prop_assert_eq!(&again[..42], &frame[..]);
        prop_assert!(matches!(parse(&again, false), Ok(Parsed::Arp(_, read)) if read == packet));
    }

    #[test]
    fn an_echo_request_of_etherparse_is_answered(
        macs in (mac(), mac()),
        hosts in (host(), host()),
        numbers: (u16, u16),
        data in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut request = Vec::new();
        PacketBuilder::ethernet2(macs.0, macs.1)
            .ipv4(hosts.0.octets(), hosts.1.octets(), 9)
            .icmpv4_echo_request(numbers.0, numbers.1)
            .write(&mut request, &data)
            .unwrap();
        let Ok(Parsed::Icmp(ethernet, ip, Icmp::EchoRequest(echo))) = parse(&request, false) else {
            panic!("not an echo request")
        };
        prop_assert_eq!((echo.identifier, echo.sequence, echo.data), (numbers.0, numbers.1, &data[..]));
        let mut reply = vec![0; ICMP_REPLY_HEADERS_BYTES];
        let len = build_echo_reply(&mut reply, &ethernet, &ip, &echo);
        reply.truncate(len);
        reply.extend_from_slice(echo.data);
        prop_assert_eq!(reply.len(), request.len());

        let packet = SlicedPacket::from_ethernet(&reply).unwrap();
        let Some(TransportSlice::Icmpv4(theirs)) = packet.transport else { panic!("no ICMP") };
        let Icmpv4Type::EchoReply(header) = theirs.icmp_type() else { panic!("not an echo reply") };
        prop_assert_eq!((header.id, header.seq, theirs.payload()), (numbers.0, numbers.1, &data[..]));
        let Ok(Parsed::Icmp(EthernetView { source, destination, .. }, ip, Icmp::EchoReply(back))) =
            parse(&reply, false)
        else {
            panic!("not an echo reply")
        };
        prop_assert_eq!(back, echo);
        prop_assert_eq!((source, destination), (macs.1, macs.0));
        prop_assert_eq!((ip.source, ip.destination), (hosts.1, hosts.0));
    }

    #[test]
    fn an_ipv6_echo_request_of_etherparse_is_answered(
        macs in (mac(), mac()),
        hosts in (host6(), host6()),
        numbers: (u16, u16),
        data in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut request = Vec::new();
        PacketBuilder::ethernet2(macs.0, macs.1)
            .ipv6(hosts.0.octets(), hosts.1.octets(), 9)
            .icmpv6_echo_request(numbers.0, numbers.1)
            .write(&mut request, &data)
            .unwrap();
        let Ok(Parsed::Icmp6(ethernet, ip, Icmp6::EchoRequest(echo))) = parse(&request, false) else {
            panic!("not an echo request: {:?}", parse(&request, false))
        };
        prop_assert_eq!((echo.identifier, echo.sequence, echo.data), (numbers.0, numbers.1, &data[..]));
        let mut reply = vec![0; ICMP_REPLY_HEADERS_BYTES];
        let len = build_echo_reply(&mut reply, &ethernet, &ip, &echo);
        reply.truncate(len);
        reply.extend_from_slice(echo.data);
        prop_assert_eq!(reply.len(), request.len());

        let packet = SlicedPacket::from_ethernet(&reply).unwrap();
        let Some(TransportSlice::Icmpv6(theirs)) = packet.transport else { panic!("no ICMPv6") };
        prop_assert!(theirs.is_checksum_valid(hosts.1.octets(), hosts.0.octets()));
        let Icmpv6Type::EchoReply(header) = theirs.icmp_type() else { panic!("not an echo reply") };
        prop_assert_eq!((header.id, header.seq, theirs.payload()), (numbers.0, numbers.1, &data[..]));
        let Ok(Parsed::Icmp6(EthernetView { source, destination, .. }, ip, Icmp6::EchoReply(back))) =
            parse(&reply, false)
        else {
            panic!("not an echo reply")
        };
        prop_assert_eq!(back, echo);
        prop_assert_eq!((source, destination), (macs.1, macs.0));
        prop_assert_eq!((ip.source, ip.destination), (hosts.1, hosts.0));
    }

    #[test]
    fn neighbour_discovery_is_parsed_in_both_directions(
        macs in (mac(), mac()),
        hosts in (host6(), host6()),
    ) {
        let mut question = [0; DISCOVERY_BYTES];
        build_solicitation(&mut question, macs.0, hosts.0, hosts.1);
        let mut answer = [0; DISCOVERY_BYTES];
        build_advertisement(&mut answer, macs.1, hosts.1, (macs.0, hosts.0));
        for (frame, kind, from) in [(question, 135, hosts.0), (answer, 136, hosts.1)] {
            let packet = SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(NetSlice::Ipv6(ip)) = packet.net else { panic!("no IPv6") };
            let ip = ip.header();
            prop_assert_eq!((ip.source_addr(), ip.hop_limit()), (from, 255));
            let Some(TransportSlice::Icmpv6(theirs)) = packet.transport else { panic!("no ICMPv6") };
            prop_assert!(theirs.is_checksum_valid(ip.source(), ip.destination()));
            prop_assert_eq!((theirs.type_u8(), theirs.code_u8()), (kind, 0));
            // etherparse's builder makes the same frame from the same fields, and it is parsed.
            let mut again = Vec::new();
            let bytes5to8 = frame[58..62].try_into().unwrap();
            PacketBuilder::ethernet2(frame[6..12].try_into().unwrap(), frame[..6].try_into().unwrap())
                .ipv6(ip.source(), ip.destination(), 255)
                .icmpv6_raw(kind, 0, bytes5to8)
                .write(&mut again, &frame[62..])
                .unwrap();
            prop_assert_eq!(&again[..], &frame[..]);
        }
        let Ok(Parsed::Icmp6(_, _, Icmp6::Discovery(asked))) = parse(&question, false) else {
            panic!("not a solicitation")
        };
        prop_assert_eq!(asked, Discovery::Solicitation { target: hosts.1, mac: Some(macs.0) });
        let Ok(Parsed::Icmp6(_, ip, Icmp6::Discovery(told))) = parse(&answer, false) else {
            panic!("not an advertisement")
        };
        prop_assert_eq!(ip.destination, hosts.0);
        let mac = Some(macs.1);
        let expected = Discovery::Advertisement { target: hosts.1, mac, is_solicited: true, overrides: true };
        prop_assert_eq!(told, expected);
    }

    #[test]
    fn an_error_names_the_segment_that_it_quotes(header in header(), code in 0_u8..16, mtu: u16, quoted_bytes in 0_usize..80) {
        let segment = frame(&header, &[0; 100]);
        let datagram = &segment[14..];
        let datagram = &datagram[..quoted_bytes.min(datagram.len())];
        let mut error = Vec::new();
        let mut rest = [0; 4];
        rest[2..].copy_from_slice(&mtu.to_be_bytes());
        let builder = PacketBuilder::ethernet2(header.destination_mac, header.source_mac)
            .ip(their_router(header.source.ip()));
        let builder = match header.source {
            SocketAddr::V4(_) => builder.icmpv4_raw(3, code, rest).write(&mut error, datagram),
            SocketAddr::V6(_) => builder.icmpv6_raw(2, code, rest).write(&mut error, datagram),
        };
        builder.unwrap();
        let quoted = match parse(&error, false) {
            Ok(Parsed::Icmp(_, _, Icmp::Unreachable(read))) => {
                prop_assert_eq!(read.code, code);
                prop_assert_eq!(read.next_hop_mtu, (code == 4 && mtu != 0).then_some(mtu));
                prop_assert_eq!(read.quoted.is_some(), quoted_bytes >= 28);
                read.quoted
            }
            Ok(Parsed::Icmp6(_, _, Icmp6::TooBig { mtu: read, quoted })) => {
                prop_assert_eq!(read, u32::from(mtu));
                prop_assert_eq!(quoted.is_some(), quoted_bytes >= 48);
                quoted
            }
            other => panic!("not an ICMP error: {other:?}"),
        };
        if let Some(quoted) = quoted {
            prop_assert_eq!((quoted.source, quoted.destination), (header.source, header.destination));
            prop_assert_eq!(quoted.seq, header.seq);
        }
    }

    /// Random bytes, alone and after valid Ethernet and IPv4 headers, so that they reach all parsers.
    #[test]
    fn random_frames_never_panic(
        mut frame in prop::collection::vec(any::<u8>(), 0..150),
        kind in prop::sample::select(vec![[0x08, 0x00], [0x08, 0x06], [0x81, 0x00]]),
        protocol in prop::sample::select(vec![1, 6]),
        words in 5_u8..8,
        is_good: bool,
    ) {
        let _ = (parse(&frame, is_good), syn_port(&frame));
        let header = 14..14 + 4 * usize::from(words);
        if frame.len() >= header.end {
            let total = (frame.len() - 14) as u16;
            frame[12..14].copy_from_slice(&kind);
            frame[14] = 0x40 | words;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            frame[20..22].fill(0);
            frame[23] = protocol;
            frame[24..26].fill(0);
            let sum = checksum::sum(&frame[header.clone()]);
            frame[24..26].copy_from_slice(&(!sum).to_be_bytes());
            let asked = syn_port(&frame);
            if let Ok(Parsed::Tcp { segment, .. }) = parse(&frame, is_good) {
                let asks = segment.flags.contains(Flags::SYN) && segment.ack.is_none();
                prop_assert_eq!(asked, asks.then_some(segment.destination_port));
                prop_assert_eq!(segment.payload.end, frame.len());
                prop_assert!(segment.payload.start >= header.end + 20);
            }
        }
    }

    /// Random bytes after a valid IPv6 header, and after extension headers.
    #[test]
    fn random_ipv6_datagrams_never_panic(
        rest in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(vec![0, 1, 6, 43, 44, 58, 60])], 0..300),
        next in prop::sample::select(vec![0, 6, 43, 44, 51, 58, 60]),
        hop_limit in prop::sample::select(vec![64, 255]),
        is_good: bool,
    ) {
        let mut frame = vec![2; 14];
        frame[12..].copy_from_slice(&[0x86, 0xdd]);
        let length = (rest.len() as u16).to_be_bytes();
        frame.extend_from_slice(&[0x60, 0, 0, 0, length[0], length[1], next, hop_limit]);
        frame.extend_from_slice(&[0xfd; 32]);
        frame.extend_from_slice(&rest);
        if next == 58 && rest.len() >= 4 {
            frame[56..58].fill(0);
            let host = IpAddr::V6([0xfd; 16].into());
            let pseudo = checksum::pseudo_sum(host, host, 58, rest.len() as u32);
            let sum = checksum::add(pseudo, checksum::sum(&frame[54..]));
            frame[56..58].copy_from_slice(&(!sum).to_be_bytes());
        }
        if let Ok(Parsed::Tcp { segment, .. }) = parse(&frame, is_good) {
            prop_assert_eq!(segment.payload.end, frame.len());
            prop_assert!(segment.payload.start >= 54 + 20);
        }
        for end in 0..frame.len() {
            let _ = parse(&frame[..end], is_good);
        }
    }

    /// One flipped bit anywhere in the datagram breaks a checksum, except in IPv6 fields that no checksum covers: traffic
    /// class, flow label, hop limit, and the next header, which then is no longer TCP.
    #[test]
    fn damaged_and_truncated_frames_are_dropped(
        header in header(),
        payload in prop::collection::vec(any::<u8>(), 0..60),
        at: prop::sample::Index,
        bit in 0_u8..8,
        cut: prop::sample::Index,
    ) {
        let good = frame(&header, &payload);
        prop_assert_eq!(parse(&good[..cut.index(good.len())], true), Err(Cause::Truncated));
        let mut bad = good;
        let at = 14 + at.index(bad.len() - 14);
        prop_assume!(header.source.is_ipv4() || !matches!(at, 14..18 | 20 | 21));
        bad[at] ^= 1_u8 << bit;
        prop_assert!(parse(&bad, false).is_err(), "byte {}", at);
    }

    #[test]
    fn any_options_are_parsed_as_by_etherparse(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0_u8..12], 0..=OPTIONS_BYTES_MAX),
        is_syn: bool,
    ) {
        let options = Options::parse(&bytes, is_syn);
        prop_assert!(options.scale.is_none_or(|scale| scale <= 14) && options.mss != Some(0));
        prop_assert!(options.sack_blocks().iter().all(|(first, end)| end.since(*first) > 0));
        // etherparse stops at unknown options and wrong lengths; everything that it parses must be parsed here, too.
        let list: Result<Vec<_>, _> = TcpOptionsIterator::from_slice(&bytes).collect();
        if let Ok(list) = list {
            use TcpOptionElement::*;
            prop_assert!(!options.is_malformed);
            let last = |f: fn(&TcpOptionElement) -> Option<(u32, u32)>| list.iter().rev().find_map(f);
            prop_assert_eq!(options.timestamps, last(|o| match o { Timestamp(a, b) => Some((*a, *b)), _ => None }));
            if is_syn {
                let mss = last(|o| match o { MaximumSegmentSize(a) => Some((u32::from(*a), 0)), _ => None });
                prop_assert_eq!(options.mss.unwrap_or(0), mss.map_or(0, |(mss, _)| mss as u16));
                let scale = last(|o| match o { WindowScale(a) => Some((u32::from(*a), 0)), _ => None });
                prop_assert_eq!(options.scale, scale.map(|(scale, _)| scale.min(14) as u8));
                prop_assert_eq!(options.sack_permitted, list.contains(&SelectiveAcknowledgementPermitted));
            }
        }
        // The parsed options are written and parsed again, except a fourth block, which has no room beside timestamps.
        let mut out = [0; OPTIONS_BYTES_MAX];
        let len = options.build(&mut out, is_syn);
        prop_assert_eq!(len % 4, 0);
        let again = Options::parse(&out[..len], is_syn);
        prop_assert_eq!((again.mss, again.scale, again.sack_permitted), (options.mss, options.scale, options.sack_permitted));
        prop_assert_eq!(again.timestamps, options.timestamps);
        prop_assert!(options.sack_blocks().starts_with(again.sack_blocks()));
    }
}
