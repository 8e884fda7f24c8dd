//! One variant's system from start to end, and its points, one after the other.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wave_workloads::arrivals::Load;
use wave_workloads::generator::Settings;
use wave_workloads::point::{self as measured, Limits, SENSITIVITY_LIMITS_US, SearchResult};

use super::point::{self, Outcome, Terms};
use super::preemptions::Preempted;
use super::seating::{self, Seating};
use super::service::Work;
use super::system::System;
use super::verdict::{Rule, TRIES, Try, Watch, put_saturations};
use super::{Failure, Ground, keep_house, limits, mix, take_generators_seat, variant_result};
use crate::scenario::Variant;
use wave_report::model::VariantResult;

/// A running system, and the points run so far.
pub(super) struct Session<'a> {
    ground: &'a Ground<'a>,
    system: System,
    work: Arc<Work>,
    terms: Terms,
    seating: Seating,
    rule: Rule,
    outcomes: Vec<Outcome>,
    /// Prefix of its points' keys in the journal.
    key: String,
    /// Preemptions during points finished by an earlier run.
    preempted_before: Option<Preempted>,
}

/// A point as kept in the journal.
#[derive(Deserialize, Serialize)]
struct Kept {
    outcome: Outcome,
    /// Preemptions up to and including this point; None without an agent.
    preempted: Option<Preempted>,
    /// Time that the row had left after this point for repeating disturbed tries.
    patience: Duration,
}

impl<'a> Session<'a> {
    /// Starts the system and takes the generator's seat.
    pub fn start(ground: &'a Ground<'a>, variant: &Variant) -> Result<Session<'a>, Failure> {
        let cores = variant.host.cores as usize;
        let agents = usize::from(variant.agent().is_some());
        let seating = seating::seat(&ground.cpus, cores, agents);
        let workload = &ground.scenario.workload;
        let mix = mix(workload, 1);
        // Threads that Linux has taken off a CPU may hold a slot meanwhile.
        let slots = if agents > 0 { cores } else { cores + 16 };
        let work = Work::new(Arc::clone(&ground.service), &mix, slots);
        keep_house(&seating, &ground.cpus)?;
        let system = System::start(variant, &seating, &work, ground.logs(&variant.name))?;
        take_generators_seat(&seating)?;
        let terms = Terms::new(workload, &ground.scenario.run, mix, &seating);
        let rule = Rule::new(limits(workload), ground.patience);
        let session = Session {
            ground,
            system,
            work,
            terms,
            seating,
            rule,
            outcomes: Vec::new(),
            key: format!("{}, {}", ground.sessions.get(), variant.name),
            preempted_before: None,
        };
        session.watch();
        ground.sessions.set(ground.sessions.get() + 1);
        Ok(session)
    }

    /// Shows this system in the live view.
    fn watch(&self) {
        let enclave = match &self.system {
            System::Linux(_) => None,
            System::Enclave(hosted, _) => Some(Arc::downgrade(&hosted.enclave)),
        };
        self.ground.feed.watch(enclave.into_iter().collect(), &self.work);
    }

    /// Runs one point by the common rule, up to `most` times, unless an earlier run has finished it.
    fn tries(&mut self, per_second: f64, most: usize) -> Result<(), Failure> {
        let key = format!("{}, {}: {per_second}", self.key, self.outcomes.len());
        let mut ran = false;
        let kept = self.ground.journal.point(&key, || {
            ran = true;
            let mut rule = self.rule.clone();
            let (load, settings) = (self.terms.load(per_second), self.terms.settings);
            let outcome = rule.load(most, || self.load(load.clone(), &settings))?;
            self.rule = rule;
            let patience = self.rule.patience;
            Ok(Kept { outcome, preempted: self.all_preemptions(), patience })
        })?;
        if !ran {
            self.resume(kept.preempted);
            self.rule.patience = kept.patience;
        }
        self.outcomes.push(kept.outcome);
        Ok(())
    }

    pub fn point(&mut self, per_second: f64) -> Result<(), Failure> {
        self.tries(per_second, 1)
    }

    /// Runs any load once, outside of the session's points.
    pub fn load(&mut self, load: Load, settings: &Settings) -> Result<Outcome, Failure> {
        let watch = Watch::start(&self.seating);
        let (mut outcome, lost) = self.once(load, settings, Some(watch))?;
        lost.inspect(|why| outcome.invalidate(why));
        Ok(outcome)
    }

    /// One trial of a round: the load `per_second`, with arrivals by `seed`. Nothing is set aside. Also returns why the host lost
    /// its agent meanwhile, if it did.
    pub fn trial(
        &mut self,
        per_second: f64,
        seed: u64,
        settings: &Settings,
    ) -> Result<(Outcome, Option<String>), Failure> {
        self.watch();
        let terms = Terms { seed, ..self.terms.clone() };
        self.work.recorder.keep_all();
        self.once(terms.load(per_second), settings, None)
    }

    fn once(
        &mut self,
        load: Load,
        settings: &Settings,
        watch: Option<Watch>,
    ) -> Result<(Outcome, Option<String>), Failure> {
        let Session { system, work, seating, .. } = self;
        let outcome = point::run(system, work, load, settings, seating, watch)?;
        let lost = match system {
            System::Linux(_) => None,
            System::Enclave(hosted, _) => hosted.replace_lost_agent()?,
        };
        Ok((outcome, lost))
    }

    /// Preemptions so far; None if there were none.
    pub fn preemptions(&self) -> Option<Preempted> {
        self.all_preemptions().filter(|preempted| !preempted.is_nothing())
    }

    /// Preemptions so far, even if there were none; None without an agent.
    pub fn all_preemptions(&self) -> Option<Preempted> {
        let System::Enclave(hosted, _) = &self.system else { return None };
        let mut preempted = Preempted::of(&hosted.enclave);
        preempted.add(self.preempted_before.as_ref().unwrap_or(&Preempted::default()));
        Some(preempted)
    }

    /// Continues an earlier run, which had these preemptions.
    pub fn resume(&mut self, preempted: Option<Preempted>) {
        self.preempted_before = preempted;
    }

    /// Parameters of its points.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Limits within which a load counts as served.
    pub fn limits(&self) -> &Limits {
        &self.rule.limits
    }

    /// The system under load, and the work of its requests.
    pub fn parts(&mut self) -> (&mut System, &Work) {
        (&mut self.system, &self.work)
    }

    /// Searches for saturation between `low` and `high` with at most `probes` loads, each tried up to [`TRIES`] times.
    pub fn search(&mut self, low: f64, high: f64, probes: u32) -> Result<SearchResult, Failure> {
        let mut failure = None;
        let limits = self.rule.limits.clone();
        let run = |per_second| match self.tries(per_second, TRIES) {
            Ok(()) => self.outcomes.last().expect("a point was just run").measured.clone(),
            Err(error) => {
                failure.get_or_insert(error);
                failed_point(per_second)
            }
        };
        let result = measured::search(run, low, high, probes as usize, &limits);
        failure.map_or(Ok(result), Err)
    }

    /// Runs one point of a series of rising loads. When searching for saturation, a load is tried up to [`TRIES`] times, unless
    /// a lower one was not served.
    pub fn step(&mut self, per_second: f64, looks_for_saturation: bool) -> Result<(), Failure> {
        let points = self.outcomes.iter().map(|outcome| &outcome.measured);
        let most = if looks_for_saturation { self.rule.most(points, per_second) } else { 1 };
        self.tries(per_second, most)
    }

    /// Runs `loads` more points near the saturation found so far.
    pub fn refine(&mut self, loads: u32) -> Result<(), Failure> {
        for _ in 0..loads {
            let points: Vec<_> = self.outcomes.iter().map(|each| each.measured.clone()).collect();
            let Some(load) = measured::next_probe(&points, &self.rule.limits) else { break };
            self.tries(load, TRIES)?;
        }
        Ok(())
    }

    /// Stops the system, and returns its points and saturation.
    pub fn finish(self, variant: &Variant) -> VariantResult {
        let preemptions = self.preemptions().map(|preempted| preempted.report());
        VariantResult { preemptions, ..variant_found(variant, &self.rule.limits, self.outcomes) }
    }

    /// Stops the system, and returns its points.
    pub fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes
    }
}

/// The result of a variant's points.
pub(super) fn variant_found(
    variant: &Variant,
    limits: &Limits,
    mut outcomes: Vec<Outcome>,
) -> VariantResult {
    outcomes
        .sort_by(|a, b| a.measured.offered_per_second.total_cmp(&b.measured.offered_per_second));
    let points: Vec<measured::Point> =
        outcomes.iter().map(|outcome| outcome.measured.clone()).collect();
    let mut result = variant_result(variant);
    put_saturations(&mut result, &points, limits, &SENSITIVITY_LIMITS_US);
    // The point nearest to saturation.
    let nearest = outcomes.iter().rfind(|outcome| {
        let sustained = result.saturation_per_second;
        sustained.is_none_or(|load| outcome.measured.offered_per_second <= load)
    });
    let account = nearest.filter(|outcome| !outcome.account.is_empty());
    result.account_per_second = account.map(|outcome| outcome.measured.offered_per_second);
    result.account = account.map(|outcome| outcome.account.clone()).unwrap_or_default();
    result.points = outcomes.into_iter().map(|outcome| outcome.report).collect();
    result
}

/// Stands in a search for a point that could not be run: nothing was served, which soon ends the search.
pub fn failed_point(per_second: f64) -> measured::Point {
    measured::Point {
        offered_per_second: per_second,
        achieved_per_second: 0.0,
        sent: 1,
        done: 0,
        set_aside: 0,
        refused: 0,
        duration_s: 1.0,
        classes: Vec::new(),
        generator: measured::GeneratorLag {
            lag_p50_ns: 0,
            lag_p99_ns: 0,
            lag_max_ns: 0,
            valid: true,
            why_invalid: None,
        },
    }
}
