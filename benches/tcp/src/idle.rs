//! Many idle connections besides some active ones, and an agent without traffic.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wave_compare::{PerRound, balanced_order};
use wave_process::say;

use crate::client::Load;
use crate::cpu;
use crate::network::{Network, Server, Stack};
use crate::program::Role;
use crate::{Output, SEED};

const ACTIVE: usize = 100;
const WARM_UP: Duration = Duration::from_millis(100);
/// Shortest time over which an agent without traffic is measured.
const WATCHED_MIN: Duration = Duration::from_secs(2);

pub fn idle(output: &Output, idle: u32) -> Result<Value, String> {
    let mut network = Network::new(output.datapath)?.with_cable()?;
    let gro = network.with_gro()?;
    let mut server = network.serve(Stack::Veth)?;
    let linux = network.serve(Stack::Linux)?;
    let agent = server.agent.as_ref().map(|agent| agent.pid()).ok_or("there is no agent")?;
    let load = Load {
        role: Role::Echo,
        connections: ACTIVE,
        depth: 1,
        is_demoted: false,
        warm_up: WARM_UP,
        measured: output.chunk_seconds,
    };
    // Twice as many active connections as are measured, so that their memory is touched before memory is compared.
    for server in [&server, &linux] {
        network.measure(server, &Load { connections: 2 * ACTIVE, ..load })?;
    }
    let Some([allocations, table_bytes]) = server.allocations()? else {
        return Err("there is no agent".into());
    };
    let mut rates: [[Vec<f64>; 2]; 2] = Default::default();
    let mut touched = Vec::new();
    let (mut idle_cpu, mut wakeups) = (Vec::new(), Vec::new());
    for round in 0..=output.chunks {
        for at in balanced_order(SEED, round.into(), 2) {
            let server = [&server, &linux][at];
            let alone = network.measure(server, &load)?;
            let memory = (memory(agent, "RssAnon")?, memory(agent, "RssShmem")?);
            network.hold(server, idle)?;
            if at == 0 {
                touched.push([
                    (self::memory(agent, "RssAnon")? - memory.0) / f64::from(idle),
                    (self::memory(agent, "RssShmem")? - memory.1) / f64::from(idle),
                ]);
            }
            let beside = network.measure(server, &load)?;
            let rate = |chunk: crate::network::Chunk| chunk.count / chunk.seconds;
            let (alone, beside) = (rate(alone), rate(beside));
            let name = ["veth", "linux"][at];
            say!(
                "idle {round}/{} {name}: {alone:.0} requests/s, {beside:.0} beside {idle} idle connections",
                output.chunks,
            );
            // The first round warms up.
            if round > 0 {
                rates[at][0].push(alone);
                rates[at][1].push(beside);
            }
            if at == 0 {
                let (share, per_second) = watch(agent, WATCHED_MIN.max(output.chunk_seconds))?;
                say!(
                    "idle {round}/{} agent: {share:.3}% of a CPU, {per_second:.1} wake-ups/s",
                    output.chunks
                );
                if round > 0 {
                    idle_cpu.push(share);
                    wakeups.push(per_second);
                }
            }
            network.release()?;
        }
    }
    let after = server.allocations()?.map_or(0, |[after, _]| after);
    let rates = rates.map(|of_server| of_server.map(PerRound::from_iter));
    let [veth, linux] = rates
        .each_ref()
        .map(|[alone, beside]| json!({ "alone": alone.spread(), "beside": beside.spread() }));
    let ratio = |at: usize| {
        let [alone, beside] = &rates[at];
        beside.over(alone).estimate()
    };
    let [idle_cpu, wakeups] = [idle_cpu, wakeups].map(PerRound::from_iter);
    // Only the first round's values: in later rounds the memory is already touched.
    let [agent_bytes, shared_bytes] = touched.first().copied().unwrap_or([f64::NAN; 2]);
    Ok(json!({
        "bench": "tcp idle",
        "chunks": output.chunks,
        "chunk_seconds": output.chunk_seconds.as_secs_f64(),
        "gro": gro,
        "idle": idle,
        "active": ACTIVE,
        "idle_connections_ratio": ratio(0),
        "idle_connections_ratio_of_linux": ratio(1),
        "bytes_per_connection": {
            "table": table_bytes as f64 / f64::from(wave_tcp::control::Bounds::default().flows),
            "touched": agent_bytes,
            "shared": shared_bytes,
        },
        "idle_cpu_percent": idle_cpu.median(),
        "idle_cpu_percent_spread": idle_cpu.spread(),
        "wakeups_per_s": wakeups.median(),
        "allocations_after_start": after - allocations,
        "requests_per_second": {
            "veth": veth,
            "linux": linux,
        },
    }))
}

/// A kind of resident memory of a process (`key` in its status), in bytes.
fn memory(pid: u32, key: &str) -> Result<f64, String> {
    Ok(cpu::status(pid, key)? as f64 * 1024.0)
}

/// A process's share of a CPU in percent, and its wake-ups per second.
fn watch(pid: u32, span: Duration) -> Result<(f64, f64), String> {
    // Waits for the rest of the active connections' work: delayed acknowledgements, closing.
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    let (spent, switches) = (cpu::of(pid), cpu::status(pid, "voluntary_ctxt_switches")?);
    std::thread::sleep(span);
    let seconds = start.elapsed().as_secs_f64();
    let spent = cpu::of(pid).saturating_sub(spent) as f64 / 1e9;
    let switches = cpu::status(pid, "voluntary_ctxt_switches")? - switches;
    Ok((spent / seconds * 100.0, switches as f64 / seconds))
}

impl Network {
    /// Opens idle connections.
    fn hold(&mut self, server: &Server, count: u32) -> Result<(), String> {
        self.client.tell(&format!("hold {}:{} {count}", server.address(), Role::Echo.port()))?;
        self.client.expect("done")
    }

    fn release(&mut self) -> Result<(), String> {
        self.client.tell("drop")?;
        self.client.expect("done")?;
        // TIME_WAIT is on the client's side. The server has seen the end by now, or sees it during the next load.
        std::thread::sleep(Duration::from_millis(200));
        Ok(())
    }
}
