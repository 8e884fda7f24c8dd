//! Reception of a call's reply from a server that may send anything.

use bytes::{Buf, Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream};
use http::{HeaderMap, StatusCode};

use super::calls::PREFIX_BYTES;

/// Maximum length of a message: gRPC's usual limit.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum total length of a reply.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// The number of gRPC's statuses: 0 is OK, 16 the last.
pub(super) const STATUSES: usize = 17;

/// A call that ended without a gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There was no connection on which to send it.
    Unconnected,
    /// Its connection was lost, or the server closed the connection without serving it.
    Connection,
    /// The server reset its stream.
    Reset,
    /// The answer is not gRPC: another HTTP status, a truncated message, no gRPC status, or too many bytes.
    NotGrpc,
}

impl Failure {
    pub const ALL: [Failure; 4] =
        [Failure::Unconnected, Failure::Connection, Failure::Reset, Failure::NotGrpc];

    pub fn name(self) -> &'static str {
        match self {
            Failure::Unconnected => "unconnected",
            Failure::Connection => "connection lost",
            Failure::Reset => "stream reset",
            Failure::NotGrpc => "not gRPC",
        }
    }
}

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Failure {
        match error.is_reset() && error.is_remote() && error.reason() != Some(Reason::NO_ERROR) {
            true => Failure::Reset,
            false => Failure::Connection,
        }
    }
}

/// A status, and the messages before it.
pub(super) struct Reply {
    pub(super) status: usize,
    pub(super) messages: Vec<Bytes>,
}

/// Waits for the whole reply.
pub(super) async fn receive(response: ResponseFuture) -> Result<Reply, Failure> {
    let response = response.await?;
    if response.status() != StatusCode::OK {
        return Err(Failure::NotGrpc);
    }
    // A reply of only a status has it in the head.
    if let Some(status) = status(response.headers())? {
        return Ok(Reply { status, messages: Vec::new() });
    }
    let mut body = response.into_body();
    let messages = messages(&mut body).await?;
    let trailers = body.trailers().await?.ok_or(Failure::NotGrpc)?;
    let status = status(&trailers)?.ok_or(Failure::NotGrpc)?;
    Ok(Reply { status, messages })
}

async fn messages(body: &mut RecvStream) -> Result<Vec<Bytes>, Failure> {
    let (mut messages, mut rest, mut in_all) = (Vec::new(), BytesMut::new(), 0);
    while let Some(data) = body.data().await {
        let mut data = data?;
        body.flow_control().release_capacity(data.len())?;
        in_all += data.len();
        if in_all > REPLY_BYTES_MAX {
            return Err(Failure::NotGrpc);
        }
        // Usually a frame is one message, which is then not copied.
        if rest.is_empty() {
            while let Some(message) = message(&mut data)? {
                messages.push(message);
            }
        }
        if !data.is_empty() {
            rest.extend_from_slice(&data);
            let mut whole = std::mem::take(&mut rest).freeze();
            while let Some(message) = message(&mut whole)? {
                messages.push(message);
            }
            rest = BytesMut::from(whole);
        }
    }
    if rest.is_empty() { Ok(messages) } else { Err(Failure::NotGrpc) }
}

/// Removes the first message from `bytes`, if it is complete.
fn message(bytes: &mut Bytes) -> Result<Option<Bytes>, Failure> {
    let &[compressed, a, b, c, d, ..] = &bytes[..] else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    // The request offered no compression.
    if compressed != 0 || length > MESSAGE_BYTES_MAX {
        return Err(Failure::NotGrpc);
    }
    if bytes.len() < PREFIX_BYTES + length {
        return Ok(None);
    }
    bytes.advance(PREFIX_BYTES);
    Ok(Some(bytes.split_to(length)))
}

/// The status, if there is one. As gRPC requires, numbers above its statuses count as UNKNOWN.
fn status(headers: &HeaderMap) -> Result<Option<usize>, Failure> {
    const UNKNOWN: usize = 2;
    let Some(value) = headers.get("grpc-status") else { return Ok(None) };
    let number: Option<usize> = value.to_str().ok().and_then(|text| text.parse().ok());
    let number = number.ok_or(Failure::NotGrpc)?;
    Ok(Some(if number < STATUSES { number } else { UNKNOWN }))
}
