//! One variant's system, from its start to its end, and its points one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wave_workloads::generator::Settings;
use wave_workloads::point::{
    self as measured, Limits, SENSITIVITY_LIMITS_US, SearchResult, Verdict,
};

use super::point::{self, Outcome, Terms};
use super::preemptions::Preempted;
use super::seating;
use super::service::Work;
use super::system::System;
use super::{Failure, Ground, keep_house, limits, mix, take_generators_seat, variant_result};
use crate::report::model::VariantResult;
use crate::scenario::{Threads, Variant};

/// How often a load that a search asks for is tried, at most.
pub(super) const TRIES: usize = 3;

/// A system that is up, and the points that were run.
pub(super) struct Session<'a> {
    ground: &'a Ground<'a>,
    system: System,
    work: Arc<Work>,
    terms: Terms,
    cores: usize,
    own_cpus: bool,
    limits: Limits,
    outcomes: Vec<Outcome>,
}

impl<'a> Session<'a> {
    /// Starts the system and takes the generator's seat.
    pub fn start(ground: &'a Ground<'a>, variant: &Variant) -> Result<Session<'a>, Failure> {
        let cores = variant.host.cores as usize;
        let agents = usize::from(variant.agent().is_some());
        let seating = seating::seat(&ground.cpus, cores, agents);
        let workload = &ground.scenario.workload;
        let mix = mix(workload, 1);
        // Threads that Linux takes off a CPU may hold a slot meanwhile.
        let slots = if agents > 0 { cores } else { cores + 16 };
        let work = Work::new(Arc::clone(&ground.service), &mix, slots, 0);
        keep_house(&seating, &ground.cpus)?;
        let system = System::start(variant, &seating, &work, ground.logs(&variant.name))?;
        let enclave = match &system {
            System::Linux(_) => None,
            System::Enclave(hosted, _) => Some(Arc::downgrade(&hosted.enclave)),
        };
        ground.feed.watch(enclave.into_iter().collect(), &work);
        take_generators_seat(&seating)?;
        let terms = Terms::new(workload, &ground.scenario.run, mix, &seating);
        let limits = limits(workload);
        // Kernel-level threads wait for each other on their core's CPU, as they should.
        let own_cpus = !seating.workers_yield && variant.host.threads == Threads::User;
        let outcomes = Vec::new();
        Ok(Session { ground, system, work, terms, cores, own_cpus, limits, outcomes })
    }

    /// Runs one point; again, where other processes took CPU time from it and there is time left
    /// for that.
    pub fn point(&mut self, per_second: f64) -> Result<(), Failure> {
        let outcome = loop {
            let start = Instant::now();
            let outcome = self.single_point(per_second)?;
            let left = self.ground.patience.get();
            if !outcome.disturbed || left.is_zero() {
                break outcome;
            }
            // A neighbour that is at it now may be done a little later.
            std::thread::sleep(Duration::from_millis(300));
            self.ground.patience.set(left.saturating_sub(start.elapsed()));
            self.ground.repeated.set(self.ground.repeated.get() + 1);
        };
        self.outcomes.push(outcome);
        Ok(())
    }

    fn single_point(&mut self, per_second: f64) -> Result<Outcome, Failure> {
        let (load, settings) = (self.terms.load(per_second), self.terms.settings);
        self.load(load, &settings)
    }

    /// Runs any load, once. It is none of the session's points.
    pub fn load(
        &mut self,
        load: wave_workloads::arrivals::Load,
        settings: &Settings,
    ) -> Result<Outcome, Failure> {
        let Session { system, work, cores, own_cpus, .. } = self;
        let mut outcome = point::run(system, work, load, settings, *cores, *own_cpus)?;
        if let System::Enclave(hosted, _) = system
            && let Some(why) = hosted.replace_lost_agent()?
        {
            outcome.invalidate(&why);
        }
        Ok(outcome)
    }

    /// The share of its points so far that other processes disturbed.
    pub fn disturbed(&self) -> f64 {
        let disturbed = self.outcomes.iter().filter(|outcome| outcome.disturbed).count();
        disturbed as f64 / self.outcomes.len().max(1) as f64
    }

    /// How its runs were preempted so far, if they were at all.
    pub fn preemptions(&self) -> Option<Preempted> {
        let System::Enclave(hosted, _) = &self.system else { return None };
        let preempted = Preempted::of(&hosted.enclave);
        (!preempted.is_nothing()).then_some(preempted)
    }

    /// What its points are run with.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What is under load, and what its requests do.
    pub fn parts(&mut self) -> (&mut System, &Work) {
        (&mut self.system, &self.work)
    }

    /// Looks for saturation between `low` and `high` with at most `probes` loads.
    ///
    /// A load that was served too slowly is tried up to [`TRIES`] times, as a slow moment of the
    /// machine looks the same; it counts as served if it was in one of them. That is so for every
    /// variant alike.
    pub fn search(&mut self, low: f64, high: f64, probes: u32) -> Result<SearchResult, Failure> {
        let mut failure = None;
        let limits = self.limits.clone();
        let run = |per_second| match self.tries(per_second) {
            Ok(point) => point,
            Err(error) => {
                failure.get_or_insert(error);
                failed_point(per_second)
            }
        };
        let result = measured::search(run, low, high, probes as usize, &limits);
        failure.map_or(Ok(result), Err)
    }

    /// Runs one point of several under higher and higher loads. Where its saturation is looked for, one
    /// that was served too slowly is tried again, unless a lower load was served no better.
    pub fn step(&mut self, per_second: f64, looks_for_saturation: bool) -> Result<(), Failure> {
        let is_saturated =
            |outcome: &Outcome| outcome.measured.verdict(&self.limits) == Verdict::Saturated;
        if looks_for_saturation && !self.outcomes.last().is_some_and(is_saturated) {
            self.tries(per_second).map(drop)
        } else {
            self.point(per_second)
        }
    }

    /// Runs `loads` more where its saturation lies by what was run so far.
    pub fn refine(&mut self, loads: u32) -> Result<(), Failure> {
        for _ in 0..loads {
            let points: Vec<_> = self.outcomes.iter().map(|each| each.measured.clone()).collect();
            let Some(load) = measured::next_probe(&points, &self.limits) else { break };
            self.tries(load)?;
        }
        Ok(())
    }

    /// Runs a point, again if it was served too slowly, up to [`TRIES`] times.
    fn tries(&mut self, per_second: f64) -> Result<measured::Point, Failure> {
        let mut tries = 1;
        loop {
            self.point(per_second)?;
            let point = &self.outcomes.last().expect("a point was just run").measured;
            let slow = point.verdict(&self.limits) == Verdict::Saturated
                && point.served() >= self.limits.served;
            if !slow || tries == TRIES {
                return Ok(point.clone());
            }
            tries += 1;
            // The next try takes its place.
            self.outcomes.pop();
        }
    }

    /// The system ends; its points and saturation are what is left.
    pub fn finish(self, variant: &Variant) -> VariantResult {
        let preemptions = self.preemptions().map(|preempted| preempted.report());
        VariantResult { preemptions, ..variant_found(variant, &self.limits, self.outcomes) }
    }

    /// The system ends; its points are what is left.
    pub fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes
    }
}

/// What the points of a variant come to.
pub(super) fn variant_found(
    variant: &Variant,
    limits: &Limits,
    mut outcomes: Vec<Outcome>,
) -> VariantResult {
    outcomes
        .sort_by(|a, b| a.measured.offered_per_second.total_cmp(&b.measured.offered_per_second));
    let points: Vec<measured::Point> =
        outcomes.iter().map(|outcome| outcome.measured.clone()).collect();
    let saturation = |limits: &Limits| {
        measured::saturation(&points, limits).map(|point| point.offered_per_second)
    };
    let mut result = variant_result(variant);
    result.saturation_per_second = saturation(limits);
    result.saturation_by_limit = SENSITIVITY_LIMITS_US
        .iter()
        .filter_map(|&limit_us| {
            let limits = Limits { p99_ns: limit_us * 1_000, ..limits.clone() };
            Some((limit_us as u32, saturation(&limits)?))
        })
        .collect();
    // As near to saturation as there is a point.
    let nearest = outcomes.iter().rfind(|outcome| {
        let sustained = result.saturation_per_second;
        sustained.is_none_or(|load| outcome.measured.offered_per_second <= load)
    });
    result.account = nearest.map(|outcome| outcome.account.clone()).unwrap_or_default();
    result.points = outcomes.into_iter().map(|outcome| outcome.report).collect();
    result
}

/// What a search is told instead of a point that could not be run: nothing was served, which ends
/// it soon.
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
