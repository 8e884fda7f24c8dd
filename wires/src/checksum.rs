//! The Internet checksum (RFC 1071), and its completion if a sender has left it to the wire.

use crate::CsumPlace;

/// Offset of the checksum in a UDP header, in bytes.
const UDP_OFFSET: u16 = 6;

/// The ones' complement sum of `bytes` as big-endian 16-bit words, folded and not complemented.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    // Summed in the machine's byte order and 32 bits at a time: RFC 1071 2(B) and 2(C).
    let mut words = bytes.chunks_exact(4);
    let whole: u64 = words.by_ref().map(word).sum();
    let rest = words.remainder();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let mut total = whole + word(&last);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    u16::from_be(total as u16)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from(u32::from_ne_bytes(bytes.try_into().expect("chunks of four")))
}

/// The ones' complement sum of two words.
pub(crate) fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// Completes the checksum at `place` of a contiguous packet. Does nothing if the packet is too short for it.
pub(crate) fn complete(packet: &mut [u8], place: CsumPlace) {
    let start = usize::from(place.start);
    let at = start + usize::from(place.offset);
    if packet.len() < at + 2 {
        return;
    }
    let mut checksum = !sum(&packet[start..]);
    // 0 means "no checksum" in UDP (RFC 768).
    if checksum == 0 && place.offset == UDP_OFFSET {
        checksum = 0xffff;
    }
    packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_checksum_of_zero_is_sent_as_all_ones() {
        // The complement of a sum of 0xffff is 0, which means "no checksum" in UDP but is a normal value in TCP.
        for (offset, expected) in [(6, [0xff, 0xff]), (16, [0, 0])] {
            let mut packet = [0; 22];
            packet[2..4].copy_from_slice(&[0xff, 0xff]);
            complete(&mut packet, CsumPlace { start: 2, offset });
            assert_eq!(packet[2 + usize::from(offset)..][..2], expected);
        }
    }
}
