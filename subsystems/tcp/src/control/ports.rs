//! Local ports of outgoing connections (RFC 6056, algorithm 3).

use core::net::SocketAddr;

use super::Stack;
use super::secrets::EPHEMERAL_PORTS;
use crate::context::Reason;
use crate::datapath::{Datapath, Tuple};

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Chooses both ends of a connection to `remote`: from `local_port`, or from any free port if that is 0.
    pub(super) fn free_tuple(
        &mut self,
        remote: SocketAddr,
        local_port: u16,
    ) -> Result<Tuple, Reason> {
        let own = self.address.local_for(remote.ip()).ok_or(Reason::Unreachable)?;
        let end = |port| Tuple { local: SocketAddr::new(own, port), remote };
        let is_free = |stack: &Self, tuple: &Tuple| {
            stack.data.find(tuple).is_none()
                && stack.handshakes.find(tuple).is_none()
                && !stack.time_wait.contains(tuple)
        };
        if local_port != 0 {
            let tuple = end(local_port);
            return if is_free(self, &tuple) { Ok(tuple) } else { Err(Reason::AddressInUse) };
        }
        let range = u32::from(EPHEMERAL_PORTS.end - EPHEMERAL_PORTS.start);
        for _ in 0..range {
            let tuple = end(self.secrets.candidate_port(&end(0), self.ports_tried));
            self.ports_tried = self.ports_tried.wrapping_add(1);
            if is_free(self, &tuple) {
                return Ok(tuple);
            }
        }
        Err(Reason::AddressNotAvailable)
    }
}
