//! An open-loop load while the agent is killed over and over.
//!
//! In turn the agent's process is killed (SIGKILL) and stopped (SIGSTOP), at random moments. The
//! host must notice, decide by itself, and hand over to the next agent, which is started as soon
//! as it has. A stopped agent is continued once its replacement decides, and must leave by itself.
//! Every request must run exactly once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use rustix::process::Signal;
use serde_json::json;
use wave_user::Mode;
use wave_workloads::cpu;
use wave_workloads::generator::{self, Report};
use wave_workloads::point as measured;

use super::agent::AgentProcess;
use super::point::{DRAIN_PATIENCE, Terms, for_report};
use super::seating::{self, Seating};
use super::service::{Ran, Work};
use super::system::{Delta, Hosted, System};
use super::{Failure, Found, Ground, keep_house, mix, variant_result};
use crate::report::model::VariantResult;
use crate::scenario::{Agent, Crash, Load, Variant};

/// How often the killing thread looks who decides.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// How long the host may take to notice, and a turned out agent to leave.
const PATIENCE: Duration = Duration::from_secs(3);

/// Kills the agents of each variant in turn.
pub(super) fn run(ground: &Ground<'_>, times: Crash) -> Result<Found, Failure> {
    let mut found = Found::default();
    let mut tallies = Vec::new();
    for variant in &ground.scenario.variants {
        let agent = variant.agent().ok_or_else(|| {
            Failure::Scenario(format!("{}: a crash needs an agent", variant.name))
        })?;
        ground.progress.begin(&format!("{}: {} kills", variant.name, times.kills));
        let (result, tally) = one(ground, variant, agent, times)?;
        ground.progress.end();
        found.variants.push(result);
        found.failed.extend(tally.complaints(&variant.name, times.kills));
        tallies.push((variant.name.clone(), tally));
    }
    let all = Tally::sum(tallies.iter().map(|(_, tally)| tally));
    found.extra = all.to_json();
    found.extra["by_variant"] = tallies
        .iter()
        .map(|(name, tally)| {
            let mut json = tally.to_json();
            json["name"] = json!(name);
            json
        })
        .collect();
    Ok(found)
}

fn one(
    ground: &Ground<'_>,
    variant: &Variant,
    agent: &Agent,
    times: Crash,
) -> Result<(VariantResult, Tally), Failure> {
    let Load::Each(loads) = &ground.scenario.run.load else {
        return Err(Failure::Scenario("a crash needs one load".into()));
    };
    let rate = loads[0];
    let (workload, run) = (&ground.scenario.workload, &ground.scenario.run);
    let cores = variant.host.cores as usize;
    let seating = seating::seat(&ground.cpus, cores, 1);
    let mix = mix(workload, 1);
    // Poisson arrivals stay below this but once in the age of the universe.
    let ids_max = rate * run.seconds + 20.0 * (rate * run.seconds).sqrt() + 100.0;
    let work = Work::new(Arc::clone(&ground.service), &mix, cores, ids_max as usize);
    keep_house(&seating, &ground.cpus)?;
    let mut hosted = Hosted::start(variant.host, agent, &seating, 0, &seating.workers)?;
    let terms = Terms::new(workload, run, mix, &seating);
    let before = sample(&hosted);
    let (report, kills) = std::thread::scope(|scope| {
        let mut server = hosted.server(&work);
        let (terms, work, seating) = (&terms, &work, &seating);
        let generator = scope.spawn(move || -> Result<Report, Failure> {
            cpu::pin_current_thread(seating.generator).map_err(Failure::cannot)?;
            let load = terms.load(rate);
            Ok(generator::run(load, &terms.settings, &work.recorder, &mut server))
        });
        // Agents end with the thread that starts them: with this one, not the generator's.
        let kills = kill_over_and_over(&mut hosted, times, run.warmup_seconds, run.seed);
        let report = generator.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (report, kills)
    });
    let (report, kills) = (report?, kills?);
    work.recorder.drain(DRAIN_PATIENCE);
    let recorded = work.recorder.collect();
    let after = sample(&hosted);
    let tally = Tally {
        sent: report.submitted,
        refused: report.submitted - accepted(&work, &report),
        ran: work.ran(),
        failed: work.failed(),
        crashes: kills.len() as u64,
        kills,
    };
    let point = measured::Point::new(&report, &recorded);
    let mut result = variant_result(variant);
    result.points.push(for_report(&point, &Delta::between(&before, &after, cores)));
    Ok((result, tally))
}
