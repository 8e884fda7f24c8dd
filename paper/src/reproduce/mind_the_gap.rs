//! "Mind the Gap" (HotNets '19), Figures 2 to 6: Shinjuku on the host, Shinjuku-Offload on a Stingray, and the SmartNIC that
//! the paper calls for.
//!
//! One parameter of the prototype's machine is fitted to one row of Figure 3. Everything else follows. The ends of the range
//! that the fit leaves open are simulated, too, and give the rows' intervals.

use wave_core::clock::Nanos;
use wave_sim::enclave::Setup;
use wave_sim::experiment::{self, Outcome};
use wave_sim::fit::offload::{Offload, Open};
use wave_sim::mind_the_gap::{self as paper, Model, System};
use wave_sim::requests::{Class, Load};
use wave_workloads::point::{self, Limits, Point};

use super::figures::{Curve, Figure};
use super::group::{Group, Ours};
use super::jobs::{ByName, Done, Job};
use super::rows::Kind;

/// Figure 3's numbers of workers.
const WORKERS: [u16; 2] = [4, 16];
/// Figure 3's numbers of outstanding requests, and more.
const OUTSTANDING: std::ops::RangeInclusive<u16> = 1..=8;
/// Throughput levels out at this share of the best.
const LEVEL: f64 = 0.95;
/// Maximum number of probes of one search.
const PROBES: usize = 14;
/// Start of a search, as a share of what the workers could serve.
const LOW: f64 = 0.05;
/// Loads below saturation at which latencies are shown, as shares of the saturation.
const BELOW: [f64; 4] = [0.25, 0.5, 0.7, 0.9];
/// More workers than Shinjuku's dispatcher can keep busy.
const MANY_WORKERS: u16 = 64;
const MICROSECOND: Nanos = Nanos::from_micros(1);

/// Suffixes of the prototype's jobs: with the fitted value, and with the ends of the range that the fit leaves open.
const FITTED: &str = "";
const ENDS: [&str; 2] = ["-least", "-most"];

/// A figure that compares systems.
struct Comparison {
    group: &'static str,
    title: &'static str,
    classes: fn() -> Vec<Class>,
    slice_us: Option<u32>,
    /// Workers of Shinjuku, and of Shinjuku-Offload.
    workers: [u16; 2],
    outstanding: u16,
    measure: Nanos,
}

const COMPARISONS: [Comparison; 4] = [
    Comparison {
        group: "mtg2",
        title: "Mind the Gap, Figure 2: 99.5% 5 us, 0.5% 100 us, slices of 10 us",
        classes: paper::bimodal,
        slice_us: Some(10),
        workers: [3, 4],
        outstanding: 4,
        measure: Nanos::from_millis(100),
    },
    Comparison {
        group: "mtg4",
        title: "Mind the Gap, Figure 4: 5 us",
        classes: || paper::fixed(Nanos::from_micros(5)),
        slice_us: None,
        workers: [3, 4],
        outstanding: 4,
        measure: Nanos::from_millis(40),
    },
    Comparison {
        group: "mtg5",
        title: "Mind the Gap, Figure 5: 100 us",
        classes: || paper::fixed(Nanos::from_micros(100)),
        slice_us: None,
        workers: [15, 16],
        outstanding: 2,
        measure: Nanos::from_millis(200),
    },
    Comparison {
        group: "mtg6",
        title: "Mind the Gap, Figure 6: 1 us",
        classes: || paper::fixed(MICROSECOND),
        slice_us: None,
        workers: [15, 16],
        outstanding: 5,
        measure: Nanos::from_millis(20),
    },
];

pub(super) const FIGURE_2: Group = Group {
    id: "mtg2",
    title: "Mind the Gap, Figure 2",
    about: "Mind the Gap, Figure 2: a bimodal load, slices ended by the worker's own timer",
    is_seeded: true,
    jobs: |model| jobs("mtg2", model.seed),
    figures: |done| figures("mtg2", done),
    rows: &[
        Ours::new("mtg2-saturation", Kind::Predicted, |done| of_prototype_as("mtg2-saturation", done, FITTED)).within(|done| interval("mtg2-saturation", done)).why("The paper says which system does better, and prints no figure: its range is open. Ours is saturation: 99% served, and a p99 of at most 300 us (Figure 2: of the short requests)."),
    ],
};

pub(super) const FIGURE_3: Group = Group {
    id: "mtg3",
    title: "Mind the Gap, Figure 3",
    about: "Mind the Gap, Figure 3: outstanding requests per worker, over 2.56 us one way",
    is_seeded: true,
    jobs: |model| jobs("mtg3", model.seed),
    figures: |done| figures("mtg3", done),
    rows: &[
        Ours::new("mtg3-4-gain", Kind::Predicted, |done| of_prototype_as("mtg3-4-gain", done, FITTED)).within(|done| interval("mtg3-4-gain", done)).why("Ours is the most that is served under an overload, and levels out where it is within 5% of the highest. The fitted cost of the Arm cores makes the dispatcher the bottleneck of 4 workers with five outstanding requests."),
        Ours::new("mtg3-4-level", Kind::Predicted, |done| of_prototype_as("mtg3-4-level", done, FITTED)).within(|done| interval("mtg3-4-level", done)).why("Ours is the most that is served under an overload, and levels out where it is within 5% of the highest. The fitted cost of the Arm cores makes the dispatcher the bottleneck of 4 workers with five outstanding requests."),
        Ours::new("mtg3-16-gain", Kind::Predicted, |done| of_prototype_as("mtg3-16-gain", done, FITTED)).within(|done| interval("mtg3-16-gain", done)).why("The same dispatcher is then the bottleneck of 16 workers that have one request each, and more requests cannot help. No one constant cost of the Arm cores meets both of the paper's gains: to gain 88%, 16 workers with three requests must be served at least 1.88 times as fast as with one, which is more than the dispatcher does for 4 workers with five."),
        Ours::new("mtg3-16-level", Kind::Predicted, |done| of_prototype_as("mtg3-16-level", done, FITTED)).within(|done| interval("mtg3-16-level", done)).why("The same dispatcher is then the bottleneck of 16 workers that have one request each, and more requests cannot help. No one constant cost of the Arm cores meets both of the paper's gains: to gain 88%, 16 workers with three requests must be served at least 1.88 times as fast as with one, which is more than the dispatcher does for 4 workers with five."),
    ],
};

pub(super) const FIGURE_4: Group = Group {
    id: "mtg4",
    title: "Mind the Gap, Figure 4",
    about: "Mind the Gap, Figure 4: 5 us, 3 workers of Shinjuku against 4 of Shinjuku-Offload",
    is_seeded: true,
    jobs: |model| jobs("mtg4", model.seed),
    figures: |done| figures("mtg4", done),
    rows: &[
        Ours::new("mtg4-saturation", Kind::Predicted, |done| of_prototype_as("mtg4-saturation", done, FITTED)).within(|done| interval("mtg4-saturation", done)).why("The paper says which system does better, and prints no figure: its range is open. Ours is saturation: 99% served, and a p99 of at most 300 us (Figure 2: of the short requests)."),
    ],
};

pub(super) const FIGURE_5: Group = Group {
    id: "mtg5",
    title: "Mind the Gap, Figure 5",
    about: "Mind the Gap, Figure 5: 100 us, 15 workers against 16",
    is_seeded: true,
    jobs: |model| jobs("mtg5", model.seed),
    figures: |done| figures("mtg5", done),
    rows: &[
        Ours::new("mtg5-saturation", Kind::Predicted, |done| of_prototype_as("mtg5-saturation", done, FITTED)).within(|done| interval("mtg5-saturation", done)).why("The paper says which system does better, and prints no figure: its range is open. Ours is saturation: 99% served, and a p99 of at most 300 us (Figure 2: of the short requests)."),
    ],
};

pub(super) const FIGURE_6: Group = Group {
    id: "mtg6",
    title: "Mind the Gap, Figure 6",
    about: "Mind the Gap, Figure 6: 1 us, 15 workers against 16, and the SmartNIC that it asks for",
    is_seeded: true,
    jobs: |model| jobs("mtg6", model.seed),
    figures: |done| figures("mtg6", done),
    rows: &[
        Ours::new("mtg6-saturation", Kind::Predicted, |done| of_prototype_as("mtg6-saturation", done, FITTED)).within(|done| interval("mtg6-saturation", done)).why("The paper says which system does better, and prints no figure: its range is open. Ours is saturation: 99% served, and a p99 of at most 300 us (Figure 2: of the short requests)."),
        Ours::new("mtg6-waiting-share", Kind::Predicted, |done| of_prototype_as("mtg6-waiting-share", done, FITTED)).within(|done| interval("mtg6-waiting-share", done)).why("The paper does not say how it measures waiting. Ours is what is left of the workers' time beside requests, switches and their packets, at saturation: as a share of time, and for each request. In Figure 5 they hardly wait, so that the ratio is large; the paper's figure is no ratio of these two."),
        Ours::new("mtg6-waiting-request", Kind::Predicted, |done| of_prototype_as("mtg6-waiting-request", done, FITTED)).within(|done| interval("mtg6-waiting-request", done)).why("The paper does not say how it measures waiting. Ours is what is left of the workers' time beside requests, switches and their packets, at saturation: as a share of time, and for each request. In Figure 5 they hardly wait, so that the ratio is large; the paper's figure is no ratio of these two."),
        Ours::new("mtg6-ideal", Kind::Compatible, |done| of_prototype_as("mtg6-ideal", done, FITTED)).within(|done| interval("mtg6-ideal", done)).why("The link takes 300 ns one way and occupies nobody, the scheduler 6 ns for a request. The agent's loop is the real one, and still moves messages and decisions in rounds."),
        Ours::new("mtg6-communication", Kind::Compatible, |done| of_prototype_as("mtg6-communication", done, FITTED)).within(|done| interval("mtg6-communication", done)).why("A request's p99 less its work, at a tenth of the workers' capacity. Transfers of lines are within the printed sums of the dispatcher and of a worker here, so that what is left are the networker, the dispatcher and rounds of its loop; a tail of 2 us has causes that are not modelled."),
        Ours::new("mtg6-dispatcher", Kind::Assumed, |done| of_prototype_as("mtg6-dispatcher", done, FITTED)).within(|done| interval("mtg6-dispatcher", done)),
        Ours::new("mtg6-dispatcher-workers", Kind::Assumed, |done| of_prototype_as("mtg6-dispatcher-workers", done, FITTED)).within(|done| interval("mtg6-dispatcher-workers", done)),
        Ours::new("mtg6-dispatcher-cores", Kind::Assumed, |done| of_prototype_as("mtg6-dispatcher-cores", done, FITTED)).within(|done| interval("mtg6-dispatcher-cores", done)),
    ],
};

impl Comparison {
    fn setup(&self, system: System, model: &Model) -> Setup {
        let [host, other] = self.workers;
        match system {
            // A worker of Shinjuku has one request at a time.
            System::Host => model.setup(system, host, 1, self.slice_us),
            _ => model.setup(system, other, self.outstanding, self.slice_us),
        }
    }

    fn job(&self, system: System, model: &Model, suffix: &str) -> Job {
        let (setup, classes, measure) = (self.setup(system, model), self.classes, self.measure);
        let job = name(self.group, system, suffix);
        Job::new(job, move || saturation(&setup, classes(), measure))
    }
}

fn name(group: &str, system: System, suffix: &str) -> String {
    let system = match system {
        System::Host => "host",
        System::Offload => "offload",
        System::Ideal => "ideal",
    };
    format!("{group}-{system}{suffix}")
}

/// Name of the job for one throughput of Figure 3.
fn throughput_name(workers: u16, outstanding: u16, suffix: &str) -> String {
    format!("mtg3-{workers}-{outstanding}{suffix}")
}

/// The jobs of a group with this seed, also at both ends of the range that the fit leaves open.
fn jobs(group: &str, seed: u64) -> Vec<Job> {
    let model = Model { seed, ..Model::builtin() };
    let mut jobs = of_prototype(group, &model, FITTED);
    for comparison in compared(group) {
        jobs.push(comparison.job(System::Host, &model, ""));
    }
    if group == "mtg6" {
        jobs.push(COMPARISONS[3].job(System::Ideal, &model, ""));
        let host = |workers| model.setup(System::Host, workers, 1, None);
        let [one, compared, many] = [1, COMPARISONS[3].workers[0], MANY_WORKERS].map(host);
        jobs.push(Job::new("mtg6-dispatcher", move || {
            let most = |setup| paper::throughput(setup, MICROSECOND, paper::FIGURE_3);
            Done::of([("one", most(&one)), ("many", most(&many))])
        }));
        jobs.push(Job::new("mtg6-communication", move || communication(&compared)));
    }
    let (fit, open) = (Offload::builtin(), Open::builtin());
    for (suffix, value) in ENDS.into_iter().zip([open.least, open.most]) {
        jobs.extend(of_prototype(group, &Model { seed, ..fit.model(value) }, suffix));
    }
    jobs
}

/// The comparisons of a group. Figure 6 is compared with Figure 5.
fn compared(group: &str) -> impl Iterator<Item = &'static Comparison> {
    let wanted = move |of: &str| of == group || of == "mtg5" && group == "mtg6";
    COMPARISONS.iter().filter(move |comparison| wanted(comparison.group))
}

fn of_prototype(group: &str, model: &Model, suffix: &str) -> Vec<Job> {
    let mut jobs: Vec<Job> =
        compared(group).map(|of| of.job(System::Offload, model, suffix)).collect();
    if group == "mtg3" {
        for (workers, outstanding) in
            WORKERS.into_iter().flat_map(|of| OUTSTANDING.map(move |k| (of, k)))
        {
            let setup = model.setup(System::Offload, workers, outstanding, None);
            jobs.push(Job::new(throughput_name(workers, outstanding, suffix), move || {
                let most = paper::throughput(&setup, MICROSECOND, paper::FIGURE_3);
                Done::of([("throughput", most)])
            }));
        }
    }
    jobs
}

/// The saturation of a setup, latencies below it, and its workers' waiting at saturation.
fn saturation(setup: &Setup, classes: Vec<Class>, measure: Nanos) -> Done {
    let limits = Limits { class: classes[0].name.clone(), ..Limits::default() };
    let total: f64 = classes.iter().map(|class| class.weight).sum();
    let mean = |class: &Class| class.weight / total * class.service.mean().0 as f64;
    let cycle = classes.iter().map(mean).sum::<f64>() + setup.machine.request_overhead.value;
    let workers = f64::from(setup.config.cores) * 1e9 / cycle;
    let load = |per_second| paper::load(setup, classes.clone(), per_second, measure);
    let run = |per_second| probe(setup, &load(per_second)).0;
    let found = point::search(run, LOW * workers, 2.0 * workers, PROBES, &limits);
    let Some(saturation) = found.saturation_per_second else { return Done::default() };
    let mut points: Vec<Point> = found.points;
    points.extend(BELOW.map(|share| run(share * saturation)));
    points.sort_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second));
    let p99_us =
        |point: &Point| point.latency(&limits.class).map_or(f64::NAN, |of| of.p99_ns as f64 / 1e3);
    let load = load(saturation);
    let [share, each] = waiting(setup, &load, &probe(setup, &load).1);
    let mut done = Done::of([("saturation", saturation), ("waiting", share), ("wait_ns", each)]);
    done.points = points
        .iter()
        .map(|point| [point.offered_per_second, point.achieved_per_second, p99_us(point)])
        .collect();
    done
}

fn probe(setup: &Setup, load: &Load) -> (Point, Outcome) {
    let outcome = experiment::serve(setup, load).expect("the paper's setups can be laid out");
    (wave_experiments::kinds::requests::sim::point(load, &outcome), outcome)
}

/// The share of their time that workers wait for requests, and the wait per request in nanoseconds: the time left after
/// requests, switches and accesses to the link.
fn waiting(setup: &Setup, load: &Load, outcome: &Outcome) -> [f64; 2] {
    let (usage, machine) = (&outcome.usage, &setup.machine);
    let all = f64::from(setup.config.cores) * load.end().0 as f64;
    let switch = machine.switch_before.value + machine.switch_after.value;
    let works =
        usage.busy.0 as f64 + usage.switches as f64 * switch + usage.charges.total_ns() as f64;
    let waits = (all - works).max(0.0);
    [waits / all, waits / usage.switches.max(1) as f64]
}

/// Excess of a request's p99 over its work, in microseconds, at a tenth of what the workers could serve.
fn communication(setup: &Setup) -> Done {
    let machine = &setup.machine;
    let work = MICROSECOND.0 as f64 + machine.request_overhead.value + machine.switch_after.value;
    let per_second = 0.1 * f64::from(setup.config.cores) * 1e9 / work;
    let load = paper::load(setup, paper::fixed(MICROSECOND), per_second, Nanos::from_millis(20));
    let (point, _) = probe(setup, &load);
    let p99 = point.latency("fixed").map_or(f64::NAN, |latency| latency.p99_ns as f64);
    Done::of([("added_us", (p99 - work) / 1e3)])
}

/// Lowest and highest value of a row under one seed, over the range that the fit leaves open; None if the row does not depend on it.
fn interval(id: &str, done: &ByName<'_>) -> Option<[f64; 2]> {
    let depends = id.starts_with("mtg3-") || id.contains("-waiting") || id.ends_with("-saturation");
    let [least, most] = ENDS.map(|suffix| of_prototype_as(id, done, suffix).filter(|_| depends));
    let (least, most) = (least?, most?);
    Some([least.min(most), least.max(most)])
}

fn of_prototype_as(id: &str, done: &ByName<'_>, suffix: &str) -> Option<f64> {
    let value = |job: &str, of: &str| done.get(job)?.value(of);
    let percent = |of: f64, to: f64| Some(100.0 * (of / to - 1.0)).filter(|gain| gain.is_finite());
    let of = |group: &str, system: System, what: &str| {
        let suffix = if system == System::Offload { suffix } else { "" };
        value(&name(group, system, suffix), what)
    };
    let over_host = |group, system| {
        percent(of(group, system, "saturation")?, of(group, System::Host, "saturation")?)
    };
    let later =
        |what| percent(of("mtg6", System::Offload, what)?, of("mtg5", System::Offload, what)?);
    let workers = || Some(value("mtg6-dispatcher", "many")? / value("mtg6-dispatcher", "one")?);
    match id {
        "mtg3-4-gain" => gain(4, 5, done, suffix),
        "mtg3-4-level" => level(4, done, suffix),
        "mtg3-16-gain" => gain(16, 3, done, suffix),
        "mtg3-16-level" => level(16, done, suffix),
        "mtg6-waiting-share" => later("waiting"),
        "mtg6-waiting-request" => later("wait_ns"),
        "mtg6-ideal" => over_host("mtg6", System::Ideal),
        "mtg6-communication" => value("mtg6-communication", "added_us"),
        "mtg6-dispatcher" => value("mtg6-dispatcher", "many"),
        "mtg6-dispatcher-workers" => workers(),
        "mtg6-dispatcher-cores" => Some(100.0 / (workers()? + 1.0)),
        id => over_host(id.strip_suffix("-saturation")?, System::Offload),
    }
}

/// Throughput in thousands per second, by outstanding requests.
fn curve(workers: u16, done: &ByName<'_>, suffix: &str) -> Vec<[f64; 2]> {
    let at = |outstanding| {
        let job = throughput_name(workers, outstanding, suffix);
        Some([f64::from(outstanding), done.get(job.as_str())?.value("throughput")? / 1e3])
    };
    OUTSTANDING.filter_map(at).collect()
}

/// Growth of throughput in percent from one outstanding request to `outstanding`.
fn gain(workers: u16, outstanding: u16, done: &ByName<'_>, suffix: &str) -> Option<f64> {
    let curve = curve(workers, done, suffix);
    let at = |wanted: u16| curve.iter().find(|[x, _]| *x == f64::from(wanted)).map(|[_, y]| *y);
    Some(100.0 * (at(outstanding)? / at(1)? - 1.0))
}

/// The smallest number of outstanding requests at which throughput is near its highest.
fn level(workers: u16, done: &ByName<'_>, suffix: &str) -> Option<f64> {
    let curve = curve(workers, done, suffix);
    let best = curve.iter().map(|[_, y]| *y).reduce(f64::max)?;
    curve.iter().find(|[_, y]| *y >= LEVEL * best).map(|[x, _]| *x)
}

fn figures(group: &str, done: &ByName<'_>) -> Vec<Figure> {
    let mut compared = COMPARISONS.iter().filter(|comparison| comparison.group == group);
    match compared.next() {
        Some(comparison) => vec![comparison_figure(comparison, done)],
        None => vec![outstanding_figure(done)],
    }
}

fn comparison_figure(comparison: &Comparison, done: &ByName<'_>) -> Figure {
    let [host, other] = comparison.workers;
    let systems = [
        (System::Host, format!("Shinjuku, {host} workers")),
        (System::Offload, format!("Shinjuku-Offload, {other} workers")),
        (System::Ideal, format!("the SmartNIC of section 5.1, {other} workers")),
    ];
    let curve = |(system, text): (System, String)| {
        let done = done.get(name(comparison.group, system, "").as_str())?;
        let points = done.points.iter().map(|[_, served, p99]| [served / 1e3, *p99]).collect();
        Some(Curve::ours(&text, points))
    };
    Figure {
        id: comparison.group.to_owned(),
        group: comparison.group.to_owned(),
        title: comparison.title.to_owned(),
        x: "served, thousand requests per second".to_owned(),
        y: "p99, us".to_owned(),
        log_x: false,
        y_max: Some(300.0),
        text: "Saturation is the highest load of which 99% are served with a p99 within 300 us: where a curve leaves \
               the plot at the top."
            .to_owned(),
        curves: systems.into_iter().filter_map(curve).collect(),
    }
}

/// Our curves, and the paper's points: its percentages applied to our curves' first points.
fn outstanding_figure(done: &ByName<'_>) -> Figure {
    let mut curves = Vec::new();
    for workers in WORKERS {
        let points = curve(workers, done, FITTED);
        curves.push(Curve::ours(&format!("{workers} workers"), points));
    }
    for (workers, outstanding, times) in [(4, 5, 3.5), (16, 3, 1.88)] {
        let first = curve(workers, done, FITTED).first().map(|[_, first]| *first);
        let points = first.map(|first| [f64::from(outstanding), first * times]);
        let name = format!("{workers} workers, our first point and the paper's gain");
        curves.push(Curve::paper(&name, points.into_iter().collect()));
    }
    Figure {
        id: "mtg3".to_owned(),
        group: "mtg3".to_owned(),
        title: "Mind the Gap, Figure 3: outstanding requests per worker, 1 us each".to_owned(),
        x: "outstanding requests per worker".to_owned(),
        y: "throughput, thousand requests per second".to_owned(),
        log_x: false,
        y_max: None,
        text: "A worker runs one, the others are prestaged. The paper prints by how much throughput grows, not the \
               throughput."
            .to_owned(),
        curves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_3_has_a_job_per_outstanding_number_and_end_of_the_fit() {
        let jobs = jobs("mtg3", 1).into_iter();
        let names: Vec<String> = jobs.map(|job| job.name).collect();
        for workers in WORKERS {
            for suffix in [FITTED, ENDS[0], ENDS[1]] {
                let has = |k| names.contains(&throughput_name(workers, k, suffix));
                assert!(OUTSTANDING.clone().all(has));
            }
        }
    }

    #[test]
    fn level_is_the_first_point_near_the_highest_throughput() {
        let all = [100.0, 180.0, 290.0, 296.0, 300.0].map(|y| Done::of([("throughput", y)]));
        let names: Vec<String> = (1..=5).map(|k| throughput_name(16, k, "")).collect();
        let done = names.iter().map(String::as_str).zip(&all).collect();
        assert_eq!(gain(16, 3, &done, "").map(f64::round), Some(190.0));
        assert_eq!(level(16, &done, ""), Some(3.0));
        assert_eq!((gain(4, 5, &done, ""), level(4, &done, "")), (None, None));
    }

    #[test]
    fn interval_of_a_row_spans_the_ends_of_the_fit() {
        let names = ["mtg4-host", "mtg4-offload", "mtg4-offload-least", "mtg4-offload-most"];
        let found = [100.0, 130.0, 133.0, 127.0].map(|of| Done::of([("saturation", of)]));
        let done: ByName<'_> = names.into_iter().zip(&found).collect();
        let near = |x: f64, y: f64| (x - y).abs() < 1e-9;
        assert!(near(of_prototype_as("mtg4-saturation", &done, FITTED).unwrap(), 30.0));
        let [low, high] = interval("mtg4-saturation", &done).unwrap();
        assert!(near(low, 27.0) && near(high, 33.0));
        assert_eq!(interval("mtg6-ideal", &done), None);
    }

    /// Shinjuku-Offload has one worker more, which helps until its dispatcher is the bottleneck.
    #[test]
    fn prototype_gains_on_long_requests_and_loses_on_short_ones_as_in_the_paper() {
        let jobs = ["mtg2", "mtg4", "mtg6"].map(|group| jobs(group, 1)).into_iter().flatten();
        let jobs: Vec<Job> =
            jobs.filter(|job| ENDS.iter().all(|end| !job.name.ends_with(end))).collect();
        let wanted = jobs.iter().filter(|job| !job.name.starts_with("mtg6-d"));
        let found: Vec<(&str, Done)> =
            wanted.map(|job| (job.name.as_str(), (job.work)())).collect();
        let done = found.iter().map(|(name, done)| (*name, done)).collect();
        for (id, offload_wins) in [
            ("mtg2-saturation", true),
            ("mtg4-saturation", true),
            ("mtg5-saturation", true),
            ("mtg6-saturation", false),
            ("mtg6-ideal", true),
        ] {
            let gain = of_prototype_as(id, &done, FITTED).unwrap();
            assert_eq!(gain > 0.0, offload_wins, "{id}: {gain}");
        }
    }
}
