//! Taking over connections from another process: a child of fork(2) takes over its parent's (docs/adr/0068), and the receiver of a
//! descriptor takes over the connection that was lent for it (docs/adr/0078).

use wave_tcp::context::{FILL_MAX, Request};
use wave_tcp::datapath::FlowId;

use super::Context;
use crate::agent_window::Queues;
use crate::socket::{Checkpoint, Phase, Socket};

impl<Q: Queues> Context<Q> {
    /// Tells the agent the secret of this process's family.
    pub fn join(&mut self, secret: u128) {
        self.outbox.push_back(Request::Join { secret });
        self.flush();
    }

    /// Lets any process that joins the family with this secret take over a connection of this process or its family. The request is sent
    /// with the next flush.
    pub fn lend(&mut self, flow: u64, secret: u128) {
        self.lending += 1;
        self.outbox.push_back(Request::Lend { flow: FlowId::from_word(flow), secret });
    }

    /// Whether the agent has confirmed all lent connections.
    pub fn has_lent(&self) -> bool {
        self.lending == 0
    }

    /// The state that another process needs to take over this connection. `None` if it cannot be taken over: it is not established, has
    /// ended, or has used more of its rings than is handed over.
    pub fn checkpoint(&self, name: u32) -> Option<Checkpoint> {
        self.peek(name)?.checkpoint()
    }

    /// Requests a connection of another process. [`Context::connected`] returns the result. `None` if there is no memory for its rings.
    pub fn take_over(&mut self, checkpoint: &Checkpoint) -> Option<u32> {
        let Checkpoint { local, remote, .. } = *checkpoint;
        let name = self.insert(Phase::Connecting, local, remote)?;
        let Socket { receiving, sending, .. } = self.socket(name);
        let (receive, send, has) = (receiving.ring, sending.ring, receiving.filled);
        let more = FILL_MAX.saturating_sub(has);
        let filled = self
            .queues
            .populate(receive.offset + u64::from(has), more)
            .and_then(|()| self.queues.populate(send.offset, FILL_MAX));
        if filled.is_err() || FILL_MAX > receive.bytes.min(send.bytes) {
            self.release(name);
            return None;
        }
        let socket = self.socket(name);
        socket.is_accepted = true;
        socket.resume(checkpoint, FILL_MAX);
        let (read, written) = (socket.receiving.read, socket.sending.written);
        let flow = checkpoint.flow;
        self.outbox.push_back(Request::Take { flow, socket: name, receive, send, read, written });
        self.flush();
        Some(name)
    }
}
