//! The loaded BPF program, and the memory that it shares with this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramInput, RingBuffer,
    RingBufferBuilder,
};
use wave_core::message::{Sequence, Subject, TxnId};
use wave_core::outcome::Code;
use wave_core::snapshot::{CoreRecord, Record, State};
use wave_host::Core;
use zerocopy::{FromBytes, IntoBytes};

use super::places::Part;
use super::shared::{
    AllPlaces, BELL_AGENT, CODES, Control, Kick, NO_ENCLAVE, Take, Thread, TurnedOut, WINDOWS,
};
use super::table::{Shared, Table};
use super::{answers, shared};
use crate::process;
use crate::window::{Window, WindowError, array};

/// Why the mechanism could not be loaded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum LoadError {
    #[error(
        "this kernel has no sched_ext (/sys/kernel/sched_ext is missing): use Linux 6.13 or later, \
         built with CONFIG_SCHED_CLASS_EXT; `wave doctor` says what this machine can run"
    )]
    NoSchedExt,
    #[error(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing), without which no scheduler can be \
         loaded: use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    #[error(
        "another sched_ext scheduler is loaded: `{0}`; stop it first (one `wave run --host linux` at a time: several \
         enclaves go into one file, see scenarios/kernel)"
    )]
    Taken(String),
    /// This process may not load a scheduler.
    #[error(
        "loading a scheduler needs root: use sudo, or a virtual machine (`cargo xtask vm run`)"
    )]
    NotRoot,
    /// libbpf or the kernel's verifier refused.
    #[error("{doing} failed: {error}")]
    Bpf { doing: &'static str, error: libbpf_rs::Error },
    /// Memory shared with the program could not be mapped.
    #[error("mapping {what} failed: {error}")]
    Map { what: &'static str, error: wave_links::memory::MapError },
    /// A window could not be made.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The object is not the one that this library was built with.
    #[error("the BPF program has no {0}")]
    Missing(&'static str),
}

/// A ring buffer for the program's requests to this process.
fn bell() -> Result<MapHandle, LoadError> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    // SAFETY: takes a number and touches no memory.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u32;
    MapHandle::create(MapType::RingBuf, Some("wave_bell"), 0, 0, page, &options)
        .map_err(|error| LoadError::Bpf { doing: "making a bell", error })
}

/// A pidfd of a thread.
fn thread_fd(tid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers; nothing else owns the returned descriptor.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, tid, libc::PIDFD_THREAD) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd as i32)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The program, loaded and attached. When it is dropped, the kernel takes all tasks back.
struct Program {
    _link: Link,
    object: Object,
    control: Table<Control>,
    threads: Table<Thread>,
    cores: Table<shared::Core>,
    windows: MapHandle,
    far_rings: MapHandle,
    enclave_of_task: MapHandle,
    subjects: u32,
    /// Whether the program schedules all threads of the machine.
    everything: bool,
}

/// One enclave's view of the program.
pub(crate) struct Mechanism {
    program: Arc<Program>,
    bells: MapHandle,
    enclave: u32,
    first_core: u32,
    core_count: u32,
}

/// A request of the program to this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bells {
    pub(crate) agent: bool,
}

impl Program {
    fn load(
        parts: &[Part<'_>],
        subjects: u32,
        cpus_possible: usize,
        bells: &[MapHandle],
        everything: bool,
    ) -> Result<Program, LoadError> {
        let bpf = |doing| move |error| LoadError::Bpf { doing, error };
        let bytes = include_bytes!(concat!(env!("OUT_DIR"), "/sched.bpf.o"));
        let mut open =
            ObjectBuilder::default().open_memory(bytes).map_err(bpf("reading the program"))?;
        let layout = parts[0].layout;
        let template = array("wave_template", layout.nic_lines + layout.host_lines)?;
        let places = AllPlaces::new(parts, subjects, cpus_possible, everything);
        let (operations, others) =
            if everything { ("wave_all", "wave") } else { ("wave", "wave_all") };
        let enclaves = parts.len() as u32;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let done = match name.as_str() {
                "threads" | "free_slots" => map.set_max_entries(subjects),
                "core_states" => map.set_max_entries(places.all_cores),
                "control" => map.set_max_entries(enclaves),
                "windows" => map.set_inner_map_fd(template.as_fd()),
                "bells" => map.set_inner_map_fd(bells[0].as_fd()),
                name if name == others => map.set_autocreate(false),
                name if name.ends_with(".rodata") => {
                    let bytes = map.initial_value_mut().ok_or(LoadError::Missing("constants"))?;
                    let into = bytes.get_mut(..size_of::<AllPlaces>());
                    into.ok_or(LoadError::Missing("layout"))?.copy_from_slice(places.as_bytes());
                    Ok(())
                }
                _ => Ok(()),
            };
            done.map_err(bpf("sizing a map"))?;
        }
        let mut object = open.load().map_err(bpf("loading the program"))?;
        let control = mapped(&object, "control", enclaves)?;
        let threads = mapped(&object, "threads", subjects)?;
        let core_states = mapped(&object, "core_states", places.all_cores)?;
        let kept = |name: &'static str| {
            let map = object.maps().find(|map| map.name() == name);
            let map = map.ok_or(LoadError::Missing(name))?;
            MapHandle::try_from(&map).map_err(bpf("keeping a map"))
        };
        let (windows, far_rings) = (kept("windows")?, kept("far_rings")?);
        let enclave_of_task = kept("enclave_of_task")?;
        let all_bells = kept("bells")?;
        for (enclave, bell) in bells.iter().enumerate() {
            insert(&all_bells, enclave as u32, bell).map_err(bpf("making a bell"))?;
        }
        if everything {
            spare(&enclave_of_task, std::process::id() as i32);
        }
        let link = {
            let mut ops = object.maps_mut().find(|map| map.name() == operations);
            let ops = ops.as_mut().ok_or(LoadError::Missing("operations"))?;
            ops.attach_struct_ops().map_err(|error| {
                // Another scheduler may have been loaded meanwhile.
                check_kernel().err().unwrap_or_else(|| bpf("attaching the scheduler")(error))
            })?
        };
        Ok(Program {
            _link: link,
            object,
            control,
            threads,
            cores: core_states,
            windows,
            far_rings,
            enclave_of_task,
            subjects,
            everything,
        })
    }
}

/// Maps one of the program's arrays, of `count` values.
fn mapped<T: Shared>(
    object: &Object,
    name: &'static str,
    count: u32,
) -> Result<Table<T>, LoadError> {
    let map = object.maps().find(|map| map.name() == name).ok_or(LoadError::Missing(name))?;
    Table::map(map.as_fd(), count).map_err(|error| LoadError::Map { what: name, error })
}

/// Puts a map into an array of maps.
fn insert(into: &MapHandle, at: u32, map: &MapHandle) -> Result<(), libbpf_rs::Error> {
    let value = (map.as_fd().as_raw_fd() as u32).to_ne_bytes();
    into.update(&at.to_ne_bytes(), &value, MapFlags::ANY)
}

/// Keeps the threads of a process, and those that they start, out of all enclaves. Threads that have ended meanwhile need
/// nothing.
fn spare(enclave_of_task: &MapHandle, pid: i32) {
    for tid in process::ids_of(pid) {
        if let Ok(thread) = thread_fd(tid) {
            let key = thread.as_raw_fd().to_ne_bytes();
            let _ = enclave_of_task.update(&key, &NO_ENCLAVE.to_ne_bytes(), MapFlags::ANY);
        }
    }
}

impl Mechanism {
    /// Loads the program. Returns a mechanism for each enclave, in their order. `subjects` is the most threads in all of them
    /// together.
    pub(crate) fn load(
        parts: &[Part<'_>],
        subjects: u32,
        cpus_possible: usize,
        everything: bool,
    ) -> Result<Vec<Mechanism>, LoadError> {
        let bells = parts.iter().map(|_| bell()).collect::<Result<Vec<_>, _>>()?;
        let program = Arc::new(Program::load(parts, subjects, cpus_possible, &bells, everything)?);
        let mut first_core = 0;
        let each = parts.iter().zip(bells).enumerate().map(|(enclave, (part, bells))| {
            let core_count = part.cpus.len() as u32;
            first_core += core_count;
            let program = Arc::clone(&program);
            let first_core = first_core - core_count;
            Mechanism { program, bells, enclave: enclave as u32, first_core, core_count }
        });
        Ok(each.collect())
    }

    /// Makes a thread, and those that it starts, join this enclave once they enter the class.
    pub(crate) fn assign(&self, tid: i32) -> io::Result<()> {
        let thread = thread_fd(tid)?;
        let map = &self.program.enclave_of_task;
        let key = thread.as_raw_fd().to_ne_bytes();
        map.update(&key, &self.enclave.to_ne_bytes(), MapFlags::ANY).map_err(io::Error::other)
    }

    /// Undoes [`Mechanism::assign`] for a thread of this process.
    pub(crate) fn unassign(&self, tid: i32) -> io::Result<()> {
        let map = &self.program.enclave_of_task;
        let thread = thread_fd(tid)?;
        let key = thread.as_raw_fd().to_ne_bytes();
        let done = if self.program.everything {
            map.update(&key, &NO_ENCLAVE.to_ne_bytes(), MapFlags::ANY)
        } else {
            map.delete(&key)
        };
        done.map_err(io::Error::other)
    }

    /// If the program schedules all threads, exempts an agent's threads from decisions.
    pub(crate) fn spare_agent(&self, pid: i32) {
        if self.program.everything {
            spare(&self.program.enclave_of_task, pid);
        }
    }

    /// Calls `ring` for each request of the program.
    pub(crate) fn bells<'a>(
        &self,
        mut ring: impl FnMut(Bells) + 'a,
    ) -> Result<RingBuffer<'a>, LoadError> {
        let bpf = |error| LoadError::Bpf { doing: "listening to the program", error };
        let mut builder = RingBufferBuilder::new();
        let heard = move |bytes: &[u8]| {
            ring(Bells { agent: bytes == BELL_AGENT.as_bytes() });
            0
        };
        builder.add(&self.bells, heard).map_err(bpf)?;
        builder.build().map_err(bpf)
    }

    /// Interrupts a core, as its doorbell asks.
    pub(crate) fn kick(&self, core: u32) {
        self.call("wave_kick", Kick { core: self.first_core + core });
    }

    /// Gives a thread that waits for a decision to the host, for one run. Returns whether it still waited.
    pub(crate) fn take(&self, slot: u32) -> bool {
        self.call("wave_take", Take { slot }) == Some(0)
    }

    /// Runs one of the program's entry points.
    fn call(&self, name: &str, mut context: impl FromBytes + IntoBytes) -> Option<u32> {
        let program = self.program.object.progs_mut().find(|program| program.name() == name)?;
        let input = ProgramInput { context_in: Some(context.as_mut_bytes()), ..Default::default() };
        Some(program.test_run(input).ok()?.return_value)
    }

    pub(crate) fn kick_all(&self) {
        (0..self.core_count).for_each(|core| self.kick(core));
    }

    fn control(&self) -> &Control {
        &self.program.control[self.enclave as usize]
    }

    /// Tells the program that the control thread watches the agent.
    pub(crate) fn beat(&self, now_ns: u64) {
        self.control().beat.store(now_ns, Ordering::SeqCst);
    }

    pub(crate) fn agent_decides(&self) -> bool {
        self.control().agent_decides.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn set_agent_decides(&self, decides: bool) {
        self.control().agent_decides.store(decides.into(), Ordering::SeqCst);
        if !decides {
            // Makes every core look for threads left parked.
            self.control().tick.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn take_lost(&self) -> bool {
        self.control().lost.swap(0, Ordering::SeqCst) != 0
    }

    pub(crate) fn take_fault(&self) -> bool {
        self.control().fault.swap(0, Ordering::SeqCst) != 0
    }

    /// How often the program itself turned an agent out because the control thread did not watch it.
    pub(crate) fn unwatched(&self) -> u64 {
        self.control().fallbacks.load(Ordering::Relaxed)
    }

    /// Number of threads that joined when no slot was left, and stay with the host.
    pub(crate) fn without_slot(&self) -> u64 {
        self.control().without_slot.load(Ordering::Relaxed)
    }

    fn epoch(&self) -> u64 {
        self.control().epoch.load(Ordering::SeqCst)
    }

    /// Points every context to another window, or to none. `far` is where the kernel has mapped the
    /// window's decisions, if they are in a device's memory.
    pub(crate) fn switch_windows(
        &self,
        to: Option<&Window>,
        far: Option<u64>,
    ) -> Result<(), LoadError> {
        let epoch = self.epoch() + 1;
        let at = self.enclave * WINDOWS as u32 + (epoch % WINDOWS as u64) as u32;
        let windows = &self.program.windows;
        let handing_over = |error| LoadError::Bpf { doing: "handing over a window", error };
        let far = far.unwrap_or(0).to_ne_bytes();
        let done = self.program.far_rings.update(&at.to_ne_bytes(), &far, MapFlags::ANY);
        done.map_err(handing_over)?;
        match to {
            Some(window) => {
                insert(windows, at, &window.map).map_err(handing_over)?;
            }
            None => {
                // Mostly there is no window to delete.
                let _ = windows.delete(&at.to_ne_bytes());
            }
        }
        self.control().epoch.store(epoch, Ordering::SeqCst);
        Ok(())
    }

    fn cores(&self) -> &[shared::Core] {
        &self.program.cores[self.first_core as usize..][..self.core_count as usize]
    }

    /// Every core, as its supervisor sees it.
    pub(crate) fn supervised_cores(&self) -> Vec<Core> {
        let epoch = self.epoch();
        let of = |core: &shared::Core| {
            let is_here = core.epoch.load(Ordering::Acquire) == epoch;
            let word = core.record.load(Ordering::Acquire);
            let record = CoreRecord {
                run: (word >> 32) as u32,
                txn: TxnId::new(word as u32),
                asks: word & 1 << 24 != 0,
            };
            Core { record, is_here, is_agents: true }
        };
        self.cores().iter().map(of).collect()
    }

    pub(crate) fn core_stats(&self) -> Vec<super::CoreStats> {
        self.cores().iter().map(stats_of).collect()
    }

    /// Whether a slot's thread belongs to this enclave.
    fn is_ours(&self, thread: &Thread) -> bool {
        u32::from(thread.enclave.load(Ordering::SeqCst)) == self.enclave
    }

    /// A consistent copy of a slot's record; `None` if the slot was never used.
    fn record(&self, slot: u32) -> Option<Record> {
        let thread = &self.program.threads[slot as usize];
        loop {
            let word = thread.word.load(Ordering::SeqCst);
            let generation = thread.generation.load(Ordering::SeqCst);
            let ours = self.is_ours(thread);
            if thread.word.load(Ordering::SeqCst) != word {
                continue;
            }
            let state = State::from_number((word >> 32) as u8).unwrap_or(State::Free);
            let record = Record {
                subject: Subject { id: slot, generation },
                sequence: Sequence(word as u32),
                // This enclave's agent sees no thread of another enclave.
                state: if ours { state } else { State::Free },
                core: (word >> 48) as u16,
                class: 0,
            };
            return (generation > 0).then_some(record);
        }
    }

    /// Records of all slots that were ever used.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        (0..self.program.subjects).filter_map(|slot| self.record(slot))
    }

    /// Threads that wait for a decision, from slot `from` on, then from 0.
    pub(crate) fn runnable_from(
        &self,
        from: u32,
    ) -> impl Iterator<Item = (Subject, Sequence)> + '_ {
        let from = from.min(self.program.subjects);
        (from..self.program.subjects)
            .chain(0..from)
            .filter_map(|slot| self.record(slot))
            .filter(|record| record.state == State::Runnable)
            .map(|record| (record.subject, record.sequence))
    }

    /// Whether a thread is runnable, and has been since this sequence.
    pub(crate) fn waits(&self, subject: Subject, sequence: Sequence) -> bool {
        self.record(subject.id).is_some_and(|record| {
            record.subject == subject
                && record.sequence == sequence
                && record.state == State::Runnable
        })
    }

    /// Number of threads in the enclave now.
    pub(crate) fn threads(&self) -> usize {
        self.records().filter(|record| record.state != State::Free).count()
    }

    /// All threads, including those that no agent has heard of yet.
    pub(crate) fn all_threads(&self) -> impl Iterator<Item = super::Thread> + '_ {
        (0..self.program.subjects).filter_map(|slot| {
            let thread = &self.program.threads[slot as usize];
            let tid = thread.pid.load(Ordering::SeqCst) as i32;
            let Record { state, core, .. } = self.record(slot)?;
            let core = (state == State::Running).then_some(core);
            (tid != 0 && self.is_ours(thread)).then_some(super::Thread { tid, state, core })
        })
    }

    /// Why the kernel turned the program out, if it did.
    pub(crate) fn exit_reason(&self) -> Option<String> {
        let map = self
            .program
            .object
            .maps()
            .find(|map| map.name().to_string_lossy().ends_with(".bss"))?;
        let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        let (out, _) = TurnedOut::read_from_prefix(&bytes).ok()?;
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0)?;
            (end > 0).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
        };
        let (reason, message) = (text(&out.reason), text(&out.message));
        match (reason, message) {
            (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
            (reason, message) => reason.or(message),
        }
    }
}

fn stats_of(core: &shared::Core) -> super::CoreStats {
    let answered = |code: Code| core.outcomes[code as usize].load(Ordering::Relaxed);
    let outcomes = answers::ANSWERS.map(|code| (code, answered(code)));
    super::CoreStats {
        switches: answered(Code::Complete),
        fallback_switches: core.fallback_switches.load(Ordering::Relaxed),
        outcomes: outcomes.into_iter().filter(|(_, count)| *count > 0).collect(),
        early: core.early.load(Ordering::Relaxed),
    }
}

const _: () = {
    let mut at = 0;
    while at < answers::ANSWERS.len() {
        assert!((answers::ANSWERS[at] as usize) < CODES, "an answer has no counter");
        at += 1;
    }
};

/// Checks whether a scheduler can be loaded on this machine now.
pub fn check_kernel() -> Result<(), LoadError> {
    let state = std::fs::read_to_string("/sys/kernel/sched_ext/state");
    let state = state.map_err(|_| LoadError::NoSchedExt)?;
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(LoadError::NoBtf);
    }
    if state.trim() == "disabled" {
        // SAFETY: reads an id of this process.
        return if unsafe { libc::geteuid() } == 0 { Ok(()) } else { Err(LoadError::NotRoot) };
    }
    let name = std::fs::read_to_string("/sys/kernel/sched_ext/root/ops").unwrap_or_default();
    Err(LoadError::Taken(name.trim().to_owned()))
}

#[cfg(test)]
mod model_tests;
