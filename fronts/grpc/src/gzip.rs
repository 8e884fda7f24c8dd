//! Compression of single messages.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;

/// Why a compressed message cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadGzip {
    /// The bytes are not a gzip stream, or more than one.
    Corrupt,
    /// The decompressed message would be larger than allowed.
    TooLarge,
}

/// Compresses one message.
pub fn compress(message: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(message.len() / 2), Compression::fast());
    let whole = encoder.write_all(message).and_then(|()| encoder.finish());
    whole.expect("writes to memory do not fail").into()
}

/// Decompresses one message, of `max` bytes at most.
pub fn decompress(compressed: &[u8], max: usize) -> Result<Bytes, BadGzip> {
    let mut decoder = GzDecoder::new(compressed);
    // A length that the stream claims reserves no memory: the vector grows with the output.
    let mut message = Vec::with_capacity(compressed.len().saturating_mul(2).min(max));
    let taken = decoder.by_ref().take(max as u64 + 1).read_to_end(&mut message);
    if taken.is_err() {
        return Err(BadGzip::Corrupt);
    }
    if message.len() > max {
        return Err(BadGzip::TooLarge);
    }
    if !decoder.get_ref().is_empty() {
        return Err(BadGzip::Corrupt);
    }
    Ok(message.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decompression_bomb_is_refused() {
        let bomb = compress(&vec![0; 1 << 20]);
        assert!(bomb.len() < 1 << 14);
        assert_eq!(decompress(&bomb, 1 << 16), Err(BadGzip::TooLarge));
        assert_eq!(decompress(&bomb, 1 << 20).unwrap().len(), 1 << 20);
    }

    #[test]
    fn truncated_or_trailing_bytes_are_corrupt() {
        let whole = compress(b"a message");
        for end in 0..whole.len() {
            assert_eq!(decompress(&whole[..end], 100), Err(BadGzip::Corrupt), "cut off at {end}");
        }
        let followed = [&whole[..], b"x"].concat();
        assert_eq!(decompress(&followed, 100), Err(BadGzip::Corrupt));
        assert_eq!(decompress(b"a message", 100), Err(BadGzip::Corrupt));
    }

    proptest! {
        #[test]
        fn messages_come_back(message in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let back = decompress(&compress(&message), message.len());
            prop_assert_eq!(&back.unwrap()[..], &message[..]);
        }

        #[test]
        fn arbitrary_bytes_decompress_or_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decompress(&bytes, 1000);
        }
    }
}
