//! The bytes of streams: each says where it is.

/// The byte at a position of a stream.
pub fn byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// The first of the bytes from `position` on that is not what it should be: where, and what it should be.
pub fn first_wrong(position: u64, bytes: &[u8]) -> Option<(u64, u8)> {
    let places = (position..).zip(bytes);
    places
        .map(|(at, found)| (at, byte(at), *found))
        .find(|(_, right, found)| right != found)
        .map(|(at, right, _)| (at, right))
}
