//! Connections of which other processes may have a descriptor: the agent must know their exact positions whenever this process is
//! in no call (docs/adr/0104).

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use wave_links::socket::SocketError;
use wave_tcp::context::Request;

use super::Context;
use crate::agent_window::{AgentWindow, Queues};
use crate::socket::Phase;

/// A connection, as every process that has a descriptor of it can name it to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The agent's name for the connection when it was first shared.
    pub flow: u64,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
}

impl<Q: Queues> Context<Q> {
    /// The identity of an established connection.
    pub fn identity(&self, name: u32) -> Option<Identity> {
        let socket = self.peek(name)?;
        let flow = socket.flow()?.to_word();
        Some(Identity { flow, local: socket.local, remote: socket.remote })
    }

    /// From now on, the agent is told of all reads and writes of a connection before this process leaves
    /// ([`Context::leave_shared`]).
    pub fn share_connection(&mut self, name: u32) {
        self.shares = true;
        let socket = self.socket(name);
        socket.is_shared = true;
        self.mark_dirty(name);
    }

    /// The port of 127.0.0.1 at which processes make connections of this agent streams of the kernel's, once the agent has answered the
    /// last [`Context::send_shared`]; 0 is none.
    pub fn door(&self) -> Option<u16> {
        self.door
    }

    /// Whether any connection is, or was, shared.
    pub fn shares(&self) -> bool {
        self.shares && !self.is_dead
    }

    /// Handles the news that a connection belongs to another process, or to the kernel.
    pub(super) fn on_taken_away(&mut self, name: u32, phase: Phase) {
        let Some(socket) = self.find(name) else { return };
        if socket.phase == Phase::Ended {
            // The agent has found nothing to take away. What has arrived can still be read here.
            return;
        }
        socket.phase = phase;
        let is_closed = socket.is_closed;
        self.change(name);
        if is_closed && phase == Phase::Taken {
            self.release(name);
        }
    }
}

impl Context<AgentWindow> {
    /// Sends the agent a message about shared connections, with descriptors.
    ///
    /// # Errors
    /// The agent has gone, or has no room for the message at present.
    pub fn send_shared(&mut self, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        self.queues.send_descriptors(text, fds)?;
        self.door = None;
        self.outbox.push_back(Request::Placeholders);
        self.flush();
        Ok(())
    }

    /// Begins a call that may use shared connections. Returns false if the agent has taken one away: then process events, and try
    /// again.
    pub fn enter_shared(&mut self) -> bool {
        if self.queues.enter() == self.demotions {
            return true;
        }
        self.queues.leave();
        false
    }

    /// Ends such a call: tells the agent of everything that was read and written. Returns false if the queue has no room: then
    /// call it again.
    pub fn leave_shared(&mut self) -> bool {
        debug_assert!(
            self.queues.is_inside(),
            "the agent could have taken a connection away meanwhile"
        );
        self.flush();
        if self.has_unsent() && !self.is_dead {
            return false;
        }
        self.queues.leave();
        true
    }
}
