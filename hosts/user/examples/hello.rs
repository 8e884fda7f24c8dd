//! A program whose threads an agent schedules. Any program that uses this library works like it:
//!
//! ```text
//! cargo run -p wave-user --example hello [SOCKET [SECONDS]]
//! ```
//!
//! It works without an agent. While it runs, attach an agent to the socket that it prints, kill the
//! agent, replace it: the program does not notice.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wave_process::places;
use wave_user::{Condvar, Enclave, Mutex, Options};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket =
        arguments.next().map_or_else(|| places::socket("hello"), |path| Ok(path.into()))?;
    let seconds: u64 = arguments.next().map_or(Ok(0), |text| text.parse())?;

    let enclave = Arc::new(Enclave::start(Options::new(socket).cores(2))?);
    let socket = enclave.socket().display();
    println!("attach an agent with: wave agent --attach {socket}");

    let start = Instant::now();
    let mut rounds = 0;
    // At least once, then until the time is up.
    loop {
        greet(&enclave, rounds == 0)?;
        rounds += 1;
        if start.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
    }
    let stats = enclave.stats();
    let switches: u64 = stats.cores.iter().map(|core| core.switches).sum();
    let fallback: u64 = stats.cores.iter().map(|core| core.fallback_switches).sum();
    println!(
        "{rounds} rounds, {switches} switches, {fallback} of them decided by the host itself; \
         agents: {} came, {} were lost",
        stats.agents, stats.lost_agents
    );
    Ok(())
}

/// Ten threads count to a hundred together; an eleventh waits until they are done.
fn greet(enclave: &Arc<Enclave>, aloud: bool) -> Result<(), Box<dyn Error>> {
    let count = Arc::new(Mutex::new(0));
    let changed = Arc::new(Condvar::new());

    let (watched, woken) = (Arc::clone(&count), Arc::clone(&changed));
    let watcher =
        enclave.spawn(0, move || *woken.wait_while(watched.lock(), |count| *count < 100))?;

    let mut counters = Vec::new();
    for _ in 0..10 {
        let (count, changed) = (Arc::clone(&count), Arc::clone(&changed));
        counters.push(enclave.spawn(0, move || {
            for _ in 0..10 {
                *count.lock() += 1;
                changed.notify_one();
                wave_user::yield_now();
            }
            // Blocks this thread only; its core runs others.
            wave_user::sleep(Duration::from_millis(1));
        })?);
    }
    for counter in counters {
        counter.join()?;
    }
    let total = watcher.join()?;
    if aloud {
        println!("hello from {} threads, which counted to {total}", 11);
    }
    Ok(())
}
