//! Experiments on requests in datagrams: outstanding requests per worker, preemption, and feedback to senders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wave_lab::Failure;

use super::{Experiment, Host, Kind, Report, Wanted, digest};
use crate::run::Journal;
use crate::run::udp::{self, UdpResult};
use crate::run::udp_feedback::{self, FeedbackResult};
use crate::run::udp_preemption::{self, PreemptionResult};
use wave_lab::interrupt;
use wave_scenario::{
    Udp, UdpFeedback, UdpPreemption, parse_udp, parse_udp_feedback, parse_udp_preemption,
};

/// A kind that runs on this machine alone, with Wave's own agent.
macro_rules! on_this_machine {
    ($kind:ident, $name:literal, $scenario:ty, $parse:path, $run:path, $result:ty) => {
        pub(super) const $kind: Kind = Kind {
            names: &[$name],
            takes_agent: false,
            read: |source| Ok(Box::new($parse(source.path, source.text)?)),
        };

        impl Experiment for $scenario {
            fn name(&self) -> &str {
                &self.name
            }

            fn digest(&self) -> Result<String, Failure> {
                digest(self, self.link.file())
            }

            fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
                if wanted.host == Host::User && !wanted.live && wanted.record.is_none() {
                    return Ok(());
                }
                let (name, kind) = (&self.name, $name);
                Err(Failure::Scenario(format!(
                    "{name}: kind = \"{kind}\" runs on this machine: it takes no --host sim, --live or --record"
                )))
            }

            fn run(
                &self,
                wanted: &Wanted<'_>,
                journal: &Arc<Journal>,
            ) -> Result<Box<dyn Report>, Failure> {
                let say = Arc::clone(journal);
                interrupt::say(move || say.last_words())?;
                Ok(Box::new($run(self, wanted.quiet, journal)?))
            }
        }

        impl Report for $result {
            fn text(&self) -> String {
                self.text()
            }

            fn json(&self) -> Result<String, Failure> {
                serde_json::to_string(self).map_err(Failure::cannot)
            }

            fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
                self.write(out)
            }

            fn is_measured(&self) -> bool {
                self.is_measured()
            }
        }
    };
}

on_this_machine!(OUTSTANDING, "udp", Udp, parse_udp, udp::run, UdpResult);
on_this_machine!(
    PREEMPTION,
    "udp-preemption",
    UdpPreemption,
    parse_udp_preemption,
    udp_preemption::run,
    PreemptionResult
);
on_this_machine!(
    FEEDBACK,
    "udp-feedback",
    UdpFeedback,
    parse_udp_feedback,
    udp_feedback::run,
    FeedbackResult
);
