//! Swap of our own comes and goes, however its owner ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use wave_linux::memory::{Swap, SwapError, SwapKind, swap_state};

use crate::target::{MIB, is_root, wait_for};

const ROLE: &str = "WAVE_TEST_MEMORY_SWAP";
const ANSWER: &str = "swap: ";

/// Some, once no other test has any; or why not is said.
pub fn own_swap(bytes: u64) -> Option<Swap> {
    if !is_root() {
        println!("skipped: {}", SwapError::NotPermitted);
        return None;
    }
    take(|| Swap::set_up(bytes))
}

fn take(set_up: impl Fn() -> Result<Swap, SwapError>) -> Option<Swap> {
    let mut result = set_up();
    wait_for("the end of another's swap", || {
        if let Err(SwapError::Taken) = result {
            result = set_up();
        }
        !matches!(result, Err(SwapError::Taken))
    });
    match result {
        Ok(swap) => Some(swap),
        // A container's root.
        Err(error @ SwapError::NotPermitted) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn is_swap(path: &Path) -> bool {
    swap_state().unwrap().devices.iter().any(|device| device.path == path)
}

#[test]
fn it_is_taken_down_when_it_is_dropped() {
    let Some(swap) = own_swap(32 * MIB) else { return };
    let path = swap.path().to_owned();
    let state = swap_state().unwrap();
    let device = state.devices.iter().find(|device| device.path == path).unwrap();
    assert!(device.size_bytes > 31 * MIB && device.size_bytes < 32 * MIB, "{device:?}");
    assert_eq!(device.kind == SwapKind::Zram, path.starts_with("/dev"), "{device:?}");
    assert!(state.free_bytes >= 31 * MIB);
    let error = Swap::set_up(32 * MIB).unwrap_err();
    assert!(matches!(error, SwapError::Taken), "{error}");
    swap.take_down().unwrap();
    assert!(!is_swap(&path));
    assert!(is_free(&path), "{}", path.display());
    let too_small = Swap::set_up(1).unwrap_err();
    assert!(too_small.to_string().contains("too little"), "{too_small}");
}

/// The file is gone, or the device, unless it was there before and is unused now.
fn is_free(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    let size = std::fs::read_to_string(format!("/sys/block/{name}/disksize"));
    !path.exists() || size.is_ok_and(|size| size.trim() == "0")
}

#[test]
fn a_file_will_do() {
    if own_swap(MIB).is_none() {
        return;
    }
    let Some(swap) = take(|| Swap::in_file(Path::new("/var/tmp"), 32 * MIB)) else { return };
    let path = swap.path().to_owned();
    assert!(is_swap(&path) && path.starts_with("/var/tmp"));
    drop(swap);
    assert!(!is_swap(&path) && !path.exists());
    // A folder of the kernel's has no room for it.
    let error = Swap::in_file(Path::new("/proc"), 32 * MIB).map(|_| ());
    assert!(matches!(error, Err(SwapError::NoRoom { .. } | SwapError::Taken)), "{error:?}");
}

/// What another process runs: sets up swap and holds it until it is killed.
#[test]
fn swap_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let swap = own_swap(32 * MIB);
    println!("{ANSWER}{}", swap.as_ref().map_or(Path::new(""), |swap| swap.path()).display());
    std::io::stdin().lines().for_each(drop);
}

/// A process that has swap, and where that is.
fn owner() -> Option<(Child, PathBuf)> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "swap::swap_process", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let path = lines.find_map(|line| Some(line.split_once(ANSWER)?.1.to_owned())).unwrap();
    if path.is_empty() {
        println!("skipped: it is not permitted");
        child.kill().unwrap();
        child.wait().unwrap();
        return None;
    }
    Some((child, path.into()))
}

#[test]
fn it_is_taken_down_when_its_owner_is_killed() {
    let Some((mut child, path)) = owner() else { return };
    assert!(is_swap(&path));
    child.kill().unwrap();
    child.wait().unwrap();
    // Others may have the same device as soon as the sentinel is done: only who has the lock can tell.
    let Some(swap) = own_swap(MIB) else { return };
    let others = swap_state().unwrap().devices;
    let ours = others.iter().filter(|device| device.path == path && path != swap.path());
    assert_eq!(ours.count(), 0, "{others:?}");
    assert!(path == swap.path() || is_free(&path));
}

#[test]
fn what_was_left_is_taken_down_by_the_next() {
    let Some((mut child, path)) = owner() else { return };
    let pid = child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let of_threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| {
        let path = thread.unwrap().path().join("children");
        std::fs::read_to_string(path).unwrap()
    });
    let sentinels = children.into_iter().chain(of_threads).collect::<String>();
    for sentinel in sentinels.split_ascii_whitespace() {
        // SAFETY: a system call; its parent lives and has not waited for it.
        unsafe { libc::kill(sentinel.parse().unwrap(), libc::SIGKILL) };
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody took it down, and whoever has the lock next does.
    let Some(swap) = own_swap(2 * MIB) else { return };
    let devices = swap_state().unwrap().devices;
    let left = devices.iter().filter(|device| device.path == path && device.size_bytes > 30 * MIB);
    assert_eq!(left.count(), 0, "{devices:?}");
    assert!(path == swap.path() || is_free(&path));
}
