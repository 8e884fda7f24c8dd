//! The Internet checksum (RFC 1071): a ones' complement sum of 16-bit words.
//!
//! A *sum* here is folded to 16 bits and not complemented; the checksum in a header is its complement. Sums of parts add up, so
//! payload that is copied anyway may be summed separately from its headers.

use core::net::IpAddr;

/// The sum over bytes that include their correct checksum.
pub const GOOD: u16 = 0xffff;

/// The sum of bytes; an odd length is padded with a zero.
pub fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<8>();
    // The halves are summed separately: 2^32 of them do not overflow, there is no carry, and the compiler can vectorize.
    let (mut low, mut high) = (0_u64, 0_u64);
    let mut add = |word: u64| {
        low += word & 0xffff_ffff;
        high += word >> 32;
    };
    for word in words {
        add(u64::from_ne_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(u64::from_ne_bytes(last));
    // The byte order affects only the order of the sum's own bytes (RFC 1071, 2.B).
    u16::from_be(fold(fold_half(low) + fold_half(high)))
}

/// The sum of two parts; the first has an even length.
pub fn add(front: u16, back: u16) -> u16 {
    fold(u64::from(front) + u64::from(back))
}

/// The sum of two consecutive parts, the first of `front_bytes`. After an odd length, each byte of the second part is in the
/// other half of its word (RFC 1071, 2.B).
pub fn combine(front: u16, front_bytes: usize, back: u16) -> u16 {
    add(front, if front_bytes & 1 == 0 { back } else { back.swap_bytes() })
}

/// The sum over the pseudo header of IPv4 (RFC 9293, 3.1) or IPv6 (RFC 8200, 8.1), with `bytes` of the protocol's header and
/// payload. The checksum field of a packet that a wire completes holds it, uncomplemented.
pub fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, bytes: u32) -> u16 {
    let part = |address: IpAddr| match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => u64::from(sum(&address.octets())),
    };
    fold(part(source) + part(destination) + u64::from(protocol) + u64::from(bytes))
}

fn fold_half(sum: u64) -> u64 {
    (sum >> 32) + (sum & 0xffff_ffff)
}

/// Folds a sum to 16 bits: 2^16 is 1 modulo 2^16 - 1, so the words of a number may be added up. Only 0 becomes 0.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngCore, SeedableRng};

    /// The definition: word by word, with an end-around carry each time.
    fn naive(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum: u16, word| {
            let word = u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]);
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    }

    fn bytes() -> [u8; 301] {
        let mut bytes = [0; 301];
        rand_pcg::Pcg64Mcg::seed_from_u64(1).fill_bytes(&mut bytes);
        bytes
    }

    #[test]
    fn sums_of_every_length_and_alignment_match_the_definition() {
        let bytes = bytes();
        for start in 0..9 {
            for end in start..=300 {
                assert_eq!(sum(&bytes[start..end]), naive(&bytes[start..end]), "{start}..{end}");
            }
        }
        assert_eq!(sum(&[0xff; 65_536]), naive(&[0xff; 65_536]));
        assert_eq!(sum(&[0; 300]), 0);
    }

    #[test]
    fn sums_of_parts_of_any_length_combine() {
        let bytes = bytes();
        for split in 0..=bytes.len() {
            let (front, back) = bytes.split_at(split);
            assert_eq!(combine(sum(front), split, sum(back)), sum(&bytes), "{split}");
        }
    }

    #[test]
    fn the_example_of_rfc_1071_holds() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn pseudo_header_sums_match_the_layout() {
        let bytes = bytes();
        let source: [u8; 16] = bytes[..16].try_into().unwrap();
        let destination: [u8; 16] = bytes[16..32].try_into().unwrap();
        let layout = [&bytes[..32], &0x0001_2345_u32.to_be_bytes(), &[0, 0, 0, 6]].concat();
        assert_eq!(pseudo_sum(source.into(), destination.into(), 6, 0x1_2345), naive(&layout));
        let layout = [&bytes[..8], &[0, 6], &0xfedc_u16.to_be_bytes()].concat();
        let (source, destination) = layout[..8].split_at(4);
        let address = |bytes: &[u8]| IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap());
        assert_eq!(pseudo_sum(address(source), address(destination), 6, 0xfedc), naive(&layout));
    }
}
