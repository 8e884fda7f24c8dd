//! Throughput of each variant of a ladder under overload, by paired rounds: the first variant is the reference, each other a rung
//! (docs/adr/0106).

use std::time::{Duration, Instant};

use wave_report::model::{Figure, Ladder, Rung, SATURATION_SERVED, VariantResult};
use wave_report::number::thousands;
use wave_workloads::generator::Settings;

use super::load::Row;
use crate::ground::neighbours::Neighbours;
use crate::ground::point::Outcome;
use crate::ground::rounds::{self, Machine, over_rounds};
use crate::ground::{Failure, Found, Ground};
use crate::kinds::requests::scenario::{Run, Scenario};

/// Load of the confirmation run, as a share of the throughput under overload.
pub(crate) const CONFIRMED_AT: f64 = 0.95;
/// The lowest load of a confirmation run, in requests per second.
const LEAST_PER_SECOND: f64 = 0.001;
/// Measured time of the confirmation run.
const CONFIRMED_FOR: Duration = Duration::from_secs(2);

/// Number of steps that [`run`] reports.
pub(crate) fn steps(scenario: &Scenario) -> u64 {
    u64::from(scenario.run.rounds) + scenario.variants.len() as u64
}

/// Duration of one of these steps on average, in seconds.
pub(crate) fn step_seconds(scenario: &Scenario) -> f64 {
    let (run, variants) = (&scenario.run, scenario.variants.len() as f64);
    let rounds = f64::from(run.rounds) * variants * run.seconds;
    let confirmations = variants * (run.warmup_seconds + CONFIRMED_FOR.as_secs_f64());
    (rounds + confirmations) / steps(scenario) as f64
}

/// The load that is offered to every variant.
pub(crate) fn offered(run: &Run) -> Result<f64, Failure> {
    match run.loads_per_second[..] {
        [load] => Ok(load),
        _ => Err(Failure::Scenario("a ladder needs one load in run.loads_per_second".into())),
    }
}

/// Offers all variants the load in each round; then each variant has its confirmation run.
pub(crate) fn run(ground: &Ground<'_>) -> Result<Found, Failure> {
    let (scenario, started) = (ground.scenario, Instant::now());
    let offered = offered(&scenario.run)?;
    let neighbours = Neighbours::on(&ground.cpus);
    let row = |variant: &crate::kinds::requests::scenario::Variant| Row {
        variant: variant.clone(),
        factor: 1.0,
    };
    let rows: Vec<Row> = scenario.variants.iter().map(row).collect();
    let mut alive = rounds::all(ground, &rows, &[offered], started)?;
    for (row, alive) in rows.iter().zip(&mut alive) {
        ground.begin(&format!("{}: confirmation, 2 s", row.variant.name));
        let served = Served::of(&alive.loads()[0].outcomes());
        let settings = Settings { duration: CONFIRMED_FOR, ..alive.settings() };
        alive.once(ground, served.confirmed_at(), &settings, started)?;
        ground.end();
    }
    let mut found = Found::default();
    let mut served = Vec::new();
    for alive in alive {
        let loads = alive.end(&mut found);
        let variant = found.variants.last_mut().expect("one was added");
        account_for(variant, loads[1].outcomes()[0]);
        served.push(Served::of(&loads[0].outcomes()));
    }
    found.facts.push(rounds::terms(ground));
    conclude(&mut found, offered, &served);
    let busy = Machine::since(neighbours, &ground.cpus).too_busy();
    if let (Some(ladder), Some(busy), true) = (&mut found.ladder, busy, found.failed.is_empty()) {
        ladder.conclusion = busy;
    }
    Ok(found)
}

/// What one variant served of the load, in each round.
pub(crate) struct Served {
    per_second: Vec<f64>,
    /// Share of the requests served.
    share: f64,
}

impl Served {
    pub fn of(rounds: &[&Outcome]) -> Served {
        let shares: Vec<f64> = rounds.iter().map(|round| round.point.served()).collect();
        let per_second = rounds.iter().map(|round| round.point.achieved_per_second).collect();
        Served { per_second, share: wave_compare::median(&shares).unwrap_or(0.0) }
    }

    /// Load of the confirmation run, in requests per second.
    pub fn confirmed_at(&self) -> f64 {
        let median = wave_compare::median(&self.per_second).unwrap_or(0.0);
        // Nothing at all is no load.
        (CONFIRMED_AT * median).max(LEAST_PER_SECOND)
    }

    /// Divided by what another variant served in the same round. A round in which that one served nothing says nothing.
    fn of_other(&self, other: &Served) -> Figure {
        let rounds = self.per_second.iter().zip(&other.per_second);
        let ratios = rounds.filter(|(_, other)| **other > 0.0).map(|(own, other)| own / other);
        over_rounds(&ratios.collect::<Vec<f64>>())
    }
}

/// The account of every variant is that of its confirmation run.
pub(crate) fn account_for(variant: &mut VariantResult, confirmation: &Outcome) {
    variant.account = confirmation.account.clone();
    variant.account_per_second =
        (!variant.account.is_empty()).then_some(confirmation.point.offered_per_second);
}

/// Adds the ladder to `found`. Each variant has two points: the load offered, and the confirmation run.
pub(crate) fn conclude(found: &mut Found, offered: f64, served: &[Served]) {
    let mut rungs: Vec<Rung> = Vec::new();
    for (at, (variant, own)) in found.variants.iter().zip(served).enumerate() {
        let previous = at.checked_sub(1).map(|before| own.of_other(&served[before]));
        rungs.push(Rung {
            name: variant.name.clone(),
            per_second: over_rounds(&own.per_second),
            rounds_per_second: own.per_second.clone(),
            of_first: (at > 0).then(|| own.of_other(&served[0])),
            of_previous: previous.filter(|_| at > 1),
            is_confirmed: is_confirmed(variant, offered),
        });
        if own.share >= SATURATION_SERVED {
            let (name, load) = (&variant.name, thousands(offered));
            found.failed.push(format!(
                "\"{name}\" served the whole load of {load} k/s: raise run.loads_per_second above what every variant can serve"
            ));
        }
    }
    let rounds = served.first().map_or(0, |served| served.per_second.len()) as u32;
    let conclusion = match found.failed.first() {
        Some(failed) => format!("{failed}."),
        None => sentence(&rungs),
    };
    let confirmed_at = CONFIRMED_AT;
    found.ladder =
        Some(Ladder { rounds, offered_per_second: offered, confirmed_at, rungs, conclusion });
}

/// What the rungs say: the best one against the first variant, and the steps between them.
fn sentence(rungs: &[Rung]) -> String {
    let Some((first, rungs)) = rungs.split_first() else { return String::new() };
    let by_rate = |a: &&Rung, b: &&Rung| a.per_second.value.total_cmp(&b.per_second.value);
    let Some(best) = rungs.iter().max_by(by_rate) else { return String::new() };
    let rate = |rung: &Rung| format!("{} k/s", thousands(rung.per_second.value));
    let of = |figure: Figure| match figure.interval {
        Some((low, high)) => format!("{:.2} (95% interval {low:.2} to {high:.2})", figure.value),
        None => format!("{:.3}", figure.value),
    };
    let mut parts = vec![format!(
        "\"{}\" serves {}; the best rung, \"{}\", {}, {} of that",
        first.name,
        rate(first),
        best.name,
        rate(best),
        best.of_first.map_or_else(String::new, of)
    )];
    let steps = || rungs.iter().filter_map(|rung| Some((&rung.name, rung.of_previous?)));
    let ends = |figure: Figure| figure.interval.unwrap_or((figure.value, figure.value));
    for (name, step) in steps().filter(|(_, step)| ends(*step).0 <= 1.0) {
        parts.push(match ends(step).1 < 1.0 {
            true => format!("\"{name}\" serves less than the rung before: {} of it", of(step)),
            false => format!(
                "this run cannot tell whether \"{name}\" serves more than the rung before: the ratio is {}",
                of(step)
            ),
        });
    }
    if parts.len() == 1 && steps().next().is_some() {
        parts.push("each rung serves more than the one before".to_owned());
    }
    let all = || std::iter::once(first).chain(rungs);
    let open: Vec<String> =
        all().filter(|rung| !rung.is_confirmed).map(|rung| format!("\"{}\"", rung.name)).collect();
    if !open.is_empty() {
        parts.push(format!("not confirmed: {}", open.join(", ")));
    }
    format!("{}.", parts.join("; "))
}

/// Whether the confirmation run, at a load below `offered`, was served.
fn is_confirmed(variant: &VariantResult, offered: f64) -> bool {
    let less = variant.points.iter().find(|point| point.offered_per_second < offered);
    less.is_some_and(|point| point.served() >= SATURATION_SERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_are_compared_within_rounds() {
        // The machine is slower in every other round.
        let rates = |rate: f64| -> Vec<f64> {
            (0..24).map(|round| if round % 2 == 0 { rate } else { rate / 2.0 }).collect()
        };
        let served = |rate| Served { per_second: rates(rate), share: 0.5 };
        let of_other = served(90.0).of_other(&served(100.0));
        assert_eq!((of_other.value, of_other.interval), (0.9, Some((0.9, 0.9))));
        let few = Served { per_second: vec![1.0], share: 0.5 };
        assert_eq!(few.of_other(&few), Figure { value: 1.0, interval: None });
    }

    #[test]
    fn sentence_tells_rising_falling_and_open_steps_apart() {
        let figure = |value: f64| Figure { value, interval: Some((value - 0.02, value + 0.02)) };
        let rung = |name: &str, rate: f64, step: Option<f64>| Rung {
            name: name.to_owned(),
            per_second: figure(rate),
            rounds_per_second: vec![rate],
            of_first: Some(figure(rate / 100_000.0)),
            of_previous: step.map(figure),
            is_confirmed: name != "b",
        };
        let said = |steps: [f64; 2]| {
            let [second, third] = steps.map(Some);
            sentence(&[
                rung("near", 1e5, None),
                rung("a", 5e4, None),
                rung("b", 6e4, second),
                rung("c", 9e4, third),
            ])
        };
        assert_eq!(
            said([1.2, 1.5]),
            "\"near\" serves 100.0 k/s; the best rung, \"c\", 90.0 k/s, 0.90 (95% interval 0.88 to 0.92) of that; each rung serves \
             more than the one before; not confirmed: \"b\"."
        );
        let said = said([0.9, 1.01]);
        for part in [
            "\"b\" serves less than the rung before: 0.90 (95% interval 0.88 to 0.92) of it;",
            "cannot tell whether \"c\" serves more than the rung before: the ratio is 1.01 (95% interval 0.99 to 1.03);",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
