//! Measures the costs of a workload's parts on this machine:
//!
//! ```text
//! cargo run --release -p wave-workloads --example costs [keys] [value bytes]
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use wave_process::cpus;
use wave_workloads::arrivals::{Class, Mix};
use wave_workloads::cpu::{monotonic_ns, yield_now};
use wave_workloads::generator::{Request, Server};
use wave_workloads::linux_threads::{self, Pool};
use wave_workloads::recorder::{Latency, Recorder, Window, histogram};
use wave_workloads::rocksdb::Database;
use wave_workloads::service::{Calibrated, GET_SERVICE_TIME};

const ROUNDS: u64 = 20_000;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let value_bytes = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let cpus = cpus::allowed()?;
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    cpus::pin(&[first])?;

    let mut database = Database::open(None)?;
    let start_ns = monotonic_ns();
    database.fill(keys, value_bytes, |_, _| {})?;
    println!(
        "RocksDB {}: {keys} keys of {value_bytes} bytes filled in {:.1} s",
        database.version(),
        (monotonic_ns() - start_ns) as f64 / 1e9
    );
    let service = Calibrated::new(database, GET_SERVICE_TIME)?;
    print_row("bare GET", service.bare());
    print_row(
        "GET of 10 us",
        &measure(|round| {
            let served = service.get(round % keys);
            served.map(|_| ()).map_err(Into::into)
        })?,
    );

    let recorder = Recorder::new(&Mix::get_only(), 1);
    recorder.open(Window { start_ns: 0, from_ns: 0, to_ns: u64::MAX });
    let done = |round| {
        recorder.done(0, &request(round));
        Ok(())
    };
    print_row("record", &measure(done)?);

    for (name, cpu) in [("hand over, other CPU", last), ("hand over, same CPU", first)] {
        let (submit, until_served) = hand_over(cpu)?;
        print_row(&format!("{name}: submit"), &submit);
        print_row(&format!("{name}: until served"), &until_served);
    }
    Ok(())
}

/// Wakes the one sleeping thread of a pool on `cpu`. Returns the time of the submission, and the time from
/// before it until the handler runs.
fn hand_over(cpu: usize) -> Result<(Latency, Latency), Box<dyn Error>> {
    let recorder = Arc::new(Recorder::new(&Mix::get_only(), 1));
    recorder.open(Window { start_ns: 0, from_ns: 0, to_ns: u64::MAX });
    let theirs = recorder.clone();
    let settings =
        linux_threads::Settings { threads: 1, ..linux_threads::Settings::new(vec![cpu]) };
    let mut pool = Pool::start(&settings, move |request, _| theirs.done(0, request))?;
    let mut submits = histogram();
    for round in 0..ROUNDS / 4 {
        while pool.outstanding() > 0 {
            yield_now();
        }
        // Long enough for the thread to fall asleep again.
        std::thread::sleep(Duration::from_micros(50));
        let start_ns = monotonic_ns();
        pool.submit(request(round))?;
        submits.saturating_record(monotonic_ns() - start_ns);
    }
    pool.stop();
    let recorded = recorder.collect();
    Ok((Latency::of(&submits), Latency::of(&recorded.classes[0].1)))
}

fn measure(
    mut call: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<Latency, Box<dyn Error>> {
    let mut times = histogram();
    for round in 0..ROUNDS {
        let start_ns = monotonic_ns();
        call(round)?;
        times.saturating_record(monotonic_ns() - start_ns);
    }
    Ok(Latency::of(&times))
}

fn request(id: u64) -> Request {
    Request { id, class: Class(0), intended_ns: monotonic_ns(), key: 0 }
}

fn print_row(name: &str, latency: &Latency) {
    println!(
        "{name:36} p50 {:>7} ns  p99 {:>7} ns  p99.9 {:>8} ns",
        latency.p50_ns, latency.p99_ns, latency.p999_ns
    );
}
