//! The points that a run has finished so far, in a file with a line for each.
//!
//! A run asks its [`Journal`] for each point by a key that gives the point's place in the run. A point finished by an
//! interrupted run of the same scenario and build is returned from the file; any other is run, and written to the file before
//! it is used. Results that follow from points (searches, comparisons) are computed again. The file's first line names the
//! scenario, build and machine of its points.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Failure;
use wave_apps::machine;
use wave_process::places::existing_file;
use wave_report::Directory;
use wave_report::model::Machine;
use wave_terminal::{Progress, counted, interrupt, note};

/// The journal's file, until its run ends.
pub const FILE: &str = "unfinished.jsonl";
/// The journal of an earlier run that was not resumed.
const OLD: &str = "unfinished.jsonl.old";
/// Version of the file's format.
const FORMAT: u32 = 1;

/// Identifies the run that a file's points belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    format: u32,
    scenario: String,
    /// Hash of the scenario and of the files that it names.
    digest: String,
    host: String,
    /// Version and hash of the program.
    build: String,
    /// Machine of the measurements; None if points are simulated.
    machine: Option<Machine>,
}

impl Identity {
    /// Identity of a run of the scenario on `host` by this program on this machine.
    pub fn new(scenario: &str, digest: &str, host: &str) -> Identity {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        Identity {
            format: FORMAT,
            scenario: scenario.to_owned(),
            digest: digest.to_owned(),
            host: host.to_owned(),
            build: machine::build(),
            machine: (host != "sim").then(|| machine::machine(cpus())),
        }
    }

    /// The first field that differs from `other`: its name, its value here, and its value there.
    fn difference(&self, other: &Identity) -> Option<[String; 3]> {
        let machine = |identity: &Identity| match &identity.machine {
            Some(Machine { cpus, model, kernel }) => format!("{model}, {cpus} CPUs, {kernel}"),
            None => "a simulated one".to_owned(),
        };
        let scenario = |identity: &Identity| format!("{} ({})", identity.scenario, identity.digest);
        let text = |of: &dyn Fn(&Identity) -> String| [of(self), of(other)];
        let parts = [
            ("format", text(&|identity| identity.format.to_string())),
            ("scenario", text(&scenario)),
            ("host", text(&|identity| identity.host.clone())),
            ("build", text(&|identity| identity.build.clone())),
            ("machine", text(&machine)),
        ];
        let (what, [here, there]) = parts.into_iter().find(|(_, [here, there])| here != there)?;
        Some([what.to_owned(), here, there])
    }
}

#[derive(Deserialize, Serialize)]
struct Header {
    #[serde(flatten)]
    identity: Identity,
    /// Start of the interrupted run, RFC 3339.
    started: String,
}

#[derive(Deserialize, Serialize)]
struct Line {
    key: String,
    found: Value,
}

#[derive(Debug)]
pub struct Journal {
    to: Option<To>,
    started: String,
    /// Points of the run being resumed, by key.
    before: HashMap<String, Value>,
    points: AtomicU64,
    /// Number of finished steps, and of all steps.
    steps: OnceLock<(Arc<AtomicU64>, u64)>,
}

#[derive(Debug)]
struct To {
    path: PathBuf,
    file: Mutex<File>,
    /// Locked while this run may write results there.
    _folder: File,
}

impl Journal {
    /// A journal that keeps nothing.
    pub fn none() -> Journal {
        Journal {
            to: None,
            started: machine::now(),
            before: HashMap::new(),
            points: AtomicU64::new(0),
            steps: OnceLock::new(),
        }
    }

    /// Opens the journal in `folder`, which is created if needed. With `resume`, continues an existing one.
    ///
    /// # Errors
    /// The folder cannot be written, another run writes there, or there is nothing to resume, or only a run of something else.
    pub fn open(folder: &Path, identity: Identity, resume: bool) -> Result<Journal, Failure> {
        let results = Directory::create(folder.to_owned())?;
        let lock = File::open(folder).map_err(cannot("opened", folder))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let folder = folder.display();
            let why = "another run writes its results there: wait for it, or give another directory with --out";
            Failure::Cannot(format!("{folder}: {why}"))
        })?;
        let path = folder.join(FILE);
        let mut bytes = Vec::new();
        let found = existing_file(&path);
        let text = match found.and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(cannot("read", &path)(error)),
        };
        let (started, before, kept) = match resume {
            true => resumed(&path, &text, &identity)?,
            false => {
                if text.lines().count() > 1 {
                    let old = folder.join(OLD);
                    fs::rename(&path, &old).map_err(cannot("renamed", &path))?;
                    note!(
                        "wave run: an earlier run was interrupted, and --resume would have resumed it. Its points are \
                         now in {}",
                        old.display()
                    );
                }
                (machine::now(), HashMap::new(), 0)
            }
        };
        // Another user may own the folder and have linked this name to someone else's file, so the journal is a new file even
        // when a run is resumed. The partial line of a killed process is left out.
        let file = results.begin(FILE, &text.as_bytes()[..kept])?;
        let to = To { path, file: Mutex::new(file), _folder: lock };
        if !resume {
            to.append(&Header { identity, started: started.clone() }, None)?;
        }
        let points = AtomicU64::new(before.len() as u64);
        Ok(Journal { to: Some(to), started, before, points, steps: OnceLock::new() })
    }

    /// Start of the run, even if by another process; RFC 3339.
    pub fn started(&self) -> String {
        self.started.clone()
    }

    /// Number of points taken from an earlier run.
    pub fn resumed(&self) -> usize {
        self.before.len()
    }

    /// A fact for the report if the results come from more than one process.
    pub fn fact(&self) -> Option<(String, String)> {
        let points = self.resumed();
        let from = &self.started;
        let how = format!("by the run of {from}, which was interrupted; the rest by this one");
        (points > 0).then(|| (format!("measured before: {}", counted(points, "point")), how))
    }

    /// Takes the numbers of finished and of all steps from `progress`.
    pub fn follow(&self, progress: &Progress) {
        let _ = self.steps.set((progress.ended(), progress.steps()));
        if self.resumed() > 0 {
            let from = &self.started;
            let points = counted(self.resumed(), "point");
            progress.say(&format!("resuming with {points} from the run of {from}"));
        }
    }

    /// Returns the point at `key` from the earlier run, or else runs `run`.
    ///
    /// # Errors
    /// Those of `run`, or the point cannot be written.
    pub fn point<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        run: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // A point that cannot be parsed (with a non-finite number) is run again.
        let before = self.before.get(key);
        if let Some(found) = before.and_then(|value| T::deserialize(value).ok()) {
            return Ok(found);
        }
        let point = run()?;
        if let Some(to) = &self.to {
            let found = serde_json::to_value(&point).map_err(Failure::cannot)?;
            to.append(&Line { key: key.to_owned(), found }, Some(&self.points))?;
        }
        Ok(point)
    }

    /// Removes the journal once the results are written: there is nothing left to resume.
    pub fn finish(&self) -> Result<(), Failure> {
        self.points.store(0, Ordering::Relaxed);
        let Some(to) = &self.to else { return Ok(()) };
        fs::remove_file(&to.path).map_err(cannot("removed", &to.path))
    }

    /// Says which points of an unfinished run are kept, and how to resume it; None if no point is kept.
    pub fn kept(&self) -> Option<String> {
        let to = self.to.as_ref()?;
        // A line being written is finished first, and counts.
        let _whole = to.file.lock().unwrap_or_else(PoisonError::into_inner);
        let points = self.points.load(Ordering::Relaxed);
        if points == 0 {
            return None;
        }
        let of = self.steps.get().map_or_else(String::new, |(ended, steps)| {
            format!(" ({} of {steps} steps were done)", ended.load(Ordering::Relaxed))
        });
        let s = if points == 1 { " is" } else { "s are" };
        Some(format!(
            "{points} point{s} kept in {}{of}. To resume:\n  {}\n",
            to.path.display(),
            interrupt::resuming_command()
        ))
    }

    /// The message of an interrupted run.
    pub fn last_words(&self) -> String {
        let kept =
            self.kept().unwrap_or_else(|| "no point was finished, so nothing is kept\n".to_owned());
        format!("wave run: interrupted: {kept}")
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(to) = self.to.as_ref().filter(|_| *self.points.get_mut() == 0) {
            // A journal without points is useless; failing to remove it does no harm.
            let _ = fs::remove_file(&to.path);
        }
    }
}

impl To {
    /// Writes a line, and counts it in `points`, before another thread gets the file.
    fn append(&self, line: &impl Serialize, points: Option<&AtomicU64>) -> Result<(), Failure> {
        let mut bytes = serde_json::to_vec(line).map_err(Failure::cannot)?;
        bytes.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&bytes).map_err(cannot("written", &self.path))?;
        if let Some(points) = points {
            points.fetch_add(1, Ordering::Relaxed);
        }
        file.sync_data().map_err(cannot("written", &self.path))
    }
}

/// The points in `text` of the run with `identity`, with its start and the length in bytes of its complete lines.
fn resumed(
    path: &Path,
    text: &str,
    identity: &Identity,
) -> Result<(String, HashMap<String, Value>, usize), Failure> {
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let first = lines.next();
    let Some(header) = first.and_then(|line| serde_json::from_str::<Header>(line).ok()) else {
        let why = "there is no interrupted run to resume: leave --resume out";
        return Err(Failure::Scenario(format!("{}: {why}", path.display())));
    };
    if let Some([what, there, here]) = header.identity.difference(identity) {
        return Err(Failure::Scenario(format!(
            "{}: its points are of another {what}, {there}; this run's is {here}. Leave --resume out to start anew",
            path.display()
        )));
    }
    let mut whole = first.map_or(0, str::len);
    let mut points = HashMap::new();
    for line in lines {
        let Ok(Line { key, found }) = serde_json::from_str(line) else { break };
        points.insert(key, found);
        whole += line.len();
    }
    Ok((header.started, points, whole))
}

fn cannot(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| Failure::Cannot(format!("{path}: cannot be {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(digest: &str, host: &str) -> Identity {
        Identity::new("small", digest, host)
    }

    fn never() -> Result<f64, Failure> {
        panic!("a finished point was run again")
    }

    /// As root, another user could otherwise have any file emptied.
    #[test]
    fn journal_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        fs::write(other.path(), "one line").unwrap();
        std::os::unix::fs::symlink(other.path(), folder.path().join(FILE)).unwrap();
        for resume in [false, true] {
            let refused = Journal::open(folder.path(), identity("a", "sim"), resume).unwrap_err();
            assert!(refused.to_string().contains(FILE), "{refused}");
        }
        assert_eq!(fs::read_to_string(other.path()).unwrap(), "one line");
    }

    #[test]
    fn journal_in_place_of_a_file_with_other_names_leaves_it_as_it_is() {
        for text in ["one line", "more than\none line"] {
            let folder = tempfile::tempdir().unwrap();
            let other = folder.path().join("other");
            fs::write(&other, text).unwrap();
            for name in [FILE, OLD] {
                fs::hard_link(&other, folder.path().join(name)).unwrap();
            }
            let journal = Journal::open(folder.path(), identity("a", "sim"), false).unwrap();
            journal.point("one", || Ok(1)).unwrap();
            assert_eq!(fs::read_to_string(&other).unwrap(), text);
        }
    }

    #[test]
    fn resumed_journal_leaves_other_names_of_its_file_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let open = |resume| Journal::open(folder.path(), identity("a", "sim"), resume).unwrap();
        open(false).point("one", || Ok(1)).unwrap();
        let other = folder.path().join("other");
        fs::hard_link(folder.path().join(FILE), &other).unwrap();
        let text = fs::read_to_string(&other).unwrap();
        open(true).point("two", || Ok(2)).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), text);
        assert_eq!(open(true).resumed(), 2);
    }

    #[test]
    fn resume_reuses_finished_points_and_reruns_a_partial_one() {
        let folder = tempfile::tempdir().unwrap();
        let open = |resume| Journal::open(folder.path(), identity("a", "sim"), resume);
        let journal = open(false).unwrap();
        assert_eq!(journal.kept(), None);
        assert_eq!(journal.point("one", || Ok(0.1 + 0.2)).unwrap(), 0.1 + 0.2);
        journal.point("two", || Ok(2.0)).unwrap();
        let started = journal.started();
        drop(journal);
        let file = folder.path().join(FILE);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, &text[..text.len() - 2]).unwrap();

        let journal = open(true).unwrap();
        assert_eq!((journal.resumed(), journal.started()), (1, started));
        assert_eq!(journal.point("one", never).unwrap(), 0.1 + 0.2);
        assert_eq!(journal.point("two", || Ok(3.0)).unwrap(), 3.0);
        assert!(journal.last_words().contains("2 points are kept in"));
        drop(journal);
        let journal = open(true).unwrap();
        assert_eq!(journal.point("two", never).unwrap(), 3.0);
        journal.finish().unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn run_without_resume_keeps_the_earlier_points_aside() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Journal::open(folder.path(), identity("a", "sim"), false).unwrap();
        open().point("one", || Ok(1)).unwrap();
        assert_eq!(open().resumed(), 0);
        let old = fs::read_to_string(folder.path().join(OLD)).unwrap();
        assert_eq!(old.lines().count(), 2);
    }

    #[test]
    fn resume_of_another_run_is_refused_naming_both() {
        let folder = tempfile::tempdir().unwrap();
        let open = |identity| Journal::open(folder.path(), identity, true);
        let refused = |identity| {
            let failure = open(identity).expect_err("the resume is refused");
            assert_eq!(failure.exit_code(), 2);
            failure.to_string()
        };
        assert!(refused(identity("a", "sim")).contains("leave --resume out"));
        let interrupted = Journal::open(folder.path(), identity("a", "sim"), false).unwrap();
        interrupted.point("one", || Ok(1)).unwrap();
        drop(interrupted);
        let text = refused(identity("b", "sim"));
        assert!(text.contains("another scenario, small (a); this run's is small (b)"), "{text}");
        assert!(refused(identity("a", "user")).contains("another host, sim; this run's is user"));
        let other = Identity { build: "another".into(), ..identity("a", "sim") };
        assert!(refused(other).contains("this run's is another"));
        open(identity("a", "sim")).unwrap();
    }

    #[test]
    fn folder_of_a_running_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let first = Journal::open(folder.path(), identity("a", "sim"), false).unwrap();
        let second = Journal::open(folder.path(), identity("a", "sim"), false);
        let failure = second.expect_err("the first run holds the folder");
        assert_eq!(failure.exit_code(), 3);
        assert!(failure.to_string().contains("another run writes"));
        drop(first);
        Journal::open(folder.path(), identity("a", "sim"), false).unwrap();
    }
}
