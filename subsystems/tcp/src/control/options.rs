//! Options of a connection that its host sets, and keep-alives (RFC 9293, 3.8.4 and 3.9.1.9).

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use super::Stack;
use super::connection::{Connection, Timer};
use crate::context::{ContextId, KeepAlive, Reason, SocketOptions};
use crate::datapath::{Command, Datapath, FlowId, Path};

/// The shortest silence that is asked about, so that no host makes its agent flood a peer.
const ASK_AFTER_MIN: Nanos = Nanos::from_millis(1_000);
/// One loss is no sign of a dead peer (RFC 9293, MUST-29).
const PROBES_MIN: u8 = 2;

/// A connection's options in 16 bytes: times in milliseconds, as hosts state them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct KeptOptions {
    /// 0: idle peers are not asked.
    idle_ms: u32,
    interval_ms: u32,
    /// 0: after the usual number of timeouts.
    give_up_ms: u32,
    probes: u8,
    pub diffserv: u8,
    pub hop_limit: u8,
}

impl From<&SocketOptions> for KeptOptions {
    fn from(options: &SocketOptions) -> KeptOptions {
        let millis = |time: Nanos| time.0.div_ceil(1_000_000).clamp(1, u32::MAX.into()) as u32;
        let SocketOptions { keep_alive, give_up_after, diffserv, hop_limit } = *options;
        KeptOptions {
            idle_ms: keep_alive.map_or(0, |keep| millis(keep.idle)),
            interval_ms: keep_alive.map_or(0, |keep| millis(keep.interval)),
            give_up_ms: give_up_after.map_or(0, millis),
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

    pub fn give_up_after(&self) -> Option<Nanos> {
        (self.give_up_ms > 0).then(|| Nanos::from_millis(self.give_up_ms.into()))
    }
}

impl Connection {
    /// How its segments reach the peer.
    pub(super) fn path(&self) -> Path {
        let KeptOptions { diffserv, hop_limit, .. } = self.options;
        Path { mac: self.mac, mss: self.mss, diffserv, hop_limit }
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// A host sets the options of its connection.
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
            idle: keep.idle.max(ASK_AFTER_MIN),
            interval: keep.interval.max(ASK_AFTER_MIN),
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

    /// Chooses what is waited for while nothing is sent.
    pub(super) fn wait_idle(&mut self, now: Nanos, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        let next = connection.idle_timer(now);
        let (timer, at) = next.map_or((Timer::None, None), |(timer, at)| (timer, Some(at)));
        self.timer(flow, timer, at);
    }

    /// The peer was silent for as long as the host allows, or a question was not answered.
    pub(super) fn on_keep_alive(&mut self, now: Nanos, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        let Some(keep) = connection.options.keep_alive() else { return };
        if connection.heard > connection.asked_at {
            connection.keep_alives = 0;
        }
        let due = connection.heard + keep.idle;
        if connection.keep_alives == 0 && due > now {
            return self.timer(flow, Timer::KeepAlive, Some(due));
        }
        if connection.keep_alives >= keep.probes {
            self.counters.timed_out += 1;
            return self.reset(now, flow, Reason::TimedOut);
        }
        connection.keep_alives += 1;
        connection.asked_at = now;
        self.counters.keep_alives += 1;
        self.data.command(now, flow, Command::KeepAlive);
        self.timer(flow, Timer::KeepAlive, Some(now + keep.interval));
    }
}
