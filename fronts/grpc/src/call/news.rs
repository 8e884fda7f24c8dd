//! Streams by which the front itself tells news: of its host's health, and of its host's load.

use wave_rpc::status::{Code, Status};

use super::{Call, Route};
use crate::health::Health;
use crate::http2_stream::Gone;
use crate::shared::Shared;

impl Call {
    /// Tells a watcher how the service is, if that has changed, and its client has read the last news. Streams that never finish on
    /// their own end with the front.
    pub(crate) fn tell_health(&mut self, shared: &Shared) -> Result<(), Gone> {
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

    /// Sends a report of load whose time has come. Returns whether it was that time, and not the call's deadline.
    pub(super) fn tells_load(&mut self, shared: &Shared) -> bool {
        let now = shared.stepped;
        let Route::Load(Some((every, next))) = &mut self.route else { return false };
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return false;
        }
        *next = now + *every;
        // A client that has not read the last one gets none, and no more when it does.
        if self.out.queue.is_empty() {
            let report = shared.totals.load.report(now);
            // One that has gone is found by the next look.
            let _ = self.reply(shared, report, true, false);
        }
        true
    }
}

fn ending() -> Status {
    Status::new(Code::Unavailable, "the agent that serves this address ends")
}
