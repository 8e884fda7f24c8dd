//! Streams that the front itself serves: changes of its host's health, and load reports.

use wave_rpc::status::{Code, Status};

use super::{Call, Route};
use crate::health::Health;
use crate::http2_stream::Gone;
use crate::shared::Shared;

impl Call {
    /// Sends a Watch stream the service's health, if it has changed and the client has read the last message. Ends Watch streams and
    /// streams of load reports when the front drains, since they never finish on their own.
    pub(crate) fn send_health(&mut self, shared: &Shared) -> Result<(), Gone> {
        if matches!(self.route, Route::Load(Some(_))) && shared.is_draining {
            self.finish(shared, &ending(), &[]);
        }
        let Route::Watch(Some(service), told) = &mut self.route else { return Ok(()) };
        let health = Health::of(service, shared.methods.as_deref(), shared.is_serving());
        if !self.out.queue.is_empty() || self.out.trailers.is_some() {
            return Ok(());
        }
        if told.replace(health) != Some(health) {
            self.reply(shared, health.message(), true, false)?;
        }
        if shared.is_draining {
            self.out.trailers = Some(shared.templates.trailers(&ending(), &[]));
        }
        Ok(())
    }

    /// Sends the load report that is due. Returns false if none is: the call has no load reports, or its deadline has passed.
    pub(super) fn send_load_report(&mut self, shared: &Shared) -> bool {
        let now = shared.stepped;
        let Route::Load(Some((every, next))) = &mut self.route else { return false };
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return false;
        }
        *next = now + *every;
        // A client that has not read the last report skips this one, and does not get it later.
        if self.out.queue.is_empty() {
            let report = shared.totals.load.report(now);
            // If the client has gone, the next poll finds out.
            let _ = self.reply(shared, report, true, false);
        }
        true
    }
}

fn ending() -> Status {
    Status::new(Code::Unavailable, "the agent that serves this address ends")
}
