//! Calls of a load: the mix of kinds, the encoding of each, and the check of its reply.

use std::fmt;
use std::str::FromStr;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use prost::Message;

use crate::arrivals::{self, Class, Mix};
use crate::grpc::proto::echo::Payload;
use crate::grpc::proto::kv::{
    GetReply, GetRequest, PutReply, PutRequest, RangeReply, RangeRequest,
};
use crate::rocksdb::{is_value_of, write_value};

/// Length of the prefix of each message: a compressed flag and the message's length.
pub(super) const PREFIX_BYTES: usize = 5;

/// A method of the services in `proto/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call of the store's `Get`.
    Get,
    /// A call of the store's `Put`, with the value that the key already has.
    Put,
    /// A call of the store's `Range`.
    Range,
    /// A call of the echo's `Unary`.
    Echo,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Get, Kind::Put, Kind::Range, Kind::Echo];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Get => "GET",
            Kind::Put => "PUT",
            Kind::Range => "RANGE",
            Kind::Echo => "ECHO",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Kind::Get => "/wave.kv.v1.Store/Get",
            Kind::Put => "/wave.kv.v1.Store/Put",
            Kind::Range => "/wave.kv.v1.Store/Range",
            Kind::Echo => "/wave.echo.v1.Echo/Unary",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number for each kind, as in `get=99.5,range=0.5`.
#[derive(Clone, Debug, PartialEq)]
pub struct ByKind(pub Vec<(Kind, f64)>);

impl ByKind {
    pub fn only(kind: Kind) -> ByKind {
        ByKind(vec![(kind, 1.0)])
    }

    fn of(&self, kind: Kind) -> Option<f64> {
        self.0.iter().find(|(each, _)| *each == kind).map(|(_, number)| *number)
    }
}

impl fmt::Display for ByKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, number)) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}={number}", kind.name().to_ascii_lowercase())?;
        }
        Ok(())
    }
}

/// A text cannot be parsed as [`ByKind`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseError {
    /// A part is not a kind and a number.
    #[error("`{0}` is not NAME=NUMBER, as in `get=99.5,range=0.5`, with a number of 0 or more")]
    Part(String),
    #[error("there is no `{0}`: expected get, put, range or echo")]
    Kind(String),
    #[error("`{0}` occurs twice")]
    Twice(Kind),
}

impl FromStr for ByKind {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<ByKind, ParseError> {
        let mut found = ByKind(Vec::new());
        for part in text.split(',') {
            let bad = || ParseError::Part(part.to_owned());
            let (name, number) = part.split_once('=').ok_or_else(bad)?;
            let kind = Kind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name));
            let kind = kind.ok_or_else(|| ParseError::Kind(name.to_owned()))?;
            let number: Option<f64> = number.parse().ok();
            let number = number.filter(|number| number.is_finite() && *number >= 0.0);
            if found.of(kind).is_some() {
                return Err(ParseError::Twice(kind));
            }
            found.0.push((kind, number.ok_or_else(bad)?));
        }
        Ok(found)
    }
}

/// Kinds and sizes of the calls that a load makes.
#[derive(Clone, Debug)]
pub struct CallSettings {
    /// The kinds with their weights.
    pub mix: ByKind,
    /// SLO of each kind in microseconds, sent in the request's `slo_us` and as `x-wave-slo-us`. Does not affect
    /// the measurement.
    pub slo_us: ByKind,
    /// Deadline sent as `grpc-timeout`, for the server to enforce: a later reply counts nevertheless.
    pub timeout_ms: Option<u32>,
    /// Keys are drawn from `0..keys`; the server must have them.
    pub keys: u64,
    /// Maximum number of pairs that a RANGE returns.
    pub range_limit: u32,
    /// Size of PUT values and of echoes, in bytes.
    pub value_bytes: usize,
}

impl CallSettings {
    /// A mix over `keys` keys, with values of 64 bytes and ranges of 100 pairs.
    pub fn new(mix: ByKind, keys: u64) -> CallSettings {
        CallSettings {
            mix,
            slo_us: ByKind(Vec::new()),
            timeout_ms: None,
            keys,
            range_limit: 100,
            value_bytes: 64,
        }
    }

    /// The mix, for arrivals and a recorder.
    pub fn mix(&self) -> Result<Mix, arrivals::Error> {
        let classes: Vec<_> =
            self.mix.0.iter().map(|(kind, weight)| (kind.name(), *weight)).collect();
        Mix::new(&classes)
    }
}

pub(super) struct Calls {
    settings: CallSettings,
    templates: Vec<Template>,
}

struct Template {
    kind: Kind,
    uri: Uri,
    headers: HeaderMap,
    slo_us: u32,
}

impl Calls {
    /// Calls to `authority`, a host and a port.
    pub(super) fn new(authority: &str, settings: &CallSettings) -> Result<Calls, http::Error> {
        let template = |kind: Kind| {
            let path = kind.path();
            let uri = Uri::builder().scheme("http").authority(authority).path_and_query(path);
            let mut headers = HeaderMap::new();
            headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
            let grpc = HeaderValue::from_static("application/grpc");
            headers.insert(http::header::CONTENT_TYPE, grpc);
            if let Some(ms) = settings.timeout_ms {
                let value = HeaderValue::try_from(format!("{ms}m"))?;
                headers.insert(HeaderName::from_static("grpc-timeout"), value);
            }
            let slo_us = settings.slo_us.of(kind).map_or(0, |us| us.round() as u32);
            if slo_us > 0 {
                headers.insert(HeaderName::from_static("x-wave-slo-us"), slo_us.into());
            }
            Ok(Template { kind, uri: uri.build()?, headers, slo_us })
        };
        let templates = settings.mix.0.iter().map(|(kind, _)| template(*kind));
        Ok(Calls {
            settings: settings.clone(),
            templates: templates.collect::<Result<_, http::Error>>()?,
        })
    }

    /// A request's head, and its message with the prefix.
    pub(super) fn request(&self, class: Class, key: u64) -> (Request<()>, Bytes) {
        let template = &self.templates[usize::from(class.0)];
        let slo_us = template.slo_us;
        let key_bytes = || Bytes::copy_from_slice(&key.to_be_bytes());
        let message = match template.kind {
            Kind::Get => framed(&GetRequest { slo_us, key: key_bytes() }),
            Kind::Put => framed(&PutRequest { slo_us, key: key_bytes(), value: self.value(key) }),
            Kind::Range => {
                let limit = self.settings.range_limit;
                framed(&RangeRequest { slo_us, start: key_bytes(), limit })
            }
            Kind::Echo => framed(&Payload { body: self.value(key) }),
        };
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = template.uri.clone();
        *request.headers_mut() = template.headers.clone();
        (request, message)
    }

    /// Whether `messages` are exactly the right reply.
    pub(super) fn is_right(&self, class: Class, key: u64, messages: &[Bytes]) -> bool {
        let kind = self.templates[usize::from(class.0)].kind;
        match (kind, messages) {
            (Kind::Get, [one]) => {
                GetReply::decode(&**one).is_ok_and(|reply| is_value_of(key, &reply.value))
            }
            (Kind::Put, [one]) => PutReply::decode(&**one).is_ok(),
            (Kind::Echo, [one]) => Payload::decode(&**one).is_ok_and(|reply| {
                reply.body.len() == self.settings.value_bytes && is_value_of(key, &reply.body)
            }),
            (Kind::Range, messages) => {
                let there = self.settings.keys.saturating_sub(key);
                let expected = there.min(self.settings.range_limit.into());
                range_is_right(key, expected, messages)
            }
            _ => false,
        }
    }

    fn value(&self, key: u64) -> Bytes {
        let mut value = BytesMut::zeroed(self.settings.value_bytes);
        write_value(key, &mut value);
        value.freeze()
    }
}

/// Checks a RANGE's reply. The server may have more keys than the load draws from, but not fewer.
fn range_is_right(first: u64, at_least: u64, messages: &[Bytes]) -> bool {
    let mut next = first;
    for message in messages {
        let Ok(reply) = RangeReply::decode(message.clone()) else { return false };
        for pair in reply.pairs {
            if *pair.key != next.to_be_bytes() || !is_value_of(next, &pair.value) {
                return false;
            }
            next += 1;
        }
    }
    next - first >= at_least
}

fn framed(message: &impl Message) -> Bytes {
    let bytes = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    framed.put_u8(0);
    framed.put_u32(bytes as u32);
    message.encode(&mut framed).expect("there is room");
    framed.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn mixes_round_trip_through_text(weights in prop::collection::vec(0f64..1e6, 4)) {
            let by_kind = ByKind(Kind::ALL.into_iter().zip(weights).collect());
            prop_assert_eq!(by_kind.to_string().parse(), Ok(by_kind));
        }
    }

    #[test]
    fn errors_in_a_mix_are_named() {
        let error = |text: &str| text.parse::<ByKind>().unwrap_err().to_string();
        for (text, named) in [
            ("", "NAME=NUMBER"),
            ("get", "`get`"),
            ("get=-1", "0 or more"),
            ("get=1,scan=2", "`scan`"),
            ("get=1,get=2", "`GET`"),
        ] {
            assert!(error(text).contains(named), "{text}: {}", error(text));
        }
    }

    #[test]
    fn only_the_right_reply_is_right() {
        let settings =
            CallSettings { range_limit: 3, ..CallSettings::new(ByKind::only(Kind::Range), 10) };
        let calls = Calls::new("host:1", &settings).unwrap();
        let reply = |keys: std::ops::Range<u64>| {
            let pair = |key: u64| crate::grpc::proto::kv::Pair {
                key: Bytes::copy_from_slice(&key.to_be_bytes()),
                value: calls.value(key),
            };
            Bytes::from(RangeReply { pairs: keys.map(pair).collect() }.encode_to_vec())
        };
        let right = |key, messages: &[Bytes]| calls.is_right(Class(0), key, messages);
        assert!(right(4, &[reply(4..7)]) && right(4, &[reply(4..6), reply(6..7)]));
        assert!(right(9, &[reply(9..10)]), "there are no more");
        assert!(!right(4, &[reply(4..6)]) && !right(4, &[reply(5..8)]) && !right(4, &[]));
        assert!(!right(4, &[Bytes::from_static(b"\xff")]));
    }
}
