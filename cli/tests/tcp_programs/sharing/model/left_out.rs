//! What the product does not do as Linux yet. Programs do without it until it does: then a function here goes, with its callers.

use super::{Connection, Model, Object};

impl Model {
    /// A connection that its process has shut down for writing, and that another program would get before it is a stream of the kernel's.
    pub(super) fn is_shut_and_passed_on(&self, connection: usize) -> bool {
        let it = &self.connections[connection];
        it.is_write_shut && !it.is_stream
    }

    /// Whether a process has such a connection.
    pub(super) fn holds_shut(&self, actor: usize) -> bool {
        let actor = self.actors[actor].iter();
        let mut held = actor.flat_map(|one| one.variables.iter().chain([&one.incoming])).flatten();
        held.any(|one| matches!(one, Object::Connection(at) if self.is_shut_and_passed_on(*at)))
    }

    /// Whether a process would shut down a connection that another process may then take over, which does not see that.
    pub(super) fn is_shut_for_others(&self, connection: usize) -> bool {
        let is_shared = self.processes_with(Object::Connection(connection)) > 1;
        is_shared && !self.connections[connection].is_stream
    }
}

impl Connection {
    /// Whether its peer may see an end or a reset: what an exiting process has just read counts as unread where the agent has not been told.
    pub(super) fn ends_unreported(&self) -> bool {
        self.read > 0 && !self.is_stream
    }
}
