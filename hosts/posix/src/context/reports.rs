//! Failures that an agent tells people about.

use wave_tcp::context::{Request, Trouble};

use super::{Context, Queues};

impl<Q: Queues> Context<Q> {
    /// Tells the agent of a failure that it cannot see: its log and `wave tcp ss` name this process and the reason.
    pub fn report(&mut self, trouble: Trouble) {
        self.outbox.push_back(Request::Report { trouble });
        self.flush();
    }
}
