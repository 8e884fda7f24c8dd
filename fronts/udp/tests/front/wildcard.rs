//! A front that is bound to all addresses of the machine.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use wave_udp_client::wire::{Header, IDEMPOTENT, Status};

use crate::fixture::{ECHO, Fixture, Raw};
use crate::memcached::{Client, loopback};

/// Addresses for all of IPv4, and for all of IPv6 and IPv4.
fn wildcards() -> Vec<SocketAddr> {
    let mut all = vec!["0.0.0.0:0".parse().unwrap()];
    match UdpSocket::bind("[::1]:0") {
        Ok(_) => all.push("[::]:0".parse().unwrap()),
        Err(error) => println!("without IPv6: {error}"),
    }
    all
}

/// Loopback addresses that reach this wildcard. Of IPv4, the kernel by itself chooses only the first as a source.
fn asked(wildcard: SocketAddr) -> Vec<IpAddr> {
    let all = ["127.0.0.1", "127.0.0.2", "127.9.9.9", "::1"].map(|text| text.parse().unwrap());
    all.into_iter().filter(|ip: &IpAddr| ip.is_ipv4() || wildcard.is_ipv6()).collect()
}

/// Replies per burst, more than one buffer of the kernel's takes.
const BURST: u64 = 100;

/// A connected socket gets replies only from the address that it sends to.
#[test]
fn replies_come_from_the_address_that_was_asked() {
    for wildcard in wildcards() {
        let fixture = Fixture::new_with(
            |options| options.address = wildcard,
            |fixture| {
                fixture.start_host(|options| options.workers(2));
                fixture.until_served();
            },
        );
        // Bursts of all clients are under way at once, so that replies from several addresses wait together.
        let clients = asked(wildcard).into_iter().map(|ip| {
            let raw = Raw::new(SocketAddr::new(ip, fixture.address.port()));
            for id in 1..=BURST {
                raw.send(Header { flags: IDEMPOTENT, ..raw.header(ECHO, id) }, b"x");
            }
            raw
        });
        for raw in clients.collect::<Vec<_>>() {
            for _ in 0..BURST {
                let (header, message) = raw.reply();
                assert_eq!((Status(header.status), &message[..]), (Status::OK, &b"x"[..]));
            }
        }
    }
}

#[test]
fn memcached_replies_come_from_the_address_that_was_asked() {
    for wildcard in wildcards() {
        let change = |options: &mut wave_udp::UdpOptions| {
            options.address = wildcard;
            options.memcached = Some([loopback(), vec!["::1".parse().unwrap()]].concat());
        };
        let fixture = Fixture::new_with(change, |_| {});
        for ip in asked(wildcard) {
            let mut client = Client::new(SocketAddr::new(ip, fixture.address.port()));
            assert!(client.ask(b"version\r\n").starts_with("VERSION "));
            assert!(client.ask(b"get k\r\n").starts_with("SERVER_ERROR "));
        }
    }
}
