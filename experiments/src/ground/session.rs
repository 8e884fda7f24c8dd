//! One variant's system from start to end, and its trials, one after the other.

use std::sync::Arc;
use std::time::Duration;

use wave_workloads::arrivals::Load;
use wave_workloads::generator::Settings;
use wave_workloads::point as measured;

use super::point::{self, Outcome, Terms};
use super::preemptions::Preempted;
use super::seating;
use super::service::Work;
use super::system::System;
use super::{Failure, Ground, mix, pin_housekeeping, take_generators_seat};
use crate::kinds::requests::scenario::Variant;

/// A running system.
pub(crate) struct Session<'a> {
    ground: &'a Ground<'a>,
    system: System,
    work: Arc<Work>,
    terms: Terms,
    cores: usize,
    /// Preemptions during trials finished by an earlier run.
    preempted_before: Option<Preempted>,
}

impl<'a> Session<'a> {
    /// Starts the system and takes the generator's seat.
    pub fn start(ground: &'a Ground<'a>, variant: &Variant) -> Result<Session<'a>, Failure> {
        let cores = variant.host.cores as usize;
        let agents = usize::from(variant.agent().is_some());
        let seating = seating::seat(&ground.cpus, cores, agents);
        let (workload, run) = (&ground.scenario.workload, &ground.scenario.run);
        let mix = mix(workload, 1);
        // Threads that Linux has taken off a CPU may hold a slot meanwhile.
        let slots = if agents > 0 { cores } else { cores + 16 };
        let work = Work::new(Arc::clone(&ground.service), &mix, slots);
        pin_housekeeping(&seating, &ground.cpus)?;
        let system = System::start(variant, &seating, &work, ground.logs(&variant.name))?;
        take_generators_seat(&seating)?;
        let mut terms = Terms::new(workload, run, mix, &seating);
        let trials = run.trials();
        terms.settings.warm_up = Duration::from_secs_f64(trials.warmup_seconds);
        terms.settings.duration = Duration::from_secs_f64(trials.measured_seconds);
        // A request that is never sent would be missing among the slow ones.
        terms.settings.give_up_lag_ns = u64::MAX;
        let session = Session { ground, system, work, terms, cores, preempted_before: None };
        session.watch();
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

    /// Runs the load `per_second` once, with arrivals by `seed`. Also returns why the host lost its agent meanwhile, if it did.
    pub fn trial(
        &mut self,
        per_second: f64,
        seed: u64,
        settings: &Settings,
    ) -> Result<(Outcome, Option<String>), Failure> {
        self.watch();
        let terms = Terms { seed, ..self.terms.clone() };
        self.load(terms.load(per_second), settings)
    }

    /// Runs any load once.
    pub fn load(
        &mut self,
        load: Load,
        settings: &Settings,
    ) -> Result<(Outcome, Option<String>), Failure> {
        let Session { system, work, cores, .. } = self;
        let outcome = point::run(system, work, load, settings, *cores)?;
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

    /// Parameters of its trials.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The system under load, and the work of its requests.
    pub fn parts(&mut self) -> (&mut System, &Work) {
        (&mut self.system, &self.work)
    }
}

/// Stands in a search for a point that could not be run: nothing was served, which soon ends the search.
pub fn failed_point(per_second: f64) -> measured::Point {
    measured::Point {
        offered_per_second: per_second,
        achieved_per_second: 0.0,
        sent: 1,
        done: 0,
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
