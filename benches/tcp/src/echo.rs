//! Requests of 64 bytes: CPU time and packets per request.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wave_compare::{PerRound, balanced_order};
use wave_process::say;

use crate::client::{Load, REQUEST_BYTES};
use crate::network::{Chunk, Network, Stack};
use crate::program::Role;
use crate::{Output, SEED};

const WARM_UP: Duration = Duration::from_millis(100);
/// Connections, and requests in flight on each.
const SHAPES: [(usize, usize); 3] = [(16, 1), (64, 1), (16, 16)];

pub fn echo(output: &Output) -> Result<Value, String> {
    let mut network = Network::new(output.datapath)?.with_cable()?;
    let gro = network.with_gro()?;
    let [linux, veth, tap] = Stack::ALL.map(|stack| network.serve(stack));
    let mut servers = [linux?, veth?, tap?];
    let before = allocations(&mut servers)?;
    let mut chunks: [[Vec<Chunk>; 3]; 3] = Default::default();
    for round in 0..=output.chunks {
        for (shape, (connections, depth)) in SHAPES.into_iter().enumerate() {
            for at in balanced_order(SEED, round.into(), servers.len()) {
                let server = &servers[at];
                let measured = output.chunk_seconds;
                let load = Load {
                    role: Role::Echo,
                    connections,
                    depth,
                    is_demoted: false,
                    warm_up: WARM_UP,
                    measured,
                };
                let chunk = network.measure(server, &load)?;
                say!(
                    "echo {connections}x{depth} {round}/{} {}: {}, {:.2} packets",
                    output.chunks,
                    Stack::ALL[at].name(),
                    chunk.per_request(),
                    chunk.packets / chunk.count,
                );
                // The first round warms up.
                if round > 0 {
                    chunks[shape][at].push(chunk);
                }
            }
        }
    }
    let after = allocations(&mut servers)?;
    let mut shapes = Map::new();
    for (shape, (connections, depth)) in SHAPES.into_iter().enumerate() {
        let figures = of_shape(Stack::ALL, &chunks[shape]);
        shapes.insert(format!("{connections}x{depth}"), figures);
    }
    let headline = |key: &str| {
        let of = |shape: &Value| shape["veth"][key].clone();
        let all = shapes.iter().map(|(name, shape)| (name.clone(), of(shape)));
        Value::Object(all.collect())
    };
    Ok(json!({
        "bench": "tcp echo",
        "chunks": output.chunks,
        "chunk_seconds": output.chunk_seconds.as_secs_f64(),
        "request_bytes": REQUEST_BYTES,
        "gro": gro,
        "app_cpu_ratio_vs_linux": headline("app_cpu_ratio_vs_linux"),
        "total_cpu_ratio_vs_linux": headline("total_cpu_ratio_vs_linux"),
        "packets_per_request": headline("packets_per_request"),
        "allocations_after_start": after - before,
        "shapes": shapes,
    }))
}

/// Number of allocations of all agents together.
fn allocations(servers: &mut [crate::network::Server]) -> Result<u64, String> {
    let mut sum = 0;
    for server in servers {
        sum += server.allocations()?.map_or(0, |[allocations, _]| allocations);
    }
    Ok(sum)
}

/// The figures of each stack for one shape.
pub fn of_shape(stacks: [Stack; 3], chunks: &[Vec<Chunk>; 3]) -> Value {
    let of = |at: usize, value: fn(&Chunk) -> f64| PerRound::of(&chunks[at], value);
    let app = |at| of(at, |chunk| chunk.spent.app / chunk.count);
    let total = |at| of(at, |chunk| chunk.spent.total / chunk.count);
    let by_tasks = |at| of(at, |chunk| chunk.spent.by_tasks / chunk.count);
    let rate = |at| of(at, |chunk| chunk.count / chunk.seconds);
    let mut of_stacks = Map::new();
    for (at, stack) in stacks.into_iter().enumerate() {
        let mut figures = json!({
            "requests_per_second": rate(at).spread(),
            "app_ns": app(at).spread(),
            "agent_ns": of(at, |chunk| chunk.spent.agent / chunk.count).spread(),
            "total_ns": total(at).spread(),
            "by_tasks_ns": by_tasks(at).spread(),
            "packets_per_request": of(at, |chunk| chunk.packets / chunk.count).spread(),
            "others_busy_share": of(at, |chunk| chunk.spent.others / chunk.seconds / 1e9).spread(),
        });
        if stack != Stack::Linux {
            figures["app_cpu_ratio_vs_linux"] = app(at).over(&app(0)).estimate();
            figures["total_cpu_ratio_vs_linux"] = total(at).over(&total(0)).estimate();
            figures["total_cpu_ratio_vs_linux_by_tasks"] =
                by_tasks(at).over(&by_tasks(0)).estimate();
            figures["requests_ratio_vs_linux"] = rate(at).over(&rate(0)).estimate();
        }
        of_stacks.insert(stack.name().to_owned(), figures);
    }
    Value::Object(of_stacks)
}
