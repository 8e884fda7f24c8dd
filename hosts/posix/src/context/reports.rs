//! Failures that an agent tells people about.

use wave_tcp::context::{HostFailure, Request};

use super::{Context, Queues};

impl<Q: Queues> Context<Q> {
    /// Tells the agent of a failure that it cannot see: its log and `wave tcp ss` name this process and the reason.
    pub fn report(&mut self, failure: HostFailure) {
        self.outbox.push_back(Request::Report { failure });
        self.flush();
    }
}
