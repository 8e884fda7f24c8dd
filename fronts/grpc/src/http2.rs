//! One HTTP/2 connection, by the h2 crate: it turns requests into calls of the engine, sends pings, and ends the connection.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use h2::server::{Builder, Connection};
use h2::{Ping, PingPong, Reason};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

use crate::engine::Engine;
use crate::frames::Frame;
use crate::http2_stream::Stream;
use crate::inbound::Inbound;
use crate::limits::{
    CONNECTION_WINDOW_BYTES, LEAVE_PATIENCE, Limits, PING_PATIENCE, SEND_BUFFER_BYTES,
    STREAM_ERRORS_MAX, STREAM_WINDOW_BYTES, UNSEEN_RESETS_MAX,
};
use crate::peer::Peer;

/// Does the HTTP/2 handshake. `None` if the peer does not speak HTTP/2.
pub async fn shake_hands<T>(io: T, limits: &Limits) -> Option<Connection<Inbound<T>, Frame>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.header_bytes)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .max_local_error_reset_streams(Some(STREAM_ERRORS_MAX));
    builder.handshake(Inbound::new(io)).await.ok()
}

/// Serves a connection until it ends.
pub async fn serve<T>(
    mut connection: Connection<T, Frame>,
    engine: Rc<RefCell<Engine>>,
    peer: Rc<Peer>,
) where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let limits = engine.borrow().shared.limits;
    let Some(pings) = connection.ping_pong() else { return };
    let mut keeper = Keeper::new(pings, limits);
    let (mut is_leaving, mut is_ended) = (false, false);
    peer.greeted(engine.borrow().shared.now());
    std::future::poll_fn(|cx| {
        peer.set_waker(cx.waker());
        if peer.is_cut() {
            return Poll::Ready(());
        }
        loop {
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let (parts, body) = request.into_parts();
                    let stream = Stream::new(body, respond);
                    engine.borrow_mut().accept(&parts, stream, &peer);
                    continue;
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            // Also after a GOAWAY: a client that does not acknowledge it may open streams.
            if peer.floods() && !is_ended {
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                is_ended = true;
                continue;
            }
            if peer.is_ending() && !is_leaving && !is_ended {
                connection.graceful_shutdown();
                keeper.leave(&peer);
                is_leaving = true;
                continue;
            }
            break;
        }
        keeper.poll(cx, &peer)
    })
    .await;
}

/// Checks now and then whether the client is alive and has calls, and after each ping whether it answered.
struct Keeper {
    pings: PingPong,
    /// Whether a ping was sent at the last check.
    was_asked: bool,
    awaits_answer: bool,
    /// Number of calls so far, at the last check.
    seen: u64,
    idle_since: Instant,
    timer: Pin<Box<Sleep>>,
    /// When a connection with a GOAWAY is closed, if its client does not close it.
    leaves: Option<Pin<Box<Sleep>>>,
    /// Number of calls that were over when `leaves` was set.
    over: u64,
    limits: Limits,
}

impl Keeper {
    fn new(pings: PingPong, limits: Limits) -> Keeper {
        Keeper {
            pings,
            was_asked: false,
            awaits_answer: false,
            seen: 0,
            idle_since: Instant::now(),
            timer: Box::pin(sleep(limits.keepalive.min(limits.idle))),
            leaves: None,
            over: 0,
            limits,
        }
    }

    /// The client got a GOAWAY.
    fn leave(&mut self, peer: &Peer) {
        self.leaves = Some(Box::pin(sleep(LEAVE_PATIENCE)));
        self.over = peer.over();
    }

    /// Ready when the client does not answer a ping, or has no call and stays after a GOAWAY.
    fn poll(&mut self, cx: &mut Context<'_>, peer: &Peer) -> Poll<()> {
        while let Some(leaves) = &mut self.leaves
            && leaves.as_mut().poll(cx).is_ready()
        {
            // The client's calls may finish first, and it may take as long to read the last replies.
            let before = std::mem::replace(&mut self.over, peer.over());
            if peer.is_idle() && self.over == before {
                return Poll::Ready(());
            }
            leaves.as_mut().reset(tokio::time::Instant::now() + LEAVE_PATIENCE);
        }
        loop {
            if self.awaits_answer {
                self.awaits_answer = self.pings.poll_pong(cx).is_pending();
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.awaits_answer {
                return Poll::Ready(());
            }
            let keepalive = self.limits.keepalive;
            let next = match self.ping(peer) {
                true => PING_PATIENCE.min(keepalive),
                false => keepalive.min(self.idle_left()),
            };
            self.timer.as_mut().reset(tokio::time::Instant::now() + next);
        }
    }

    /// Time until the connection has been idle for too long; once it has, it is over anyway.
    fn idle_left(&self) -> Duration {
        let left = self.limits.idle.saturating_sub(self.idle_since.elapsed());
        if left.is_zero() { Duration::MAX } else { left }
    }

    /// Pings the client, unless it was pinged at the last check or has begun calls since. Returns whether a ping was sent.
    fn ping(&mut self, peer: &Peer) -> bool {
        let opened = peer.opened();
        let is_busy = opened != std::mem::replace(&mut self.seen, opened);
        if is_busy || !peer.is_idle() {
            self.idle_since = Instant::now();
        } else if self.idle_since.elapsed() >= self.limits.idle {
            peer.end();
        }
        self.was_asked =
            !is_busy && !self.was_asked && self.pings.send_ping(Ping::opaque()).is_ok();
        self.awaits_answer = self.was_asked;
        self.was_asked
    }
}
