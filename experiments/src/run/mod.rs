//! Running a scenario: starting systems, loading them, and measuring.
//!
//! [`run`] dispatches on the kind of scenario; each kind has a file of its own. All of them start systems ([`system`]) seated
//! by one rule ([`seating`]), and load them from the calling thread.

mod chaos;
mod compare;
mod crash;
mod enclaves;
mod ideal;
pub mod journal;
mod ladder;
mod links;
mod load;
pub mod memory;
mod neighbours;
mod point;
mod preemptions;
pub mod probe;
pub mod rounds;
pub mod rpc;
mod saturation;
pub mod seating;
mod service;
mod session;
pub mod sim;
mod system;
pub mod udp;
pub mod udp_feedback;
pub mod udp_preemption;
mod udp_report;

use std::path::Path;
use std::sync::Arc;

use wave_workloads::arrivals::Mix;
use wave_workloads::cpu;

pub use journal::Journal;
pub use service::Work;
pub use session::failed_point;
pub use wave_lab::Failure;

use crate::live::Feed;
use neighbours::Neighbours;
use seating::Seating;
use service::Service;
use wave_apps::machine;
use wave_apps::recording::{Logs, Recording};
use wave_lab::progress::Progress;
use wave_report::RunResult;
use wave_report::model::{Ladder, Paired, SATURATION_LIMIT_US, SATURATION_SERVED, VariantResult};
use wave_scenario::{Kind, Machine, Scenario, Trials, Variant, Workload, defaults};
use wave_workloads::point::Limits;

/// A finished run.
#[derive(Debug)]
pub struct Finished {
    pub result: RunResult,
    /// Checks that failed, in words; empty if all passed.
    pub failed: Vec<String>,
}

/// Shared context of every kind of scenario.
struct Ground<'a> {
    scenario: &'a Scenario,
    cpus: Vec<usize>,
    service: Arc<Service>,
    progress: Progress,
    feed: Feed,
    recording: Option<Arc<Recording>>,
    /// Keeps measured points.
    journal: &'a Journal,
}

impl Ground<'_> {
    fn begin(&self, what: &str) {
        self.progress.begin(what);
        self.feed.step(what);
    }

    /// Log destinations for the agents of a variant, or of an enclave of one.
    fn logs(&self, of: &str) -> Option<Logs> {
        self.recording.as_ref().map(|recording| recording.logs(of))
    }

    fn end(&self) {
        self.progress.end();
    }
}

/// Findings of a kind of scenario.
#[derive(Debug, Default)]
struct Found {
    variants: Vec<VariantResult>,
    paired: Option<Paired>,
    ladder: Option<Ladder>,
    facts: Vec<(String, String)>,
    extra: serde_json::Value,
    failed: Vec<String>,
}

/// Runs `scenario` from the calling thread, which becomes the generator: it is pinned, and may not run anything else meanwhile.
/// `feed` is told what runs. Agents write logs into the directory `record`, if given. Points that `journal` has are not run.
pub fn run(
    scenario: &Scenario,
    quiet: bool,
    feed: Feed,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<Finished, Failure> {
    let cpus = cpu::allowed_cpus().map_err(Failure::cannot)?;
    let started = journal.started();
    let link_facts = links::facts_of_all(scenario.agents().map(|agent| &agent.link))?;
    let steps = match scenario.kind {
        Kind::Load => load::steps(&scenario.run),
        Kind::Ladder => ladder::steps(scenario),
        Kind::Crash(_) => scenario.variants.len() as u64,
        Kind::Enclaves(_) => enclaves::steps(scenario),
        Kind::Chaos(_) => scenario.variants.len() as u64,
    };
    enough_cpus(most_cores(scenario), cpus.len(), &scenario.name, ("host.cores", true))?;
    let progress = Progress::new(steps + 2, quiet);
    journal.follow(&progress);
    let seconds = match scenario.kind {
        Kind::Ladder => ladder::step_seconds(scenario),
        Kind::Load => load::step_seconds(scenario, cpus.len()),
        _ => scenario.run.seconds,
    };
    progress.say(&planned(steps, seconds));
    let simulated_only = simulated_only(scenario);
    if let Some((what, how)) = &simulated_only {
        progress.say(&format!("{}: {what}: {how}", scenario.name));
    }
    let seating = seating_of(scenario, &cpus);
    progress.say(&format!("{}: {seating}", scenario.name));
    feed.title(&scenario.name);
    feed.step("filling RocksDB");
    let service = Service::open(&scenario.workload, seating.workers[0], &progress)?;
    let before = Neighbours::now();
    let ground = Ground {
        scenario,
        cpus,
        service: Arc::new(service),
        progress,
        feed,
        recording: record
            .map(|directory| Recording::start(directory, &scenario.name, scenario.run.seed))
            .transpose()?,
        journal,
    };
    let found = match scenario.kind {
        Kind::Load => load::run(&ground),
        Kind::Ladder => ladder::run(&ground),
        Kind::Crash(times) => crash::run(&ground, times),
        Kind::Enclaves(enclaves) => enclaves::run(&ground, enclaves),
        Kind::Chaos(chaos) => chaos::run(&ground, chaos),
    }?;
    // The first ones are shown below the table.
    let by_rounds = found.paired.is_some() || found.ladder.is_some();
    let if_disturbed = match by_rounds {
        true => "this may widen intervals",
        false => "this may lengthen latencies",
    };
    let mut facts: Vec<_> = Neighbours::fact(Neighbours::since(before), journal, if_disturbed)
        .into_iter()
        .chain(found.facts)
        .collect();
    facts.extend(simulated_only);
    facts.extend(journal.fact());
    facts.extend(ground.recording.as_ref().map(|recording| recording.fact()));
    facts.extend(ground.service.facts());
    facts.extend(link_facts);
    let result = RunResult {
        scenario: scenario.name.clone(),
        host: "user".to_owned(),
        kind: kind_name(&scenario.kind).to_owned(),
        description: scenario.description.clone(),
        limit_us: SATURATION_LIMIT_US,
        seed: scenario.run.seed,
        version: machine::version().to_owned(),
        machine: machine::machine(ground.cpus.len()),
        seating: describe(&seating),
        started,
        variants: found.variants,
        paired: found.paired,
        ladder: found.ladder,
        facts,
        extra: found.extra,
    };
    Ok(Finished { result, failed: found.failed })
}

/// Maximum number of host cores that run at once.
fn most_cores(scenario: &Scenario) -> u32 {
    let cores = scenario.variants.iter().map(|variant| variant.host.cores).max().unwrap_or(0);
    match scenario.kind {
        Kind::Enclaves(enclaves) => cores * enclaves.count,
        _ => cores,
    }
}

/// Refuses more host cores than CPUs: they would take turns, and that would be measured as if it were scheduling. `field` gives their
/// number; the kind of scenario may have a simulated host.
fn enough_cpus(
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
fn enough_requests(
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
fn planned(points: u64, seconds: f64) -> String {
    let (all, seconds) = (points as f64 * seconds, (seconds * 1e3).round() / 1e3);
    let whole = match all {
        ..60.0 => format!("{all:.0} s"),
        60.0..7_200.0 => format!("{:.0} min", all / 60.0),
        _ => format!("{:.1} h", all / 3_600.0),
    };
    format!("{points} steps of {seconds} s or more: {whole} at least")
}

/// A fact for the report of a native run: `what`, a field of its scenario, is one that only simulated hosts have.
fn without_effect(what: &str) -> (String, String) {
    let why = "it applies to simulated hosts (--host sim); this run is on this machine";
    (format!("{what} has no effect here"), why.to_owned())
}

/// This fact, for the first such field.
fn simulated_only(scenario: &Scenario) -> Option<(String, String)> {
    let default = Machine::Builtin(defaults::MACHINE.to_owned());
    let machine =
        (scenario.machine != default).then(|| format!("host.machine = \"{}\"", scenario.machine));
    let ghz = || scenario.agents().find_map(|agent| agent.ghz);
    let what = machine.or_else(|| Some(format!("variant.agent_ghz = {}", ghz()?)))?;
    Some(without_effect(&what))
}

fn kind_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Load => "load",
        Kind::Ladder => "ladder",
        Kind::Crash(_) => "crash",
        Kind::Enclaves(_) => "enclaves",
        Kind::Chaos(_) => "chaos",
    }
}

/// The seating of the first variant; variants differ in the number of workers at most.
fn seating_of(scenario: &Scenario, cpus: &[usize]) -> Seating {
    let workers = scenario.variants[0].host.cores as usize;
    match scenario.kind {
        Kind::Enclaves(enclaves) => {
            let count = enclaves.count as usize;
            seating::seat(cpus, workers * count, count)
        }
        _ => seating::seat(cpus, workers, 1),
    }
}

fn describe(seating: &Seating) -> String {
    let tight = if seating.is_tight() {
        ". Too few CPUs for a seat each: threads that share one yield it between polls"
    } else {
        ""
    };
    format!("{seating}{tight}. The same seats in every placement.")
}

/// The scenario's classes, repeated `times` times (one set per enclave).
fn mix(workload: &Workload, times: u32) -> Mix {
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
fn pin_housekeeping(seating: &Seating, cpus: &[usize]) -> Result<(), Failure> {
    cpu::pin_current_thread_to(&seating.housekeeping(cpus)).map_err(Failure::cannot)
}

/// Pins the calling thread to the generator's CPU.
fn take_generators_seat(seating: &Seating) -> Result<(), Failure> {
    cpu::pin_current_thread(seating.generator).map_err(Failure::cannot)
}

/// An empty result for a variant.
fn variant_result(variant: &Variant) -> VariantResult {
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

    fn scenario(kind: &str, host: &str) -> Scenario {
        let text = format!(
            "name = \"x\"\nkind = \"{kind}\"\n[run]\nloads_per_second = [1]\n[host]\n{host}\n[[variant]]\n\
             name = \"a\"\nplacement = \"offload\"\npolicy = \"fifo\"\n"
        );
        wave_scenario::parse(Path::new("x.toml"), &text, wave_sched::policies::NAMES).unwrap()
    }

    #[test]
    fn more_host_cores_than_cpus_are_refused_natively() {
        let refused = |kind: &str, cores: u32, cpus| {
            let scenario = scenario(kind, &format!("cores = {cores}"));
            enough_cpus(most_cores(&scenario), cpus, &scenario.name, ("host.cores", true))
                .err()
                .map(|why| why.to_string())
        };
        assert_eq!(refused("load", 2, 2), None);
        assert!(refused("load", 64, 2).unwrap().contains("64 host cores at once (`host.cores`)"));
        // Two enclaves with that many cores each.
        assert_eq!(refused("enclaves", 1, 2), None);
        assert!(refused("enclaves", 2, 2).unwrap().contains("4 host cores at once"));
    }

    #[test]
    fn machine_of_a_native_run_is_reported_as_without_effect() {
        assert_eq!(simulated_only(&scenario("load", "machine = \"user\"")), None);
        let (what, _) = simulated_only(&scenario("load", "machine = \"ghost\"")).unwrap();
        assert_eq!(what, "host.machine = \"ghost\" has no effect here");
        let mut slow = scenario("load", "");
        slow.agents_mut().for_each(|agent| agent.ghz = Some(2.5));
        let (what, _) = simulated_only(&slow).unwrap();
        assert_eq!(what, "variant.agent_ghz = 2.5 has no effect here");
    }

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
