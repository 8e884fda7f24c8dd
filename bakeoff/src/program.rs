//! A program of a bake-off: a process in a cgroup of its own, and the code that makes it use its memory.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::cgroup::Cgroup;
use super::pattern::{Memory, Pattern};
use super::places::Places;
use super::plan;
use super::redis::{self, Redis};
use wave_apps::launch::{self, Process};
use wave_scenario::size::Size;
use wave_terminal::{Failure, note};

/// Interval between groups of accesses.
const TICK: Duration = Duration::from_millis(2);
/// Interval at which a program reports its number of accesses.
const TELL: Duration = Duration::from_millis(20);
/// Time allowed for a program to fill its memory.
pub(super) const FILL_PATIENCE: Duration = Duration::from_secs(120);
/// A Python program: a dict, and lookups in it.
const PYTHON_DICT: &str = include_str!("python_dict.py");

/// The task of one of our processes.
#[derive(Debug, Deserialize, Serialize)]
enum Order {
    /// Use memory by a pattern.
    Use { cgroup: PathBuf, pattern: Pattern, bytes: u64, rate: f64, seed: u64, phase: Duration },
    /// Exec another program. If `tells`, it prints the number of its accesses; else its output is ignored.
    Become { cgroup: PathBuf, words: Vec<String>, name: String, tells: bool },
    /// Send requests to a redis server.
    Ask { port: u16, bytes: u64, rate: f64, seed: u64 },
}

/// A running program. Killed on drop, its client first.
pub struct Program {
    client: Option<Process>,
    target: Process,
    accesses: Arc<AtomicU64>,
}

impl Program {
    /// Starts the program in its cgroup, and waits until its memory is filled. `over` fails when the wait must be given up.
    pub fn start(
        planned: &plan::Program,
        seed: u64,
        cgroup: &Cgroup,
        places: Places,
        over: impl Fn() -> Result<(), Failure>,
    ) -> Result<Program, Failure> {
        let Size(bytes) = planned.memory;
        let rate = planned.accesses_per_second;
        let cgroup = cgroup.folder().to_owned();
        let accesses = Arc::new(AtomicU64::new(0));
        let mut program = match planned.pattern {
            Pattern::Redis => {
                let port = redis::free_port().map_err(Failure::cannot)?;
                let (words, name) = (redis::server_words(port)?, "redis-server".to_owned());
                let target = start(&Order::Become { cgroup, words, name, tells: false })?;
                let mut program = Program { target, client: None, accesses };
                let order = Order::Ask { port, bytes, rate, seed };
                program.client = Some(places.beside(|| start(&order))?);
                program
            }
            Pattern::PythonDict => {
                let (words, name) = (python_words(bytes, rate, seed)?, "python3".to_owned());
                let target = start(&Order::Become { cgroup, words, name, tells: true })?;
                Program { target, client: None, accesses }
            }
            pattern => {
                let phase = Duration::from_secs_f64(planned.phase_seconds);
                let target = start(&Order::Use { cgroup, pattern, bytes, rate, seed, phase })?;
                Program { target, client: None, accesses }
            }
        };
        program.listen();
        let began = Instant::now();
        while program.accesses.load(Ordering::Relaxed) == 0 {
            over()?;
            let who = program.client.as_mut().unwrap_or(&mut program.target);
            let left = who.has_ended();
            if left || began.elapsed() > FILL_PATIENCE {
                let why = if left { "it ended" } else { "it took too long" };
                let name = &planned.name;
                let why = format!("program {name} did not fill its memory: {why}");
                return Err(Failure::Cannot(why));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(program)
    }

    /// The process that owns the memory.
    pub fn pid(&self) -> i32 {
        self.target.pid().as_raw_pid()
    }

    /// Accesses so far; 0 until the memory is filled.
    pub fn accesses(&self) -> u64 {
        self.accesses.load(Ordering::Relaxed)
    }

    fn listen(&mut self) {
        let who = self.client.as_mut().unwrap_or(&mut self.target);
        let Some(output) = who.output() else { return };
        let accesses = Arc::clone(&self.accesses);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(count) = line.parse() {
                    accesses.store(count, Ordering::Relaxed);
                }
            }
        });
    }
}

fn start(order: &Order) -> Result<Process, Failure> {
    let order = serde_json::to_string(order).map_err(Failure::cannot)?;
    let mut command = launch::wave(["memory-program", &order]).map_err(Failure::cannot)?;
    // An interrupt from the terminal is for the parent process.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    Process::start(&mut command).map_err(Failure::cannot)
}

pub fn python_program() -> Option<&'static str> {
    let places = ["/usr/bin/python3", "/usr/local/bin/python3"];
    places.into_iter().find(|path| Path::new(path).exists())
}

fn python_words(bytes: u64, rate: f64, seed: u64) -> Result<Vec<String>, Failure> {
    let program = python_program().ok_or_else(|| {
        Failure::Cannot("python3 is not installed: apt-get install python3".to_owned())
    })?;
    let words = [program, "-I", "-c", PYTHON_DICT].map(str::to_owned);
    let numbers = [bytes.to_string(), rate.to_string(), seed.to_string()];
    Ok(words.into_iter().chain(numbers).collect())
}

/// Entry point of the hidden command.
pub fn main(order: &str) -> ExitCode {
    let done = serde_json::from_str(order).map_err(std::io::Error::from).and_then(obey);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("wave memory-program: {error}");
            ExitCode::from(3)
        }
    }
}

fn obey(order: Order) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match order {
        Order::Use { cgroup, pattern, bytes, rate, seed, phase } => {
            enter(&cgroup)?;
            Memory::new(pattern, phase, bytes, seed).use_at(rate)
        }
        Order::Become { cgroup, words, name, tells } => {
            enter(&cgroup)?;
            let mut command = Command::new(&words[0]);
            command.arg0(name).args(&words[1..]);
            if !tells {
                command.stdout(Stdio::null());
            }
            Err(command.exec())
        }
        Order::Ask { port, bytes, rate, seed } => Redis::connect(port, bytes, seed)?.ask_at(rate),
    }
}

/// Joins the cgroup, without huge pages: every tool gets pages of 4 KiB.
fn enter(cgroup: &Path) -> std::io::Result<()> {
    std::fs::write(cgroup.join("cgroup.procs"), "0")?;
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}

/// Calls `step` at intervals with the number of accesses due at `rate`, and prints the number so far. A late step catches up.
pub(super) fn paced(
    rate: f64,
    mut step: impl FnMut(Duration, usize) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let began = Instant::now();
    let (mut done, mut told) = (0_u64, None);
    loop {
        let time = began.elapsed();
        let due = (time.as_secs_f64() * rate) as u64;
        step(time, (due - done) as usize)?;
        done = due;
        if told.is_none_or(|told| time > told + TELL) {
            told = Some(time);
            writeln!(out, "{}", done.max(1))?;
        }
        std::thread::sleep(TICK);
    }
}
