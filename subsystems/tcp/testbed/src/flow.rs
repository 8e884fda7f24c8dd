//! A flow of a data path without a stack.

use wave_tcp::datapath::{Established, Fin, Limits, Receiving, Ring, Sending, Tuple};
use wave_tcp::seq::Seq;

use crate::machine::CONTEXT;

/// A connection on which nothing was sent, with these sequence numbers (ours, the peer's) at position 0. Its send ring
/// is the first in payload memory, its receive ring the second.
pub fn established(tuple: Tuple, bases: [Seq; 2], ring_bytes: u32) -> Established {
    let ring = |offset| Ring { offset, bytes: ring_bytes };
    let edge = ring_bytes.min(0xffff).into();
    Established {
        tuple,
        peer_mac: [2; 6],
        context: CONTEXT,
        socket: 7,
        sending: Sending {
            ring: ring(0),
            base: bases[0],
            acknowledged: 0,
            sent: 0,
            written: 0,
            edge,
            fin: Fin::No,
            scale: 0,
            mss: 1_000,
            filled: ring_bytes,
        },
        receiving: Receiving {
            ring: ring(ring_bytes.into()),
            base: bases[1],
            received: 0,
            read: 0,
            edge,
            intervals: Default::default(),
            fin: None,
            scale: 0,
            filled: ring_bytes,
        },
        timestamps: None,
        sack_permitted: true,
        ecn: None,
        is_eager: false,
        limits: Limits { window_bytes: 1 << 20, ..Limits::default() },
    }
}
