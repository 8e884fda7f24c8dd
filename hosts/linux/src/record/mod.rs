//! Records what threads do under Linux's own scheduler, by BPF programs on the kernel's tracepoints. It needs Linux 5.18
//! or later, with or without sched_ext.
//!
//! [`Recorder`] takes events from the kernel; [`History`] turns them into threads as described by
//! [`wave_sched::workload`]. Decides nothing, and its only effect on the machine is the time that it takes.

mod event;
mod history;
mod interference;
#[allow(dead_code, reason = "some of it is C's alone")]
mod shared;

use std::cell::RefCell;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;

use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use self::shared::{Counts, SCOPE_ALL, SCOPE_CHILDREN, SCOPE_TREE, Settings};
use crate::bpf::{self, Refusal};

pub use event::{Doing, Event, Kind, Named, Next, Who};
pub use history::History;

const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/record.bpf.o"));
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// The program that lists existing threads; all others run on events.
const ITERATOR: &str = "seen";
/// Most events taken at a time, to bound memory use.
const BATCH: usize = 1 << 16;

/// The threads to record. The recorder's own process is never recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every thread of the machine.
    All,
    /// Threads of this process and its descendants, future ones included.
    Process(u32),
    /// Processes that the thread that starts the recorder creates from now on, and their descendants.
    Children,
}

/// Why nothing can be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// This process may not load BPF programs.
    #[error(
        "the kernel does not let this process load BPF programs: run it as root, or give the binary \
         CAP_BPF and CAP_PERFMON (setcap cap_bpf,cap_perfmon=ep)"
    )]
    NotPermitted,
    /// The kernel does not describe its types (BTF).
    #[error("{BTF} is missing: the kernel must be built with CONFIG_DEBUG_INFO_BTF")]
    NoTypes,
    /// There is no such process.
    #[error("there is no process {0}: `ps -e` lists the running ones")]
    NoProcess(u32),
    /// The kernel or libbpf refuses the programs.
    #[error(
        "the kernel refuses the BPF programs that record threads, which need Linux 5.18 or later: {0}"
    )]
    Refused(String),
    /// Events cannot be read from the kernel.
    #[error("cannot read the kernel's events: {0}")]
    Reading(String),
}

/// Counts of events that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Events that found no room in the buffer, or that a BPF program missed because it was running already.
    pub events: u64,
    /// Threads that were not recorded because the table was full.
    pub threads: u64,
}

/// Takes events from the kernel, from [`Recorder::start`] on. There is no notification of new events: call
/// [`Recorder::take`] every few milliseconds.
pub struct Recorder {
    ring: RingBuffer<'static>,
    taken: Rc<RefCell<Vec<Event>>>,
    unknown: Rc<RefCell<u64>>,
    counts: MapHandle,
    /// Dropped, and so detached, before the programs.
    links: Vec<Link>,
    iterator: Link,
    begins_ns: u64,
    object: Object,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("begins_ns", &self.begins_ns).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Loads the programs and begins to record.
    pub fn start(scope: Scope) -> Result<Recorder, RecordError> {
        if !Path::new(BTF).exists() {
            return Err(RecordError::NoTypes);
        }
        if let Scope::Process(pid) = scope
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            return Err(RecordError::NoProcess(pid));
        }
        let recorder = bpf::load(|| Recorder::load(scope)).map_err(|refusal| match refusal {
            Refusal::NotPermitted => RecordError::NotPermitted,
            Refusal::Other(words) => RecordError::Refused(words),
        })?;
        if let Scope::Process(pid) = scope
            && recorder.counts().followed == 0
        {
            return Err(RecordError::NoProcess(pid));
        }
        Ok(recorder)
    }

    fn load(scope: Scope) -> libbpf_rs::Result<Recorder> {
        let mut open = ObjectBuilder::default().name("wave_record")?.open_memory(PROGRAMS)?;
        let (scope, root) = match scope {
            Scope::All => (SCOPE_ALL, 0),
            Scope::Process(pid) => (SCOPE_TREE, pid),
            Scope::Children => (SCOPE_CHILDREN, 0),
        };
        let is_settings = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with(".rodata");
        let mut settings = open.maps_mut().find(|map| is_settings(map.name()));
        let settings = settings.as_mut().and_then(|map| map.initial_value_mut());
        let settings = settings.ok_or_else(|| missing("settings"))?;
        let wanted = Settings { scope, root };
        wanted.write_to_prefix(settings).map_err(|_| missing("settings"))?;
        let object = open.load()?;
        let map = |ending: &str| {
            let mut maps = object.maps();
            let found = maps.find(|map| map.name().to_string_lossy().ends_with(ending));
            MapHandle::try_from(&found.ok_or_else(|| missing(ending))?)
        };
        let (counts, events) = (map(".bss")?, map("events")?);
        let (taken, unknown) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(0)));
        let mut ring = RingBufferBuilder::new();
        let (sink, strange) = (Rc::clone(&taken), Rc::clone(&unknown));
        ring.add(&events, move |bytes| {
            match Event::decode(bytes) {
                Some(event) => sink.borrow_mut().push(event),
                None => *strange.borrow_mut() += 1,
            }
            0
        })?;
        let ring = ring.build()?;
        let attach = |iterator: bool| {
            let programs = object
                .progs_mut()
                .filter(move |program| (program.name().to_string_lossy() == ITERATOR) == iterator);
            programs.map(|program| program.attach()).collect::<libbpf_rs::Result<Vec<Link>>>()
        };
        let iterator = attach(true)?.pop().ok_or_else(|| missing(ITERATOR))?;
        // The programs get the recorder's id before they run.
        visit_threads(&iterator)?;
        let begins_ns = monotonic_ns();
        let links = attach(false)?;
        // The second look finds threads that were created meanwhile. It also finds children listed before their
        // parents, which happens once ids have wrapped around.
        visit_threads(&iterator)?;
        visit_threads(&iterator)?;
        Ok(Recorder { ring, taken, unknown, counts, links, iterator, begins_ns, object })
    }

    /// When the recording began, on the clock of the events.
    pub fn begins_ns(&self) -> u64 {
        self.begins_ns
    }

    /// Hands all events since the last call to `sink`.
    pub fn take(&mut self, sink: &mut dyn FnMut(&Event)) -> Result<(), RecordError> {
        loop {
            let count = self.ring.consume_raw_n(BATCH);
            for event in self.taken.borrow_mut().drain(..) {
                sink(&event);
            }
            if count < 0 {
                let error = io::Error::from_raw_os_error(-count);
                return Err(RecordError::Reading(error.to_string()));
            }
            if (count as usize) < BATCH {
                return Ok(());
            }
        }
    }

    /// Ends the recording: hands over the remaining events, with every thread's present name. Returns the time of the
    /// end, on the clock of the events, and the counts of lost events.
    pub fn stop(mut self, sink: &mut dyn FnMut(&Event)) -> Result<(u64, Lost), RecordError> {
        self.take(sink)?;
        visit_threads(&self.iterator).map_err(|error| RecordError::Reading(error.to_string()))?;
        let ends_ns = monotonic_ns();
        let lost = self.lost();
        self.links.clear();
        self.take(sink)?;
        Ok((ends_ns, lost))
    }

    /// Counts of events lost so far.
    pub fn lost(&self) -> Lost {
        let missed: u64 = self.object.progs().map(|program| misses(program.as_fd())).sum();
        let counts = self.counts();
        let events = counts.dropped + *self.unknown.borrow() + missed;
        Lost { events, threads: counts.unfollowed }
    }

    /// The programs' counts; zeros if they cannot be read.
    fn counts(&self) -> Counts {
        let bytes = self.counts.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let bytes = bytes.ok().flatten().unwrap_or_default();
        Counts::read_from_prefix(&bytes).map_or_else(|_| Counts::new_zeroed(), |(counts, _)| counts)
    }
}

/// How often the kernel did not run a program because it was running already.
fn misses(program: BorrowedFd<'_>) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd()));
    let text = text.unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Makes the iterator look at every thread of the machine.
fn visit_threads(iterator: &Link) -> libbpf_rs::Result<()> {
    let mut rest = Vec::new();
    Iter::new(iterator)?.read_to_end(&mut rest)?;
    Ok(())
}

fn missing(what: &str) -> libbpf_rs::Error {
    io::Error::other(format!("the BPF programs have no `{what}`")).into()
}

/// The present time on the clock of the events.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and `now` is ours to be written to for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
