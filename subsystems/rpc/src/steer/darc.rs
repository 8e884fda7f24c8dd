//! DARC reserves workers for short calls, as many as these need. A short call may also go to a worker of longer ones, never the
//! reverse. No call is preempted. Source: Persephone (SOSP 2021), without its grouping of classes with similar service times.
//!
//! The service time and the share of each class are measured, as exponentially weighted averages. Until a call of a class has
//! ended, the class may use every worker.

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::{CLASSES_MAX, Setting, SettingError, Settings, class_index};
use wave_core::waiting::Queues;

use super::{Request, Steering, Workers};

/// Settings of the policy.
pub static SETTINGS: [Setting; 1] = [Setting::number(
    "reserve",
    "1",
    0..=240,
    "least number of workers reserved for each class but the one with the longest calls",
)];

/// Weight of an average's old value when a new one comes.
const KEPT: f64 = 0.98;
/// Workers are shared out again each time that this many calls have ended.
const SHARE_EVERY: u32 = 64;

/// Measurements of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Profile {
    /// Average service time of a call, in nanoseconds; 0 if none has ended.
    took: f64,
    /// This class's share of all calls.
    share: f64,
}

/// Reserves workers for classes of short calls (DARC).
#[derive(Debug)]
pub struct Darc {
    reserve: usize,
    lines: Queues,
    profiles: [Profile; CLASSES_MAX],
    /// The first worker that each class may use; it may use all that follow. Shorter classes start at lower workers.
    first: [usize; CLASSES_MAX],
    /// Classes by service time, the shortest first.
    order: [usize; CLASSES_MAX],
    ended: u32,
}

impl Darc {
    /// Makes the policy with values of [`SETTINGS`].
    ///
    /// # Errors
    /// There are fewer workers than the classes reserve.
    pub fn new(config: &Config, settings: &Settings<'_>) -> Result<Darc, SettingError> {
        let (key, most) = (SETTINGS[0].key, config.cores.into());
        let number = settings.number(key);
        if number > most {
            return Err(SettingError::Beyond { key, number, most, of: "workers" });
        }
        Ok(Darc {
            reserve: number as usize,
            lines: Queues::new(CLASSES_MAX, config.subjects),
            profiles: [Profile::default(); CLASSES_MAX],
            first: [0; CLASSES_MAX],
            order: core::array::from_fn(|class| class),
            ended: 0,
        })
    }

    /// Shares the workers out in proportion to the demand of each class. A class may also use the workers of longer ones.
    fn share_out(&mut self, workers: usize) {
        let Darc { profiles, order, first, .. } = self;
        order.sort_by(|&a, &b| profiles[a].took.total_cmp(&profiles[b].took));
        let demand = |class: usize| profiles[class].took * profiles[class].share;
        let all: f64 = (0..CLASSES_MAX).map(demand).sum();
        let known = |class: &usize| profiles[*class].took > 0.0;
        let last = order.iter().copied().rfind(known);
        let mut at = 0;
        for &class in order.iter() {
            if !known(&class) {
                first[class] = 0;
                continue;
            }
            first[class] = at;
            if Some(class) != last {
                let own = libm::round(demand(class) / all * workers as f64) as usize;
                // One worker is left for the longest class.
                at = (at + own.max(self.reserve)).min(workers - 1);
            }
        }
    }
}

impl Steering for Darc {
    fn name(&self) -> &'static str {
        "darc"
    }

    fn arrived(&mut self, _now: Nanos, call: u32, request: &Request) {
        self.lines.push(class_index(request.class.into()), call);
    }

    fn left(&mut self, call: u32) {
        self.lines.remove(call);
    }

    fn ended(&mut self, _now: Nanos, _worker: u16, request: &Request, took: Nanos) {
        let ended = class_index(request.class.into());
        for (class, profile) in self.profiles.iter_mut().enumerate() {
            profile.share *= KEPT;
            if class == ended {
                let is_new = profile.took == 0.0;
                let took = (took.0 as f64).max(1.0);
                profile.took =
                    if is_new { took } else { KEPT * profile.took + (1.0 - KEPT) * took };
                profile.share += 1.0 - KEPT;
                if is_new {
                    self.ended = SHARE_EVERY;
                }
            }
        }
        self.ended += 1;
    }

    fn next(&mut self, _now: Nanos, workers: Workers<'_>) -> Option<(u32, u16)> {
        if self.ended >= SHARE_EVERY {
            self.ended = 0;
            self.share_out(workers.len());
        }
        for class in self.order {
            if self.lines.first(class).is_none() {
                continue;
            }
            let first = self.first[class];
            if let Some(worker) = workers.least(Some(1), first, |worker| worker >= first) {
                return Some((self.lines.pop(class)?, worker));
            }
        }
        None
    }
}
