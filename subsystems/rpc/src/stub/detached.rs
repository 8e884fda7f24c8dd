//! Calls that take no place on their worker: those that wait for their clients, and those that yield to other calls.

use wave_core::link::Port;
use wave_core::message::Subject;
use wave_core::queue::PushError;

use super::Stub;
use crate::wire::{Head, WAITS, YIELDS};

impl Stub {
    /// Excludes a call's frames from [`Stub::poll`]: its handler gets them by [`Stub::poll_call`].
    pub fn detach(&mut self, call: Subject) {
        let Some(open) = self.of(call) else { return };
        open.is_detached = true;
        if core::mem::take(&mut open.is_noted) {
            self.noted.retain(|noted| *noted != call);
        }
        // Frames that came while another handler ran move to the call's queue.
        for kept in core::mem::take(&mut self.kept) {
            let is_its = kept.head.call == call;
            let queue = if is_its { &mut self.detached[call.id as usize] } else { &mut self.kept };
            queue.push_back(kept);
        }
    }

    /// The next call that is kept apart, was said to wait, and has got a frame since.
    pub fn take_woken(&mut self) -> Option<Subject> {
        self.woken.pop_front()
    }

    /// Tells the agent that a call waits for its client. Repetitions have no effect until the agent has sent something for the
    /// call.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn wait_for_client(&mut self, port: &impl Port, call: Subject) -> Result<(), PushError> {
        let Some(open) = self.of(call).filter(|open| !open.waits) else { return Ok(()) };
        open.waits = true;
        let head = Head { argument: open.frames.into(), ..Head::new(WAITS, call) };
        // An agent that takes nothing could otherwise have any number of them wait here.
        self.outbox.withdraw(WAITS, call);
        self.outbox.send(port, &head, &[], &[])
    }

    /// Tells the agent that from now on the worker runs other calls between the messages of this one. Only the first time
    /// counts.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn yield_to_others(&mut self, port: &impl Port, call: Subject) -> Result<(), PushError> {
        let Some(open) = self.of(call).filter(|open| !open.yields && !open.waits) else {
            return Ok(());
        };
        open.yields = true;
        self.outbox.send(port, &Head::new(YIELDS, call), &[], &[])
    }

    /// Remembers a call, to be reported as waiting once the worker runs out of work.
    pub(super) fn report_when_idle(&mut self, call: Subject) {
        if let Some(open) = self.of(call)
            && !open.is_detached
            && !open.half_closed
            && !core::mem::replace(&mut open.is_noted, true)
        {
            self.noted.push(call);
        }
    }

    /// The worker has run out of work: tells the agent which of its calls wait for their clients.
    pub(super) fn report_waiting(&mut self, port: &impl Port) -> Result<(), PushError> {
        while let Some(call) = self.noted.pop() {
            let Some(open) = self.of(call) else { continue };
            open.is_noted = false;
            if !open.half_closed && !open.is_detached {
                self.wait_for_client(port, call)?;
            }
        }
        Ok(())
    }
}
