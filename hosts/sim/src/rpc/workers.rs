//! The workers: threads of an enclave that serve requests, with the real stub.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::link::Side;
use wave_core::message::Subject;
use wave_rpc::stub::{Event, Stub};
use wave_rpc::wire::END;

use super::{RpcSetup, RpcWindow};
use crate::app::{After, Application};
use crate::enclave::{Enclave, SimPort};

/// Bytes of a reply: it fits in one entry.
const REPLY: [u8; 24] = [0; 24];

struct Worker {
    /// Taken by the core that uses it, for as long as that takes.
    stub: Option<Stub>,
    serves: Option<Subject>,
    core: u16,
}

pub(super) struct Workers {
    /// Each core's access to the window.
    ports: Vec<SimPort>,
    workers: RefCell<Vec<Worker>>,
    prefetch: bool,
    prestaged: bool,
    looks: Cell<u64>,
}

impl Workers {
    pub(super) fn new(window: &RpcWindow, setup: &RpcSetup) -> Rc<Workers> {
        let cores = u64::from(setup.scheduler.config.cores);
        let worker = |at| {
            let stub = Some(Stub::new(&window.layout, at));
            Worker { stub, serves: None, core: 0 }
        };
        Rc::new(Workers {
            ports: (0..cores).map(|core| window.port(Side::Host, 16 + core)).collect(),
            workers: RefCell::new((0..setup.workers).map(worker).collect()),
            prefetch: setup.prefetch,
            prestaged: setup.prestaged,
            looks: Cell::new(0),
        })
    }

    /// Runs in which a worker found no request.
    pub(super) fn empty_runs(&self) -> u64 {
        self.looks.get()
    }

    /// Lets a thread's core use its stub. No borrow is held meanwhile, so others can continue.
    fn with<R>(&self, id: u32, body: impl FnOnce(&mut Stub, &SimPort) -> R) -> R {
        let (mut stub, core) = {
            let worker = &mut self.workers.borrow_mut()[id as usize];
            (worker.stub.take().expect("a thread is on one core"), worker.core)
        };
        let result = body(&mut stub, &self.ports[usize::from(core)]);
        self.workers.borrow_mut()[id as usize].stub = Some(stub);
        result
    }

    /// The request that waits for a thread: its call, and its work.
    fn next_request(&self, enclave: &Enclave, id: u32) -> Option<(Subject, Nanos)> {
        let now = enclave.world().now();
        self.with(id, |stub, port| match stub.poll(port, now).expect("an honest agent") {
            Some(Event::Begin { call, message: Some(message), .. }) => {
                let work = message.try_into().map_or(0, u64::from_le_bytes);
                Some((call, Nanos(work)))
            }
            _ => None,
        })
    }
}

impl Application for Workers {
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>) {
        let count = self.workers.borrow().len();
        for at in 0..count {
            let event =
                enclave.create(0, Nanos(0), 0).expect("the enclave has room for the workers");
            let id = event.thread.id;
            assert_eq!(id as usize, at, "ids are given out in order");
            enclave.became_runnable(&event);
            self.with(id, |stub, port| {
                stub.announce(port, Some(event.thread)).expect("an empty queue");
                stub.publish(port).expect("an empty queue");
            });
        }
    }

    fn before(&self, _enclave: &Enclave, core: u16, id: u32) {
        let looks = {
            let worker = &mut self.workers.borrow_mut()[id as usize];
            worker.core = core;
            worker.serves.is_none()
        };
        if self.prefetch && looks {
            self.with(id, |stub, port| stub.prefetch(port));
        }
    }

    fn after(&self, enclave: &Enclave, id: u32) -> After {
        let serves = self.workers.borrow_mut()[id as usize].serves.take();
        if let Some(call) = serves {
            self.with(id, |stub, port| {
                stub.message(port, call, &REPLY, END).expect("the call is open");
                stub.publish(port).expect("an honest agent");
            });
            if !self.prestaged {
                // A worker has one call at a time; a note announces the next.
                return After::Await(Nanos(0));
            }
        }
        match self.next_request(enclave, id) {
            Some((call, work)) => {
                self.workers.borrow_mut()[id as usize].serves = Some(call);
                After::On(work)
            }
            None => {
                self.looks.set(self.looks.get() + 1);
                After::Await(Nanos(0))
            }
        }
    }
}
