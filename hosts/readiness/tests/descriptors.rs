//! Waits in a process that has no descriptor left. A separate program, because the limit applies to the whole process.

use std::cell::Cell;

use rustix::event::epoll::{CreateFlags, create};
use rustix::io::{Errno, dup};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wave_readiness::{Epoll, Event, EventData, EventFlags, Source, Target, Waiter};

/// A waiter that changes the source after the looks of the first sleep.
struct Late<'a>(&'a Source, Cell<usize>);

impl Waiter for Late<'_> {
    fn process_events(&self) {
        self.1.set(self.1.get() + 1);
        if self.1.get() == 5 {
            self.0.changed(EventFlags::IN, Source::DATA);
        }
    }
}

#[test]
fn thread_without_a_wakeup_descriptor_polls() {
    let set = Epoll::new(create(CreateFlags::CLOEXEC).unwrap());
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let mut all = Vec::new();
    let full = loop {
        match dup(&set) {
            Ok(fd) => all.push(fd),
            Err(error) => break error,
        }
    };
    assert_eq!(full, Errno::MFILE);

    let source = Source::new(EventFlags::empty());
    let interest = Event { flags: EventFlags::IN, data: EventData::new_u64(7) };
    set.add(Target::Source(1000, &source), interest).unwrap();
    let late = Late(&source, Cell::new(0));
    assert_eq!(set.wait(&late, &mut [interest], None), Ok(1));
}
