//! Helpers of the tests over real sockets and real threads.

#![allow(dead_code, reason = "each test uses some of these helpers")]

use std::path::PathBuf;
use std::thread::JoinHandle as Pthread;
use std::time::{Duration, Instant};

use wave_agent::{Exit, RunError, Seat, attach, run};
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::policy::Policy;
use wave_sched::policies::by_name;
use wave_user::{CoreStats, Enclave, Options};

/// Path of the socket of the enclave with this name.
pub fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("wave-test-{}-{name}.sock", std::process::id()))
}

/// Starts an enclave that shares its CPUs, with enough patience for a machine that is busy with other
/// tests.
pub fn start(name: &str, change: impl FnOnce(&mut Options)) -> Enclave {
    let mut options = Options::new(socket(name));
    options.yields_cpu = true;
    options.config.subjects = 256;
    options.config.patience = Nanos::from_millis(60_000);
    change(&mut options);
    Enclave::start(options).unwrap()
}

/// An agent in a thread of the test.
pub type Agent = Pthread<Result<Exit, RunError>>;

/// Attaches an agent with this policy.
pub fn agent(enclave: &Enclave, policy: impl FnOnce(&Config) -> Box<dyn Policy + Send>) -> Agent {
    let attached = attach(enclave.socket()).unwrap();
    let policy = policy(&attached.layout.config);
    let agents = enclave.stats().agents;
    let agent = std::thread::spawn(move || run(attached, policy, (), Seat::Shared));
    wait_for("the agent", || enclave.stats().agents > agents);
    agent
}

/// Attaches an agent with a shipped policy.
pub fn shipped(enclave: &Enclave, policy: &str) -> Agent {
    agent(enclave, |config| by_name(policy, config).unwrap())
}

/// Sum of a counter over all cores.
pub fn sum(enclave: &Enclave, of: impl Fn(&CoreStats) -> u64) -> u64 {
    enclave.stats().cores.iter().map(of).sum()
}

/// Waits until `condition` holds. Fails, naming `what`, after a minute.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// If the test panics while this value lives, prints the command that replays it.
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
