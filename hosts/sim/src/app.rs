//! Modelled applications: the work of threads, and their wakers.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::host::Context;
use wave_core::message::Message;
use wave_sched::wire::{Event, Kind};

use crate::enclave::{Enclave, HostEvent, Incarnation, SimPort};

/// What a thread does when its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The thread continues, with this much more work.
    On(Nanos),
    /// The thread yields, with this much more work to do.
    Again(Nanos),
    /// The thread blocks until it is woken.
    Block,
    /// The thread yields, and has no work until a front has told the agent of a request for it. When it runs
    /// then, or earlier, it looks for a request for this long.
    Await(Nanos),
    /// The thread ends, and its id becomes free.
    Exit,
}

/// How much work a core gets done in a nanosecond: 1 is the machine's nominal speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace(pub f64);

impl Pace {
    /// The machine's nominal speed.
    pub const NOMINAL: Pace = Pace(1.0);

    /// The time that `work` takes at this pace.
    pub fn time_for(self, work: Nanos) -> Nanos {
        if self == Pace::NOMINAL { work } else { Nanos((work.0 as f64 / self.0).ceil() as u64) }
    }

    /// The work that is done in `time` at this pace.
    pub fn work_in(self, time: Nanos) -> Nanos {
        if self == Pace::NOMINAL { time } else { Nanos((time.0 as f64 * self.0) as u64) }
    }
}

/// An application of one enclave. Its methods take no virtual time, unless they spend it in the world. They run on
/// the core that they concern.
pub trait Application {
    /// Creates the threads, and starts the tasks that wake them.
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>);

    /// The pace of `core` at `now`, and the time of its next change; `None` if it does not change.
    fn pace(&self, _now: Nanos, _core: u16) -> (Pace, Option<Nanos>) {
        (Pace::NOMINAL, None)
    }

    /// Thread `id` is about to run on `core`: work done here overlaps the core's switch to it.
    fn before(&self, _enclave: &Enclave, _core: u16, _id: u32) {}

    /// Thread `id` has run on `core` for `time`, up to now.
    fn ran(&self, _now: Nanos, _core: u16, _id: u32, _time: Nanos) {}

    /// Thread `id` has done its work. Returns what it does next.
    fn after(&self, enclave: &Enclave, id: u32) -> After;

    /// Thread `id` has left its core, and the table is updated.
    fn left(&self, _enclave: &Enclave, _id: u32, _kind: Kind) {}
}

/// A context that is not a core: it creates and wakes threads from outside.
pub struct Outside {
    enclave: Rc<Enclave>,
    /// Index among the enclave's outside contexts.
    index: usize,
    epoch: u64,
    link: Option<(SimPort, Context, Rc<Incarnation>)>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Outside {
    /// Creates the outside context of this index, which is below the configuration's `contexts` minus one.
    pub fn new(enclave: &Rc<Enclave>, index: usize) -> Outside {
        assert!(index + 1 < usize::from(enclave.setup.config.contexts), "no such context");
        Outside { enclave: Rc::clone(enclave), index, epoch: 0, link: None }
    }

    /// Creates a thread that has `work` to do. `None` if every id is taken.
    pub fn create(&mut self, class: u16, work: Nanos, tag: u64) -> Option<u32> {
        let event = self.enclave.create(class, work, tag)?;
        self.announce(&event);
        Some(event.thread.id)
    }

    /// Wakes a blocked thread, which has `work` to do.
    pub fn wake(&mut self, id: u32, class: u16, work: Nanos, tag: u64) {
        self.announce(&self.enclave.wake(id, class, work, tag));
    }

    fn announce(&mut self, event: &Event) {
        let enclave = Rc::clone(&self.enclave);
        enclave.emit(&HostEvent::Changed(*event));
        enclave.became_runnable(event);
        enclave.world.spend(enclave.setup.machine.spawn.nanos());
        enclave.counters.borrow_mut().messages += 1;
        self.send(&event.to_message());
    }

    /// Sends a message to the agent, if there is one.
    pub(crate) fn send(&mut self, message: &Message) {
        let enclave = Rc::clone(&self.enclave);
        if self.epoch != enclave.epoch.get() {
            self.adopt();
        }
        if let Some((port, context, incarnation)) = &mut self.link {
            context.send(port, message);
            let signals = context.take_signals();
            if !signals.is_empty() {
                enclave.obey(signals, incarnation);
            }
        }
    }

    fn adopt(&mut self) {
        self.epoch = self.enclave.epoch.get();
        self.link = self.enclave.incarnation.borrow().clone().map(|incarnation| {
            let cores = self.enclave.cores.len();
            let place = &incarnation.layout.messages[cores + self.index];
            let context = Context::new(&incarnation.layout, place);
            let port = self.enclave.port(&incarnation, (cores + self.index) as u64);
            (port, context, incarnation)
        });
    }
}
