//! The report that `wave tcp ss` shows, as JSON: connections with the columns of `ss -ti`, and counters by Linux's names.

use serde_json::{Value, json};
use wave_core::clock::Nanos;
use wave_tcp::congestion::ONE;
use wave_tcp::context::demotion;
use wave_tcp::control::{SocketInfo, Stack};
use wave_tcp::datapath::{Fin, FlowId};
use wave_wires::Frame;

use crate::admitted::AdmissionCounters;
use crate::captures::CaptureCounters;
use crate::front_datapath::FrontDatapath;
use crate::streams::Counts;

/// Reports the state of a stack. `pid_of` gives the process id of a process's number, `served_by` what serves a connection.
pub(crate) fn report<D: FrontDatapath>(
    stack: &Stack<Frame, D>,
    captured: CaptureCounters,
    (admission, shared): (AdmissionCounters, Counts),
    refusals: Value,
    pid_of: impl Fn(u16) -> Option<i32>,
    served_by: impl Fn(FlowId) -> &'static str,
) -> Value {
    let mut sockets = Vec::new();
    stack.visit_sockets(&mut |shown| sockets.push(socket(shown, &pid_of, &served_by)));
    let address = stack.address();
    json!({
        "address": format!("{}/{}", address.ip, address.prefix),
        "address6": address.v6.map(|home| format!("{}/{}", home.ip, home.prefix)),
        "mtu": address.mtu,
        "groups": stack.data.threads().max(1),
        "datapath": stack.data.name(),
        "congestion": stack.congestion().name(),
        "sockets": sockets,
        "counters": counters(stack, admission, shared),
        "meanings": meanings(stack),
        "refusals": refusals,
        "captured": { "frames": captured.frames, "dropped": captured.dropped },
    })
}

fn socket(
    shown: &SocketInfo,
    pid_of: impl Fn(u16) -> Option<i32>,
    served_by: impl Fn(FlowId) -> &'static str,
) -> Value {
    let micros = |time: Nanos| time.0 as f64 / 1e3;
    let mut row = json!({
        "state": shown.state.to_string(),
        "recv_q": shown.queues.0,
        "send_q": shown.queues.1,
        "local": shown.local.to_string(),
        "peer": shown.remote.map(|remote| remote.to_string()),
        "pid": shown.context.and_then(|context| pid_of(context.process)),
    });
    if let Some((flow, state)) = &shown.established {
        let (sending, receiving) = (&state.sending, &state.receiving);
        row["flow"] = json!(flow.to_string());
        row["served_by"] = json!(served_by(*flow));
        row["mss"] = json!(sending.mss);
        row["bytes_sent"] = json!(sending.sent);
        row["bytes_acked"] = json!(sending.acknowledged);
        row["bytes_received"] = json!(receiving.received);
        row["unacked_bytes"] = json!(sending.sent - sending.acknowledged);
        row["peer_window_bytes"] = json!(sending.edge.saturating_sub(sending.acknowledged));
        row["window_bytes"] = json!(receiving.edge.saturating_sub(receiving.received));
        row["wscale"] = json!([sending.scale, receiving.scale]);
        row["timestamps"] = json!(state.timestamps.is_some());
        row["sack"] = json!(state.sack_permitted);
        row["ecn"] = json!(state.ecn.is_some());
        row["pacing_rate"] = json!(state.limits.bytes_per_second);
        // The connection's neutral state, except sequence numbers and timestamp offsets, with which strangers could forge
        // segments.
        let fin = match sending.fin {
            Fin::No => "no",
            Fin::Wanted => "wanted",
            Fin::Sent => "sent",
            Fin::Acknowledged => "acknowledged",
        };
        let intervals = receiving.intervals.iter().filter(|(from, to)| from < to);
        row["bytes_written"] = json!(sending.written);
        row["bytes_read"] = json!(receiving.read);
        row["out_of_order"] = json!(intervals.collect::<Vec<_>>());
        row["fin"] = json!(fin);
        row["peer_fin"] = json!(receiving.fin);
        row["eager"] = json!(state.is_eager);
        row["ecn_echo"] = json!(state.ecn.map(|ecn| ecn.is_echoing));
        row["ring_bytes"] = json!([receiving.ring.bytes, sending.ring.bytes]);
    }
    if let Some((mean, variation)) = shown.round_trip {
        row["rtt_us"] = json!(micros(mean));
        row["rttvar_us"] = json!(micros(variation));
    }
    if let Some(timeout) = shown.timeout {
        row["rto_ms"] = json!(timeout.0 as f64 / 1e6);
    }
    if let Some((window, threshold)) = shown.congestion {
        row["cwnd_bytes"] = json!(window);
        row["ssthresh_bytes"] = json!(threshold);
    }
    if let Some(alpha) = shown.alpha {
        row["dctcp_alpha"] = json!(f64::from(alpha) / f64::from(ONE));
    }
    row
}

/// What the data path's counters count.
fn meanings<D: FrontDatapath>(stack: &Stack<Frame, D>) -> Value {
    let mut all = serde_json::Map::new();
    stack.data.visit_counters(&mut |counter, _| {
        all.insert(counter.name.to_owned(), json!(counter.about));
    });
    Value::Object(all)
}

/// Counters of the data path and the control plane. A dot in the name of one of the data path's separates the name of its group.
fn counters<D: FrontDatapath>(
    stack: &Stack<Frame, D>,
    admission: AdmissionCounters,
    shared: Counts,
) -> Value {
    let control = stack.counters();
    let mut all = json!({
        "OutRsts": control.stranger_resets,
        "ActiveOpens": control.active_opens,
        "PassiveOpens": control.passive_opens,
        "AttemptFails": control.attempts_failed,
        "EstabResets": control.resets,
        "ListenOverflows": control.overflows,
        "TCPReqQFullDrop": control.full,
        "TCPAbortOnTimeout": control.timed_out,
        "TCPChallengeACK": control.challenges,
        "TCPKeepAlive": control.keep_alives,
        "path_mtu_reductions": control.path_mtu_reductions,
        "SyncookiesSent": control.cookies_sent,
        "SyncookiesRecv": control.cookies_received,
        "SyncookiesFailed": control.cookies_failed,
        "IcmpInEchos": control.echoes,
        "IcmpOutDestUnreachs": control.ports_unreachable,
        "answers_held_back": control.held_back,
        "duplicate_addresses": control.duplicate_addresses,
        "orphans_reset": control.orphans_reset,
        "packets_astray": stack.data.astray(),
        "programs": {
            "turned_away_at_the_door": admission.refused_offers,
            "windows_beyond_share": admission.over_share,
            "turned_out": admission.evicted,
            "connections_and_listeners_beyond_share": control.beyond_share,
            "rings_beyond_share": admission.rings,
            "connections_without_memory": control.without_memory,
        },
    });
    stack.data.visit_counters(&mut |counter, count| {
        let place = counter.name.split('.').fold(&mut all, |group, name| &mut group[name]);
        // Both planes may count the same, such as resets.
        *place = json!(place.as_u64().unwrap_or(0) + count);
    });
    let by_cause = demotion::Cause::ALL.iter().zip(shared.demoted);
    let by_cause: serde_json::Map<String, Value> =
        by_cause.map(|(cause, count)| (cause.name().to_owned(), json!(count))).collect();
    all["demoted"] = json!(shared.demoted.iter().sum::<u64>());
    all["demoted_by"] = Value::Object(by_cause);
    all["shared_connections_reset"] = json!(shared.torn);
    all
}
