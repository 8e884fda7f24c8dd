//! Why a range is hot or cold: replays the log of a run through its policy.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use wave_core::brain::{Brain, Input};
use wave_core::clock::Nanos;
use wave_core::log::{LogReader, What};
use wave_core::outcome::Code;
use wave_core::policy::Decisions;
use wave_memory::policies::{self, Explanation, Tiering};
use wave_memory::wire::{
    Action, BATCH_PAGES, Place, Readings, STRIP_BATCHES, STRIP_BYTES, Strip, UNIT_BATCHES,
};

use super::heat::{self, Heat};
use wave_report::plot::style::DrawError;
use wave_scenario::size::show;
use wave_terminal::{Failure, Table};

pub const BATCH_BYTES: u64 = STRIP_BYTES / STRIP_BATCHES as u64;
/// Maximum number of ranges in the table on a terminal.
const ROWS_MAX: usize = 40;
/// Maximum number of events kept of one batch's history.
const HISTORY_MAX: usize = 200;
/// Steps of warmth: neighbours in the same tenth are joined.
const STEPS: f32 = 10.0;

/// Selects the part of a log to explain.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Only the batches of this process.
    pub pid: Option<u32>,
    /// Only the batch with this address.
    pub address: Option<u64>,
    /// The moment to explain, in seconds since the log began.
    pub at: Option<f64>,
}

/// An event of the selected batch.
#[derive(Clone, Debug)]
struct Event {
    seconds: f64,
    what: String,
}

/// The policy's view of a batch: its verdict, which dates from the end of the last epoch, beside its estimate now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It has never had a page.
    Empty,
    Cold,
    NotCold,
    /// Judged cold, and estimated warm since.
    LooksWarm,
    /// Not judged cold, and estimated cold since.
    LooksCold,
}

impl Verdict {
    fn of(told: &Explanation) -> Verdict {
        match (told.pages, told.cold, told.warmth < told.limit) {
            (0, ..) => Verdict::Empty,
            (_, true, true) => Verdict::Cold,
            (_, true, false) => Verdict::LooksWarm,
            (_, false, true) => Verdict::LooksCold,
            (_, false, false) => Verdict::NotCold,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Verdict::Empty => "no pages",
            Verdict::Cold => "cold",
            Verdict::NotCold => "not cold",
            Verdict::LooksWarm => "cold, looks warm",
            Verdict::LooksCold => "not cold, looks cold",
        }
    }
}

/// Neighbouring batches in the same state.
#[derive(Clone, Debug)]
struct Range {
    place: Place,
    end: u64,
    slow: bool,
    verdict: Verdict,
    period_ms: u64,
    warmth: [f32; 2],
    limit: f32,
    weight: f32,
}

#[derive(Debug)]
pub struct Told {
    policy: String,
    seconds: f64,
    ranges: Vec<Range>,
    batch: Option<(Place, Explanation)>,
    /// Whether a single batch was selected.
    of_one: bool,
    events: Vec<Event>,
    heat: Heat,
}

#[derive(Clone, Copy)]
struct Known {
    place: Place,
    generation: u32,
    mapped: u64,
    huge: u8,
}

/// Reads a log up to the selected moment.
pub fn explain(log: &Path, asked: &Asked) -> Result<Told, Failure> {
    let bad =
        |error: &dyn std::fmt::Display| Failure::Scenario(format!("{}: {error}", log.display()));
    let bytes = std::fs::read(log).map_err(|error| bad(&error))?;
    let reader = LogReader::new(&bytes).map_err(|error| bad(&error))?;
    let header = reader.header().clone();
    let policy = policies::by_name(&header.policy, &header.config)
        .map_err(|error| bad(&format_args!("not a log of a memory policy: {error}")))?;
    let mut brain = Brain::new(&header.config, policy, ());
    let mut out = Decisions::default();
    let mut strips: BTreeMap<u32, Known> = BTreeMap::new();
    let mut heat = Heat::default();
    let mut events = Vec::new();
    let mut seconds = 0.0;
    let mut start = None;
    // Whether the selected batch was read before.
    let mut was_read = false;
    for record in reader {
        let record = record.map_err(|error| bad(&error))?;
        let begun = *start.get_or_insert(record.now);
        let time = record.now.since(begun).0 as f64 / 1e9;
        if asked.at.is_some_and(|at| time > at) {
            break;
        }
        seconds = time;
        let meant = |place: &Place, batches: u64| {
            let address = asked.address?;
            let offset = address.checked_sub(place.address).filter(|at| *at < STRIP_BYTES)?;
            let ours = asked.pid.is_none_or(|pid| pid == place.space);
            let lane = (offset / BATCH_BYTES) as u32;
            (ours && batches >> lane & 1 != 0).then_some(lane)
        };
        match &record.what {
            What::Input(input) => {
                match input {
                    Input::Entry { entry, .. } => {
                        if let Some(strip) = entry.message.as_ref().and_then(Strip::from_message) {
                            let Strip { place, mapped, huge, .. } = strip;
                            let generation = strip.strip.generation;
                            let known = Known { place, generation, mapped, huge };
                            strips.insert(strip.strip.id, known);
                            if meant(&place, strip.void & !mapped).is_some() {
                                let what = "left out from here on: unmapped, or it cannot be paged out (shared by a \
                                            fork, locked, or it does not compress)";
                                events.push(Event { seconds, what: what.to_owned() });
                            }
                            if meant(&place, strip.void & mapped).is_some() {
                                was_read = false;
                                let what = "mapped anew: earlier readings are void".to_owned();
                                events.push(Event { seconds, what });
                            }
                        }
                        if let Some(outcome) = entry.outcome
                            && let Some((what, batches, place)) =
                                decision_of(&brain, outcome.txn, &strips)
                            && what != Action::Scan
                            && meant(&place, batches).is_some()
                        {
                            events.push(Event { seconds, what: answer(what, outcome.code) });
                        }
                    }
                    Input::Bulk(words) => {
                        for reading in Readings::new(words).map_while(Result::ok) {
                            let Some(known) = strips.get(&reading.strip.id) else { continue };
                            if known.generation != reading.strip.generation {
                                continue;
                            }
                            let lanes = wave_memory::wire::bits(reading.batches);
                            for (lane, [young, present]) in lanes.zip(reading.words) {
                                let pages = if is_huge(known, lane) { 1 } else { BATCH_PAGES };
                                let units = if pages == 1 { UNIT_BATCHES } else { 1 };
                                (lane..lane + units).for_each(|lane| {
                                    heat.push(heat::Look {
                                        seconds,
                                        place: known.place,
                                        lane,
                                        touched: young.count_ones(),
                                        present: present.count_ones(),
                                        pages,
                                        interval_us: reading.interval_us,
                                    })
                                });
                                let unit = ((1 << units) - 1) << lane;
                                if meant(&known.place, unit).is_some() {
                                    let seen = [*young, *present].map(u64::count_ones);
                                    let interval_us = reading.interval_us;
                                    let what =
                                        describe_reading(seen, pages, interval_us, !was_read);
                                    was_read = true;
                                    events.push(Event { seconds, what });
                                }
                            }
                        }
                    }
                    Input::Snapshot(_) => strips.clear(),
                    Input::Note(_) | Input::Decide { .. } => {}
                }
                brain.replay(record.now, input, &mut out);
                out.clear();
            }
            What::Decided { decision, .. } => {
                if let Some(known) = strips.get(&decision.subject.id)
                    && let Some(action @ (Action::PageOut | Action::BringBack)) =
                        Action::from_number(decision.kind)
                    && let Some(lane) = meant(&known.place, decision.argument)
                {
                    let lane = if is_huge(known, lane) { lane - lane % UNIT_BATCHES } else { lane };
                    let told = brain.policy().explain(decision.subject.id, lane);
                    let why = told.map(|told| opinion(&told)).unwrap_or_default();
                    let what = match action {
                        Action::PageOut => format!("decided to page it out: {why}"),
                        _ => format!("decided to bring it back: {why}"),
                    };
                    events.push(Event { seconds, what });
                }
            }
            What::Preempted(_) | What::Noted(_) | What::Kicked { .. } => {}
        }
    }
    let ours = |place: &Place| asked.pid.is_none_or(|pid| pid == place.space);
    heat.keep(ours);
    let of_one = asked.address.is_some();
    let (policy, ranges) = (header.policy, Vec::new());
    let mut told = Told { policy, seconds, ranges, batch: None, of_one, events, heat };
    for (id, known) in by_place(&strips) {
        for lane in wave_memory::wire::bits(known.mapped) {
            let Some(explanation) = brain.policy().explain(id, lane) else { continue };
            let address = known.place.address + u64::from(lane) * BATCH_BYTES;
            let length = if is_huge(&known, lane) { UNIT_BATCHES.into() } else { 1 } * BATCH_BYTES;
            let place = Place { address, ..known.place };
            if !ours(&place) {
                continue;
            }
            told.add(place, length, &explanation);
            if asked.address.is_some_and(|asked| (address..address + length).contains(&asked)) {
                told.batch = Some((place, explanation));
            }
        }
    }
    if asked.address.is_some() {
        let extra = told.events.len().saturating_sub(HISTORY_MAX);
        told.events.drain(..extra);
    }
    Ok(told)
}

fn is_huge(known: &Known, lane: u32) -> bool {
    known.huge >> (lane / UNIT_BATCHES) & 1 != 0
}

fn by_place(strips: &BTreeMap<u32, Known>) -> Vec<(u32, Known)> {
    let mut all: Vec<(u32, Known)> = strips.iter().map(|(id, known)| (*id, *known)).collect();
    all.sort_by_key(|(_, known)| known.place);
    all
}

/// The decision that an outcome is about to answer, from the policy's accounts.
fn decision_of(
    brain: &Brain<Box<dyn Tiering + Send>>,
    txn: wave_core::message::TxnId,
    strips: &BTreeMap<u32, Known>,
) -> Option<(Action, u64, Place)> {
    let decision = brain.cores().waiting(0).find(|decision| decision.txn == txn)?;
    let known = strips.get(&decision.subject.id)?;
    Some((Action::from_number(decision.kind)?, decision.argument, known.place))
}

fn answer(action: Action, code: Code) -> String {
    let what = match action {
        Action::PageOut => "paging it out",
        Action::BringBack => "bringing it back",
        Action::Scan => "scanning it",
    };
    match code {
        Code::Complete => format!("{what}: done"),
        Code::Partial => {
            format!(
                "{what}: in part; pages shared with another process (a fork), or held by the kernel, stay"
            )
        }
        Code::Held => {
            format!("{what}: held back by the host (a limit on refaults or pressure, or a dry run)")
        }
        Code::Unsupported => {
            format!("{what}: it does not compress, so paging it out would save nothing")
        }
        code => format!("{what}: {}", code.name()),
    }
}

/// What a reading of `pages` pages says; a huge page is one.
fn describe_reading(
    [touched, present]: [u32; 2],
    pages: u32,
    interval_us: u32,
    first: bool,
) -> String {
    match interval_us {
        0 if first => format!("read for the first time: {present} of {pages} pages present"),
        0 => format!("{present} of {pages} pages are in the fast tier now"),
        us => {
            let ms = us / 1_000;
            format!("{touched} of {present} pages touched in {ms} ms")
        }
    }
}

/// Verdict and tier. The verdict dates from the end of the last epoch; later readings may contradict it.
fn state(told: &Explanation) -> String {
    let seconds = |time: Nanos| format!("{:.1} s", time.0 as f64 / 1e9);
    let state = match (told.slow, told.cold, told.retry_in) {
        (true, true, _) => "cold, and in the slow tier".to_owned(),
        (true, false, _) => "in the slow tier, and due to come back".to_owned(),
        (false, true, None) => "cold, and still in the fast tier".to_owned(),
        (false, true, Some(time)) => format!(
            "cold, and still in the fast tier: pages shared with another process (a fork), or held by the kernel, \
             did not leave; tried again in {}",
            seconds(time)
        ),
        (false, false, _) => "not judged cold".to_owned(),
    };
    let looks_cold = told.warmth < told.limit;
    if looks_cold == told.cold {
        return state;
    }
    let looks = if looks_cold { "cold" } else { "warm" };
    format!("{state}; it looks {looks} by now, and is judged again in {}", seconds(told.judged_in))
}

fn opinion(told: &Explanation) -> String {
    format!(
        "warmth {:.3}, cold below {:.3}, by {:.0} observations",
        told.warmth, told.limit, told.weight
    )
}

impl Told {
    fn add(&mut self, place: Place, length: u64, told: &Explanation) {
        let step = |warmth: f32| (warmth * STEPS) as u32;
        let verdict = Verdict::of(told);
        let period_ms = told.period.0 / 1_000_000;
        if let Some(last) = self.ranges.last_mut()
            && last.place.space == place.space
            && last.end == place.address
            && (last.slow, last.verdict, last.period_ms) == (told.slow, verdict, period_ms)
            && step(last.warmth[0]) == step(told.warmth)
        {
            last.end += length;
            last.warmth = [last.warmth[0].min(told.warmth), last.warmth[1].max(told.warmth)];
            last.weight = last.weight.min(told.weight);
            return;
        }
        self.ranges.push(Range {
            place,
            end: place.address + length,
            slow: told.slow,
            verdict,
            period_ms,
            warmth: [told.warmth; 2],
            limit: told.limit,
            weight: told.weight,
        });
    }

    /// Whether nothing is known of the selected part.
    pub fn is_empty(&self) -> bool {
        match self.of_one {
            true => self.batch.is_none() && self.events.is_empty(),
            false => self.ranges.is_empty(),
        }
    }

    /// Warmth over time and address.
    pub fn heat(&self) -> Result<String, DrawError> {
        self.heat.draw()
    }

    pub fn text(&self) -> String {
        let mut text = format!("As of {:.1} s, policy {}:\n", self.seconds, self.policy);
        if let Some((place, told)) = &self.batch {
            let _ = writeln!(
                text,
                "{:#x} of process {} (a batch of {}, {} pages seen): {}.\n{}; scanned every {} ms.",
                place.address,
                place.space,
                show(BATCH_BYTES),
                told.pages,
                state(told),
                opinion(told),
                told.period.0 / 1_000_000
            );
            for event in &self.events {
                let _ = writeln!(text, "{:9.2} s  {}", event.seconds, event.what);
            }
            return text;
        }
        if self.of_one && !self.events.is_empty() {
            text.push_str("It is not managed now.\n");
            for event in &self.events {
                let _ = writeln!(text, "{:9.2} s  {}", event.seconds, event.what);
            }
            return text;
        }
        if self.is_empty() {
            text.push_str(
                "nothing was managed there. Without --address, all managed ranges are listed.",
            );
            return text;
        }
        let head = ["process", "from", "size", "tier", "verdict", "warmth", "scanned every"];
        let mut table = Table::new(head.len(), head);
        let mut largest: Vec<&Range> = self.ranges.iter().collect();
        largest.sort_by_key(|range| std::cmp::Reverse(range.end - range.place.address));
        largest.truncate(ROWS_MAX);
        largest.sort_by_key(|range| range.place);
        for range in &largest {
            let [low, high] = range.warmth;
            table.push([
                range.place.space.to_string(),
                format!("{:#x}", range.place.address),
                show(range.end - range.place.address),
                if range.slow { "slow" } else { "fast" }.to_owned(),
                range.verdict.name().to_owned(),
                format!("{low:.2} to {high:.2}"),
                format!("{:.1} s", range.period_ms as f64 / 1e3),
            ]);
        }
        let _ = write!(text, "{table}");
        let left = self.ranges.len() - largest.len();
        if left > 0 {
            let _ = write!(text, "\n{left} smaller ranges are not shown (--json has all).");
        }
        let bytes = |verdicts: &[Verdict]| -> String {
            let of = self.ranges.iter().filter(|range| verdicts.contains(&range.verdict));
            show(of.map(|range| range.end - range.place.address).sum())
        };
        let limit = self.ranges[0].limit;
        let _ = write!(
            text,
            "\n{} cold, {} not; cold below {limit:.2}. --address ADDRESS shows the history of a batch.",
            bytes(&[Verdict::Cold, Verdict::LooksWarm]),
            bytes(&[Verdict::NotCold, Verdict::LooksCold]),
        );
        if self.ranges.iter().any(|range| range.verdict == Verdict::LooksCold) {
            let _ = write!(
                text,
                "\n{} of the memory that is not cold looks cold by now: it is judged again at the end of its epoch.",
                bytes(&[Verdict::LooksCold])
            );
        }
        text
    }

    pub fn json(&self) -> Value {
        let ranges: Vec<Value> = self
            .ranges
            .iter()
            .map(|range| {
                json!({
                    "pid": range.place.space,
                    "start": range.place.address,
                    "end": range.end,
                    "slow": range.slow,
                    "cold": matches!(range.verdict, Verdict::Cold | Verdict::LooksWarm),
                    "verdict": range.verdict.name(),
                    "period_ms": range.period_ms,
                    "warmth": range.warmth,
                    "limit": range.limit,
                    "weight": range.weight,
                })
            })
            .collect();
        let batch = self.batch.as_ref().map(|(place, told)| {
            let history: Vec<Value> = self
                .events
                .iter()
                .map(|event| json!({ "seconds": event.seconds, "what": event.what }))
                .collect();
            json!({
                "pid": place.space,
                "start": place.address,
                "slow": told.slow,
                "cold": told.cold,
                "period_ms": told.period.0 / 1_000_000,
                "warmth": told.warmth,
                "limit": told.limit,
                "weight": told.weight,
                "judged_in_ms": told.judged_in.0 / 1_000_000,
                "retry_in_ms": told.retry_in.map(|time| time.0 / 1_000_000),
                "history": history,
            })
        });
        json!({ "policy": self.policy, "seconds": self.seconds, "ranges": ranges, "batch": batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_contradicted_by_readings_shows_time_of_next_judgement() {
        let seconds = |seconds: u64| Nanos(seconds * 1_000_000_000);
        let told = |slow, cold, warmth, retry_in| Explanation {
            pages: 64,
            period: seconds(1),
            slow,
            cold,
            warmth,
            limit: 0.333,
            weight: 8.0,
            judged_in: seconds(12),
            retry_in,
        };
        assert_eq!(
            state(&told(false, false, 0.134, None)),
            "not judged cold; it looks cold by now, and is judged again in 12.0 s"
        );
        assert_eq!(Verdict::of(&told(false, false, 0.134, None)), Verdict::LooksCold);
        assert_eq!(Verdict::of(&told(true, true, 0.4, None)), Verdict::LooksWarm);
        let unseen = Explanation { pages: 0, ..told(false, false, 0.5, None) };
        assert_eq!(Verdict::of(&unseen), Verdict::Empty);
        assert_eq!(state(&told(false, false, 0.5, None)), "not judged cold");
        assert_eq!(state(&told(true, true, 0.1, None)), "cold, and in the slow tier");
        assert!(state(&told(true, true, 0.4, None)).contains("looks warm by now"));
        let stays = state(&told(false, true, 0.1, Some(seconds(2))));
        assert!(
            stays.contains("shared with another process") && stays.ends_with("in 2.0 s"),
            "{stays}"
        );
    }
}
