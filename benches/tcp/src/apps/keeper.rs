//! The parent of an unmodified server. It ends the server's processes when the bench ends, even if the bench is killed.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

use wave_process::cpus;

use crate::cpu::tree;
use crate::process::{Process, answer};

/// The server, its CPU and its log.
#[derive(Args, Debug)]
pub struct KeeperArgs {
    #[arg(long)]
    cpu: usize,
    /// Takes the server's output.
    #[arg(long)]
    log: PathBuf,
    #[arg(required = true, last = true)]
    words: Vec<String>,
}

/// Starts the server, and waits for a line on standard input, or the input's end.
pub fn run(args: &KeeperArgs) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", args.words[0]);
    // Workers whose master is killed become children of this process.
    set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
    // The server's processes inherit the CPU.
    cpus::pin(&[args.cpu]).map_err(|error| error.to_string())?;
    let log = File::create(&args.log).map_err(failed)?;
    let mut command = Command::new(&args.words[0]);
    command.args(&args.words[1..]).stdin(Stdio::null());
    command.stdout(log.try_clone().map_err(failed)?).stderr(log);
    command.spawn().map_err(failed)?;
    answer("ready")?;
    let _ = std::io::stdin().lines().next();
    end_children()?;
    answer("ended")
}

/// Kills the descendants of this process, parents first, and waits for their end.
fn end_children() -> Result<(), String> {
    loop {
        for pid in tree(std::process::id()).into_iter().skip(1) {
            // The process may have ended already.
            let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
        }
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// A server and its keeper. Both end when it is dropped.
pub struct Kept(Process);

impl Kept {
    pub fn start(cpu: usize, log: &str, words: &[String]) -> Result<Kept, String> {
        let cpu = cpu.to_string();
        let mut line = vec!["keeper", "--cpu", &cpu, "--log", log, "--"];
        line.extend(words.iter().map(String::as_str));
        Process::start(&line).map(Kept)
    }

    /// The keeper's process, an ancestor of the server's processes.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A keeper that has ended has no server left.
        let _ = self.0.tell("end").and_then(|()| self.0.expect("ended"));
    }
}
