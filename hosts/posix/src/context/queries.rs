//! Queries to the agent about one connection.

use std::net::SocketAddr;

use wave_tcp::context::{Request, TcpInfo};

use super::Context;
use crate::agent_window::Queues;
use crate::socket::{Phase, Socket};

impl<Q: Queues> Context<Q> {
    /// Asks the agent for a connection's state: [`Context::tcp_info`] returns the answer.
    pub fn query_tcp_info(&mut self, name: u32) {
        let socket = self.socket(name);
        socket.tcp_info = None;
        if let Some(flow) = socket.flow() {
            self.outbox.push_back(Request::QueryTcpInfo { flow });
        }
        self.flush();
    }

    /// The answer to [`Context::query_tcp_info`], once it has arrived: `Some(None)` if the connection no longer exists.
    pub fn tcp_info(&mut self, name: u32) -> Option<Option<TcpInfo>> {
        let socket = self.socket(name);
        match socket.flow() {
            Some(_) => socket.tcp_info.map(Some),
            None => Some(None),
        }
    }

    /// Asks the agent for the local address of a connection that is not established yet: [`Context::local_address`] returns the answer.
    pub fn query_local_address(&mut self, name: u32) {
        self.outbox.push_back(Request::QueryLocalAddress { socket: name });
        self.flush();
    }

    /// A connection's local address, once it is known. Its port is 0 if the connection has failed before.
    pub fn local_address(&mut self, name: u32) -> Option<SocketAddr> {
        let Socket { phase, local, .. } = *self.socket(name);
        (phase != Phase::Connecting || local.port() != 0).then_some(local)
    }
}
