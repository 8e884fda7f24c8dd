//! A closed pool of threads that yield again and again: the context-switch benchmark.

use std::cell::Cell;
use std::rc::Rc;

use wave_core::clock::Nanos;

use crate::app::{After, Application, Outside};
use crate::enclave::Enclave;

/// A number of threads, each of which runs for `work` and yields, for ever.
#[derive(Debug)]
pub struct Closed {
    threads: u32,
    work: Nanos,
    runs: Cell<u64>,
}

impl Closed {
    /// Creates a pool of `threads` threads that each run for `work` at a time.
    pub fn new(threads: u32, work: Nanos) -> Rc<Closed> {
        Rc::new(Closed { threads, work, runs: Cell::new(0) })
    }

    /// Number of runs that have ended.
    pub fn runs(&self) -> u64 {
        self.runs.get()
    }
}

impl Application for Closed {
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>) {
        let weak = Rc::downgrade(enclave);
        enclave.world().spawn(move || {
            let Some(enclave) = weak.upgrade() else { return };
            let mut outside = Outside::new(&enclave, 0);
            for _ in 0..self.threads {
                outside.create(0, self.work, 0);
            }
        });
    }

    fn after(&self, _enclave: &Enclave, _id: u32) -> After {
        self.runs.set(self.runs.get() + 1);
        After::Again(self.work)
    }
}
