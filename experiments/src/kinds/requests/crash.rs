//! An open-loop load while the agent is killed over and over.
//!
//! The agent's process is killed (SIGKILL) and stopped (SIGSTOP) in turn, at random moments. The host must notice, decide
//! without an agent, and hand over to the next agent, which is started as soon as the host has noticed. A stopped agent is
//! continued once its replacement decides, and must leave on its own. Every request must run exactly once. Requests keep coming
//! until the last kill is over, however long kills take and however late the generator is: the loss of a stopped agent goes
//! unnoticed while no thread waits for it.

use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use wave_agent::TURNED_OUT;
use wave_process::cpus;
use wave_user::Mode;
use wave_workloads::generator::{self, Refused, Report, Request, Server};
use wave_workloads::point as measured;
use wave_workloads::recorder::Latency;

use crate::ground::point::{DRAIN_PATIENCE, Terms, with_use};
use crate::ground::service::{Ran, Work};
use crate::ground::system::{Delta, EnclaveServer, Hosted, Sample};
use crate::ground::{
    Failure, Found, Ground, limits, mix, pin_housekeeping, seating, variant_result,
};
use crate::kinds::requests::scenario::{Agent, Crash, Variant};
use wave_report::model::VariantResult;

/// Polling interval of the killing thread, which watches what decides.
const POLL_EVERY: Duration = Duration::from_micros(50);
/// Time allowed for the host to notice, and for a turned-out agent to leave.
const PATIENCE: Duration = Duration::from_secs(3);

/// Kills the agents of each variant in turn.
pub(crate) fn run(ground: &Ground<'_>, times: Crash) -> Result<Found, Failure> {
    let mut found = Found::default();
    let mut tallies = Vec::new();
    for variant in &ground.scenario.variants {
        let agent = variant.agent().ok_or_else(|| {
            Failure::Scenario(format!("{}: a crash needs an agent", variant.name))
        })?;
        ground.begin(&format!("{}: {} kills", variant.name, times.kills));
        let (result, tally) =
            ground.journal.point(&variant.name, || one(ground, variant, agent, times))?;
        ground.end();
        found.variants.push(result);
        found.failed.extend(tally.complaints(&variant.name, times.kills));
        tallies.push((variant.name.clone(), tally));
    }
    found.extra = extra(&tallies);
    Ok(found)
}

/// The total of all tallies, and each tally by its variant's name.
pub(crate) fn extra(tallies: &[(String, Tally)]) -> serde_json::Value {
    let all = Tally::sum(tallies.iter().map(|(_, tally)| tally));
    let mut extra = all.to_json();
    extra["by_variant"] = tallies
        .iter()
        .map(|(name, tally)| {
            let mut json = tally.to_json();
            json["name"] = json!(name);
            json
        })
        .collect();
    extra
}

fn one(
    ground: &Ground<'_>,
    variant: &Variant,
    agent: &Agent,
    times: Crash,
) -> Result<(VariantResult, Tally), Failure> {
    let (workload, run) = (&ground.scenario.workload, &ground.scenario.run);
    let cores = variant.host.cores as usize;
    let seating = seating::seat(&ground.cpus, cores, 1);
    let mix = mix(workload, 1);
    let work = Work::new(Arc::clone(&ground.service), &mix, cores);
    pin_housekeeping(&seating, &ground.cpus)?;
    let logs = ground.logs(&variant.name);
    let mut hosted = Hosted::start(variant.host, agent, &seating, 0, &seating.workers, logs)?;
    ground.feed.watch(vec![Arc::downgrade(&hosted.enclave)], &work);
    let mut terms = Terms::new(workload, run, mix, &seating);
    // The question is whether requests are lost, not how soon they are sent.
    terms.settings.give_up_lag_ns = u64::MAX;
    let is_over = AtomicBool::new(false);
    let before = Sample::of(&[&hosted]);
    let (generated, kills) = std::thread::scope(|scope| {
        let server = hosted.server(&work);
        let (terms, work, seating, is_over) = (&terms, &work, &seating, &is_over);
        let mut server = Counting { server, work, is_over };
        let generator = scope.spawn(move || -> Result<(Report, u64), Failure> {
            cpus::pin(&[seating.generator]).map_err(Failure::cannot)?;
            let load = terms.load(times.load_per_second);
            let report = generator::run(load, &terms.settings, &work.recorder, &mut server);
            Ok((report, server.server.refused))
        });
        // Agents end with the thread that starts them: this one, not the generator's.
        let kills = kill_over_and_over(&mut hosted, times, run.warmup_seconds, run.seed);
        is_over.store(true, Ordering::SeqCst);
        let generated = generator.join();
        (generated.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), kills)
    });
    let ((report, refused), kills) = (generated?, kills?);
    work.recorder.drain(DRAIN_PATIENCE);
    let recorded = work.recorder.collect();
    let after = Sample::of(&[&hosted]);
    let point = measured::Point::new(&report, &recorded);
    let headline = point.latency(&limits(workload).class).copied().unwrap_or_default();
    let tally = Tally {
        sent: report.submitted,
        refused,
        ran: work.ran(),
        failed: work.failed(),
        kills,
        latencies: vec![(variant.name.clone(), headline)],
    };
    let mut result = variant_result(variant);
    result.points.push(with_use(point, &Delta::between(&before, &after, cores)));
    Ok((result, tally))
}

/// Counts every request's runs, and takes requests until the kills are over.
struct Counting<'a> {
    server: EnclaveServer,
    work: &'a Work,
    is_over: &'a AtomicBool,
}

impl Server for Counting<'_> {
    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        if !self.work.expect(request.id) {
            self.server.refused += 1;
            return Err(Refused);
        }
        self.server.submit(request)
    }

    fn wants_more(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Kill {
    /// Time from the signal until the host decided without an agent.
    pub fallback: Duration,
    /// Time from starting the next agent's process until it decided.
    pub takeover: Duration,
    /// Whether the signal was SIGSTOP, whose effect only the watchdog notices.
    pub stopped: bool,
    /// Whether the stopped agent failed to leave after it was continued.
    pub stayed: bool,
}

fn kill_over_and_over(
    hosted: &mut Hosted,
    times: Crash,
    warmup_seconds: f64,
    seed: u64,
) -> Result<Vec<Kill>, Failure> {
    let mut random = Pcg64::seed_from_u64(seed);
    let every = Duration::from_millis(times.every_ms);
    let start = Instant::now() + Duration::from_secs_f64(warmup_seconds);
    let mut kills = Vec::with_capacity(times.kills as usize);
    for round in 0..times.kills {
        // Early enough in its turn that the next agent has attached before the next kill.
        let at = start + every * round + every.mul_f64(random.random_range(0.05..0.5));
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let stopped = round % 2 == 1;
        kills.push(kill(hosted, stopped)?);
    }
    Ok(kills)
}

fn kill(hosted: &mut Hosted, stopped: bool) -> Result<Kill, Failure> {
    let mut old = hosted.agent.take().ok_or_else(|| Failure::Cannot("no agent to kill".into()))?;
    let signal = if stopped { Signal::STOP } else { Signal::KILL };
    let start = Instant::now();
    old.signal(signal).map_err(Failure::cannot)?;
    while hosted.enclave.mode() != Mode::Fallback {
        if start.elapsed() > PATIENCE {
            let text = format!("the host did not notice the loss of its agent ({signal:?})");
            return Err(Failure::Check(text));
        }
        std::thread::sleep(POLL_EVERY);
    }
    let fallback = start.elapsed();
    let start = Instant::now();
    hosted.start_agent()?;
    let takeover = start.elapsed();
    let mut stayed = false;
    if stopped {
        // The agent continues where it was stopped, in a window without a reader.
        old.signal(Signal::CONT).map_err(Failure::cannot)?;
        stayed = !old.wait_for_end(PATIENCE).is_some_and(left_by_itself);
    }
    Ok(Kill { fallback, takeover, stopped, stayed })
}

/// Whether an agent that lost its window noticed: it was turned out, or found its connection closed by the host.
fn left_by_itself(status: ExitStatus) -> bool {
    status.success() || status.code() == Some(TURNED_OUT.into())
}

/// Counts of requests and agents.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Tally {
    pub sent: u64,
    pub refused: u64,
    pub ran: Ran,
    pub failed: u64,
    pub kills: Vec<Kill>,
    pub latencies: Vec<(String, Latency)>,
}

impl Tally {
    fn sum<'a>(all: impl Iterator<Item = &'a Tally>) -> Tally {
        all.fold(Tally::default(), |mut sum, tally| {
            sum.sent += tally.sent;
            sum.refused += tally.refused;
            sum.ran.done += tally.ran.done;
            sum.ran.doubled += tally.ran.doubled;
            sum.failed += tally.failed;
            sum.kills.extend(&tally.kills);
            sum.latencies.extend(tally.latencies.iter().cloned());
            sum
        })
    }

    /// Accepted requests that never ran.
    fn lost(&self) -> u64 {
        (self.sent - self.refused).saturating_sub(self.ran.done)
    }

    fn to_json(&self) -> serde_json::Value {
        let max_ms = |which: &dyn Fn(&Kill) -> Option<Duration>| {
            let longest = self.kills.iter().filter_map(which).max();
            longest.map(|longest| (longest.as_secs_f64() * 1e6).round() / 1e3)
        };
        let latencies: serde_json::Map<String, serde_json::Value> =
            self.latencies.iter().map(|(name, latency)| (name.clone(), json!(latency))).collect();
        json!({
            "requests_sent": self.sent,
            "requests_done": self.ran.done,
            "requests_refused": self.refused,
            "requests_lost": self.lost(),
            "requests_doubled": self.ran.doubled,
            "crashes": self.kills.len(),
            "fallback_ms_max": max_ms(&|kill| Some(kill.fallback)),
            "fallback_after_kill_ms_max": max_ms(&|kill| (!kill.stopped).then_some(kill.fallback)),
            "fallback_after_stop_ms_max": max_ms(&|kill| kill.stopped.then_some(kill.fallback)),
            "takeover_ms_max": max_ms(&|kill| Some(kill.takeover)),
            "latency": latencies,
        })
    }

    pub fn complaints(&self, variant: &str, kills: u32) -> Vec<String> {
        let stayed = self.kills.iter().filter(|kill| kill.stayed).count() as u64;
        let missing = u64::from(kills) - self.kills.len() as u64;
        [
            (self.lost(), "accepted requests were lost"),
            (self.ran.doubled, "requests ran more than once"),
            (self.failed, "GETs failed in RocksDB"),
            (stayed, "stopped agents did not leave after they were continued"),
            (missing, "kills did not take place"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{variant}: {count} {what}"))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn tally() -> Tally {
        let kill = |ms, stopped| Kill {
            fallback: Duration::from_millis(ms),
            takeover: Duration::from_millis(3),
            stopped,
            stayed: false,
        };
        Tally {
            sent: 100,
            refused: 4,
            ran: Ran { done: 96, doubled: 0 },
            kills: vec![kill(1, false), kill(21, true)],
            ..Tally::default()
        }
    }

    #[test]
    fn no_complaint_if_every_accepted_request_ran_once() {
        assert_eq!(tally().complaints("a", 2), Vec::<String>::new());
        let json = tally().to_json();
        assert_eq!(json["requests_lost"], 0);
        assert_eq!(json["fallback_ms_max"], 21.0);
        assert_eq!(json["fallback_after_kill_ms_max"], 1.0);
    }

    #[test]
    fn each_kind_of_failure_has_its_own_complaint() {
        let mut bad = tally();
        bad.ran = Ran { done: 90, doubled: 2 };
        bad.kills[1].stayed = true;
        let complaints = bad.complaints("a", 3);
        let counts = ["6 accepted", "2 requests ran", "1 stopped", "1 kills"];
        assert_eq!(complaints.len(), counts.len());
        for (complaint, count) in complaints.iter().zip(counts) {
            assert!(complaint.starts_with(&format!("a: {count}")), "{complaint}");
        }
    }

    #[test]
    fn turned_out_or_successful_agent_has_left_by_itself() {
        let left = |status| left_by_itself(ExitStatus::from_raw(status));
        let (exit, killed) = (|code: i32| code << 8, Signal::KILL.as_raw());
        assert!(left(exit(0)) && left(exit(TURNED_OUT.into())));
        assert!(!left(exit(1)) && !left(exit(4)) && !left(killed));
    }

    #[test]
    fn tallies_of_variants_add_up() {
        let sum = Tally::sum([tally(), tally()].iter());
        assert_eq!((sum.sent, sum.ran.done, sum.kills.len(), sum.lost()), (200, 192, 4, 0));
        assert_eq!(Tally::default().to_json()["fallback_ms_max"], serde_json::Value::Null);
    }
}
