//! The answer to a scenario's question, in one sentence, from the figures of its result alone.

use serde_json::Value;
use wave_terminal::counted;

use super::model::{Point, RunResult, SATURATION_SERVED, VariantResult};
use super::number::{micros, short, thousands};

/// Number of variants whose saturations are listed; of more, the best and the worst.
const LISTED: usize = 4;

/// The sentence; None for a run without figures.
pub fn of(result: &RunResult) -> Option<String> {
    if let Some(paired) = &result.paired {
        return Some(paired.conclusion.clone());
    }
    let sentence = match result.kind.as_str() {
        "ladder" => result.ladder.as_ref()?.conclusion.clone(),
        "crash" => crash(&result.extra)?,
        "chaos" => chaos(&result.extra)?,
        "enclaves" => enclaves(result)?,
        _ => saturations(result)?,
    };
    Some(match result.host.as_str() {
        "sim" => format!("In simulation, {sentence}"),
        _ => capitalized(&sentence),
    })
}

fn capitalized(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What a variant serves within the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Served {
    /// The highest load that it serves.
    Most(f64),
    /// It served the highest load offered.
    AtLeast(f64),
    /// Its lowest valid load was already too much.
    LessThan(f64),
    Unknown,
}

impl Served {
    fn of(variant: &VariantResult) -> Served {
        let valid = || variant.points.iter().filter(|point| point.generator.valid);
        let lowest = || valid().map(|point| point.offered_per_second).reduce(f64::min);
        match (variant.saturation_per_second, &variant.not_measurable) {
            (_, Some(_)) => Served::Unknown,
            (Some(rate), None) if variant.served_all() => Served::AtLeast(rate),
            (Some(rate), None) => Served::Most(rate),
            (None, None) => lowest().map_or(Served::Unknown, Served::LessThan),
        }
    }

    /// What is said of a variant, with its difference from the `reference` if both are known.
    fn words(self, reference: Option<Served>) -> String {
        match (self, reference) {
            (Served::Most(rate), Some(Served::Most(other))) if other > 0.0 => {
                format!("serves {} k/s ({})", thousands(rate), against(rate / other))
            }
            (Served::Most(rate), _) => format!("serves {} k/s", thousands(rate)),
            (Served::AtLeast(rate), _) => {
                format!("serves {} k/s or more, the highest load offered", thousands(rate))
            }
            (Served::LessThan(load), _) => {
                format!("does not serve its lowest load, {} k/s", thousands(load))
            }
            (Served::Unknown, _) => "could not be measured".to_owned(),
        }
    }
}

/// A ratio in words.
fn against(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    match format!("{:.1}", percent.abs()).as_str() {
        "0.0" => "as much".to_owned(),
        size => format!("{size}% {}", if percent > 0.0 { "more" } else { "less" }),
    }
}

/// The loads that the variants serve, the first of which is the reference.
fn saturations(result: &RunResult) -> Option<String> {
    let served: Vec<(&VariantResult, Served)> = result
        .variants
        .iter()
        .filter(|variant| !variant.points.is_empty() || variant.not_measurable.is_some())
        .map(|variant| (variant, Served::of(variant)))
        .collect();
    let ((first, reference), others) = served.split_first()?;
    let class = result.headline();
    let within = format!("within a {class} p99 of {} us", result.limit_us);
    if served.iter().all(|(_, served)| *served == Served::Unknown) {
        return Some(format!("the run does not tell what any variant serves {within}."));
    }
    if served.iter().all(|(_, served)| matches!(served, Served::AtLeast(_))) {
        let tails: Vec<String> = served.iter().filter_map(|(of, _)| tail(of, class)).collect();
        return Some(format!(
            "every variant serves all its loads {within}, so their saturations are not known; at its highest load {}.",
            listed(&tails)
        ));
    }
    let cores = |variant: &VariantResult| match variant.workers == first.workers {
        true => String::new(),
        false => format!(" with {}", counted(variant.workers, "worker")),
    };
    let say = |of: &VariantResult, served: Served, reference| {
        format!("\"{}\"{} {}", of.name, cores(of), served.words(reference))
    };
    let mut parts = vec![say(first, *reference, None)];
    if others.len() < LISTED {
        parts.extend(others.iter().map(|(of, served)| say(of, *served, Some(*reference))));
    } else {
        let rate = |served: &Served| match served {
            Served::Most(rate) | Served::AtLeast(rate) => Some(*rate),
            Served::LessThan(_) => Some(0.0),
            Served::Unknown => None,
        };
        let known = || others.iter().filter(|(_, served)| rate(served).is_some());
        let by = |a: &&(&VariantResult, Served), b: &&(&VariantResult, Served)| {
            rate(&a.1).unwrap_or(0.0).total_cmp(&rate(&b.1).unwrap_or(0.0))
        };
        let number = others.len();
        for (which, found) in [("best", known().max_by(by)), ("worst", known().min_by(by))] {
            parts.extend(found.map(|(of, served)| {
                format!("the {which} of {number} others, {}", say(of, *served, Some(*reference)))
            }));
        }
        let unknown = number - known().count();
        if unknown > 0 {
            parts.push(format!("{} could not be measured", counted(unknown, "variant")));
        }
    }
    Some(format!("{within}, {}.", parts.join("; ")))
}

/// The p99 of a variant at its highest valid load.
fn tail(variant: &VariantResult, class: &str) -> Option<String> {
    let valid = variant.points.iter().filter(|point| point.generator.valid);
    let highest = valid.max_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second))?;
    let latency = highest.class(class)?.latency;
    let (load, p99) = (thousands(highest.offered_per_second), micros(latency.p99_ns));
    Some(format!("\"{}\" has a p99 of {p99} us ({load} k/s)", variant.name))
}

/// Names or clauses in a row.
fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

fn crash(extra: &Value) -> Option<String> {
    let count = |name: &str| extra[name].as_u64();
    let (crashes, done) = (count("crashes")?, count("requests_done")?);
    let (lost, doubled) = (count("requests_lost")?, count("requests_doubled")?);
    let ms = |name: &str| extra[name].as_f64().map_or_else(|| "-".to_owned(), short);
    Some(format!(
        "{} of agents lost {lost} of {} and ran {doubled} twice; the host decided on its own after {} ms at most, and the next agent after at most {} ms.",
        counted(crashes, "crash"),
        counted(done + lost, "request"),
        ms("fallback_ms_max"),
        ms("takeover_ms_max"),
    ))
}

fn chaos(extra: &Value) -> Option<String> {
    let (preemptions, failures) = (extra["preemptions"].as_u64()?, extra["failures"].as_u64()?);
    let gets = extra["gets_verified"].as_u64().unwrap_or(0);
    Some(format!(
        "{} of running code caused {} in {}.",
        counted(preemptions, "preemption"),
        counted(failures, "failure"),
        counted(gets, "verified GET"),
    ))
}

fn enclaves(result: &RunResult) -> Option<String> {
    let rows = result.extra["enclaves"].as_array()?;
    let killed = rows.iter().filter(|row| row["agent_killed"] == true).count();
    let others = rows.len() - killed;
    let undisturbed = match result.extra["undisturbed"].as_bool()? {
        true => "disturbed none of",
        false => "disturbed some of",
    };
    let points = || result.variants.iter().flat_map(|variant| &variant.points);
    let served = |point: &&Point| point.generator.valid && point.served() >= SATURATION_SERVED;
    let (all, good) = (points().count(), points().filter(served).count());
    Some(format!(
        "the death of {} {undisturbed} the {others} other enclaves, and {good} of {all} points with all enclaves under load were served.",
        counted(killed, "agent"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn sentence_has_each_saturation_against_the_first() {
        let mut result = sample::load();
        assert_eq!(
            of(&result).unwrap(),
            "Within a GET p99 of 300 us, \"Linux threads\" serves 62.0 k/s; \"on-host agent\" serves 75.0 k/s (21.0% more); \
             \"offload, coherent link\" serves 73.0 k/s (17.7% more); \"offload, PCIe-like link\" serves 68.0 k/s (9.7% more)."
        );
        result.host = "sim".into();
        result.variants[1].not_measurable = Some("the agent was lost".into());
        result.variants[2].saturation_per_second = Some(80_000.0);
        (result.variants[3].saturation_per_second, result.variants[3].workers) = (None, 2);
        assert_eq!(
            of(&result).unwrap(),
            "In simulation, within a GET p99 of 300 us, \"Linux threads\" serves 62.0 k/s; \"on-host agent\" could not be \
             measured; \"offload, coherent link\" serves 80.0 k/s or more, the highest load offered; \
             \"offload, PCIe-like link\" with 2 workers does not serve its lowest load, 10.0 k/s."
        );
    }

    #[test]
    fn sentence_of_bounds_alone_claims_no_order() {
        let mut result = sample::load();
        for variant in &mut result.variants {
            variant.points.truncate(2);
            variant.saturation_per_second = Some(20_000.0);
        }
        let sentence = of(&result).unwrap();
        assert!(sentence.contains("so their saturations are not known"), "{sentence}");
        assert!(sentence.contains("\"Linux threads\" has a p99 of"), "{sentence}");
        for variant in &mut result.variants {
            variant.saturation_per_second = None;
            variant.not_measurable = Some("the agent was lost".into());
        }
        let sentence = of(&result).unwrap();
        assert!(sentence.starts_with("The run does not tell"), "{sentence}");
    }

    #[test]
    fn sentence_of_many_variants_names_the_best_and_the_worst() {
        let mut result = sample::ladder();
        (result.kind, result.ladder) = ("load".into(), None);
        let sentence = of(&result).unwrap();
        for part in [
            "the best of 5 others, \"+ decisions pushed to the host\" serves",
            "the worst of 5 others, \"uncached on both sides\" serves",
        ] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
    }

    #[test]
    fn sentence_of_crashes_counts_lost_requests() {
        let mut result = sample::load();
        result.kind = "crash".into();
        result.extra = serde_json::json!({
            "crashes": 12, "requests_done": 990, "requests_lost": 10, "requests_doubled": 0,
            "fallback_ms_max": 21.5, "takeover_ms_max": 40.0,
        });
        let sentence = of(&result).unwrap();
        let expected = "12 crashes of agents lost 10 of 1000 requests and ran 0 twice; the host decided on its own after 21.5 ms at most";
        assert!(sentence.starts_with(expected), "{sentence}");
    }
}
