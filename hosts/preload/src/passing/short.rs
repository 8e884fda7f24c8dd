//! Short tickets, for processes that may not attach a socket filter: some kernels (seen with 6.18.44) demand CAP_NET_ADMIN for that on TCP
//! sockets.
//!
//! They are the socket's keys of TCP Fast Open, which any process may set and read, and which neither connections accepted by the
//! kernel nor other descriptions inherit. They hold 32 bytes: enough for names and listeners of IPv4, and for listeners at `::`.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wave_posix::Sharing;

use super::{Passed, Ticket};

pub(super) const BYTES: usize = 32;
const MAGIC: [u8; 2] = *b"w4";
/// Bytes of a socket's cookie, the low ones.
const COOKIE_BYTES: usize = 3;

const BOUND: u8 = 1;
const LISTENING: u8 = 2;
const STREAM: u8 = 3;
const KINDS: u8 = 3;
/// The address is `::`, which serves both families.
const V6: u8 = 1 << 2;
const SHARED: u8 = 1 << 3;
const REUSES_PORT: u8 = 1 << 4;
const NONBLOCKING: u8 = 1 << 5;

/// Offsets: magic, cookie, line and one, kind and flags, then an address; then a backlog and a secret, or another address.
const LINE: usize = 5;
const KIND: usize = 7;
const FIRST: usize = 8;
const SECOND: usize = 14;
const SECRET: usize = 16;

pub(super) fn encode(ticket: &Ticket) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    bytes[..2].copy_from_slice(&MAGIC);
    bytes[2..LINE].copy_from_slice(&ticket.cookie.to_le_bytes()[..COOKIE_BYTES]);
    let line = ticket.line.map_or(Some(0), |line| u16::try_from(line + 1).ok())?;
    bytes[LINE..KIND].copy_from_slice(&line.to_le_bytes());
    let mut flags = 0;
    let kind = match &ticket.passed {
        Passed::Bound(own) => {
            flags |= put(&mut bytes[FIRST..], *own)?;
            BOUND
        }
        Passed::Listening { own, backlog, sharing, is_shared, is_nonblocking } => {
            flags |= put(&mut bytes[FIRST..], *own)?;
            bytes[SECOND..SECRET].copy_from_slice(&backlog.to_le_bytes());
            bytes[SECRET..].copy_from_slice(&sharing.secret.to_le_bytes());
            let all = [
                (is_shared, SHARED),
                (&sharing.reuses_port, REUSES_PORT),
                (is_nonblocking, NONBLOCKING),
            ];
            flags |=
                all.iter().filter(|(is_set, _)| **is_set).fold(0, |flags, (_, flag)| flags | flag);
            LISTENING
        }
        Passed::Stream(local, remote) => {
            flags |= put(&mut bytes[FIRST..], *local)?;
            flags |= put(&mut bytes[SECOND..], *remote)?;
            (flags & V6 == 0).then_some(STREAM)?
        }
        Passed::Connection { .. } => return None,
    };
    bytes[KIND] = kind | flags;
    Some(bytes)
}

/// The ticket in a socket's keys, if they are one. `cookie` is the socket's own.
pub(super) fn decode(bytes: &[u8; BYTES], cookie: u64) -> Option<Ticket> {
    if bytes[..2] != MAGIC || bytes[2..LINE] != cookie.to_le_bytes()[..COOKIE_BYTES] {
        return None;
    }
    let line = u16::from_le_bytes([bytes[LINE], bytes[LINE + 1]]).checked_sub(1).map(c_int::from);
    let flags = bytes[KIND];
    let own = get(&bytes[FIRST..], flags);
    let passed = match flags & KINDS {
        BOUND => Passed::Bound(own),
        LISTENING => Passed::Listening {
            own,
            backlog: u16::from_le_bytes([bytes[SECOND], bytes[SECOND + 1]]),
            sharing: Sharing {
                secret: u128::from_le_bytes(bytes[SECRET..].try_into().ok()?),
                reuses_port: flags & REUSES_PORT != 0,
            },
            is_shared: flags & SHARED != 0,
            is_nonblocking: flags & NONBLOCKING != 0,
        },
        STREAM => Passed::Stream(own, get(&bytes[SECOND..], flags)),
        _ => return None,
    };
    Some(Ticket { cookie, line, passed })
}

/// Stores a port and an address. Returns its flag; `None` if it is too long.
fn put(at: &mut [u8], address: SocketAddr) -> Option<u8> {
    at[..2].copy_from_slice(&address.port().to_le_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            at[2..6].copy_from_slice(&ip.octets());
            Some(0)
        }
        IpAddr::V6(ip) => ip.is_unspecified().then_some(V6),
    }
}

fn get(at: &[u8], flags: u8) -> SocketAddr {
    let port = u16::from_le_bytes([at[0], at[1]]);
    let ip: IpAddr = match flags & V6 {
        0 => Ipv4Addr::new(at[2], at[3], at[4], at[5]).into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tickets_decode_to_themselves_for_their_own_socket() {
        let own: SocketAddr = "10.77.0.2:80".parse().unwrap();
        let both: SocketAddr = "[::]:8080".parse().unwrap();
        let listening = |own, is_shared: bool| Passed::Listening {
            own,
            backlog: 511,
            sharing: Sharing { secret: 7 << 120 | 5, reuses_port: !is_shared },
            is_shared,
            is_nonblocking: is_shared,
        };
        let remote = "10.77.0.1:50123".parse().unwrap();
        let all = [
            Passed::Bound(own),
            Passed::Bound(both),
            listening(own, true),
            listening(both, false),
            Passed::Stream(own, remote),
        ];
        for (passed, line) in all.into_iter().zip([None, Some(0), Some(963), None, Some(1)]) {
            let ticket = Ticket { cookie: 0x1234_5678_9abc, line, passed };
            let bytes = encode(&ticket).unwrap();
            let read = decode(&bytes, ticket.cookie).unwrap();
            assert_eq!((read.to_words(), read.line), (ticket.to_words(), line));
            assert!(decode(&bytes, ticket.cookie + 1).is_none());
        }
        assert!(decode(&[0; BYTES], 0).is_none());
    }

    #[test]
    fn long_tickets_are_refused() {
        let v6: SocketAddr = "[fd77::2]:80".parse().unwrap();
        let connection = Passed::Connection {
            claim: None,
            checkpoint: None,
            is_read_shut: false,
            is_write_shut: false,
        };
        for passed in [Passed::Bound(v6), Passed::Stream(v6, v6), connection] {
            assert!(encode(&Ticket { cookie: 1, line: None, passed }).is_none());
        }
    }
}
