//! What a worker does that has found nothing to do.

use wave_core::clock::Nanos;
use wave_core::link::Port;

use super::{Stub, StubError};

/// What a worker without work does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Look again soon, without sleeping.
    Spin,
    /// Yield the CPU, then look again: sent frames wait for room. No doorbell rings when there is room, and the agent may need this
    /// very CPU to make it.
    Yield,
    /// Wait for the doorbell, then look again.
    Park,
}

impl Stub {
    /// What to do after [`Stub::poll`] found nothing; without `may_sleep`, only to look again. On [`Wait::Park`] the agent has been
    /// told so.
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
        // Discarded entries count as well: a grant, or a part of a frame of which more may be there.
        Ok(if self.attend(port, now)? { Wait::Spin } else { Wait::Park })
    }
}
