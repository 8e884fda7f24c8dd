//! A connection's byte stream, from which its task reads no more than its quantum in a turn.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::round_robin::Flow;

/// A stream that is read by the task of `flow`. Writes are not limited: replies are bounded by windows and by
/// [`held_bytes`](crate::Limits::held_bytes), and their time counts as the task's.
pub struct Metered<T> {
    io: T,
    flow: Rc<Flow>,
}

impl<T> Metered<T> {
    pub fn new(io: T, flow: &Rc<Flow>) -> Metered<T> {
        Metered { io, flow: Rc::clone(flow) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.flow.poll_proceed());
        let max = self.flow.read_max();
        let before = buffer.filled().len();
        let polled = if buffer.remaining() <= max {
            Pin::new(&mut self.io).poll_read(cx, buffer)
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(max));
            let polled = Pin::new(&mut self.io).poll_read(cx, &mut part);
            let bytes = part.filled().len();
            buffer.advance(bytes);
            polled
        };
        self.flow.count_read(buffer.filled().len() - before);
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
