//! Tracks connections, and translates between a script's sequence numbers and timestamps and those on the wire.

use wave_tcp::packet::Flags;

use crate::frames::{Ports, Seen};
use crate::process::PORT;
use crate::script::{Segment, TcpOption};

/// The peer's port if a script names none.
const PEER_PORT: u16 = 40_001;

/// A connection, or an attempt at one.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Our port; `None` until our connect has sent its SYN.
    local: Option<u16>,
    remote: u16,
    /// Our initial sequence number on the wire.
    own: Option<u32>,
    /// The peer's initial sequence number.
    theirs: Option<u32>,
    /// The peer has sent a SYN with a new sequence number.
    is_renewed: bool,
}

#[derive(Debug, Default)]
pub struct Peers {
    all: Vec<Peer>,
    /// The connection of packets that name no ports.
    current: Option<usize>,
    /// Offset from our timestamps in the script to those on the wire. All connections between two hosts share it.
    stamp: Option<u32>,
}

/// The script echoes a timestamp that no line has named.
pub struct UnknownEcho(pub u32);

impl Peers {
    pub fn connects(&mut self, remote: u16) {
        self.current = Some(self.all.len());
        self.all.push(Peer { local: None, remote, own: None, theirs: None, is_renewed: false });
    }

    fn find(&mut self, local: u16, remote: u16) -> usize {
        let is_it = |peer: &Peer| peer.local == Some(local) && peer.remote == remote;
        if let Some(at) = self.all.iter().position(is_it) {
            return at;
        }
        let new = Peer { local: Some(local), remote, own: None, theirs: None, is_renewed: false };
        self.all.push(new);
        self.all.len() - 1
    }

    fn of(&mut self, ports: Option<Ports>) -> usize {
        match (ports, self.current) {
            (Some((remote, local)), _) => self.find(local, remote),
            (None, Some(current)) => current,
            (None, None) => {
                let at = self.find(PORT, PEER_PORT);
                self.current = Some(at);
                at
            }
        }
    }

    /// Ports of a received packet; `None` if our connect has not sent its SYN yet.
    pub fn ports(&mut self, named: Option<Ports>) -> Option<Ports> {
        let at = self.of(named);
        Some((self.all[at].remote, self.all[at].local?))
    }

    /// Our initial sequence number on the wire, or 0 while it is unknown.
    pub fn own(&mut self, named: Option<Ports>) -> u32 {
        let at = self.of(named);
        self.all[at].own.unwrap_or(0)
    }

    /// Translates a received segment to the wire's numbers. Also returns the position in the stream of its first byte.
    ///
    /// # Errors
    /// It echoes a timestamp that no line has named.
    pub fn on_wire(
        &mut self,
        named: Option<Ports>,
        segment: &Segment,
    ) -> Result<(Segment, u64), UnknownEcho> {
        let at = self.of(named);
        let stamp = self.stamp;
        let peer = &mut self.all[at];
        let own = peer.own.unwrap_or(0);
        let mut segment = segment.clone();
        segment.ack = segment.ack.map(|ack| ack.wrapping_add(own));
        for option in segment.options.iter_mut().flatten() {
            match option {
                TcpOption::Timestamps(_, echo) if *echo != 0 => {
                    *echo = echo.wrapping_add(stamp.ok_or(UnknownEcho(*echo))?);
                }
                TcpOption::Sack(blocks) => {
                    for (from, to) in blocks {
                        (*from, *to) = (from.wrapping_add(own), to.wrapping_add(own));
                    }
                }
                _ => {}
            }
        }
        if segment.flags.contains(Flags::SYN) && !segment.flags.contains(Flags::RST) {
            peer.is_renewed |= peer.theirs != Some(segment.seq);
            peer.theirs = peer.theirs.or(Some(segment.seq));
        }
        let behind_syn = segment.seq.wrapping_add(segment.flags.contains(Flags::SYN).into());
        let position = behind_syn.wrapping_sub(peer.theirs.unwrap_or(0).wrapping_add(1));
        // Bytes before the start of the stream are never read.
        Ok((segment, (position as i32).max(0) as u64))
    }

    /// Translates a sent segment to the script's numbers. The first timestamp fixes the offset: `expected` gives its value in
    /// the script. Also returns the position in the stream of the first byte, if known.
    pub fn in_script(&mut self, seen: &Seen, expected: Option<&Segment>) -> (Segment, Option<u64>) {
        let (local, remote) = seen.ports;
        let mut segment = seen.segment.clone();
        let is_syn = segment.flags.contains(Flags::SYN);
        let begins = |peer: &Peer| peer.local.is_none() && peer.remote == remote && is_syn;
        if let Some(peer) = self.all.iter_mut().find(|peer| begins(peer)) {
            peer.local = Some(local);
        }
        let at = self.find(local, remote);
        let peer = &mut self.all[at];
        if is_syn && (peer.own.is_none() || peer.is_renewed) {
            peer.own = Some(segment.seq);
            peer.is_renewed = false;
            peer.theirs = segment.ack.map(|ack| ack.wrapping_sub(1)).or(peer.theirs);
        }
        segment.seq = segment.seq.wrapping_sub(peer.own.unwrap_or(0));
        let position = peer.own.map(|_| u64::from(segment.seq.wrapping_sub(1)));
        let named = expected.and_then(|expected| {
            expected.options.iter().flatten().find_map(|option| match option {
                TcpOption::Timestamps(value, _) => Some(*value),
                _ => None,
            })
        });
        for option in segment.options.iter_mut().flatten() {
            if let TcpOption::Timestamps(value, _) = option {
                let stamp = match (self.stamp, named) {
                    (None, Some(named)) => *self.stamp.insert(value.wrapping_sub(named)),
                    (stamp, _) => stamp.unwrap_or(0),
                };
                *value = value.wrapping_sub(stamp);
            }
        }
        (segment, position)
    }

    /// Whether a sent frame with these `ports` belongs to the connection that a script line means by `named`, or by naming no
    /// ports.
    pub fn is_meant(&mut self, named: Option<Ports>, ports: Ports) -> bool {
        match named {
            Some(named) => named == ports,
            None => {
                let at = self.of(None);
                let peer = self.all[at];
                (peer.local, peer.remote) == (Some(ports.0), ports.1)
            }
        }
    }
}
