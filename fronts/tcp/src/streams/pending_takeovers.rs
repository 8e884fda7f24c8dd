//! Processes that take a shared connection over. The connection's process is stopped first: what it reads or writes at the same instant would
//! be read twice, or lost.

use wave_tcp::context::{ContextId, Request};
use wave_tcp::datapath::FlowId;

use super::{Need, Shared, State, Streams};

/// A request to take a connection over, until the connection's process has stopped. Each process has one at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingTakeover {
    id: u64,
    from: ContextId,
    request: Request,
}

impl Streams {
    /// Queues a takeover request until the connection's current process has stopped. Returns false if it need not wait, or is the second
    /// one of its process, whose library waits for each answer.
    pub(crate) fn await_stop(&mut self, flow: FlowId, from: ContextId, request: Request) -> bool {
        let id = self.by_name.get(&flow.to_word()).copied();
        let takeover = id.map(|id| PendingTakeover { id, from, request });
        let Some(takeover) = takeover.filter(|takeover| self.must_wait(takeover)) else {
            return false;
        };
        let is_first = self.takeovers.iter().all(|other| other.from.process != from.process);
        if is_first {
            self.takeovers.push(takeover);
        }
        is_first
    }

    /// Drops the requests of a process that has gone.
    pub(crate) fn forget_takeovers(&mut self, process: u16) {
        self.takeovers.retain(|takeover| takeover.from.process != process);
    }

    /// All requests that wait: a successor replaces this agent.
    pub(crate) fn drain_takeovers(&mut self) -> impl Iterator<Item = (ContextId, Request)> {
        std::mem::take(&mut self.takeovers)
            .into_iter()
            .map(|takeover| (takeover.from, takeover.request))
    }

    /// The request that waits for the process of this connection.
    pub(super) fn next_takeover(&mut self, id: u64) -> Option<Need> {
        let at = self.takeovers.iter().position(|takeover| takeover.id == id)?;
        let PendingTakeover { from, request, .. } = self.takeovers.remove(at);
        Some(Need::Take { from, request })
    }

    /// Has the processes stopped for which requests wait. Returns the requests that need not wait any more.
    pub(super) fn poll_takeovers(&mut self) -> Vec<Need> {
        let mut needs = Vec::new();
        for takeover in std::mem::take(&mut self.takeovers) {
            let PendingTakeover { id, from, request } = takeover;
            if !self.must_wait(&takeover) {
                needs.push(Need::Take { from, request });
                continue;
            }
            self.takeovers.push(takeover);
            if !self.stopping.contains(&id) {
                self.stopping.push(id);
            }
        }
        needs
    }

    fn must_wait(&self, takeover: &PendingTakeover) -> bool {
        let is_anothers = |shared: &Shared| {
            let is_served = matches!(shared.state, State::Owned | State::Stopping(_));
            is_served && shared.owner.process != takeover.from.process
        };
        self.shared.get(&takeover.id).is_some_and(is_anothers)
    }
}
