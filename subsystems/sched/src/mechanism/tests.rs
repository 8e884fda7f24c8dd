//! The table used by one thread; `tests/loom.rs` covers its races.

use wave_core::clock::Nanos;
use wave_core::message::Sequence;
use wave_core::snapshot::State;

use super::table::{Leave, Left, Table};
use crate::wire::{Event, Kind, NO_CORE};

#[test]
fn an_awaiting_thread_is_runnable_and_waits_for_no_decision() {
    let table = Table::new(2, || ());
    let Event { thread, sequence, .. } = table.create(1, 0, NO_CORE, |()| ());
    assert_eq!(table.commit(0, thread, sequence), Ok(1));
    let Left { event, woken } = table.leave(1, Leave::Await, 0, Nanos(0));
    assert_eq!((event.kind, woken), (Kind::Awaits, None));
    assert_eq!(table.runnable().collect::<std::vec::Vec<_>>(), [(thread, event.sequence)]);
    assert_eq!(table.records().next().unwrap().state, State::Runnable);
    // Otherwise the watchdog would revoke an agent that has no requests.
    assert_eq!(table.waiting_from(0).count(), 0);
    assert!(!table.waits(thread, event.sequence));
    assert_eq!(table.commit(0, thread, event.sequence), Ok(1));
    let event = table.leave(1, Leave::Yield, 0, Nanos(0)).event;
    assert!(table.waits(thread, event.sequence));
}

#[test]
fn the_first_unpark_announces_a_thread_created_parked() {
    let table = Table::new(1, || ());
    table.create_parked(0, 3);
    let record = table.records().next().unwrap();
    assert_eq!((record.state, record.sequence), (State::Blocked, Sequence(0)));
    table.set_class(0, 5);
    let event = table.unpark(table.subject(0)).unwrap();
    assert_eq!((event.kind, event.sequence, event.class), (Kind::Wakeup, Sequence(1), 5));
    assert_eq!(table.unpark(event.thread), None);
}
