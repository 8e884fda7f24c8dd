//! Puts running threads under an agent, and returns them to their former classes at the end.
//!
//! A thread is in the enclave once its class is SCHED_EXT; its children inherit the class. Each thread's former
//! attributes are kept. At the end every thread of that class returns to them, and threads created meanwhile to the
//! default: otherwise the next scheduler that is loaded would get them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::SCHED_EXT;
use crate::process::{self, Lifetime, Stat};
use crate::target::{self, Group, TargetError};

/// Most passes over processes that may fork meanwhile.
const PASSES_MAX: usize = 32;
/// Pause after a pass that found threads: a child that was being created while its parent joined has the parent's
/// former class, and is in no list yet.
const BIRTH: Duration = Duration::from_millis(5);

/// Why running threads could not be put under an agent.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum JoinError {
    /// The target names no process or control group that can join.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The process had no thread left.
    #[error("process {0} ended before it could be put under the agent")]
    Ended(i32),
    /// No thread of the process may join.
    #[error(
        "all threads of process {0} are in a real-time class, which has precedence over threads under an agent"
    )]
    RealTime(i32),
    /// The kernel refused the change of class.
    #[error("thread {thread} cannot be put under the agent: {error}")]
    Refused { thread: i32, error: io::Error },
}

/// Threads that joined enclaves.
#[derive(Debug, Default)]
pub(super) struct Members {
    enclaves: usize,
    /// Class and nice value of each thread before it joined.
    before: HashMap<Lifetime, libc::sched_attr>,
    /// Processes of cgroups in which a pass found only threads that had joined before.
    processes: HashSet<Lifetime>,
    /// Threads that were in SCHED_EXT before this scheduler started, and have not joined.
    others: HashSet<Lifetime>,
}

/// Checks that a group exists and may join. Changes nothing.
pub fn check(group: &Group) -> Result<(), JoinError> {
    Ok(target::check(group)?)
}

impl Members {
    pub(super) fn new(enclaves: usize) -> Members {
        Members { enclaves, others: of_our_class().collect(), ..Members::default() }
    }

    /// Puts every thread of the group, except those of the processes in `spared`, under the agent that `assign` selects; of
    /// a cgroup, only threads that are new since the last call. Returns how many joined.
    pub(super) fn add(
        &mut self,
        group: &Group,
        spared: &[i32],
        assign: &dyn Fn(i32) -> io::Result<()>,
    ) -> Result<usize, JoinError> {
        let mut came = 0;
        let mut real_time = false;
        // A process with a thread that has joined now may be starting another.
        let mut moved = HashSet::new();
        match group {
            Group::Process(_) => target::check(group)?,
            Group::Cgroup(_) => {}
        }
        for _ in 0..PASSES_MAX {
            let processes = match group {
                Group::Process(pid) => target::below(*pid),
                Group::Cgroup(path) => self.new_in(path)?,
            };
            let before = came;
            for process in processes.iter().filter(|(pid, _)| !spared.contains(pid)) {
                for thread in process::threads_of(process.0) {
                    match self.join(thread, assign)? {
                        Came::Now => {
                            came += 1;
                            moved.insert(*process);
                        }
                        Came::Not => real_time = true,
                        Came::Before | Came::Gone => {}
                    }
                }
            }
            if came == before {
                if matches!(group, Group::Cgroup(_)) {
                    self.processes.extend(processes.difference(&moved));
                }
                break;
            }
            // The next pass finds threads that were created before their parents joined.
            std::thread::sleep(BIRTH);
        }
        match group {
            Group::Process(pid) if came == 0 && real_time => Err(JoinError::RealTime(*pid)),
            Group::Process(pid) if came == 0 => Err(JoinError::Ended(*pid)),
            _ => Ok(came),
        }
    }

    /// Processes of a cgroup that have not joined.
    fn new_in(&mut self, path: &Path) -> Result<HashSet<Lifetime>, JoinError> {
        let listed = target::cgroup_processes(path)?;
        self.processes.retain(|process| listed.contains(process));
        Ok(listed.difference(&self.processes).copied().collect())
    }

    fn join(
        &mut self,
        thread: Lifetime,
        assign: &dyn Fn(i32) -> io::Result<()>,
    ) -> Result<Came, JoinError> {
        let (tid, started) = thread;
        // Which error a thread causes that ends meanwhile depends on the call and on the kernel.
        let is_there = || Stat::read(tid).is_some_and(|now| now.started == started);
        let refused = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH) => Ok(Came::Gone),
            _ if !is_there() => Ok(Came::Gone),
            _ => Err(JoinError::Refused { thread: tid, error }),
        };
        let mut was = match attributes(tid) {
            Ok(was) => was,
            Err(error) => return refused(error),
        };
        match was.sched_policy as i32 {
            // Left by a scheduler that was killed. Its former class is unknown.
            SCHED_EXT if self.others.contains(&thread) => {
                was.sched_policy = libc::SCHED_OTHER as u32;
            }
            SCHED_EXT => return Ok(Came::Before),
            libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE => {}
            _ => return Ok(Came::Not),
        }
        let joining = libc::sched_attr { sched_policy: SCHED_EXT as u32, ..was };
        match assign(tid).and_then(|()| set_attributes(tid, &joining)) {
            Ok(()) => {
                self.others.remove(&thread);
                self.before.insert(thread, was);
                Ok(Came::Now)
            }
            Err(error) => refused(error),
        }
    }

    /// Ends an enclave. With the last one, all threads return to their former classes.
    pub(super) fn leave(&mut self) {
        self.enclaves -= 1;
        if self.enclaves > 0 {
            return;
        }
        for _ in 0..PASSES_MAX {
            let mut went = 0;
            for thread in of_our_class().filter(|thread| !self.others.contains(thread)) {
                let (tid, _) = thread;
                let Ok(now) = attributes(tid) else { continue };
                let other = libc::sched_attr { sched_policy: libc::SCHED_OTHER as u32, ..now };
                let was = self.before.get(&thread).unwrap_or(&other);
                // A thread that has ended needs nothing more.
                went += usize::from(set_attributes(tid, was).is_ok());
            }
            if went == 0 {
                break;
            }
        }
    }
}

enum Came {
    Now,
    Before,
    Gone,
    Not,
}

/// Every thread of the machine in class SCHED_EXT.
fn of_our_class() -> impl Iterator<Item = Lifetime> {
    let ours =
        |tid: &i32| read_attributes(*tid).is_ok_and(|now| now.sched_policy as i32 == SCHED_EXT);
    let threads = process::processes().flat_map(process::ids_of).filter(ours);
    threads.filter_map(|tid| Some((tid, Stat::read(tid)?.started)))
}

fn attributes(tid: i32) -> io::Result<libc::sched_attr> {
    let mut attributes = read_attributes(tid)?;
    // A default slice was not set by the user; setting it would turn it into an explicit one.
    if attributes.sched_runtime == read_attributes(0)?.sched_runtime {
        attributes.sched_runtime = 0;
    }
    Ok(attributes)
}

fn read_attributes(tid: i32) -> io::Result<libc::sched_attr> {
    // SAFETY: all-zero is a valid value of this struct of integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes into `attributes`.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attributes, size, 0) } {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_attributes(tid: i32, attributes: &libc::sched_attr) -> io::Result<()> {
    let mut attributes = *attributes;
    attributes.size = size_of::<libc::sched_attr>() as u32;
    // Utilisation clamps, which the kernel may report, are not part of this struct.
    attributes.sched_flags &= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    // SAFETY: the kernel reads `size` bytes, and nothing else is touched.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
