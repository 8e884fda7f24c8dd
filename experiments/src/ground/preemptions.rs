//! An enclave's preemptions, for results.

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_sched::policies;
use wave_user::{CoreStats, Enclave, Times};

use wave_report::model::{self, Preemptions, Spread};
use wave_report::number::micros;

/// Runs longer than the slice by this factor were not ended in time.
const SLICE_TOLERANCE: f64 = 1.5;
/// Minimum number of preemptions for a warning.
const ENOUGH: u64 = 100;

/// Preemptions on all cores of an enclave.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Preempted {
    counts: Preemptions,
    #[serde(with = "times")]
    deferrals: Times,
    #[serde(with = "times")]
    runs: Times,
    worst: Option<model::WorstDeferral>,
    /// Duration of the longest stall in nanoseconds, and its description.
    longest_stall: Option<(u64, String)>,
}

/// Serializes times as their histogram and the longest, in nanoseconds.
mod times {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use wave_core::clock::Nanos;
    use wave_user::Times;

    pub fn serialize<S: Serializer>(times: &Times, to: S) -> Result<S::Ok, S::Error> {
        (times.buckets(), times.max.0).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Times, D::Error> {
        let (buckets, max) = <(Vec<u64>, u64)>::deserialize(from)?;
        let wrong = || serde::de::Error::custom("wrong number of buckets");
        Times::from_buckets(&buckets, Nanos(max)).ok_or_else(wrong)
    }
}

impl Preempted {
    /// Preemptions since the enclave's start.
    pub fn of(enclave: &Enclave) -> Preempted {
        let cores = enclave.stats().cores;
        let sum = |of: fn(&CoreStats) -> u64| cores.iter().map(of).sum::<u64>();
        let (stalls, first_stalls) = enclave.stalls();
        let counts = Preemptions {
            preempted: sum(|core| core.preempted),
            ended_first: sum(|core| core.ended_first),
            sliced_by_core: sum(|core| core.sliced),
            deferred_inside_runtime: sum(|core| core.deferred_inside),
            refused_unwinding: sum(|core| core.refused_unwinding),
            stalls,
            ..Preemptions::default()
        };
        let (mut deferrals, mut runs) = (Times::default(), Times::default());
        for core in &cores {
            deferrals.merge(&core.deferrals);
            runs.merge(&core.preempted_runs);
        }
        let worst = enclave.worst_deferrals().into_iter().map(|(_, worst)| model::WorstDeferral {
            deferred_ns: worst.deferred.0,
            class: worst.class,
            stack: worst.stack,
        });
        let worst = worst.max_by_key(|worst| worst.deferred_ns);
        let longest_stall = first_stalls.into_iter().max_by_key(|stall| stall.lasted);
        let longest_stall = longest_stall.map(|stall| (stall.lasted.0, stall.to_string()));
        Preempted { counts, deferrals, runs, worst, longest_stall }
    }

    /// Adds those of another enclave.
    pub fn add(&mut self, other: &Preempted) {
        let (counts, others) = (&mut self.counts, &other.counts);
        counts.preempted += others.preempted;
        counts.ended_first += others.ended_first;
        counts.sliced_by_core += others.sliced_by_core;
        counts.deferred_inside_runtime += others.deferred_inside_runtime;
        counts.refused_unwinding += others.refused_unwinding;
        counts.stalls += others.stalls;
        self.deferrals.merge(&other.deferrals);
        self.runs.merge(&other.runs);
        let worst = [self.worst.take(), other.worst.clone()].into_iter().flatten();
        self.worst = worst.max_by_key(|worst| worst.deferred_ns);
        let stalls = [self.longest_stall.take(), other.longest_stall.clone()].into_iter().flatten();
        self.longest_stall = stalls.max_by_key(|(lasted_ns, _)| *lasted_ns);
    }

    /// Number of runs ended by preemption.
    pub fn count(&self) -> u64 {
        self.counts.preempted + self.counts.sliced_by_core
    }

    /// Whether there was no preemption, and no request for one.
    pub fn is_nothing(&self) -> bool {
        self.count() + self.counts.ended_first + self.counts.stalls == 0
    }

    pub fn report(&self) -> Preemptions {
        let spread = |times: &Times| {
            let [p50_ns, p99_ns] = [0.5, 0.99].map(|share| times.within(share).0);
            Spread { p50_ns, p99_ns, max_ns: times.max.0 }
        };
        Preemptions {
            deferral: spread(&self.deferrals),
            run: spread(&self.runs),
            worst_deferral: self.worst.clone(),
            longest_stall: self.longest_stall.as_ref().map(|(_, stall)| stall.clone()),
            ..self.counts.clone()
        }
    }

    /// Facts for the report: what happened, and how it is known. `policy` is the one that asked for preemptions.
    pub fn facts(&self, variant: &str, policy: &str) -> Vec<(String, String)> {
        let counts = &self.counts;
        let us = |Nanos(ns)| micros(ns);
        let [half, most] = [0.5, 0.99].map(|share| us(self.deferrals.within(share)));
        let what = format!(
            "{variant}: {} preemptions; {} more arrived as the run was ending",
            self.count(),
            counts.ended_first
        );
        let mut how = Vec::new();
        if counts.preempted > 0 {
            how.push(format!(
                "deferred: half by at most {half} us, 99% by {most} us, all by {} us (from when the host could know: \
                 the signal, or the look at the clock before a safe point, some 10 us earlier)",
                us(self.deferrals.max)
            ));
        }
        if counts.sliced_by_core > 0 {
            how.push(format!("{} by the cores' own timers", counts.sliced_by_core));
        }
        if counts.deferred_inside_runtime > 0 {
            let inside = counts.deferred_inside_runtime;
            how.push(format!("{inside} waited for the end of a call of the runtime"));
        }
        if let Some(frame) = self.worst.as_ref().and_then(|worst| worst.stack.first()) {
            how.push(format!("the longest ended in {frame}"));
        }
        let mut facts = vec![(what, how.join("; "))];
        if let Some((_, stall)) = &self.longest_stall {
            let what =
                format!("{variant}: a thread failed to leave its core {} times", counts.stalls);
            facts.push((what, format!("the longest: {stall}")));
        }
        facts.extend(self.slice_warning(variant, policy));
        facts
    }

    /// A warning if most preempted runs lasted much longer than the policy's slice.
    fn slice_warning(&self, variant: &str, policy: &str) -> Option<(String, String)> {
        let slice = policies::slice(policy)?;
        let [shortest, half] = [0.05, 0.5].map(|share| self.runs.within(share));
        let is_late = half.0 as f64 > SLICE_TOLERANCE * slice.0 as f64;
        (self.runs.count() >= ENOUGH && is_late).then(|| {
            let what = format!("warning: {variant}: slices of {} us were exceeded", micros(slice.0));
            let how = format!(
                "half of the preempted runs lasted up to {} us, the shortest 5% up to {} us: this machine \
                 cannot do better with these threads and seats",
                micros(half.0),
                micros(shortest.0)
            );
            (what, how)
        })
    }
}
