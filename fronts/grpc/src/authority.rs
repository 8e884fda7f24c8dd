//! Replaces the value of `:authority` in a client's field blocks (RFC 7541) by one that h2 accepts.
//!
//! h2 takes only names that `http::uri::Authority` can parse, and resets other requests. Clients of Unix sockets and proxies
//! send paths and per cent signs, and a front has no use for the name. The replacement has as many bytes on the wire, and
//! decodes to no more than the original, so frames keep their lengths, and h2's dynamic table holds at least the entries of
//! the client's ([ADR 90](../../../docs/adr/0090-names-of-servers.md)).

/// The replacement's character. Its Huffman code has 13 bits (RFC 7541, appendix B), as many as the longest code of a
/// character that an authority may have.
const CHARACTER: u8 = b'~';
/// The Huffman code of [`CHARACTER`]: ones but for the bit with this index.
const ZERO_BIT: usize = 11;
const CODE_BITS: usize = 13;
/// The Huffman code of `0`, five zeros, which keeps a string's padding below 8 bits (RFC 7541, 5.2).
const SHORT_BITS: usize = 5;

/// The name, as a plain and as a Huffman-coded string.
const NAMES: [&[u8]; 2] = [b":authority", &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f]];
/// Index of the name in the static table.
const STATIC_INDEX: u8 = 1;

/// Reads field blocks byte by byte, as they arrive.
#[derive(Debug, Default)]
pub struct Fields {
    state: State,
}

/// The meaning of the next byte.
#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// The first byte of a field.
    #[default]
    Field,
    /// A further byte of an index, or of the size of the table.
    Index { then: After },
    /// The first byte of a string's length.
    Length { of: Part },
    /// A further byte of a string's length.
    Longer { of: Part, is_huffman: bool, length: usize, shift: u32 },
    /// A byte of a string.
    Text { of: Part, is_huffman: bool, length: usize, at: usize },
    /// The block is malformed, as h2 will find too.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Field,
    Value,
}

/// A string of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A name. `is_authority`: its bytes so far are those of `:authority`.
    Name {
        is_authority: bool,
    },
    Value {
        is_authority: bool,
    },
}

impl Fields {
    /// A new block follows.
    pub fn begin(&mut self) {
        self.state = State::Field;
    }

    /// Reads the block's next bytes, and replaces those of an authority.
    pub fn mask(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.state = match self.state {
                State::Field => begin_field(*byte),
                State::Index { then } if *byte >= 0x80 => State::Index { then },
                State::Index { then: After::Field } => State::Field,
                State::Index { then: After::Value } => {
                    State::Length { of: Part::Value { is_authority: false } }
                }
                State::Length { of } => {
                    let (is_huffman, length) = (*byte >= 0x80, usize::from(*byte & 0x7f));
                    match length {
                        0x7f => State::Longer { of, is_huffman, length, shift: 0 },
                        length => begin_text(of, is_huffman, length),
                    }
                }
                State::Longer { of, is_huffman, length, shift } => {
                    let length = length + (usize::from(*byte & 0x7f) << shift);
                    match (*byte >= 0x80, shift) {
                        (false, _) => begin_text(of, is_huffman, length),
                        // Longer than any block that h2 takes.
                        (true, 14..) => State::Malformed,
                        (true, _) => State::Longer { of, is_huffman, length, shift: shift + 7 },
                    }
                }
                State::Text { of, is_huffman, length, at } => {
                    text(of, is_huffman, length, at, byte)
                }
                State::Malformed => return,
            };
        }
    }
}

/// Reads the first byte of a field (RFC 7541, 6).
fn begin_field(byte: u8) -> State {
    let (bits, then) = match byte {
        0x80.. => (7, After::Field),
        0x40.. => (6, After::Value),
        0x20.. => (5, After::Field),
        _ => (4, After::Value),
    };
    let full = (1 << bits) - 1;
    let index = byte & full;
    match then {
        _ if index == full => State::Index { then },
        After::Field => State::Field,
        After::Value if index == 0 => State::Length { of: Part::Name { is_authority: true } },
        After::Value => State::Length { of: Part::Value { is_authority: index == STATIC_INDEX } },
    }
}

fn begin_text(of: Part, is_huffman: bool, length: usize) -> State {
    let of = match of {
        Part::Name { .. } => {
            Part::Name { is_authority: length == NAMES[usize::from(is_huffman)].len() }
        }
        value => value,
    };
    match length {
        0 => after_text(of),
        _ => State::Text { of, is_huffman, length, at: 0 },
    }
}

/// Reads byte `at` of a string, and replaces it if it is an authority's.
fn text(of: Part, is_huffman: bool, length: usize, at: usize, byte: &mut u8) -> State {
    let of = match of {
        Part::Name { is_authority } => {
            let is_same = is_authority && NAMES[usize::from(is_huffman)][at] == *byte;
            Part::Name { is_authority: is_same }
        }
        value => value,
    };
    if of == (Part::Value { is_authority: true }) {
        match is_huffman {
            true => *byte = huffman(length, at),
            // Control characters make a request malformed (RFC 9113, 8.2.1), which is left to h2.
            false if byte.is_ascii_graphic() => *byte = CHARACTER,
            false => {}
        }
    }
    match at + 1 == length {
        true => after_text(of),
        false => State::Text { of, is_huffman, length, at: at + 1 },
    }
}

fn after_text(of: Part) -> State {
    match of {
        Part::Name { is_authority } => State::Length { of: Part::Value { is_authority } },
        Part::Value { .. } => State::Field,
    }
}

/// Byte `at` of the replacement of a Huffman-coded string of `length` bytes: as many of [`CHARACTER`] as there is room for,
/// a `0` if more than 7 bits are left, then ones.
fn huffman(length: usize, at: usize) -> u8 {
    let bits = length * 8;
    let long = bits - bits % CODE_BITS;
    let short = if bits - long > 7 { SHORT_BITS } else { 0 };
    let is_one = |bit: usize| match bit {
        _ if bit < long => bit % CODE_BITS != ZERO_BIT,
        _ => bit >= long + short,
    };
    (0..8).fold(0, |byte, bit| byte << 1 | u8::from(is_one(at * 8 + bit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(block: &[u8]) -> Vec<u8> {
        let mut bytes = block.to_vec();
        Fields::default().mask(&mut bytes);
        // The same, byte by byte.
        let (mut single, mut fields) = (block.to_vec(), Fields::default());
        single.chunks_mut(1).for_each(|byte| fields.mask(byte));
        assert_eq!(single, bytes);
        bytes
    }

    #[test]
    fn only_values_of_authority_are_replaced() {
        let long = [&[0x40, 1, b'n', 0x7f, 0x80, 0x01][..], &[b'/'; 0x7f + 0x80]].concat();
        let path = *b"\x44\x02/a";
        let others: [&[u8]; 5] =
            [&path, b"\x82\x3f\xe1\x1f", b"\x00\x0a:authoritx\x01/", b"\x7f\x05\x01/", &long];
        let authorities: [(&[u8], &[u8]); 4] = [
            (b"\x41\x03a/b", b"\x41\x03~~~"),
            (b"\x01\x02%2", b"\x01\x02~~"),
            (b"\x10\x0a:authority\x01/", b"\x10\x0a:authority\x01~"),
            (
                b"\x40\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f\x01/",
                b"\x40\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f\x01~",
            ),
        ];
        for other in others {
            for (authority, replaced) in authorities {
                let block = [other, authority, other].concat();
                assert_eq!(masked(&block), [other, replaced, other].concat(), "{block:x?}");
            }
        }
        assert_eq!(masked(b"\x41\x03a\nb"), b"\x41\x03~\n~");
        let endless = *b"\x00\x01n\x7f\xff\xff\xff\xff\x41\x01/";
        assert_eq!(masked(&endless), endless);
    }

    #[test]
    fn huffman_coded_replacements_are_valid_and_not_longer_than_originals() {
        for length in 1..100 {
            let bytes: Vec<_> = (0..length).map(|at| huffman(length, at)).collect();
            let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
            let (mut at, mut characters) = (0, 0);
            while (at..length * 8).any(|at| bit(at) == 0) {
                let code = if bit(at) == 0 { SHORT_BITS } else { CODE_BITS };
                let is_right = |next| match code {
                    SHORT_BITS => bit(at + next) == 0,
                    _ => bit(at + next) == u8::from(next != ZERO_BIT),
                };
                assert!((0..code).all(is_right), "{bytes:x?}");
                (at, characters) = (at + code, characters + 1);
            }
            assert!(length * 8 - at < 8, "{bytes:x?}");
            // A string of this many bytes with the fewest characters, all of them as long as the longest.
            let fewest = (length * 8 - 7).div_ceil(CODE_BITS);
            assert!(characters <= fewest, "{bytes:x?}");
        }
    }
}
