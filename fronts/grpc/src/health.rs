//! `grpc.health.v1.Health`, which the front answers: whether a host is attached.

use bytes::Bytes;
use prost::Message;
use wave_rpc::status::{Code, Status};

use crate::methods::Methods;

/// Full name of the health service.
pub const NAME: &str = "grpc.health.v1.Health";

/// The message `HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Name of the service to check; the whole server if empty.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The message `HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Response {
    /// A [`Health`] as its number.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Health {
    /// A host is attached and answers calls.
    Serving = 1,
    /// No host is attached, or the front is about to end.
    NotServing = 2,
    /// No service of this name is known.
    Unknown = 3,
}

impl Health {
    pub fn of(service: &str, methods: Option<&Methods>, is_serving: bool) -> Health {
        let is_known = service.is_empty()
            || service == NAME
            || methods.is_some_and(|methods| methods.services().contains(service));
        match (is_known, is_serving) {
            (false, _) => Health::Unknown,
            (true, true) => Health::Serving,
            (true, false) => Health::NotServing,
        }
    }

    pub fn message(self) -> Bytes {
        Response { status: self as i32 }.encode_to_vec().into()
    }
}

/// The name of the service in a request.
pub fn service(message: &[u8]) -> Result<String, Status> {
    let request = Request::decode(message);
    let request = request
        .map_err(|error| Status::new(Code::Internal, format!("no HealthCheckRequest: {error}")))?;
    Ok(request.service)
}

/// The reply to a `Check`.
pub fn check(message: &[u8], methods: Option<&Methods>, is_serving: bool) -> Result<Bytes, Status> {
    let name = service(message)?;
    match Health::of(&name, methods, is_serving) {
        Health::Unknown => {
            Err(Status::new(Code::NotFound, format!("no service is called `{name}`")))
        }
        health => Ok(health.message()),
    }
}

#[cfg(test)]
mod tests {
    use wave_rpc::service::{Method, Service};

    use super::*;

    #[test]
    fn health_of_unknown_services_is_not_found() {
        let method = Method { path: "/kv.Store/Get".into(), ..Method::default() };
        let methods = Methods::new(Service { methods: vec![method], descriptors: vec![] });
        let check = |name: &str, is_serving| {
            let request = Request { service: name.into() }.encode_to_vec();
            let answer = check(&request, Some(&methods), is_serving)?;
            Ok::<_, Status>(Response::decode(answer).unwrap().status)
        };
        assert_eq!(check("", true), Ok(1));
        assert_eq!(check("kv.Store", true), Ok(1));
        assert_eq!(check("kv.Store", false), Ok(2));
        assert_eq!(check("kv.Other", true).unwrap_err().code, Code::NotFound);
        assert_eq!(super::check(&[0xff], None, true).unwrap_err().code, Code::Internal);
        assert_eq!(Health::of("kv.Store", None, false), Health::Unknown);
    }
}
