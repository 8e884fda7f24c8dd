//! `wave validate`: compares the simulator's predictions with native runs that were not used to fit it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use wave_paper::validate::{self, Compared, Effort, Makespan, Validation};
use wave_report::{Directory, ReportError};
use wave_terminal::{Failure, Table, note, out};

/// Largest acceptable relative errors of a saturation, a p99 and a makespan.
const GOALS: [f64; 3] = [0.05, 0.15, 0.1];

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave validate
  wave validate --quick --json | jq .p99_rel_error_max
  wave validate --only Shinjuku
  sudo wave validate --only makespan
  wave validate --check --out /tmp/validate

Micro-benchmarks make a profile of this machine, DIR/machine.toml and DIR/link.toml. With it the
simulator predicts saturation and latency of native runs that were not used to fit it: GETs under FIFO,
and beside RANGEs under Shinjuku. Both sides serve the same arrivals in the same rounds; the p99 of quiet
rounds is compared. As root it also records a program, and compares the makespan of a replay with the
program's own, on one CPU and on two. No other process should use the machine meanwhile.

Exit codes: 0 done, whatever the errors; 1 the run cannot be trusted (a message says why), or with --check an
error is too large; 3 this machine cannot run it.")]
pub struct ValidateArgs {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Directory for the machine's profile, its link's cost file, and the results.
    #[arg(long, value_name = "DIR", default_value = "out/validate")]
    out: PathBuf,
    /// Measure fewer systems in fewer rounds.
    #[arg(long)]
    quick: bool,
    /// Run only systems whose names contain this text, such as `Shinjuku`.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Fail if a saturation is off by more than 5%, a p99 by more than 15%, or a makespan by more than 10%.
    #[arg(long)]
    check: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub fn execute(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let out = Directory::create(args.out.clone())?;
    let effort = Effort::new(args.quick, &args.only);
    let validation = validate::run(effort, args.quiet || args.json)?;
    let json = to_json(&validation);
    write(&out, &validation, &json)?;
    if args.json {
        out!("{json}");
    } else {
        out!("{}\n\n{}", to_table(&validation), summary(&validation));
        for (what, how) in &validation.facts {
            out!("{what}: {how}");
        }
        out!("Profile: {}", args.out.join("machine.toml").display());
    }
    for doubt in &validation.doubts {
        note!("wave validate: the run cannot be trusted: {doubt}");
    }
    let errors = errors(&validation, None);
    let too_large = errors
        .iter()
        .zip(GOALS)
        .any(|(error, goal)| error.is_some_and(|error| error.is_nan() || error > goal));
    let failed = !validation.doubts.is_empty() || (args.check && too_large);
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn write(out: &Directory, validation: &Validation, json: &Value) -> Result<(), ReportError> {
    let model = &validation.states[0].model;
    out.write("machine.toml", model.machine.to_toml().as_bytes())?;
    out.write("link.toml", model.shm.to_toml().as_bytes())?;
    out.write("validate.json", format!("{json:#}\n").as_bytes())
}

fn to_json(validation: &Validation) -> Value {
    let states: Vec<Value> = validation
        .states
        .iter()
        .map(|state| {
            let figures = state.model.machine.all().into_iter();
            let figures: serde_json::Map<String, Value> = figures
                .map(|(name, figure)| {
                    let source = figure.source.to_string();
                    (name.to_owned(), json!({ "value": figure.value, "source": source }))
                })
                .collect();
            json!({ "measured": state.measured, "machine": figures })
        })
        .collect();
    json!({
        "saturation_rel_error_max": validation.error_max(true, None),
        "p99_rel_error_max": validation.error_max(false, None),
        "makespan_rel_error_max": validation.makespan_error_max(),
        "shinjuku_saturation_rel_error": validation.error_max(true, Some("shinjuku")),
        "shinjuku_p99_rel_error": validation.error_max(false, Some("shinjuku")),
        "trusted": validation.doubts.is_empty(),
        "doubts": validation.doubts,
        "points": validation.points,
        "makespans": validation.makespans,
        "calibration": states,
        "facts": validation.facts,
    })
}

fn to_table(validation: &Validation) -> String {
    let header =
        ["point", "unit", "predicted", "measured", "error (95% interval)", "p50: pred.", "meas."];
    let mut table = Table::new(2, header);
    for point in &validation.points {
        let Compared { name, predicted, measured, p50_ns, .. } = point;
        let unit = if point.is_saturation { "k/s" } else { "us, p99" };
        // Requests per second to k/s, or nanoseconds to us.
        let number = |value: f64| format!("{:.1}", value / 1e3);
        let [p50, own_p50] = p50_ns.map_or_else(Default::default, |both| both.map(number));
        table.push([
            name.clone(),
            unit.to_owned(),
            number(*predicted),
            number(*measured),
            error(point.rel_error, [point.low, point.high]),
            p50,
            own_p50,
        ]);
    }
    for makespan in &validation.makespans {
        let Makespan { name, predicted_ns, measured_ns, rel_error, .. } = makespan;
        let millis = |ns: &f64| format!("{:.1}", ns / 1e6);
        table.push([
            name.clone(),
            "ms".to_owned(),
            millis(predicted_ns),
            millis(measured_ns),
            error(
                rel_error.value,
                rel_error.interval.map_or([None; 2], |(low, high)| [Some(low), Some(high)]),
            ),
        ]);
    }
    table.to_string()
}

/// An error with the ends of its interval.
fn error(value: f64, ends: [Option<f64>; 2]) -> String {
    let percent = |error: f64| format!("{:+.1}%", 100.0 * error);
    match ends.map(|end| end.map(percent)) {
        [Some(low), Some(high)] => format!("{} ({low} to {high})", percent(value)),
        [Some(low), None] => format!("at least {low}"),
        [None, Some(high)] => format!("at most {high}"),
        [None, None] if value.is_finite() => percent(value),
        [None, None] => "not measured".to_owned(),
    }
}

/// The largest errors of a saturation, a p99 and a makespan, under `policy` if one is given. Makespans belong to no single
/// policy.
fn errors(validation: &Validation, policy: Option<&str>) -> [Option<f64>; 3] {
    let makespan = policy.map_or_else(|| validation.makespan_error_max(), |_| None);
    [validation.error_max(true, policy), validation.error_max(false, policy), makespan]
}

fn summary(validation: &Validation) -> String {
    let largest = |policy| {
        errors(validation, policy).map(|error| match error {
            Some(error) if error.is_nan() => "not measured".to_owned(),
            Some(error) => format!("{:.1}%", 100.0 * error),
            None => "none".to_owned(),
        })
    };
    let ([saturation, p99, makespan], [shinjuku, tail, _]) =
        (largest(None), largest(Some("shinjuku")));
    let goals = GOALS.map(|goal| 100.0 * goal);
    format!(
        "Largest error: saturation {saturation} (goal {:.0}%), p99 {p99} (goal {:.0}%), makespan {makespan} \
         (goal {:.0}%); of these under Shinjuku: saturation {shinjuku}, p99 {tail}",
        goals[0], goals[1], goals[2]
    )
}
