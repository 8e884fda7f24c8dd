//! Connections: accepted on one core, and served on the one that has the fewest.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_rustls::TlsAcceptor;

use super::engine::Engine;
use super::http2;
use super::limits::{HANDSHAKE_PATIENCE, Limits};
use super::peer::Peer;
use super::slots::Ready;

/// How long a listener rests after an error of its socket's, as where there are too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A core that serves connections, as the one that accepts them sees it.
#[derive(Debug)]
pub struct Place {
    open: Arc<AtomicUsize>,
    /// `None` of the core that accepts.
    sender: Option<Sender<Newcomer>>,
}

/// A connection that counts among its core's, until this is dropped.
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
    counted: Counted,
}

impl Place {
    /// The core that accepts.
    pub fn own() -> Place {
        Place { open: Arc::default(), sender: None }
    }

    /// Another core, and where its connections come out there.
    pub fn other(limits: &Limits) -> (Place, Receiver<Newcomer>) {
        let (sender, receiver) = channel(limits.connections as usize);
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

/// What serves the connections of a core.
#[derive(Clone)]
pub struct Door {
    /// Its calls.
    pub engine: Rc<RefCell<Engine>>,
    /// Rung when a connection has gone.
    pub ready: Arc<Ready>,
    /// Clients speak TLS.
    pub tls: Option<TlsAcceptor>,
}

/// Accepts connections, for all of these cores.
pub async fn listen(listener: TcpListener, door: Door, places: Rc<[Place]>) {
    loop {
        let Ok((socket, address)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_REST).await;
            continue;
        };
        let mut engine = door.engine.borrow_mut();
        let open: usize = places.iter().map(Place::open).sum();
        let place = places.iter().min_by_key(|place| place.open());
        let Some(place) = place.filter(|_| open < engine.shared.limits.connections as usize) else {
            engine.shared.counts.turned_away += 1;
            continue;
        };
        drop(engine);
        let counted = place.count();
        match &place.sender {
            None => door.admit(socket, address, counted),
            // A core that takes none has ended.
            Some(sender) => {
                if let Ok(socket) = socket.into_std() {
                    let _ = sender.try_send(Newcomer { socket, address, counted });
                }
            }
        }
    }
}

/// Takes connections that another core accepts.
pub async fn take(mut newcomers: Receiver<Newcomer>, door: Door) {
    while let Some(Newcomer { socket, address, counted }) = newcomers.recv().await {
        if door.engine.borrow().shared.is_draining {
            return;
        }
        if let Ok(socket) = TcpStream::from_std(socket) {
            door.admit(socket, address, counted);
        }
    }
}

impl Door {
    fn admit(&self, socket: TcpStream, address: SocketAddr, counted: Counted) {
        let peer = Rc::new(Peer::new(address));
        let mut engine = self.engine.borrow_mut();
        engine.shared.counts.connections += 1;
        engine.peers.push(Rc::clone(&peer));
        let door = self.clone();
        tokio::task::spawn_local(async move {
            door.connect(socket, &peer).await;
            door.engine.borrow_mut().peers.retain(|other| !Rc::ptr_eq(other, &peer));
            drop(counted);
            door.ready.ring();
        });
    }

    /// Greets a client and serves it until it goes.
    async fn connect(&self, socket: TcpStream, peer: &Rc<Peer>) {
        // Without it small replies wait for acknowledgements; a socket that cannot have it still serves.
        let _ = socket.set_nodelay(true);
        let limits = self.engine.borrow().shared.limits;
        let deadline = tokio::time::Instant::now() + HANDSHAKE_PATIENCE;
        match &self.tls {
            None => {
                let greeted =
                    tokio::time::timeout_at(deadline, http2::shake_hands(socket, &limits));
                if let Ok(Some(connection)) = greeted.await {
                    http2::serve(connection, Rc::clone(&self.engine), Rc::clone(peer)).await;
                }
            }
            Some(tls) => {
                let greeted = tokio::time::timeout_at(deadline, async {
                    let socket = tls.accept(socket).await.ok()?;
                    http2::shake_hands(socket, &limits).await
                });
                if let Ok(Some(connection)) = greeted.await {
                    http2::serve(connection, Rc::clone(&self.engine), Rc::clone(peer)).await;
                }
            }
        }
    }
}
