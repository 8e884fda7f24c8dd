//! Unmodified servers, over Linux's TCP and over an agent's by `wave tcp run`.

pub mod exchange;
pub mod keeper;
pub mod traffic;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};
use wave_compare::{Better, PerRound, balanced_order};
use wave_process::say;

use crate::echo::of_shape;
use crate::network::{Chunk, Network, Place, Stack};
use crate::process::{Process, own};
use crate::{Output, SEED};
use exchange::{App, CONNECTIONS};
use keeper::Kept;
use traffic::{Pace, Traffic};

const WARM_UP: Duration = Duration::from_millis(100);
/// The rate at which latencies are compared, as a share of the lowest closed-loop rate of all stacks in this run.
const PACED_SHARE: f64 = 0.5;
/// Ratios of each server, over AF_PACKET.
const RATIOS: [(&str, &str); 4] = [
    ("app_cpu_ratio_vs_linux", "app_cpu_ratio_vs_linux"),
    ("total_cpu_ratio_vs_linux", "total_cpu_ratio_vs_linux"),
    ("rate_ratio_vs_linux", "requests_ratio_vs_linux"),
    ("p99_ratio_vs_linux", "p99_ratio_vs_linux"),
];

/// Measures all servers; with `against`, also over the build in that folder.
pub fn apps(output: &Output, against: Option<&Path>) -> Result<Value, String> {
    let stacks = match against {
        None => Stack::ALL,
        Some(_) => [Stack::Linux, Stack::Veth, Stack::Base],
    };
    let builds =
        Builds { this: Build::of(&own()?)?, base: against.map(Build::within).transpose()? };
    let mut network = Network::new(output.datapath)?.with_cable()?;
    let gro = network.with_gro()?;
    let mut apps = Map::new();
    let mut left_out = Map::new();
    for app in App::ALL {
        // Only checks whether the server is installed.
        if let Err(why) = app.command("", "", 0) {
            say!("apps {}: skipped: {why}", app.name());
            left_out.insert(app.name().to_owned(), why.into());
            continue;
        }
        let figures = measure(&mut network, &builds, stacks, app, output)?;
        apps.insert(app.name().to_owned(), figures);
    }
    let mut result = json!({
        "bench": "tcp apps",
        "chunks": output.chunks,
        "chunk_seconds": output.chunk_seconds.as_secs_f64(),
        "connections": CONNECTIONS,
        "paced_share": PACED_SHARE,
        "gro": gro,
    });
    for (ratio, key) in RATIOS {
        let of = |(name, app): (&String, &Value)| (name.clone(), app["veth"][key].clone());
        result[ratio] = Value::Object(apps.iter().map(of).collect());
    }
    if against.is_some() {
        let of = |(name, app): (&String, &Value)| (name.clone(), app["against"].clone());
        result["against"] = Value::Object(apps.iter().map(of).collect());
    }
    result["left_out"] = Value::Object(left_out);
    result["apps"] = Value::Object(apps);
    Ok(result)
}

/// The programs of a build, which lie in one folder.
pub struct Build {
    pub bench: PathBuf,
    wave: PathBuf,
}

impl Build {
    /// The build of this bench's program.
    pub fn of(bench: &Path) -> Result<Build, String> {
        let wave = bench.with_file_name("wave");
        let profile = if cfg!(debug_assertions) { "" } else { "--release " };
        let packages = "--package wave --package wave-preload --package wave-bench-tcp";
        for program in [bench, &wave] {
            if !program.is_file() {
                let path = program.display();
                return Err(format!(
                    "{path} does not exist: build it with `cargo build {profile}{packages}`"
                ));
            }
        }
        Ok(Build { bench: bench.to_owned(), wave })
    }

    fn within(folder: &Path) -> Result<Build, String> {
        Build::of(&folder.join("wave-bench-tcp"))
    }

    /// The path of its `wave`.
    pub fn wave(&self) -> Result<&str, String> {
        self.wave.to_str().ok_or_else(|| "the path of wave is not UTF-8".into())
    }
}

/// The build that is measured, and the one that it is compared with.
struct Builds {
    this: Build,
    base: Option<Build>,
}

impl Builds {
    fn of(&self, stack: Stack) -> &Build {
        self.base.as_ref().filter(|_| stack == Stack::Base).unwrap_or(&self.this)
    }
}

/// An app's server on a stack, and its agent. The server is ended first.
struct Server {
    server: Kept,
    agent: Option<Process>,
    place: Place,
    answer_bytes: usize,
}

impl Server {
    fn start(
        network: &mut Network,
        build: &Build,
        app: App,
        stack: Stack,
    ) -> Result<Server, String> {
        let name = format!("{}-{}", app.name(), stack.name());
        let folder = network.socket(&name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let folder = folder.to_str().ok_or("the path of the folder for sockets is not UTF-8")?;
        let (cpu, place) = (network.cpus[0], network.place(stack));
        app.write_files(place.address, folder)?;
        let mut words = Vec::new();
        let mut agent = None;
        if let Some(wire) = &place.wire {
            let socket = format!("{folder}/toe");
            let wire: Vec<&str> = wire.iter().map(String::as_str).collect();
            agent = Some(network.agent(place.address, &socket, &wire, &build.bench)?);
            words = [build.wave()?, "tcp", "run", "--socket", &socket, "--"]
                .map(str::to_owned)
                .to_vec();
            can_run(&words)?;
        }
        words.extend(app.command(place.address, folder, cpu)?);
        let log = format!("{folder}/log");
        let server = Kept::start(cpu, &log, &words)?;
        let line = format!("prepare {} {}:{}", app.name(), place.address, app.port());
        network.client.tell(&line)?;
        let told = network.client.hear()?;
        let answer_bytes = told.parse().map_err(|_| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            format!("{told}. {} said: {}", words.join(" "), log.trim())
        })?;
        Ok(Server { server, agent, place, answer_bytes })
    }
}

/// Runs true(1) over the agent: a failure names the missing part.
pub fn can_run(words: &[String]) -> Result<(), String> {
    let output = Command::new(&words[0]).args(&words[1..]).arg("true").output();
    let output = output.map_err(|error| format!("{}: {error}", words[0]))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(said.trim().to_owned()) }
}

/// Measures all chunks of the closed loop, then all paced ones; the stacks take turns.
fn measure(
    network: &mut Network,
    builds: &Builds,
    stacks: [Stack; 3],
    app: App,
    output: &Output,
) -> Result<Value, String> {
    let [first, second, third] =
        stacks.map(|stack| Server::start(network, builds.of(stack), app, stack));
    let servers = [first?, second?, third?];
    let closed = rounds(network, app, stacks, &servers, output, None)?;
    let closed: [Vec<Chunk>; 3] =
        closed.map(|of_stack| of_stack.into_iter().map(|(chunk, _)| chunk).collect());
    let rates = closed
        .each_ref()
        .map(|chunks| PerRound::of(chunks, |chunk| chunk.count / chunk.seconds).median());
    let rate = rates.into_iter().fold(f64::INFINITY, f64::min) * PACED_SHARE;
    let paced = rounds(network, app, stacks, &servers, output, Some(rate))?;
    let mut result = of_shape(stacks, &closed);
    let of = |at: usize, value: fn(&Paced) -> f64| PerRound::of(&paced[at], value);
    let p99 = |at| of(at, |(_, latencies)| latencies[1]);
    let app_ns = |at| of(at, |(chunk, _)| chunk.spent.app / chunk.count);
    let total_ns = |at| of(at, |(chunk, _)| chunk.spent.total / chunk.count);
    for (at, stack) in stacks.into_iter().enumerate() {
        let figures = &mut result[stack.name()];
        figures["paced"] = json!({
            "requests_per_second": of(at, |(chunk, _)| chunk.count / chunk.seconds).spread(),
            "p50_ns": of(at, |(_, latencies)| latencies[0]).spread(),
            "p99_ns": p99(at).spread(),
            "app_ns": app_ns(at).spread(),
            "total_ns": total_ns(at).spread(),
        });
        if stack != Stack::Linux {
            figures["p99_ratio_vs_linux"] = p99(at).over(&p99(0)).estimate();
        }
    }
    if stacks[2] == Stack::Base {
        result["against"] = against(&closed, &paced);
    }
    result["paced_requests_per_second"] = rate.into();
    Ok(result)
}

/// This build, the second stack, against the other, the third: each ratio is above 1 if this one is better.
fn against(closed: &[Vec<Chunk>; 3], paced: &[Vec<Paced>; 3]) -> Value {
    let ratio = |better: Better, this: PerRound, base: PerRound| {
        base.with(&this, |base, this| better.ratio(base, this)).estimate()
    };
    let closed = |better, value: fn(&Chunk) -> f64| {
        ratio(better, PerRound::of(&closed[1], value), PerRound::of(&closed[2], value))
    };
    let paced = |better, value: fn(&Paced) -> f64| {
        ratio(better, PerRound::of(&paced[1], value), PerRound::of(&paced[2], value))
    };
    json!({
        "rate": closed(Better::Higher, |chunk| chunk.count / chunk.seconds),
        "app_cpu": closed(Better::Lower, |chunk| chunk.spent.app / chunk.count),
        "total_cpu": closed(Better::Lower, |chunk| chunk.spent.total / chunk.count),
        "total_cpu_by_tasks": closed(Better::Lower, |chunk| chunk.spent.by_tasks / chunk.count),
        "paced_app_cpu": paced(Better::Lower, |(chunk, _)| chunk.spent.app / chunk.count),
        "paced_total_cpu": paced(Better::Lower, |(chunk, _)| chunk.spent.total / chunk.count),
        "paced_total_cpu_by_tasks":
            paced(Better::Lower, |(chunk, _)| chunk.spent.by_tasks / chunk.count),
        "paced_p50": paced(Better::Lower, |(_, latencies)| latencies[0]),
        "paced_p99": paced(Better::Lower, |(_, latencies)| latencies[1]),
    })
}

/// A chunk with the median and the 99th percentile of its latencies.
type Paced = (Chunk, [f64; 2]);

/// Chunks of each stack: in a closed loop, or paced at `rate` requests per second.
fn rounds(
    network: &mut Network,
    app: App,
    stacks: [Stack; 3],
    servers: &[Server; 3],
    output: &Output,
    rate: Option<f64>,
) -> Result<[Vec<Paced>; 3], String> {
    let mut chunks: [Vec<Paced>; 3] = Default::default();
    for round in 0..=output.chunks {
        for at in balanced_order(SEED, round.into(), servers.len()) {
            let server = &servers[at];
            let traffic = Traffic {
                app,
                answer_bytes: server.answer_bytes,
                connections: CONNECTIONS,
                warm_up: WARM_UP,
                measured: output.chunk_seconds,
                // The same arrival times for all stacks.
                pace: rate.map(|rate| Pace {
                    batches_per_second: rate / app.batch() as f64,
                    seed: u64::from(round),
                }),
            };
            let line = traffic.to_line(server.place.address, server.place.interface);
            let agent = server.agent.as_ref().map(Process::pid);
            let measured = network.measure_line(&line, server.server.pid(), agent, || Ok(()));
            let (chunk, latencies) = measured?;
            let latencies = [0, 1].map(|at| latencies.get(at).copied().unwrap_or(f64::NAN));
            let paced = match rate {
                Some(_) => {
                    format!(", p50 {:.0} us, p99 {:.0} us", latencies[0] / 1e3, latencies[1] / 1e3)
                }
                None => String::new(),
            };
            say!(
                "apps {} {round}/{} {}: {}{paced}",
                app.name(),
                output.chunks,
                stacks[at].name(),
                chunk.per_request(),
            );
            // The first round warms up.
            if round > 0 {
                chunks[at].push((chunk, latencies));
            }
        }
    }
    Ok(chunks)
}
