//! The processes of a bench: this program with other arguments, which gets commands as lines on standard input.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process of the bench. Killed when it is dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    name: String,
}

impl Process {
    /// Starts a process, and waits until it prints `ready`.
    pub fn start(words: &[&str]) -> Result<Process, String> {
        Process::start_under(&[], words)
    }

    /// As [`Process::start`], by a command that runs the command behind it.
    pub fn start_under(over: &[&str], words: &[&str]) -> Result<Process, String> {
        Process::start_of(&own()?, over, words)
    }

    /// As [`Process::start_under`], of the bench's program at `bench`.
    pub fn start_of(bench: &Path, over: &[&str], words: &[&str]) -> Result<Process, String> {
        let name = words[0].to_owned();
        let failed = |error: std::io::Error| format!("the bench's {name}: {error}");
        let mut command = match over {
            [] => Command::new(bench),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(bench);
                command
            }
        };
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("the bench's {name} has no pipes"));
        };
        let output = BufReader::new(output);
        let mut process = Process { child, input, output, name };
        process.expect("ready")?;
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.input, "{line}")
            .map_err(|error| format!("the bench's {}: {error}", self.name))
    }

    pub fn hear(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(count) if count > 0 => Ok(line.trim_end().to_owned()),
            _ => Err(format!("the bench's {} has ended; its message is above", self.name)),
        }
    }

    pub fn expect(&mut self, line: &str) -> Result<(), String> {
        let heard = self.hear()?;
        if heard == line {
            Ok(())
        } else {
            Err(format!("unexpected answer of the bench's {}: `{heard}`", self.name))
        }
    }

    /// Sends a line, and reads the numbers in the answer.
    pub fn ask(&mut self, line: &str) -> Result<Vec<u64>, String> {
        self.tell(line)?;
        let heard = self.hear()?;
        let numbers: Option<Vec<u64>> =
            heard.split_whitespace().map(|word| word.parse().ok()).collect();
        numbers.ok_or_else(|| format!("unexpected answer of the bench's {}: `{heard}`", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of this program.
pub fn own() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("this program's path: {error}"))
}

/// Sends a line to the process that started this one.
pub fn answer(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(|error| format!("standard output: {error}"))
}
