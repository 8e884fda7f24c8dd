//! Whether a socket can be read or written.

use std::io;

use rustix::io::Errno;

use super::Context;
use crate::agent_window::Queues;
use crate::socket::Phase;

impl<Q: Queues> Context<Q> {
    /// Bytes that can be read, 0 at the end of the stream; `None` while a read would wait.
    pub fn readable(&mut self, name: u32) -> Option<io::Result<u64>> {
        let socket = self.socket(name);
        let receiving = &socket.receiving;
        match (receiving.available(), socket.error) {
            // Bytes received before a shutdown can still be read, as on Linux.
            (0, _) if receiving.is_shut || receiving.is_at_end() => Some(Ok(0)),
            (0, Some(errno)) => Some(Err(io::Error::from_raw_os_error(errno))),
            (0, None) => None,
            (available, _) => Some(Ok(available)),
        }
    }

    /// Bytes that can be written; `None` while a write would wait.
    pub fn writable(&mut self, name: u32) -> Option<io::Result<u64>> {
        let socket = self.socket(name);
        match (socket.phase, socket.error) {
            (_, Some(errno)) => Some(Err(io::Error::from_raw_os_error(errno))),
            _ if socket.sending.is_finished => Some(Err(Errno::PIPE.into())),
            (Phase::Open(_), None) => Some(socket.sending.room()).filter(|room| *room > 0).map(Ok),
            _ => None,
        }
    }
}
