//! Kinds of requests in datagrams: their encoding, and the check of their replies.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::Settings;
use crate::arrivals::{self, Class, Mix};
use crate::generator::Request;
use crate::grpc::proto::echo::{Payload, Work};
use crate::grpc::proto::kv::{GetReply, GetRequest, PutReply, PutRequest};
use crate::rocksdb::{is_value_of, write_value};

/// Maximum work that a request may ask for.
const SPIN_MAX: Duration = crate::grpc::store::SPIN_MAX;

/// A unary method of the services in `proto/`, which a server registers in this order: Echo, Spin, Get, Put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An echo, `Echo.Unary`.
    Echo,
    /// `Echo.Spin` for this time.
    Spin(Duration),
    /// A read of the store, `Store.Get`.
    Get,
    /// `Store.Put` of a unique key.
    Put,
}

impl Kind {
    pub(super) fn method(self) -> u16 {
        match self {
            Kind::Echo => 0,
            Kind::Spin(_) => 1,
            Kind::Get => 2,
            Kind::Put => 3,
        }
    }

    pub(super) fn is_idempotent(self) -> bool {
        self != Kind::Put
    }

    pub(super) fn work_ns(self) -> u32 {
        match self {
            Kind::Spin(time) => time.as_nanos() as u32,
            _ => 0,
        }
    }

    pub(super) fn write(self, request: &Request, settings: &Settings, into: &mut Vec<u8>) {
        let bytes = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
        let written = match self {
            Kind::Echo => Payload { body: value(request.key, settings) }.encode(into),
            Kind::Spin(time) => Work { ns: time.as_nanos() as u64 }.encode(into),
            Kind::Get => GetRequest { slo_us: 0, key: bytes(request.key) }.encode(into),
            Kind::Put => {
                let key = own_key(request, settings);
                PutRequest { slo_us: 0, key: bytes(key), value: value(key, settings) }.encode(into)
            }
        };
        written.expect("writing to a vector does not fail");
    }

    pub(super) fn is_right(self, request: &Request, settings: &Settings, message: &[u8]) -> bool {
        match self {
            Kind::Echo => Payload::decode(message).is_ok_and(|reply| {
                reply.body.len() == settings.value_bytes && is_value_of(request.key, &reply.body)
            }),
            Kind::Spin(time) => {
                Work::decode(message).is_ok_and(|work| u128::from(work.ns) == time.as_nanos())
            }
            Kind::Get => {
                GetReply::decode(message).is_ok_and(|reply| is_value_of(request.key, &reply.value))
            }
            Kind::Put => PutReply::decode(message).is_ok(),
        }
    }
}

/// Key of a PUT, unique in its run.
fn own_key(request: &Request, settings: &Settings) -> u64 {
    settings.keys + (settings.run << 40) + request.id
}

fn value(key: u64, settings: &Settings) -> Bytes {
    let mut value = vec![0; settings.value_bytes];
    write_value(key, &mut value);
    value.into()
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Echo => f.write_str("ECHO"),
            Kind::Spin(time) if time.subsec_nanos() % 1_000_000 == 0 => {
                write!(f, "{}ms", time.as_millis())
            }
            Kind::Spin(time) => write!(f, "{}us", time.as_nanos() as f64 / 1e3),
            Kind::Get => f.write_str("GET"),
            Kind::Put => f.write_str("PUT"),
        }
    }
}

/// Kinds with their weights, as in `get=9,put=1` or `5us=99.5,100us=0.5`.
#[derive(Clone, Debug, PartialEq)]
pub struct UdpMix(pub Vec<(Kind, f64)>);

impl UdpMix {
    /// The mix for arrivals and a recorder: a class for each kind, in order.
    ///
    /// # Errors
    /// A weight is invalid, or all are 0.
    pub fn mix(&self) -> Result<Mix, arrivals::Error> {
        let names: Vec<_> =
            self.0.iter().map(|(kind, weight)| (kind.to_string(), *weight)).collect();
        let named: Vec<_> = names.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
        Mix::new(&named)
    }

    /// Class of a request: 1 for every spinning kind except the first, 0 otherwise.
    pub(super) fn class(&self, class: Class) -> u8 {
        let is_spin = |(kind, _): &&(Kind, f64)| matches!(kind, Kind::Spin(_));
        let before = self.0[..usize::from(class.0)].iter().filter(is_spin).count();
        let own = self.0.get(usize::from(class.0)).filter(is_spin);
        u8::from(own.is_some() && before > 0)
    }
}

impl fmt::Display for UdpMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, weight)) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}={weight}", kind.to_string().to_ascii_lowercase())?;
        }
        Ok(())
    }
}

/// A text cannot be parsed as a [`UdpMix`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseError {
    /// A part is not a kind and a number.
    #[error(
        "`{0}` is not KIND=NUMBER, as in `get=9,put=1` or `5us=99.5,100us=0.5`, with a number of 0 or more"
    )]
    Part(String),
    #[error(
        "unknown kind `{0}`: expected get, put, echo, or a time of work up to 1000ms, such as 5us"
    )]
    Kind(String),
    #[error("`{0}` occurs twice")]
    Twice(Kind),
}

impl FromStr for UdpMix {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<UdpMix, ParseError> {
        let mut found: Vec<(Kind, f64)> = Vec::new();
        for part in text.split(',') {
            let bad = || ParseError::Part(part.to_owned());
            let (name, weight) = part.split_once('=').ok_or_else(bad)?;
            let kind = match name.to_ascii_lowercase().as_str() {
                "get" => Kind::Get,
                "put" => Kind::Put,
                "echo" => Kind::Echo,
                other => spin(other).ok_or_else(|| ParseError::Kind(name.to_owned()))?,
            };
            if found.iter().any(|(each, _)| *each == kind) {
                return Err(ParseError::Twice(kind));
            }
            let weight: Option<f64> = weight.parse().ok();
            let weight = weight.filter(|weight| weight.is_finite() && *weight >= 0.0);
            found.push((kind, weight.ok_or_else(bad)?));
        }
        Ok(UdpMix(found))
    }
}

fn spin(text: &str) -> Option<Kind> {
    let (number, ns) = match text.strip_suffix("us") {
        Some(number) => (number, 1e3),
        None => (text.strip_suffix("ms")?, 1e6),
    };
    let number: f64 = number.parse().ok()?;
    let ns = (number * ns).round();
    let is_time = ns >= 1.0 && ns <= SPIN_MAX.as_nanos() as f64;
    is_time.then(|| Kind::Spin(Duration::from_nanos(ns as u64)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn mix_round_trips_through_text(us in 1u64..1_000_000, weights in prop::collection::vec(0f64..1e6, 4)) {
            let kinds = [Kind::Echo, Kind::Spin(Duration::from_micros(us)), Kind::Get, Kind::Put];
            let mix = UdpMix(kinds.into_iter().zip(weights).collect());
            prop_assert_eq!(mix.to_string().parse(), Ok(mix));
        }
    }

    #[test]
    fn invalid_mixes_are_rejected_with_the_cause() {
        let error = |text: &str| text.parse::<UdpMix>().unwrap_err().to_string();
        for (text, named) in [
            ("", "KIND=NUMBER"),
            ("get", "`get`"),
            ("get=-1", "0 or more"),
            ("range=1", "`range`"),
            ("2s=1", "`2s`"),
            ("1001ms=1", "1000ms"),
            ("5us=1,5us=2", "`5us`"),
        ] {
            assert!(error(text).contains(named), "{text}: {}", error(text));
        }
    }

    #[test]
    fn longer_work_has_its_own_class() {
        let mix: UdpMix = "5us=99.5,get=1,100us=0.5".parse().unwrap();
        assert_eq!([0, 1, 2].map(|at| mix.class(Class(at))), [0, 0, 1]);
    }
}
