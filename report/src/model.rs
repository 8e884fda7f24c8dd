//! What one run of a scenario found. Times are nanoseconds, rates are per second.

use serde::{Deserialize, Serialize};

/// The limit on p99 latency that saturation is defined by, unless a scenario has its own.
pub const SATURATION_LIMIT_US: u32 = 300;

/// How [`Generator::why_invalid`] begins where other processes are to blame.
pub const DISTURBED: &str = "disturbed";

/// The least part of the offered requests that must be served up to saturation.
pub const SATURATION_SERVED: f64 = 0.99;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The scenario's name; names the output directory.
    pub scenario: String,
    /// What enforced decisions: `user`, a runtime on this machine, or `sim`, a simulated one.
    pub host: String,
    /// `load`, `ladder`, `crash`, `enclaves`, `chaos` or `rpc`.
    pub kind: String,
    /// The scenario's description.
    pub description: String,
    /// Seed of every random stream.
    pub seed: u64,
    /// The limit on p99 latency that saturation is meant by, in microseconds.
    pub limit_us: u32,
    /// Version of the program that wrote it.
    pub version: String,
    pub machine: Machine,
    /// Which core did what, in words.
    pub seating: String,
    /// When it started, RFC 3339.
    pub started: String,
    /// What was compared, in the scenario's order. The first is the reference.
    pub variants: Vec<VariantResult>,
    /// What was fitted, measured or assumed: what, and how it is known.
    pub facts: Vec<(String, String)>,
    /// What only this kind of scenario has; an object or null.
    pub extra: serde_json::Value,
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
    /// Highest load with at least 99% served and a p99 within [`RunResult::limit_us`]; none if no load was.
    pub saturation_per_second: Option<f64>,
    /// Why its saturation could not be measured, if so: there is none then.
    #[serde(default)]
    pub not_measurable: Option<String>,
    /// The same for other limits: limit in microseconds, load. A limit that no load was within is left out.
    pub saturation_by_limit: Vec<(u32, f64)>,
    /// The limits for which it could not be measured.
    #[serde(default)]
    pub limits_not_measurable: Vec<u32>,
    /// What a request's time was spent on: part, nanoseconds per request.
    pub account: Vec<(String, f64)>,
    /// Of its points but for those of the comparison; none if nothing was preempted.
    pub preemptions: Option<Preemptions>,
    /// Under the load at which the scenario compares its variants, if it does.
    pub compared: Option<Compared>,
}

impl VariantResult {
    /// Whether it served the highest load offered: its saturation is then a lower bound.
    pub fn served_all(&self) -> bool {
        let highest = self.points.iter().map(|point| point.offered_per_second).reduce(f64::max);
        highest.is_some() && highest == self.saturation_per_second
    }
}

/// Runs that were ended for others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemptions {
    /// Preemptions that the agent asked for and a run acknowledged.
    pub preempted: u64,
    /// Preemptions that came as the run ended by itself.
    pub ended_first: u64,
    /// Runs that the cores ended themselves, after their slices.
    pub sliced_by_core: u64,
    /// Of those acknowledged, how many had to wait until a call of the runtime had ended.
    pub deferred_inside_runtime: u64,
    /// Safe points at which a thread stayed, because it unwound.
    pub refused_unwinding: u64,
    /// How long those acknowledged were deferred.
    pub deferral: Spread,
    /// How long the runs lasted that were preempted.
    pub run: Spread,
    /// The longest deferral, if it was worth knowing where it was.
    pub worst_deferral: Option<WorstDeferral>,
    /// How often a thread was found that did not leave its core when it was asked to.
    pub stalls: u64,
    /// The one of these that lasted longest, in words.
    pub longest_stall: Option<String>,
}

/// Percentiles of a set of times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Half are at most so long.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// A preemption that was deferred.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstDeferral {
    /// Longest deferral of a preemption.
    pub deferred_ns: u64,
    /// Class that the policy saw.
    pub class: u16,
    /// Where the thread left its core at last, innermost first.
    pub stack: Vec<String>,
}

/// A variant under the load that all are compared at.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    pub offered_per_second: f64,
    /// The headline class's p99: of the median run. None if no run was valid.
    pub p99_ns: Option<u64>,
    /// That, as a multiple of the class's service time.
    pub slowdown: Option<f64>,
    /// What processor sharing without overhead makes of the same arrivals on as many cores.
    pub oracle_slowdown: Option<f64>,
    /// The first as a multiple of the second.
    pub slowdown_vs_oracle: Option<f64>,
    /// The slice of a policy with one queue and one slice.
    pub slice_us: Option<f64>,
    /// What such slices without overhead make of the same arrivals.
    pub sliced_slowdown: Option<f64>,
    /// The slowdown as a multiple of that.
    pub slowdown_vs_sliced: Option<f64>,
    /// What RANGEs cost, if there are any.
    pub range: Option<RangeCost>,
}

/// What a key costs that a RANGE reads: the median run's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeCost {
    /// Number of preemptions in all runs.
    pub preempted: u64,
    /// Time in the RANGE, from one preempt point to the next.
    pub service_ns_per_key: f64,
    /// All time of the cores in threads and between them, but for the other requests' service times.
    pub core_ns_per_key: f64,
    /// How much more of the first it is than where nothing was preempted.
    pub service_growth: Option<f64>,
    /// The same growth, of `core_ns_per_key`.
    pub core_growth: Option<f64>,
}

/// What one load did to one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What the generator meant to send.
    pub offered_per_second: f64,
    /// The rate at which requests ended while it was measured.
    pub achieved_per_second: f64,
    /// Requests due while it was measured, refused ones included.
    pub sent: u64,
    /// Those of `sent` that were done.
    pub done: u64,
    /// Those of `done` whose latencies do not count, because the machine had stalled.
    pub set_aside: u64,
    /// Those of `sent` that found no thread or no room.
    pub refused: u64,
    /// Length of the counted part.
    pub duration_s: f64,
    /// Why each other try of this load was set aside, in order; empty if the load was tried once.
    #[serde(default)]
    pub other_tries: Vec<String>,
    /// Latency per class of requests, from when the request was due. The first is the one that limits apply to,
    /// unless one is called `GET`.
    pub classes: Vec<ClassLatency>,
    /// Whether the generator kept up.
    pub generator: Generator,
    /// How many decisions had which outcome.
    pub outcomes: Vec<(String, u64)>,
    pub cpu: Cpu,
}

/// Latency of one class of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassLatency {
    pub name: String,
    /// Percentiles of the class.
    pub latency: Latency,
    /// In full: a serialized HdrHistogram of nanoseconds (V2, deflated or not), as base64.
    pub histogram_base64: Option<String>,
}

/// A distribution of latencies, in short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests counted; 0 makes all else meaningless.
    pub count: u64,
    pub min_ns: u64,
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile: exceeded by one in 100.
    pub p99_ns: u64,
    /// 99.9th percentile: exceeded by one in 1000.
    pub p999_ns: u64,
    pub max_ns: u64,
    pub mean_ns: f64,
}

/// Whether the generator kept up: how much later than due it sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generator {
    /// Median of the generator's lag.
    pub lag_p50_ns: u64,
    /// 99th percentile: exceeded by one in 100.
    pub lag_p99_ns: u64,
    pub lag_max_ns: u64,
    /// Whether the point may be believed.
    pub valid: bool,
    pub why_invalid: Option<String>,
}

/// What the cores did, in percent of one core's time each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Host cores, running requests.
    pub host_useful_percent: f64,
    /// Host cores, looking for decisions.
    pub host_poll_percent: f64,
    pub agent_percent: f64,
}

/// What is said of a run on `host` if no machine has made it.
pub fn simulated(host: &str, machine: &Machine) -> Option<String> {
    let said = || format!("SIMULATED in virtual time ({}): no figure was measured.", machine.model);
    (host == "sim").then(said)
}

impl RunResult {
    /// What is said before anything else: that points are not measurements, and what they hide. None if all are.
    pub fn banner(&self) -> Option<String> {
        let points = || self.variants.iter().flat_map(|variant| &variant.points);
        let why: Vec<&str> = points().filter_map(|point| point.why_invalid()).collect();
        let unknown: Vec<String> = self
            .variants
            .iter()
            .filter(|variant| variant.not_measurable.is_some())
            .map(|variant| format!("\"{}\"", variant.name))
            .collect();
        if why.is_empty() && unknown.is_empty() {
            return None;
        }
        let disturbed = why.iter().filter(|why| why.starts_with(DISTURBED)).count();
        let mut text = match why.len() == points().count() {
            true if self.is_judged_by_checks() => "CHECKS ONLY".to_owned(),
            true => "NO RESULT".to_owned(),
            false if disturbed > 0 => "DISTURBED".to_owned(),
            false => "INCOMPLETE".to_owned(),
        };
        text.push_str(&format!(
            ": {} of {} points are not measurements",
            why.len(),
            points().count()
        ));
        if disturbed > 0 {
            text.push_str(&format!(", {disturbed} because other processes disturbed them"));
        }
        if !unknown.is_empty() {
            text.push_str(&format!(". Not measurable: saturation of {}", unknown.join(", ")));
        }
        if self.host == "user" {
            text.push_str(". Run it again on a quiet machine");
        }
        text.push('.');
        Some(text)
    }

    /// What is said of a run that no machine has made.
    pub fn simulated(&self) -> Option<String> {
        simulated(&self.host, &self.machine)
    }

    /// Whether the run is about its checks, which do not depend on what else the machine does.
    pub fn is_judged_by_checks(&self) -> bool {
        matches!(self.kind.as_str(), "crash" | "chaos")
    }

    /// Whether it measured what it is about: every saturation that it looked for, and at least one point.
    pub fn is_measured(&self) -> bool {
        let mut points = self.variants.iter().flat_map(|variant| &variant.points).peekable();
        let known = self.variants.iter().all(|variant| variant.not_measurable.is_none());
        known && (points.peek().is_none() || points.any(|point| point.generator.valid))
    }
}

impl Point {
    /// The class that limits apply to: GET, or the first.
    pub fn headline(&self) -> Option<&ClassLatency> {
        let get = self.classes.iter().find(|class| class.name == "GET");
        get.or(self.classes.first()).filter(|class| class.latency.count > 0)
    }

    /// The part of the requests sent, from 0 to 1, that was done, or that ended in time, whichever is less: a
    /// backlog that is worked off after the measured time was not served.
    pub fn served(&self) -> f64 {
        if self.sent == 0 {
            return 0.0;
        }
        let in_time = self.achieved_per_second * self.duration_s;
        (self.done as f64).min(in_time) / self.sent as f64
    }

    /// Why it is not a measurement, if so.
    pub fn why_invalid(&self) -> Option<&str> {
        let why = || self.generator.why_invalid.as_deref();
        (!self.generator.valid).then(|| why().unwrap_or("the generator did not keep up"))
    }

    /// Why this point is not to be taken at face value; empty if it is.
    pub fn note(&self) -> String {
        self.notes(|why| format!("invalid: {why}"))
    }

    /// The same, where a narrow column has no room for the reason.
    pub fn short_note(&self) -> String {
        self.notes(|_| "invalid".to_owned())
    }

    fn notes(&self, invalid: impl FnOnce(&str) -> String) -> String {
        let mut notes = Vec::new();
        notes.extend(self.why_invalid().map(invalid));
        if self.served() < SATURATION_SERVED {
            notes.push(format!("{:.1}% served", self.served() * 100.0));
        }
        if self.refused > 0 {
            notes.push(format!("{} refused", self.refused));
        }
        notes.join("; ")
    }
}
