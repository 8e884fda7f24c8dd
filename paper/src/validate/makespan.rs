//! Makespans: a program recorded on this machine and replayed on one core and on two, compared with the program itself,
//! unrecorded, on the same number of CPUs.

use std::process::Command;
use std::rc::Rc;

use serde::Serialize;
use wave_sim::recorded;
use wave_terminal::{Failure, Progress};
use wave_workloads::cpu::monotonic_ns;

use super::Runner;
use wave_app_record::record::{self, Recording};
use wave_experiments::ground::rounds::over_rounds;
use wave_report::model::Figure;

/// Three pipelines of about a third of a second of CPU time each.
const SCRIPT: &str = "for program in head gzip md5sum; do command -v $program >/dev/null || exit 127; done; \
    for pipeline in 1 2 3; do head -c 64M /dev/zero | gzip | md5sum >/dev/null & done; wait";
const PROGRAM: [&str; 3] = ["sh", "-c", SCRIPT];
/// Round-robin, as on Linux.
const POLICY: &str = "round-robin";
/// Cores of the replays, and CPUs of the native runs.
const CORES: [u16; 2] = [1, 2];

/// A makespan, predicted and measured.
#[derive(Clone, Debug, Serialize)]
pub struct Makespan {
    pub name: String,
    pub cores: u16,
    /// Median of the replays, one for each recording.
    pub predicted_ns: f64,
    /// Median of the native runs.
    pub measured_ns: f64,
    /// Predicted over measured in the same round, minus 1.
    pub rel_error: Figure,
}

/// One number of cores, and its answers so far.
#[derive(Debug)]
pub struct Row {
    pub name: String,
    cores: u16,
    answers: Vec<Answer>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    predicted_ns: f64,
    measured_ns: f64,
}

/// The rows, in the order in which they run.
pub fn all() -> Vec<Row> {
    let row = |cores| {
        let plural = if cores > 1 { "s" } else { "" };
        let name = format!("makespan of three pipelines, recorded, {cores} core{plural}");
        Row { name, cores, answers: Vec::new() }
    };
    CORES.map(row).into()
}

/// Steps of progress for one answer to each row.
pub fn steps(rows: &[Row]) -> usize {
    if rows.is_empty() { 0 } else { rows.len() + 1 }
}

/// Gets an answer from each side for each row. Returns the reason if this machine or this user cannot record, or the program is
/// missing.
pub fn ask(
    runner: &Runner,
    rows: &mut [Row],
    progress: &Progress,
) -> Result<Result<(), String>, Failure> {
    let cores_max = rows.iter().map(|row| row.cores).max().unwrap_or(1);
    let native = &runner.native;
    progress.begin("recording three pipelines");
    let recorded = native.on_cpus(cores_max, || record::command(&PROGRAM));
    progress.end();
    let Recording { workload, exit_code, .. } = match recorded {
        Ok(recording) => recording,
        Err(Failure::Cannot(why)) => return Ok(Err(why)),
        Err(failure) => return Err(failure),
    };
    if exit_code != Some(0) {
        return Ok(Err("head, gzip and md5sum are needed".to_owned()));
    }
    let workload = Rc::new(workload);
    for Row { name, cores, answers } in rows {
        progress.begin(name);
        let setup = recorded::setup(&workload, *cores, POLICY);
        let replayed = recorded::replay(&setup, &workload).map_err(Failure::cannot)?;
        if replayed.unfinished > 0 {
            let unfinished = replayed.unfinished;
            return Err(Failure::Check(format!("{name}: {unfinished} threads did not end")));
        }
        answers.push(Answer {
            predicted_ns: replayed.schedule.makespan_ns as f64,
            measured_ns: native.on_cpus(*cores, run)?,
        });
        progress.end();
    }
    Ok(Ok(()))
}

/// Runs the program on the calling thread's CPUs. Returns its duration in nanoseconds.
fn run() -> Result<f64, Failure> {
    let [program, arguments @ ..] = PROGRAM;
    let begins_ns = monotonic_ns();
    Command::new(program).args(arguments).status().map_err(Failure::cannot)?;
    Ok((monotonic_ns() - begins_ns) as f64)
}

impl Row {
    pub fn cores(&self) -> usize {
        self.cores.into()
    }

    /// The comparison; None without an answer.
    pub fn compare(&self) -> Option<Makespan> {
        let median = |of: fn(&Answer) -> f64| {
            wave_compare::median(&self.answers.iter().map(of).collect::<Vec<f64>>())
        };
        let errors =
            self.answers.iter().map(|answer| answer.predicted_ns / answer.measured_ns - 1.0);
        Some(Makespan {
            name: self.name.clone(),
            cores: self.cores,
            predicted_ns: median(|answer| answer.predicted_ns)?,
            measured_ns: median(|answer| answer.measured_ns)?,
            rel_error: over_rounds(&errors.collect::<Vec<f64>>()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_compared_with_the_run_of_their_round() {
        let mut row = all().remove(1);
        assert!(row.compare().is_none() && row.name.ends_with("2 cores"));
        // The machine is slower in the second round, and so is the recording.
        for factor in [1.0, 3.0, 1.0] {
            row.answers.push(Answer { predicted_ns: 110.0 * factor, measured_ns: 100.0 * factor });
        }
        let compared = row.compare().unwrap();
        assert!((compared.rel_error.value - 0.1).abs() < 1e-9);
        assert_eq!((compared.predicted_ns, compared.measured_ns), (110.0, 100.0));
    }
}
