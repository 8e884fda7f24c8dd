//! Questions to the agent about one connection.

use std::net::SocketAddr;

use wave_tcp::context::{Known, Request};

use super::Context;
use crate::line::Queues;
use crate::socket::{Phase, Socket};

impl<Q: Queues> Context<Q> {
    /// Asks the agent for a connection's state: [`Context::known`] returns the answer.
    pub fn inquire(&mut self, name: u32) {
        let socket = self.socket(name);
        socket.known = None;
        if let Some(flow) = socket.flow() {
            self.outbox.push_back(Request::Inquire { flow });
        }
        self.flush();
    }

    /// The answer to [`Context::inquire`], once it has arrived: `Some(None)` if the connection no longer exists.
    pub fn known(&mut self, name: u32) -> Option<Option<Known>> {
        let socket = self.socket(name);
        match socket.flow() {
            Some(_) => socket.known.map(Some),
            None => Some(None),
        }
    }

    /// Asks the agent for the local address of a connection that is not established yet: [`Context::located`] returns the answer.
    pub fn locate(&mut self, name: u32) {
        self.outbox.push_back(Request::Locate { socket: name });
        self.flush();
    }

    /// A connection's local address, once it is known. Its port is 0 if the connection has failed before.
    pub fn located(&mut self, name: u32) -> Option<SocketAddr> {
        let Socket { phase, local, .. } = *self.socket(name);
        (phase != Phase::Connecting || local.port() != 0).then_some(local)
    }
}
