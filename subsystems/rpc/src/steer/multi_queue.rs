//! A queue per class: next is the head that has waited longest relative to its objective (Wave 7.3.2, after the multi-queue
//! policy of Shinjuku, NSDI 2019). A request may have an objective of its own that is tighter than its class's; with a laxer one it
//! would hold up the calls behind it. No class starves.

use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::{CLASSES_MAX, PerClass, Setting, Settings, class_index};
use wave_core::waiting::Queues;

use super::{K, Request, Steering, Workers, k};

/// Settings of the policy.
pub static SETTINGS: [Setting; 2] = [
    K,
    Setting::per_class(
        "slo_us",
        "50/10000",
        1..=1_000_000_000,
        "how long a call of each class may wait, in microseconds, if the call has no objective of its own",
    ),
];

/// Steers by a queue per class; each class has an SLO.
#[derive(Debug)]
pub struct MultiQueue {
    k: Option<u16>,
    slo: PerClass<Nanos>,
    lines: Queues,
    /// When each waiting call arrived, and its objective.
    waits: Vec<(Nanos, Nanos)>,
    look: usize,
}

impl MultiQueue {
    /// Makes the policy with values of [`SETTINGS`].
    pub fn new(config: &Config, settings: &Settings<'_>) -> MultiQueue {
        MultiQueue {
            k: k(settings),
            slo: settings.micros_per_class("slo_us"),
            lines: Queues::new(CLASSES_MAX, config.subjects),
            waits: alloc::vec![(Nanos(0), Nanos(1)); config.subjects as usize],
            look: 0,
        }
    }

    /// The class whose head comes next. Ties go to the lower class.
    fn first(&self, now: Nanos) -> Option<usize> {
        let mut first: Option<(usize, u128, u128)> = None;
        for class in 0..CLASSES_MAX {
            let Some(call) = self.lines.first(class) else { continue };
            let (since, slo) = self.waits[call as usize];
            // Calls that arrive this instant have not waited: with 1 ns added, the tightest objective comes first.
            let (waited, slo) = (u128::from(now.since(since).0) + 1, u128::from(slo.0));
            if first.is_none_or(|(_, other, others_slo)| waited * others_slo > other * slo) {
                first = Some((class, waited, slo));
            }
        }
        first.map(|(class, ..)| class)
    }
}

impl Steering for MultiQueue {
    fn name(&self) -> &'static str {
        "multi-queue"
    }

    fn arrived(&mut self, now: Nanos, call: u32, request: &Request) {
        let of_class = self.slo.of(request.class.into());
        let slo = request.slo.filter(|slo| slo.0 > 0).map_or(of_class, |slo| slo.min(of_class));
        self.waits[call as usize] = (now, slo);
        self.lines.push(class_index(request.class.into()), call);
    }

    fn left(&mut self, call: u32) {
        self.lines.remove(call);
    }

    fn next(&mut self, now: Nanos, workers: Workers<'_>) -> Option<(u32, u16)> {
        let class = self.first(now)?;
        let worker = workers.least(self.k, self.look, |_| true)?;
        self.look = (usize::from(worker) + 1) % workers.len();
        Some((self.lines.pop(class)?, worker))
    }
}
