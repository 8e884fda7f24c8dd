//! One recording, from its first event to its file.

use std::ffi::OsString;
use std::io::{self, Write};
use std::iter;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use wave_agent::OutputFile;
use wave_linux::record::{History, RecordError, Recorder, Scope};
use wave_process::cpus;
use wave_process::outputs::{OutputError, Whole};
use wave_sched::workload::{Header, Thread, VERSION, Workload};

use wave_apps::{launch, machine};
use wave_terminal::{Failure, Progress};

/// Interval at which the kernel's events are fetched: its buffer holds far more.
const FETCH: Duration = Duration::from_millis(20);
/// Interval at which progress is shown.
const SAY: Duration = Duration::from_secs(2);
/// Maximum number of runs kept in memory, at some 70 bytes each. The recording ends there.
const RUNS_MAX: usize = 4_000_000;
/// Time allowed for a command to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub enum Whom {
    All,
    /// A process and its children.
    Process(u32),
    /// A command, started for the recording.
    Command(Vec<OsString>),
}

impl Whom {
    fn scope(&self) -> Scope {
        match self {
            Whom::All => Scope::All,
            Whom::Process(pid) => Scope::Process(*pid),
            Whom::Command(_) => Scope::Children,
        }
    }

    fn in_words(&self) -> String {
        match self {
            Whom::All => "the whole machine".to_owned(),
            Whom::Process(pid) => format!("process {pid} and its children"),
            Whom::Command(_) => "a command and its children".to_owned(),
        }
    }

    fn command(&self) -> Option<String> {
        let Whom::Command(words) = self else { return None };
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        Some(words.join(" "))
    }
}

pub struct Recording {
    pub workload: Workload,
    pub ended: &'static str,
    /// The command's exit status, if it ended on its own.
    pub exit_code: Option<u8>,
}

/// Records until the time is up, the process ends, or an interrupt; writes the recording to `out`.
pub fn record(
    whom: &Whom,
    seconds: Option<f64>,
    out: &OutputFile,
    quiet: bool,
    stdout_is_ours: bool,
) -> Result<Recording, Failure> {
    // Opened before the work, so that a bad path fails at once.
    let output = out.find()?.whole()?;
    let recording = until(stop_on_signals()?, whom, seconds, quiet, stdout_is_ours)?;
    write(output, &recording.workload)?;
    Ok(recording)
}

/// Records a command from start to end, on the CPUs that the calling thread may use.
pub fn command(words: &[&str]) -> Result<Recording, Failure> {
    let whom = Whom::Command(words.iter().map(Into::into).collect());
    until(Arc::default(), &whom, None, true, true)
}

/// Records until one of the conditions for ending holds, or `stop` is set.
fn until(
    stop: Arc<AtomicBool>,
    whom: &Whom,
    seconds: Option<f64>,
    quiet: bool,
    stdout_is_ours: bool,
) -> Result<Recording, Failure> {
    let recorder = Recorder::start(whom.scope()).map_err(|error| match error {
        RecordError::NoProcess(_) => Failure::Scenario(error.to_string()),
        error => Failure::cannot(error),
    })?;
    // From the thread that started the recorder: its children are recorded.
    let child = match whom {
        Whom::Command(words) => Some(start(words, stdout_is_ours)?),
        _ => None,
    };
    let since = Instant::now();
    let mut session = Session { recorder, child, exit_code: None, stop, seconds, since };
    let (history, ended) = session_end(whom, &mut session, quiet)?;
    let exit_code = session.exit_code;
    let workload = session.finish(whom, history)?;
    Ok(Recording { workload, ended, exit_code })
}

/// A flag that an interrupt sets. A second interrupt ends the program.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .map_err(Failure::cannot)?;
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(Failure::cannot)?;
    }
    // The terminal is closed. Under nohup, the signal is ignored.
    wave_terminal::interrupt::register_unless_ignored(SIGHUP, &stop)?;
    Ok(stop)
}

fn start(words: &[OsString], stdout_is_ours: bool) -> Result<Child, Failure> {
    let (program, arguments) = words.split_first().expect("a command has a name");
    let mut command = Command::new(program);
    command.args(arguments);
    if stdout_is_ours {
        let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(Failure::cannot)?;
        command.stdout(Stdio::from(stderr));
    }
    command.spawn().map_err(|error| {
        Failure::Scenario(format!("cannot run `{}`: {error}", program.to_string_lossy()))
    })
}

struct Session {
    recorder: Recorder,
    child: Option<Child>,
    exit_code: Option<u8>,
    stop: Arc<AtomicBool>,
    seconds: Option<f64>,
    since: Instant,
}

/// Takes events until a condition for ending holds. Returns it.
fn session_end(
    whom: &Whom,
    session: &mut Session,
    quiet: bool,
) -> Result<(History, &'static str), Failure> {
    let progress = Progress::open_ended(quiet);
    let mut history = History::new(session.recorder.begins_ns());
    let mut said = session.since;
    let ended = loop {
        session.recorder.take(&mut |event| history.feed(event)).map_err(Failure::cannot)?;
        if let Some(why) = session.reason_to_stop(whom, history.runs())? {
            break why;
        }
        if said.elapsed() >= SAY {
            said = Instant::now();
            let (elapsed, runs) = (session.since.elapsed().as_secs(), history.runs());
            let until = match session.seconds {
                Some(seconds) => format!(" of {seconds} s"),
                None => " s; Ctrl-C ends it".to_owned(),
            };
            let lost = session.recorder.lost().events;
            progress
                .begin(&format!("recording: {elapsed}{until}; {runs} runs, {lost} events lost"));
        }
        std::thread::sleep(FETCH);
    };
    Ok((history, ended))
}

impl Session {
    fn reason_to_stop(
        &mut self,
        whom: &Whom,
        runs: usize,
    ) -> Result<Option<&'static str>, Failure> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(Some("interrupted"));
        }
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait().map_err(Failure::cannot)?
        {
            self.exit_code = Some(launch::exit_code(status));
            return Ok(Some("the command ended"));
        }
        if let Whom::Process(pid) = whom
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            return Ok(Some("the process ended"));
        }
        if self.seconds.is_some_and(|seconds| self.since.elapsed().as_secs_f64() >= seconds) {
            return Ok(Some("the time is over"));
        }
        Ok((runs >= RUNS_MAX).then_some("there is no room for more runs"))
    }

    /// Ends the recording, and then the command if it still runs.
    fn finish(self, whom: &Whom, mut history: History) -> Result<Workload, Failure> {
        let Session { recorder, child, .. } = self;
        let begins_ns = recorder.begins_ns();
        let ended = recorder.stop(&mut |event| history.feed(event));
        child.map(end).transpose().map_err(Failure::cannot)?;
        let (ends_ns, lost) = ended.map_err(Failure::cannot)?;
        let interference_ns = Some(history.interference_ns(ends_ns));
        let (threads, repaired) = history.finish(ends_ns);
        let header = Header {
            wave_workload: VERSION,
            machine: machine::cpu_model(),
            kernel: machine::kernel(),
            cpus: cpus::online().map_or(1, |online| online.len() as u32),
            scope: whom.in_words(),
            command: whom.command(),
            duration_ns: ends_ns.saturating_sub(begins_ns),
            dropped_events: lost.events,
            unfollowed_threads: lost.threads,
            repaired,
            interference_ns,
            threads: threads.len() as u32,
        };
        Ok(Workload { header, threads })
    }
}

/// Asks a command to end, and kills it if it does not.
fn end(mut child: Child) -> io::Result<()> {
    let asked = Instant::now();
    if child.try_wait()?.is_none()
        && let Ok(pid) = i32::try_from(child.id())
        && let Some(pid) = Pid::from_raw(pid)
    {
        // Not waited for yet, so the id is still its own.
        kill_process(pid, Signal::TERM)?;
    }
    while child.try_wait()?.is_none() {
        if asked.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
        }
        std::thread::sleep(FETCH);
    }
    Ok(())
}

fn write(mut output: Whole, workload: &Workload) -> Result<(), OutputError> {
    let lines = iter::once(workload.header.to_line());
    for line in lines.chain(workload.threads.iter().map(Thread::to_line)) {
        writeln!(output, "{line}").map_err(|error| output.failed(error))?;
    }
    output.finish()
}
