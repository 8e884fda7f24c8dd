//! A row per printed figure: the paper's, ours, the difference, and the kind of our figure.

use std::sync::Arc;

use serde::Serialize;
use wave_core::clock::{Clock, Nanos};
use wave_core::link::{Doorbell, Home, Mapping, Port, Side, Span, Window};
use wave_links::costs::Costs;
use wave_links::memory::Memory;
use wave_links::model::{ModelPort, VirtualTime, extra_lines};
use wave_sim::fit::Fit;
use wave_sim::fit::intervals::Intervals;
use wave_sim::fit::offload::Offload;
use wave_sim::paper::{self, Printed};
use wave_sim::world::{Cause, SimBell, World};

use super::jobs::{ByName, Done, is_seeded};
use super::mind_the_gap;
use super::placements;
use super::sol;
use super::words::close;

/// How one of our figures came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Parameters were chosen so that it comes near the printed figure.
    Fitted,
    /// It follows from parameters that were fitted to other figures.
    Predicted,
    /// As predicted, but its interval is wider than half of the effect and contains the printed figure, or it has none.
    Compatible,
    /// It was measured on this machine.
    Measured,
    /// It follows from measured figures by a rule that was not tested here.
    Extrapolated,
    /// The model contains the result: the figure only says that it was found.
    ByConstruction,
    /// An input of the model: a condition of the experiment, or a cost that the paper prints.
    Assumed,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Fitted,
        Kind::Predicted,
        Kind::Compatible,
        Kind::Measured,
        Kind::Extrapolated,
        Kind::ByConstruction,
        Kind::Assumed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Fitted => "fitted",
            Kind::Predicted => "predicted",
            Kind::Compatible => "compatible",
            Kind::Measured => "measured",
            Kind::Extrapolated => "extrapolated",
            Kind::ByConstruction => "by construction",
            Kind::Assumed => "assumed",
        }
    }
}

/// One printed figure, and ours.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub id: String,
    pub group: String,
    pub text: String,
    pub unit: String,
    /// The printed figure; of a printed range, the end nearer to ours. One end may be infinite.
    pub paper: f64,
    /// Lowest and highest value that the paper's rounding allows.
    pub paper_range: [f64; 2],
    /// Ours, the median over the seeds; None if nothing here corresponds to it.
    pub ours: Option<f64>,
    /// Ours under each seed; empty if nothing is random.
    pub by_seed: Vec<f64>,
    /// (ours - paper) / paper, zero within the printed range; None for rows in percent, where the difference in percentage
    /// points says more.
    pub rel_diff: Option<f64>,
    /// ours - paper, zero within the printed range, in the row's unit.
    pub diff: Option<f64>,
    /// How our figure came about.
    pub kind: Kind,
    /// Lowest and highest possible value of ours, given what the fit and other inputs leave open; None if not determined.
    pub interval: Option<[f64; 2]>,
    /// Width of the interval, in the row's unit.
    pub width: Option<f64>,
    /// Whether the printed figure, or its range, overlaps the interval.
    pub inside: Option<bool>,
    /// A model gave the row, and the printed figure is outside of its interval; without one, farther away than
    /// [`words::close`](super::words::close) allows.
    pub is_missed: bool,
    /// Place in the paper.
    pub place: String,
    /// Explanation of the difference.
    pub why: Option<&'static str>,
}

impl Row {
    /// What can be said of the row: its kind, or that its figure was missed, however it was made.
    pub fn label(&self) -> String {
        let kind = self.kind.name();
        let is_open = self.paper_range.iter().any(|end| end.is_infinite());
        match (self.is_missed, self.kind) {
            (true, _) => format!("missed ({kind})"),
            (false, Kind::Predicted | Kind::Compatible) if is_open => {
                format!("{kind}, its sign only")
            }
            _ => kind.to_owned(),
        }
    }
}

/// The rows of these groups.
pub fn of(ids: &[&str], by_seed: &[ByName<'_>]) -> Vec<Row> {
    let fit = Fit::builtin();
    let printed = paper::printed().into_iter().filter(|row| ids.contains(&row.group.as_str()));
    let intervals = Intervals::builtin();
    printed.map(|printed| row(printed, &fit, &intervals, by_seed)).collect()
}

fn row(printed: Printed, fit: &Fit, intervals: &Intervals, by_seed: &[ByName<'_>]) -> Row {
    let of_seed = |done: &ByName<'_>| ours(&printed.id, done).filter(|ours| ours.is_finite());
    let values: Vec<f64> = by_seed.iter().filter_map(of_seed).collect();
    // As the interval was computed: the search for a saturation of a figure's curve is coarser.
    let of_fit = intervals.of_row(&printed.id).map(|row| row.value);
    let ours = median(&values).map(|median| of_fit.unwrap_or(median));
    // The end of the printed range that is nearer to ours.
    let nearer = |ours: f64| match ours - printed.low < printed.high - ours {
        true => printed.low,
        false => printed.high,
    };
    let paper = ours.map_or(printed.low, nearer);
    let diff = ours.map(|ours| ours - ours.clamp(printed.low, printed.high));
    let relative = printed.unit != "%" && paper != 0.0;
    let of_seeds = by_seed.iter().filter_map(|done| interval(&printed.id, intervals, done));
    let interval =
        of_seeds.reduce(|all, [low, high]| [f64::min(all[0], low), f64::max(all[1], high)]);
    let width = interval.map(|[low, high]| high - low);
    let inside = interval.map(|[low, high]| low <= printed.high && printed.low <= high);
    let kind = match (kind(&printed, fit), width, ours) {
        // The interval is wider than half of the effect.
        (Kind::Predicted, Some(width), Some(ours))
            if width > ours.abs() / 2.0 && inside == Some(true) =>
        {
            Kind::Compatible
        }
        // Outside of its interval, a row is not compatible.
        (Kind::Compatible, ..) if inside == Some(false) => Kind::Predicted,
        (kind, ..) => kind,
    };
    let mut row = Row {
        kind,
        width,
        inside,
        is_missed: false,
        interval,
        rel_diff: diff.filter(|_| relative).map(|diff| diff / paper),
        why: why(&printed.id),
        paper_range: [printed.low, printed.high],
        id: printed.id,
        text: printed.text,
        unit: printed.unit,
        place: printed.place,
        paper,
        by_seed: if is_seeded(&printed.group) { values } else { Vec::new() },
        group: printed.group,
        ours,
        diff,
    };
    let is_modelled = matches!(kind, Kind::Fitted | Kind::Predicted | Kind::Compatible);
    row.is_missed = is_modelled && !inside.or_else(|| close(&row)).unwrap_or(true);
    row
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) =
        (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

fn kind(printed: &Printed, fit: &Fit) -> Kind {
    let is_fitted = fit.rows.iter().any(|row| row.printed.id == printed.id)
        || Offload::builtin().row.printed.id == printed.id;
    match printed.group.as_str() {
        _ if is_fitted => Kind::Fitted,
        // The ladder's other rows are arithmetic on the fitted ones.
        "ladder" => Kind::Fitted,
        "table2" | "fig5a" => Kind::Assumed,
        // A condition of the experiment, or plain arithmetic.
        _ if ["upi-host-frequency", "fig4a-wave16-expected", "fig6-cores-freed"]
            .contains(&printed.id.as_str()) =>
        {
            Kind::Assumed
        }
        "sol" => match printed.id.as_str() {
            "sol-on-host-1" | "sol-on-host-2" => Kind::Measured,
            "sol-reduction" => Kind::ByConstruction,
            id if id.starts_with("sol-on-host-") || id.starts_with("sol-wave-") => {
                Kind::Extrapolated
            }
            _ => Kind::Assumed,
        },
        // The costs of the RPC stack are assumed, without a known error.
        "fig6a" | "fig6b" => Kind::Compatible,
        "mtg6" => match printed.id.as_str() {
            id if id.starts_with("mtg6-dispatcher") => Kind::Assumed,
            // They rest on assumptions beyond the fit.
            "mtg6-ideal" | "mtg6-communication" => Kind::Compatible,
            _ => Kind::Predicted,
        },
        _ => Kind::Predicted,
    }
}

/// Lowest and highest value of a row under one seed: what the fit leaves open, or the uncertainty of the inputs of Figures 5 and 6b.
fn interval(id: &str, intervals: &Intervals, done: &ByName<'_>) -> Option<[f64; 2]> {
    let of_job = |job: &str, times: f64| {
        let done = done.get(job)?;
        Some([times * done.value("gain_low")?, times * done.value("gain_high")?])
    };
    match id {
        "fig5b-gain-1" | "fig5b-gain-slides" => of_job("fig5-1", 1.0),
        "fig5b-gain-31" => of_job("fig5-31", 1.0),
        "fig5b-gain-128" => of_job("fig5-128", 1.0),
        "fig5b-cores-saved" => of_job("fig5-128", 2.56),
        "fig6b-gain" => placements::interval(done),
        id if id.starts_with("mtg") => mind_the_gap::interval(id, done),
        id => intervals.of_row(id).map(|row| [row.low, row.high]),
    }
}

fn ours(id: &str, done: &ByName<'_>) -> Option<f64> {
    let value = |job: &str, name: &str| done.get(job)?.value(name);
    let saturation = |job: &str| value(job, "saturation");
    let percent = |of: f64, to: f64| 100.0 * (of / to - 1.0);
    let against = |of: &str, to: &str| Some(percent(saturation(of)?, saturation(to)?));
    let ladder = |at: usize| saturation(&format!("ladder-{at}"));
    let gain = |at: usize| Some(percent(ladder(at)?, ladder(at - 1)?));
    // Ratio of the tails at half of the reference's saturation.
    let tail = |of: &str, to: &str| {
        let load = saturation(to)? / 2.0;
        Some(p99_at(done.get(of)?, load)? - p99_at(done.get(to)?, load)?)
    };
    match id {
        "table3-open-baseline" => value("table3-0", "open_ns"),
        "table3-open-nic-wb" => value("table3-1", "open_ns"),
        "table3-host-baseline" => value("table3-0", "switch_ns"),
        "table3-host-nic-wb" => value("table3-1", "switch_ns"),
        "table3-host-wc-wt" => value("table3-2", "switch_ns"),
        "table3-host-prestage" => value("table3-3", "switch_ns"),
        "table3-onhost-open" => value("table3-on-host-0", "open_ns"),
        "table3-onhost-baseline" => value("table3-on-host-0", "switch_ns"),
        "table3-onhost-prestage" => value("table3-on-host-1", "switch_ns"),
        "ladder-baseline" => ladder(0),
        "ladder-nic-wb" => ladder(1),
        "ladder-nic-wb-gain" => gain(1),
        "ladder-wc-wt" => ladder(2),
        "ladder-wc-wt-gain" => gain(2),
        "ladder-prestage" => ladder(3),
        "ladder-prestage-gain" => gain(3),
        // The paper's figure is the ratio in percent.
        "ladder-total-gain" | "ladder-total-gain-slides" => Some(100.0 * ladder(3)? / ladder(0)?),
        "fig4a-wave15-saturation" => against("fig4a-wave-15", "fig4a-on-host"),
        "fig4a-wave15-tail" => tail("fig4a-wave-15", "fig4a-on-host"),
        "fig4a-wave16-saturation" => against("ladder-3", "fig4a-on-host"),
        "fig4a-wave16-expected" => Some(percent(16.0, 15.0)),
        "fig4b-wave15-saturation" => against("fig4b-wave-15", "fig4b-on-host"),
        "fig4b-wave15-tail" => tail("fig4b-wave-15", "fig4b-on-host"),
        "fig4b-wave16-saturation" => against("fig4b-wave-16", "fig4b-on-host"),
        "fig4b-onhost-saturation-tide" => against("fig4b-on-host", "fig4b-wave-15"),
        "fig5b-gain-1" => value("fig5-1", "gain"),
        "fig5b-gain-31" => value("fig5-31", "gain"),
        "fig5b-gain-128" => value("fig5-128", "gain"),
        "fig5b-cores-saved" => Some(value("fig5-128", "gain")? / 100.0 * 256.0),
        "fig5b-gain-slides" => value("fig5-1", "gain"),
        "fig5a-tick-period" => Some(1.0),
        // Inputs: the policy's quanta, and the table's highest frequency.
        "fig5a-quantum" => Some(10.0),
        "fig5a-frequency" => Some(paper::HOST_GHZ),
        "fig5a-smaller-boost-from" => Some(32.0),
        "fig5a-second-siblings-from" => Some(64.0),
        "fig5a-no-boost-at" => Some(128.0),
        "upi-offload-3000" => Some(-against("upi-3000", "upi-on-host")?),
        "upi-offload-2500" => Some(-against("upi-2500", "upi-on-host")?),
        "upi-offload-2000" => Some(-against("upi-2000", "upi-on-host")?),
        "upi-over-pcie" => against("upi-3000", "upi-pcie"),
        "upi-host-frequency" => Some(paper::HOST_GHZ),
        id if id.starts_with("mtg") => mind_the_gap::ours(id, done),
        id if id.starts_with("fig6") => placements::ours(id, done),
        id if id.starts_with("sol-") => sol::ours(id, done),
        _ => value("table2", id),
    }
}

/// The tail at a load, interpolated linearly between the neighbouring points.
pub(super) fn p99_at(done: &Done, load: f64) -> Option<f64> {
    let after = done.points.iter().position(|point| point[0] >= load)?;
    let [high_load, _, high] = done.points[after];
    let Some([low_load, _, low]) = after.checked_sub(1).map(|before| done.points[before]) else {
        return Some(high);
    };
    Some(low + (high - low) * (load - low_load) / (high_load - low_load).max(1e-9))
}

/// Explanation of a difference.
fn why(id: &str) -> Option<&'static str> {
    Some(match id {
        "table2-msix-send" => {
            "Our doorbells are rung through the kernel, as in row 4; a bare register write is not modelled."
        }
        "ladder-total-gain" => {
            "The paper's \"350%\" is the ratio of 895 to 258 in percent; so is ours."
        }
        "ladder-total-gain-slides" => {
            "The slides print 357%, which is neither the ratio (347%) nor the gain (247%) of the paper's own figures."
        }
        "fig4a-wave15-saturation" | "fig4a-wave16-saturation" => {
            "Prestaged, Table 3's on-host switch is a microsecond shorter than Wave's here, and a request does two: 15 workers of On-Host serve more than 16 of Wave, unless its agent is the bottleneck. Whether it is depends on its cost of a message, which Table 3 determines only together with the flight of an interrupt. A rule divides them (docs/adr/0049)."
        }
        "fig4a-wave15-tail" | "fig4b-wave15-tail" => {
            "The paper says neither which percentile its tail is nor at which load; ours is a GET's p99 at half of On-Host's saturation. There a core that has run out of work sleeps, and a request pays the way of a kick: that differs by less than the paper's tails do."
        }
        "fig4b-wave15-saturation" | "fig4b-wave16-saturation" | "fig4b-onhost-saturation-tide" => {
            "Most decisions here follow a preemption, where the printed 770 ns that an on-host decision takes its agent, and the unhidden read across the link on Wave's side, weigh against each other. How the 770 ns divide between deciding and interrupting is not printed; the fit puts all into the decision."
        }
        "fig5b-gain-1" | "fig5b-gain-31" | "fig5b-gain-slides" => {
            "Rests on a turbo table that AMD does not publish (data/turbo.toml, each step within 5%), and on idle cores that ticks keep from sleeping deeply counting as active."
        }
        "fig5b-gain-128" | "fig5b-cores-saved" => {
            "No turbo is left here, so this is what ticks take: we assume 10 us each, the middle of what Tsafrir (ExpCS 2007) measured; the paper's 1.7% would be 17 us, which a guest's exit and entry may explain."
        }
        "upi-over-pcie" => {
            "After a preemption the host reads its decision across the link at once (7.2.3). Over PCIe here that read, and the message before it, cost over a microsecond more than two lines of 200 ns; the paper's 0.9% are of its whole RPC stack, where preemptions are a smaller part."
        }
        "upi-offload-3000" | "upi-offload-2500" | "upi-offload-2000" => {
            "The paper runs its RPC stack beside the scheduler here, ours has the scheduler alone. The agent's work is scaled by the clocks' ratio."
        }
        "sol-on-host-1" | "sol-on-host-2" | "sol-on-host-4" | "sol-on-host-8"
        | "sol-on-host-16" => {
            "What the paper's iteration contains is not printed, so this is no comparison of like with like: ours decides what to scan and to move, takes in the readings of all 409,600 batches, draws for each, and sets its period. One and two cores are measured on this machine; four and more are extrapolated from these by Amdahl's law."
        }
        "sol-wave-1" | "sol-wave-2" | "sol-wave-4" | "sol-wave-8" | "sol-wave-16" => {
            "No SmartNIC's cores have run this."
        }
        "sol-entries" => {
            "The readings of 100 GiB, 16 bytes a batch, at the modelled link's assumed 16 GB/s. The paper does not print how many bytes it transfers."
        }
        "sol-decisions" => {
            "The most decisions that SOL makes at once over the modelled 100 GiB, 64 bytes each, at the modelled link's assumed 16 GB/s."
        }
        "sol-reduction" => {
            "A fifth of the modelled 100 GiB is hot because the paper leaves as much in DRAM. That SOL finds it, and nothing else, is ours."
        }
        id if id.starts_with("mtg") => return mind_the_gap::why(id),
        id => return placements::why(id),
    })
}

/// Table 2, measured by performing these operations on the modelled link.
pub fn single_accesses() -> Done {
    let costs = Costs::builtin("mount-evans").expect("built in");
    let time = VirtualTime::new();
    let (memory, _) = Memory::create("wave-table2", 1, 1, extra_lines(1, 1)).expect("memory");
    let line = Span { home: Home::Nic, line: 0, lines: 1 };
    let types = [(line, Mapping::Uncached)];
    let port = ModelPort::new(Arc::new(memory), Side::Host, &costs, &types, time.clone(), 1);
    let port = port.expect("one line each");
    let took = |what: &dyn Fn()| {
        let before = time.now();
        what();
        time.now().since(before).0 as f64
    };
    let nic = port.window(Home::Nic);
    let read = took(&|| {
        nic.load(0, 0);
    });
    let write = took(&|| nic.store(0, 0, 1));
    let (send, end_to_end, receive) = interrupt(&costs);
    Done::of([
        ("table2-read-uc", read),
        ("table2-write-uc", write),
        ("table2-msix-send-ioctl", send),
        ("table2-msix-receive", receive),
        ("table2-msix-end-to-end", end_to_end),
    ])
}

/// Sends one interrupt between two tasks. Measures the time from the start of sending to the end of the handler, and the
/// handler alone.
fn interrupt(costs: &Costs) -> (f64, f64, f64) {
    use std::cell::Cell;
    use std::rc::Rc;
    let world = World::new();
    let bell =
        SimBell::new(&world, Cause::KICK, costs.kick_send.nanos(), costs.kick_flight.nanos());
    let times = Rc::new(Cell::new([Nanos(0); 3]));
    let (inside, shown, costs_receive) =
        (world.clone(), Rc::clone(&times), costs.kick_receive.nanos());
    let own = Rc::new(Cell::new(None));
    let me = Rc::clone(&own);
    let task = world.spawn(move || {
        let task = me.get().expect("set before it runs");
        inside.wait(task, Cause::KICK, None);
        let began = inside.now();
        inside.spend(costs_receive);
        let [sent, ..] = shown.get();
        shown.set([sent, began, inside.now()]);
    });
    own.set(Some(task));
    bell.set_target(task);
    let (inside, shown) = (world.clone(), Rc::clone(&times));
    world.spawn(move || {
        bell.ring();
        let [_, began, ended] = shown.get();
        shown.set([inside.now(), began, ended]);
    });
    world.run_until(Nanos::from_millis(1));
    let [sent, began, ended] = times.get();
    world.end();
    (sent.0 as f64, ended.0 as f64, ended.since(began).0 as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn table_2_is_reproduced_by_its_own_inputs() {
        let done = single_accesses();
        let rows = of(&["table2"], &[BTreeMap::from([("table2", &done)])]);
        assert_eq!(rows.len(), 6);
        for row in rows.iter().filter(|row| row.id != "table2-msix-send") {
            let ours = row.ours.unwrap();
            match row.kind {
                // The caption prints one or two significant digits.
                Kind::Fitted => assert!((ours - row.paper).abs() <= 50.0, "{row:?}"),
                _ => assert_eq!(row.rel_diff, Some(0.0), "{row:?}"),
            }
        }
    }

    #[test]
    fn interval_wider_than_half_of_the_effect_makes_a_row_compatible() {
        let done = |low: f64, high: f64| {
            Done::of([("gain", 10.0), ("gain_low", low), ("gain_high", high)])
        };
        let row = |low, high| {
            let done = done(low, high);
            let done = BTreeMap::from([("fig5-1", &done)]);
            of(&["fig5b"], &[done]).into_iter().find(|row| row.id == "fig5b-gain-1").unwrap()
        };
        let narrow = row(8.0, 12.0);
        assert_eq!(
            (narrow.kind, narrow.width, narrow.inside),
            (Kind::Predicted, Some(4.0), Some(true))
        );
        assert_eq!((narrow.label().as_str(), narrow.interval), ("predicted", Some([8.0, 12.0])));
        let wide = row(4.0, 12.0);
        assert_eq!((wide.kind, wide.inside), (Kind::Compatible, Some(true)));
        assert_eq!(wide.label(), "compatible");
        // It is not stretched to contain ours.
        let outside = row(4.0, 9.0);
        assert_eq!((outside.interval, outside.inside), (Some([4.0, 9.0]), Some(false)));
        assert_eq!(outside.label(), "missed (predicted)");
    }

    #[test]
    fn row_whose_printed_range_is_open_predicts_a_sign() {
        let mut row = crate::reproduce::tests::row("sol", "ms", Some(1.0));
        row.paper_range = [0.0, f64::INFINITY];
        assert_eq!(row.label(), "predicted, its sign only");
        row.kind = Kind::Measured;
        assert_eq!(row.label(), "measured");
    }

    #[test]
    fn row_with_random_arrivals_is_the_median_over_seeds() {
        let saturations = [900.0, 920.0, 890.0].map(|of| Done::of([("saturation", of)]));
        let by_seed: Vec<_> =
            saturations.iter().map(|done| BTreeMap::from([("ladder-3", done)])).collect();
        let row = |by_seed: &[ByName<'_>]| {
            of(&["ladder"], by_seed).into_iter().find(|row| row.id == "ladder-prestage").unwrap()
        };
        let three = row(&by_seed);
        assert_eq!((three.ours, three.by_seed), (Some(900.0), vec![900.0, 920.0, 890.0]));
        assert_eq!(row(&by_seed[..2]).ours, Some(910.0));
    }

    #[test]
    fn gain_of_6b_has_an_interval_over_threads_and_lengths() {
        let jobs = placements::gains(true, &paper::Model::builtin());
        let names: Vec<String> = jobs.into_iter().map(|job| job.name).collect();
        let own = ["fig6a-offload-all-16", "fig6b-offload-all-16"].map(str::to_owned);
        let saturation = |name: &String| match name {
            name if name.starts_with("fig6a") => 100.0,
            name if name.contains("-60-threads-4-times") => 105.0,
            name if name.contains("threads") => 110.0,
            _ => 120.0,
        };
        let found = names
            .iter()
            .chain(&own)
            .map(|name| (name, Done::of([("saturation", saturation(name))])));
        let found: Vec<_> = found.collect();
        let mut done: ByName<'_> = found.iter().map(|(name, done)| (name.as_str(), done)).collect();
        let row = |done: &ByName<'_>| {
            let rows = of(&["fig6b"], std::slice::from_ref(done));
            rows.into_iter().find(|row| row.id == "fig6b-gain").unwrap()
        };
        let [low, high] = row(&done).interval.unwrap();
        assert!((low - 5.0).abs() < 1e-9 && (high - 20.0).abs() < 1e-9, "{low} to {high}");
        assert_eq!(row(&done).inside, Some(false), "the paper has 20.8%");
        done.remove("fig6a-offload-all-16-60-threads-4-times");
        assert_eq!(row(&done).interval, None, "one is missing");
    }

    /// The kinds follow from the rows that the fit names.
    #[test]
    fn rows_named_by_the_fit_are_fitted_and_rows_of_figures_are_not() {
        let fit = Fit::builtin();
        let rows = of(&super::super::IDS.map(|(id, _)| id), &[BTreeMap::new()]);
        for row in &rows {
            let named = fit.rows.iter().any(|fitted| fitted.printed.id == row.id);
            assert!(!named || row.kind == Kind::Fitted, "{}", row.id);
            assert!(!row.group.starts_with("fig") || row.kind != Kind::Fitted, "{}", row.id);
        }
        let has = |wanted: fn(&Row) -> bool| rows.iter().any(wanted);
        assert!(has(|row| row.kind == Kind::Fitted) && has(|row| row.group.starts_with("fig")));
    }

    #[test]
    fn figure_within_the_printed_range_has_no_difference() {
        let done = Done::of([("switch_ns", 6500.0)]);
        let done = BTreeMap::from([("table3-2", &done)]);
        let rows = of(&["table3"], &[done]);
        let row = rows.iter().find(|row| row.id == "table3-host-wc-wt").unwrap();
        assert_eq!((row.rel_diff, row.diff, row.paper), (Some(0.0), Some(0.0), 6100.0));
        let missing = rows.iter().find(|row| row.id == "table3-host-nic-wb").unwrap();
        assert_eq!((missing.ours, missing.rel_diff), (None, None));
    }
}
