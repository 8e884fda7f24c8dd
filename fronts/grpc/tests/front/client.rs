//! A client that speaks HTTP/2 frame by frame, so that it can do what no gRPC client would.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, StatusCode};
use tokio::net::TcpStream;

/// A client that waits longer for a connection or a message has failed, however many it needs.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// Number of connections and messages that this thread's clients have got.
    static GOT: Cell<u64> = const { Cell::new(0) };
}

fn got() {
    GOT.set(GOT.get() + 1);
}

pub fn run<T>(client: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let watch = async {
        loop {
            let before = GOT.get();
            tokio::time::sleep(PATIENCE).await;
            assert!(GOT.get() > before, "no answer within {PATIENCE:?}");
        }
    };
    let (mut client, mut watch) = (pin!(client), pin!(watch));
    let watched = poll_fn(|cx| {
        let done = client.as_mut().poll(cx);
        if done.is_pending() {
            let Poll::<Infallible>::Pending = watch.as_mut().poll(cx);
        }
        done
    });
    runtime.block_on(async {
        // A client that repeats a call for ever gets answers.
        tokio::time::timeout(10 * PATIENCE, watched).await.expect("the test is over at last")
    })
}

#[derive(Clone)]
pub struct Client {
    send: SendRequest<Bytes>,
}

pub struct Open {
    response: Option<ResponseFuture>,
    pub send: SendStream<Bytes>,
    pub headers: HeaderMap,
    body: Option<RecvStream>,
    rest: Vec<u8>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub messages: Vec<(bool, Vec<u8>)>,
    pub trailers: HeaderMap,
}

impl Answer {
    /// gRPC's status code, from the trailers or the headers.
    pub fn code(&self) -> i32 {
        let at = self.trailers.get("grpc-status").or(self.headers.get("grpc-status"));
        at.expect("a status").to_str().unwrap().parse().unwrap()
    }

    pub fn text(&self) -> &str {
        let at = self.trailers.get("grpc-message").or(self.headers.get("grpc-message"));
        at.map_or("", |text| text.to_str().unwrap())
    }

    /// The messages of a call, which must have succeeded.
    pub fn ok(self) -> Vec<Vec<u8>> {
        assert_eq!(self.code(), 0, "{self:?}");
        self.messages.into_iter().map(|(_, message)| message).collect()
    }
}

/// A message with its prefix.
pub fn frame(compressed: bool, message: &[u8]) -> Bytes {
    let length = (message.len() as u32).to_be_bytes();
    [&[u8::from(compressed)], &length[..], message].concat().into()
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        Client::over(TcpStream::connect(address).await.unwrap()).await
    }

    pub async fn over<T>(io: T) -> Client
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        Client::try_over(io).await.unwrap()
    }

    /// Tries to connect until there is a server. `None` if `is_over` is set before.
    pub async fn connect_until(address: SocketAddr, is_over: &AtomicBool) -> Option<Client> {
        while !is_over.load(Ordering::SeqCst) {
            if let Some(client) = Client::try_connect(address).await {
                return Some(client);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        None
    }

    /// Connects; `None` if there is no server.
    pub async fn try_connect(address: SocketAddr) -> Option<Client> {
        let socket = TcpStream::connect(address).await.ok()?;
        // Without TCP_NODELAY each call waits for a delayed acknowledgement of the server.
        socket.set_nodelay(true).ok()?;
        Client::try_over(socket).await.ok()
    }

    async fn try_over<T>(io: T) -> Result<Client, h2::Error>
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        Client::with_window(io, 1 << 20).await
    }

    /// A client that gives each stream room for this many bytes of replies.
    pub async fn with_window<T>(io: T, bytes: u32) -> Result<Client, h2::Error>
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(bytes).initial_connection_window_size(8 << 20);
        // A client that was off its CPU finds a socket full of small messages. By default, h2 ends the connection at some
        // 22,000 unread ones (`too_many_data_frames`).
        builder.data_frame_budget(64 << 20);
        let (send, connection) = builder.handshake(io).await?;
        tokio::spawn(connection);
        got();
        Ok(Client { send })
    }

    /// Makes a call with one message over a connection that may break.
    pub async fn try_call(&mut self, path: &str, message: &[u8]) -> Result<Answer, h2::Error> {
        self.send = self.send.clone().ready().await?;
        let request = Request::post(format!("http://test{path}")).header("te", "trailers");
        let request = request.header("content-type", "application/grpc").body(()).unwrap();
        let (response, send) = self.send.send_request(request, false)?;
        let headers = HeaderMap::new();
        let mut open =
            Open { response: Some(response), send, headers, body: None, rest: Vec::new() };
        open.send(message, true).await;
        open.try_finish().await
    }

    /// Whether the server accepts new calls on this connection.
    pub async fn is_open(&self) -> bool {
        self.send.clone().ready().await.is_ok()
    }

    /// Begins a call with these headers beside gRPC's own.
    pub async fn open(&mut self, path: &str, headers: &[(&str, &str)], end: bool) -> Open {
        let mut request = Request::post(format!("http://test{path}")).header("te", "trailers");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send = self.send.clone().ready().await.unwrap();
        let (response, send) = self.send.send_request(request.body(()).unwrap(), end).unwrap();
        let headers = HeaderMap::new();
        Open { response: Some(response), send, headers, body: None, rest: Vec::new() }
    }

    /// Makes a complete call with these messages.
    pub async fn call(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        messages: &[&[u8]],
    ) -> Answer {
        let frames: Vec<_> = messages.iter().map(|message| frame(false, message)).collect();
        self.call_with(path, headers, frames.concat().into()).await
    }

    /// Makes a complete call with these bytes.
    pub async fn call_with(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        bytes: Bytes,
    ) -> Answer {
        let mut open = self.open(path, headers, bytes.is_empty()).await;
        if !bytes.is_empty() {
            open.write(bytes, true).await;
        }
        open.finish().await
    }
}

impl Open {
    /// Sends bytes, as far as the server permits. A server that has answered already takes no more.
    pub async fn write(&mut self, mut bytes: Bytes, end: bool) {
        while !bytes.is_empty() {
            self.send.reserve_capacity(bytes.len());
            let Some(Ok(room)) = poll_fn(|cx| self.send.poll_capacity(cx)).await else { return };
            let piece = bytes.split_to(room.min(bytes.len()));
            let is_last = end && bytes.is_empty();
            if self.send.send_data(piece, is_last).is_err() {
                return;
            }
        }
    }

    pub async fn send(&mut self, message: &[u8], end: bool) {
        self.write(frame(false, message), end).await;
    }

    pub fn half_close(&mut self) {
        self.send.send_data(Bytes::new(), true).unwrap();
    }

    /// Whether the answer has begun, as far as the connection has been read.
    pub async fn is_answered(&mut self) -> bool {
        let Some(response) = &mut self.response else { return true };
        poll_fn(|cx| Poll::Ready(Pin::new(&mut *response).poll(cx).is_ready())).await
    }

    async fn respond(&mut self) -> Result<StatusCode, h2::Error> {
        let Some(response) = self.response.take() else { return Ok(StatusCode::OK) };
        let (parts, body) = response.await?.into_parts();
        (self.headers, self.body) = (parts.headers, Some(body));
        Ok(parts.status)
    }

    pub async fn next(&mut self) -> Result<Option<(bool, Vec<u8>)>, h2::Error> {
        self.respond().await?;
        let body = self.body.as_mut().unwrap();
        loop {
            if let Some((&[flag, a, b, c, d], after)) = self.rest.split_first_chunk() {
                let length = u32::from_be_bytes([a, b, c, d]) as usize;
                if after.len() >= length {
                    let message = after[..length].to_vec();
                    self.rest.drain(..5 + length);
                    got();
                    return Ok(Some((flag == 1, message)));
                }
            }
            let Some(piece) = body.data().await else { return Ok(None) };
            let piece = piece?;
            body.flow_control().release_capacity(piece.len()).unwrap();
            self.rest.extend_from_slice(piece.chunk());
        }
    }

    /// Text of an answer that is not gRPC.
    pub async fn plain(mut self) -> (StatusCode, String) {
        let status = self.respond().await.unwrap();
        let (body, mut text) = (self.body.as_mut().unwrap(), Vec::new());
        while let Some(piece) = body.data().await {
            text.extend_from_slice(&piece.unwrap());
        }
        (status, String::from_utf8(text).unwrap())
    }

    pub async fn finish(self) -> Answer {
        self.try_finish().await.unwrap()
    }

    pub async fn try_finish(mut self) -> Result<Answer, h2::Error> {
        let status = self.respond().await?;
        let mut messages = Vec::new();
        while let Some(message) = self.next().await? {
            messages.push(message);
        }
        assert!(self.rest.is_empty());
        let trailers = self.body.as_mut().unwrap().trailers().await?.unwrap_or_default();
        got();
        Ok(Answer { status, headers: self.headers, messages, trailers })
    }
}

pub async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
