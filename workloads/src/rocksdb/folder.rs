//! Folders of databases. Each has a lock that its process holds, so that the next process removes those of killed ones: in `/dev/shm`
//! they would take memory until the machine restarts.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tempfile::TempDir;

const PREFIX: &str = "wave-rocksdb.";
/// Random letters and digits after the prefix. A copy that somebody made has another name, and is not touched.
const RANDOM: usize = 6;
/// The lock, in the folder. Only its user can open it.
const LOCK: &str = "in-use";
/// Limit of attempts: another process may take a new folder for an abandoned one before it is locked.
const TRIES: usize = 8;

/// A new folder below `parent`, or else below `/dev/shm` or the system's directory for temporary files; and its lock, if the file
/// system has locks. Removes abandoned folders of this user there.
pub fn make(parent: Option<&Path>) -> io::Result<(TempDir, Option<File>)> {
    match parent {
        Some(parent) => make_in(parent),
        None => make_in(Path::new("/dev/shm")).or_else(|_| make_in(&std::env::temp_dir())),
    }
}

fn make_in(parent: &Path) -> io::Result<(TempDir, Option<File>)> {
    remove_abandoned(parent);
    for _ in 0..TRIES {
        let folder =
            tempfile::Builder::new().prefix(PREFIX).rand_bytes(RANDOM).tempdir_in(parent)?;
        match locked(folder.path()) {
            Ok(Some(lock)) => return Ok((folder, Some(lock))),
            Ok(None) => {}
            // Nobody can lock it, so nobody removes it.
            Err(_) => return Ok((folder, None)),
        }
    }
    Err(io::Error::other("new folders are removed by other processes"))
}

/// Removes folders of this user's killed processes.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let is_named = random.is_some_and(|random| {
            random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
        });
        // A link is no folder here.
        let is_ours = is_named
            && entry
                .metadata()
                .is_ok_and(|about| about.is_dir() && about.uid() == geteuid().as_raw());
        // The lock is held until the folder is gone.
        if is_ours && let Ok(Some(_lock)) = locked(&entry.path()) {
            // What cannot be removed stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a folder. `None` if a process has it locked, or it is gone.
fn locked(folder: &Path) -> io::Result<Option<File>> {
    let path = folder.join(LOCK);
    let gone = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::WouldBlock => Ok(None),
        _ => Err(error),
    };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let opened = match options.open(&path) {
        Ok(opened) => opened,
        Err(error) => return gone(error),
    };
    if let Err(error) = flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        return gone(error.into());
    }
    // Another process may have removed it in between.
    let here = opened.metadata()?;
    match fs::symlink_metadata(&path) {
        Ok(there) if (here.dev(), here.ino()) == (there.dev(), there.ino()) => Ok(Some(opened)),
        Ok(_) => Ok(None),
        Err(error) => gone(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_of_killed_processes_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let (abandoned, copied, foreign) =
            (at("wave-rocksdb.killed"), at("wave-rocksdb.my-copy"), at("somebody-elses"));
        for folder in [&abandoned, &copied, &foreign] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("CURRENT"), "x").unwrap();
        }
        symlink(&foreign, at("wave-rocksdb.alink1")).unwrap();
        let (first, first_lock) = make(Some(parent.path())).unwrap();
        assert!(!abandoned.exists() && copied.exists());
        assert!(foreign.join("CURRENT").exists() && !foreign.join(LOCK).exists());
        // The first one's process lives.
        let (second, _second_lock) = make(Some(parent.path())).unwrap();
        assert!(first.path().exists() && first.path() != second.path());
        // A killed process removes nothing, and leaves no lock.
        let left = first.keep();
        flock(first_lock.unwrap(), FlockOperation::Unlock).unwrap();
        let _third = make(Some(parent.path())).unwrap();
        assert!(!left.exists() && second.path().exists());
    }
}
