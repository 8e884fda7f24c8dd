//! The accounts of a run, held to the kernel's own counts.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use wave_linux::memory::{Swap, SwapError, Zram};
use wave_skip::{Turn, skip};

use super::{
    MIB, QUICK, ROLE, TARGET, Target, child_of, is_zram, object, samples, status, swap, wave,
};

/// A cgroup with the kernel's count of its memory. Removed on drop, after its processes have ended.
struct Counted(PathBuf);

impl Counted {
    /// `None`, after reporting a skip, without a memory controller.
    fn new() -> Option<Counted> {
        let has = |root: &&Path| {
            let version_2 = std::fs::read_to_string(root.join("cgroup.subtree_control"));
            root.join("memory.usage_in_bytes").exists()
                || version_2.is_ok_and(|names| names.contains("memory"))
        };
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(Path::new);
        let Some(root) = roots.into_iter().find(has) else {
            skip("no cgroup whose memory the kernel counts");
            return None;
        };
        let folder = root.join(format!("wave-memory-accounts-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Some(Counted(folder))
    }

    fn bytes(&self) -> u64 {
        let read = |name| std::fs::read_to_string(self.0.join(name));
        let text = read("memory.current").or_else(|_| read("memory.usage_in_bytes")).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let start = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Swap in a file. `None`, after reporting a skip, where that is not possible.
fn swap_in_a_file(bytes: u64) -> Option<(Swap, TempDir, Turn)> {
    let (other, turn) = swap(MIB as u64)?;
    other.take_down().unwrap();
    let owners = std::fs::Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().permissions(owners).tempdir_in("/var/tmp").unwrap();
    match Swap::in_file(folder.path(), bytes) {
        Ok(swap) => Some((swap, folder, turn)),
        Err(error @ (SwapError::NoRoom { .. } | SwapError::Refused { .. })) => {
            skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn run(pid: u32, seconds: &str) -> Value {
    let pid = pid.to_string();
    let mut run = wave(&["run", "--pid", &pid, "--policy", QUICK, "--seconds", seconds, "--json"]);
    object(&run.args(["--slowdown", "100000", "--pressure", "100"]).output().unwrap())
}

/// A Python program that runs this script. It has another 96 MiB, and uses none of it until it is asked for its
/// answer. `None`, after reporting a skip, without Python.
fn python(script: &str) -> Option<Target> {
    const REST: &str = "memory = (os.urandom(2048) + bytes(2048)) * (96 << 8)
before = hash(memory)
print('answer: ready', flush=True)
sys.stdin.read()
print('answer:', 'intact' if hash(bytes(bytearray(memory))) == before else 'other', flush=True)";
    if Command::new("/usr/bin/python3").arg("--version").output().is_err() {
        skip("python3 is not installed (apt-get install python3)");
        return None;
    }
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", &format!("import mmap, os, sys\n{script}\n{REST}")]);
    Some(Target::by(command, ""))
}

/// A figure of the last sample.
fn last(found: &Value, name: &str) -> i64 {
    found["samples"].as_array().unwrap().last().unwrap()[name].as_i64().unwrap()
}

/// Manages an idle program of 160 MiB with a swap file of this size. Returns the bytes saved, by the report and by the
/// cgroup, and the time of a refault. `None`, after reporting a skip, where that is not possible.
fn saved_on_a_file(swap_bytes: u64) -> Option<(i64, i64, Value)> {
    let _swap = swap_in_a_file(swap_bytes)?;
    let cgroup = Counted::new()?;
    let target = Target::inside(&cgroup.0, "160 idle");
    let before = cgroup.bytes();
    let found = run(target.0.id(), "12");
    let left = before as i64 - cgroup.bytes() as i64;
    let saved = last(&found, "net_saved_bytes") + last(&found, "tool_bytes");
    let [swapped, cached] = ["swapped_bytes", "cached_bytes"].map(|name| last(&found, name) >> 20);
    println!(
        "{swapped} MiB in swap, {cached} still in memory; saved: {} MiB by the report, {} MiB by the cgroup; a refault takes {} us",
        saved >> 20,
        left >> 20,
        found["refault_us"]
    );
    assert!(saved < left + 8 * MIB as i64, "{saved} of {left}: {found}");
    assert!(target.answer().starts_with("intact"));
    Some((saved, left, found["refault_us"].clone()))
}

#[test]
fn savings_with_swap_in_a_file_have_left_the_memory_of_the_programs_cgroup() {
    let Some((saved, left, refault_us)) = saved_on_a_file(512 << 20) else { return };
    assert!(refault_us.as_f64() > Some(0.0), "a refault is measured there: {refault_us}");
    assert!(left > 96 * MIB as i64, "it does leave: {left}");
    assert!(saved > 96 * MIB as i64, "and the report says so: {saved}");
}

/// The kernel then keeps written pages until memory is short.
#[test]
fn pages_that_stay_in_memory_as_a_swap_file_is_more_than_half_full_are_not_saved() {
    let Some((saved, left, _)) = saved_on_a_file(200 << 20) else { return };
    assert!(left < 140 * MIB as i64, "this shows nothing: all has left");
    assert!(saved < left + 8 * MIB as i64, "{saved} of {left}");
}

/// The kernel leaves zsmalloc's handles and zram's table out of its figure.
#[test]
fn estimate_of_compressed_memory_is_zrams_own_figure_with_its_metadata() {
    let Some((swap, _turn)) = swap(512 << 20) else { return };
    if !is_zram(&swap) {
        return skip("no zram");
    }
    let used = || Zram::of(swap.path()).unwrap().memory_used_bytes;
    let target = Target::of("160 idle");
    let before = used();
    let found = run(target.0.id(), "10");
    let (estimate, kernels) = (last(&found, "compressed_bytes") as u64, used() - before);
    let pages = last(&found, "swapped_bytes") as u64 / 4096;
    println!("{estimate} bytes, by the kernel {kernels} without handles of {} bytes", 8 * pages);
    assert!(pages > 24_000, "{found}");
    let all = kernels + 8 * pages;
    assert!(estimate.abs_diff(all) < all / 40, "{estimate} of {all}");
    assert!(target.answer().starts_with("intact"));
}

/// The program touches all of its memory, and ends before the next sample and the next scan.
#[test]
fn program_that_ends_during_a_run_is_accounted_for_up_to_its_end() {
    let Some(_swap) = swap(512 << 20) else { return };
    let mut run = wave(&["run", "--policy", "sol:shortest_ms=100,horizon_ms=800", "--json"]);
    run.args(["--slowdown", "100000", "--pressure", "100", "--"]);
    run.arg(std::env::current_exe().unwrap()).args(TARGET).env(ROLE, "96 idle");
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut host = run.spawn().unwrap();
    // With --json, the command's output goes to standard error.
    let mut lines = BufReader::new(host.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut answer = || lines.find_map(|line| Some(line.split_once("answer: ")?.1.to_owned()));
    assert_eq!(answer().as_deref(), Some("ready"));
    let pid = child_of(host.id()).unwrap().as_raw_pid() as u32;
    let start = Instant::now();
    while status(pid, "VmSwap") < 64 << 20 {
        assert!(start.elapsed() < Duration::from_secs(120), "it is not paged out");
        std::thread::sleep(Duration::from_millis(20));
    }
    let swapped = status(pid, "VmSwap") / 4096;
    drop(host.stdin.take());
    assert!(answer().unwrap().starts_with("intact"));
    let kernels = answer().unwrap();
    let (faults, in_swap) = kernels.split_once(' ').unwrap();
    let (faults, in_swap): (u64, i64) = (faults.parse().unwrap(), in_swap.parse().unwrap());
    // The rest of its output must not fill the pipe.
    lines.for_each(drop);
    let found = object(&host.wait_with_output().unwrap());
    let of_run = |name: &str| found[name].as_u64().unwrap();
    println!(
        "{faults} major faults by the kernel, {} by the report; {} refaults of {swapped} pages; {} bytes saved",
        of_run("major_faults"),
        of_run("refaults"),
        found["net_saved_bytes"]
    );
    assert!(of_run("major_faults").abs_diff(faults) < faults / 20 + 50, "{faults}: {found}");
    assert!(of_run("refaults") > swapped * 9 / 10, "{swapped}: {found}");
    // Some of the memory that it had checked may have been paged out again.
    let saved = found["net_saved_bytes"].as_i64().unwrap();
    assert!(saved < in_swap + (4 << 20), "{in_swap} at the end: {found}");
    assert_eq!(found["net_saved_bytes"], last(&found, "net_saved_bytes"), "{found}");
}

/// A sanitizer's shadow, for example.
#[test]
fn memory_beside_a_sparse_mapping_of_16_tib_is_managed_as_without_it() {
    let Some(_swap) = swap(512 << 20) else { return };
    // MAP_PRIVATE, MAP_ANONYMOUS and MAP_NORESERVE.
    let Some(target) = python(
        "shadow = mmap.mmap(-1, 1 << 44, flags=0x4022)\nfor at in range(16): shadow[at << 40] = 1",
    ) else {
        return;
    };
    let found = run(target.0.id(), "10");
    let swapped = last(&found, "swapped_bytes");
    println!("{} MiB in swap, {} managed", swapped >> 20, found["managed_bytes"]);
    assert_eq!(found["strips_left_out"], 0, "{found}");
    assert!(found["managed_bytes"].as_u64().unwrap() < 1 << 30, "{found}");
    assert!(swapped > 72 << 20, "{found}");
    assert!(target.answer().starts_with("intact"));
}

/// As ZGC does: a page for each colour of its pointers.
#[test]
fn memory_that_a_program_maps_three_times_is_counted_once() {
    let Some(_swap) = swap(256 << 20) else { return };
    let script = "file = os.memfd_create('heap')\nos.truncate(file, 96 << 20)\n\
                  views = [mmap.mmap(file, 96 << 20) for _ in range(3)]\n\
                  for view in views:\n for at in range(0, 96 << 20, 4096): view[at] = 1";
    let Some(target) = python(script) else { return };
    let found = run(target.0.id(), "4");
    let most = samples(&found, "resident_bytes").map(|(_, bytes)| bytes).max().unwrap();
    let thrice = status(target.0.id(), "RssShmem");
    println!("{} MiB resident; RssShmem {} MiB", most >> 20, thrice >> 20);
    assert!(thrice > 280 << 20, "{thrice}");
    assert!((96 << 20..240 << 20).contains(&most), "{most}: {found}");
    let told = found["left_alone"].to_string();
    assert!(told.contains("96.0 MiB shared"), "{told}");
    assert!(target.answer().starts_with("intact"));
}

/// Each huge page is touched about once a second, and often while it is about to be paged out.
#[test]
fn huge_pages_that_are_in_use_are_not_called_incompressible() {
    let Some((swap, _turn)) = swap(512 << 20) else { return };
    if !is_zram(&swap) {
        return skip("no zram");
    }
    // MAP_PRIVATE and MAP_ANONYMOUS.
    let script = "import random, threading, time\n\
                  huge = mmap.mmap(-1, 96 << 20, flags=0x22)\n\
                  huge.madvise(mmap.MADV_HUGEPAGE)\n\
                  huge.write((os.urandom(2048) + bytes(2048)) * (96 << 8))\n\
                  def touch():\n while True:\n  time.sleep(0.02)\n  huge[random.randrange(96 << 20)]\n\
                  threading.Thread(target=touch, daemon=True).start()";
    let Some(target) = python(script) else { return };
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", target.0.id()));
    let huge = rollup.unwrap().lines().find_map(|line| {
        let kib = line.strip_prefix("AnonHugePages:")?.trim().strip_suffix("kB")?;
        kib.trim().parse::<u64>().ok()
    });
    if huge.is_none_or(|kib| kib < 64 << 10) {
        return skip("the kernel gives no huge pages");
    }
    let found = run(target.0.id(), "10");
    println!("{} bytes called incompressible", found["incompressible_bytes"]);
    assert!(found["incompressible_bytes"].as_u64().unwrap() < 2 << 20, "{found}");
    assert!(last(&found, "swapped_bytes") > 72 << 20, "the rest is paged out: {found}");
    assert!(target.answer().starts_with("intact"));
}
