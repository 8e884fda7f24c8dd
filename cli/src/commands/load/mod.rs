//! `wave load`: puts a load on a server and measures it.

mod grpc;
mod udp;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};
use wave_process::cpus;
use wave_report::number::micros;
use wave_terminal::{Failure, Progress, Table};
use wave_workloads::point::{ClassLatency, GeneratorLag};

/// Kind of load.
#[derive(Args, Debug)]
pub struct LoadArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Call a gRPC server.
    Grpc(grpc::GrpcArgs),
    /// Send requests in datagrams to an agent (`wave agent --udp`).
    Udp(udp::UdpArgs),
}

pub fn execute(args: &LoadArgs) -> Result<ExitCode, Failure> {
    match &args.what {
        What::Grpc(args) => grpc::execute(args).map(|()| ExitCode::SUCCESS),
        What::Udp(args) => udp::execute(args),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=1e6).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, 0 to 1000000".to_owned())
}

fn length(text: &str) -> Result<Duration, String> {
    let length = seconds(text).ok().filter(|length| *length >= Duration::from_millis(1));
    length.ok_or_else(|| "expected seconds, 0.001 to 1000000".to_owned())
}

/// A closed pipe is no error. Any other failure to write the result is.
fn shown(written: std::io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Cannot(format!("cannot write the result: {error}")))
        }
        _ => Ok(()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=1e9).contains(rate));
    rate.ok_or_else(|| "expected a number per second, 0.001 (above 0) to 1000000000".to_owned())
}

/// Runs a load on another thread, on `cpu` if given, and shows its progress; `whole` is its expected duration.
fn under_way<T: Send + 'static>(
    what: &str,
    whole: Duration,
    quiet: bool,
    cpu: Option<usize>,
    load: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    // On a terminal a bar that advances each second, otherwise one line.
    let progress = match std::io::stderr().is_terminal() {
        true => Progress::new(whole.as_secs_f64().ceil() as u64, quiet),
        false => Progress::open_ended(quiet),
    };
    progress.begin(what);
    let (sender, over) = mpsc::channel();
    let generator = thread::spawn(move || {
        let pinned = cpu.map_or(Ok(()), |cpu| cpus::pin(&[cpu])).map_err(Failure::cannot);
        let outcome = pinned.and_then(|()| load());
        drop(sender);
        outcome
    });
    while let Err::<(), _>(RecvTimeoutError::Timeout) = over.recv_timeout(Duration::from_secs(1)) {
        progress.end();
    }
    generator.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Fails if the generator did not keep up with its open loop.
fn measured(generator: &GeneratorLag) -> Result<(), Failure> {
    if generator.valid {
        return Ok(());
    }
    let why = generator.why_invalid.as_deref().unwrap_or_default();
    Err(Failure::Check(format!(
        "not a measurement: {why}; give the generator its own CPU (--cpu), or lower --rate"
    )))
}

fn latencies(classes: &[ClassLatency]) -> Table {
    let mut table =
        Table::new(1, ["kind", "OK", "p50\nus", "p90\nus", "p99\nus", "p99.9\nus", "max\nus"]);
    for ClassLatency { name, latency, .. } in classes {
        let quantiles =
            [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
        let row = [name.clone(), latency.count.to_string()];
        table.push(row.into_iter().chain(quantiles.map(micros)));
    }
    table
}

/// A sentence about the generator's lag; `one` is the noun for a request.
fn lag(one: &str, lag: &GeneratorLag) -> String {
    format!(
        "Latency counts from when {one} was due. The generator's own lag: p50 {} us, p99 {} us, longest {} us",
        micros(lag.lag_p50_ns),
        micros(lag.lag_p99_ns),
        micros(lag.lag_max_ns)
    )
}
