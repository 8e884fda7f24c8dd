//! What each variant of a ladder serves when more is offered, by paired rounds: the first variant is the reference, each other a
//! rung (docs/adr/0106).

use std::time::{Duration, Instant};

use wave_report::model::{Figure, Ladder, Rung, SATURATION_SERVED, VariantResult};
use wave_report::number::thousands;
use wave_workloads::generator::Settings;

use super::load::Row;
use super::neighbours::Neighbours;
use super::point::Outcome;
use super::rounds::{self, Machine, over_rounds};
use super::{Failure, Found, Ground, limits};
use crate::scenario::{Load, Run, Scenario};

/// Share of what a variant serves at which it is run once more, longer: there it should serve everything.
pub(super) const CONFIRMED_AT: f64 = 0.95;
/// How long that run is measured.
const CONFIRMED_FOR: Duration = Duration::from_secs(2);

/// Number of steps that [`run`] reports.
pub(super) fn steps(scenario: &Scenario) -> u64 {
    u64::from(scenario.run.rounds) + scenario.variants.len() as u64
}

/// The load that is offered to every variant.
pub(super) fn offered(run: &Run) -> Result<f64, Failure> {
    match &run.load {
        Load::Each(loads) if loads.len() == 1 => Ok(loads[0]),
        _ => Err(Failure::Scenario("a ladder needs one load in run.loads_per_second".into())),
    }
}

/// Offers all variants the load in each round, then each variant a little less than it served.
pub(super) fn run(ground: &Ground<'_>) -> Result<Found, Failure> {
    let (scenario, started) = (ground.scenario, Instant::now());
    let (offered, rounds) = (offered(&scenario.run)?, scenario.run.rounds);
    let neighbours = Neighbours::now();
    let row = |variant: &crate::scenario::Variant| Row { variant: variant.clone(), factor: 1.0 };
    let rows: Vec<Row> = scenario.variants.iter().map(row).collect();
    let mut alive = rounds::all(ground, &rows, &[offered], rounds, started)?;
    for (row, alive) in rows.iter().zip(&mut alive) {
        ground.begin(&format!("{}: once more, for 2 s", row.variant.name));
        let served = Served::of(&alive.loads()[0].outcomes());
        let settings = Settings { duration: CONFIRMED_FOR, ..alive.settings() };
        alive.once(ground, (CONFIRMED_AT * served.median()).round(), &settings, started)?;
        ground.end();
    }
    let limits = limits(&scenario.workload);
    let mut found = Found::default();
    let mut served = Vec::new();
    for alive in alive {
        let loads = alive.end(&limits, &mut found);
        served.push(Served::of(&loads[0].outcomes()));
    }
    found.facts.push(rounds::terms(ground, rounds));
    conclude(&mut found, offered, &served);
    let busy = Machine::since(neighbours, ground.cpus.len()).too_busy();
    if let (Some(ladder), Some(busy)) = (&mut found.ladder, busy) {
        ladder.conclusion = busy;
    }
    Ok(found)
}

/// What one variant served of the load, in each round.
pub(super) struct Served {
    per_second: Vec<f64>,
    /// Share of the requests served.
    share: f64,
}

impl Served {
    pub fn of(rounds: &[&Outcome]) -> Served {
        let shares: Vec<f64> = rounds.iter().map(|round| round.measured.served()).collect();
        let per_second = rounds.iter().map(|round| round.measured.achieved_per_second).collect();
        Served { per_second, share: wave_compare::median(&shares).unwrap_or(0.0) }
    }

    pub fn median(&self) -> f64 {
        wave_compare::median(&self.per_second).unwrap_or(0.0)
    }

    /// Divided by what another variant served in the same round.
    fn of_other(&self, other: &Served) -> Figure {
        let rounds = self.per_second.iter().zip(&other.per_second);
        over_rounds(&rounds.map(|(own, other)| own / other).collect::<Vec<f64>>())
    }
}

/// Adds the ladder, and what it says of the variants, to `found`. Their points are the load offered, and the one that confirms.
pub(super) fn conclude(found: &mut Found, offered: f64, served: &[Served]) {
    let mut rungs: Vec<Rung> = Vec::new();
    for (at, (variant, own)) in found.variants.iter_mut().zip(served).enumerate() {
        let per_second = over_rounds(&own.per_second);
        if own.share >= SATURATION_SERVED {
            variant.not_measurable =
                Some(format!("it served all of {} k/s: offer more", thousands(offered)));
        } else {
            variant.saturation_per_second = Some(per_second.value);
        }
        let previous = at.checked_sub(1).map(|before| own.of_other(&served[before]));
        rungs.push(Rung {
            name: variant.name.clone(),
            per_second,
            rounds_per_second: own.per_second.clone(),
            of_first: (at > 0).then(|| own.of_other(&served[0])),
            of_previous: previous.filter(|_| at > 1),
            is_confirmed: is_confirmed(variant, offered),
        });
    }
    let rounds = served.first().map_or(0, |served| served.per_second.len()) as u32;
    let conclusion = sentence(&rungs);
    let confirmed_at = CONFIRMED_AT;
    found.ladder =
        Some(Ladder { rounds, offered_per_second: offered, confirmed_at, rungs, conclusion });
}

/// What the rungs say: the best one against the first variant, and the steps between them.
fn sentence(rungs: &[Rung]) -> String {
    let Some((first, rungs)) = rungs.split_first() else { return String::new() };
    let best = |a: &&Rung, b: &&Rung| a.per_second.value.total_cmp(&b.per_second.value);
    let Some(best) = rungs.iter().max_by(best) else { return String::new() };
    let rate = |rung: &Rung| format!("{} k/s", thousands(rung.per_second.value));
    let of_first = best.of_first.map_or_else(String::new, |of_first| match of_first.interval {
        Some((low, high)) => {
            format!("{:.2} of that (95% interval {low:.2} to {high:.2})", of_first.value)
        }
        None => format!("{:.3} of that", of_first.value),
    });
    let mut text = format!(
        "\"{}\" serves {}; the best rung, \"{}\", {}, {of_first}",
        first.name,
        rate(first),
        best.name,
        rate(best)
    );
    let steps: Vec<&Rung> = rungs.iter().filter(|rung| rung.of_previous.is_some()).collect();
    let falls = |rung: &&&Rung| !rises(rung);
    match (steps.len(), steps.iter().find(falls)) {
        (0, _) => {}
        (1, None) => text.push_str("; the second rung is higher than the first"),
        (_, None) => text.push_str("; each rung is higher than the one before"),
        (_, Some(rung)) => {
            let ratio = rung.of_previous.map_or(1.0, |figure| figure.value);
            text.push_str(&format!(
                "; \"{}\" is not higher than the rung before: {ratio:.2} of it",
                rung.name
            ));
        }
    }
    text.push('.');
    text
}

/// Whether a rung serves more than the one before.
fn rises(rung: &Rung) -> bool {
    rung.of_previous.is_none_or(|figure| figure.interval.map_or(figure.value, |(low, _)| low) > 1.0)
}

/// Whether the load that confirms was served: less than the one `offered` in rounds.
fn is_confirmed(variant: &VariantResult, offered: f64) -> bool {
    let less = variant.points.iter().find(|point| point.offered_per_second < offered);
    less.is_some_and(|point| {
        let in_time = point.achieved_per_second * point.duration_s;
        in_time >= SATURATION_SERVED * point.sent as f64
    })
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
}
