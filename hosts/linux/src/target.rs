//! Targets that an operator puts under an agent: a process or a cgroup.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::process::{self, Lifetime, Stat};

/// The processes that an agent manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// A process and its children.
    Process(i32),
    /// The processes of a cgroup and of the cgroups below it.
    Cgroup(PathBuf),
}

/// Why a target cannot be put under an agent.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TargetError {
    /// No process has this id.
    #[error("there is no process {0}: `ps -e` lists the running ones")]
    NoProcess(i32),
    #[error("{0} is a kernel thread, which an agent cannot manage")]
    KernelThread(i32),
    /// The id is a thread's, not a process's.
    #[error(
        "{thread} is a thread of process {process}: name the process, which stands for all its threads"
    )]
    Thread { thread: i32, process: i32 },
    /// The target is this process, which cannot be under the agent that it serves.
    #[error("{0} is this process, which cannot be under the agent that it serves")]
    Ourselves(i32),
    /// The process has ended meanwhile.
    #[error("process {0} has ended")]
    Ended(i32),
    /// The process is another user's, or this process lacks a capability.
    #[error(
        "process {pid} may not be read or advised ({error}): run this as root, or give the binary \
         CAP_SYS_PTRACE and CAP_SYS_NICE"
    )]
    NotPermitted { pid: i32, error: io::Error },
    /// The path is not a cgroup.
    #[error("{}: not a cgroup (v2): {error}; cgroups are folders below /sys/fs/cgroup", path.display())]
    NoCgroup {
        path: PathBuf,
        /// The error from reading its list of processes.
        error: io::Error,
    },
    /// The kernel's files about the process cannot be read.
    #[error("cannot read process {pid}: {what}")]
    Unreadable { pid: i32, what: String },
}

/// Checks that a group exists and that an agent may manage it. Changes nothing.
pub(crate) fn check(group: &Group) -> Result<(), TargetError> {
    match group {
        Group::Process(pid) => check_process(*pid),
        Group::Cgroup(path) => cgroup_processes(path).map(|_| ()),
    }
}

/// Checks that this is a process that an agent may manage.
pub(crate) fn check_process(pid: i32) -> Result<(), TargetError> {
    let stat = Stat::read(pid).ok_or(TargetError::NoProcess(pid))?;
    if stat.is_kernel_thread() {
        return Err(TargetError::KernelThread(pid));
    }
    match process::process_of(pid) {
        None => Err(TargetError::NoProcess(pid)),
        Some(process) if process != pid => Err(TargetError::Thread { thread: pid, process }),
        Some(_) if pid == std::process::id() as i32 => Err(TargetError::Ourselves(pid)),
        Some(_) => Ok(()),
    }
}

/// A process and its descendants.
pub(crate) fn below(root: i32) -> HashSet<Lifetime> {
    let all: Vec<(i32, Stat)> =
        process::processes().filter_map(|pid| Some((pid, Stat::read(pid)?))).collect();
    let mut found: HashSet<Lifetime> = HashSet::new();
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        for (child, stat) in &all {
            let belongs = *child == pid || (stat.parent == pid && !stat.is_kernel_thread());
            if belongs && found.insert((*child, stat.started)) && *child != pid {
                waiting.push(*child);
            }
        }
    }
    found
}

/// The processes of a cgroup and of the cgroups below it.
pub(crate) fn cgroup_processes(path: &Path) -> Result<HashSet<Lifetime>, TargetError> {
    let no_cgroup = |error| TargetError::NoCgroup { path: path.to_owned(), error };
    // Cgroups of version 1 list processes as well, and their root all of the machine's.
    if let Err(error) = std::fs::metadata(path.join("cgroup.controllers")) {
        return Err(no_cgroup(error));
    }
    let mut found = HashSet::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let list = std::fs::read_to_string(folder.join("cgroup.procs"))
            // A threaded cgroup lists only threads.
            .or_else(|_| std::fs::read_to_string(folder.join("cgroup.threads")));
        let list = match list {
            Ok(list) => list,
            // A cgroup below has been removed meanwhile.
            Err(_) if folder != path => continue,
            Err(error) => return Err(no_cgroup(error)),
        };
        let pids = list.lines().filter_map(|line| line.parse().ok());
        let user = pids.filter_map(|pid: i32| Some((pid, Stat::read(pid)?)));
        let user = user.filter(|(_, stat)| !stat.is_kernel_thread());
        found.extend(user.map(|(pid, stat)| (pid, stat.started)));
        let below = match std::fs::read_dir(&folder) {
            Ok(below) => below,
            // As above.
            Err(_) if folder != path => continue,
            Err(error) => return Err(no_cgroup(error)),
        };
        let below = below
            .filter_map(|entry| entry.ok())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(below.map(|entry| entry.path()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    #[test]
    fn a_process_that_cannot_join_is_refused_with_the_reason() {
        let check = |pid| check(&Group::Process(pid)).unwrap_err().to_string();
        assert!(check(i32::MAX).starts_with("there is no process 2147483647"));
        assert!(check(std::process::id() as i32).contains("is this process"));
        let tid = std::thread::spawn(|| {
            // SAFETY: takes nothing and touches no memory.
            let tid = unsafe { libc::gettid() };
            check_process(tid).unwrap_err().to_string()
        });
        let why = tid.join().unwrap();
        assert!(why.contains(&format!("a thread of process {}", std::process::id())), "{why}");
        let group = Group::Cgroup(std::env::temp_dir());
        assert!(super::check(&group).unwrap_err().to_string().contains("not a cgroup (v2)"));
    }

    /// A folder that lets its files be read but cannot be listed stands for one that is removed in between.
    #[test]
    fn cgroup_that_is_removed_while_it_is_read_does_not_remove_its_parent() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("below");
        std::fs::create_dir(&below).unwrap();
        for file in ["cgroup.controllers", "cgroup.procs", "below/cgroup.procs"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        std::fs::set_permissions(&below, std::fs::Permissions::from_mode(0o111)).unwrap();
        let root = folder.path().to_owned();
        let list = move || {
            // Root lists every folder by its capabilities, which are the thread's own.
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            assert!(std::fs::read_dir(root.join("below")).is_err());
            cgroup_processes(&root)
        };
        let found = std::thread::spawn(list).join().unwrap();
        std::fs::set_permissions(&below, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found.unwrap(), HashSet::new());
    }

    #[test]
    fn process_tree_includes_grandchildren() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id() as i32;
        let has = |root| below(root).iter().any(|(pid, _)| *pid == id);
        assert!(has(id) && has(std::process::id() as i32));
        assert!(has(std::os::unix::process::parent_id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!has(id));
    }
}
