//! A connection that is served as a stream of the kernel's (docs/adr/0104), beside the same program's other connections.

use std::time::Duration;

use serde_json::{Value, json};
use wave_compare::{PerRound, balanced_order};
use wave_process::say;

use crate::apps::{Build, can_run};
use crate::client::{Load, REQUEST_BYTES};
use crate::network::{Network, Server, Stack};
use crate::process::{Process, own};
use crate::program::{Pieces, Role};
use crate::{Output, SEED};

/// Time for connections to be demoted, and for windows to open.
const WARM_UP: Duration = Duration::from_millis(200);
const ROWS: [&str; 4] = ["loopback", "linux", "agent", "demoted"];
const AGENT: usize = 2;
const DEMOTED: usize = 3;
const ROLES: [Role; 3] = [Role::Echo, Role::Sink(Pieces::Large), Role::Source(Pieces::Large)];

pub fn demoted(output: &Output) -> Result<Value, String> {
    let build = Build::of(&own()?)?;
    let mut network = Network::new(output.datapath)?.with_cable()?;
    let gro = network.with_gro()?;
    let loopback = network.serve_on_loopback()?;
    let linux = network.serve(Stack::Linux)?;
    let ours = preloaded(&network, &build)?;
    let mut chunks: [[Vec<f64>; ROWS.len()]; ROLES.len()] = Default::default();
    for round in 0..=output.chunks {
        for (of_role, role) in chunks.iter_mut().zip(ROLES) {
            for at in balanced_order(SEED, round.into(), ROWS.len()) {
                let name = ROWS[at];
                let server = [&loopback, &linux, &ours, &ours][at];
                let load = Load {
                    role,
                    connections: 1,
                    depth: 1,
                    is_demoted: at == DEMOTED,
                    warm_up: WARM_UP,
                    measured: output.chunk_seconds,
                };
                let chunk = network.measure(server, &load)?;
                let rate = chunk.count / chunk.seconds;
                let told = match role {
                    Role::Echo => format!("{:.1} us a round trip", 1e6 / rate),
                    _ => format!("{:.2} Gb/s", rate * 8e-9),
                };
                say!("demoted {} {round}/{} {name}: {told}", role.port(), output.chunks);
                // The first round warms up.
                if round > 0 {
                    of_role[at].push(rate);
                }
            }
        }
    }
    let [echo, inward, outward] = chunks.map(|rows| rows.map(PerRound::from_iter));
    let trips = echo.map(|rates| rates.map(|rate| 1e6 / rate));
    let added = trips[DEMOTED].with(&trips[AGENT], |ours, fast| ours - fast);
    let named = |of: &dyn Fn(usize) -> Value| -> Value {
        ROWS.iter().enumerate().map(|(at, name)| ((*name).to_owned(), of(at))).collect()
    };
    let gb = |of: &PerRound| of.map(|rate| rate * 8e-9).spread();
    Ok(json!({
        "bench": "tcp demoted",
        "chunks": output.chunks,
        "chunk_seconds": output.chunk_seconds.as_secs_f64(),
        "request_bytes": REQUEST_BYTES,
        "gro": gro,
        "added_round_trip_us": added.estimate(),
        "throughput_ratio_vs_agent": {
            "in": inward[DEMOTED].over(&inward[AGENT]).estimate(),
            "out": outward[DEMOTED].over(&outward[AGENT]).estimate(),
        },
        "round_trip_us": named(&|at| trips[at].spread()),
        "in_gb_per_second": named(&|at| gb(&inward[at])),
        "out_gb_per_second": named(&|at| gb(&outward[at])),
    }))
}

/// Starts the program for Linux's sockets over an agent. Some of its ports are for connections that it has demoted.
fn preloaded(network: &Network, build: &Build) -> Result<Server, String> {
    let socket = network.socket("preloaded");
    let socket = socket.to_str().ok_or("the path of the folder for sockets is not UTF-8")?;
    let place = network.place(Stack::Veth);
    let wire: Vec<&str> = place.wire.iter().flatten().map(String::as_str).collect();
    let agent = network.agent(place.address, socket, &wire, &build.bench)?;
    let over = [build.wave()?, "tcp", "run", "--socket", socket, "--"];
    can_run(&over.map(str::to_owned))?;
    let cpu = network.cpus[0].to_string();
    let words = ["program", "--cpu", &cpu, "--linux", place.address, "--demotes"];
    let program = Process::start_under(&over, &words)?;
    Ok(Server::new(program, Some(agent), &place))
}
