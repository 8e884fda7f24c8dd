//! Processes that experiments and benches start, of Wave's own programs and of others.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// Polling interval while the end of a process is waited for.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// A command that runs `wave` with these arguments: this program, or the one beside `wave-bench`.
pub fn wave<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> io::Result<Command> {
    let own = std::env::current_exe()?;
    let is_bench = own.file_name().is_some_and(|name| name == "wave-bench");
    let wave = if is_bench { own.with_file_name("wave") } else { own };
    if !wave.exists() {
        let how = "build it with `cargo build --release --package wave`";
        let text = format!("{} is not there: {how}", wave.display());
        return Err(io::Error::new(ErrorKind::NotFound, text));
    }
    let mut command = Command::new(wave);
    command.args(words);
    Ok(command)
}

/// A command that runs this program with these arguments.
pub fn own<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words);
    Ok(command)
}

/// A process. Killed and waited for when it is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// The system's error, with the program's path before it.
    pub fn start(command: &mut Command) -> io::Result<Process> {
        command.spawn().map(Process).map_err(|error| {
            let program = command.get_program().display();
            io::Error::new(error.kind(), format!("{program}: {error}"))
        })
    }

    /// Its number; the kernel may give it to another process once the end of this one was seen.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// What it writes to standard output, if that is a pipe; once.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Its standard input, if that is a pipe; once.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// Waits for its end, for at most `patience`.
    pub fn wait_for_end(&mut self, patience: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                _ if start.elapsed() > patience => return None,
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.wait_for_end(Duration::ZERO).is_some()
    }

    /// CPU time that it has used, in the kernel's ticks (10 ms). None once it is gone.
    pub fn cpu_time(&self) -> Option<Duration> {
        let pid = self.pid().as_raw_pid();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let ticks = rustix::param::clock_ticks_per_second();
        Some(Duration::from_millis(cpu_ticks(&stat)? * 1000 / ticks))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// User and system time in a line of `/proc/PID/stat`. The name in it may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// A process that reads lines from its standard input and writes lines to its standard output.
#[derive(Debug)]
pub struct Dialogue {
    process: Process,
    told: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Dialogue {
    /// Starts it, with pipes for its standard input and output.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start(command: &mut Command) -> io::Result<Dialogue> {
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let pipes = process.input().zip(process.output());
        let (told, says) = pipes.ok_or_else(|| io::Error::from(ErrorKind::BrokenPipe))?;
        Ok(Dialogue { process, told, says: BufReader::new(says) })
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Tells it a line.
    ///
    /// # Errors
    /// It has closed its standard input.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.told, "{line}")
    }

    /// The next line that it says, without its end.
    ///
    /// # Errors
    /// It has ended.
    pub fn hear(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.says.read_line(&mut line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end_matches('\n').to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_named_like_its_fields_is_read_right() {
        let stat = "7 (a) 1 (b)) S 1 7 7 0 -1 4194560 100 0 0 0 42 58 0 0 20 0 1 0 1000 0";
        assert_eq!(cpu_ticks(stat), Some(100));
        assert_eq!(cpu_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn a_dialogue_exchanges_lines_and_tells_the_end() {
        let mut cat = Dialogue::start(Command::new("head").args(["-n", "1"])).unwrap();
        cat.tell("what is told").unwrap();
        assert_eq!(cat.hear().unwrap(), "what is told");
        assert_eq!(cat.hear().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(cat.process().wait_for_end(Duration::from_secs(60)).unwrap().success());
    }

    #[test]
    fn a_process_is_killed_when_it_is_dropped() {
        let sleeps = Process::start(Command::new("sleep").arg("1000")).unwrap();
        let pid = sleeps.pid();
        drop(sleeps);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Process::start(&mut Command::new("/nowhere/wave")).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/wave: "), "{error}");
    }
}
