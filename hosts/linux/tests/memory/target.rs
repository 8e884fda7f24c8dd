//! A process with managed memory: this binary again. It reads a command per line, and answers each
//! with a line.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use wave_linux::memory::{Areas, Process, TargetError};
use wave_process::cpus;

const ROLE: &str = "WAVE_TEST_MEMORY_TARGET";
const ANSWER: &str = "answer: ";
pub const PAGE: u64 = 4096;
pub const MIB: u64 = 1 << 20;

pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn is_root() -> bool {
    // SAFETY: takes nothing and touches no memory.
    unsafe { libc::geteuid() == 0 }
}

/// Puts this thread, and targets that it starts from now on, on one CPU. The kernel keeps up to 31 new pages in a list of
/// each CPU, where only that CPU can clear (Linux 7.2) or move them.
pub fn share_a_cpu() {
    let cpu = cpus::online().unwrap()[0];
    cpus::pin(&[cpu]).unwrap();
}

/// Whether page `page` belongs to a pattern; pattern 0 has all pages.
pub fn is_in(pattern: u64, page: u64) -> bool {
    let mixed = (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * pattern + 1);
    pattern == 0 || mixed >> 40 & 1 == 1
}

/// A process that follows commands; killed when it is dropped.
pub struct Target {
    pub child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Target {
    pub fn start() -> Target {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "target::target_process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Target { child, to, from: BufReader::new(from) }
    }

    /// Opens the process. Reports why if that is not possible.
    pub fn open(&self) -> Option<Process> {
        match Process::open(self.child.id() as i32) {
            Ok(process) => Some(process),
            Err(error @ TargetError::NotPermitted { .. }) if !is_root() => {
                wave_skip::skip(error);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the target has ended");
            // The test harness prints something first.
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim().to_owned();
            }
        }
    }

    /// Maps memory of this kind at a multiple of `align`. Returns the address.
    pub fn map(&mut self, kind: &str, bytes: u64, align: u64) -> u64 {
        self.ask(&format!("map {kind} {bytes} {align}")).parse().unwrap()
    }

    /// Writes the expected contents to the pages of a pattern.
    pub fn write(&mut self, at: u64, bytes: u64, pattern: u64) {
        assert_eq!(self.ask(&format!("write {at} {bytes} {pattern}")), "done");
    }

    /// Reads the pages of a pattern.
    pub fn read(&mut self, at: u64, bytes: u64, pattern: u64) {
        assert_eq!(self.ask(&format!("read {at} {bytes} {pattern}")), "done");
    }

    /// Checks every byte of pages that were all written.
    pub fn is_intact(&mut self, at: u64, bytes: u64) {
        assert_eq!(self.ask(&format!("check {at} {bytes}")), "intact");
    }

    pub fn unmap(&mut self, at: u64, bytes: u64) {
        assert_eq!(self.ask(&format!("unmap {at} {bytes}")), "done");
    }

    /// Executes another program. Returns its address space, which differs from `before`.
    pub fn execute_another(&mut self, areas: &Areas, process: &Process, before: u64) -> u64 {
        self.tell("exec");
        let mut space = before;
        wait_for("another program", || {
            match areas.map(process) {
                // A thread of the test harness executes the program; the first thread of the process ends before that.
                Err(TargetError::Unreadable { .. }) => (),
                map => space = map.unwrap().space,
            }
            space != before
        });
        space
    }
}

/// Expected word `word` of the page at `at`. The pages compress to about half.
fn content(at: u64, word: u64) -> u64 {
    if word.is_multiple_of(2) { at } else { (at ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

#[test]
fn target_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut lines = std::io::stdin().lines();
    while let Some(Ok(line)) = lines.next() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let answer = match words[0] {
            "map" => map(words[1], number(2), number(3)).to_string(),
            "unmap" => {
                // SAFETY: this process keeps nothing there.
                assert_eq!(unsafe { libc::munmap(number(1) as *mut _, number(2) as usize) }, 0);
                "done".to_owned()
            }
            "write" | "read" => {
                touch(words[0] == "write", number(1), number(2) / PAGE, number(3));
                "done".to_owned()
            }
            "check" => check(number(1), number(2) / PAGE),
            "exec" => panic!("{}", Command::new("sleep").arg("1000").exec()),
            other => panic!("{other}"),
        };
        println!("{ANSWER}{answer}");
        std::io::stdout().flush().unwrap();
    }
}

fn touch(write: bool, start: u64, pages: u64, pattern: u64) {
    for page in (0..pages).filter(|page| is_in(pattern, *page)) {
        let at = start + page * PAGE;
        for word in 0..PAGE / 8 {
            let place = (at + word * 8) as *mut u64;
            // SAFETY: mapped for this purpose, and used by nothing else.
            unsafe {
                match write {
                    true => place.write_volatile(content(at, word)),
                    false => drop(std::hint::black_box(place.read_volatile())),
                };
            }
        }
    }
}

fn check(start: u64, pages: u64) -> String {
    for at in (0..pages).map(|page| start + page * PAGE) {
        for word in 0..PAGE / 8 {
            // SAFETY: mapped for this purpose.
            let found = unsafe { ((at + word * 8) as *const u64).read_volatile() };
            if found != content(at, word) {
                return format!("word {word} of {at:x} is {found:x}");
            }
        }
    }
    "intact".to_owned()
}

fn map(kind: &str, bytes: u64, align: u64) -> u64 {
    let length = bytes as usize;
    let room = (bytes + align) as usize;
    let null = std::ptr::null_mut();
    let (read, write) = (libc::PROT_READ, libc::PROT_WRITE);
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new mappings, and advice on them; the second replaces a part of the first.
    unsafe {
        let first = libc::mmap(null, room, libc::PROT_NONE, private | libc::MAP_NORESERVE, -1, 0);
        assert_ne!(first, libc::MAP_FAILED);
        let at = (first as u64).next_multiple_of(align) as *mut libc::c_void;
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let (access, flags, fd) = match kind {
            "none" => (libc::PROT_NONE, private, -1),
            "shared" => (read | write, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
            "file" => (read | write, libc::MAP_PRIVATE, file.as_raw_fd()),
            _ => (read | write, private, -1),
        };
        let mapped = libc::mmap(at, length, access, flags | libc::MAP_FIXED, fd, 0);
        assert_eq!(mapped, at);
        let advice = if kind == "huge" { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        libc::madvise(at, length, advice);
        if kind == "locked" {
            assert_eq!(libc::mlock(at, length), 0);
        }
        at as u64
    }
}
