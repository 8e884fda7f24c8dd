//! The stages in threads of their own: replicas of pre, one protocol stage, and replicas of post, with bounded queues between
//! them.
//!
//! ```text
//!            ┌─> pre 0 ─┐                          ┌─> post 0 ─┐
//!  caller ───┼─> pre 1 ─┼─> reorder, protocol ─────┼─> post 1 ─┼──> reorder, caller
//!            └─> ...   ─┘    one thread            └─> ...    ─┘
//! ```
//!
//! The caller has the sequencer and the scheduler. Each queue has room for all entries in flight, so that no stage ever waits
//! for the next one. A stage reads and writes only its own partition of a flow. The locks are for the caller, which installs,
//! removes and inspects flows, and for replicas of post, whose counts commute.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::num::NonZeroUsize;
use core::time::Duration;

use wave_core::clock::Nanos;

use super::{Completed, Executor};
use crate::datapath::{Established, FlowId, NoRoom, Output, Path, Settings, Statistics, Tuple};
use crate::flow::state::{Post, Pre, join, split};
use crate::flow::table::{Partition, Protocols};
use crate::pipeline::{self, Outcome, ProtocolResult, Routed, Stamped};
use crate::reorder::Reorder;
use crate::stages::arbiter::ByStages;
use crate::stages::post::statistics;
use crate::stages::recover::{Recovery, Sack};
use crate::sync::{
    Arc, Builder, JoinHandle, Mutex, Receiver, RecvTimeoutError, RwLock, SyncSender, TryRecvError,
    sync_channel,
};
use crate::trace::Trace;
use crate::tuples::Tuples;

/// Limit of entries in flight.
const POOL: usize = 64;
/// Interval at which the caller checks for a panicked stage while it waits for an entry.
const WATCH_EVERY: Duration = Duration::from_millis(100);
const PANICKED: &str = "no stage panics";

/// An entry that a pre replica has processed; `None` if it ended there.
type Arrived<F> = (u64, Option<Routed<F>>);

/// The partitions of all flows.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    pre: RwLock<Tuples<Pre>>,
    protocol: Mutex<Protocols>,
    post: Mutex<Partition<Post>>,
    trace: Arc<Trace>,
}

/// The executor. Dropping it ends its threads.
#[derive(Debug)]
pub struct Threads<F, R = Sack> {
    recovery: PhantomData<R>,
    shared: Arc<Shared>,
    to_pre: Vec<SyncSender<Stamped<F>>>,
    completed: Receiver<(u64, Completed<F>)>,
    reorder: Reorder<Completed<F>>,
    in_flight: usize,
    threads: Vec<JoinHandle<()>>,
}

impl<F: AsRef<[u8]> + Send + 'static, R: Recovery> Threads<F, R> {
    /// Starts `replicas` threads of the pre stage, as many of the post stage, and one of the protocol stage, without flows.
    pub fn start(settings: Settings, replicas: NonZeroUsize) -> Threads<F, R> {
        Threads::start_traced(settings, replicas, Arc::new(Trace::new(0)))
    }

    /// The same, with trace points.
    pub fn start_traced(
        settings: Settings,
        replicas: NonZeroUsize,
        trace: Arc<Trace>,
    ) -> Threads<F, R> {
        let flows = settings.flows;
        let shared = Arc::new(Shared {
            settings,
            pre: RwLock::new(Tuples::new(flows, settings.key)),
            protocol: Mutex::new(Protocols::new(flows, settings.key)),
            post: Mutex::new(Partition::new(flows)),
            trace,
        });
        let (to_caller, completed) = sync_channel(POOL);
        let (to_protocol, arrived) = sync_channel(POOL);
        let (mut to_pre, mut to_post, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..replicas.get() {
            let (sender, stamped) = sync_channel(POOL);
            to_pre.push(sender);
            let (at, protocol, caller) =
                (Arc::clone(&shared), to_protocol.clone(), to_caller.clone());
            threads.push(spawn("tcp-pre", move || at.run_pre(&stamped, &protocol, &caller)));
            let (sender, processed) = sync_channel(POOL);
            to_post.push(sender);
            let (at, caller) = (Arc::clone(&shared), to_caller.clone());
            threads.push(spawn("tcp-post", move || at.run_post(&processed, &caller)));
        }
        let at = Arc::clone(&shared);
        threads.push(spawn("tcp-protocol", move || at.run_protocol::<F, R>(&arrived, &to_post)));
        let reorder = Reorder::new(POOL);
        Threads { recovery: PhantomData, shared, to_pre, completed, reorder, in_flight: 0, threads }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let thread = Builder::new().name(name.into()).spawn(run);
    thread.expect("the system can start a thread")
}

/// Loops of the threads. Each ends when the previous or the next stage has ended.
impl Shared {
    fn run_pre<F: AsRef<[u8]>>(
        &self,
        stamped: &Receiver<Stamped<F>>,
        protocol: &SyncSender<Arrived<F>>,
        caller: &SyncSender<(u64, Completed<F>)>,
    ) {
        for stamped in stamped {
            let number = stamped.number;
            let mut completed = Completed::default();
            let table = self.pre.read().expect(PANICKED);
            let done = pipeline::pre(&table, &self.trace, stamped, |output| {
                completed.outputs.push(output)
            });
            drop(table);
            let is_sent = match done {
                Ok(routed) => protocol.send((number, Some(routed))).is_ok(),
                Err(outcome) => {
                    completed.outcome = outcome;
                    protocol.send((number, None)).is_ok()
                        && caller.send((number, completed)).is_ok()
                }
            };
            if !is_sent {
                return;
            }
        }
    }

    fn run_protocol<F: AsRef<[u8]>, R: Recovery>(
        &self,
        arrived: &Receiver<Arrived<F>>,
        post: &[SyncSender<(u64, ProtocolResult<F>)>],
    ) {
        let mut reorder = Reorder::new(POOL);
        for (number, routed) in arrived {
            match routed {
                Some(routed) => reorder.insert(number, (number, routed)),
                None => reorder.skip(number),
            }
            .expect("a number is within the pool and is used once");
            while let Some((number, routed)) = reorder.pop() {
                let mut flows = self.protocol.lock().expect(PANICKED);
                let (flow, pool) = flows.get_mut(routed.flow);
                let result = pipeline::protocol(
                    &mut ByStages::<R>::default(),
                    self.settings.super_bytes,
                    &self.trace,
                    pool,
                    flow,
                    routed,
                );
                drop(flows);
                let replica = (number % post.len() as u64) as usize;
                if post[replica].send((number, result)).is_err() {
                    return;
                }
            }
        }
    }

    fn run_post<F>(
        &self,
        processed: &Receiver<(u64, ProtocolResult<F>)>,
        caller: &SyncSender<(u64, Completed<F>)>,
    ) {
        for (number, result) in processed {
            let id = result.flow;
            let pre = self.pre.read().expect(PANICKED).entry(id).map(|(tuple, pre)| (tuple, *pre));
            let post = self.post.lock().expect(PANICKED).get_mut(id).map(|post| {
                pipeline::count(post, &result);
                *post
            });
            let flow = pre.as_ref().zip(post.as_ref());
            let flow = flow.map(|((tuple, pre), post)| (tuple, pre, post));
            let mut completed = Completed::default();
            let mac = self.settings.mac;
            let outputs = &mut completed.outputs;
            completed.outcome =
                pipeline::post(mac, &self.trace, flow, result, |output| outputs.push(output));
            if caller.send((number, completed)).is_err() {
                return;
            }
        }
    }
}

impl<F, R: Recovery> Threads<F, R> {
    /// Receives the next result from the stages.
    fn receive(&self, waits: bool) -> Option<(u64, Completed<F>)> {
        let ended = "a stage's thread has panicked";
        if !waits {
            return match self.completed.try_recv() {
                Ok(completed) => Some(completed),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => panic!("{ended}"),
            };
        }
        loop {
            match self.completed.recv_timeout(WATCH_EVERY) {
                Ok(completed) => return Some(completed),
                Err(RecvTimeoutError::Timeout) => {
                    assert!(!self.threads.iter().any(JoinHandle::is_finished), "{ended}");
                }
                Err(RecvTimeoutError::Disconnected) => panic!("{ended}"),
            }
        }
    }
}

impl<F, R: Recovery> Executor<F> for Threads<F, R> {
    fn room(&self) -> usize {
        POOL - self.in_flight
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn push(&mut self, entry: Stamped<F>) {
        assert!(self.in_flight < POOL, "there is room");
        self.in_flight += 1;
        let replica = (entry.number % self.to_pre.len() as u64) as usize;
        assert!(self.to_pre[replica].send(entry).is_ok(), "a stage's thread has panicked");
    }

    fn pop(&mut self, waits: bool, outputs: &mut VecDeque<Output<F>>) -> Option<Outcome> {
        loop {
            if let Some(completed) = self.reorder.pop() {
                self.in_flight -= 1;
                return Some(completed.deliver(outputs));
            }
            if self.in_flight == 0 {
                return None;
            }
            let (number, completed) = self.receive(waits)?;
            self.reorder
                .insert(number, completed)
                .expect("a number is within the pool and is used once");
        }
    }

    fn install(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        let (pre, protocol, post) = split(established, now);
        let tuple = established.tuple;
        let id = self.shared.pre.write().expect(PANICKED).insert_as(name, tuple, pre)?;
        self.shared.protocol.lock().expect(PANICKED).insert(id, &tuple, protocol);
        self.shared.post.lock().expect(PANICKED).insert(id, post);
        Ok(id)
    }

    fn reserve_generations(&mut self, generation: u32) {
        self.shared.pre.write().expect(PANICKED).reserve_generations(generation);
    }

    fn remove(&mut self, id: FlowId) -> Option<Established> {
        let mut table = self.shared.pre.write().expect(PANICKED);
        let (tuple, pre) = (table.tuple(id)?, table.remove(id)?);
        let post = self.shared.post.lock().expect(PANICKED).remove(id)?;
        let mut protocols = self.shared.protocol.lock().expect(PANICKED);
        protocols.remove(id, |protocol| join(tuple, &pre, protocol, &post))
    }

    fn set_path(&mut self, id: FlowId, path: Path) {
        if let Some(pre) = self.shared.pre.write().expect(PANICKED).get_mut(id) {
            pre.set_path(path);
        }
    }

    fn inspect(&self, id: FlowId) -> Option<Established> {
        let table = self.shared.pre.read().expect(PANICKED);
        let (tuple, pre) = table.entry(id)?;
        let protocols = self.shared.protocol.lock().expect(PANICKED);
        let post = self.shared.post.lock().expect(PANICKED);
        Some(join(tuple, pre, protocols.get(id)?, post.get(id)?))
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.shared.pre.read().expect(PANICKED).find(tuple)
    }

    fn uses_sack(&self) -> bool {
        R::USES_SACK
    }

    fn statistics(&mut self, id: FlowId) -> Option<Statistics> {
        let protocols = self.shared.protocol.lock().expect(PANICKED);
        let protocol = protocols.get(id)?;
        Some(statistics::<R>(id, protocol, self.shared.post.lock().expect(PANICKED).get_mut(id)?))
    }
}

impl<F, R> Drop for Threads<F, R> {
    fn drop(&mut self) {
        // The pre replicas end first, then the later stages.
        self.to_pre.clear();
        for thread in self.threads.drain(..) {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}
