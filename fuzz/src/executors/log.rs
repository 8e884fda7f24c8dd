//! A log of the inputs of a data path's executor.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use wave_core::clock::Nanos;
use wave_tcp_planted::datapath::{
    Established, FlowId, NoRoom, Output, Path, Settings, Statistics, Tuple,
};
use wave_tcp_planted::executors::Executor;
use wave_tcp_planted::pipeline::{Outcome, Stamped};
use wave_tcp_testbed_planted::{By, Runs, Stages};
use wave_wires::Frame;

pub type Bytes = Arc<[u8]>;

/// One operation of a data path on its executor.
#[derive(Clone, Debug)]
pub enum Event {
    Install(Nanos, Box<Established>),
    /// Changes the addresses in a flow's headers.
    SetPath(FlowId, Path),
    Remove(FlowId),
    /// An entry that the sequencer has stamped.
    Entry(Stamped<Bytes>),
}

/// The operations of one data path, from its start.
#[derive(Clone, Debug)]
pub struct Log {
    /// Settings of the data path that wrote the log.
    pub settings: Settings,
    /// Loss recovery.
    pub by: By,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// The executor on one core, which also writes a log.
pub struct Recorder {
    inner: Stages<Frame>,
    log: Rc<RefCell<Log>>,
}

impl Recorder {
    /// A recorder without flows, and its log.
    pub fn new(settings: Settings, by: By) -> (Recorder, Rc<RefCell<Log>>) {
        let log = Rc::new(RefCell::new(Log { settings, by, events: Vec::new() }));
        (Recorder { inner: Runs::Inline.start(settings, by), log: Rc::clone(&log) }, log)
    }
}

impl Executor<Frame> for Recorder {
    fn room(&self) -> usize {
        self.inner.room()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn push(&mut self, entry: Stamped<Frame>) {
        let Stamped { number, now, .. } = entry;
        let copy = entry.entry.copy_with(|frame| Arc::from(&frame[..]));
        let stamped = Stamped { number, now, entry: copy };
        self.log.borrow_mut().events.push(Event::Entry(stamped));
        self.inner.push(entry);
    }

    fn pop(&mut self, waits: bool, outputs: &mut VecDeque<Output<Frame>>) -> Option<Outcome> {
        self.inner.pop(waits, outputs)
    }

    fn install(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        let installed = self.inner.install(now, name, established);
        if installed.is_ok() {
            let event = Event::Install(now, Box::new(*established));
            self.log.borrow_mut().events.push(event);
        }
        installed
    }

    fn reserve_generations(&mut self, generation: u32) {
        self.inner.reserve_generations(generation);
    }

    fn remove(&mut self, id: FlowId) -> Option<Established> {
        self.log.borrow_mut().events.push(Event::Remove(id));
        self.inner.remove(id)
    }

    fn set_path(&mut self, id: FlowId, path: Path) {
        self.log.borrow_mut().events.push(Event::SetPath(id, path));
        self.inner.set_path(id, path);
    }

    fn inspect(&self, id: FlowId) -> Option<Established> {
        self.inner.inspect(id)
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.inner.find(tuple)
    }

    fn uses_sack(&self) -> bool {
        self.inner.uses_sack()
    }

    fn statistics(&mut self, id: FlowId) -> Option<Statistics> {
        self.inner.statistics(id)
    }
}
