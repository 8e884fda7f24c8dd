//! The end of a handshake: establishing the connection.

use wave_core::clock::Nanos;

use super::super::connection::Connection;
use super::super::rtt::RoundTrip;
use super::super::shares::Kind;
use super::super::{Call, Slot, Stack};
use super::{Handshake, MSS_DEFAULT, MSS_MIN, Opener, TIMESTAMP_BYTES};
use crate::congestion::Congestion;
use crate::context::{Event, Reason};
use crate::datapath::{
    Datapath, Established, Fin, FlowId, Limits, Receiving, Sending, Timestamps, Tuple,
};
use crate::trace::Point;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Measures the first round trip: our SYN was acknowledged. A SYN that was sent twice measures nothing (Karn's rule; RFC
    /// 6298, 5.7).
    pub(super) fn measure_handshake(&mut self, now: Nanos, flow: FlowId, handshake: &Handshake) {
        if let Some(connection) = &mut self.connections[flow.index as usize] {
            match handshake.tries {
                _ if handshake.is_acknowledged() && handshake.is_rtt_ambiguous => {}
                _ if handshake.is_acknowledged() => connection.round_trip.sample(handshake.syn_rtt),
                1 if handshake.is_rtt_ambiguous => {}
                1 => connection.round_trip.sample(now.since(handshake.sent_at)),
                _ => connection.round_trip = RoundTrip::after_lost_syn(),
            }
        }
    }

    /// Completes a handshake, and installs the connection in the data path. `id` is the handshake's place in the table;
    /// `None` if a cookie carried it. Returns `None` if there is no slot or room.
    pub(super) fn establish(
        &mut self,
        now: Nanos,
        id: Option<FlowId>,
        handshake: &Handshake,
        tuple: &Tuple,
        window: u32,
        recent: Option<(u32, u32)>,
    ) -> Option<FlowId> {
        let (context, slot, at) = match handshake.opener {
            Opener::Host { context, slot } => (context, slot, None),
            Opener::Listener { process, name } => {
                let own = self.listener_named(process, name)?;
                let at = match self.listeners[own].slots.is_empty() {
                    false => own,
                    // Another listener that shares the port may have a slot, for instance because this one leaves connections
                    // to others.
                    true => self.choose_listener(tuple.local).unwrap_or(own),
                };
                if !self.has_room(self.listeners[at].context.process, Kind::Connection) {
                    // The same as without a slot.
                    self.counters.beyond_share += 1;
                    return None;
                }
                // Connections on offer are older.
                let is_next = !self.has_offer_for(at);
                let listener = &mut self.listeners[at];
                let Some(slot) = is_next.then(|| listener.slots.pop_front()).flatten() else {
                    // The peer considers itself connected. Until there is a slot, we acknowledge none of its data, and our
                    // SYN-ACK is retransmitted.
                    self.counters.overflows += 1;
                    return None;
                };
                (listener.context, slot, Some(at))
            }
        };
        let Slot { socket, receive, send, filled } = slot;
        // Another slot may have a smaller ring than the one whose window was advertised.
        let edge = u32::from(handshake.own_window(true)).min(slot.window_bytes());
        let has_scale = handshake.options.scale.is_some();
        let stamps = handshake.options.timestamps.is_some();
        let theirs = handshake.options.mss.unwrap_or(MSS_DEFAULT).max(MSS_MIN);
        let mss =
            theirs.min(self.own_mss(tuple, handshake)) - if stamps { TIMESTAMP_BYTES } else { 0 };
        let congestion = Congestion::new(self.algorithm, mss);
        let recent = recent.or(handshake.options.timestamps);
        let established = Established {
            tuple: *tuple,
            peer_mac: handshake.mac,
            context,
            socket,
            sending: Sending {
                ring: send,
                base: handshake.iss.plus(1),
                acknowledged: 0,
                sent: 0,
                written: 0,
                edge: window.into(),
                fin: Fin::No,
                scale: handshake.options.scale.unwrap_or(0),
                mss,
                filled: 0,
            },
            receiving: Receiving {
                ring: receive,
                base: handshake.irs.plus(1),
                received: 0,
                read: 0,
                edge: edge.into(),
                intervals: Default::default(),
                fin: None,
                scale: if has_scale { handshake.scale } else { 0 },
                filled,
            },
            timestamps: stamps.then(|| Timestamps {
                recent: recent.map_or(0, |(value, _)| value),
                offset: self.secrets.timestamp_offset(tuple),
            }),
            sack_permitted: handshake.options.sack_permitted,
            ecn: handshake.ecn.outcome(self.algorithm.echo()),
            is_eager: false,
            limits: Limits { window_bytes: congestion.window(), ..Limits::default() },
        };
        if let Some(id) = id {
            self.drop_handshake(id);
        }
        let Ok(flow) = self.install(now, &established) else {
            self.counters.full += 1;
            let call = at.map_or(Call::Connect, |_| Call::Accept);
            self.refused(context, call, Reason::NoRoom);
            self.notify(context, Event::Failed { socket, reason: Reason::NoRoom });
            return None;
        };
        self.acquire_share(context.process, Kind::Connection);
        let listener = at.map(|at| {
            self.listeners[at].unaccepted += 1;
            self.listeners[at].name
        });
        let values = [mss.into(), established.ecn.is_some().into()];
        self.trace.put(now, Point::Established, Some(flow), values);
        let mut connection = Connection::new(now, flow, &established, listener, congestion);
        connection.arrived = handshake.arrived.unwrap_or_else(|| {
            self.arrivals = self.arrivals.saturating_add(1);
            self.arrivals
        });
        self.connections[flow.index as usize] = Some(connection);
        Some(flow)
    }

    /// Our side's limit of a segment in bytes, options included.
    pub(super) fn own_mss(&self, tuple: &Tuple, handshake: &Handshake) -> u16 {
        self.address.mss(tuple.remote.ip()).min(handshake.mss_max.max(MSS_MIN))
    }

    pub(super) fn report_established(&mut self, flow: FlowId) {
        let Some(connection) = &self.connections[flow.index as usize] else { return };
        let (context, socket, mss) = (connection.context, connection.socket, connection.mss);
        let event = match connection.listener {
            Some(listener) => {
                self.counters.passive_opens += 1;
                Event::Accepted { listener, socket, flow, remote: connection.tuple().remote, mss }
            }
            None => Event::Connected { socket, flow, local: connection.tuple().local, mss },
        };
        self.notify(context, event);
    }
}
