//! The modelled host's threads: the same table as for users' threads ([`wave_sched::mechanism::table`]), and the simulator's
//! own data for each thread.

use std::cell::Cell;

use wave_core::clock::Nanos;
use wave_core::snapshot::State;
use wave_sched::mechanism::table::{self, Leave, Left};
use wave_sched::wire::{Event, NO_CORE};

use crate::enclave::Enclave;

/// The threads of an enclave.
pub type Table = table::Table<Own>;

/// A thread's data in the simulator, beside its state in the table.
#[derive(Debug, Default)]
pub struct Own {
    /// Work left before the thread asks its application what comes next.
    pub remaining: Cell<Nanos>,
    /// A number whose meaning only the application knows.
    pub tag: Cell<u64>,
}

impl Own {
    fn set(&self, work: Nanos, tag: u64) {
        self.remaining.set(work);
        self.tag.set(tag);
    }
}

impl Enclave {
    /// Creates a runnable thread that has `work` to do. `None` if every id is taken.
    pub fn create(&self, class: u16, work: Nanos, tag: u64) -> Option<Event> {
        let id = self.free.borrow_mut().pop()?;
        Some(self.table.create(id, class, NO_CORE, |own| own.set(work, tag)))
    }

    /// Creates a parked thread, which is announced at its first wake-up. `None` if every id is taken.
    pub fn create_parked(&self, class: u16) -> Option<u32> {
        let id = self.free.borrow_mut().pop()?;
        self.table.create_parked(id, class);
        Some(id)
    }

    /// Wakes a parked thread, which has `work` to do and belongs to `class` from now on. Panics if it is not parked.
    pub(crate) fn wake(&self, id: u32, class: u16, work: Nanos, tag: u64) -> Event {
        self.table.own(id).set(work, tag);
        self.table.set_class(id, class);
        self.table.unpark(self.table.subject(id)).expect("only parked threads are woken")
    }

    /// The thread that runs on `core` leaves it, after a run of `ran`. Panics if it does not run there.
    pub(crate) fn leave(&self, id: u32, why: Leave, core: u16, ran: Nanos) -> Event {
        let at = (self.table.state(id), self.table.core(id));
        assert_eq!(at, (State::Running, core), "thread {id} leaves a core that it does not run on");
        let Left { event, woken } = self.table.leave(id, why, core, ran);
        assert_eq!(woken, None, "thread {id} was woken before it blocked");
        if why == Leave::Exit {
            self.free.borrow_mut().push(id);
        }
        event
    }
}
