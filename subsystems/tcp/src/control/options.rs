//! Connection options set by hosts, and keep-alives (RFC 9293, 3.8.4 and 3.9.1.9).

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use super::Stack;
use super::connection::{Connection, Timer};
use crate::context::{ContextId, KeepAlive, Reason, SocketOptions};
use crate::datapath::{Command, Datapath, FlowId, Path};

/// Shortest idle time and interval of keep-alive probes, so that no host can make its agent flood a peer.
const KEEP_ALIVE_INTERVAL_MIN: Nanos = Nanos::from_millis(1_000);
/// Fewest unanswered probes that end a connection: a single loss does not mean a dead peer (RFC 9293, MUST-29).
const PROBES_MIN: u8 = 2;

/// A connection's options, packed into 16 bytes. Times are in milliseconds, as in hosts' requests.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct KeptOptions {
    /// 0: no keep-alive probes.
    idle_ms: u32,
    interval_ms: u32,
    /// 0: no time limit; the connection is dropped after the default number of timeouts.
    user_timeout_ms: u32,
    probes: u8,
    pub diffserv: u8,
    pub hop_limit: u8,
}

impl From<&SocketOptions> for KeptOptions {
    fn from(options: &SocketOptions) -> KeptOptions {
        let millis = |time: Nanos| time.0.div_ceil(1_000_000).clamp(1, u32::MAX.into()) as u32;
        let SocketOptions { keep_alive, user_timeout, diffserv, hop_limit } = *options;
        KeptOptions {
            idle_ms: keep_alive.map_or(0, |keep| millis(keep.idle)),
            interval_ms: keep_alive.map_or(0, |keep| millis(keep.interval)),
            user_timeout_ms: user_timeout.map_or(0, millis),
            probes: keep_alive.map_or(0, |keep| keep.probes),
            diffserv,
            hop_limit,
        }
    }
}

impl KeptOptions {
    pub fn keep_alive(&self) -> Option<KeepAlive> {
        let [idle, interval] =
            [self.idle_ms, self.interval_ms].map(|ms| Nanos::from_millis(ms.into()));
        (self.idle_ms > 0).then_some(KeepAlive { idle, interval, probes: self.probes })
    }

    pub fn user_timeout(&self) -> Option<Nanos> {
        (self.user_timeout_ms > 0).then(|| Nanos::from_millis(self.user_timeout_ms.into()))
    }
}

impl Connection {
    /// Fields of the link and IP headers of the connection's segments.
    pub(super) fn path(&self) -> Path {
        let KeptOptions { diffserv, hop_limit, .. } = self.options;
        Path { mac: self.mac, mss: self.mss, diffserv, hop_limit }
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Sets the options of a connection for its host.
    pub(super) fn configure(
        &mut self,
        now: Nanos,
        from: ContextId,
        flow: FlowId,
        options: SocketOptions,
    ) {
        let Some(connection) = self.connection(flow) else { return };
        if connection.context.process != from.process || !options.are_valid() {
            return;
        }
        let bounded = options.keep_alive.map(|keep| KeepAlive {
            idle: keep.idle.max(KEEP_ALIVE_INTERVAL_MIN),
            interval: keep.interval.max(KEEP_ALIVE_INTERVAL_MIN),
            probes: keep.probes.max(PROBES_MIN),
        });
        connection.options = (&SocketOptions { keep_alive: bounded, ..options }).into();
        connection.keep_alives = 0;
        let (path, timer) = (connection.path(), connection.timer);
        self.data.set_path(flow, path);
        if matches!(timer, Timer::None | Timer::KeepAlive) {
            self.wait_idle(now, flow);
        }
    }

    /// Sets the timer of an idle connection.
    pub(super) fn wait_idle(&mut self, now: Nanos, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        let next = connection.idle_timer(now);
        let (timer, at) = next.map_or((Timer::None, None), |(timer, at)| (timer, Some(at)));
        self.start_timer(flow, timer, at);
    }

    /// Handles the keep-alive timer: the peer was idle for as long as the host allows, or a probe was not answered.
    pub(super) fn on_keep_alive(&mut self, now: Nanos, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        let Some(keep) = connection.options.keep_alive() else { return };
        if connection.last_segment_at > connection.asked_at {
            connection.keep_alives = 0;
        }
        let due = connection.last_segment_at + keep.idle;
        if connection.keep_alives == 0 && due > now {
            return self.start_timer(flow, Timer::KeepAlive, Some(due));
        }
        if connection.keep_alives >= keep.probes {
            self.counters.timed_out += 1;
            return self.reset(now, flow, Reason::TimedOut);
        }
        connection.keep_alives += 1;
        connection.asked_at = now;
        self.counters.keep_alives += 1;
        self.data.command(now, flow, Command::KeepAlive);
        self.start_timer(flow, Timer::KeepAlive, Some(now + keep.interval));
    }
}
