//! A host's description of its service: methods, the classes of their requests, and descriptors. The host sends it to the
//! agent:
//!
//! ```text
//! u16 methods, then each: u8 flags, u8 class, u8 highest class, u32 slo in microseconds, u16 field, u16 length, path
//! u32 length, a google.protobuf.FileDescriptorSet
//! ```
//! All little-endian. A path is `/package.Service/Method`.

use alloc::string::String;
use alloc::vec::Vec;

/// Most methods that one host may serve.
pub const METHODS_MAX: usize = 1024;
/// Most bytes of an encoded service.
pub const BYTES_MAX: usize = 4 << 20;

/// A method of a service, with its class and latency objective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Method {
    /// Path of the method: `/package.Service/Method`.
    pub path: String,
    /// Whether the client sends a stream.
    pub client_streams: bool,
    /// Whether the server sends a stream.
    pub server_streams: bool,
    /// Class of the method's requests that do not ask for another.
    pub class: u8,
    /// The highest class that a request may ask for, because clients are not trusted.
    pub class_max: u8,
    /// Latency objective of the method's requests, in microseconds; 0 for none.
    pub slo_us: u32,
    /// Number of the request's protobuf field, a varint, that holds its SLO in microseconds (Wave 7.3.2); 0 for none.
    pub slo_field: u16,
}

/// The description of everything that a host serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// The methods. A BEGIN names one by its index.
    pub methods: Vec<Method>,
    /// A serialized `google.protobuf.FileDescriptorSet`, for reflection; may be empty.
    pub descriptors: Vec<u8>,
}

/// An invalid service: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: the description of its service is invalid: {0}")]
pub struct BadService(pub &'static str);

const CLIENT_STREAMS: u8 = 1;
const SERVER_STREAMS: u8 = 2;

impl Service {
    /// Encodes the service.
    ///
    /// # Panics
    /// There are more methods or descriptors, or longer paths, than the format has room for ([`Service::check`]).
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let methods = u16::try_from(self.methods.len()).expect("few methods");
        bytes.extend_from_slice(&methods.to_le_bytes());
        for method in &self.methods {
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            let flags = flag(method.client_streams, CLIENT_STREAMS)
                | flag(method.server_streams, SERVER_STREAMS);
            bytes.extend_from_slice(&[flags, method.class, method.class_max]);
            bytes.extend_from_slice(&method.slo_us.to_le_bytes());
            bytes.extend_from_slice(&method.slo_field.to_le_bytes());
            let length = u16::try_from(method.path.len()).expect("a short path");
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(method.path.as_bytes());
        }
        let length = u32::try_from(self.descriptors.len()).expect("few descriptors");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.descriptors);
        bytes
    }

    /// Decodes and checks a service ([`Service::check`]).
    pub fn decode(bytes: &[u8]) -> Result<Service, BadService> {
        let mut rest = Reader(bytes);
        let count = u16::from_le_bytes(rest.array()?);
        let mut methods = Vec::with_capacity(usize::from(count).min(METHODS_MAX));
        for _ in 0..count {
            let [flags, class, class_max] = rest.array()?;
            let slo_us = u32::from_le_bytes(rest.array()?);
            let slo_field = u16::from_le_bytes(rest.array()?);
            let length = u16::from_le_bytes(rest.array()?);
            let path = core::str::from_utf8(rest.take(length.into())?);
            methods.push(Method {
                path: path.map_err(|_| BadService("a path is not UTF-8"))?.into(),
                client_streams: flags & CLIENT_STREAMS != 0,
                server_streams: flags & SERVER_STREAMS != 0,
                class,
                class_max,
                slo_us,
                slo_field,
            });
        }
        let length = u32::from_le_bytes(rest.array()?);
        let descriptors = rest.take(length as usize)?.to_vec();
        if !rest.0.is_empty() {
            return Err(BadService("bytes are left after its end"));
        }
        let service = Service { methods, descriptors };
        service.check()?;
        Ok(service)
    }

    /// Checks counts, paths and classes.
    pub fn check(&self) -> Result<(), BadService> {
        if self.methods.is_empty() || self.methods.len() > METHODS_MAX {
            return Err(BadService("it has no methods, or more than 1024"));
        }
        for (at, method) in self.methods.iter().enumerate() {
            let parts = method.path.strip_prefix('/').and_then(|path| path.split_once('/'));
            let is_path = parts.is_some_and(|(service, name)| {
                !service.is_empty() && !name.is_empty() && !name.contains('/')
            });
            if !is_path || !method.path.is_ascii() || method.path.len() > 1024 {
                return Err(BadService("a path does not have the form /service/method"));
            }
            if method.class > method.class_max {
                return Err(BadService("a method's class is above its highest class"));
            }
            if self.methods[..at].iter().any(|earlier| earlier.path == method.path) {
                return Err(BadService("two methods have the same path"));
            }
        }
        if self.descriptors.len() > BYTES_MAX / 2 {
            return Err(BadService("its descriptors have more than 2 MiB"));
        }
        Ok(())
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], BadService> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(BadService("it is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadService> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BadService("it is cut off"))?;
        self.0 = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn service() -> Service {
        let get =
            Method { path: "/kv.Store/Get".into(), slo_us: 100, slo_field: 3, ..Method::default() };
        let scan = Method {
            path: "/kv.Store/Scan".into(),
            server_streams: true,
            class: 1,
            class_max: 2,
            ..Method::default()
        };
        Service { methods: vec![get, scan], descriptors: vec![1, 2, 3] }
    }

    #[test]
    fn services_round_trip_and_truncated_ones_are_refused() {
        let bytes = service().encode();
        assert_eq!(Service::decode(&bytes), Ok(service()));
        for end in 0..bytes.len() {
            assert!(Service::decode(&bytes[..end]).is_err(), "cut off at {end}");
        }
        assert!(Service::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn paths_and_classes_are_checked() {
        for path in ["", "/", "kv/Get", "/kv", "/kv/", "//Get", "/kv/Get/x", "/kv.Store/Scan"] {
            let mut service = service();
            service.methods[0].path = path.into();
            assert!(service.check().is_err(), "{path}");
        }
        let mut service = service();
        service.methods[1].class = 3;
        assert!(service.check().is_err());
    }
}
