//! The policies: requests in order of arrival, or the nearest to the arm first.

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Policy, Progress};
use wave_core::settings::{Known, Policies, PolicyError, Setting, known};
use wave_core::snapshot::{Snapshot, State};

use crate::wire::{ARRIVED, serve};

/// Both policies; a user types `NAME:KEY=VALUE,...`.
static SHIPPED: Policies<dyn Policy + Send> = Policies(&[
    (
        Known {
            name: "arrival",
            about: "serves requests in the order in which they came",
            settings: &[],
        },
        |config, _| Ok(Box::new(Seeks::new(config, Nanos(0)))),
    ),
    (
        Known {
            name: "nearest",
            about: "serves the request nearest to the arm; a request that has waited for `patience_us` comes first",
            settings: &[Setting::number(
                "patience_us",
                "500",
                1..=1_000_000,
                "how long a request waits before it comes first",
            )],
        },
        |config, settings| {
            let patience = Nanos::from_micros(settings.number("patience_us"));
            Ok(Box::new(Seeks::new(config, patience)))
        },
    ),
]);

/// Names, descriptions and settings of the policies.
pub static KNOWN: [Known; 2] = known(&SHIPPED);

/// Creates a policy.
///
/// # Errors
/// No policy has that name, or it does not accept the settings.
pub fn by_name(text: &str, config: &Config) -> Result<Box<dyn Policy + Send>, PolicyError> {
    SHIPPED.make(text, config)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Being served, done, or never seen.
    #[default]
    Away,
    /// The request has waited since this time.
    Waits(Nanos),
    /// A decision for this arm is on its way; the request had waited since this time.
    Staged(u16, Nanos),
}

#[derive(Clone, Copy, Debug, Default)]
struct Request {
    subject: Subject,
    sequence: Sequence,
    track: u16,
    place: Place,
}

struct Seeks {
    requests: Vec<Request>,
    /// The track of each arm after all decisions that were left for it.
    arms: Vec<u16>,
    patience: Nanos,
}

impl Seeks {
    fn new(config: &Config, patience: Nanos) -> Seeks {
        let requests = vec![Request::default(); config.subjects as usize];
        Seeks { requests, arms: vec![0; config.cores.into()], patience }
    }

    /// The request that an arm at this track serves next.
    fn next(&self, now: Nanos, track: u16) -> Option<usize> {
        let waiting = self.requests.iter().enumerate();
        let waiting = waiting.filter_map(|(id, request)| match request.place {
            Place::Waits(since) => Some((id, request, since)),
            _ => None,
        });
        let rank = |request: &Request, since: Nanos| match now.since(since) >= self.patience {
            true => (0, since.0),
            false => (1, track.abs_diff(request.track).into()),
        };
        waiting.min_by_key(|(_, request, since)| rank(request, *since)).map(|(id, ..)| id)
    }
}

impl Policy for Seeks {
    fn name(&self) -> &'static str {
        if self.patience == Nanos(0) { "arrival" } else { "nearest" }
    }

    fn on_message(&mut self, now: Nanos, message: &Message) {
        let Message { kind, subject, sequence, argument, .. } = *message;
        let Some(request) = self.requests.get_mut(subject.id as usize) else { return };
        let place = if kind == ARRIVED { Place::Waits(now) } else { Place::Away };
        *request = Request { subject, sequence, track: argument as u16, place };
    }

    fn on_outcome(&mut self, _now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        let Some(request) = self.requests.get_mut(decision.subject.id as usize) else { return };
        let is_it = (request.subject, request.sequence) == (decision.subject, decision.sequence);
        match request.place {
            _ if !is_it => {}
            _ if outcome.code == Code::Complete => request.place = Place::Away,
            Place::Staged(arm, since) if arm == core => request.place = Place::Waits(since),
            _ => {}
        }
    }

    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        while let Some(core) = desk.asking() {
            let track = self.arms[usize::from(core)];
            let Some(id) = self.next(now, track) else { return Progress::Done };
            let request = &mut self.requests[id];
            if let Place::Waits(since) = request.place {
                request.place = Place::Staged(core, since);
            }
            self.arms[usize::from(core)] = request.track;
            desk.stage(core, serve(request.subject, request.sequence));
        }
        if desk.is_full() { Progress::More } else { Progress::Done }
    }

    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.requests.fill(Request::default());
        for record in &snapshot.records {
            let Some(request) = self.requests.get_mut(record.subject.id as usize) else { continue };
            let place = match record.state {
                State::Runnable => Place::Waits(now),
                _ => Place::Away,
            };
            let (subject, sequence) = (record.subject, record.sequence);
            *request = Request { subject, sequence, track: record.class, place };
        }
    }
}
