//! Connections in the pipeline: their entries in tables, and their first and last registers.

use core::net::SocketAddr;

use wave_rmt::Gress;
use wave_rmt::table::{Entry, Key};

use super::datapath::{Beside, Passes};
use super::fields::*;
use super::{CONTEXTS, ingress};
use crate::datapath::{Established, Fin, FlowId, NoRoom, Ring, Tuple};
use crate::seq::seq_of;

/// The key of a connection in the pipeline's table; `None` for IPv6.
fn key(tuple: &Tuple) -> Option<Key> {
    let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (tuple.local, tuple.remote) else {
        return None;
    };
    let mut key = Key::default();
    let ports = u32::from(remote.port()) << 16 | u32::from(local.port());
    key[..3].copy_from_slice(&[remote.ip().to_bits(), local.ip().to_bits(), ports]);
    Some(key)
}

fn entry(action: u8, words: [u32; 3]) -> Entry {
    let mut data = [0; 8];
    data[..3].copy_from_slice(&words);
    Entry { action: action.into(), data }
}

impl Passes {
    /// Writes what the ingress needs of a connection.
    pub(super) fn write_peer(&mut self, id: FlowId, scale: u8) {
        let Beside { context, behind_max, ack_behind_max, .. } = *self.beside(id);
        let entry = entry(scale, [context, behind_max, ack_behind_max]);
        let table = ingress::PEER_TABLE;
        let written = self.machine.state.set(Gress::Ingress, table, id.index, Some(entry));
        debug_assert_eq!(written, Ok(()), "the table has a place for each connection");
    }

    /// Writes a connection's entries and registers.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn add(&mut self, id: FlowId, established: &Established) -> Result<(), NoRoom> {
        let Established { tuple, context, sending, receiving, limits, .. } = established;
        if id.index as usize >= self.flows.len() {
            return Err(NoRoom);
        }
        let behind_max = receiving.ring.bytes;
        let window_max = sending.edge.saturating_sub(sending.acknowledged) as u32;
        let ack_behind_max = window_max.max(sending.mss.into());
        let context = (u32::from(context.process) << 6 | u32::from(context.context)) % CONTEXTS;
        *self.beside(id) = Beside { context, behind_max, ack_behind_max, ..Beside::default() };
        self.write_peer(id, sending.scale);
        let state = &mut self.machine.state;
        if let Some(key) = key(tuple) {
            let entry = entry(0, [id.index, 0, 0]);
            state.insert(Gress::Ingress, ingress::LOOKUP_TABLE, key, entry).map_err(|_| NoRoom)?;
        }
        let at = |position| seq_of(receiving.base, position).0;
        let limit = Ring::limit(receiving.ring.bytes, receiving.read, receiving.filled);
        // A FIN that has come takes a number of its own.
        let is_past_fin = receiving.fin == Some(receiving.received);
        self.beside(id).is_past_fin = is_past_fin;
        let window = [receiving.received, receiving.edge.min(limit)]
            .map(|position| at(position + u64::from(is_past_fin)));
        let (head, tail) = receiving.intervals[0];
        let offset = |position: u64| position.saturating_sub(receiving.received) as u32;
        let has_fin = matches!(sending.fin, Fin::Sent | Fin::Acknowledged);
        let una = sending.acknowledged + u64::from(sending.fin == Fin::Acknowledged);
        let sent = sending.sent + u64::from(has_fin);
        let credits = limits.window_bytes.wrapping_sub((sent - una) as u32);
        for (register, value) in [
            (RX_LANDED, window),
            (RX_WINDOW, window),
            (RX_OOO_TAIL, [offset(tail), 0]),
            (RX_OOO_HEAD, [offset(head), 0]),
            (TX_WINDOW, [seq_of(sending.base, una).0, seq_of(sending.base, sent).0]),
            (TX_DUPACKS, [0, 0]),
            (TX_CREDITS, [credits, 0]),
            (TX_REMOTE_AVAIL, [sending.edge.saturating_sub(una) as u32, 0]),
            (ACKED_BYTES, [0, 0]),
            (MARKED_BYTES, [0, 0]),
            (FAST_RETRANSMITS, [0, 0]),
        ] {
            self.write(register, id, value);
        }
        Ok(())
    }

    /// Removes a connection's entries.
    pub(super) fn clear(&mut self, id: FlowId, established: &Established) {
        let state = &mut self.machine.state;
        if let Some(key) = key(&established.tuple) {
            state.remove(Gress::Ingress, ingress::LOOKUP_TABLE, &key);
        }
        let cleared = state.set(Gress::Ingress, ingress::PEER_TABLE, id.index, None);
        debug_assert_eq!(cleared, Ok(()), "an installed connection has an entry");
    }

    /// A connection's state with the interval out of order, which only registers hold.
    pub(super) fn with_interval(&self, id: FlowId, established: Established) -> Established {
        let mut complete = established;
        let [head, tail] =
            [RX_OOO_HEAD, RX_OOO_TAIL].map(|register| u64::from(self.read(register, id)[0]));
        let received = complete.receiving.received;
        if tail > 0 {
            complete.receiving.intervals[0] = (received + head, received + tail);
        }
        complete
    }
}
