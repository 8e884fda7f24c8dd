//! Folders of databases. Each is locked while its process lives, so that the next process removes those of killed ones: in
//! `/dev/shm` they would take memory until the machine restarts.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tempfile::TempDir;

const PREFIX: &str = "wave-rocksdb.";
/// Limit of attempts: another process may take a new folder for an abandoned one before it is locked.
const TRIES: usize = 8;

/// A new folder below `parent`, or else below `/dev/shm` or the system's directory for temporary files; and its lock.
pub fn make(parent: Option<&Path>) -> io::Result<(TempDir, File)> {
    match parent {
        Some(parent) => make_in(parent),
        None => make_in(Path::new("/dev/shm")).or_else(|_| make_in(&std::env::temp_dir())),
    }
}

fn make_in(parent: &Path) -> io::Result<(TempDir, File)> {
    remove_abandoned(parent);
    for _ in 0..TRIES {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        if let Some(lock) = locked(folder.path()) {
            return Ok((folder, lock));
        }
    }
    Err(io::Error::other("new folders are removed by others"))
}

/// Removes folders of this user's killed processes.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && entry.metadata().is_ok_and(|about| about.uid() == geteuid().as_raw());
        // The lock is held until the folder is gone.
        if is_ours && let Some(_lock) = locked(&entry.path()) {
            // What cannot be removed stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a folder. `None` if a process has it locked, or it is gone.
fn locked(folder: &Path) -> Option<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(folder).ok()?;
    flock(&opened, FlockOperation::NonBlockingLockExclusive).ok()?;
    // Another process may have removed it in between.
    let (here, there) = (opened.metadata().ok()?, fs::symlink_metadata(folder).ok()?);
    ((here.dev(), here.ino()) == (there.dev(), there.ino())).then_some(opened)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_of_killed_processes_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let (abandoned, foreign) = (at("wave-rocksdb.killed"), at("somebody-elses"));
        for folder in [&abandoned, &foreign] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("CURRENT"), "x").unwrap();
        }
        symlink(&foreign, at("wave-rocksdb.link")).unwrap();
        let (first, first_lock) = make(Some(parent.path())).unwrap();
        assert!(!abandoned.exists() && foreign.join("CURRENT").exists());
        // The first one's process lives.
        let (second, _second_lock) = make(Some(parent.path())).unwrap();
        assert!(first.path().exists() && first.path() != second.path());
        // A killed process removes nothing, and leaves no lock.
        let left = first.keep();
        drop(first_lock);
        let _third = make(Some(parent.path())).unwrap();
        assert!(!left.exists() && second.path().exists());
    }
}
