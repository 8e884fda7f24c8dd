//! How a worker without work waits.

use wave_core::clock::Nanos;
use wave_core::link::Port;

use super::{Stub, StubError};

/// The next step of a worker without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Look again soon, without sleeping.
    Spin,
    /// Yield the CPU, then look again: sent frames wait for room. No doorbell rings when there is room, and the agent may need
    /// this CPU to make room.
    Yield,
    /// Wait for the doorbell, then look again.
    Park,
}

impl Stub {
    /// Decides what to do after [`Stub::poll`] found nothing; never to park without `may_sleep`. Before it returns
    /// [`Wait::Park`], it tells the agent that this worker is parked.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn wait(
        &mut self,
        port: &impl Port,
        now: Nanos,
        may_sleep: bool,
    ) -> Result<Wait, StubError> {
        while let Some(call) = self.delivered.pop() {
            let Some(open) = self.of(call) else { continue };
            open.is_delivered = false;
            if !open.half_closed && !open.is_apart {
                self.wait_for_client(port, call)?;
            }
        }
        let is_flushed = self.is_flushed(port);
        if !self.woken.is_empty() || !may_sleep {
            return Ok(Wait::Spin);
        }
        if !is_flushed {
            return Ok(Wait::Yield);
        }
        self.park.park(port);
        self.parked = true;
        // Entries without an event count as well: grants, or part of a frame of which there may be more.
        Ok(if self.attend(port, now)? { Wait::Spin } else { Wait::Park })
    }
}
