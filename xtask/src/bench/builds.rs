//! The binaries of both sides: a commit's, built in its own worktree, and this tree's.
//!
//! The commit also has its own target folder. Cargo names its output by paths within the workspace, so two trees that share one
//! folder could take each other's output for their own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::cargo;

const PACKAGE: &str = "wave";
/// The package with the benches, whose binary is installed beside `wave`; in older commits `wave` itself has the benches.
const BENCHES: &str = "wave-bench";
const BUILD_TIME: &str = "about seven minutes of CPU time the first time";
const FLAGS: &[&str] = &["build", "--release"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The commit that is compared with.
    Base,
    /// The working tree.
    Tip,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Tip => "tip",
        }
    }

    /// The names are of equal length, because the length of a program's path moves its stack. A commit whose benches are in
    /// `wave` itself has a shorter path all the same.
    fn folder(self) -> &'static str {
        match self {
            Self::Base => "a",
            Self::Tip => "b",
        }
    }
}

/// The folder of comparisons. Only one comparison may hold it at a time.
#[derive(Debug)]
pub struct Place {
    folder: PathBuf,
    _lock: OwnedFd,
}

impl Place {
    /// Locks `target/bench-compare`. Fails if another comparison holds it.
    pub fn take() -> Result<Self, String> {
        let folder = cargo::target_folder().join("bench-compare");
        let text = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(|error| text(&error))?;
        let lock = File::create(folder.join("lock")).map_err(|error| text(&error))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { folder, _lock: lock.into() }),
            Err(Errno::WOULDBLOCK) => {
                Err("another comparison is running: wait until it has ended".into())
            }
            Err(error) => Err(text(&error)),
        }
    }

    /// Creates the folder `name` for results, if it does not exist.
    pub fn results(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join("results").join(name);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }

    /// Builds one side, and returns the path of its binary.
    pub fn build(&self, side: Side, tree: &Tree) -> Result<PathBuf, String> {
        let begun = Instant::now();
        let own = self.folder.join(&tree.commit);
        let (source, target) = match side {
            Side::Tip => (cargo::workspace().to_path_buf(), cargo::target_folder()),
            Side::Base => (checked_out(&own.join("tree"), &tree.commit)?, own.join("build")),
        };
        let name = side.name();
        eprintln!("bench: building the {name}: {BUILD_TIME}");
        let target = target.to_str().ok_or("the target folder's path is not valid UTF-8")?;
        let mut flags = [FLAGS, &["--target-dir", target]].concat();
        let mut programs = vec![PACKAGE];
        if source.join("benches/Cargo.toml").exists() {
            flags.extend(["--package", BENCHES]);
            programs.push(BENCHES);
        }
        let built = cargo::built_in(&source, PACKAGE, &flags);
        let built = built.map_err(|error| format!("{}: {error}", source.display()))?;
        let folder = self.folder.join("bin").join(side.folder());
        for name in programs {
            let program = folder.join(name);
            let copied = fs::create_dir_all(&folder).and_then(|()| {
                // A program that is still running cannot be written to, but it can be replaced.
                let new = folder.join("new");
                fs::copy(Path::new(&built).with_file_name(name), &new)?;
                fs::rename(&new, &program)
            });
            copied.map_err(|error| format!("{}: {error}", program.display()))?;
        }
        let took = begun.elapsed().as_secs();
        eprintln!("bench: built the {name} in {} min {} s", took / 60, took % 60);
        Ok(folder.join(PACKAGE))
    }
}

/// The source of a binary.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The full name of the commit.
    pub commit: String,
    /// Whether files differ from the commit.
    pub is_changed: bool,
}

impl Tree {
    /// The tree of a commit, by any of its names.
    pub fn of_commit(name: &str) -> Result<Self, String> {
        let revision = format!("{name}^{{commit}}");
        let arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options", &revision];
        let commit = git(cargo::workspace(), arguments)
            .map_err(|_| format!("there is no commit {name} in this repository"))?;
        Ok(Self { commit, is_changed: false })
    }

    pub fn here() -> Result<Self, String> {
        let commit = Self::of_commit("HEAD")?.commit;
        let is_changed = !git(cargo::workspace(), ["status", "--porcelain"])?.is_empty();
        Ok(Self { commit, is_changed })
    }

    /// Short name for tables.
    pub fn name(&self) -> String {
        let changed = if self.is_changed { "-changed" } else { "" };
        format!("{:.12}{changed}", self.commit)
    }
}

/// A worktree of the commit: an earlier comparison's, or a new one.
fn checked_out(folder: &Path, commit: &str) -> Result<PathBuf, String> {
    // Without its own `.git`, git would report the surrounding tree.
    if folder.join(".git").exists()
        && git(folder, ["rev-parse", "HEAD"]).is_ok_and(|at| at == commit)
    {
        if git(folder, ["status", "--porcelain"])?.is_empty() {
            return Ok(folder.to_path_buf());
        }
        let folder = folder.display();
        return Err(format!(
            "{folder} has changes: remove it with `git worktree remove --force {folder}`"
        ));
    }
    // Git still lists worktrees whose folders were removed with the target folder.
    git(cargo::workspace(), ["worktree", "prune"])?;
    let words = [
        "worktree".as_ref(),
        "add".as_ref(),
        "--detach".as_ref(),
        folder.as_os_str(),
        commit.as_ref(),
    ];
    git(cargo::workspace(), words)?;
    Ok(folder.to_path_buf())
}

/// The output of git, without the final newline.
fn git<S: AsRef<OsStr>>(
    folder: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
