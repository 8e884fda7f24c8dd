//! The results of one run of a scenario. Times are in nanoseconds, rates per second.

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};
use wave_workloads::point as measured;

use super::number::thousands;

/// Default limit on p99 latency in the definition of saturation, in microseconds.
pub const SATURATION_LIMIT_US: u32 = 300;

/// Minimum share of the offered requests that must be served up to saturation.
pub const SATURATION_SERVED: f64 = 0.99;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Name of the scenario, and of the output directory.
    pub scenario: String,
    /// Host that enforced decisions: `user`, a runtime on this machine, or `sim`, a simulated machine.
    pub host: String,
    /// `load`, `ladder`, `crash`, `enclaves`, `chaos` or `rpc`.
    pub kind: String,
    /// The scenario's description.
    pub description: String,
    /// Seed of every random stream.
    pub seed: u64,
    /// Limit on p99 latency in the definition of saturation, in microseconds.
    pub limit_us: u32,
    /// Version of the program that wrote it.
    pub version: String,
    pub machine: Machine,
    /// Use of each core, as text.
    pub seating: String,
    /// Start time, as in RFC 3339.
    pub started: String,
    /// The compared variants, in the scenario's order. The first is the reference.
    pub variants: Vec<VariantResult>,
    /// The rows against each other, if they ran by paired rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paired: Option<Paired>,
    /// Throughputs under overload, if the scenario is a ladder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ladder: Option<Ladder>,
    /// Fitted, measured or assumed facts: each with its source.
    pub facts: Vec<(String, String)>,
    /// Results of this kind of scenario only; an object or null.
    pub extra: serde_json::Value,
}

/// Rows compared by paired rounds (docs/adr/0106). Points of the variants have all samples of their rounds pooled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    pub rounds: u32,
    /// Class of the requests whose p99 is compared.
    pub class: String,
    /// Each variant's rounds, in the order of variants.
    pub rows: Vec<PairedRow>,
    /// Each variant against the next one, at each load.
    pub orders: Vec<PairedOrder>,
    /// Share of `orders` with a verdict.
    pub claimed_share: f64,
    /// Name of the variant that `shares` compare with.
    pub reference: String,
    /// p99 at which `shares` compare, in nanoseconds.
    pub limit_ns: f64,
    /// What the reference serves at this p99: interpolated between its loads. `None` if it exceeds this p99 at its lowest load.
    pub reference_per_second: Option<f64>,
    /// What each other variant serves.
    pub shares: Vec<ServedShare>,
    /// The answer to the scenario's question, in a sentence.
    pub conclusion: String,
}

/// The rounds of one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedRow {
    pub name: String,
    pub loads: Vec<PairedLoad>,
}

/// The rounds of one variant at one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedLoad {
    pub offered_per_second: f64,
    /// The p99 in quiet rounds: the lower quartile.
    pub quiet_p99_ns: f64,
    /// The median over rounds.
    pub median_p99_ns: f64,
    /// The highest of all rounds.
    pub worst_p99_ns: f64,
    /// When that round's trial began, in seconds since the run's start.
    pub worst_at_s: f64,
    /// The p99 of each round, in order.
    pub p99_ns: Vec<f64>,
}

/// The p99 of one variant divided by another's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedOrder {
    /// Load of `first`.
    pub offered_per_second: f64,
    pub first: String,
    pub second: String,
    /// The first's p99 divided by the second's within a round: the median over rounds.
    pub ratio: f64,
    /// Lower end of its 95% interval.
    pub low: f64,
    /// Upper end of its 95% interval.
    pub high: f64,
    /// The same ratio of all samples pooled.
    pub pooled_ratio: f64,
    /// Share of the first's samples above the p99 of both together, minus that share of the second's.
    pub more_slow: f64,
    /// Lower end of its 95% interval, by resampled rounds.
    pub more_slow_low: f64,
    /// Upper end of its 95% interval.
    pub more_slow_high: f64,
    /// `lower` or `higher` where the interval of the ratio excludes 1, `equal` where it lies within 1/1.15 and 1.15; nothing where the
    /// slow samples speak against it.
    pub claimed: Option<String>,
}

/// The load that a variant serves at a p99, as a share of the reference's load at the same p99.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedShare {
    pub name: String,
    /// Where a load is outside of those of the run, the nearest of these stands for it.
    pub ratio: f64,
    /// Lower end of its 95% interval, by resampled rounds; `None` if the run's loads leave it open: the variant exceeds the p99 even at
    /// its lowest load, or the reference does not at its highest.
    pub low: Option<f64>,
    /// Upper end of its 95% interval; `None` if it is open.
    pub high: Option<f64>,
    /// The same ratio of all samples pooled.
    pub pooled_ratio: f64,
    /// Whether the slow samples at the highest load speak against it.
    pub is_doubted: bool,
}

impl ServedShare {
    /// The ratio with its interval; `None` if an end of that is open.
    pub fn figure(&self) -> Option<Figure> {
        Some(Figure { value: self.ratio, interval: Some((self.low?, self.high?)) })
    }

    /// The ratio in words, without its interval if that is a single value.
    pub fn words(&self) -> String {
        match (self.low, self.high) {
            (Some(low), Some(high)) if low == high => format!("{:.2}", self.ratio),
            (Some(low), Some(high)) => format!("{:.2} ({low:.2} to {high:.2})", self.ratio),
            (Some(low), None) => format!("at least {low:.2}"),
            (None, Some(high)) => format!("at most {high:.2}"),
            (None, None) => "unknown".to_owned(),
        }
    }
}

/// Throughputs of a ladder's variants under overload (docs/adr/0106).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    /// Number of rounds; 1 if simulated.
    pub rounds: u32,
    /// The load offered to every variant, which should be more than any can serve.
    pub offered_per_second: f64,
    /// Load of the confirmation run, as a share of the throughput.
    pub confirmed_at: f64,
    /// In the order of variants.
    pub rungs: Vec<Rung>,
    /// The answer to the scenario's question, in a sentence.
    pub conclusion: String,
}

/// One variant of a ladder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    pub name: String,
    /// Throughput in requests per second.
    pub per_second: Figure,
    /// The same in each round, in order.
    pub rounds_per_second: Vec<f64>,
    /// Divided by the first variant's throughput in the same round; `None` for the first.
    pub of_first: Option<Figure>,
    /// Divided by the throughput of the variant before in the same round; `None` for the first two: the first is no rung.
    pub of_previous: Option<Figure>,
    /// Whether the confirmation run was served ([`Ladder::confirmed_at`]).
    pub is_confirmed: bool,
}

/// The median of a figure over rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub value: f64,
    /// Its 95% interval; `None` if there are too few rounds.
    pub interval: Option<(f64, f64)>,
}

impl Figure {
    /// The value as `show` writes it, with its interval in brackets.
    pub fn words(self, show: fn(f64) -> String) -> String {
        let interval =
            self.interval.map(|(low, high)| format!(" ({} to {})", show(low), show(high)));
        show(self.value) + &interval.unwrap_or_default()
    }
}

/// The machine that a scenario ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Logical CPUs that were available.
    pub cpus: u32,
    /// Model name, as the CPU gives it.
    pub model: String,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantResult {
    /// The variant's name, unique in its scenario.
    pub name: String,
    /// `linux`, `onhost` or `offload`.
    pub placement: String,
    /// As in the scenario; empty without an agent.
    pub link: String,
    /// As in the scenario; empty without an agent.
    pub policy: String,
    pub workers: u32,
    pub points: Vec<Point>,
    /// Highest load with at least 99% served and a p99 within [`RunResult::limit_us`]; None if there is no such load.
    pub saturation_per_second: Option<f64>,
    /// Reason why its saturation could not be measured, if so. Then there is no saturation.
    #[serde(default)]
    pub not_measurable: Option<String>,
    /// The same for other limits: limit in microseconds, load. Limits that every load exceeds are omitted.
    pub saturation_by_limit: Vec<(u32, f64)>,
    /// The limits for which it could not be measured.
    #[serde(default)]
    pub limits_not_measurable: Vec<u32>,
    /// Breakdown of a request's time: part, nanoseconds per request.
    pub account: Vec<(String, f64)>,
    /// The offered load that `account` is of, if there is one.
    #[serde(default)]
    pub account_per_second: Option<f64>,
    /// Preemptions in its points; None if nothing was preempted.
    pub preemptions: Option<Preemptions>,
    /// Results under the load at which the scenario compares its variants, if it does.
    pub compared: Option<Compared>,
}

impl VariantResult {
    /// Its name, with the load that its account is of.
    pub fn account_name(&self) -> String {
        match self.account_per_second {
            Some(load) => format!("{}, at {} k/s", self.name, thousands(load)),
            None => self.name.clone(),
        }
    }

    /// Whether it served the highest load offered: its saturation is then a lower bound.
    pub fn served_all(&self) -> bool {
        let highest = self.points.iter().map(|point| point.offered_per_second).reduce(f64::max);
        highest.is_some() && highest == self.saturation_per_second
    }
}

/// Counts and times of preemptions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemptions {
    /// Preemptions that the agent asked for and a run acknowledged.
    pub preempted: u64,
    /// Preemptions that arrived as the run ended by itself.
    pub ended_first: u64,
    /// Runs that the cores' own timers ended after their slices.
    pub sliced_by_core: u64,
    /// Number of acknowledged preemptions that had to wait for the end of a call into the runtime.
    pub deferred_inside_runtime: u64,
    /// Safe points at which a thread was not preempted, because it was unwinding.
    pub refused_unwinding: u64,
    /// Times for which acknowledged preemptions were deferred.
    pub deferral: Spread,
    /// Durations of the preempted runs.
    pub run: Spread,
    /// The longest deferral, if it was long enough to be located.
    pub worst_deferral: Option<WorstDeferral>,
    /// Number of times that a thread did not leave its core when asked to.
    pub stalls: u64,
    /// The longest of these stalls, as text.
    pub longest_stall: Option<String>,
}

/// Percentiles of a set of times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// The longest deferral of a preemption.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstDeferral {
    /// Its length in nanoseconds.
    pub deferred_ns: u64,
    /// Class of the thread, as the policy saw it.
    pub class: u16,
    /// Stack at the point where the thread finally left its core, innermost frame first.
    pub stack: Vec<String>,
}

/// A variant under the load of the comparison.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    pub offered_per_second: f64,
    /// p99 of the headline class: the median over rounds. None without a request of it.
    pub p99_ns: Option<u64>,
    /// The p99 divided by that of the variant that the scenario names, within a round. None for that variant itself.
    pub p99_ratio: Option<Figure>,
    /// `p99_ns` as a multiple of the class's service time.
    pub slowdown: Option<f64>,
    /// Slowdown of the same arrivals on as many cores under processor sharing without overhead.
    pub oracle_slowdown: Option<f64>,
    /// `slowdown` as a multiple of `oracle_slowdown`, within a round.
    pub slowdown_vs_oracle: Option<Figure>,
    /// Slice of the policy, if it has one queue and one slice.
    pub slice_us: Option<f64>,
    /// Slowdown of the same arrivals under such slices without overhead.
    pub sliced_slowdown: Option<f64>,
    /// `slowdown` as a multiple of `sliced_slowdown`, within a round.
    pub slowdown_vs_sliced: Option<Figure>,
    /// Cost of RANGEs, if there are any.
    pub range: Option<RangeCost>,
}

/// Cost of each key that a RANGE reads: the median over rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeCost {
    /// Number of preemptions in all rounds.
    pub preempted: u64,
    /// Time in the RANGE per key, from one preempt point to the next.
    pub service_ns_per_key: f64,
    /// All time of the cores in threads and between them, less the other requests' service times, per key.
    pub core_ns_per_key: f64,
    /// Growth of `service_ns_per_key` relative to the variant without preemptions.
    pub service_growth: Option<f64>,
    /// The same growth, of `core_ns_per_key`.
    pub core_growth: Option<f64>,
}

/// Results of one variant under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    #[serde(flatten)]
    pub measured: measured::Point,
    /// Number of decisions with each outcome.
    pub outcomes: Vec<(String, u64)>,
    pub cpu: Cpu,
}

impl Deref for Point {
    type Target = measured::Point;

    fn deref(&self) -> &measured::Point {
        &self.measured
    }
}

impl DerefMut for Point {
    fn deref_mut(&mut self) -> &mut measured::Point {
        &mut self.measured
    }
}

/// Use of the cores, in percent of one core's time each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Host cores, running requests.
    pub host_useful_percent: f64,
    /// Host cores, looking for decisions.
    pub host_poll_percent: f64,
    pub agent_percent: f64,
}

/// Notice that a run on `host` is simulated, if it is.
pub fn simulated(host: &str, machine: &Machine) -> Option<String> {
    let said = || format!("SIMULATED in virtual time ({}): no figure was measured.", machine.model);
    (host == "sim").then(said)
}

impl RunResult {
    /// Warning at the top of a report: points that are not measurements, and saturations that are unknown for that reason. None
    /// if all are valid.
    pub fn banner(&self) -> Option<String> {
        let points = || self.variants.iter().flat_map(|variant| &variant.points);
        let (invalid, all) =
            (points().filter_map(|point| point.why_invalid()).count(), points().count());
        let unknown: Vec<String> = self
            .variants
            .iter()
            .filter(|variant| variant.not_measurable.is_some())
            .map(|variant| format!("\"{}\"", variant.name))
            .collect();
        if invalid == 0 && unknown.is_empty() {
            return None;
        }
        let head = match invalid == all {
            true if self.is_judged_by_checks() => "CHECKS ONLY",
            true => "NO RESULT",
            false => "INCOMPLETE",
        };
        let mut text = format!("{head}: {invalid} of {all} points are not measurements");
        if !unknown.is_empty() {
            text.push_str(&format!(". Not measurable: saturation of {}", unknown.join(", ")));
        }
        if self.host == "user" {
            text.push_str(". Run it again on a quiet machine");
        }
        text.push('.');
        Some(text)
    }

    /// Notice that the run is simulated, if it is.
    pub fn simulated(&self) -> Option<String> {
        simulated(&self.host, &self.machine)
    }

    /// Whether the run is judged by its checks, which do not depend on the machine's other load.
    pub fn is_judged_by_checks(&self) -> bool {
        matches!(self.kind.as_str(), "crash" | "chaos")
    }

    /// Whether it measured every saturation that it searched for, and at least one point.
    pub fn is_measured(&self) -> bool {
        let mut points = self.variants.iter().flat_map(|variant| &variant.points).peekable();
        let known = self.variants.iter().all(|variant| variant.not_measurable.is_none());
        known && (points.peek().is_none() || points.any(|point| point.generator.valid))
    }
}

impl RunResult {
    /// The name of every class of requests, the headline first.
    pub fn classes(&self) -> Vec<&str> {
        let points = || self.variants.iter().flat_map(|variant| &variant.points);
        let headline = points().find_map(|point| point.headline());
        let all = headline.into_iter().chain(points().flat_map(|point| &point.classes));
        let mut names: Vec<&str> = Vec::new();
        for class in all {
            if !names.contains(&class.name.as_str()) {
                names.push(&class.name);
            }
        }
        names
    }

    /// The name of the class that limits apply to.
    pub fn headline(&self) -> &str {
        let classes = self.classes();
        classes.first().copied().unwrap_or(match &self.paired {
            Some(paired) => &paired.class,
            None => "request",
        })
    }
}

impl Point {
    /// Reason why it is not a measurement, if so.
    pub fn why_invalid(&self) -> Option<&str> {
        let why = || self.generator.why_invalid.as_deref();
        (!self.generator.valid).then(|| why().unwrap_or("the generator did not keep up"))
    }

    /// Caveats about this point, for a narrow column; empty if there are none.
    pub fn note(&self) -> String {
        let mut notes = Vec::new();
        if !self.generator.valid {
            notes.push("invalid".to_owned());
        }
        if self.served() < SATURATION_SERVED {
            notes.push(format!("{:.1}% served", self.served() * 100.0));
        }
        if self.refused > 0 {
            notes.push(format!("{} refused", self.refused));
        }
        notes.join("; ")
    }
}
