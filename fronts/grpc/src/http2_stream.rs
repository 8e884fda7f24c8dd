//! One HTTP/2 stream, as a call uses it. Only this file and `http2.rs` know h2.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};

use crate::frames::Frame;

/// The stream has ended: the client reset it or has gone, or it was closed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Both directions of a stream.
pub struct Stream {
    body: RecvStream,
    respond: SendResponse<Frame>,
    /// The sending half, once headers were sent.
    replies: Option<SendStream<Frame>>,
}

impl Stream {
    /// The stream of an accepted request.
    pub fn new(body: RecvStream, respond: SendResponse<Frame>) -> Stream {
        Stream { body, respond, replies: None }
    }

    /// The next piece of the client's data; `None` if the client sends nothing more.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Gone>> {
        Poll::Ready(match ready!(self.body.poll_data(cx)) {
            Some(Ok(piece)) => Ok(Some(piece)),
            // A reset without an error also means that the client ended the stream.
            Some(Err(_)) => Err(Gone),
            None => Ok(None),
        })
    }

    /// Whether the client is known to send nothing more.
    pub fn is_end(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Lets the client send `bytes` more bytes.
    pub fn release(&mut self, bytes: usize) {
        // It fails only if more is released than arrived, which callers do not do.
        let _ = self.body.flow_control().release_capacity(bytes);
    }

    /// Sends headers, and with `end` nothing else.
    pub fn respond(&mut self, response: Response<()>, end: bool) -> Result<(), Gone> {
        self.replies = Some(self.respond.send_response(response, end).map_err(|_| Gone)?);
        Ok(())
    }

    /// Lets the client send its whole request, and then answers with only headers and this text, if any. An answer in the
    /// middle of a request would tell the client to stop sending (RFC 9113, 8.1): violations of HTTP/2 in the rest would go
    /// undetected, and HTTP clients that do not read answers meanwhile would take it for a broken connection.
    pub async fn respond_at_end(
        mut self,
        response: Response<()>,
        text: Option<&'static str>,
    ) -> Result<(), Gone> {
        while let Some(piece) = poll_fn(|cx| self.poll_data(cx)).await? {
            self.release(piece.len());
        }
        self.respond(response, text.is_none())?;
        let Some(text) = text else { return Ok(()) };
        // h2 keeps the text until the client has room for it.
        let text = Frame::bare(Bytes::from_static(text.as_bytes()));
        self.replies.as_mut().ok_or(Gone)?.send_data(text, true).map_err(|_| Gone)
    }

    /// Whether headers were sent.
    pub fn has_responded(&self) -> bool {
        self.replies.is_some()
    }

    /// How many of `wanted` bytes the client has room for now.
    pub fn room(&mut self, wanted: usize) -> usize {
        let Some(replies) = &mut self.replies else { return 0 };
        replies.reserve_capacity(wanted);
        replies.capacity().min(wanted)
    }

    /// Waits until [`Stream::room`] may have grown.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let Some(replies) = &mut self.replies else { return Poll::Pending };
        Poll::Ready(match ready!(replies.poll_capacity(cx)) {
            Some(Ok(_)) => Ok(()),
            Some(Err(_)) | None => Err(Gone),
        })
    }

    /// Sends a message, or a piece of one.
    pub fn send(&mut self, frame: Frame) -> Result<(), Gone> {
        self.replies.as_mut().ok_or(Gone)?.send_data(frame, false).map_err(|_| Gone)
    }

    /// Sends trailers, which end the stream.
    pub fn trailers(&mut self, trailers: HeaderMap) -> Result<(), Gone> {
        self.replies.as_mut().ok_or(Gone)?.send_trailers(trailers).map_err(|_| Gone)
    }

    /// Ends the stream in the middle of a message.
    pub fn reset(&mut self, why: Reason) {
        self.respond.send_reset(why);
    }

    /// Waits until the stream has ended.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        let gone = match &mut self.replies {
            Some(replies) => replies.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        gone.map(|_| Gone)
    }
}
