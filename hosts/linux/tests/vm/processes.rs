//! Agents and workloads in separate processes, which run this binary again.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wave_agent::{Registry, Seat, attach};
use wave_core::clock::Nanos;
use wave_core::outcome::Code;
use wave_core::policy::Policy;
use wave_core::settings::{Known, Policies};
use wave_linux::sched::{self, Enclave, Options, Stats};

use crate::sliced::Sliced;

const SOCKET: &str = "WAVE_TEST_AGENT";
const POLICY: &str = "WAVE_TEST_POLICY";
const WORK: &str = "WAVE_TEST_WORK";
const SPIN: &str = "spin";

/// A lock for tests with enclaves, as the kernel has one scheduler at a time; `None` if it has no sched_ext.
pub fn alone() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    if !Path::new("/sys/kernel/sched_ext").exists() {
        // Not counted as skipped: `cargo xtask vm test` runs all these tests, or reports that it has no machine for them.
        println!("not run: this kernel has no sched_ext (`cargo xtask vm test` has one)");
        return None;
    }
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // A test that failed has left them offline.
    let offline = OFFLINE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    offline.into_iter().for_each(|cpu| online(cpu, true));
    assert!(cpus().len() >= 4, "these tests need a machine with at least 4 CPUs");
    Some(one)
}

/// Path of a program that `cargo xtask vm test` installs. It may be missing only outside that machine.
pub fn installed(program: &'static str) -> Option<&'static str> {
    if Path::new(program).exists() {
        return Some(program);
    }
    assert!(!Path::new("/run/wave/busybox").exists(), "{program} is not installed");
    wave_skip::skip(format!("{program} is not installed"));
    None
}

/// CPUs that [`online`] has put offline.
static OFFLINE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Puts a CPU online or offline.
pub fn online(cpu: usize, on: bool) {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    std::fs::write(path, if on { "1" } else { "0" }).unwrap();
    let mut offline = OFFLINE.lock().unwrap_or_else(PoisonError::into_inner);
    offline.retain(|other| *other != cpu);
    if !on {
        offline.push(cpu);
    }
}

/// Moves this thread, which makes decisions itself, to the agents' CPU.
pub fn agents_cpu() {
    wave_process::cpus::pin(&[*cpus().last().unwrap()]).unwrap();
}

/// The CPUs that are online.
pub fn cpus() -> Vec<usize> {
    wave_process::cpus::online().unwrap()
}

/// Path of the socket where agents of an enclave attach.
pub fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("wave-vm-{}-{name}.sock", std::process::id()))
}

/// Threads for which the tests' enclaves have room. The default is for servers, and the host looks at each slot on every wake-up.
pub const SUBJECTS: u32 = 256;

/// Starts an enclave of all CPUs except the last, which is for agents.
pub fn start(change: impl FnOnce(&mut Options)) -> Enclave {
    let cpus = cpus();
    let mut options = Options::new(socket("enclave"), cpus[..cpus.len() - 1].to_vec());
    // An emulated machine is slow.
    options.config.patience = Nanos::from_millis(5_000);
    options.config.subjects = SUBJECTS;
    change(&mut options);
    Enclave::start(options).unwrap_or_else(|error| panic!("{error}"))
}

pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An agent; killed when it is dropped.
pub struct Agent(Child);

impl Agent {
    /// Starts a good agent.
    pub fn start(enclave: &Enclave, policy: &str) -> Agent {
        Agent::launch(enclave, "processes::agent_process", policy)
    }

    /// Starts the test named `role` as an agent.
    pub fn launch(enclave: &Enclave, role: &str, policy: &str) -> Agent {
        let agents = enclave.stats().agents;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", role, "--quiet", "--nocapture"]);
        command.env(SOCKET, enclave.socket()).env(POLICY, policy).stdout(Stdio::null());
        let mut agent = Agent(command.spawn().unwrap());
        wait_for("the agent", || {
            // In this order: an agent may exit soon after it was counted.
            let has_exited = agent.0.try_wait().unwrap().is_some();
            let is_counted = enclave.stats().agents > agents;
            assert!(is_counted || !has_exited, "the agent exited early");
            is_counted
        });
        agent
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a system call; the process is our child and has not been waited for yet.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }

    /// Waits until the agent has left on its own.
    pub fn leaves(mut self) {
        wait_for("the agent's end", || self.0.try_wait().unwrap().is_some());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

/// Agents of one enclave, one after the other. They share it because loading its program takes over ten seconds in an emulated
/// machine.
pub struct SuccessiveAgents<'a> {
    enclave: &'a Enclave,
    agent: Option<Agent>,
}

impl<'a> SuccessiveAgents<'a> {
    pub fn of(enclave: &'a Enclave) -> SuccessiveAgents<'a> {
        SuccessiveAgents { enclave, agent: None }
    }

    pub fn enclave(&self) -> &'a Enclave {
        self.enclave
    }

    /// Replaces the agent by one with this policy. Returns what the enclave had counted by then.
    pub fn next(&mut self, policy: &str) -> Stats {
        let agent = Agent::start(self.enclave, policy);
        if let Some(before) = self.agent.replace(agent) {
            before.leaves();
        }
        self.enclave.stats()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// In an agent's process: moves to the agents' CPU, and returns the socket and the policy.
pub fn assignment() -> Option<(PathBuf, String)> {
    let socket = std::env::var_os(SOCKET)?;
    agents_cpu();
    Some((PathBuf::from(socket), std::env::var(POLICY).unwrap()))
}

/// Body of an agent's process; does nothing in an ordinary test run.
#[test]
fn agent_process() {
    let Some((socket, policy)) = assignment() else { return };
    let attached = attach(&socket).unwrap();
    static OWN: Policies<dyn Policy + Send> = Policies(&[(
        Known { name: "sliced", about: "slices of its own", settings: &[] },
        |_, _| Ok(Box::new(Sliced::default())),
    )]);
    let registry = Registry::shipped().with_policies(&OWN);
    let policy = registry.make(&policy, &attached.layout.config).unwrap();
    wave_agent::run(attached, policy, (), Seat::Shared).unwrap();
}

/// Body of a workload's process: threads that take turns by a mutex and a condition variable, yield, and sleep, for the
/// given number of rounds each or until the process's input ends.
#[test]
fn work_process() {
    let Ok(work) = std::env::var(WORK) else { return };
    if work == SPIN {
        let ran = Arc::new(AtomicBool::new(false));
        let other = Arc::clone(&ran);
        let other = std::thread::spawn(move || other.store(true, Ordering::SeqCst));
        while !ran.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        return other.join().unwrap();
    }
    let (threads, rounds) = work.split_once(',').unwrap();
    let (threads, rounds): (usize, usize) = (threads.parse().unwrap(), rounds.parse().unwrap());
    let turn = Arc::new((Mutex::new(0), Condvar::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let body = move |me: usize, turn: &(Mutex<usize>, Condvar), stop: &AtomicBool| {
        let (count, changed) = turn;
        let mut turns = 0;
        for round in 0..rounds {
            let other = |count: &mut usize| *count % threads != me && !stop.load(Ordering::SeqCst);
            let mut count = changed.wait_while(count.lock().unwrap(), other).unwrap();
            if stop.load(Ordering::SeqCst) {
                break;
            }
            *count += 1;
            turns += 1;
            changed.notify_all();
            drop(count);
            match round % 8 {
                3 => std::thread::yield_now(),
                7 => std::thread::sleep(Duration::from_micros(200)),
                _ => {}
            }
        }
        turns
    };
    let all: Vec<_> = (0..threads)
        .map(|me| {
            let (turn, stop) = (Arc::clone(&turn), Arc::clone(&stop));
            std::thread::spawn(move || body(me, &turn, &stop))
        })
        .collect();
    if rounds == usize::MAX {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        stop.store(true, Ordering::SeqCst);
        let _all = turn.0.lock().unwrap();
        turn.1.notify_all();
    }
    let turns: usize = all.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(*turn.0.lock().unwrap(), turns);
    assert!(rounds == usize::MAX || turns == threads * rounds);
}

/// Starts a thread in the enclave that does not stop before another has run.
pub fn spinner() -> Child {
    launch(SPIN.to_owned())
}

/// Starts threads in the enclave that take `rounds` turns each; `usize::MAX` means until [`finish`].
pub fn work(threads: usize, rounds: usize) -> Child {
    launch(format!("{threads},{rounds}"))
}

fn launch(work: String) -> Child {
    sched::spawn(command_for(work)).unwrap()
}

/// The command of [`work`].
pub fn command(threads: usize, rounds: usize) -> Command {
    command_for(format!("{threads},{rounds}"))
}

fn command_for(work: String) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::work_process", "--quiet"]).stdout(Stdio::null());
    command.env(WORK, work).stdin(Stdio::piped());
    command
}

/// Starts a line of shell in the enclave.
pub fn shell(line: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", line]).stdout(Stdio::piped());
    sched::spawn(command).unwrap()
}

/// Waits for the process to succeed, and returns its output.
pub fn finish(mut child: Child) -> String {
    drop(child.stdin.take());
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).unwrap();
    }
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {text}");
    text
}

/// Checks that no threads are left and that the enclave is as good agents leave it.
pub fn is_well(enclave: &Enclave) -> Stats {
    wait_for("the end of all threads", || enclave.stats().threads == 0);
    let stats = enclave.stats();
    assert_eq!(stats.turned_out, None);
    assert_eq!((stats.faults, stats.without_slot), (0, 0), "{stats:?}");
    stats
}

/// The kernel's log from some time on.
pub struct KernelLog(File);

impl KernelLog {
    /// Skips earlier messages.
    pub fn from_now() -> KernelLog {
        let mut options = File::options();
        let mut log = options.read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").unwrap();
        log.seek(SeekFrom::End(0)).unwrap();
        KernelLog(log)
    }

    /// Lines that report a problem of the scheduler or of the machine under it.
    pub fn complaints(&mut self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut record = [0; 8192];
        loop {
            // Each read returns a line `priority,number,time,-;text`.
            let size = match self.0.read(&mut record) {
                Ok(size) => size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return complaints,
                Err(error) => panic!("cannot read the kernel's log: {error}"),
            };
            let line = String::from_utf8_lossy(&record[..size]);
            let text = line.split_once(';').map_or("", |(_, text)| text).trim();
            // The kernel comes to distrust the clock of an emulated machine whose host seldom runs it.
            let usual = text.starts_with("sched_ext: BPF scheduler \"wave\" enabled")
                || text.contains("\"wave\" disabled (unregistered from user space)")
                || text.starts_with("tsc: ")
                || text.starts_with("clocksource: ");
            let signs = ["sched_ext", "BUG", "WARNING", "watchdog", "lockup", "stall", "hung task"];
            if !usual && signs.iter().any(|sign| text.contains(sign)) {
                complaints.push(text.to_owned());
            }
        }
    }
}

/// How often all cores answered with `code`.
pub fn count(stats: &Stats, code: Code) -> u64 {
    let all = stats.cores.iter().flat_map(|core| &core.outcomes);
    all.filter(|(other, _)| *other == code).map(|(_, count)| count).sum()
}
