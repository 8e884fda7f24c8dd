//! How a worker without work waits.

use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::link::Port;

use super::{ENTRIES_PER_LOOK, FRAMES_PER_LOOK, Kept, Stub, StubError};
use crate::boxes::Frame;

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
        // Frames that were taken ring no more.
        if self.has_more() || !self.kept.is_empty() {
            return Ok(Wait::Spin);
        }
        self.report_waiting(port)?;
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

    /// Takes the frames that have arrived and keeps them for later, for a handler that waits until it may send. Returns whether
    /// there was any entry: if not, the worker may [`Stub::wait`].
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn attend(&mut self, port: &impl Port, now: Nanos) -> Result<bool, StubError> {
        for frames in 0.. {
            let Some(Frame { head, first, second }) =
                self.inbox.next(port, ENTRIES_PER_LOOK, self.outbox.extents())?
            else {
                break;
            };
            let mut bytes = Vec::with_capacity(first.len() + second.len());
            bytes.extend_from_slice(first);
            bytes.extend_from_slice(second);
            if self.admit(&head)? {
                let kept = match self.is_detached(head.call) {
                    true => &mut self.detached[head.call.id as usize],
                    false => &mut self.kept,
                };
                kept.push_back(Kept { head, bytes, at: now });
            }
            if frames == FRAMES_PER_LOOK {
                self.has_more = true;
                break;
            }
        }
        Ok(self.inbox.took())
    }

    /// Whether the last calls left frames for the next one, or a look for a cancellation took some: the worker must poll again
    /// before it sleeps. Cleared by reading.
    pub fn has_more(&mut self) -> bool {
        core::mem::take(&mut self.has_more)
    }
}
