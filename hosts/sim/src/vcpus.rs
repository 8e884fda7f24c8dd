//! Virtual CPUs that compute without end, as the paper's `busy_loop` does.

use std::cell::Cell;
use std::rc::Rc;

use wave_core::clock::Nanos;

use crate::app::{After, Application, Outside, Pace};
use crate::enclave::Enclave;

/// The time by which an agent that starts with the world has certainly attached.
const ATTACHED: Nanos = Nanos::from_millis(1);

/// A number of vCPUs, each always busy, all at the same pace.
#[derive(Debug)]
pub struct Vcpus {
    count: u32,
    pace: Pace,
    since: Cell<Nanos>,
    work: Cell<f64>,
}

impl Vcpus {
    /// Creates `count` vCPUs on cores of this pace. Work counts from `since` on.
    pub fn new(count: u32, pace: Pace, since: Nanos) -> Rc<Vcpus> {
        Rc::new(Vcpus { count, pace, since: Cell::new(since), work: Cell::new(0.0) })
    }

    /// Work done, in units of the pace times nanoseconds.
    pub fn work(&self) -> f64 {
        self.work.get()
    }
}

/// Work is counted as the vCPUs run, at their pace. They never end, so the cores' own pace does not matter.
impl Application for Vcpus {
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>) {
        let weak = Rc::downgrade(enclave);
        enclave.world().spawn(move || {
            let Some(enclave) = weak.upgrade() else { return };
            // The vCPUs never yield: without an agent, the fallback would run the first ones for ever.
            enclave.world().spend(ATTACHED);
            let mut outside = Outside::new(&enclave, 0);
            for _ in 0..self.count {
                outside.create(0, Nanos(u64::MAX / 4), 0);
            }
        });
    }

    fn ran(&self, now: Nanos, _core: u16, _id: u32, time: Nanos) {
        let counted = time.0.min(now.since(self.since.get()).0);
        self.work.set(self.work.get() + counted as f64 * self.pace.0);
    }

    fn after(&self, _enclave: &Enclave, _id: u32) -> After {
        After::Exit
    }
}
