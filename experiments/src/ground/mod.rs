//! How any experiment runs: its seats, sessions, rounds, journal and facts.

pub mod fields;
pub mod journal;
pub(crate) mod links;
pub(crate) mod neighbours;
pub(crate) mod point;
pub(crate) mod preemptions;
pub mod rounds;
pub(crate) mod saturation;
pub mod seating;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod system;
pub(crate) mod udp_report;

use std::sync::Arc;

use wave_apps::recording::{Logs, Recording};
use wave_process::cpus;
use wave_report::RunResult;
use wave_report::model::{Ladder, Paired, SATURATION_SERVED, VariantResult};
use wave_terminal::Progress;
use wave_workloads::arrivals::Mix;
use wave_workloads::point::Limits;

use self::fields::Trials;
pub use self::journal::Journal;
use self::seating::Seating;
use self::service::Service;
pub use self::service::Work;
pub use self::session::failed_point;
use crate::kinds::requests::scenario::{Scenario, Variant, Workload};
use crate::live::Feed;
pub use wave_terminal::Failure;

/// A finished run.
#[derive(Debug)]
pub struct Finished {
    pub result: RunResult,
    /// Checks that failed, in words; empty if all passed.
    pub failed: Vec<String>,
}

/// Shared context of scenarios that schedule requests.
pub(crate) struct Ground<'a> {
    pub scenario: &'a Scenario,
    pub cpus: Vec<usize>,
    pub service: Arc<Service>,
    pub progress: Progress,
    pub feed: Feed,
    pub recording: Option<Arc<Recording>>,
    /// Keeps measured points.
    pub journal: &'a Journal,
}

impl Ground<'_> {
    pub fn begin(&self, what: &str) {
        self.progress.begin(what);
        self.feed.step(what);
    }

    /// Log destinations for the agents of a variant, or of an enclave of one.
    pub fn logs(&self, of: &str) -> Option<Logs> {
        self.recording.as_ref().map(|recording| recording.logs(of))
    }

    pub fn end(&self) {
        self.progress.end();
    }
}

/// Findings of a scenario that schedules requests.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub variants: Vec<VariantResult>,
    pub paired: Option<Paired>,
    pub ladder: Option<Ladder>,
    pub facts: Vec<(String, String)>,
    pub extra: serde_json::Value,
    pub failed: Vec<String>,
}

/// Refuses more host cores than CPUs: they would take turns, and that would be measured as if it were scheduling. `field` gives their
/// number; the kind of scenario may have a simulated host.
pub(crate) fn enough_cpus(
    cores: u32,
    cpus: usize,
    scenario: &str,
    (field, is_simulated): (&str, bool),
) -> Result<(), Failure> {
    if cores as usize <= cpus {
        return Ok(());
    }
    let simulated = if is_simulated { "; --host sim needs none for them" } else { "" };
    Err(Failure::Cannot(format!(
        "{scenario}: {cores} host cores at once (`{field}`), and this process may use {cpus} CPUs: fewer cores, \
         or a machine with more CPUs{simulated}"
    )))
}

/// Mean number of requests that a trial must have for a p99: a trial without any says nothing.
const REQUESTS_MIN: f64 = 10.0;

/// Refuses trials with too few requests of the class of this name and share at the load `per_second`, the lowest of a scenario.
pub(crate) fn enough_requests(
    scenario: &str,
    per_second: f64,
    (class, share): (&str, f64),
    trials: Trials,
) -> Result<(), Failure> {
    let of_second = per_second * share;
    let mean = of_second * trials.measured_seconds;
    if mean >= REQUESTS_MIN {
        return Ok(());
    }
    Err(Failure::Scenario(format!(
        "{scenario}: at {per_second} requests/s a trial of {:.3} s has {mean:.1} of class {class} on average, and a p99 needs \
         {REQUESTS_MIN} or more: set `run.rounds`, and `run.seconds` to {:.1} or more, or raise the lowest load",
        trials.measured_seconds,
        REQUESTS_MIN / of_second + trials.warmup_seconds
    )))
}

/// Minimum duration of a run, in words.
pub fn planned(points: u64, seconds: f64) -> String {
    let (all, seconds) = (points as f64 * seconds, (seconds * 1e3).round() / 1e3);
    let whole = match all {
        ..60.0 => format!("{all:.0} s"),
        60.0..7_200.0 => format!("{:.0} min", all / 60.0),
        _ => format!("{:.1} h", all / 3_600.0),
    };
    format!("{points} steps of {seconds} s or more: {whole} at least")
}

/// A fact for the report of a native run: `what`, a field of its scenario, is one that only simulated hosts have.
pub(crate) fn without_effect(what: &str) -> (String, String) {
    let why = "it applies to simulated hosts (--host sim); this run is on this machine";
    (format!("{what} has no effect here"), why.to_owned())
}

pub(crate) fn describe(seating: &Seating) -> String {
    let tight = if seating.is_tight() {
        ". Too few CPUs for a seat each: threads that share one yield it between polls"
    } else {
        ""
    };
    format!("{seating}{tight}. The same seats in every placement.")
}

/// The scenario's classes, repeated `times` times (one set per enclave).
pub(crate) fn mix(workload: &Workload, times: u32) -> Mix {
    let names: Vec<(String, f64)> = (1..=times)
        .flat_map(|enclave| {
            workload.classes.iter().map(move |class| {
                let name = if times == 1 {
                    class.name.clone()
                } else {
                    format!("{} enclave {enclave}", class.name)
                };
                (name, class.weight)
            })
        })
        .collect();
    let classes: Vec<(&str, f64)> =
        names.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    Mix::new(&classes).expect("the scenario was checked: at least one class, and weights above 0")
}

/// The limits that define saturation, on the report's headline class.
pub fn limits(workload: &Workload) -> Limits {
    let get = workload.classes.iter().find(|class| class.name == "GET");
    let class = get.unwrap_or(&workload.classes[0]).name.clone();
    Limits { served: SATURATION_SERVED, class, ..Limits::default() }
}

/// Pins the calling thread to a place from which it may start housekeeping threads.
pub(crate) fn pin_housekeeping(seating: &Seating, cpus: &[usize]) -> Result<(), Failure> {
    cpus::pin(&seating.housekeeping(cpus)).map_err(Failure::cannot)
}

/// Pins the calling thread to the generator's CPU.
pub(crate) fn take_generators_seat(seating: &Seating) -> Result<(), Failure> {
    cpus::pin(&[seating.generator]).map_err(Failure::cannot)
}

/// An empty result for a variant.
pub(crate) fn variant_result(variant: &Variant) -> VariantResult {
    let agent = variant.agent();
    VariantResult {
        name: variant.name.clone(),
        placement: variant.placement().to_owned(),
        link: agent.map_or_else(String::new, |agent| agent.link.to_string()),
        policy: agent.map_or_else(String::new, |agent| agent.policy.clone()),
        workers: variant.host.cores,
        points: Vec::new(),
        saturation_per_second: None,
        not_measurable: None,
        saturation_by_limit: Vec::new(),
        limits_not_measurable: Vec::new(),
        account: Vec::new(),
        account_per_second: None,
        preemptions: None,
        compared: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_without_enough_requests_are_refused_with_what_would_do() {
        let trials = Trials { rounds: 20, warmup_seconds: 0.05, measured_seconds: 0.1 };
        let refused = |per_second: f64| enough_requests("x", per_second, ("GET", 0.5), trials);
        assert!(refused(200.0).is_ok());
        let why = refused(20.0).unwrap_err();
        assert_eq!(why.exit_code(), 2);
        let expected = "x: at 20 requests/s a trial of 0.100 s has 1.0 of class GET on average, and a p99 needs 10 or more: \
                        set `run.rounds`, and `run.seconds` to 1.1 or more, or raise the lowest load";
        assert_eq!(why.to_string(), expected);
    }

    #[test]
    fn minimum_duration_of_a_run_is_stated() {
        assert_eq!(planned(20, 1.5), "20 steps of 1.5 s or more: 30 s at least");
        assert_eq!(planned(40, 60.0), "40 steps of 60 s or more: 40 min at least");
        assert_eq!(planned(10, 3_600.0), "10 steps of 3600 s or more: 10.0 h at least");
    }
}
