//! Percent-encoding of `grpc-message`.

use http::HeaderValue;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Most bytes of a status message that are passed on; clients accept headers of 8 KiB by default.
pub const TEXT_MAX: usize = 2048;

/// ASCII characters that are encoded; bytes that are not ASCII always are (gRPC over HTTP/2, *Percent-Encoded*).
const SET: &AsciiSet = &CONTROLS.add(b'%');

/// Encodes a status message as a header's value, truncated to [`TEXT_MAX`].
pub fn encode(text: &str) -> HeaderValue {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let encoded = utf8_percent_encode(&text[..end], SET).to_string();
    HeaderValue::try_from(encoded).expect("only printable ASCII is left")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes as a client would.
    fn decode(encoded: &[u8]) -> Vec<u8> {
        let mut rest = encoded;
        let mut bytes = Vec::new();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte == b'%' {
                let digits = std::str::from_utf8(&rest[..2]).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = &rest[2..];
            } else {
                bytes.push(byte);
            }
        }
        bytes
    }

    #[test]
    fn special_message_of_the_grpc_specification_is_encoded() {
        let text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";
        let encoded = encode(text);
        assert!(encoded.as_bytes().starts_with(b"%09%0Atest with whitespace%0D%0Aand "));
        assert_eq!(decode(encoded.as_bytes()), text.as_bytes());
    }

    #[test]
    fn long_message_is_truncated_at_a_character() {
        let text = "a".to_owned() + &"😈".repeat(TEXT_MAX);
        let decoded = decode(encode(&text).as_bytes());
        assert!(decoded.len() <= TEXT_MAX && decoded.len() > TEXT_MAX - 4);
        assert!(text.starts_with(std::str::from_utf8(&decoded).unwrap()));
    }

    proptest! {
        #[test]
        fn percent_encoding_round_trips(text in "\\PC{0,100}|[\\x00-\\x7f]{0,100}") {
            prop_assert_eq!(decode(encode(&text).as_bytes()), text.as_bytes());
        }
    }
}
