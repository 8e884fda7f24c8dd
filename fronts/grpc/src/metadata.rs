//! Conversion of metadata between HTTP headers and the link: which headers are passed on, and base64 of `-bin` values.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use wave_rpc::metadata::{BadMetadata, BadPair, Metadata, push};

/// Most bytes of metadata that a host may send with a call, as HTTP/2 counts them.
const REPLY_BYTES_MAX: usize = 64 * 1024;

/// Accepts padding, and does not produce it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A `-bin` header whose value is not base64: the client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value of a -bin header is not base64")]
pub struct BadBase64;

/// Metadata of a reply that cannot be passed on: the host is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// The metadata is malformed, although the host's runtime checks it.
    #[error("the host sent malformed metadata: {what}", what = .0.what)]
    Metadata(#[from] BadMetadata),
    /// The metadata is too large.
    #[error(
        "the handler added more than {REPLY_BYTES_MAX} bytes of metadata, as HTTP/2 counts them"
    )]
    TooLarge,
}

/// Adds a client's header. Headers with names or values that HTTP allows and gRPC does not are left out, as gRPC specifies.
pub fn add(metadata: &mut Vec<u8>, name: &str, value: &HeaderValue) -> Result<(), BadBase64> {
    let mut pair = |value: &[u8]| match push(metadata, name, value) {
        Ok(()) | Err(BadPair::Key | BadPair::Value | BadPair::TooLong) => {}
    };
    if name.ends_with("-bin") {
        for part in value.as_bytes().split(|&byte| byte == b',') {
            pair(&BASE64.decode(part.trim_ascii()).map_err(|_| BadBase64)?);
        }
    } else {
        pair(value.as_bytes());
    }
    Ok(())
}

/// Adds a host's metadata to headers or trailers. Names that HTTP/2 reserves are left out.
pub fn append(headers: &mut HeaderMap, metadata: &[u8]) -> Result<(), BadReply> {
    let mut bytes = 0;
    for (key, value) in Metadata::new(metadata)?.iter() {
        if is_https_own(key) {
            continue;
        }
        let value =
            if key.ends_with("-bin") { Ok(encode(value)) } else { HeaderValue::from_bytes(value) };
        let name = HeaderName::from_bytes(key.as_bytes());
        let (Ok(name), Ok(value)) = (name, value) else { continue };
        bytes += name.as_str().len() + value.len() + 32;
        if bytes > REPLY_BYTES_MAX {
            return Err(BadReply::TooLarge);
        }
        headers.try_append(name, value).map_err(|_| BadReply::TooLarge)?;
    }
    Ok(())
}

/// Encodes bytes as the value of a `-bin` header.
pub fn encode(value: &[u8]) -> HeaderValue {
    HeaderValue::try_from(BASE64.encode(value)).expect("base64 is text")
}

fn is_https_own(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "content-length"
            | "content-type"
            | "host"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn added(pairs: &[(&str, &[u8])]) -> Result<Vec<(String, Vec<u8>)>, BadBase64> {
        let mut metadata = Vec::new();
        for (name, value) in pairs {
            add(&mut metadata, name, &HeaderValue::from_bytes(value).unwrap())?;
        }
        let metadata = Metadata::new(&metadata).unwrap();
        Ok(metadata.iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect())
    }

    #[test]
    fn order_and_duplicates_are_kept_and_joined_binary_values_split() {
        let pairs = added(&[
            ("k", b"1"),
            ("k", b"2, 3"),
            ("b-bin", b"q6ur"),
            ("b-bin", b"AA==,AQ, q6s"),
            ("k", b""),
        ]);
        let expected: [(&str, &[u8]); 7] = [
            ("k", b"1"),
            ("k", b"2, 3"),
            ("b-bin", &[0xab, 0xab, 0xab]),
            ("b-bin", &[0]),
            ("b-bin", &[1]),
            ("b-bin", &[0xab, 0xab]),
            ("k", b""),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_vec()));
        assert_eq!(pairs.unwrap(), expected);
    }

    #[test]
    fn metadata_that_grpc_does_not_allow_is_left_out() {
        let pairs: [(&str, &[u8]); 4] =
            [("k!", b"1"), ("k", b"\xff"), ("k", b"a\tb"), ("grpc-x", b"")];
        assert_eq!(added(&pairs), Ok(vec![]));
        assert_eq!(added(&[("b-bin", b"?")]), Err(BadBase64));
        assert_eq!(added(&[("b-bin", b"A")]), Err(BadBase64));
    }

    #[test]
    fn host_cannot_write_reserved_http_headers_or_too_many() {
        let mut metadata = Vec::new();
        for key in ["content-type", "connection", "te", "mine"] {
            push(&mut metadata, key, b"gzip").unwrap();
        }
        let mut headers = HeaderMap::new();
        append(&mut headers, &metadata).unwrap();
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["mine"]);
        let many = metadata.repeat(10_000);
        assert_eq!(append(&mut HeaderMap::new(), &many), Err(BadReply::TooLarge));
        assert!(append(&mut headers, &[1]).is_err());
    }

    proptest! {
        #[test]
        fn metadata_round_trips(
            pairs in proptest::collection::vec(
                ("[a-z0-9_.-]{1,9}(-bin)?", proptest::collection::vec(0x20u8..0x7f, 0..40)), 0..10),
        ) {
            let own = |key: &str| key.starts_with("grpc-") || is_https_own(key);
            let pairs: Vec<_> = pairs.into_iter().filter(|(key, _)| !own(key)).collect();
            let mut metadata = Vec::new();
            for (key, value) in &pairs {
                push(&mut metadata, key, value).unwrap();
            }
            let mut headers = HeaderMap::new();
            append(&mut headers, &metadata).unwrap();
            for (key, _) in &pairs {
                let of_key = |pairs: &[(String, Vec<u8>)]| -> Vec<Vec<u8>> {
                    pairs.iter().filter(|(own, _)| own == key).map(|(_, value)| value.clone()).collect()
                };
                let values: Vec<_> = headers.get_all(key).iter().map(|value| (key.as_str(), value.as_bytes())).collect();
                prop_assert_eq!(of_key(&added(&values).unwrap()), of_key(&pairs));
            }
        }
    }
}
