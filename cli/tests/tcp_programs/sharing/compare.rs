//! Programs over the agent and over Linux: what differs first, and the smallest program that still differs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::model::{PEERS_LISTENER, Step};
use super::plan::Plan;
use super::stage::Stage;
use crate::network::{PATIENCE, within_patience};

/// Programs that are played between two starts of processes.
const BATCH: usize = 25;
/// Time without a step after which a program hangs, while it is made smaller.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);
/// Failures after which a worker ends.
const FAILURES_MAX: usize = 5;

/// What one worker has played.
#[derive(Default)]
pub struct Played {
    pub programs: usize,
    pub connections: usize,
    pub replaced: usize,
    /// Operations after which a connection is a stream of the kernel's, by name.
    pub triggers: BTreeMap<&'static str, usize>,
    /// Demoted connections, by cause.
    pub demoted: BTreeMap<String, u64>,
    pub failures: Vec<String>,
}

pub fn peer_listens() -> Step {
    Step::of_peer("listen", PEERS_LISTENER)
}

/// Plays programs with these seeds, in batches.
pub fn play_all(stage: &mut Stage, seeds: &[u64]) -> Played {
    let mut played = Played::default();
    for batch in seeds.chunks(BATCH) {
        let plans: Vec<Plan> = batch.iter().map(|seed| Plan::of(*seed)).collect();
        if !played.play(stage, &plans) {
            break;
        }
    }
    if !played.failures.is_empty() {
        return played;
    }
    let counters = within_patience("a report with all connections", || {
        let counters = stage.up.report()["counters"].clone();
        (opened(&counters) >= played.connections as u64).then_some(counters)
    });
    let causes = counters["demoted_by"].as_object().unwrap();
    played.demoted = causes.iter().map(|(cause, n)| (cause.clone(), n.as_u64().unwrap())).collect();
    played
}

fn opened(counters: &Value) -> u64 {
    ["ActiveOpens", "PassiveOpens"].iter().filter_map(|name| counters[name].as_u64()).sum()
}

impl Played {
    /// Plays programs, one after the other, in the same processes. Returns whether it makes sense to go on.
    fn play(&mut self, stage: &mut Stage, plans: &[Plan]) -> bool {
        let mut steps = vec![peer_listens()];
        let mut begins = Vec::new();
        for (number, plan) in plans.iter().enumerate() {
            begins.push(steps.len());
            let (its, connections) = plan.steps(number);
            self.connections += connections;
            for name in its.iter().filter_map(trigger) {
                *self.triggers.entry(name).or_default() += 1;
            }
            self.replaced += usize::from(plan.replaced_at.is_some());
            steps.extend(its);
        }
        self.programs += plans.len();
        let theirs = stage.play(&steps, false, PATIENCE).unwrap_or_else(|seen| {
            let at = seen.iter().rposition(|saw| !saw.is_empty()).unwrap_or(0);
            let plan = begins.partition_point(|begin| *begin <= at).saturating_sub(1);
            let its = begins[plan]..steps.len().min(at + 4);
            let told = describe(&steps[its.clone()], &seen[its.clone()], &seen[its]);
            panic!("seed {} hangs over Linux after {}:\n{told}", plans[plan].seed, steps[at]);
        });
        let ours = stage.play(&steps, true, PATIENCE);
        let hangs = ours.is_err();
        let ours = whole(ours);
        begins.push(steps.len());
        for (plan, its) in plans.iter().zip(begins.windows(2)) {
            let Some(at) = (its[0]..its[1]).find(|at| ours[*at] != theirs[*at]) else { continue };
            let its = its[0]..its[1];
            let all = describe(&steps[its.clone()], &ours[its.clone()], &theirs[its]);
            let said = stage.said();
            let smaller = shrink(stage, plan);
            self.failures.push(format!(
                "WAVE_SHARING_SEED={}: {} saw {}, over Linux {}\n{all}{said}The smallest such program:\n{smaller}",
                plan.seed, steps[at], ours[at], theirs[at]
            ));
            if hangs || self.failures.len() == FAILURES_MAX {
                return false;
            }
        }
        true
    }
}

/// Plays a program alone. The operation that differs first and a description, if one does.
fn differs(stage: &mut Stage, plan: &Plan) -> Option<(&'static str, String)> {
    let (mut steps, _) = plan.steps(0);
    steps.insert(0, peer_listens());
    let theirs = stage.play(&steps, false, SHORT_PATIENCE);
    let ours = stage.play(&steps, true, SHORT_PATIENCE);
    if theirs.is_err() {
        return None;
    }
    let (ours, theirs) = (whole(ours), whole(theirs));
    let first = (0..steps.len()).find(|at| ours[*at] != theirs[*at])?;
    Some((steps[first].op, describe(&steps, &ours, &theirs) + &stage.said()))
}

/// Makes a program that differs smaller, as long as it does.
fn shrink(stage: &mut Stage, plan: &Plan) -> String {
    let mut tries = 0..3;
    let Some((op, mut found)) = tries.find_map(|_| differs(stage, plan)) else {
        return "alone, it does not differ".to_owned();
    };
    let mut plan = plan.clone();
    let mut count = plan.choices.len() / 2;
    while count > 0 {
        let mut from = 0;
        while from + count <= plan.choices.len() && plan.choices.len() > 1 {
            let smaller = plan.without(from, count);
            match differs(stage, &smaller) {
                Some((its, difference)) if its == op => (plan, found) = (smaller, difference),
                _ => from += count,
            }
        }
        count /= 2;
    }
    found
}

fn whole(seen: Result<Vec<String>, Vec<String>>) -> Vec<String> {
    seen.unwrap_or_else(|seen| seen)
}

fn describe(steps: &[Step], ours: &[String], theirs: &[String]) -> String {
    let mut text = String::new();
    for (at, step) in steps.iter().enumerate() {
        let [ours, theirs] = [ours, theirs]
            .map(|seen| seen[at].split_once(':').map_or(seen[at].as_str(), |(_, saw)| saw));
        text += &match ours == theirs {
            true => format!("{step} ->{ours}\n"),
            false => format!("{step} ->{ours}   OVER LINUX:{theirs}\n"),
        };
    }
    text
}

/// Operations after which a connection becomes a stream of the kernel's, by name.
fn trigger(step: &Step) -> Option<&'static str> {
    match (step.op, step.word(0)) {
        ("fork", _) => Some("second user"),
        ("exec", 1 | 2) => Some("exec without the library"),
        ("system" | "popen" | "splice" | "filter" | "dprintf", _) => Some(step.op),
        ("stdio", _) => Some("fdopen"),
        ("standard", _) => Some("dup2 onto 0 to 2"),
        _ => None,
    }
}
