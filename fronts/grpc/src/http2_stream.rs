//! One stream of HTTP/2, as a call uses it. Nothing above this file and `http2.rs` knows h2.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};

use crate::frames::Frame;

/// The stream is no more: the client reset it or has gone, or it was closed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// What a client sends and is answered.
pub struct Stream {
    body: RecvStream,
    respond: SendResponse<Frame>,
    /// Once headers were sent.
    replies: Option<SendStream<Frame>>,
}

impl Stream {
    /// Of a request that was accepted.
    pub fn new(body: RecvStream, respond: SendResponse<Frame>) -> Stream {
        Stream { body, respond, replies: None }
    }

    /// The next piece of what the client sends; `None` where it sends nothing more.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Gone>> {
        Poll::Ready(match ready!(self.body.poll_data(cx)) {
            Some(Ok(piece)) => Ok(Some(piece)),
            // What was reset without an error was ended by the client all the same.
            Some(Err(_)) => Err(Gone),
            None => Ok(None),
        })
    }

    /// Whether it is known that the client sends nothing more.
    pub fn is_end(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Lets the client send `bytes` more bytes.
    pub fn release(&mut self, bytes: usize) {
        // It fails where more is released than came, which the caller does not do.
        let _ = self.body.flow_control().release_capacity(bytes);
    }

    /// Sends headers, and with `end` nothing else.
    pub fn respond(&mut self, response: Response<()>, end: bool) -> Result<(), Gone> {
        self.replies = Some(self.respond.send_response(response, end).map_err(|_| Gone)?);
        Ok(())
    }

    /// Lets the client send its whole request, and answers with headers and this text, if any, and nothing else. An answer
    /// in the middle of a request tells the client to send no more of it (RFC 9113, 8.1): then what HTTP/2 forbids in the rest
    /// goes unpunished, and clients of HTTP that do not look for answers meanwhile take it for a broken connection.
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
        // HTTP/2 keeps it until the client has room for it.
        let text = Frame::bare(Bytes::from_static(text.as_bytes()));
        self.replies.as_mut().ok_or(Gone)?.send_data(text, true).map_err(|_| Gone)
    }

    /// Whether headers were sent.
    pub fn has_responded(&self) -> bool {
        self.replies.is_some()
    }

    /// How much of `wanted` bytes the client has room for now.
    pub fn room(&mut self, wanted: usize) -> usize {
        let Some(replies) = &mut self.replies else { return 0 };
        replies.reserve_capacity(wanted);
        replies.capacity().min(wanted)
    }

    /// Waits until [`Stream::room`] is worth another look.
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

    /// Sends trailers, and nothing else.
    pub fn trailers(&mut self, trailers: HeaderMap) -> Result<(), Gone> {
        self.replies.as_mut().ok_or(Gone)?.send_trailers(trailers).map_err(|_| Gone)
    }

    /// Ends the stream in the middle of a message.
    pub fn reset(&mut self, why: Reason) {
        self.respond.send_reset(why);
    }

    /// Waits until the stream is no more.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        let gone = match &mut self.replies {
            Some(replies) => replies.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        gone.map(|_| Gone)
    }
}
