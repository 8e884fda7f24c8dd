//! Wave's own swap is set up, and taken down however its owner ends.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use wave_linux::memory::{Swap, SwapError, SwapKind, SwapUse, Zram, swap_state};
use wave_process::places::PlaceError;

use wave_skip::{skip, turn};

use crate::target::{MIB, is_root, wait_for};

const ROLE: &str = "WAVE_TEST_MEMORY_SWAP";
const ANSWER: &str = "swap: ";

/// Sets up swap, once no other test has any. Reports why if that is not possible.
pub fn own_swap(bytes: u64) -> Option<Swap> {
    if !is_root() {
        skip(SwapError::NotPermitted);
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
        // Root in a container, or a virtual machine without a disk.
        Err(error @ (SwapError::NotPermitted | SwapError::NoRoom { .. })) => {
            skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn is_swap(path: &Path) -> bool {
    swap_state().unwrap().devices.iter().any(|device| device.path == path)
}

#[test]
fn own_swap_is_removed_when_it_is_dropped() {
    let _turn = turn("swap");
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
    assert!(too_small.to_string().contains("too small"), "{too_small}");
}

/// Swap on the device from which Wave's was removed meanwhile.
#[test]
fn swap_that_others_set_up_on_the_same_device_is_not_taken_down() {
    let _turn = turn("swap");
    if !is_root() {
        return skip(SwapError::NotPermitted);
    }
    if !Path::new("/sys/class/zram-control").exists() {
        return skip("the kernel has no zram");
    }
    let Some(swap) = take(|| Swap::on_zram(32 * MIB)) else { return };
    let path = swap.path().to_owned();
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let setting = |which: &str| format!("/sys/block/{name}/{which}");
    let run = |program: &str, options: &[&str]| {
        let output = Command::new(program).args(options).arg(&path).output().unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
    };
    run("swapoff", &[]);
    std::fs::write(setting("reset"), "1").unwrap();
    std::fs::write(setting("disksize"), "16M").unwrap();
    run("mkswap", &["-L", "other"]);
    run("swapon", &[]);
    drop(swap);
    assert!(is_swap(&path));
    run("swapoff", &[]);
    // udev may hold it for a moment.
    let number = name.trim_start_matches("zram");
    wait_for("the device's removal", || {
        std::fs::write("/sys/class/zram-control/hot_remove", number).is_ok()
    });
}

/// The kernel allocates the table when the device gets its size.
#[test]
fn size_of_zrams_table_is_the_kernels() {
    let _turn = turn("swap");
    if !is_root() || !Path::new("/sys/class/zram-control").exists() {
        return skip("without root or zram");
    }
    let allocated = || -> u64 {
        let text = std::fs::read_to_string("/proc/vmallocinfo").unwrap();
        let of_zram = |line: &&str| line.contains("zram") || line.contains("disksize_store");
        let bytes = |line: &str| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
        text.lines().filter(of_zram).filter_map(bytes).sum()
    };
    let before = allocated();
    let Some(swap) = take(|| Swap::on_zram(1024 * MIB)) else { return };
    let kernels = allocated() - before;
    let ours = Zram::of(swap.path()).unwrap().table_bytes;
    println!("{ours} bytes, by the kernel {kernels}");
    assert!(kernels > 0 && ours.abs_diff(kernels) < kernels / 10, "{ours} of {kernels}");
}

/// Whether the file or device is gone, or is an unused device that existed before.
fn is_free(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    let size = std::fs::read_to_string(format!("/sys/block/{name}/disksize"));
    !path.exists() || size.is_ok_and(|size| size.trim() == "0")
}

#[test]
fn swap_works_in_a_file() {
    let _turn = turn("swap");
    if own_swap(MIB).is_none() {
        return;
    }
    let folder = scratch();
    let Some(swap) = take(|| Swap::in_file(folder.path(), 32 * MIB)) else { return };
    let path = swap.path().to_owned();
    assert!(is_swap(&path) && path.starts_with("/var/tmp"));
    drop(swap);
    assert!(!is_swap(&path) && !path.exists());
}

/// While the swap is in use, its folder gets another name, and another folder with such a file takes its place.
#[test]
fn swap_whose_path_leads_elsewhere_is_taken_down_and_the_other_file_stays() {
    let _turn = turn("swap");
    if own_swap(MIB).is_none() {
        return;
    }
    let (scratch, owners) = (scratch(), Permissions::from_mode(0o700));
    let [folder, moved] = ["folder", "moved"].map(|name| scratch.path().join(name));
    let Some(swap) = take(|| Swap::in_file(&folder, 32 * MIB)) else { return };
    let path = swap.path().to_owned();
    std::fs::rename(&folder, &moved).unwrap();
    let now = SwapOff(moved.join("wave-swap"));
    assert!(is_swap(&now.0) && !is_swap(&path));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, owners).unwrap();
    make_labelled(&path);
    swap.take_down().unwrap();
    assert!(!is_swap(&now.0), "swap of ours is still in use");
    assert!(!now.0.exists() && path.exists(), "another file was removed");
}

/// The swap was turned off meanwhile, and another file has its file's name.
#[test]
fn file_that_took_the_name_of_swap_is_not_removed() {
    let _turn = turn("swap");
    if own_swap(MIB).is_none() {
        return;
    }
    let folder = scratch();
    let Some(swap) = take(|| Swap::in_file(folder.path(), 32 * MIB)) else { return };
    let (path, moved) = (swap.path().to_owned(), folder.path().join("moved"));
    assert!(Command::new("swapoff").arg(&path).status().unwrap().success());
    std::fs::rename(&path, &moved).unwrap();
    make_labelled(&path);
    swap.take_down().unwrap();
    assert!(path.exists() && moved.exists());
}

/// Turns swap off on drop, so that a test that fails leaves none.
struct SwapOff(PathBuf);

impl Drop for SwapOff {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// A folder on a disk that only root can enter.
fn scratch() -> TempDir {
    let owners = Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(owners).tempdir_in("/var/tmp").unwrap()
}

/// Makes a file that could be swap, with Wave's label.
fn make_labelled(path: &Path) {
    std::fs::write(path, vec![0; MIB as usize]).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    let made = Command::new("mkswap").args(["-L", "wave-swap-found"]).arg(path).output();
    assert!(made.unwrap().status.success());
}

/// Swap that is not Wave's, but has Wave's label. Dropping it takes it down.
struct Others {
    path: PathBuf,
    _folder: TempDir,
}

impl Others {
    /// Sets up swap in a file of this name, in a folder that others can enter. `None` if that is not permitted or not
    /// possible there.
    fn named(name: &str) -> Option<Others> {
        let folder = scratch();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join(name);
        make_labelled(&path);
        match Command::new("swapon").arg(&path).status().unwrap().success() {
            true => Some(Others { path, _folder: folder }),
            false => {
                skip("swap files are not possible there");
                None
            }
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.path).status();
    }
}

#[test]
fn link_in_var_tmp_does_not_turn_off_other_swap() {
    let _turn = turn("swap");
    if own_swap(MIB).is_none() {
        return;
    }
    let Some(others) = Others::named("theirs") else { return };
    // Any user may create a link there.
    let link = Path::new("/var/tmp/wave-swap");
    std::os::unix::fs::symlink(&others.path, link).unwrap();
    let swap = own_swap(MIB);
    let (still, link_is_there) = (is_swap(&others.path), link.is_symlink());
    let _ = std::fs::remove_file(link);
    assert!(swap.is_some() && still && link_is_there);
}

#[test]
fn swap_file_in_a_folder_of_others_is_not_taken_down() {
    let _turn = turn("swap");
    if own_swap(MIB).is_none() {
        return;
    }
    let Some(others) = Others::named("wave-swap") else { return };
    let swap = own_swap(MIB);
    assert!(swap.is_some() && is_swap(&others.path) && others.path.exists());
}

#[test]
fn folder_that_others_can_enter_is_refused() {
    let _turn = turn("swap");
    if own_swap(MIB).is_none() {
        return;
    }
    let folder = scratch();
    for mode in [0o777, 0o1777, 0o755] {
        std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        let error = refusal(|| Swap::in_file(folder.path(), 32 * MIB));
        assert!(matches!(error, SwapError::Place(PlaceError::NotOurs { .. })), "{error:?}");
    }
    // A link to one of Wave's folders may lead elsewhere a moment later.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    let error = refusal(|| Swap::in_file(&link, 32 * MIB));
    assert!(matches!(error, SwapError::Place(PlaceError::NotOurs { .. })), "{error:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn refusal(set_up: impl Fn() -> Result<Swap, SwapError>) -> SwapError {
    let mut refusal = None;
    wait_for("the end of another's swap", || {
        refusal = set_up().err();
        !matches!(refusal, Some(SwapError::Taken))
    });
    refusal.expect("setting up swap is refused")
}

/// Body of another process: sets up swap and holds it until the process is killed.
#[test]
fn swap_process() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let swap = match role == "share" {
        true => take(|| Swap::share(32 * MIB)),
        false => own_swap(32 * MIB),
    };
    println!("{ANSWER}{}", swap.as_ref().map_or(Path::new(""), |swap| swap.path()).display());
    std::io::stdin().lines().for_each(drop);
}

/// A process that has swap, alone or shared, and the path of that swap.
fn owner(role: &str) -> Option<(Child, PathBuf)> {
    owner_of(Command::new(std::env::current_exe().unwrap()), role)
}

fn owner_of(mut command: Command, role: &str) -> Option<(Child, PathBuf)> {
    command.args(["--exact", "swap::swap_process", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let path = lines.find_map(|line| Some(line.split_once(ANSWER)?.1.to_owned())).unwrap();
    if path.is_empty() {
        skip("setting up swap is not permitted");
        child.kill().unwrap();
        child.wait().unwrap();
        return None;
    }
    Some((child, path.into()))
}

/// Of a process that is killed, one that ends, and one that only uses the swap, the last one takes it down.
#[test]
fn shared_swap_stays_until_nobody_uses_it() {
    let _turn = turn("swap");
    let Some((mut child, path)) = owner("share") else { return };
    let second = Swap::share(64 * MIB).unwrap();
    assert!(second.is_joined() && second.path() == path, "{second:?} beside {path:?}");
    assert!(matches!(Swap::set_up(32 * MIB).unwrap_err(), SwapError::Taken));
    let user = SwapUse::hold().expect("the swap is shared");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_swap(&path));
    second.take_down().unwrap();
    assert!(is_swap(&path), "swap was taken down while in use");
    let (third, mut fourth) = (Swap::share(32 * MIB).unwrap(), owner("share").unwrap().0);
    assert!(third.is_joined());
    drop((third, user));
    assert!(is_swap(&path), "swap was taken down while another process shares it");
    fourth.kill().unwrap();
    fourth.wait().unwrap();
    // Another test may set up its own swap as soon as this is taken down.
    let Some(swap) = own_swap(MIB) else { return };
    let devices = swap_state().unwrap().devices;
    let left = devices.iter().filter(|device| device.path == path && device.size_bytes > 30 * MIB);
    assert_eq!(left.count(), 0, "{devices:?}");
    drop(swap);
}

#[test]
fn own_swap_is_removed_when_its_owner_is_killed() {
    let _turn = turn("swap");
    let Some((child, path)) = owner("own") else { return };
    assert_removed_with(child, &path);
}

/// As under cron, and after `su` without `-`.
#[test]
fn own_swap_is_removed_although_the_owners_path_lacks_swapoff() {
    let _turn = turn("swap");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("PATH", "/nowhere");
    let Some((child, path)) = owner_of(command, "own") else { return };
    assert_removed_with(child, &path);
}

fn assert_removed_with(mut child: Child, path: &Path) {
    assert!(is_swap(path));
    child.kill().unwrap();
    child.wait().unwrap();
    // Others may get the same device as soon as the sentinel is done, so only the holder of the lock can check it.
    let Some(swap) = own_swap(MIB) else { return };
    let others = swap_state().unwrap().devices;
    let ours = others.iter().filter(|device| device.path == path && path != swap.path());
    assert_eq!(ours.count(), 0, "{others:?}");
    assert!(path == swap.path() || is_free(path));
}

#[test]
fn leftover_swap_is_removed_by_the_next_run() {
    let _turn = turn("swap");
    let Some((mut child, path)) = owner("own") else { return };
    let pid = child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let of_threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| {
        let path = thread.unwrap().path().join("children");
        std::fs::read_to_string(path).unwrap()
    });
    let sentinels = children.into_iter().chain(of_threads).collect::<String>();
    for sentinel in sentinels.split_ascii_whitespace() {
        // SAFETY: a system call; the sentinel's parent lives and has not waited for it.
        unsafe { libc::kill(sentinel.parse().unwrap(), libc::SIGKILL) };
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The owner did not take it down; the next holder of the lock does.
    let Some(swap) = own_swap(2 * MIB) else { return };
    let devices = swap_state().unwrap().devices;
    let left = devices.iter().filter(|device| device.path == path && device.size_bytes > 30 * MIB);
    assert_eq!(left.count(), 0, "{devices:?}");
    assert!(path == swap.path() || is_free(&path));
}
