//! Experiments on feedback of the queue at the host to senders of datagrams.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wave_lab::Failure;

use super::{Experiment, Host, Kind, Report, Source, Wanted, digest};
use crate::interrupt;
use crate::run::Journal;
use crate::run::udp_feedback::{self, FeedbackResult};
use crate::scenario::{UdpFeedback, parse_udp_feedback};

pub(super) const KIND: Kind = Kind { names: &["udp-feedback"], read };

fn read(source: &Source<'_>) -> Result<Box<dyn Experiment>, Failure> {
    let feedback = parse_udp_feedback(source.path, source.text);
    let feedback = feedback.map_err(|error| Failure::Scenario(error.to_string()))?;
    source.without_agent()?;
    Ok(Box::new(feedback))
}

impl Experiment for UdpFeedback {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(self, self.link.file())
    }

    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        if wanted.host != Host::User || wanted.live || wanted.record.is_some() {
            let why = "kind = \"udp-feedback\" runs on this machine: it takes no --host sim, --live or --record";
            return Err(Failure::Scenario(format!("{}: {why}", self.name)));
        }
        Ok(())
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        let say = Arc::clone(journal);
        interrupt::say(move || say.last_words())?;
        Ok(Box::new(udp_feedback::run(self, wanted.quiet, journal)?))
    }
}

impl Report for FeedbackResult {
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
