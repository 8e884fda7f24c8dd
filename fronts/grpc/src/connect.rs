//! Connections: one core accepts them, and the core with the fewest serves each.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_rustls::TlsAcceptor;

use crate::admission::{Admission, Admitted, Admitting, Leave};
use crate::engine::Engine;
use crate::http2;
use crate::limits::{HANDSHAKE_PATIENCE, Limits};
use crate::metered::Metered;
use crate::peer::Peer;
use crate::round_robin::{Flow, RoundRobin};
use crate::slots::Ready;

/// Pause of a listener after an error of its socket, such as too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A core that serves connections, as the accepting core sees it.
#[derive(Debug)]
pub struct Place {
    open: Arc<AtomicUsize>,
    /// `None` for the core that accepts.
    sender: Option<Sender<Errand>>,
}

/// A request of the accepting core to another one.
#[derive(Debug)]
pub enum Errand {
    /// Serve this connection.
    Serve(Newcomer),
    /// End this connection.
    Leave(Leave),
}

/// Counts a connection among those of its core, until this is dropped.
#[derive(Debug)]
pub struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection on its way to its core.
#[derive(Debug)]
pub struct Newcomer {
    socket: std::net::TcpStream,
    address: SocketAddr,
    admitted: Admitted,
    counted: Counted,
}

impl Place {
    /// Creates the entry of the accepting core, which needs no sender to itself.
    pub fn own() -> Place {
        Place { open: Arc::default(), sender: None }
    }

    /// Creates the entry of another core, and that core's end of the channel.
    pub fn other(limits: &Limits) -> (Place, Receiver<Errand>) {
        // Room for each connection's three errands: it comes once, gets a GOAWAY once, and is ended once.
        let (sender, receiver) = channel(4 * limits.connections as usize);
        (Place { open: Arc::default(), sender: Some(sender) }, receiver)
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn count(&self) -> Counted {
        self.open.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(&self.open))
    }
}

/// The parts of a core that serve its connections.
#[derive(Clone)]
pub struct Door {
    /// Engine that runs the calls of this core.
    pub engine: Rc<RefCell<Engine>>,
    /// All connections of the front.
    pub admission: Arc<Admission>,
    /// Rung when a connection has ended.
    pub ready: Arc<Ready>,
    /// Turns of the tasks on this core.
    pub round_robin: Rc<RoundRobin>,
    /// TLS, if clients are to speak it.
    pub tls: Option<TlsAcceptor>,
}

/// Accepts connections for all of these cores.
pub async fn listen(listener: TcpListener, door: Door, places: Rc<[Place]>, flow: Rc<Flow>) {
    loop {
        flow.proceed().await;
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if is_short(&error) {
                    let now = door.engine.borrow().shared.now();
                    door.end(door.admission.make_room(now), &places);
                }
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            }
        };
        let Some((core, place)) = places.iter().enumerate().min_by_key(|(_, place)| place.open())
        else {
            return;
        };
        let now = door.engine.borrow().shared.now();
        let Admitting { leaves, admitted } = door.admission.admit(address.ip(), core, now);
        door.end(leaves, &places);
        let Some(admitted) = admitted else {
            door.engine.borrow_mut().shared.counts.turned_away += 1;
            continue;
        };
        let counted = place.count();
        match &place.sender {
            None => door.admit(socket, address, admitted, counted),
            // The send fails only if the core has ended.
            Some(sender) => {
                if let Ok(socket) = socket.into_std() {
                    let newcomer = Newcomer { socket, address, admitted, counted };
                    let _ = sender.try_send(Errand::Serve(newcomer));
                }
            }
        }
    }
}

/// Whether an accept failed for lack of descriptors or memory.
fn is_short(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    short.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Handles the requests of the accepting core.
pub async fn take(mut errands: Receiver<Errand>, door: Door, flow: Rc<Flow>) {
    while let Some(errand) = errands.recv().await {
        flow.proceed().await;
        if door.engine.borrow().shared.is_draining {
            return;
        }
        match errand {
            Errand::Serve(Newcomer { socket, address, admitted, counted }) => {
                if let Ok(socket) = TcpStream::from_std(socket) {
                    door.admit(socket, address, admitted, counted);
                }
            }
            Errand::Leave(leave) => door.engine.borrow().end(leave),
        }
    }
}

impl Door {
    /// Ends these connections, each on its own core.
    fn end(&self, leaves: impl IntoIterator<Item = Leave>, places: &[Place]) {
        for leave in leaves {
            self.engine.borrow_mut().shared.counts.displaced += 1;
            match &places[leave.core].sender {
                None => self.engine.borrow().end(leave),
                Some(sender) => drop(sender.try_send(Errand::Leave(leave))),
            }
        }
    }

    fn admit(&self, socket: TcpStream, address: SocketAddr, admitted: Admitted, counted: Counted) {
        let peer = Rc::new(Peer::new(address, Arc::clone(&admitted.connection)));
        let mut engine = self.engine.borrow_mut();
        engine.shared.counts.connections += 1;
        engine.peers.push(Rc::clone(&peer));
        let door = self.clone();
        let flow = self.round_robin.flow(Some(address.ip().into()));
        tokio::task::spawn_local(Rc::clone(&flow).run(async move {
            door.connect(socket, &peer, &flow).await;
            door.engine.borrow_mut().peers.retain(|other| !Rc::ptr_eq(other, &peer));
            drop((admitted, counted));
            door.ready.ring();
        }));
    }

    /// Does the handshakes with a client, and serves it until the connection ends.
    async fn connect(&self, socket: TcpStream, peer: &Rc<Peer>, flow: &Rc<Flow>) {
        // Without TCP_NODELAY small replies wait for acknowledgements. A failure is harmless: the socket works without it.
        let _ = socket.set_nodelay(true);
        let socket = Metered::new(socket, flow);
        match &self.tls {
            None => self.serve(async { Some(socket) }, peer).await,
            Some(tls) => {
                // TLS reads ahead of HTTP/2: both are limited.
                let accepted =
                    async { tls.accept(socket).await.ok().map(|io| Metered::new(io, flow)) };
                self.serve(accepted, peer).await;
            }
        }
    }

    /// Serves the connection that results from the first handshake.
    async fn serve<T>(&self, socket: impl Future<Output = Option<T>>, peer: &Rc<Peer>)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let limits = self.engine.borrow().shared.limits;
        let greeted = unless_cut(peer, async { http2::shake_hands(socket.await?, &limits).await });
        if let Ok(Some(connection)) = tokio::time::timeout(HANDSHAKE_PATIENCE, greeted).await {
            http2::serve(connection, Rc::clone(&self.engine), Rc::clone(peer)).await;
        }
    }
}

/// Runs `what`; returns `None` if the connection is cut before it completes.
async fn unless_cut<T>(peer: &Peer, what: impl Future<Output = Option<T>>) -> Option<T> {
    let mut what = pin!(what);
    poll_fn(|cx| {
        peer.set_waker(cx.waker());
        if peer.is_cut() { Poll::Ready(None) } else { what.as_mut().poll(cx) }
    })
    .await
}
