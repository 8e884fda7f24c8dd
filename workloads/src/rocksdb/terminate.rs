//! How a process ends in which RocksDB gets no thread or no memory.
//!
//! It throws an exception then that nobody can catch across its C interface, and C++ calls abort. Here it calls a function
//! instead that says so in words, removes the databases and ends the process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use tempfile::TempDir;

/// As where this machine cannot run what was asked for.
const EXIT_CODE: i32 = 3;
const WORDS: &str = "wave: RocksDB gets no thread or no memory from the system and cannot go on; what bounds these: `ulimit -v`, \
                     `ulimit -u`, the memory and pids of this cgroup\n";

static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A database's directory: removed with the value, and where RocksDB ends the process.
pub struct Directory(TempDir);

impl Directory {
    pub fn new(directory: TempDir) -> Directory {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(set_handler);
        directories(|all| all.push(directory.path().to_owned()));
        Directory(directory)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        directories(|all| all.retain(|path| path != self.0.path()));
    }
}

fn directories(change: impl FnOnce(&mut Vec<PathBuf>)) {
    change(&mut DIRECTORIES.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
}

type Handler = extern "C" fn() -> !;

/// `std::set_terminate(ended)`.
fn set_handler() {
    // SAFETY: the name ends with a zero. RocksDB has brought the C++ library with it.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZSt13set_terminatePFvvE".as_ptr()) };
    if found.is_null() {
        // Another C++ library; then it ends as it always does.
        return;
    }
    // SAFETY: the mangled name says that it is a function of this type, but for what it returns: the handler before, or null.
    let set: extern "C" fn(Handler) -> *const () = unsafe { std::mem::transmute(found) };
    set(ended);
}

extern "C" fn ended() -> ! {
    // First, and without memory of its own.
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

    /// What another process runs: C++ finds nobody who catches an exception.
    #[test]
    fn process_that_terminates() {
        let Some(parent) = std::env::var_os(ROLE) else { return };
        let _database = Database::open(Some(parent.as_ref())).unwrap();
        // SAFETY: the name ends with a zero, and RocksDB has brought the C++ library with it.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZSt9terminatev".as_ptr()) };
        assert!(!found.is_null());
        // SAFETY: `std::terminate` takes nothing and does not return.
        let terminate: extern "C" fn() -> ! = unsafe { std::mem::transmute(found) };
        terminate();
    }

    #[test]
    fn an_exception_of_rocksdb_s_ends_the_process_in_words_and_leaves_no_database() {
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
