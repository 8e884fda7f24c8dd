//! Mappings are recognised, by the BPF iterator and by /proc alike.

use std::process::Command;

use wave_linux::memory::{Areas, Group, Kind, Map, Process, TargetError, processes_of};

use crate::target::{MIB, PAGE, Target, is_root, wait_for};

fn kind_at(map: &Map, at: u64) -> Option<Kind> {
    map.areas.iter().find(|area| (area.start..area.end).contains(&at)).map(|area| area.kind)
}

#[test]
fn each_kind_is_recognised() {
    let mut target = Target::start();
    let anonymous = target.map("anonymous", MIB, MIB);
    let hole = anonymous + 16 * PAGE;
    target.unmap(hole, PAGE);
    let expected = [
        (anonymous, Some(Kind::Movable)),
        (hole, None),
        (hole + PAGE, Some(Kind::Movable)),
        (target.map("shared", MIB, MIB), Some(Kind::Shared)),
        (target.map("file", 64 * PAGE, MIB), Some(Kind::File)),
        (target.map("locked", 16 * PAGE, MIB), Some(Kind::Locked)),
        (target.map("none", MIB, MIB), Some(Kind::Special)),
    ];
    let Some(process) = target.open() else { return };
    let iterator = Areas::open();
    match iterator.falls_back() {
        Some(why) if !is_root() => wave_skip::skip(format!("everything except /proc: {why}")),
        why => assert_eq!(why, None),
    }
    let maps = [iterator.map(&process).unwrap(), Areas::by_proc().map(&process).unwrap()];
    for map in &maps {
        for (at, kind) in &expected {
            assert_eq!(kind_at(map, *at), *kind, "{at:x} of {map:x?}");
        }
        assert_eq!(map.bytes(Kind::Locked), 16 * PAGE);
        let all = [Kind::Movable, Kind::File, Kind::Shared, Kind::Locked, Kind::Special];
        let sum: u64 = all.iter().map(|kind| map.bytes(*kind)).sum();
        assert_eq!(sum, map.areas.iter().map(|area| area.end - area.start).sum::<u64>());
        assert!(map.areas.is_sorted_by(|a, b| a.end <= b.start), "{map:x?}");
    }
    assert_eq!(maps[0].areas, maps[1].areas);
    let text = std::fs::read_to_string(format!("/proc/{}/maps", process.pid())).unwrap();
    let stack = text.lines().find(|line| line.ends_with("[stack]")).unwrap();
    let stack = u64::from_str_radix(stack.split_once('-').unwrap().0, 16).unwrap();
    assert_eq!(kind_at(&maps[0], stack), Some(Kind::Special));
}

#[test]
fn another_program_has_another_address_space() {
    for areas in [Areas::open(), Areas::by_proc()] {
        let mut target = Target::start();
        target.map("anonymous", MIB, MIB);
        let Some(process) = target.open() else { return };
        let before = areas.map(&process).unwrap();
        assert_eq!(areas.map(&process).unwrap().space, before.space);
        target.execute_another(&areas, &process, before.space);
        target.child.kill().unwrap();
        target.child.wait().unwrap();
        let error = areas.map(&process).unwrap_err();
        assert!(matches!(error, TargetError::Ended(_)), "{error}");
        assert!(!process.is_alive());
    }
}

#[test]
fn processes_that_cannot_be_managed_are_refused_with_the_reason() {
    let why = |pid| Process::open(pid).unwrap_err().to_string();
    assert!(why(i32::MAX).starts_with("there is no process"));
    assert!(why(std::process::id() as i32).contains("is this process"));
    let mut child = Command::new("true").spawn().unwrap();
    wait_for("its end", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.contains(") Z ")
    });
    // The child was not waited for.
    assert!(why(child.id() as i32).contains("has ended"));
    child.wait().unwrap();
}

#[test]
fn a_group_leaves_out_the_calling_process() {
    let mut shell = Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
    let pid = shell.id() as i32;
    let of = |pid| processes_of(&Group::Process(pid)).unwrap();
    wait_for("its child", || of(pid).len() == 2);
    let pids = of(pid);
    assert!(pids.contains(&pid));
    for pid in pids.into_iter().filter(|other| *other != pid) {
        // SAFETY: a system call; the shell waits for this process, and has not been waited for itself yet.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    shell.wait().unwrap();
    assert!(matches!(
        processes_of(&Group::Process(pid)),
        Err(TargetError::NoProcess(other)) if other == pid
    ));
}
