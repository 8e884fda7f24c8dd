//! The modelled host's threads: the table that users' threads are in ([`wave_sched::mechanism::table`]), and what the simulator
//! keeps beside.

use std::cell::Cell;

use wave_core::clock::Nanos;
use wave_sched::mechanism::table::{self, Leave, Left};
use wave_sched::wire::Event;

use crate::enclave::Enclave;

/// The threads of an enclave.
pub type Table = table::Table<Own>;

/// What is kept beside a thread.
#[derive(Debug, Default)]
pub struct Own {
    /// What it has still to run before it stops by itself.
    pub remaining: Cell<Nanos>,
    /// What its application remembers of it.
    pub tag: Cell<u64>,
}

impl Enclave {
    /// Creates a thread: `None` where every id is taken.
    pub fn create(&self, class: u16) -> Option<Event> {
        let id = self.free.borrow_mut().pop()?;
        Some(self.table.create(id, class, wave_sched::wire::NO_CORE))
    }

    /// Creates a thread that is announced when it is first woken: `None` where every id is taken.
    pub fn create_parked(&self, class: u16) -> Option<u32> {
        let id = self.free.borrow_mut().pop()?;
        self.table.create_parked(id, class);
        Some(id)
    }

    /// Wakes a blocked thread, whose class is another from now on.
    pub(crate) fn wake(&self, id: u32, class: u16) -> Event {
        self.table.set_class(id, class);
        self.table.unpark(self.table.subject(id)).expect("only what is blocked is woken")
    }

    /// The thread that runs on `core` leaves it.
    pub(crate) fn leave(&self, id: u32, why: Leave, core: u16, ran: Nanos) -> Event {
        let Left { event, woken } = self.table.leave(id, why, core, ran);
        assert_eq!(woken, None, "only what is blocked is woken");
        if why == Leave::Exit {
            self.free.borrow_mut().push(id);
        }
        event
    }
}
