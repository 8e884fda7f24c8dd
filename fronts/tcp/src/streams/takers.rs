//! Processes that take a shared connection over. The connection's process is stopped first: what it reads or writes at the same instant would
//! be read twice, or lost.

use wave_tcp::context::{ContextId, Request};
use wave_tcp::datapath::FlowId;

use super::{Need, Shared, State, Streams};

/// A request to take a connection over, until the connection's process has stopped. Each process has one at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taker {
    id: u64,
    from: ContextId,
    request: Request,
}

impl Streams {
    /// Lets a request wait that takes a connection over, until its process has stopped. Returns false if it need not wait, or is the second
    /// one of its process, whose library waits for each answer.
    pub(crate) fn await_stop(&mut self, flow: FlowId, from: ContextId, request: Request) -> bool {
        let id = self.by_name.get(&flow.to_word()).copied();
        let taker = id.map(|id| Taker { id, from, request });
        let Some(taker) = taker.filter(|taker| self.must_wait(taker)) else { return false };
        let is_first = self.takers.iter().all(|other| other.from.process != from.process);
        if is_first {
            self.takers.push(taker);
        }
        is_first
    }

    /// Drops the requests of a process that has gone.
    pub(crate) fn forget_takers(&mut self, process: u16) {
        self.takers.retain(|taker| taker.from.process != process);
    }

    /// All requests that wait: another agent takes over.
    pub(crate) fn drain_takers(&mut self) -> impl Iterator<Item = (ContextId, Request)> {
        std::mem::take(&mut self.takers).into_iter().map(|taker| (taker.from, taker.request))
    }

    /// The request that waits for the process of this connection.
    pub(super) fn next_taker(&mut self, id: u64) -> Option<Need> {
        let at = self.takers.iter().position(|taker| taker.id == id)?;
        let Taker { from, request, .. } = self.takers.remove(at);
        Some(Need::Take { from, request })
    }

    /// Has the processes stopped for which requests wait. Returns the requests that need not wait any more.
    pub(super) fn poll_takers(&mut self) -> Vec<Need> {
        let mut needs = Vec::new();
        for taker in std::mem::take(&mut self.takers) {
            let Taker { id, from, request } = taker;
            if !self.must_wait(&taker) {
                needs.push(Need::Take { from, request });
                continue;
            }
            self.takers.push(taker);
            if !self.stopping.contains(&id) {
                self.stopping.push(id);
            }
        }
        needs
    }

    fn must_wait(&self, taker: &Taker) -> bool {
        let is_anothers = |shared: &Shared| {
            let is_served = matches!(shared.state, State::Owned | State::Stopping(_));
            is_served && shared.owner.process != taker.from.process
        };
        self.shared.get(&taker.id).is_some_and(is_anothers)
    }
}
