//! A lossy cable between TAP devices: our stack to Linux, against Linux to Linux, with the same losses.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wave_compare::{PerRound, balanced_order};
use wave_process::{cpus, say};
use wave_tcp::datapaths::DatapathKind;

use crate::client::Load;
use crate::network::Network;
use crate::process::Process;
use crate::program::{Pieces, Role};
use crate::{Output, SEED};

const NEAR: &str = "wavebench3";
const FAR: &str = "wavebench4";
const LINUX: &str = "10.92.0.1";
const CLIENT: &str = "10.92.0.2";
const SACK: &str = "10.92.0.3";
const GO_BACK_N: &str = "10.92.0.4";
/// Names of the senders, in the order of the servers; with another data path than FlexTOE's, the second is that one.
const SENDERS: [&str; 3] = ["linux", "sack", "gbn"];
/// Bytes of Linux's buffers in each direction: as many as an agent's rings have.
const BUFFER_BYTES: u32 = 1 << 20;
const WARM_UP: Duration = Duration::from_millis(100);

/// A case: name, share of lost segments, role, connections, and requests in flight on each.
type Case = (&'static str, f64, Role, usize, usize);
const BULK: Role = Role::Source(Pieces::Large);
const CASES: [Case; 2] = [("small", 0.02, Role::Echo, 100, 8), ("bulk", 0.01, BULK, 8, 1)];
/// Cases for a data path with one row.
const OTHER_CASES: [Case; 4] =
    [CASES[0], CASES[1], ("bulk_0_1", 0.001, BULK, 8, 1), ("bulk_0", 0.0, BULK, 8, 1)];

pub fn loss(output: &Output) -> Result<Value, String> {
    let seeds = output.chunks;
    let mut network = Network::new(output.datapath)?;
    // The same buffers as ours, in both networks. Linux's minimum retransmission timeout is 200 ms, as is ours.
    let buffers = format!("4096 {BUFFER_BYTES} {BUFFER_BYTES}");
    let settings: [(&str, &str); 3] = [
        ("ipv4/tcp_rmem", &buffers),
        ("ipv4/tcp_wmem", &buffers),
        ("ipv4/tcp_no_metrics_save", "1"),
    ];
    for (name, value) in settings {
        network.set(name, value)?;
    }
    let (client, cpu) = (network.client.pid().to_string(), cpus::two()?[1].to_string());
    let ends = ["--near", NEAR, "--near-address", LINUX, "--far", FAR, "--far-address", CLIENT];
    let words = [&["relay"], &ends[..], &["--network-of", &client, "--cpu", &cpu]].concat();
    let mut relay = Process::start(&words)?;
    network.helpers.push(relay.pid());
    let sockets = [network.socket("sack"), network.socket("gbn")];
    let [sack, go_back_n] = sockets.each_ref().map(|socket| socket.to_str());
    let (Some(sack), Some(go_back_n)) = (sack, go_back_n) else {
        return Err("the path of the folder for sockets is not UTF-8".into());
    };
    let wire = vec!["--interface", NEAR];
    let mut servers = vec![
        network.start(LINUX, None, sack, FAR)?,
        network.start(SACK, Some(wire.clone()), sack, FAR)?,
    ];
    let is_flextoe = output.datapath == DatapathKind::FlexToe;
    let (mut senders, mut all) = (SENDERS.to_vec(), &CASES[..]);
    if is_flextoe {
        let wire = [wire, vec!["--go-back-n"]].concat();
        servers.push(network.start(GO_BACK_N, Some(wire), go_back_n, FAR)?);
    } else {
        (senders, all) = (vec![SENDERS[0], output.datapath.name()], &OTHER_CASES[..]);
    }
    let mut cases = Map::new();
    let mut headline = Map::new();
    // Per sender, bytes per second with few losses and without any.
    let mut kept = Vec::new();
    for (name, loss, role, connections, depth) in all.iter().copied() {
        let mut rates = vec![Vec::new(); servers.len()];
        for seed in 0..seeds {
            for at in balanced_order(SEED, seed.into(), servers.len()) {
                let server = &servers[at];
                // Connections are established without losses.
                relay.ask("0 0")?;
                let load = Load {
                    role,
                    connections,
                    depth,
                    is_demoted: false,
                    warm_up: WARM_UP,
                    measured: output.chunk_seconds,
                };
                let losing = format!("{seed} {loss}");
                let chunk =
                    network.measure_between(server, &load, || relay.ask(&losing).map(drop))?;
                let [segments, lost] = relay.ask("0 0")?[..] else {
                    return Err("the bench's cable returned no counts".into());
                };
                let rate = chunk.count / chunk.seconds;
                say!(
                    "loss {name} {}/{seeds} {}: {rate:.0} {}/s, {lost} of {segments} segments lost",
                    seed + 1,
                    senders[at],
                    if role == Role::Echo { "requests" } else { "bytes" },
                );
                rates[at].push(rate);
            }
        }
        let rates: Vec<_> = rates.into_iter().map(PerRound::from_iter).collect();
        let mut case = json!({ "loss": loss, "connections": connections, "depth": depth });
        for (sender, ours) in senders.iter().zip(&rates) {
            case[format!("{sender}_per_second")] = ours.spread();
            if *sender != SENDERS[0] {
                headline.insert(format!("{sender}_ratio_{name}"), ours.over(&rates[0]).estimate());
            }
        }
        cases.insert(name.to_owned(), case);
        if name.starts_with("bulk_0") {
            kept.push(rates);
        }
    }
    if let [lossy, lossless] = &kept[..] {
        for ((sender, lossy), lossless) in senders.iter().zip(lossy).zip(lossless) {
            headline.insert(format!("{sender}_kept_0_1"), lossy.over(lossless).estimate());
        }
    }
    let mut result = json!({
        "bench": "tcp loss",
        "seeds": seeds,
        "chunk_seconds": output.chunk_seconds.as_secs_f64(),
        "buffer_bytes": BUFFER_BYTES,
        "cases": cases,
    });
    if let Some(members) = result.as_object_mut() {
        members.append(&mut headline);
    }
    Ok(result)
}
