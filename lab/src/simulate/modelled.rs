//! `simulate` of a subsystem with a modelled host (ADR 44).

use std::process::ExitCode;

use serde_json::{Value, json};
use wave_agent::Registry;
use wave_agent::panics::caught;
use wave_core::clock::Nanos;
use wave_core::modelled::ModelSetup;
use wave_core::subsystem::Subsystem;
use wave_sim::enclave::Setup;
use wave_sim::modelled::{Outcome, simulate};
use wave_sim::paper::{Rung, wave};

use super::{SimulateArgs, check_limits, point, quantiles_us};
use wave_terminal::{Failure, note, out, program};

/// Virtual time of warm-up, as for threads.
const WARMUP: Nanos = Nanos::from_millis(60);
/// Maximum number of subjects at a time.
const SUBJECTS: u32 = 1024;

/// One policy under one load.
struct Point {
    policy: String,
    load: u32,
    outcome: Outcome,
    cores: u16,
}

/// Runs every policy under every load and returns the exit code.
pub(super) fn execute(
    registry: &Registry,
    subsystem: &'static Subsystem,
    args: &SimulateArgs,
) -> ExitCode {
    let planned = caught(|| plan(registry, subsystem, args)).and_then(|planned| planned);
    let run = planned.map_err(Failure::Scenario);
    let run = run.and_then(|setups| run_all(subsystem, &setups, args));
    match run {
        Ok(points) => match points.iter().find(|point| point.outcome.counters.lost_agents > 0) {
            Some(Point { policy, load, .. }) => {
                let program = program();
                note!("{program}: an agent was turned out, under {policy} at {load}/s");
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        },
        Err(failure) => {
            note!("{} simulate: {failure}", program());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// The machine under each policy. Refuses arguments that cannot be simulated.
fn plan(
    registry: &Registry,
    subsystem: &'static Subsystem,
    args: &SimulateArgs,
) -> Result<Vec<Setup>, String> {
    if !args.classes.is_empty() {
        return Err(format!("--class is for threads; `{}` has its own requests", subsystem.name));
    }
    check_limits(args, WARMUP + Nanos::from_millis(args.measure_ms))?;
    let setup = |text: &String| {
        let mut setup = wave(args.cores.get(), Rung::Prestaged, "fifo");
        setup.agent.policy = crate::policy_of(registry, subsystem, text)?;
        (setup.config.subsystem, setup.config.subjects) = (subsystem.id, SUBJECTS);
        setup.seed = args.seed;
        setup.check().map_err(|error| error.to_string())?;
        Ok(setup)
    };
    args.policies.iter().map(setup).collect()
}

fn run_all(
    subsystem: &Subsystem,
    setups: &[Setup],
    args: &SimulateArgs,
) -> Result<Vec<Point>, Failure> {
    let make = subsystem.model.expect("the caller has checked that it has a model");
    let width = args.policies.iter().map(String::len).max().unwrap_or(0);
    if !args.json {
        let head = [
            "load/s",
            "arrived/s",
            "decided/s",
            "waiting",
            "busy %",
            "p50 us",
            "p99 us",
            "p99.9 us",
        ];
        let [load, arrived, decided, waiting, busy, p50, p99, p999] = head;
        out!(
            "{:width$} {load:>9} {arrived:>9} {decided:>9} {waiting:>8} {busy:>7} {p50:>10} {p99:>10} {p999:>10}",
            "policy"
        );
    }
    let (measure, seed) = (Nanos::from_millis(args.measure_ms), args.seed);
    let mut points = Vec::new();
    for setup in setups {
        for &load in &args.loads {
            let cores = setup.config.cores;
            let model = ModelSetup { cores, subjects: SUBJECTS, per_second: load, seed };
            let outcome = point(setup, load, || simulate(setup, make(&model), [WARMUP, measure]))?;
            let point =
                Point { policy: setup.agent.policy.text().to_owned(), load, outcome, cores };
            if !args.json {
                out!("{}", point.line(width, measure));
            }
            points.push(point);
        }
    }
    if args.json {
        out!("{}", to_json(subsystem, args, &points));
    }
    Ok(points)
}

impl Point {
    /// Rate per second of `times` events in the measured time.
    fn per_second(times: u64, measure: Nanos) -> f64 {
        times as f64 * 1e9 / measure.0 as f64
    }

    /// Share of the measured time for which cores were occupied.
    fn busy(&self, measure: Nanos) -> f64 {
        self.outcome.busy.0 as f64 / (measure.0 as f64 * f64::from(self.cores))
    }

    fn waits_us(&self) -> [Option<f64>; 3] {
        quantiles_us(&self.outcome.waits, self.outcome.unfinished)
    }

    fn line(&self, width: usize, measure: Nanos) -> String {
        let [p50, p99, p999] =
            self.waits_us().map(|us| us.map_or("-".into(), |us| format!("{us:.1}")));
        let Point { policy, load, outcome, .. } = self;
        let [arrived, decided] =
            [outcome.arrived, outcome.started].map(|times| Point::per_second(times, measure));
        let (waiting, busy) = (outcome.waiting, 100.0 * self.busy(measure));
        format!(
            "{policy:width$} {load:>9} {arrived:>9.0} {decided:>9.0} {waiting:>8} {busy:>7.1} {p50:>10} {p99:>10} {p999:>10}"
        )
    }
}

fn to_json(subsystem: &Subsystem, args: &SimulateArgs, points: &[Point]) -> Value {
    let measure = Nanos::from_millis(args.measure_ms);
    let points = points.iter().map(|point| {
        let [p50, p99, p999] = point.waits_us();
        json!({
            "policy": point.policy,
            "offered_per_second": point.load,
            "arrived_per_second": Point::per_second(point.outcome.arrived, measure),
            "decided_per_second": Point::per_second(point.outcome.started, measure),
            "waiting": point.outcome.waiting,
            "wait_p50_us": p50,
            "wait_p99_us": p99,
            "wait_p999_us": p999,
            "cores_busy_share": point.busy(measure),
            "agents_turned_out": point.outcome.counters.lost_agents,
            "trace_hash": format!("{:016x}", point.outcome.trace_hash),
        })
    });
    json!({
        "host": "sim",
        "subsystem": subsystem.name,
        "cores": args.cores,
        "subjects_max": SUBJECTS,
        "seed": args.seed,
        "warmup_ms": WARMUP.0 as f64 / 1e6,
        "measure_ms": args.measure_ms,
        "points": points.collect::<Vec<_>>(),
    })
}
