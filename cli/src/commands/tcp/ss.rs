//! `wave tcp ss`: shows the listeners, connections and counters of a running agent.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;

use clap::Args;
use serde_json::Value;
use wave_front_tcp::reports_path;
use wave_terminal::{Failure, Table, print};

use super::{AgentArgs, PATIENCE};

/// Maximum length of an answer: about five times that of some 16,000 connections.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave tcp ss                          a line for each listener and connection, as ss -ti prints them
  wave tcp ss --counters               with counters, under the names of /proc/net/snmp and netstat
  wave tcp ss --json                   everything, as one object

Exit codes: 0 success; 3 no agent answers.")]
pub struct SsArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// Also show counters.
    #[arg(long)]
    counters: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn ss(args: &SsArgs) -> Result<(), Failure> {
    let door = args.agent.socket();
    let report = ask(&door)?;
    if args.json {
        print(format_args!("{report}\n"));
        return Ok(());
    }
    let head = ["State", "Recv-Q", "Send-Q", "Local", "Peer", "pid", "details"];
    let mut table = Table::new(head.len(), head);
    for socket in report["sockets"].as_array().into_iter().flatten() {
        let text = |key: &str| match &socket[key] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        table.push([
            text("state"),
            text("recv_q"),
            text("send_q"),
            text("local"),
            text("peer"),
            text("pid"),
            details(socket),
        ]);
    }
    print(format_args!("{}\n", table.plain()));
    refusals(&report["refusals"]);
    if args.counters {
        print(format_args!("\n"));
        count(&report["counters"], "", &report["meanings"]);
    }
    Ok(())
}

/// Asks the agent with socket `door` for its state.
pub(super) fn ask(door: &std::path::Path) -> Result<Value, Failure> {
    let path = reports_path(door);
    let failed = |error: std::io::Error| {
        let path = path.display();
        let why = match error.kind() {
            ErrorKind::WouldBlock => "no answer within 5 s: is the agent stopped?".into(),
            _ => format!("{error}; start one with `wave tcp up`"),
        };
        Failure::cannot(format!("no agent answers at {path}: {why}"))
    };
    let stream = UnixStream::connect(&path).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(failed)?;
    serde_json::from_slice(&answer)
        .map_err(|error| Failure::cannot(format!("cannot parse the agent's answer: {error}")))
}

/// The details that `ss -ti` prints after the addresses.
fn details(socket: &Value) -> String {
    let keys = [
        ("flow", "flow"),
        ("served_by", "served_by"),
        ("rtt_us", "rtt"),
        ("rto_ms", "rto"),
        ("mss", "mss"),
        ("cwnd_bytes", "cwnd"),
        ("ssthresh_bytes", "ssthresh"),
        ("dctcp_alpha", "alpha"),
        ("pacing_rate", "pacing_rate"),
        ("bytes_sent", "bytes_sent"),
        ("bytes_acked", "bytes_acked"),
        ("bytes_received", "bytes_received"),
        ("unacked_bytes", "unacked"),
        ("peer_window_bytes", "snd_wnd"),
        ("window_bytes", "rcv_wnd"),
    ];
    let shown = keys.iter().filter_map(|(key, name)| match &socket[*key] {
        Value::Null => None,
        // Nearly all connections are served by their process.
        Value::String(text) if *key == "served_by" && text == "process" => None,
        Value::String(text) => Some(format!("{name}:{text}")),
        Value::Number(number) if key.ends_with("_us") => {
            Some(format!("{name}:{:.3}ms", number.as_f64()? / 1e3))
        }
        Value::Number(number) if key.ends_with("_ms") => Some(format!("{name}:{number}ms")),
        value => Some(format!("{name}:{value}")),
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Prints what the agent has lately refused programs, newest first.
fn refusals(refusals: &Value) {
    for (at, refusal) in refusals.as_array().into_iter().flatten().enumerate() {
        let number = |key: &str| refusal[key].as_u64().unwrap_or_default();
        let text = |key: &str| refusal[key].as_str().unwrap_or_default();
        if at == 0 {
            print(format_args!("\nrefused lately:\n"));
        }
        let times = match number("count") {
            0 | 1 => String::new(),
            count => format!(" ({count} times)"),
        };
        print(format_args!(
            "  {} s ago{times}: process {} of user {} {}: {}\n",
            number("seconds_ago"),
            number("pid"),
            number("uid"),
            text("outcome"),
            text("why"),
        ));
    }
}

/// Prints counters other than zero, one per line, those of the data path with their meanings.
fn count(counters: &Value, prefix: &str, meanings: &Value) {
    for (name, value) in counters.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => count(value, &format!("{prefix}{name}."), meanings),
            value if value.as_u64() == Some(0) => {}
            value => {
                let name = format!("{prefix}{name}");
                let meaning = meanings[&name].as_str().map(|meaning| format!("  {meaning}"));
                print(format_args!("{name} {value}{}\n", meaning.unwrap_or_default()));
            }
        }
    }
}
