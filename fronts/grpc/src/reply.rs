//! Headers and trailers of replies. The common ones are made once.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use wave_rpc::status::{Code, Status};

use crate::metadata::{self, BadReply};
use crate::percent;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Prepared headers and trailers of most replies.
#[derive(Debug)]
pub struct Templates {
    headers: HeaderMap,
    ok: HeaderMap,
}

impl Default for Templates {
    fn default() -> Templates {
        let mut headers = HeaderMap::with_capacity(1);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let mut ok = HeaderMap::with_capacity(1);
        ok.insert(GRPC_STATUS, HeaderValue::from_static("0"));
        Templates { headers, ok }
    }
}

impl Templates {
    /// Headers before the first message.
    pub fn headers(&self, gzip: bool, metadata: &[u8]) -> Result<HeaderMap, BadReply> {
        let mut headers = self.headers.clone();
        if gzip {
            headers.insert(GRPC_ENCODING, HeaderValue::from_static("gzip"));
            headers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity,gzip"));
        }
        if !metadata.is_empty() {
            metadata::append(&mut headers, metadata)?;
        }
        Ok(headers)
    }

    /// Trailers after the last message of a successful call.
    pub fn ok(&self) -> HeaderMap {
        self.ok.clone()
    }

    pub fn trailers(&self, status: &Status, metadata: &[u8]) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(2);
        write_status(&mut trailers, status);
        match metadata::append(&mut trailers, metadata) {
            Ok(()) => trailers,
            Err(error) => {
                let mut trailers = HeaderMap::with_capacity(2);
                write_status(&mut trailers, &Status::new(Code::Internal, error.to_string()));
                trailers
            }
        }
    }

    /// Makes a Trailers-Only response: headers that are the trailers as well.
    pub fn only(&self, trailers: HeaderMap) -> HeaderMap {
        let mut headers = trailers;
        headers.insert(CONTENT_TYPE, self.headers[CONTENT_TYPE].clone());
        headers
    }

    /// An answer that consists of a status only.
    pub fn refusal(&self, status: &Status, tell_encodings: bool) -> Response<()> {
        let mut headers = self.only(self.trailers(status, &[]));
        if tell_encodings {
            headers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity,gzip"));
        }
        response(headers)
    }
}

fn write_status(headers: &mut HeaderMap, status: &Status) {
    headers.insert(GRPC_STATUS, HeaderValue::from(status.code as u16));
    if !status.message.is_empty() {
        headers.insert(GRPC_MESSAGE, percent::encode(&status.message));
    }
}

pub fn response(headers: HeaderMap) -> Response<()> {
    let mut response = Response::new(());
    *response.headers_mut() = headers;
    response
}

/// An answer to a request that is not gRPC.
pub fn not_grpc(code: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = code;
    let text = HeaderValue::from_static("text/plain");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

pub const NOT_GRPC: &str = "gRPC is spoken here: POST, and content-type application/grpc\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_a_number_and_an_encoded_text() {
        let templates = Templates::default();
        let mut metadata = Vec::new();
        wave_rpc::metadata::push(&mut metadata, "grpc-status-details-bin", &[0, 1]).unwrap();
        wave_rpc::metadata::push(&mut metadata, "k", b"v").unwrap();
        let trailers = templates.trailers(&Status::new(Code::NotFound, "no 100%"), &metadata);
        assert_eq!(trailers["grpc-status"], "5");
        assert_eq!(trailers["grpc-message"], "no 100%25");
        assert_eq!(trailers["grpc-status-details-bin"], "AAE");
        assert_eq!(trailers["k"], "v");
        assert_eq!(templates.only(trailers)["content-type"], "application/grpc");
    }

    #[test]
    fn malformed_trailers_become_an_internal_error() {
        let trailers = Templates::default().trailers(&Status::ok(), &[9]);
        assert_eq!(trailers["grpc-status"], "13");
    }
}
