//! What a stack shows of its connections and listeners, for `wave tcp ss`.

use core::fmt;
use core::net::SocketAddr;

use wave_core::clock::Nanos;

use super::connection::Connection;
use super::listeners::has_secret;
use super::{Listener, Stack};
use crate::context::{ContextId, Event, TcpInfo};
use crate::datapath::{Datapath, Established, FlowId};

/// A connection's state (RFC 9293, 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A listener waits for connections.
    Listen,
    /// Our SYN was sent.
    SynSent,
    /// The peer has sent its SYN, too.
    SynReceived,
    /// Both ends may send.
    Established,
    /// We have ended our stream.
    FinWait1,
    /// Our FIN was sent and acknowledged.
    FinWait2,
    /// The peer has ended its stream.
    CloseWait,
    /// Both ends sent a FIN at once.
    Closing,
    /// We have ended our stream after the peer's.
    LastAck,
    /// Both streams have ended, and we remember the connection.
    TimeWait,
    /// Both streams have ended, and the host has not closed yet.
    Closed,
}

impl fmt::Display for State {
    /// The state's name as ss(8) prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Listen => "LISTEN",
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECV",
            State::Established => "ESTAB",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
            State::Closed => "CLOSED",
        })
    }
}

/// A connection or a listener.
#[derive(Clone, Copy, Debug)]
pub struct SocketInfo {
    /// State of the connection; [`State::Listen`] for a listener.
    pub state: State,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the peer; `None` for a listener.
    pub remote: Option<SocketAddr>,
    /// The context that owns it, if any.
    pub context: Option<ContextId>,
    /// Of a listener: handshakes under way, and unused slots. Of a connection: bytes that the host has not read, and bytes that
    /// the peer has not acknowledged.
    pub queues: (u64, u64),
    /// Of an established connection: its flow and state in the data path.
    pub established: Option<(FlowId, Established)>,
    /// Smoothed round-trip time and its variation; `None` before the first measurement.
    pub round_trip: Option<(Nanos, Nanos)>,
    /// Retransmission timeout.
    pub timeout: Option<Nanos>,
    /// Congestion window and slow-start threshold, in bytes.
    pub congestion: Option<(u32, u32)>,
    /// DCTCP's estimate of the share of data that meets congestion, in units of 1 / [`ONE`](crate::congestion::ONE).
    pub alpha: Option<u32>,
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Answers a process's [`Request::QueryTcpInfo`](crate::context::Request::QueryTcpInfo) about one of its connections.
    pub(super) fn report_tcp_info(&mut self, context: ContextId, flow: FlowId) {
        let connection = self.connections.get(flow.index as usize).and_then(Option::as_ref);
        let is_own = |one: &&Connection| one.flow == flow && one.context.process == context.process;
        let Some(connection) = connection.filter(is_own) else { return };
        let Some(state) = self.data.inspect(flow) else { return };
        let trip = connection.round_trip;
        let us = |time: Nanos| u32::try_from(time.0 / 1_000).unwrap_or(u32::MAX);
        let unacknowledged = state.sending.written - state.sending.acknowledged;
        let info = TcpInfo {
            socket: connection.socket,
            round_trip_us: trip.smoothed().map_or(0, us),
            variation_us: trip.smoothed().map_or(0, |_| us(trip.variation())),
            timeout_us: us(trip.timeout()),
            mss: connection.mss.into(),
            unacknowledged: u32::try_from(unacknowledged).unwrap_or(u32::MAX),
            window: connection.congestion.window(),
            threshold: connection.congestion.threshold(),
        };
        self.notify(context, Event::TcpInfo(info));
    }

    /// Calls `visit` with all listeners, handshakes, connections, and connections in TIME_WAIT.
    pub fn visit_sockets(&self, visit: &mut dyn FnMut(&SocketInfo)) {
        let bare = |state, local, remote| SocketInfo {
            state,
            local,
            remote,
            context: None,
            queues: (0, 0),
            established: None,
            round_trip: None,
            timeout: None,
            congestion: None,
            alpha: None,
        };
        // Processes keep a place from which nobody accepts, besides their own (docs/adr/0103).
        let is_kept_beside = |listener: &Listener| {
            let mut others = self.listeners.iter();
            listener.slots_max == 0
                && others.any(|one| one.slots_max > 0 && has_secret(listener.sharing, one))
        };
        for listener in self.listeners.iter().filter(|one| !is_kept_beside(one)) {
            let local = self.reported_address(listener.local);
            visit(&SocketInfo {
                context: Some(listener.context),
                queues: (listener.half_open.into(), listener.slots.len() as u64),
                ..bare(State::Listen, local, None)
            });
        }
        for (_, tuple, handshake) in self.handshakes.iter() {
            visit(&bare(handshake.state(), tuple.local, Some(tuple.remote)));
        }
        for connection in self.connections.iter().flatten() {
            let tuple = connection.tuple();
            let Some(state) = self.data.inspect(connection.flow) else { continue };
            let unread = state.receiving.received - state.receiving.read;
            let unacknowledged = state.sending.written - state.sending.acknowledged;
            let trip = connection.round_trip;
            visit(&SocketInfo {
                context: Some(state.context),
                queues: (unread, unacknowledged),
                established: Some((connection.flow, state)),
                round_trip: trip.smoothed().map(|smoothed| (smoothed, trip.variation())),
                timeout: Some(trip.timeout()),
                congestion: Some((
                    connection.congestion.window(),
                    connection.congestion.threshold(),
                )),
                alpha: connection.congestion.alpha(),
                ..bare(connection.state(), tuple.local, Some(tuple.remote))
            });
        }
        for (tuple, _) in self.time_wait.iter() {
            visit(&bare(State::TimeWait, tuple.local, Some(tuple.remote)));
        }
    }
}
