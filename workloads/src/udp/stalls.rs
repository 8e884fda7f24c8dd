//! Stalls of the machine under a load, which set latencies aside (docs/adr/0009-latencies-on-a-machine-that-stalls.md).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::recorder::Recorder;

/// Number of stalls noticed by the server of a load, shared with its generator.
///
/// A server counts a stall before it replies to the request in which the machine stalled.
#[derive(Clone, Debug, Default)]
pub struct Stalls(Arc<AtomicU64>);

impl Stalls {
    /// Counts a stall: see [`Served::machine_stalled`](crate::service::Served::machine_stalled).
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// The count itself, for a host that also stalls while it has no request.
    pub fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0)
    }

    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Stalls of a server that a load has not yet taken into account.
#[derive(Debug)]
pub(super) struct Unseen {
    stalls: Stalls,
    seen: u64,
}

impl Unseen {
    /// Counts stalls from now on.
    pub fn new(stalls: Stalls) -> Unseen {
        Unseen { seen: stalls.so_far(), stalls }
    }

    /// Makes `recorder` set latencies aside if the server has stalled since the last call.
    pub fn tell(&mut self, recorder: &Recorder) {
        let now = self.stalls.so_far();
        if now != self.seen {
            self.seen = now;
            recorder.stalled();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Mix;

    #[test]
    fn a_stall_is_reported_once_and_earlier_ones_are_not() {
        let (stalls, recorder) = (Stalls::default(), Recorder::new(&Mix::get_only(), 1));
        stalls.count();
        let mut unseen = Unseen::new(stalls.clone());
        unseen.tell(&recorder);
        assert_eq!(recorder.collect().stalls, 0);
        stalls.count();
        unseen.tell(&recorder);
        unseen.tell(&recorder);
        assert_eq!(recorder.collect().stalls, 1);
    }
}
