//! Running processes come under an agent, and return to their former classes.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use wave_core::outcome::Code;
use wave_linux::sched::{Group, SCHED_EXT};

use crate::processes::{Agent, alone, count, start, wait_for};

/// Class and nice value of a thread.
fn class_of(tid: u32) -> (i32, i32) {
    // SAFETY: takes a number and touches no memory.
    let class = unsafe { libc::sched_getscheduler(tid as i32) };
    // SAFETY: the same.
    (class, unsafe { libc::getpriority(libc::PRIO_PROCESS, tid) })
}

/// Starts a process with a child; both do little.
fn family(before: &str) -> Child {
    let line = format!("{before} nice -n 5 sh -c 'while :; do sleep 0.01; done' & wait");
    Command::new("sh").args(["-c", &line]).process_group(0).spawn().unwrap()
}

fn children_of(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Starts a family whose child has its nice value.
fn family_with_child() -> (Child, u32) {
    let family = family("");
    wait_for("the child", || !children_of(family.id()).is_empty());
    let child = children_of(family.id())[0];
    wait_for("its nice value", || class_of(child) == (libc::SCHED_OTHER, 5));
    (family, child)
}

fn end(mut child: Child) {
    let group = child.id() as i32;
    // SAFETY: a system call; the group was created for the child, which has not been waited for yet.
    unsafe { libc::killpg(group, libc::SIGKILL) };
    child.wait().unwrap();
}

#[test]
fn process_joins_with_its_children_and_returns_to_its_class() {
    let Some(_alone) = alone() else { return };
    let (family, child) = family_with_child();
    let enclave = start(|_| {});
    let agent = Agent::start(&enclave, "fifo");
    // Processes that it starts while joining are found, too.
    assert!(enclave.adopt(&Group::Process(family.id() as i32), &[]).unwrap() >= 2);
    assert_eq!(class_of(family.id()), (SCHED_EXT, 0));
    assert_eq!(class_of(child), (SCHED_EXT, 5));
    wait_for("decisions", || count(&enclave.stats(), Code::Complete) > 20);
    assert!(enclave.threads().iter().any(|thread| thread.tid == child as i32));
    // A second call finds no new thread: it returns an error, and leaves the threads where they are.
    assert!(enclave.adopt(&Group::Process(family.id() as i32), &[]).is_err());
    drop(enclave);
    drop(agent);
    assert_eq!(class_of(family.id()), (libc::SCHED_OTHER, 0));
    assert_eq!(class_of(child), (libc::SCHED_OTHER, 5));
    end(family);
}

/// The kernel leaves the threads of a scheduler that was killed in SCHED_EXT.
#[test]
fn threads_left_behind_by_a_killed_scheduler_join_the_next() {
    let Some(_alone) = alone() else { return };
    let (family, child) = family_with_child();
    let none = libc::sched_param { sched_priority: 0 };
    for left in [family.id(), child] {
        // SAFETY: a system call that reads `none`.
        let failed = unsafe { libc::sched_setscheduler(left as i32, SCHED_EXT, &raw const none) };
        assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    }
    let enclave = start(|_| {});
    let agent = Agent::start(&enclave, "fifo");
    assert!(enclave.adopt(&Group::Process(family.id() as i32), &[]).unwrap() >= 2);
    wait_for("decisions", || {
        enclave.threads().iter().any(|thread| thread.tid == child as i32)
            && count(&enclave.stats(), Code::Complete) > 20
    });
    drop(enclave);
    drop(agent);
    assert_eq!(class_of(family.id()), (libc::SCHED_OTHER, 0));
    assert_eq!(class_of(child), (libc::SCHED_OTHER, 5));
    end(family);
}

#[test]
fn processes_that_enter_a_cgroup_join_later() {
    let Some(_alone) = alone() else { return };
    let root = Path::new("/sys/fs/cgroup");
    if !root.join("cgroup.procs").exists() {
        wave_skip::skip(format!("no cgroup v2 at {}", root.display()));
        return;
    }
    let folder = root.join(format!("wave-vm-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("below")).unwrap();
    let enclave = start(|_| {});
    let _agent = Agent::start(&enclave, "fifo");
    let group = Group::Cgroup(folder.clone());
    assert_eq!(enclave.adopt(&group, &[]).unwrap(), 0);
    let enter = format!("echo $$ > {};", folder.join("below/cgroup.procs").display());
    let family = family(&enter);
    wait_for("its processes", || {
        enclave.adopt(&group, &[]).unwrap();
        class_of(family.id()).0 == SCHED_EXT
    });
    wait_for("decisions", || {
        // The next look finds a child that was being created while its parent joined.
        enclave.adopt(&group, &[]).unwrap();
        count(&enclave.stats(), Code::Complete) > 20
    });
    drop(enclave);
    assert_eq!(class_of(family.id()), (libc::SCHED_OTHER, 0));
    end(family);
    // The kernel refuses while the family's child, which is not our child to wait for, is still exiting.
    wait_for("an empty cgroup", || std::fs::remove_dir(folder.join("below")).is_ok());
    std::fs::remove_dir(folder).unwrap();
}

/// A thread left behind in the class would come under the next scheduler.
#[test]
fn threads_left_by_a_command_return_to_their_class() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|_| {});
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do sleep 0.01; done"]).process_group(0);
    let left = enclave.spawn(command).unwrap();
    assert_eq!(class_of(left.id()).0, SCHED_EXT);
    drop(enclave);
    assert_eq!(class_of(left.id()).0, libc::SCHED_OTHER);
    end(left);
}
