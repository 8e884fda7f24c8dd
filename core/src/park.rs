//! How a side sleeps without missing an entry that the other side sends: the handshake of ADR 4. BPF has its own copy.
//!
//! ```text
//! sleeper                                  waker
//! ParkWord::park: store PARKED, fence,     push what it sends, and wait until it has arrived
//!                 load it back             fence its queue
//! look once more                           ParkWord::is_parked: then ring
//! found something: ParkWord::unpark
//! nothing: wait for the doorbell, then ParkWord::unpark
//! ```
//!
//! The load returns after the store has arrived, and pulls in what the waker had sent by then: one of
//! the two sees the other. Nothing pushes the engine's copies, so each side first waits for its own.
//! The word lies in the waker's memory, where looking at it costs least: a core's in NIC memory, the
//! agent's in host memory.

use crate::layout::Layout;
use crate::link::{Home, Port, Window};
use crate::planted::{Planted, is_planted};

/// Value of a park word while its side sleeps.
pub const PARKED: u64 = 1;

/// The word in which a sleeper announces that it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkWord {
    home: Home,
    line: u32,
}

impl ParkWord {
    /// The word of a core, or of the worker that takes a core's place.
    pub fn of_core(layout: &Layout, core: u16) -> ParkWord {
        ParkWord { home: Home::Nic, line: layout.core_status + u32::from(core) }
    }

    /// The word on which the agent parks.
    pub fn of_agent(layout: &Layout) -> ParkWord {
        ParkWord { home: Home::Host, line: layout.agent_parked }
    }

    /// Announces that the caller is about to sleep. The caller must look once more before it does.
    #[inline]
    pub fn park(&self, port: &impl Port) {
        let window = port.window(self.home);
        window.store(self.line, 0, PARKED);
        if !is_planted(Planted::MissingFence) {
            window.fence();
        }
        window.load(self.line, 0);
    }

    /// Announces that the caller is awake.
    #[inline]
    pub fn unpark(&self, port: &impl Port) {
        let window = port.window(self.home);
        window.store(self.line, 0, 0);
        window.publish();
    }

    /// Whether the other side sleeps, and must be rung. Valid only once everything sent before has
    /// arrived and is fenced.
    #[inline]
    pub fn is_parked(&self, port: &impl Port) -> bool {
        port.window(self.home).load(self.line, 0) == PARKED
    }
}
