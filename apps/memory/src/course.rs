//! Figures over the whole time of a run.

use std::collections::BTreeMap;

use serde::Serialize;
use wave_linux::memory::Stats;

use super::sample::Sample;

/// Means over the run, and the times without page-outs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Course {
    /// Net savings: the maximum, and the mean over the run.
    pub net_saved_bytes_max: i64,
    pub net_saved_bytes_mean: f64,
    pub resident_bytes_mean: f64,
    pub refaults_per_second: f64,
    /// Time that the programs lost because pages came back, as a share of the run, in percent.
    pub slowdown_percent: f64,
    /// Seconds in which nothing was paged out, by reason.
    pub held_seconds: BTreeMap<String, f64>,
}

impl Course {
    /// The figures of a finished run.
    pub fn of(samples: &[Sample], stats: &Stats) -> Course {
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            return Course::default();
        };
        let mut course = Course { net_saved_bytes_max: i64::MIN, ..Course::default() };
        for sample in samples {
            course.net_saved_bytes_max = course.net_saved_bytes_max.max(sample.net_saved());
            course.net_saved_bytes_mean += sample.net_saved() as f64 / samples.len() as f64;
            course.resident_bytes_mean += sample.resident_bytes as f64 / samples.len() as f64;
        }
        for pair in samples.windows(2) {
            if let Some(why) = &pair[1].held {
                *course.held_seconds.entry(why.clone()).or_default() +=
                    pair[1].seconds - pair[0].seconds;
            }
        }
        let seconds = last.seconds - first.seconds;
        if seconds > 0.0 {
            course.refaults_per_second = (last.refaults - first.refaults) as f64 / seconds;
            let refault = stats.refault.unwrap_or_default().as_secs_f64();
            course.slowdown_percent = 100.0 * course.refaults_per_second * refault;
        }
        course
    }
}
