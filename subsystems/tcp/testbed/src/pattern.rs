//! Payload bytes: each byte's value depends on its position in the stream.

/// The byte at a position of a stream.
pub fn byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// The first of `bytes`, which start at `position`, that has a wrong value: its position and the value expected there.
pub fn first_wrong(position: u64, bytes: &[u8]) -> Option<(u64, u8)> {
    let places = (position..).zip(bytes);
    places
        .map(|(at, found)| (at, byte(at), *found))
        .find(|(_, right, found)| right != found)
        .map(|(at, right, _)| (at, right))
}
