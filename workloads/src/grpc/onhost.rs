//! The same services on the host's own cores, which do all the work: tonic, the gRPC server of most Rust
//! programs, with one single-threaded runtime per core.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status, Streaming};

use super::proto::echo::{Payload, Work, echo_server};
use super::proto::kv::{
    GetReply, GetRequest, PutReply, PutRequest, RangeReply, RangeRequest, store_server,
};
use super::store::{Range, Refusal, Store, echo, spin};
use wave_process::cpus;

/// Prefix of its threads' names, before their number.
pub const THREADS: &str = "onhost-";
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Time for which a client may keep its connection when the server ends.
const GRACE: Duration = Duration::from_secs(1);

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is not available.
    #[error("listening on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    /// A thread could not be created, pinned, or given a runtime.
    #[error("starting a thread of the server: {0}")]
    Thread(#[from] io::Error),
    /// The server ended before it was stopped.
    #[error("serving: {0}")]
    Serve(#[from] tonic::transport::Error),
}

type Serving = JoinHandle<Result<(), Error>>;

/// A running server. When dropped, it finishes the calls in progress, for at most a second.
#[derive(Debug)]
pub struct OnHost {
    address: SocketAddr,
    threads: Vec<(oneshot::Sender<()>, Serving)>,
}

impl OnHost {
    /// Serves `store` and the echo on `listen`, with a thread on each of `cpus`, or with one unpinned thread if `cpus` is
    /// empty. The kernel distributes connections over the threads.
    pub fn start(listen: SocketAddr, cpus: &[usize], store: &Store) -> Result<OnHost, Error> {
        let places: Vec<Option<usize>> = match cpus {
            [] => vec![None],
            cpus => cpus.iter().copied().map(Some).collect(),
        };
        // Threads share an address (SO_REUSEPORT), and so would another server of this user. Refuse that.
        drop(
            std::net::TcpListener::bind(listen)
                .map_err(|error| Error::Listen { address: listen, error })?,
        );
        let mut server = OnHost { address: listen, threads: Vec::new() };
        for (number, place) in places.into_iter().enumerate() {
            let failed = |error| Error::Listen { address: listen, error };
            let listener = listener(server.address).map_err(failed)?;
            // Port 0 is any port, but the same one for all threads.
            server.address = listener.local_addr().map_err(failed)?;
            let (store, (stop, stopped)) = (store.clone(), oneshot::channel());
            let (started, has_started) = mpsc::channel();
            let thread =
                thread::Builder::new().name(format!("{THREADS}{number}")).spawn(move || {
                    if let Some(cpu) = place {
                        cpus::pin(&[cpu])?;
                    }
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                    let _ = started.send(());
                    runtime.block_on(serve(listener, store, stopped))
                })?;
            if has_started.recv().is_err() {
                return Err(joined(thread).err().unwrap_or_else(|| ended_early().into()));
            }
            server.threads.push((stop, thread));
        }
        Ok(server)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server. Returns the error of a thread that failed meanwhile.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for (stop, thread) in self.threads.drain(..) {
            let _ = stop.send(());
            result = result.and(joined(thread));
        }
        result
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn joined(thread: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn ended_early() -> io::Error {
    io::Error::other("it ended at once")
}

fn listener(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

async fn serve(
    listener: std::net::TcpListener,
    store: Store,
    stopped: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let incoming = TcpIncoming::from(TcpListener::from_std(listener)?).with_nodelay(Some(true));
    let (end, ended) = oneshot::channel::<()>();
    let serving = Server::builder()
        .add_service(store_server::StoreServer::new(store))
        .add_service(echo_server::EchoServer::new(Echo))
        .serve_with_incoming_shutdown(incoming, async {
            let _ = ended.await;
        });
    let serving = tokio::spawn(serving);
    let _ = stopped.await;
    let _ = end.send(());
    match tokio::time::timeout(GRACE, serving).await {
        Ok(served) => Ok(served.map_err(io::Error::other)??),
        Err(_) => Ok(()),
    }
}

fn status(refusal: Refusal) -> Status {
    Status::new(Code::from(refusal.code() as i32), refusal.to_string())
}

#[tonic::async_trait]
impl store_server::Store for Store {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetReply>, Status> {
        Store::get(self, request.get_ref(), || false).map(Response::new).map_err(status)
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutReply>, Status> {
        Store::put(self, request.get_ref()).map(Response::new).map_err(status)
    }

    type RangeStream = tokio_stream::Iter<Replies>;

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStream>, Status> {
        let range = Store::range(self, request.get_ref(), || false).map_err(status)?;
        Ok(Response::new(tokio_stream::iter(Replies(range))))
    }
}

/// A RANGE as a stream for tonic.
#[derive(Debug)]
pub struct Replies(Range);

impl Iterator for Replies {
    type Item = Result<RangeReply, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map_err(status))
    }
}

struct Echo;

#[tonic::async_trait]
impl echo_server::Echo for Echo {
    async fn unary(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(echo(request.into_inner())))
    }

    async fn spin(&self, request: Request<Work>) -> Result<Response<Work>, Status> {
        let work = request.into_inner();
        spin(&work, || false).map(|_| Response::new(work)).map_err(status)
    }

    type StreamStream = Streaming<Payload>;

    async fn stream(
        &self,
        request: Request<Streaming<Payload>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}
