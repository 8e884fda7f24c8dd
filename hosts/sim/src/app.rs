//! Modelled applications: the work of threads, and their wakers.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::host::Context;
use wave_core::message::Message;
use wave_sched::wire::{Event, Kind};

use crate::enclave::{Enclave, HostEvent, Incarnation, SimPort};

/// What a thread does when it has done what it had to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The thread goes on, and has this much more to do.
    On(Nanos),
    /// It gives way, and has so much more to do.
    Again(Nanos),
    /// It blocks until it is woken.
    Block,
    /// It gives way, and has nothing to do before a front has told the agent of a request for it. Then, or
    /// before, it looks for so long.
    Await(Nanos),
    /// The thread ends, and its id is free.
    Exit,
}

/// How much work a core gets done in a nanosecond: 1 is the machine's nominal speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace(pub f64);

impl Pace {
    /// The machine's nominal speed.
    pub const NOMINAL: Pace = Pace(1.0);

    /// How long so much work takes.
    pub fn time_for(self, work: Nanos) -> Nanos {
        if self == Pace::NOMINAL { work } else { Nanos((work.0 as f64 / self.0).ceil() as u64) }
    }

    /// How much work is done in that time.
    pub fn work_in(self, time: Nanos) -> Nanos {
        if self == Pace::NOMINAL { time } else { Nanos((time.0 as f64 * self.0) as u64) }
    }
}

/// An application of one enclave. Its methods take no time, unless they say so to the world: they run on the core
/// that they are about.
pub trait Application {
    /// Makes its threads, and starts what wakes them.
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>);

    /// How fast `core` is now, and when that changes, if it does.
    fn pace(&self, _now: Nanos, _core: u16) -> (Pace, Option<Nanos>) {
        (Pace::NOMINAL, None)
    }

    /// Thread `id` is about to run on `core`: work done here overlaps the core's switch to it.
    fn before(&self, _enclave: &Enclave, _core: u16, _id: u32) {}

    /// Thread `id` has run on `core` for so long, up to now.
    fn ran(&self, _now: Nanos, _core: u16, _id: u32, _time: Nanos) {}

    /// Thread `id` has done what it had to.
    fn after(&self, enclave: &Enclave, id: u32) -> After;

    /// Thread `id` has left its core, and the table says so.
    fn left(&self, _enclave: &Enclave, _id: u32, _kind: Kind) {}
}

/// A context that is no core: what creates and wakes threads from outside.
pub struct Outside {
    enclave: Rc<Enclave>,
    /// Which of the enclave's outside contexts.
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
    /// The outside context of that index, below the configuration's `contexts` less one.
    pub fn new(enclave: &Rc<Enclave>, index: usize) -> Outside {
        assert!(index + 1 < usize::from(enclave.setup.config.contexts), "no such context");
        Outside { enclave: Rc::clone(enclave), index, epoch: 0, link: None }
    }

    /// Creates a thread that has `work` to do: `None` where every id is taken.
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
        enclave.tell(&HostEvent::Changed(*event));
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
