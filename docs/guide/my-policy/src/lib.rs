//! Three scheduling policies, and the list of them for an agent's `main` and for a laboratory.

#![forbid(unsafe_code)]

pub mod exclusive;
pub mod lottery;
pub mod two_class;

use wave_core::policy::Policy;
use wave_core::settings::{Known, Policies, Setting};
use wave_sched::scheduler::Scheduled;

use exclusive::Exclusive;
use lottery::Lottery;
use two_class::TwoClass;

/// The policies of this crate.
pub static POLICIES: Policies<dyn Policy + Send> = Policies(&[
    (Known { name: "two-class", about: "urgent threads first", settings: &[] }, |config, _| {
        Ok(Box::new(Scheduled::of(config, TwoClass::default())))
    }),
    (
        Known { name: "exclusive", about: "one thread of class 1 at a time", settings: &[] },
        |config, _| Ok(Box::new(Scheduled::of(config, Exclusive::default()))),
    ),
    (
        Known {
            name: "lottery",
            about: "each class in proportion to its tickets",
            settings: &[
                Setting::per_class("tickets", "3/1", 1..=1000, "the tickets of each class"),
                Setting::number("slice_us", "1000", 1..=1_000_000, "how long a turn lasts"),
            ],
        },
        |config, settings| Ok(Box::new(Scheduled::of(config, Lottery::new(settings)))),
    ),
]);

#[cfg(test)]
mod tests;
