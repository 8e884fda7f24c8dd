//! Results: the figures of each variant, and comparisons between variants.

use serde::{Deserialize, Serialize};
use wave_compare::curve::Served;
use wave_workloads::point::{Limits, Point, SENSITIVITY_LIMITS_US};
use wave_workloads::rocksdb::Database;

use super::seats::{Equal, Seats, twin};
use super::serving::{Measured, Used};
use crate::ground::point::with_use;
use crate::ground::rounds::Curves;
use crate::ground::saturation::{put_saturations, saturation};
use crate::ground::system::Delta;
use crate::kinds::rpc::{Rpc, RpcPlacement, Stack};
use wave_report::RunResult;
use wave_report::model::{Figure, ServedShare, VariantResult};
use wave_report::number::{difference, micros, short, thousands};
use wave_report::terminal::{self, Section, marked};
use wave_terminal::Table;

/// Name of the agents' part of an account in native runs, which includes polling: they look for work as long as they have a
/// CPU.
pub const AGENT_WITH_LOOKS: &str = "agent, with looks";
/// Name of the agents' part in simulated runs, without polling.
pub const AGENT: &str = "agent";

/// A variant and its points.
pub struct Row<'a> {
    pub stack: &'a Stack,
    pub seats: &'a Seats,
    pub points: Vec<Measured>,
    /// What it serves within each limit on a GET's p99, in microseconds: see [`all_limits`].
    by_limit: Vec<(u64, Option<f64>)>,
    /// Its saturation if simulated: the scenario's limits, and the result of the search.
    saturation: Option<(Limits, Result<Option<f64>, String>)>,
}

/// The load that one variant, by its name, serves as a share of what another serves, within a limit in microseconds.
pub type Ratio<'a> = dyn Fn(&str, &str, u64) -> Option<ServedShare> + 'a;

/// Findings of this kind of scenario only: figures of the whole run, beside those of each variant.
#[derive(Debug, Serialize, Deserialize)]
struct Extra {
    placements: Vec<Placed>,
    /// What all variants have the same number of: `cores` of the host, or `workers`.
    equal: String,
    /// Limits on a GET's p99 within which saturation is given, in microseconds; first the scenario's own.
    limits_us: Vec<u64>,
    /// The load of all figures other than saturation.
    compare_at_per_second: f64,
    /// Gain in saturation of a queue per SLO over one queue, for an agent with stack and scheduler, over the first link in the
    /// file.
    multi_queue_gain: Option<Figure>,
    /// The same gain over each link.
    multi_queue_gain_by_link: Vec<(String, Figure)>,
    /// The same gain within each limit, over the first link.
    multi_queue_gain_by_limit: Vec<(u64, Figure)>,
    /// Stack and scheduler off the host, compared with both on it, by policy.
    offload_vs_onhost_all: Vec<Against>,
    /// Compared with the scheduler alone on the host, over the same link.
    offload_vs_onhost_scheduler: Vec<Against>,
    /// The best offloaded variant compared with tonic, and with the sidecar.
    throughput_vs_tonic: Option<Against>,
    throughput_vs_sidecar: Option<Against>,
}

/// One saturation compared with another.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Against {
    /// What the variant serves, as a share of what `to` serves: within rounds; of saturations if simulated, where both ends of the
    /// interval are the ratio itself.
    #[serde(flatten)]
    share: ServedShare,
    to: String,
    of_host_cores: u32,
    to_host_cores: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Placed {
    name: String,
    placement: RpcPlacement,
    policy: String,
    steer: String,
    link: String,
    /// Not run: with equal workers it is the same system as this variant.
    same_system_as: Option<String>,
    workers: u32,
    host_cores: u32,
    agent_cores: u32,
    saturation_per_second: Option<f64>,
    /// Why its saturation could not be measured, if so.
    #[serde(default)]
    not_measurable: Option<String>,
    saturation_by_limit: Vec<(u64, Option<f64>)>,
    lowest_load_per_second: f64,
    compared: Option<Figures>,
    /// None in a native run: what a variant serves at the limit is no load of the run.
    at_saturation: Option<Figures>,
}

/// Figures of a point. CPU times are microseconds per call.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Figures {
    offered_per_second: f64,
    valid: bool,
    served: f64,
    get_p50_us: f64,
    get_p99_us: f64,
    /// Host and agents, all threads except the generator's: handlers, polling, wake-ups. None if simulated.
    total_us_per_rpc: Option<f64>,
    /// The host's workers, with handlers, without polling.
    host_us_per_rpc: f64,
    /// Of that, the time outside of the service of GETs and RANGEs: RPC stub or stack, and switches.
    host_beside_service_us_per_rpc: f64,
    /// CPU time of the agents and of the generator, polling included. Simulated: without polling, and without a generator.
    agent_us_per_rpc: f64,
    generator_us_per_rpc: Option<f64>,
    /// Share of time that the workers' cores were busy, and CPUs used by agents and generator.
    host_busy: f64,
    /// Share of time that they were ready while something else ran: the host's own control threads, or other processes.
    host_stalled: Option<f64>,
    agent_cpus: f64,
    generator_cpus: Option<f64>,
    /// Lateness of calls when sent, p99.
    generator_lag_p99_us: f64,
}

impl Figures {
    fn of(point: &Measured, workers: usize) -> Figures {
        let Measured { open, used, .. } = point;
        let Used { wall_ns, worked, total_ns, host_ns, stalled_ns, agents_ns, generator_ns } =
            *used;
        let per_call = |ns: u64| ns as f64 / 1e3 / worked.calls.max(1) as f64;
        let by_wall = |ns: u64| ns as f64 / wall_ns.max(1) as f64;
        let get = open.point.latency("GET").copied().unwrap_or_default();
        Figures {
            offered_per_second: open.point.offered_per_second,
            valid: open.point.generator.valid,
            served: open.point.served(),
            get_p50_us: get.p50_ns as f64 / 1e3,
            get_p99_us: get.p99_ns as f64 / 1e3,
            total_us_per_rpc: total_ns.map(per_call),
            host_us_per_rpc: per_call(host_ns),
            host_beside_service_us_per_rpc: per_call(host_ns) - per_call(worked.ns),
            agent_us_per_rpc: per_call(agents_ns),
            generator_us_per_rpc: generator_ns.map(per_call),
            host_busy: by_wall(host_ns) / workers as f64,
            host_stalled: stalled_ns.map(|ns| by_wall(ns) / workers as f64),
            agent_cpus: by_wall(agents_ns),
            generator_cpus: generator_ns.map(by_wall),
            generator_lag_p99_us: open.point.generator.lag_p99_ns as f64 / 1e3,
        }
    }
}

impl<'a> Row<'a> {
    /// A simulated variant.
    pub fn simulated(
        stack: &'a Stack,
        seats: &'a Seats,
        points: Vec<Measured>,
        limits: &Limits,
    ) -> Row<'a> {
        let measured = measured(&points);
        let with = |us: u64| Limits { p99_ns: us * 1_000, ..limits.clone() };
        let known = |us: u64| saturation(&measured, &with(us)).unwrap_or(None);
        let by_limit = all_limits(limits).into_iter().map(|us| (us, known(us))).collect();
        let saturation = Some((limits.clone(), saturation(&measured, limits)));
        Row { stack, seats, points, by_limit, saturation }
    }

    /// A variant that has run in rounds: `points` have all samples of a load, and `row` is its place in `curves`.
    pub fn in_rounds(
        stack: &'a Stack,
        seats: &'a Seats,
        points: Vec<Measured>,
        (curves, row): (&Curves, usize),
        limits: &Limits,
    ) -> Row<'a> {
        let served = |us: u64| match curves.served(row, us as f64 * 1e3) {
            Served::Below(_) => None,
            served => Some(served.load()),
        };
        let by_limit = all_limits(limits).into_iter().map(|us| (us, served(us))).collect();
        Row { stack, seats, points, by_limit, saturation: None }
    }

    pub fn answers_nobody(&self) -> bool {
        self.points.iter().all(|point| point.open.point.done == 0)
    }

    fn at(&self, load: f64) -> Option<&Measured> {
        self.points.iter().find(|point| point.open.point.offered_per_second == load)
    }

    fn placed(&self, scenario: &Rpc) -> Placed {
        let workers = self.seats.seating.workers.len();
        let figures = |load: f64| self.at(load).map(|point| Figures::of(point, workers));
        let unknown = self.saturation.as_ref().and_then(|(_, known)| known.clone().err());
        let saturation = self.by_limit.first().and_then(|(_, load)| *load);
        Placed {
            not_measurable: unknown,
            same_system_as: None,
            workers: workers as u32,
            host_cores: self.seats.host_cores,
            agent_cores: self.seats.agent_cores,
            saturation_per_second: saturation,
            saturation_by_limit: self.by_limit.clone(),
            compared: figures(scenario.run.compare_at()),
            at_saturation: self.saturation.as_ref().and(saturation).and_then(figures),
            ..Placed::not_run(scenario, self.stack)
        }
    }

    /// The result in the form of all kinds of scenarios. `agent` is the name of the agents' part of its account.
    pub fn variant(&self, scenario: &Rpc, agent: &str) -> VariantResult {
        let workers = self.seats.seating.workers.len();
        let mut points: Vec<&Measured> = self.points.iter().collect();
        let load = |point: &Measured| point.open.point.offered_per_second;
        points.sort_by(|a, b| load(a).total_cmp(&load(b)));
        let report = |point: &&Measured| {
            let Used { wall_ns, host_ns, agents_ns, .. } = point.used;
            let delta = Delta {
                wall_ns: wall_ns as f64,
                cores_ns: wall_ns as f64 * workers as f64,
                busy_ns: host_ns as f64,
                agent_ns: agents_ns as f64,
                ..Delta::default()
            };
            with_use(point.open.point.clone(), &delta)
        };
        let account = self.at(scenario.run.compare_at()).map_or_else(Vec::new, |point| {
            let figures = Figures::of(point, workers);
            let service = figures.host_us_per_rpc - figures.host_beside_service_us_per_rpc;
            vec![
                ("service".to_owned(), service * 1e3),
                ("host besides".to_owned(), figures.host_beside_service_us_per_rpc.max(0.0) * 1e3),
                (agent.to_owned(), figures.agent_us_per_rpc * 1e3),
            ]
        });
        let mut result = VariantResult {
            name: self.stack.name.clone(),
            placement: self.stack.placement.name().to_owned(),
            link: self.stack.link.to_string(),
            policy: self.stack.policy.clone(),
            workers: workers as u32,
            points: points.iter().map(report).collect(),
            saturation_per_second: None,
            not_measurable: None,
            saturation_by_limit: Vec::new(),
            limits_not_measurable: Vec::new(),
            account_per_second: (!account.is_empty()).then_some(scenario.run.compare_at()),
            account,
            preemptions: None,
            compared: None,
        };
        if let Some((limits, _)) = &self.saturation {
            put_saturations(&mut result, &measured(&self.points), limits, &all_limits(limits));
        }
        result
    }
}

fn measured(points: &[Measured]) -> Vec<Point> {
    points.iter().map(|point| point.open.point.clone()).collect()
}

impl Placed {
    fn not_run(scenario: &Rpc, stack: &Stack) -> Placed {
        Placed {
            name: stack.name.clone(),
            placement: stack.placement,
            policy: stack.policy.clone(),
            steer: stack.steer.clone(),
            link: stack.link.to_string(),
            same_system_as: None,
            workers: 0,
            host_cores: 0,
            agent_cores: 0,
            saturation_per_second: None,
            not_measurable: None,
            saturation_by_limit: Vec::new(),
            lowest_load_per_second: scenario.run.loads_per_second[0],
            compared: None,
            at_saturation: None,
        }
    }

    /// Compares with another, within a limit in microseconds.
    fn against(&self, other: &Placed, limit_us: u64, ratio: &Ratio<'_>) -> Option<Against> {
        let share = ratio(&self.name, &other.name, limit_us)?;
        Some(Against {
            to: other.name.clone(),
            share,
            of_host_cores: self.host_cores,
            to_host_cores: other.host_cores,
        })
    }

    fn has(&self, policy: &str) -> bool {
        self.policy.split(':').next() == Some(policy)
    }
}

/// The scenario's limit, and the usual ones.
fn all_limits(limits: &Limits) -> Vec<u64> {
    let meant = limits.p99_ns / 1_000;
    let others = SENSITIVITY_LIMITS_US.into_iter().filter(|us| *us != meant);
    [meant].into_iter().chain(others).collect()
}

/// The ratio of simulated saturations; where the second has none, its lowest load, which it did not serve, is taken.
pub fn of_saturations(
    rows: &[Row<'_>],
    lowest: f64,
    of: &str,
    to: &str,
    us: u64,
) -> Option<ServedShare> {
    let row = |name: &str| rows.iter().find(|row| row.stack.name == name);
    let within = |row: &Row<'_>| row.by_limit.iter().find(|(limit, _)| *limit == us)?.1;
    let (own, other) = (within(row(of)?)?, row(to)?);
    if let Some((_, Err(_))) = other.saturation {
        return None;
    }
    let ratio = own / within(other).unwrap_or(lowest);
    let (low, high, pooled_ratio) = (Some(ratio), within(other).map(|_| ratio), ratio);
    Some(ServedShare { name: of.to_owned(), ratio, low, high, pooled_ratio, is_doubted: false })
}

/// Further facts for the report.
pub fn facts(
    scenario: &Rpc,
    database: &Database,
    equal: Equal,
    twins: &[&Stack],
) -> Vec<(String, String)> {
    let workload = &scenario.workload;
    let mut facts = vec![
        (
            format!("RocksDB {}", database.version()),
            "the system's library, PlainTable in memory, in order".to_owned(),
        ),
        (
            format!("GET {} us, RANGE {} us", workload.get_us, workload.range_us),
            "calibrated: a GET spins after its read, a RANGE reads on; the same handlers everywhere".to_owned(),
        ),
        (
            "CPU times of agents and of the generator".to_owned(),
            "measured, including polling: they use what is left of their CPUs".to_owned(),
        ),
    ];
    let why = "there are too few CPUs for equal cores";
    facts.extend(left_out(scenario, equal, twins, why));
    facts
}

/// A fact for each of `twins`: it is not run, because with equal workers it is its twin, and because of `why`.
pub fn left_out(
    scenario: &Rpc,
    equal: Equal,
    twins: &[&Stack],
    why: &str,
) -> impl Iterator<Item = (String, String)> {
    twins.iter().filter_map(move |stack| {
        let why = format!(
            "left out: with equal workers it is the same system as \"{}\", and {why}",
            twin(scenario, stack, equal)?.name
        );
        Some((stack.name.clone(), why))
    })
}

/// Findings of this kind of scenario only.
pub fn extra(
    scenario: &Rpc,
    rows: &[Row<'_>],
    equal: Equal,
    twins: &[&Stack],
    limits: &Limits,
    ratio: &Ratio<'_>,
) -> serde_json::Value {
    let mut placements: Vec<Placed> = rows.iter().map(|row| row.placed(scenario)).collect();
    for stack in twins {
        let same = twin(scenario, stack, equal).map(|same| same.name.clone());
        placements.push(Placed { same_system_as: same, ..Placed::not_run(scenario, stack) });
    }
    let extra = Extra::new(scenario, placements, equal, limits, ratio);
    serde_json::to_value(extra).expect("findings have string keys only")
}

impl Extra {
    fn new(
        scenario: &Rpc,
        placements: Vec<Placed>,
        equal: Equal,
        limits: &Limits,
        ratio: &Ratio<'_>,
    ) -> Extra {
        let of = |placement: RpcPlacement| {
            placements.iter().filter(move |placed| placed.placement == placement)
        };
        let offloaded = || of(RpcPlacement::OffloadAll);
        // Pairs that differ only in the policy.
        let pairs = offloaded().filter(|placed| placed.has("shinjuku")).filter_map(|single| {
            let multi = offloaded().find(|multi| {
                multi.has("multi-queue")
                    && (&multi.link, &multi.steer) == (&single.link, &single.steer)
            });
            Some((single, multi?))
        });
        let pairs: Vec<(&Placed, &Placed)> = pairs.collect();
        let limits_us = all_limits(limits);
        let limit_us = limits_us[0];
        let gain = |single: &Placed, multi: &Placed, us: u64| {
            let share = ratio(&multi.name, &single.name, us)?;
            let Figure { value, interval } = share.figure()?;
            let interval = interval.map(|(low, high)| (low - 1.0, high - 1.0));
            Some(Figure { value: value - 1.0, interval: interval.filter(|(low, high)| low < high) })
        };
        let by_limit = pairs.first().map_or_else(Vec::new, |(single, multi)| {
            let within = |us: &u64| Some((*us, gain(single, multi, *us)?));
            limits_us.iter().filter_map(within).collect()
        });
        let by_link = pairs.iter().filter_map(|(single, multi)| {
            Some((single.link.clone(), gain(single, multi, limit_us)?))
        });
        let by_link: Vec<(String, Figure)> = by_link.collect();
        let saturation = |placed: &&Placed| placed.saturation_per_second.unwrap_or(0.0);
        let best = |of: &mut dyn Iterator<Item = &Placed>| {
            of.max_by(|a, b| saturation(a).total_cmp(&saturation(b))).cloned()
        };
        let best_offloaded = best(&mut offloaded());
        let against = |placement| {
            best_offloaded.as_ref()?.against(&best(&mut of(placement))?, limit_us, ratio)
        };
        let onhost = of(RpcPlacement::OnhostAll).flat_map(|onhost| {
            // A variant that was not run has the figures of its twin.
            let run = onhost.same_system_as.as_ref();
            let run = run.and_then(|same| offloaded().find(|other| other.name == *same));
            let figures = run.unwrap_or(onhost);
            let like = offloaded()
                .filter(move |other| other.policy == onhost.policy && other.name != figures.name);
            like.filter_map(move |other| {
                let against = other.against(figures, limit_us, ratio)?;
                Some(Against { to: onhost.name.clone(), ..against })
            })
        });
        let split = of(RpcPlacement::OnhostScheduler).flat_map(|split| {
            let like = offloaded()
                .filter(|other| (&other.policy, &other.link) == (&split.policy, &split.link));
            like.filter_map(|other| other.against(split, limit_us, ratio))
        });
        Extra {
            offload_vs_onhost_scheduler: split.collect(),
            equal: equal.name().to_owned(),
            compare_at_per_second: scenario.run.compare_at(),
            multi_queue_gain: by_link.first().map(|(_, gain)| *gain),
            multi_queue_gain_by_limit: by_limit,
            offload_vs_onhost_all: onhost.collect(),
            throughput_vs_tonic: against(RpcPlacement::Tonic),
            throughput_vs_sidecar: against(RpcPlacement::Sidecar),
            multi_queue_gain_by_link: by_link,
            limits_us,
            placements,
        }
    }
}

/// The comparison of variants, for a terminal.
pub fn table(result: &RunResult) -> String {
    let Ok(extra) = serde_json::from_value::<Extra>(result.extra.clone()) else {
        return String::new();
    };
    let at = format!("at {} k/s:\nGET p50 us", thousands(extra.compare_at_per_second));
    let head = [
        "variant",
        "serves\nk/s",
        "vs first",
        &at,
        "GET p99\nus",
        "all CPU\nus/RPC",
        "host us\n/RPC",
        "besides\nservice",
        "agent us\n/RPC",
        "generator\nus/RPC",
        "lag p99\nus",
    ];
    let mut table = Table::new(1, head);
    let mut marks = false;
    let first = extra.placements.first().and_then(|first| first.saturation_per_second);
    for placed in extra.placements.iter().filter(|placed| placed.same_system_as.is_none()) {
        let saturation = placed.saturation_per_second;
        let mut row = vec![
            placed.name.clone(),
            terminal::saturation_cell(saturation, placed.not_measurable.as_deref()),
            saturation.zip(first).map_or_else(String::new, |(rate, first)| difference(rate, first)),
        ];
        if let Some(figures) = &placed.compared {
            let valid = figures.valid;
            marks |= !valid;
            let ns = |us: f64| micros((us * 1e3).round().max(0.0) as u64);
            let latencies = [ns(figures.get_p50_us), ns(figures.get_p99_us)];
            row.extend(latencies.map(|figure| marked(figure, valid)));
            let costs = [
                figures.total_us_per_rpc,
                Some(figures.host_us_per_rpc),
                Some(figures.host_beside_service_us_per_rpc),
                Some(figures.agent_us_per_rpc),
                figures.generator_us_per_rpc,
                Some(figures.generator_lag_p99_us),
            ];
            let cell = |figure| marked(short(figure), valid);
            row.extend(costs.map(|figure| figure.map_or_else(|| "-".to_owned(), cell)));
        }
        table.push(row);
    }
    let mut notes = Vec::new();
    let points = || result.variants.iter().flat_map(|variant| &variant.points);
    let highest = points().map(|point| point.offered_per_second).reduce(f64::max);
    let most = extra.placements.iter().filter(|placed| placed.saturation_per_second == highest);
    let most: Vec<&str> = most.map(|placed| placed.name.as_str()).collect();
    if !most.is_empty() && highest.is_some() {
        notes
            .push(format!("Serve the highest load offered, and perhaps more: {}", most.join("; ")));
    }
    if marks {
        notes.push("In brackets: the point is not a measurement".to_owned());
    }
    if let Some(gain) = extra.multi_queue_gain {
        notes.push(format!(
            "A queue per SLO serves {} beside one queue, at a GET p99 of {} us",
            gain.words(|gain| format!("{:+.1}%", gain * 100.0)),
            result.limit_us
        ));
    }
    let all = extra.offload_vs_onhost_all.iter().chain(&extra.offload_vs_onhost_scheduler);
    for Against { share, to, .. } in
        all.chain(&extra.throughput_vs_tonic).chain(&extra.throughput_vs_sidecar)
    {
        notes.push(format!("{}: {} times the load of {to}", share.name, share.words()));
    }
    Section::new(&table, notes).to_string()
}
