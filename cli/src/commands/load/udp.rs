//! `wave load udp`: puts a load of requests in datagrams on an agent.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use signal_hook::consts::SIGINT;
use wave_report::number::short;
use wave_terminal::{Failure, counted};
use wave_workloads::udp::{Ends, Error, Generator, Outcome, Settings, UdpMix};

use super::{lag, latencies, length, measured, rate, seconds, shown, under_way};

/// One in `TIMED_OF` requests asks for its time at the front; the others ask for the number of open requests.
const TIMED_OF: u64 = 2;

/// Target, rate and mix of requests.
#[derive(Args, Debug)]
#[command(
    after_help = "Sends requests in datagrams to an agent before `wave serve kv --offload`. The loop is open: requests are due at
random times (Poisson) and are sent on time, independent of earlier ones. Latency counts from the due time and
includes all tries. A server that stops for half a second delays every request of that half second.

An unanswered request is sent again under the same id: the front answers a known id from its kept reply.
Although PUTs are not idempotent, none executes twice (each sets its own key), even if the agent or the host is
killed (`wave serve kv --log-writes` shows it).

With --queue-target each socket has a window of requests in flight, adapted to the number of open requests
that replies report. A request that is due while all windows are full is never sent: under overload the others are
answered sooner. docs/guide/udp.md

Examples:
  wave load udp --target 127.0.0.1:50052 --rate 10000
  wave load udp --target 127.0.0.1:50052 --rate 5000 --mix 5us=99.5,100us=0.5       a bimodal service time
  wave load udp --target 127.0.0.1:50052 --rate 2000 --mix get=9,put=1 --json
  wave load udp --target 127.0.0.1:50052 --rate 20000 --mix 100us=1 --queue-target 16  an overload

Ctrl-C ends the load and prints what was measured so far; a second one ends the program.

Exit codes: 0 measured; 1 the generator fell behind, a reply was wrong, the server lacks keys, or no request ended
with OK; 2 bad arguments; 3 the front does not answer, or the CPU is not available; 130 after Ctrl-C."
)]
pub(super) struct UdpArgs {
    /// Host and port of the front.
    #[arg(long, value_name = "ADDR")]
    target: String,
    /// Requests per second.
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: f64,
    /// Duration of the measurement, in seconds.
    #[arg(long, value_name = "N", default_value = "10", value_parser = length)]
    seconds: Duration,
    /// Duration of the warm-up before it, in seconds.
    #[arg(long, value_name = "N", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// Time to wait for answers after the last request, in seconds.
    #[arg(long, value_name = "N", default_value = "5", value_parser = seconds)]
    drain: Duration,
    /// Kinds of requests with their weights: get, put, echo, or a time of work such as 5us.
    #[arg(long, value_name = "KIND=N,..", default_value = "get=1")]
    mix: UdpMix,
    /// Interval between tries of a request; 0 sends each request once.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=60_000))]
    retry_ms: u32,
    /// Number of open requests at the host to aim at: requests beyond a socket's window are never sent [default: send all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    queue_target: Option<u32>,
    /// Number of sockets. The front sees each as a client; each has at most 1,000 requests in flight.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=512))]
    sockets: u16,
    /// Number of keys to draw from; the server must have them.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: u64,
    /// Size of echoes and of PUT values, in bytes.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=60_000))]
    value_bytes: u32,
    /// Seed of times, kinds, keys and ids: the same seed gives the same load.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    seed: u64,
    /// CPU of the load generator [default: any].
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn execute(args: &UdpArgs) -> Result<ExitCode, Failure> {
    if args.queue_target.is_some() && args.retry_ms == 0 {
        let why = "--queue-target needs --retry-ms above 0: without a further try, a lost reply closes a part of the \
                   window for ever";
        return Err(Failure::Scenario(why.to_owned()));
    }
    let stop = stopped_by_ctrl_c()?;
    let outcome = load(args, &stop)?;
    shown(show(args, &outcome))?;
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let Outcome { point, ends, .. } = &outcome;
    if ends.wrong > 0 {
        return Err(Failure::Check(format!("{} replies were wrong", ends.wrong)));
    }
    if let Some(missing) = ends.executed.get("NOT_FOUND") {
        let keys = args.keys;
        return Err(Failure::Check(format!(
            "{missing} GETs found no key: the load draws from {keys} (--keys), and the server has fewer"
        )));
    }
    if point.done == 0 {
        return Err(Failure::Check("no request ended with OK".to_owned()));
    }
    measured(&point.generator).map(|()| ExitCode::SUCCESS)
}

fn load(args: &UdpArgs, stop: &Arc<AtomicBool>) -> Result<Outcome, Failure> {
    let settings = Settings {
        target: args.target.clone(),
        sockets: args.sockets.into(),
        mix: args.mix.clone(),
        keys: args.keys,
        value_bytes: args.value_bytes as usize,
        retry: (args.retry_ms > 0).then(|| Duration::from_millis(args.retry_ms.into())),
        seed: args.seed,
        // Random, because `RandomState`'s keys are.
        run: RandomState::new().hash_one(args.seed) >> 42,
        // A timed reply does not carry the number of open requests.
        timed: if args.queue_target.is_some() { 0 } else { TIMED_OF },
        queue_target: args.queue_target,
        stop: Some(Arc::clone(stop)),
    };
    let rate = args.rate;
    let [warm_up, seconds, drain] = [args.warm_up, args.seconds, args.drain];
    let generate = move || -> Result<Outcome, Failure> {
        let mut generator = Generator::connect(&settings).map_err(failed)?;
        generator.open(rate, warm_up, seconds, drain).map_err(failed)
    };
    let what = format!("{} requests {}", args.mix, describe(args));
    under_way(&what, args.warm_up + args.seconds, args.quiet || args.json, args.cpu, generate)
}

/// Exit code after Ctrl-C: 128 and the signal's number.
const INTERRUPTED: u8 = 130;

/// Becomes true at the first Ctrl-C. The second one ends the process.
fn stopped_by_ctrl_c() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, Arc::clone(&stop))
        .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&stop)))
        .map_err(Failure::cannot)?;
    Ok(stop)
}

fn describe(args: &UdpArgs) -> String {
    let (sockets, rate) = (counted(args.sockets, "socket"), short(args.rate));
    let seconds = args.seconds.as_secs_f64();
    format!("{} by {sockets}, {rate}/s, open loop, {seconds} s", args.target)
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Target { .. } | Error::Load(_) => Failure::Scenario(error.to_string()),
        Error::Silent(_) | Error::Socket { .. } => Failure::cannot(error),
    }
}

fn show(args: &UdpArgs, outcome: &Outcome) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let Outcome { point, ends, open_at_host, at_front } = outcome;
    if args.json {
        let value = json!({
            "load": "udp",
            "loop": "open",
            "version": wave_apps::machine::version(),
            "target": args.target,
            "mix": args.mix.to_string(),
            "sockets": args.sockets,
            "retry_ms": args.retry_ms,
            "queue_target": args.queue_target,
            "seed": args.seed,
            "result": outcome,
        });
        return writeln!(out, "{value}");
    }
    writeln!(out, "{}\n", describe(args))?;
    writeln!(out, "{}\n", latencies(&point.classes))?;
    if at_front.iter().any(|class| class.latency.count > 0) {
        writeln!(
            out,
            "Time at the front, from receipt of a request to its reply, of every other request:"
        )?;
        writeln!(out, "{}\n", latencies(at_front))?;
    }
    writeln!(
        out,
        "Sent {}, {}/s ended with OK; {}",
        point.sent,
        short(point.achieved_per_second),
        told(ends, point.refused)
    )?;
    writeln!(out, "Open requests at the host, from replies: {} on average", short(*open_at_host))?;
    writeln!(out, "{}", lag("a request", &point.generator))
}

/// Outcomes of the requests, as text.
fn told(ends: &Ends, never_sent: u64) -> String {
    let executed = ends.executed.iter().map(|(name, count)| format!("{name} {count}"));
    let refused = ends.refused.iter().map(|(name, count)| format!("refused {name} {count}"));
    let others = [
        ("outcome unknown", ends.outcome_unknown),
        ("lost", ends.lost),
        ("never sent", never_sent),
        ("wrong", ends.wrong),
        ("retries", ends.retries),
    ];
    let others = others.into_iter().filter(|(_, count)| *count > 0);
    let others = others.map(|(name, count)| format!("{name} {count}"));
    executed.chain(refused).chain(others).collect::<Vec<_>>().join(", ")
}
