//! A client's bytes on their way to h2: the server's name in requests is replaced, and frames of a wrong size are
//! marked.
//!
//! h2 answers such frames with PROTOCOL_ERROR, except frames that are too long. Their length is therefore replaced by the
//! largest, and h2 answers with FRAME_SIZE_ERROR, as RFC 9113 (4.2) requires.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::authority::Fields;

/// Bytes before the first frame (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
/// The largest length of a frame, longer than any that h2 takes by default.
const TOO_LONG: [u8; 3] = [0xff; 3];

/// Types of frames (RFC 9113, 6).
mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

const ACK: u8 = 0x1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A connection whose input passes [`Frames`].
#[derive(Debug)]
pub struct Inbound<T> {
    io: T,
    frames: Frames,
    /// Head of a frame that came in pieces. The first `have` bytes are there, and h2 has the first `given` of them.
    head: [u8; HEAD_BYTES],
    have: usize,
    given: usize,
}

impl<T> Inbound<T> {
    pub fn new(io: T) -> Inbound<T> {
        Inbound { io, frames: Frames::default(), head: [0; HEAD_BYTES], have: 0, given: 0 }
    }
}

impl<T: AsyncRead + Unpin> Inbound<T> {
    /// Completes a head that came in pieces. False at the end of input.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.have < HEAD_BYTES {
            let mut rest = ReadBuf::new(&mut self.head[self.have..]);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut rest))?;
            match rest.filled().len() {
                0 => return Poll::Ready(Ok(false)),
                more => self.have += more,
            }
            if self.have == HEAD_BYTES {
                self.frames.begin(&mut self.head);
            }
        }
        Poll::Ready(Ok(true))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Inbound<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.have == 0 {
            let start = buf.filled().len();
            ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
            let read = &mut buf.filled_mut()[start..];
            let (whole, rest) = (read.len(), this.frames.pass(read));
            this.head[..rest].copy_from_slice(&read[whole - rest..]);
            this.have = rest;
            buf.set_filled(start + whole - rest);
            if rest < whole || whole == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        if ready!(this.poll_head(cx))? {
            let count = buf.remaining().min(HEAD_BYTES - this.given);
            buf.put_slice(&this.head[this.given..][..count]);
            this.given += count;
            if this.given == HEAD_BYTES {
                (this.have, this.given) = (0, 0);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Inbound<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
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

/// Follows the frames of a connection.
#[derive(Debug)]
struct Frames {
    fields: Fields,
    /// Bytes that are left of the frame.
    left: usize,
    /// Bytes that are left before the field block: the length of padding, if `is_padded`, and a priority.
    prefix: usize,
    is_padded: bool,
    /// Bytes after the field block. `None`: the frame has none.
    padding: Option<usize>,
}

impl Default for Frames {
    fn default() -> Frames {
        let fields = Fields::default();
        Frames { fields, left: PREFACE_BYTES, prefix: 0, is_padded: false, padding: None }
    }
}

impl Frames {
    /// Reads the next bytes, and replaces some. Returns the number of bytes at the end that are an incomplete head.
    fn pass(&mut self, mut bytes: &mut [u8]) -> usize {
        loop {
            let count = self.left.min(bytes.len());
            let (piece, rest) = std::mem::take(&mut bytes).split_at_mut(count);
            self.pass_payload(piece);
            let incomplete = rest.len();
            let Some((head, rest)) = rest.split_first_chunk_mut() else { return incomplete };
            self.begin(head);
            bytes = rest;
        }
    }

    /// Reads the head of a frame.
    fn begin(&mut self, head: &mut [u8; HEAD_BYTES]) {
        let [a, b, c, kind, flags, ..] = *head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        self.is_padded = kind == kind::HEADERS && flags & PADDED != 0;
        self.prefix = if kind == kind::HEADERS { prefix(flags) } else { 0 };
        self.left = length;
        self.padding = matches!(kind, kind::HEADERS | kind::CONTINUATION).then_some(0);
        if kind == kind::HEADERS {
            self.fields.begin();
        }
        if is_wrong(kind, flags, length) {
            head[..3].copy_from_slice(&TOO_LONG);
        }
    }

    fn pass_payload(&mut self, mut bytes: &mut [u8]) {
        while self.prefix > 0
            && let Some((&mut byte, rest)) = std::mem::take(&mut bytes).split_first_mut()
        {
            if std::mem::take(&mut self.is_padded) {
                self.padding = Some(byte.into());
            }
            (self.prefix, self.left, bytes) = (self.prefix - 1, self.left - 1, rest);
        }
        if let Some(padding) = self.padding {
            let count = self.left.saturating_sub(padding).min(bytes.len());
            self.fields.mask(&mut bytes[..count]);
        }
        self.left -= bytes.len();
    }
}

/// Bytes before the field block of HEADERS, or before the data of DATA.
fn prefix(flags: u8) -> usize {
    usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 }
}

/// Whether this length is invalid for frames of this type (RFC 9113, 4.2 and 6).
fn is_wrong(kind: u8, flags: u8, length: usize) -> bool {
    match kind {
        kind::DATA => length < prefix(flags & PADDED),
        kind::HEADERS => length < prefix(flags),
        kind::PRIORITY => length != 5,
        kind::SETTINGS if flags & ACK != 0 => length != 0,
        kind::SETTINGS => !length.is_multiple_of(6),
        kind::PING => length != 8,
        kind::GOAWAY => length < 8,
        kind::RST_STREAM | kind::WINDOW_UPDATE => length != 4,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// The bytes that h2 gets if `bytes` come in two pieces, and h2 takes `room` bytes at a time.
    fn pass(bytes: &[u8], split: usize, room: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut client, server) = duplex(bytes.len().max(1));
            let (first, second) = bytes.split_at(split);
            let (mut inbound, mut got) = (Inbound::new(server), Vec::new());
            client.write_all(first).await.unwrap();
            let mut second = Some(second);
            let mut buf = vec![0; room];
            loop {
                let mut read = std::pin::pin!(inbound.read(&mut buf));
                let count = std::future::poll_fn(|cx| match read.as_mut().poll(cx) {
                    Poll::Pending => Poll::Ready(None),
                    Poll::Ready(count) => Poll::Ready(Some(count.unwrap())),
                });
                match count.await {
                    Some(0) => return got,
                    Some(count) => got.extend_from_slice(&buf[..count]),
                    None => match second.take() {
                        Some(second) => client.write_all(second).await.unwrap(),
                        None => client.shutdown().await.unwrap(),
                    },
                }
            }
        })
    }

    #[test]
    fn authorities_are_replaced_however_their_bytes_arrive() {
        let preface = vec![b'P'; PREFACE_BYTES];
        let block = *b"\x82\x41\x05/a/%2\x44\x02/a";
        let padded = [&[3, 0, 0, 0, 0, 9][..], &block[..4], b"\x41\x01/"].concat();
        let with = |authority: &[u8; 5]| {
            let block = [&b"\x82\x41\x05"[..], authority, b"\x44\x02/a"].concat();
            let mut padded = padded.clone();
            padded[6..10].copy_from_slice(&block[..4]);
            [
                preface.clone(),
                frame(kind::SETTINGS, 0, &[]),
                frame(kind::HEADERS, 4, &block),
                frame(kind::DATA, 0, b"\x41\x05/a/%2"),
                frame(kind::HEADERS, PADDED | PRIORITY, &padded),
                frame(kind::CONTINUATION, 4, &block[4..]),
                frame(kind::PING, 0, b"\x41\x06/a/a/a"),
            ]
            .concat()
        };
        let (sent, masked) = (with(b"/a/%2"), with(b"~~~~~"));
        for split in 0..sent.len() {
            for room in [1, 7, 1024] {
                assert_eq!(pass(&sent, split, room), masked, "{split} {room}");
            }
        }
    }

    #[test]
    fn frames_of_a_wrong_size_are_marked_as_too_long() {
        let wrong = [
            (kind::DATA, PADDED, 0),
            (kind::HEADERS, PADDED, 0),
            (kind::HEADERS, PADDED | PRIORITY, 5),
            (kind::PRIORITY, 0, 4),
            (kind::RST_STREAM, 0, 3),
            (kind::SETTINGS, 0, 5),
            (kind::SETTINGS, ACK, 6),
            (kind::PING, 0, 7),
            (kind::GOAWAY, 0, 7),
            (kind::WINDOW_UPDATE, 0, 5),
        ];
        let right = [
            (kind::DATA, PADDED, 1),
            (kind::DATA, PRIORITY, 0),
            (kind::HEADERS, PRIORITY, 5),
            (kind::PRIORITY, 0, 5),
            (kind::RST_STREAM, 0, 4),
            (kind::SETTINGS, 0, 12),
            (kind::SETTINGS, ACK, 0),
            (kind::PING, ACK, 8),
            (kind::GOAWAY, 0, 9),
            (kind::WINDOW_UPDATE, 0, 4),
            (0x42, 0, 1),
        ];
        for (all, is_wrong) in [(&wrong[..], true), (&right[..], false)] {
            for &(kind, flags, length) in all {
                let mut head = frame(kind, flags, &vec![0; length]);
                Frames::default().begin(head.first_chunk_mut().unwrap());
                assert_eq!(head[..3] == TOO_LONG, is_wrong, "{kind} {flags} {length}");
            }
        }
    }
}
