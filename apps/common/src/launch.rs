//! Starts processes for experiments and benches: Wave's own programs and others.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time allowed for a started process to do what it was started for. Loading a program takes over ten seconds in an emulated
/// machine whose cores others use too.
pub const START_PATIENCE: Duration = Duration::from_secs(60);
/// Polling interval while waiting for a process to end.
const POLL_EVERY: Duration = Duration::from_micros(200);

/// A command's exit code; 128 plus the signal, as in shells.
pub fn exit_code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map_or(1, |signal| 128 + signal);
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(1)
}

/// A command that runs `wave` with these arguments: this program, or the one beside `wave-bench`.
pub fn wave<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> io::Result<Command> {
    let own = std::env::current_exe()?;
    let is_bench = own.file_name().is_some_and(|name| name == "wave-bench");
    if !is_bench {
        return Ok(ourselves(&own, words));
    }
    let wave = own.with_file_name("wave");
    if !wave.exists() {
        let how = "build it with `cargo build --release --package wave`";
        let text = format!("{} does not exist: {how}", wave.display());
        return Err(io::Error::new(ErrorKind::NotFound, text));
    }
    let mut command = Command::new(wave);
    command.args(words);
    Ok(command)
}

/// A command that runs this program with these arguments.
pub fn own<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> io::Result<Command> {
    Ok(ourselves(&std::env::current_exe()?, words))
}

/// Executes the file at `own`. An upgrade may have replaced that file: then what this process runs, which is the same version.
fn ourselves<W: AsRef<OsStr>>(own: &Path, words: impl IntoIterator<Item = W>) -> Command {
    // Not always the link: the kernel would name each such process "exe".
    let program = if own.exists() { own } else { Path::new("/proc/self/exe") };
    let mut command = Command::new(program);
    command.arg0(own).args(words);
    command
}

/// A process. Killed and waited for on drop.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts the process.
    ///
    /// # Errors
    /// The system's error, prefixed with the program's path.
    pub fn start(command: &mut Command) -> io::Result<Process> {
        command.spawn().map(Process).map_err(|error| {
            let program = command.get_program().display();
            io::Error::new(error.kind(), format!("{program}: {error}"))
        })
    }

    /// Process id. The kernel may reuse it once the end of this process was seen.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends SIGTERM.
    ///
    /// # Errors
    /// The process has ended, and was waited for.
    pub fn terminate(&self) -> io::Result<()> {
        Ok(kill_process(self.pid(), Signal::TERM)?)
    }

    /// Takes its standard output, if that is a pipe; None the second time.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Takes its standard input, if that is a pipe; None the second time.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// Waits for the process to end, for at most `patience`.
    pub fn wait_for_end(&mut self, patience: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                _ if start.elapsed() > patience => return None,
                _ => std::thread::sleep(POLL_EVERY),
            }
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.wait_for_end(Duration::ZERO).is_some()
    }

    /// CPU time that it has used, in the kernel's ticks (10 ms). None once the process is gone.
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

/// User and system time in a line of `/proc/PID/stat`. The name in that line may contain any character.
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
    /// Starts a process with pipes for its standard input and output.
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

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// The process has closed its standard input.
    pub fn write_line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.told, "{line}")
    }

    /// Reads the next line of its output, without the line end.
    ///
    /// # Errors
    /// The process has ended.
    pub fn read_line(&mut self) -> io::Result<String> {
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
    fn stat_line_with_misleading_process_name_is_parsed() {
        let stat = "7 (a) 1 (b)) S 1 7 7 0 -1 4194560 100 0 0 0 42 58 0 0 20 0 1 0 1000 0";
        assert_eq!(cpu_ticks(stat), Some(100));
        assert_eq!(cpu_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn dialogue_exchanges_lines_and_reports_the_end() {
        let mut cat = Dialogue::start(Command::new("head").args(["-n", "1"])).unwrap();
        cat.write_line("what is told").unwrap();
        assert_eq!(cat.read_line().unwrap(), "what is told");
        assert_eq!(cat.read_line().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(cat.process().wait_for_end(Duration::from_secs(60)).unwrap().success());
    }

    #[test]
    fn drop_kills_the_process() {
        let sleeps = Process::start(Command::new("sleep").arg("1000")).unwrap();
        let pid = sleeps.pid();
        drop(sleeps);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    const ROLE: &str = "WAVE_TEST_LAUNCH_ROLE";

    /// Body of another process: removes its own file, as an upgrade does, and starts itself.
    #[test]
    fn replaced_process() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        std::fs::remove_file(std::env::current_exe().unwrap()).unwrap();
        for command in [own(["--list"]), wave(["--list"])] {
            assert!(command.unwrap().output().unwrap().status.success());
        }
        println!("started twice");
    }

    #[test]
    fn program_whose_file_was_replaced_starts_itself() {
        let own = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(own.parent().unwrap()).unwrap();
        let linked = folder.path().join("wave");
        std::fs::hard_link(&own, &linked).unwrap();
        let mut child = Command::new(&linked);
        child.args(["--exact", "launch::tests::replaced_process", "--nocapture"]).env(ROLE, "1");
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("started twice"), "{output:?}");
    }

    #[test]
    fn missing_program_is_named() {
        let error = Process::start(&mut Command::new("/nowhere/wave")).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/wave: "), "{error}");
    }
}
