//! Recorded workloads: the CPU time of threads and the events that woke them, without the scheduler's choices.
//!
//! A file is text, one JSON object a line: first the [`Header`], then a [`Thread`] per line, in the
//! order in which wakers number them. docs/guide/record.md shows one. A recorder writes it, and
//! a replayer reads it; neither depends on the other (docs/adr/0014).

mod causes;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// The version of the format: the first word of every file. Version 1 has neither [`Run::blocked_ns`] nor
/// [`Header::interference_ns`], and is read as well.
pub const VERSION: u32 = 2;
/// Maximum number of CPUs that a recording may name: that of a Linux kernel (`CONFIG_NR_CPUS`).
pub const CPUS_MAX: u32 = 8192;

/// The origin and the quality of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a header")]
pub struct Header {
    /// The version of the format, 1 to [`VERSION`].
    pub wave_workload: u32,
    /// The name of the machine's processor, as it reports itself.
    pub machine: String,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Number of CPUs that the machine had online, 1 to [`CPUS_MAX`].
    pub cpus: u32,
    /// Description of the recorded threads.
    pub scope: String,
    /// The command that was started for the recording, if any.
    pub command: Option<String>,
    /// Length of the recording in nanoseconds. All times count from its start.
    pub duration_ns: u64,
    /// Events lost because the buffer was full. If it is not zero, runs are missing or joined.
    pub dropped_events: u64,
    /// Threads that were not followed, for lack of room.
    pub unfollowed_threads: u64,
    /// Transitions that had to be guessed because an earlier event was missing.
    pub repaired: u64,
    /// CPU time that unrecorded threads used on CPUs of recorded ones while a recorded thread waited for a CPU: for each such
    /// thread, one CPU at a time. `None` in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interference_ns: Option<u64>,
    /// Number of threads; each has a line.
    pub threads: u32,
}

/// One thread. A thread that never ran has no line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a thread")]
pub struct Thread {
    /// The thread's id in the kernel.
    pub pid: u32,
    /// The id of its process in the kernel.
    pub process: u32,
    /// Its last name (`comm`).
    pub name: String,
    /// How its last recorded run ended.
    pub end: End,
    /// Time of the thread's end, in nanoseconds.
    pub ended_ns: u64,
    /// Its runs, in order; between two runs it was blocked. Not empty.
    pub runs: Vec<Run>,
}

impl Thread {
    /// CPU time of all runs, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.runs.iter().map(|run| run.cpu_ns).sum()
    }

    /// How long the thread is blocked before run number `at`, in nanoseconds, if no recorded thread woke it. `None` if one did,
    /// and for the first run. Version 1 does not record this; it is then estimated from above: time for which the thread had
    /// lost its CPU counts as blocked.
    pub fn blocked_ns(&self, at: usize) -> Option<u64> {
        let run = self.runs.get(at).filter(|run| run.waker.is_none())?;
        let before = self.runs.get(at.checked_sub(1)?)?;
        let ended_ns = before.at_ns + before.waited_ns.unwrap_or(0) + before.cpu_ns;
        Some(run.blocked_ns.unwrap_or(run.at_ns.saturating_sub(ended_ns)))
    }
}

/// How the last run of a thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The thread blocked, and was not woken again.
    Blocked,
    /// The thread ended after this run.
    Exited,
    /// The recording ended before the thread.
    Cut,
}

/// The time from when a thread becomes runnable until it blocks. In a file: an array of `at_ns`, `waited_ns`, `cpu_ns` and
/// `preemptions`, then the waker's thread and its `cpu_ns`, or `blocked_ns` if that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Option<u64>>", into = "Vec<Option<u64>>")]
pub struct Run {
    /// When the thread was woken or created, in nanoseconds.
    pub at_ns: u64,
    /// How long it then waited for a CPU, in nanoseconds; `None` if that was not seen.
    pub waited_ns: Option<u64>,
    /// CPU time until it blocked, in nanoseconds.
    pub cpu_ns: u64,
    /// How often it lost its CPU during the run.
    pub preemptions: u64,
    /// The recorded thread that woke it. `None`: a timer, a device, or a thread that was not recorded.
    pub waker: Option<Waker>,
    /// How long the thread had been blocked, in nanoseconds, if it has an earlier run and no `waker`.
    pub blocked_ns: Option<u64>,
}

/// A recorded thread that woke another, or created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waker {
    /// Index into [`Workload::threads`].
    pub thread: u32,
    /// CPU time that the waker had used by then over all its runs, in nanoseconds.
    pub cpu_ns: u64,
}

impl From<Run> for Vec<Option<u64>> {
    fn from(run: Run) -> Self {
        let mut fields =
            Vec::from([Some(run.at_ns), run.waited_ns, Some(run.cpu_ns), Some(run.preemptions)]);
        match run.waker {
            Some(waker) => fields.extend([Some(waker.thread.into()), Some(waker.cpu_ns)]),
            None => fields.extend(run.blocked_ns.map(Some)),
        }
        fields
    }
}

impl TryFrom<Vec<Option<u64>>> for Run {
    type Error = &'static str;

    fn try_from(fields: Vec<Option<u64>>) -> Result<Run, Self::Error> {
        let (own, cause) = fields.split_at_checked(4).ok_or("a run has four to six numbers")?;
        let &[Some(at_ns), waited_ns, Some(cpu_ns), Some(preemptions)] = own else {
            return Err("only a run's second number may be null");
        };
        let (waker, blocked_ns) = match *cause {
            [] => (None, None),
            [Some(blocked_ns)] => (None, Some(blocked_ns)),
            [Some(thread), Some(cpu_ns)] => {
                let thread =
                    u32::try_from(thread).map_err(|_| "the number is too large for a thread")?;
                (Some(Waker { thread, cpu_ns }), None)
            }
            _ => return Err("a run has four to six numbers"),
        };
        Ok(Run { at_ns, waited_ns, cpu_ns, preemptions, waker, blocked_ns })
    }
}

/// A recording of threads: a header, and threads with their runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The machine and the length of the recording.
    pub header: Header,
    /// Threads with their runs, in the order in which wakers number them.
    pub threads: Vec<Thread>,
}

/// A fault in a workload file: its author's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum WorkloadError {
    /// The first line is not a header.
    #[error("not a recorded workload: {0}")]
    NotOne(String),
    /// An unknown version of the format.
    #[error("a workload of version {0}; this program reads versions 1 to {VERSION}")]
    Version(u32),
    /// A line that is not a valid header or thread, or a thread that can never run.
    #[error("line {line}: {error}")]
    Line {
        /// Line of the file, from 1.
        line: usize,
        error: String,
    },
    /// The number of threads is not the header's: the file was cut off, or two files were joined.
    #[error("{found} threads instead of {expected}: the file is cut off, or two were joined")]
    Threads { expected: u32, found: usize },
}

/// The fields of a header that every version has.
#[derive(Deserialize)]
#[serde(expecting = "a header")]
struct AnyVersion {
    wave_workload: u32,
}

impl Header {
    /// The header as a line of the file, without a newline.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("a header always serializes")
    }
}

impl Thread {
    /// The thread as a line of the file, without a newline.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("a thread always serializes")
    }
}

impl Workload {
    /// Parses a file, and checks its lines for consistency.
    pub fn parse(text: &str) -> Result<Workload, WorkloadError> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let not_one = |error: serde_json::Error| WorkloadError::NotOne(error.to_string());
        let AnyVersion { wave_workload } = serde_json::from_str(first).map_err(not_one)?;
        if !(1..=VERSION).contains(&wave_workload) {
            return Err(WorkloadError::Version(wave_workload));
        }
        let header: Header = serde_json::from_str(first).map_err(not_one)?;
        if !(1..=CPUS_MAX).contains(&header.cpus) {
            let error = format!("recorded on {} CPUs; expected 1 to {CPUS_MAX}", header.cpus);
            return Err(WorkloadError::Line { line: 1, error });
        }
        let mut threads = Vec::new();
        for (at, line) in lines.enumerate() {
            let bad = |error| WorkloadError::Line { line: at + 2, error };
            let thread: Thread =
                serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
            thread.check().map_err(bad)?;
            threads.push(thread);
        }
        let expected = header.threads;
        if threads.len() != expected as usize {
            return Err(WorkloadError::Threads { expected, found: threads.len() });
        }
        let cpu_ns: Vec<u64> = threads.iter().map(Thread::cpu_ns).collect();
        for (at, thread) in threads.iter().enumerate() {
            for waker in thread.runs.iter().filter_map(|run| run.waker) {
                let known = cpu_ns.get(waker.thread as usize);
                if known.is_none_or(|total| waker.cpu_ns > *total) {
                    let Waker { thread, cpu_ns } = waker;
                    let error =
                        format!("its waker, thread {thread}, never used {cpu_ns} ns of CPU");
                    return Err(WorkloadError::Line { line: at + 2, error });
                }
            }
        }
        if let Some((at, error)) = causes::find_cycle(&threads) {
            return Err(WorkloadError::Line { line: at + 2, error });
        }
        Ok(Workload { header, threads })
    }

    /// The recording as the text of a file.
    pub fn to_text(&self) -> String {
        let mut text = self.header.to_line();
        text.push('\n');
        for thread in &self.threads {
            text.push_str(&thread.to_line());
            text.push('\n');
        }
        text
    }

    /// The runs of all threads, thread by thread.
    pub fn runs(&self) -> impl Iterator<Item = &Run> + '_ {
        self.threads.iter().flat_map(|thread| &thread.runs)
    }

    /// CPU time of all runs, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.runs().map(|run| run.cpu_ns).sum()
    }

    /// Number of runs whose waker was not recorded, and for how long their threads had been blocked, in nanoseconds.
    pub fn woken_from_outside(&self) -> (usize, u64) {
        let all = self.threads.iter();
        let blocked =
            all.flat_map(|thread| (0..thread.runs.len()).filter_map(|run| thread.blocked_ns(run)));
        blocked.fold((0, 0), |(runs, total), blocked_ns| (runs + 1, total + blocked_ns))
    }

    /// Start of the first run, in nanoseconds from the beginning of the recording.
    pub fn begins_ns(&self) -> u64 {
        self.runs().map(|run| run.at_ns).min().unwrap_or(0)
    }

    /// End of the last run, in nanoseconds from the beginning of the recording.
    pub fn ends_ns(&self) -> u64 {
        self.threads.iter().map(|thread| thread.ended_ns).max().unwrap_or(0)
    }
}

/// The latest time that a file may name: a year. Sums of them cannot overflow.
const TIME_MAX_NS: u64 = 365 * 24 * 3_600 * 1_000_000_000;

impl Thread {
    fn check(&self) -> Result<(), String> {
        if self.runs.is_empty() {
            return Err("a thread that never ran has no line".to_string());
        }
        let (mut before, mut cpu_ns) = (0, 0_u64);
        for run in &self.runs {
            if run.at_ns < before {
                return Err(format!("a run at {} ns comes after one at {before} ns", run.at_ns));
            }
            if let Some(blocked_ns) = run.blocked_ns.filter(|ns| *ns > run.at_ns - before) {
                let at_ns = run.at_ns;
                return Err(format!(
                    "blocked for {blocked_ns} ns at {at_ns} ns, after {before} ns"
                ));
            }
            before = run.at_ns;
            cpu_ns = cpu_ns.saturating_add(run.cpu_ns);
        }
        let longest = [before, cpu_ns, self.ended_ns].into_iter().max().unwrap_or(0);
        if longest > TIME_MAX_NS {
            return Err(format!("{longest} ns is over a year"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn workload() -> Workload {
        let run = Run { cpu_ns: 700, ..Run::default() };
        let waker = Some(Waker { thread: 0, cpu_ns: 300 });
        let (waited_ns, blocked_ns) = (Some(40), Some(90));
        let woken = Run { at_ns: 300, waited_ns, cpu_ns: 50, preemptions: 2, waker, ..run };
        let by_timer = Run { at_ns: 600, blocked_ns, waker: None, ..woken };
        let thread = |pid, runs, end| Thread {
            pid,
            process: 7,
            name: "a \"name\"".into(),
            end,
            ended_ns: 700,
            runs,
        };
        Workload {
            header: Header {
                wave_workload: VERSION,
                machine: "a machine".into(),
                kernel: "6.1".into(),
                cpus: 2,
                scope: "pid 7".into(),
                command: Some("sleep 1".into()),
                duration_ns: 1_000,
                dropped_events: 0,
                unfollowed_threads: 0,
                repaired: 0,
                interference_ns: Some(30),
                threads: 2,
            },
            threads: vec![
                thread(7, vec![run], End::Exited),
                thread(8, vec![woken, by_timer], End::Blocked),
            ],
        }
    }

    #[test]
    fn a_written_workload_reads_back() {
        let text = workload().to_text();
        for words in ["[0,null,700,0]", "[300,40,50,2,0,300]", "[600,40,50,2,90]"] {
            assert!(text.contains(words), "{text}");
        }
        assert_eq!(Workload::parse(&text), Ok(workload()));
    }

    #[test]
    fn version_1_is_read_and_its_blocked_times_are_estimated() {
        let now = workload();
        assert_eq!(now.threads[1].blocked_ns(1), Some(90));
        assert_eq!(now.woken_from_outside(), (1, 90));
        let text = now.to_text().replace("\"wave_workload\":2", "\"wave_workload\":1");
        let text = text.replace(",\"interference_ns\":30", "").replace("2,90]", "2]");
        let old = Workload::parse(&text).unwrap();
        assert_eq!((old.header.wave_workload, old.header.interference_ns), (1, None));
        // Counts from 300 + 40 + 50: the time for which the thread had lost its CPU is not known.
        assert_eq!([0, 1, 2].map(|run| old.threads[1].blocked_ns(run)), [None, Some(210), None]);
        assert_eq!(old.to_text(), text);
    }

    #[test]
    fn a_malformed_workload_is_refused_with_the_reason() {
        let refused = |text: &str| Workload::parse(text).unwrap_err().to_string();
        let good = workload().to_text();
        assert!(refused("").starts_with("not a recorded workload"));
        assert!(refused("{\"other\":1}").starts_with("not a recorded workload"));
        assert!(refused("{\"wave_workload\":9}").contains("versions 1 to 2"));
        assert!(refused("{\"wave_workload\":0}").contains("versions 1 to 2"));
        let cut: Vec<&str> = good.lines().take(2).collect();
        assert!(refused(&cut.join("\n")).contains("cut off"));
        assert!(refused(&good.replace("700,0]", "700]")).starts_with("line 2: a run has"));
        assert!(refused(&good.replace("300,40", "null,40")).starts_with("line 3: only"));
        assert!(refused(&good.replace("2,90]", "2,301]")).contains("blocked for 301 ns"));
        assert!(refused(&good.replace("2,90]", "2,null]")).starts_with("line 3: a run has"));
        assert!(refused(&good.replace("0,300]", "0,701]")).contains("never used 701 ns"));
        assert!(refused(&good.replace("0,300]", "2,300]")).contains("thread 2, never"));
        assert!(refused(&good.replace("[[0,null,700,0]]", "[]")).contains("never ran"));
        let twice = good.replace("[[0,null,700,0]]", "[[5,null,700,0],[4,0,1,0]]");
        assert!(refused(&twice).contains("a run at 4 ns comes after one at 5 ns"));
        let long = good.replace("[[0,null,700,0]]", "[[0,null,18446744073709551615,0]]");
        assert!(refused(&long).contains("over a year"));
        for (cpus, told) in [("0", "0"), ("1000000000", "1000000000")] {
            let refused = refused(&good.replace("\"cpus\":2", &format!("\"cpus\":{cpus}")));
            assert_eq!(refused, format!("line 1: recorded on {told} CPUs; expected 1 to 8192"));
        }
    }

    /// A run: its CPU time in ns, and the waking thread with its own CPU time by then.
    type Ran = (u64, Option<(u32, u64)>);

    /// The refusal of threads with these runs.
    fn refusal_of(threads: &[&[Ran]]) -> Option<String> {
        let run = |(cpu_ns, waker): &Ran| Run {
            cpu_ns: *cpu_ns,
            waker: waker.map(|(thread, cpu_ns)| Waker { thread, cpu_ns }),
            ..Run::default()
        };
        let thread = |runs: &&[_]| Thread {
            runs: runs.iter().map(run).collect(),
            ..workload().threads[0].clone()
        };
        let header = Header { threads: threads.len() as u32, ..workload().header };
        let workload = Workload { header, threads: threads.iter().map(thread).collect() };
        Workload::parse(&workload.to_text()).err().map(|error| error.to_string())
    }

    #[test]
    fn a_thread_that_waits_for_its_own_wake_up_is_refused_with_its_line() {
        let by = |thread, cpu_ns| Some((thread, cpu_ns));
        // Two threads take turns; the first wakes the second in its first run.
        let turns: &[&[_]] = &[&[(10, None), (10, by(1, 5))], &[(5, by(0, 10)), (5, by(0, 15))]];
        assert_eq!(refusal_of(turns), None);
        let itself = refusal_of(&[&[(10, None)], &[(10, by(1, 5))]]).unwrap();
        assert!(itself.starts_with("line 3: run 0 is woken by its own thread"), "{itself}");
        let later = refusal_of(&[&[(10, None), (10, by(0, 10))]]).unwrap();
        assert!(later.starts_with("line 2: run 1 is woken by its own thread"), "{later}");
        let each_other = refusal_of(&[&[(10, by(1, 5))], &[(10, by(0, 5))]]).unwrap();
        assert!(each_other.starts_with("line 2: run 0 waits for itself"), "{each_other}");
        // Thread 2's second run waits for thread 1's second, which follows its first, which waits for thread 2's
        // second.
        let far: &[&[_]] =
            &[&[(1, None)], &[(5, by(2, 6)), (5, by(0, 1))], &[(5, by(0, 1)), (5, by(1, 7))]];
        assert!(refusal_of(far).unwrap().contains("waits for itself"));
        let ring: Vec<[Ran; 1]> = (0..8).map(|thread| [(9, by((thread + 1) % 8, 0))]).collect();
        let ring: Vec<&[_]> = ring.iter().map(|runs| &runs[..]).collect();
        assert!(refusal_of(&ring).unwrap().contains("waits for itself"));
        assert_eq!(refusal_of(&[&ring[..7], &[&[(9, None)]]].concat()), None);
    }
}
