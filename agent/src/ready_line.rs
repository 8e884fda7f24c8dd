//! A front's line about its host.

use std::path::PathBuf;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_process::say;
use wave_process::words::counted;

/// How long an attached host may take to be ready before that is reported.
const SILENCE: Nanos = Nanos::from_millis(2_000);

/// A line that is printed once requests reach the host (docs/adr/0088). A host that takes long to be ready is reported before.
#[derive(Debug)]
pub struct ReadyLine {
    text: String,
    host: PathBuf,
    attached: Nanos,
    is_late: bool,
}

impl ReadyLine {
    /// For a host that attached at `now`. `request` names what is steered to it, in the singular.
    pub fn new(
        now: Nanos,
        steer: &str,
        host: PathBuf,
        config: &Config,
        request: &str,
        link: &str,
    ) -> ReadyLine {
        let text = format!(
            "`{steer}` steers to {} of {}, up to {}, link {link}",
            counted(config.cores, "worker"),
            host.display(),
            counted(config.subjects, request),
        );
        ReadyLine { text, host, attached: now, is_late: false }
    }

    /// Prints what is due. Returns whether the line was printed, and is over.
    pub fn print_due(&mut self, now: Nanos, is_ready: bool) -> bool {
        if is_ready {
            say!("wave agent: {}", self.text);
        } else if now.since(self.attached) >= SILENCE && !std::mem::replace(&mut self.is_late, true)
        {
            let host = self.host.display();
            say!("wave agent: attached to {host}; waiting until its workers are ready");
        }
        is_ready
    }
}
