//! Parsing of a request's headers.

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Uri};
use wave_core::clock::Nanos;
use wave_rpc::status::{Code, Status};

use crate::class::Asked;
use crate::metadata;
use crate::timeout;

/// A request without its path and its messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// How long the client waits.
    pub timeout: Option<Nanos>,
    /// Whether the request's messages may be compressed.
    pub gzip: bool,
    /// Whether the client accepts compressed replies.
    pub accepts_gzip: bool,
    /// Class and SLO that the request asks for.
    pub asked: Asked,
    /// Metadata for the handler, encoded.
    pub metadata: Bytes,
}

/// Why a request is refused at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is malformed in HTTP/2's sense.
    Malformed,
    /// The request is not gRPC.
    Http(StatusCode),
    /// A gRPC header is invalid.
    Grpc(Status),
    /// The messages are compressed in an unknown way.
    Encoding(Status),
}

/// Reads a request's headers.
pub fn read(parts: &Parts) -> Result<Request, Refusal> {
    // Only CONNECT has no path (RFC 9113, 8.3.1). h2 does not check this if there is no `:authority`.
    if !has_path(&parts.uri) && parts.method != Method::CONNECT {
        return Err(Refusal::Malformed);
    }
    if parts.method != Method::POST {
        return Err(Refusal::Http(StatusCode::METHOD_NOT_ALLOWED));
    }
    let mut request = Request::default();
    let mut metadata = Vec::new();
    let mut is_grpc = false;
    let invalid = |what: String| Refusal::Grpc(Status::new(Code::Internal, what));
    for (name, value) in &parts.headers {
        match name.as_str() {
            "content-type" => is_grpc = is_grpcs(value.as_bytes()),
            "te" | "user-agent" | "content-length" | "host" => {}
            "grpc-timeout" => {
                let timeout = timeout::parse(value.as_bytes());
                request.timeout = Some(timeout.map_err(|error| invalid(error.to_string()))?);
            }
            "grpc-encoding" => request.gzip = is_gzip(value)?,
            "grpc-accept-encoding" => request.accepts_gzip |= names_gzip(value),
            "x-wave-class" => request.asked.class = number(value).map(|class| class.min(255) as u8),
            "x-wave-slo-us" => request.asked.slo_us = number(value),
            own if own.starts_with("grpc-") => {}
            name => {
                let added = metadata::add(&mut metadata, name, value);
                added.map_err(|error| invalid(format!("{error}: {name}")))?;
            }
        }
    }
    if !is_grpc {
        return Err(Refusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    request.metadata = metadata.into();
    Ok(request)
}

/// Whether there is a path. An absent one is shown as `/`, but is not equal to it.
fn has_path(uri: &Uri) -> bool {
    let root = PathAndQuery::from_static("/");
    uri.path_and_query().is_some_and(|path| path.as_str() != root.as_str() || *path == root)
}

/// Whether the type is `application/grpc`, alone or with a suffix after `+` or `;`.
fn is_grpcs(content_type: &[u8]) -> bool {
    let rest = content_type.strip_prefix(b"application/grpc");
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

fn is_gzip(encoding: &HeaderValue) -> Result<bool, Refusal> {
    match encoding.as_bytes() {
        b"identity" => Ok(false),
        b"gzip" => Ok(true),
        other => {
            let text = format!(
                "messages are compressed by {:?}; known here are identity and gzip",
                String::from_utf8_lossy(&other[..other.len().min(32)])
            );
            Err(Refusal::Encoding(Status::new(Code::Unimplemented, text)))
        }
    }
}

fn names_gzip(encodings: &HeaderValue) -> bool {
    encodings.as_bytes().split(|&byte| byte == b',').any(|name| name.trim_ascii() == b"gzip")
}

/// Parses a number; larger ones count as the largest. A value that is not a number counts as absent.
fn number(value: &HeaderValue) -> Option<u32> {
    let digits = value.to_str().ok()?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(headers: &[(&str, &str)]) -> Result<Request, Refusal> {
        let mut request = http::Request::post("/a.B/C").header("te", "trailers");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        read(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn grpc_content_types_are_recognized() {
        for good in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
            assert!(read_with(&[("content-type", good)]).is_ok(), "{good}");
        }
        for bad in ["", "application/json", "application/grpc-web", "text/application/grpc"] {
            let refusal = Err(Refusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE));
            assert_eq!(read_with(&[("content-type", bad)]), refusal, "{bad}");
        }
        let get = http::Request::get("/a.B/C").body(()).unwrap().into_parts().0;
        assert_eq!(read(&get), Err(Refusal::Http(StatusCode::METHOD_NOT_ALLOWED)));
    }

    #[test]
    fn protocol_headers_are_parsed_and_not_passed_on() {
        let request = read_with(&[
            ("grpc-timeout", "5m"),
            ("grpc-encoding", "gzip"),
            ("grpc-accept-encoding", "identity, deflate,gzip"),
            ("grpc-future", "x"),
            ("user-agent", "me"),
            ("x-wave-class", "999"),
            ("x-wave-slo-us", "50"),
        ]);
        let asked = Asked { class: Some(255), slo_us: Some(50) };
        let timeout = Some(Nanos::from_millis(5));
        let expected =
            Request { timeout, gzip: true, accepts_gzip: true, asked, metadata: Bytes::new() };
        assert_eq!(request, Ok(expected));
        let nonsense = read_with(&[("x-wave-class", "-1"), ("x-wave-slo-us", "")]).unwrap();
        assert_eq!(nonsense.asked, Asked::default());
    }

    #[test]
    fn invalid_headers_are_refused_as_grpc_specifies() {
        let code = |headers: &[(&str, &str)]| match read_with(headers) {
            Err(Refusal::Grpc(status) | Refusal::Encoding(status)) => Some(status.code),
            _ => None,
        };
        assert_eq!(code(&[("grpc-timeout", "5")]), Some(Code::Internal));
        assert_eq!(code(&[("x-bin", "?")]), Some(Code::Internal));
        assert_eq!(code(&[("grpc-encoding", "snappy")]), Some(Code::Unimplemented));
        assert_eq!(code(&[("grpc-encoding", "identity")]), None);
    }
}
