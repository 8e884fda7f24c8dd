//! Connections that are held for whoever uses them next: several processes have descriptors of them, and the agent feeds a stream
//! of the kernel's from them (docs/adr/0104).

use serde::{Deserialize, Serialize};

use super::connection::Connection;
use super::{GoneProcess, Stack};
use crate::context::demotion::Shut;
use crate::context::{ContextId, Filled, LastReads};
use crate::datapath::{Datapath, Fin, FlowId, Ring};

/// A held connection, as it was when it was taken from its process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HeldFlow {
    /// The connection.
    pub flow: FlowId,
    /// The context in whose memory its rings lie.
    pub context: ContextId,
    /// That context's name for the connection.
    pub socket: u32,
    /// Receive ring and send ring.
    pub rings: [Ring; 2],
    /// How much of the rings has memory.
    pub filled: Filled,
    /// Position up to which bytes have arrived.
    pub received: u64,
    /// Position up to which bytes were read.
    pub read: u64,
    /// Position up to which bytes are in the send ring.
    pub written: u64,
    /// Position up to which the peer has acknowledged.
    pub acknowledged: u64,
    /// The peer's stream ends at `received`.
    pub has_peer_ended: bool,
    /// Our stream ends at `written`.
    pub has_ended: bool,
    /// The program reads no more.
    pub is_read_shut: bool,
}

impl HeldFlow {
    /// Directions that its program has shut down.
    pub fn shut(&self) -> Shut {
        Shut { read: self.is_read_shut, write: self.has_ended }
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// The process and the name of a connection that its process has not closed.
    pub fn owner(&self, flow: FlowId) -> Option<(ContextId, u32)> {
        let connection = self.peek(flow).filter(|one| one.has_host())?;
        Some((connection.context, connection.socket))
    }

    /// Holds a connection: it stays as it is when its process goes. `None` if the process has closed it, or it is changing hands.
    pub fn hold(&mut self, flow: FlowId) -> Option<HeldFlow> {
        if self.is_changing_owner(flow) {
            return None;
        }
        let connection = self.connection(flow).filter(|one| one.has_host())?;
        connection.is_held = true;
        let (context, socket, filled) = (connection.context, connection.socket, connection.filled);
        let Connection { read_reported, written_reported, shut_reported, .. } = *connection;
        let state = self.data.inspect(flow)?;
        Some(HeldFlow {
            flow,
            context,
            socket,
            rings: [state.receiving.ring, state.sending.ring],
            filled,
            received: state.receiving.received,
            read: state.receiving.read.max(read_reported),
            written: state.sending.written.max(written_reported),
            acknowledged: state.sending.acknowledged,
            has_peer_ended: state.receiving.fin == Some(state.receiving.received),
            has_ended: state.sending.fin != Fin::No || shut_reported.write,
            is_read_shut: shut_reported.read,
        })
    }

    /// Ends the hold on a connection whose process has gone, as if that process had gone only now.
    pub fn release_hold(&mut self, flow: FlowId) {
        let Some(connection) = self.connection(flow) else { return };
        connection.is_held = false;
        let process = connection.context.process;
        if let Some(at) = self.lingering.iter().position(|one| *one == process) {
            self.lingering.swap_remove(at);
            self.gone.push_back(GoneProcess { process, next: 0, reads: LastReads::default() });
        } else if let Some(gone) = self.gone.iter_mut().find(|gone| gone.process == process) {
            // Its connections are being closed, perhaps from a later one on.
            gone.next = 0;
        }
    }
}
