//! A host to attach to: one core under more load than it can serve, a tenth of it urgent. Prints
//! once a second how long threads of each class waited for the core.
//!
//! Run `cargo run --example host`, then in another terminal the command that it prints.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use my_policy::two_class::URGENT;
use wave_core::clock::Nanos;
use wave_user::{Enclave, Mode, Options};

/// Number of threads that wait or run at once.
const IN_LINE: u64 = 400;
const SERVICE_US: u64 = 50;

#[derive(Default)]
struct Waited {
    threads: AtomicU64,
    us: AtomicU64,
}

impl Waited {
    /// Mean wait since the last call, in microseconds.
    fn take_mean_us(&self) -> u64 {
        self.us.swap(0, Relaxed) / self.threads.swap(0, Relaxed).max(1)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("my-host-{}.sock", std::process::id()));
    let mut options = Options::new(path);
    options.yields_cpu = true;
    // Host and agent may have to share CPUs here, and ordinary threads have to wait long by design.
    options.config.patience = Nanos::from_millis(1000);
    let enclave = Enclave::start(options)?;
    println!(
        "attach with: cargo run --release -- --policy two-class --share-cpu --attach {}",
        enclave.socket().display()
    );
    println!(
        "{:>9} {:>10} {:>12} {:>14} {:>8}",
        "decider", "threads/s", "urgent, us", "ordinary, us", "barks"
    );

    let waited: Arc<[Waited; 2]> = Arc::default();
    let mut spawned = 0u64;
    let mut next_line = Instant::now() + Duration::from_secs(1);
    let mut threads_before = 0;
    loop {
        while enclave.alive() < IN_LINE as usize {
            let class = if spawned.is_multiple_of(10) { URGENT } else { 1 };
            let (waited, since) = (Arc::clone(&waited), Instant::now());
            enclave.spawn_detached(class, move || {
                let start = Instant::now();
                let waited = &waited[usize::from(class)];
                waited.us.fetch_add((start - since).as_micros() as u64, Relaxed);
                waited.threads.fetch_add(1, Relaxed);
                while start.elapsed() < Duration::from_micros(SERVICE_US) {
                    std::hint::spin_loop();
                }
            })?;
            spawned += 1;
        }
        if Instant::now() >= next_line {
            next_line += Duration::from_secs(1);
            let [urgent, ordinary] = [&waited[0], &waited[1]].map(Waited::take_mean_us);
            let decider = match enclave.mode() {
                Mode::Agent => "agent",
                Mode::Fallback => "fallback",
            };
            let threads = spawned - threads_before;
            threads_before = spawned;
            let barks = enclave.stats().barks;
            println!("{decider:>9} {threads:>10} {urgent:>12} {ordinary:>14} {barks:>8}");
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}
