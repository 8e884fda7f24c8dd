//! One stream in each direction: throughput, and CPU time per byte.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wave_compare::{PerRound, balanced_order};
use wave_process::say;

use crate::client::Load;
use crate::network::{Chunk, Network, Stack};
use crate::program::{Pieces, Role};
use crate::{Output, SEED};

/// Time for windows to open before a chunk.
const WARM_UP: Duration = Duration::from_millis(200);
/// Directions from the program's view, and the way in which it reads or writes. The headline figures are those of the first two.
const STREAMS: [(&str, Role); 6] = [
    ("in", Role::Sink(Pieces::Large)),
    ("out", Role::Source(Pieces::Large)),
    ("in_64k", Role::Sink(Pieces::Small)),
    ("out_64k", Role::Source(Pieces::Small)),
    ("in_64k_in_place", Role::Sink(Pieces::InPlace)),
    ("out_64k_in_place", Role::Source(Pieces::InPlace)),
];

pub fn stream(output: &Output) -> Result<Value, String> {
    let mut network = Network::new(output.datapath)?.with_cable()?;
    let gro = network.with_gro()?;
    let servers = Stack::ALL.map(|stack| network.serve(stack));
    let [linux, veth, tap] = servers;
    let servers = [linux?, veth?, tap?];
    let mut chunks: [[Vec<Chunk>; 3]; STREAMS.len()] = Default::default();
    for round in 0..=output.chunks {
        for (stream, (name, role)) in STREAMS.into_iter().enumerate() {
            for at in balanced_order(SEED, round.into(), servers.len()) {
                let server = &servers[at];
                let measured = output.chunk_seconds;
                let load = Load {
                    role,
                    connections: 1,
                    depth: 1,
                    is_demoted: false,
                    warm_up: WARM_UP,
                    measured,
                };
                let chunk = network.measure(server, &load)?;
                let gb_s = chunk.count * 8e-9 / chunk.seconds;
                let ns = chunk.spent.total / chunk.count;
                let stack = Stack::ALL[at].name();
                say!(
                    "stream {name} {round}/{} {stack}: {gb_s:.2} Gb/s, {ns:.2} ns/B",
                    output.chunks
                );
                // The first round warms up.
                if round > 0 {
                    chunks[stream][at].push(chunk);
                }
            }
        }
    }
    let mut result = Map::new();
    for (stream, (name, _)) in STREAMS.into_iter().enumerate() {
        let of = |at: usize, value: fn(&Chunk) -> f64| PerRound::of(&chunks[stream][at], value);
        let rate = |at| of(at, |chunk| chunk.count * 8e-9 / chunk.seconds);
        let per_byte = |at| of(at, |chunk| chunk.spent.total / chunk.count);
        let by_tasks = |at| of(at, |chunk| chunk.spent.by_tasks / chunk.count);
        let app = |at| of(at, |chunk| chunk.spent.app / chunk.count);
        let mut stacks = Map::new();
        for (at, stack) in Stack::ALL.into_iter().enumerate() {
            let mut figures = json!({
                "gb_per_second": rate(at).spread(),
                "ns_per_byte": per_byte(at).spread(),
                "by_tasks_ns_per_byte": by_tasks(at).spread(),
                "app_ns_per_byte": app(at).spread(),
                "agent_ns_per_byte": of(at, |chunk| chunk.spent.agent / chunk.count).spread(),
                "others_busy_share": of(at, |chunk| chunk.spent.others / chunk.seconds / 1e9).spread(),
            });
            if stack != Stack::Linux {
                figures["throughput_ratio_vs_linux"] = rate(at).over(&rate(0)).estimate();
                figures["total_cpu_per_byte_ratio"] = per_byte(at).over(&per_byte(0)).estimate();
                figures["total_cpu_per_byte_ratio_by_tasks"] =
                    by_tasks(at).over(&by_tasks(0)).estimate();
                figures["app_cpu_per_byte_ratio"] = app(at).over(&app(0)).estimate();
            }
            stacks.insert(stack.name().to_owned(), figures);
        }
        result.insert(name.to_owned(), Value::Object(stacks));
    }
    let headline =
        |key: &str| json!({ "in": result["in"]["veth"][key], "out": result["out"]["veth"][key] });
    let app = |way: &str| {
        let of = |direction: &str| {
            result[&format!("{direction}{way}")]["veth"]["app_cpu_per_byte_ratio"].clone()
        };
        json!({ "in": of("in"), "out": of("out") })
    };
    let mut value = json!({
        "bench": "tcp stream",
        "chunks": output.chunks,
        "chunk_seconds": output.chunk_seconds.as_secs_f64(),
        "gro": gro,
        "throughput_ratio_vs_linux": headline("throughput_ratio_vs_linux"),
        "total_cpu_per_byte_ratio": headline("total_cpu_per_byte_ratio"),
        "app_cpu_per_byte_ratio_64k": app("_64k"),
        "app_cpu_per_byte_ratio_64k_in_place": app("_64k_in_place"),
    });
    for (name, figures) in result {
        value[name] = figures;
    }
    Ok(value)
}
