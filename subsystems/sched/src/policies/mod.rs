//! The shipped policies: one per file, pure, each with its source.
//!
//! A policy is selected by its name, with settings after a colon:
//!
//! ```text
//! fifo
//! shinjuku:slice_us=30
//! multi-queue:slice_us=30,slo_us=50/10000      per class, the last also for every higher one
//! round-robin:quantum_us=1000,timer=core      one of two words: what ends a slice
//! edf:deadline_us=100/20000
//! vm:quantum_ms=5..10,latency_ms=15,weight=1/2
//! ```
//!
//! A setting that is left out has its default; `wave policies` lists them. Read [`fifo`] first. The others share [`common`],
//! which is also the basis for your own preemptive policy.

pub mod common;
pub mod edf;
pub mod fifo;
pub mod multi_queue;
pub mod round_robin;
pub mod shinjuku;
pub mod vm;

use alloc::boxed::Box;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::policy::Policy;
pub use wave_core::settings::PolicyError;
use wave_core::settings::{Known, Policies, Settings, known, names};

/// Policies for scheduling that Wave ships.
pub static SHIPPED: Policies<dyn Policy + Send> = Policies(&[
    (
        Known {
            name: "fifo",
            about: "first in, first out; each thread runs without preemption",
            settings: &[],
        },
        |config, _| Ok(Box::new(fifo::Fifo::new(config))),
    ),
    (
        Known {
            name: "shinjuku",
            about: "one queue and a time slice, so that short runs do not wait behind long ones",
            settings: &shinjuku::SETTINGS,
        },
        |config, settings| Ok(Box::new(shinjuku::Shinjuku::from_settings(config, settings))),
    ),
    (
        Known {
            name: "multi-queue",
            about: "Shinjuku with a queue per class, served by how long each class may wait",
            settings: &multi_queue::SETTINGS,
        },
        |config, settings| Ok(Box::new(multi_queue::MultiQueue::from_settings(config, settings))),
    ),
    (
        Known {
            name: "round-robin",
            about: "each thread in turn for a quantum of milliseconds",
            settings: &round_robin::SETTINGS,
        },
        |config, settings| Ok(Box::new(round_robin::from_settings(config, settings))),
    ),
    (
        Known {
            name: "edf",
            about: "earliest deadline first, on all cores together",
            settings: &edf::SETTINGS,
        },
        |config, settings| Ok(Box::new(edf::Edf::from_settings(config, settings))),
    ),
    (
        Known {
            name: "vm",
            about: "virtual CPUs: fair shares, and a bound on each one's wait",
            settings: &vm::SETTINGS,
        },
        |config, settings| Ok(Box::new(vm::Vm::from_settings(config, settings))),
    ),
]);

/// The shipped policies with their descriptions and settings.
pub static KNOWN: [Known; 6] = known(&SHIPPED);

/// Names of the shipped policies.
pub static NAMES: &[&str] = &names(&KNOWN);

fn parse(text: &str) -> Result<(&'static str, Settings<'_>), PolicyError> {
    SHIPPED.parse(text)
}

/// Checks a name and settings as [`by_name`] would. Returns the name alone.
pub fn check(text: &str) -> Result<&'static str, PolicyError> {
    parse(text).map(|(name, _)| name)
}

/// The slice of `text`, a policy with its settings. `None` for a policy without a single slice.
pub fn slice(text: &str) -> Option<Nanos> {
    let (name, settings) = parse(text).ok()?;
    match name {
        "shinjuku" | "multi-queue" => Some(Nanos::from_micros(settings.number("slice_us"))),
        "round-robin" => Some(Nanos::from_micros(settings.number("quantum_us"))),
        _ => None,
    }
}

/// As [`slice()`], but only for policies with a single queue. Such a policy equals [`crate::oracles::RoundRobin`] where
/// scheduling costs nothing.
pub fn slice_of_one_queue(text: &str) -> Option<Nanos> {
    slice(text).filter(|_| check(text) != Ok("multi-queue"))
}

/// The shipped policy of this name, with its settings, for an enclave of this configuration.
pub fn by_name(text: &str, config: &Config) -> Result<Box<dyn Policy + Send>, PolicyError> {
    SHIPPED.make(text, config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_policy_is_found_by_name_and_accepts_its_defaults() {
        let config = Config { subjects: 8, ..Config::coherent(2) };
        for Known { name, settings, .. } in KNOWN {
            assert_eq!(by_name(name, &config).unwrap().name(), name);
            for setting in settings {
                let text = alloc::format!("{name}:{}={}", setting.key, setting.default);
                assert_eq!(check(&text), Ok(name));
            }
        }
    }

    #[test]
    fn slices_come_from_the_settings_or_their_defaults() {
        let us = |text| slice_of_one_queue(text).map(|slice| slice.0 / 1_000);
        assert_eq!(us("shinjuku:slice_us=10"), Some(10));
        assert_eq!(us("shinjuku"), Some(30));
        assert_eq!(us("round-robin"), Some(1_000));
        assert_eq!([us("fifo"), us("multi-queue"), us("none")], [None; 3]);
        assert_eq!(slice("multi-queue:slice_us=7"), Some(Nanos::from_micros(7)));
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_list_of_shipped_ones() {
        let error = check("cfs:x=1").unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no policy `cfs`; shipped policies: fifo, shinjuku, multi-queue, round-robin, edf, vm"
        );
        let error = check("fifo:slice_us=1").unwrap_err();
        assert_eq!(error.to_string(), "policy `fifo`: it has no setting `slice_us`; it takes none");
        assert_eq!(
            check("shinjuku:slice_us=x").unwrap_err().to_string(),
            "policy `shinjuku`: `x` is not a valid value for `slice_us`: write slice_us=N, 1 to 1000000"
        );
        assert_eq!(check("shinjuku:"), Ok("shinjuku"));
    }
}
