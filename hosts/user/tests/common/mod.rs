//! What the tests over real sockets and real threads share.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use wave_core::clock::Nanos;
use wave_user::{Enclave, Options};

/// Where the enclave of this name listens.
pub fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("wave-test-{}-{name}.sock", std::process::id()))
}

/// An enclave that shares its CPUs, and is as patient as a machine that is busy with other tests
/// makes necessary.
pub fn start(name: &str, change: impl FnOnce(&mut Options)) -> Enclave {
    let mut options = Options::new(socket(name));
    options.yields_cpu = true;
    options.config.subjects = 256;
    options.config.patience = Nanos::from_millis(60_000);
    change(&mut options);
    Enclave::start(options).unwrap()
}

/// Waits for something that must come; fails with a name if it does not.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::yield_now();
    }
}

/// Prints, if the test fails while it lives, the one line that replays it.
pub struct Replay(pub u64, pub &'static str);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: WAVE_SEED={} cargo test -p wave-user --test {}", self.0, self.1);
        }
    }
}

/// WAVE_SEED, or a fixed one.
pub fn seed(default: u64) -> u64 {
    let number = std::env::var("WAVE_SEED").ok();
    number.map_or(default, |text| text.parse().expect("WAVE_SEED is a number"))
}
