//! The class and the latency objective of a request: from its metadata, its message, or its method.

use wave_core::clock::Nanos;
use wave_rpc::service::Method;

/// Most fields of a message that are examined.
const FIELDS_MAX: usize = 64;

/// Class and SLO from a request's metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Value of `x-wave-class`.
    pub class: Option<u8>,
    /// Value of `x-wave-slo-us`.
    pub slo_us: Option<u32>,
}

/// Class and SLO of a request. Metadata takes precedence over the message's field that the method names, and that over the
/// method's defaults. A client cannot get a class above the method's highest.
pub fn classify(method: &Method, asked: Asked, message: Option<&[u8]>) -> (u8, Option<Nanos>) {
    let own = (method.slo_us > 0).then_some(method.slo_us);
    let (class, slo_us) = if asked == Asked::default() {
        let field = (method.slo_field > 0)
            .then(|| message.and_then(|message| varint_field(message, method.slo_field)))
            .flatten()
            .filter(|&slo_us| slo_us > 0)
            .map(|slo_us| u32::try_from(slo_us).unwrap_or(u32::MAX));
        (method.class, field.or(own))
    } else {
        (asked.class.unwrap_or(method.class), asked.slo_us.or(own))
    };
    (class.min(method.class_max), slo_us.map(|slo_us| Nanos::from_micros(slo_us.into())))
}

/// The last value of a varint field among the first [`FIELDS_MAX`] fields of a protobuf message. In a malformed message, the
/// fields before the first malformed one count.
pub fn varint_field(message: &[u8], field: u16) -> Option<u64> {
    let mut rest = message;
    let mut found = None;
    for _ in 0..FIELDS_MAX {
        let Some(tag) = varint(&mut rest) else { break };
        let skipped = match tag & 7 {
            0 => {
                let Some(value) = varint(&mut rest) else { break };
                if tag >> 3 == u64::from(field) {
                    found = Some(value);
                }
                0
            }
            1 => 8,
            2 => match varint(&mut rest).map(usize::try_from) {
                Some(Ok(length)) => length,
                _ => break,
            },
            5 => 4,
            _ => break,
        };
        let Some(after) = rest.get(skipped..) else { break };
        rest = after;
    }
    found
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, &byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *rest = &rest[at + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Request {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(fixed64, tag = "2")]
        hash: u64,
        #[prost(uint64, tag = "3")]
        slo_us: u64,
        #[prost(float, tag = "4")]
        share: f32,
        #[prost(uint64, tag = "500")]
        far: u64,
    }

    fn method() -> Method {
        Method { class: 1, class_max: 2, slo_us: 500, slo_field: 3, ..Method::default() }
    }

    #[test]
    fn metadata_wins_over_message_field_over_method_default() {
        let request = Request { slo_us: 100, ..Request::default() }.encode_to_vec();
        let micros = |slo| Some(Nanos::from_micros(slo));
        let nothing = Asked::default();
        let slo = Asked { slo_us: Some(7), ..nothing };
        let class = Asked { class: Some(0), ..nothing };
        assert_eq!(classify(&method(), slo, Some(&request)), (1, micros(7)));
        assert_eq!(classify(&method(), class, Some(&request)), (0, micros(500)));
        assert_eq!(classify(&method(), nothing, Some(&request)), (1, micros(100)));
        assert_eq!(classify(&method(), nothing, Some(&[])), (1, micros(500)));
        assert_eq!(classify(&method(), nothing, None), (1, micros(500)));
        assert_eq!(classify(&Method::default(), nothing, Some(&request)), (0, None));
    }

    #[test]
    fn class_above_the_methods_highest_is_capped() {
        let asked = Asked { class: Some(255), slo_us: None };
        assert_eq!(classify(&method(), asked, None).0, 2);
    }

    #[test]
    fn last_occurrence_of_a_field_counts() {
        let one = Request { slo_us: 1, ..Request::default() }.encode_to_vec();
        let two = Request { slo_us: 2, ..Request::default() }.encode_to_vec();
        assert_eq!(varint_field(&[one, two].concat(), 3), Some(2));
    }

    proptest! {
        #[test]
        fn field_is_found_among_others(
            key in ".{0,40}", hash: u64, slo_us in 1u64.., share in 0.1f32..1.0, far in 1u64..,
        ) {
            let bytes = Request { key, hash, slo_us, share, far }.encode_to_vec();
            prop_assert_eq!(varint_field(&bytes, 3), Some(slo_us));
            prop_assert_eq!(varint_field(&bytes, 500), Some(far));
            prop_assert_eq!(varint_field(&bytes, 1), None);
        }

        #[test]
        fn arbitrary_bytes_are_searched_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = varint_field(&bytes, 3);
        }
    }
}
