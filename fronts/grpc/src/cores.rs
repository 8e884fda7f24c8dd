//! The threads of a front's connection cores.

use std::cell::RefCell;
use std::net::TcpListener;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tokio::sync::mpsc::Receiver;
use tokio_rustls::TlsAcceptor;
use wave_agent::serve;
use wave_process::cpus;

use crate::admission::Admission;
use crate::connect::{self, Door, Errand, Place};
use crate::engine::Engine;
use crate::front::{FrontError, RpcFront, RpcOptions};
use crate::host::{Host, Remote};
use crate::remote_core::RemoteCore;
use crate::shared::{FrontCounts, Shared, Totals};
use crate::slots::Ready;

/// A connection core's thread. Dropping it ends the thread and its remaining connections.
#[derive(Debug)]
pub struct CoreThread {
    ready: Arc<Ready>,
    thread: Option<JoinHandle<Left>>,
    left: Left,
}

/// Results of a connection core that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Left {
    /// Number of calls that did not end.
    pub calls: usize,
    pub counts: FrontCounts,
}

/// The source of a core's connections.
enum Entrance {
    /// The core accepts them, for all cores.
    Accepts(Vec<TcpListener>, Vec<Place>),
    Takes(Receiver<Errand>),
}

/// State that all cores share.
#[derive(Clone)]
pub struct Common {
    /// Options of the front.
    pub options: RpcOptions,
    /// Time 0 of the agent's clock.
    pub start: Instant,
    /// Memory that calls hold.
    pub totals: Arc<Totals>,
    pub admission: Arc<Admission>,
    /// TLS, if clients are to speak it.
    pub tls: Option<TlsAcceptor>,
}

/// Starts the connection cores; the first of them accepts for all. `first` rings the front's first core.
pub fn start(
    common: &Common,
    mut listeners: Vec<TcpListener>,
    first: &Arc<Ready>,
) -> Result<(Vec<CoreThread>, Vec<RemoteCore>), FrontError> {
    let (mut threads, mut ends) = (Vec::new(), Vec::new());
    let mut places = vec![Place::own()];
    let cpus = &common.options.connection_cpus;
    // The other cores start first: the accepting core needs all of their senders.
    for (at, &cpu) in cpus.iter().enumerate().rev() {
        let entrance = if at == 0 {
            Entrance::Accepts(std::mem::take(&mut listeners), std::mem::take(&mut places))
        } else {
            let (place, errands) = Place::other(&common.options.limits);
            places.push(place);
            Entrance::Takes(errands)
        };
        let ready = Arc::new(Ready::default());
        let (remote, end) = Remote::new(Arc::clone(&ready), Arc::clone(first));
        ends.push(RemoteCore::new(end));
        threads.push(CoreThread::start(common.clone(), cpu, remote, entrance, ready, first)?);
    }
    threads.reverse();
    ends.reverse();
    Ok((threads, ends))
}

impl CoreThread {
    fn start(
        common: Common,
        cpu: usize,
        remote: Remote,
        entrance: Entrance,
        ready: Arc<Ready>,
        first: &Arc<Ready>,
    ) -> Result<CoreThread, FrontError> {
        let (sender, receiver) = channel();
        let (own, first) = (Arc::clone(&ready), Arc::clone(first));
        let thread = thread::Builder::new().name(format!("wave-conn-{cpu}"));
        let thread = thread.spawn(move || {
            let made = cpus::pin(&[cpu]).map_err(|error| FrontError::Cpu(error.to_string()));
            let made = made.and_then(|()| make(common, remote, entrance, own));
            let (told, front) = match made {
                Ok(front) => (Ok(()), Some(front)),
                Err(error) => (Err(error), None),
            };
            // The starting thread waits for this message.
            let _ = sender.send(told);
            let Some(mut front) = front else { return Left::default() };
            serve(&mut front);
            let left = Left { calls: front.open().0, counts: front.front_counts() };
            drop(front);
            first.ring();
            left
        });
        let thread = thread.map_err(FrontError::Runtime)?;
        let core = CoreThread { ready, thread: Some(thread), left: Left::default() };
        match receiver.recv() {
            Ok(told) => told.map(|()| core),
            // The thread panicked, which has printed the reason.
            Err(_) => Ok(core),
        }
    }

    /// Asks the core to end, as [`crate::Ender`] asks a front.
    pub fn end(&self) {
        self.ready.end();
    }

    /// Whether the core has ended. Propagates its panic: a front cannot run without one of its cores.
    pub fn has_ended(&mut self) -> bool {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join();
        }
        self.thread.is_none()
    }

    /// Waits until the core has ended.
    pub fn join(&mut self) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(left)) => self.left = left,
            Some(Err(panic)) => resume_unwind(panic),
            None => {}
        }
    }

    /// The core's results; all zero before it has ended.
    pub fn left(&self) -> Left {
        self.left
    }
}

impl Drop for CoreThread {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            // A panic has printed its reason.
            let _ = thread.join();
        }
    }
}

/// Starts a core on a thread of its own.
fn make(
    common: Common,
    remote: Remote,
    entrance: Entrance,
    ready: Arc<Ready>,
) -> Result<RpcFront, FrontError> {
    let Common { options, start, totals, admission, tls } = common;
    let mut shared = Shared::new(options.limits, start, totals);
    shared.host = Some(Host::Remote(remote));
    shared.reports_load = options.load_reports;
    let engine = Engine::new(shared, Vec::new(), Arc::clone(&ready));
    let engine = Rc::new(RefCell::new(engine));
    let mut front = RpcFront::of_core(options, start, Rc::clone(&engine), Arc::clone(&ready))?;
    let round_robin = Rc::clone(&front.round_robin);
    let door = Door { engine, admission, ready, round_robin, tls };
    match entrance {
        Entrance::Accepts(listeners, places) => {
            let places: Rc<[Place]> = places.into();
            for listener in listeners {
                front.listen(listener, door.clone(), Rc::clone(&places))?;
            }
        }
        Entrance::Takes(errands) => {
            front.spawn(|flow| connect::take(errands, door, flow));
        }
    }
    Ok(front)
}
