//! The end of a process in which RocksDB gets no thread or no memory.
//!
//! RocksDB then throws an exception, which cannot be caught across its C interface, and C++ would call abort. This module has it
//! call a function instead, which prints a message, removes the databases and ends the process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use tempfile::TempDir;

/// The same exit code as where this machine cannot run a command.
const EXIT_CODE: i32 = 3;
const WORDS: &str = "wave: RocksDB gets no thread or no memory from the system and cannot go on; what bounds these: `ulimit -v`, \
                     `ulimit -u`, the memory and pids of this cgroup\n";

static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A database's directory: removed on drop, and when RocksDB ends the process.
pub struct Directory {
    directory: TempDir,
    _lock: Option<File>,
}

impl Directory {
    pub fn new((directory, lock): (TempDir, Option<File>)) -> Directory {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(set_handler);
        directories(|all| all.push(directory.path().to_owned()));
        Directory { directory, _lock: lock }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        directories(|all| all.retain(|path| path != self.directory.path()));
    }
}

fn directories(change: impl FnOnce(&mut Vec<PathBuf>)) {
    change(&mut DIRECTORIES.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
}

type Handler = extern "C" fn() -> !;

/// Calls `std::set_terminate(ended)`.
fn set_handler() {
    // SAFETY: the name ends with a zero. The C++ library is loaded, as RocksDB links to it.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZSt13set_terminatePFvvE".as_ptr()) };
    if found.is_null() {
        // Another C++ library: then the process aborts as usual.
        return;
    }
    // SAFETY: the mangled name gives the parameter types; the function returns the previous handler, or null.
    let set: extern "C" fn(Handler) -> *const () = unsafe { std::mem::transmute(found) };
    set(ended);
}

extern "C" fn ended() -> ! {
    // The message comes first, without allocating memory.
    // SAFETY: the words are valid for reads of their length.
    unsafe { libc::write(libc::STDERR_FILENO, WORDS.as_ptr().cast(), WORDS.len()) };
    if let Ok(all) = DIRECTORIES.try_lock() {
        for directory in all.iter() {
            let _ = fs::remove_dir_all(directory);
        }
    }
    // SAFETY: ends the process, without the destructors that threads of RocksDB still need.
    unsafe { libc::_exit(EXIT_CODE) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::Database;

    const ROLE: &str = "WAVE_TEST_ROCKSDB_TERMINATE";

    /// Run by the test below in another process: C++ terminates it as after an uncaught exception.
    #[test]
    fn process_that_terminates() {
        let Some(parent) = std::env::var_os(ROLE) else { return };
        let _database = Database::open(Some(parent.as_ref())).unwrap();
        // SAFETY: the name ends with a zero, and the C++ library is loaded, as RocksDB links to it.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZSt9terminatev".as_ptr()) };
        assert!(!found.is_null());
        // SAFETY: `std::terminate` takes nothing and does not return.
        let terminate: extern "C" fn() -> ! = unsafe { std::mem::transmute(found) };
        terminate();
    }

    #[test]
    fn an_exception_in_rocksdb_ends_the_process_with_a_message_and_leaves_no_database() {
        let parent = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["process_that_terminates", "--nocapture", "--test-threads=1"]);
        let output = command.env(ROLE, parent.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(super::EXIT_CODE), "{}: {stderr}", output.status);
        assert!(stderr.contains("RocksDB gets no thread"), "{stderr}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
