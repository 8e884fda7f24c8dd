//! Checks that no other host has the address that an agent is about to take (RFC 5227, address conflict detection).

use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_tcp::packet::{ArpOperation, ArpPacket, MacAddress, Parsed, build_arp, parse};
use wave_wires::{Offload, RawPart, Wire};

/// Number of probes.
const PROBES: u32 = 3;
/// Time between two probes, and after the last one. RFC 5227 takes seconds, for links that lose or delay frames. A host that
/// answers later is counted as a duplicate while the agent runs.
const WAIT: Duration = Duration::from_millis(100);

/// Probes the network of `wire` for `ip` for 0.3 seconds. Returns the Ethernet address of a host that has it, or is about to
/// take it. Other frames that arrive meanwhile are lost.
///
/// # Errors
/// The wire is gone.
pub fn holder_of(wire: &mut impl Wire, ip: Ipv4Addr) -> io::Result<Option<MacAddress>> {
    let own = wire.limits().mac;
    let probe = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: own,
        sender: Ipv4Addr::UNSPECIFIED,
        target_mac: [0; 6],
        target: ip,
    };
    let mut frame = [0; 64];
    let length = build_arp(&mut frame, &probe);
    for _ in 0..PROBES {
        // A probe without room on the wire is lost, as on any cable.
        let _ = wire.send(&frame[..length], [RawPart::EMPTY; 2], Offload::default())?;
        let until = Instant::now() + WAIT;
        loop {
            while let Some(frame) = wire.receive()? {
                if let Some(mac) = claimant(&frame, ip).filter(|mac| *mac != own) {
                    return Ok(Some(mac));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            let Some(fd) = wire.as_fd().filter(|_| !left.is_zero()) else { break };
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout))?;
        }
    }
    Ok(None)
}

/// The Ethernet address of a station that claims `ip` in this frame, or probes for it.
fn claimant(frame: &[u8], ip: Ipv4Addr) -> Option<MacAddress> {
    let Ok(Parsed::Arp(_, packet)) = parse(frame, true) else { return None };
    let is_probe = packet.sender.is_unspecified() && packet.operation == ArpOperation::Request;
    (packet.sender == ip || (is_probe && packet.target == ip)).then_some(packet.sender_mac)
}
