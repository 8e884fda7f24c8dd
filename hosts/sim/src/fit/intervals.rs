//! The intervals that the fit leaves open for rows that follow from it: their least and greatest values under parameter
//! sets that also meet the fitted rows. Rows of Figure 6 are left out: they rest on assumptions outside the fit.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use super::rows::saturation_of;
use super::{FILES, Fit};
use crate::enclave::Setup;
use crate::experiment;
use crate::paper::{self, Model, Rung};
use crate::requests::{Load, Served};

/// The file of the intervals, as a path in the repository.
pub const PATH: &str = "hosts/sim/data/intervals.toml";
const KEPT: &str = include_str!("../../data/intervals.toml");
const HEAD: &str = "\
# What the fit leaves open of the rows that follow from it, written by `wave fit --intervals`: the least and the most under
# the fit's values and under other parameter sets that meet the fitted rows within their rounding (docs/adr/0049). `digest`
# is of data/fit.toml and of the figures in the files of the fit.
";

/// The interval that the fit leaves open for a row of `paper.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Id of the row, as in `paper.toml`.
    pub id: String,
    /// The value under the fit's own set.
    pub value: f64,
    /// Lower end of the interval: the least value under any of the sets.
    pub low: f64,
    /// Upper end of the interval: the greatest value under any of the sets.
    pub high: f64,
}

/// The intervals that a fit leaves open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intervals {
    /// [`digest`] of the inputs when the intervals were found.
    pub digest: String,
    /// Parameter sets, the fit's own included.
    pub sets: usize,
    /// An interval for each row.
    #[serde(rename = "row")]
    pub rows: Vec<Interval>,
}

impl Intervals {
    /// The committed intervals.
    pub fn builtin() -> Intervals {
        toml::from_str(KEPT).expect("the file is tested")
    }

    /// The interval of each row, from its values under several sets, of which the first is the fit's own.
    pub fn of(sets: &[BTreeMap<String, f64>]) -> Intervals {
        let mut found: BTreeMap<&str, [f64; 3]> = BTreeMap::new();
        for (id, x) in sets.iter().flatten() {
            let [_, low, high] = found.entry(id).or_insert([*x; 3]);
            (*low, *high) = (low.min(*x), high.max(*x));
        }
        let round = |x: f64| (x * 100.0).round() / 100.0;
        let interval = |(id, values): (&str, [f64; 3])| {
            let [value, low, high] = values.map(round);
            Interval { id: id.to_owned(), value, low, high }
        };
        let rows = found.into_iter().map(interval).collect();
        Intervals { digest: digest(), sets: sets.len(), rows }
    }

    /// The value and the interval of a row; `None` if the row does not follow from the fit.
    pub fn of_row(&self, id: &str) -> Option<&Interval> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// The text of the file with these intervals.
    pub fn to_toml(&self) -> String {
        let text = toml::to_string(self).expect("strings, numbers and tables have a TOML form");
        format!("{HEAD}\n{text}")
    }
}

/// A digest of the description of the fit and of every figure in its files (FNV-1a).
pub fn digest() -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |text: &str| {
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(Fit::text());
    for line in FILES.iter().flat_map(|file| file.builtin().lines()) {
        if line.contains("{ ns =") || line.contains("{ value =") {
            add(line.split(',').next().unwrap_or_default());
        }
    }
    format!("{hash:016x}")
}

type MakeLoad = fn(f64, Nanos) -> Load;

/// One saturation on which rows depend.
struct Curve {
    name: &'static str,
    setup: Setup,
    load: MakeLoad,
    /// Where the search for its saturation begins.
    guess: f64,
}

impl Curve {
    fn serve(&self, per_second: f64, overhead: Nanos) -> Served {
        let load = (self.load)(per_second, overhead);
        let outcome = experiment::serve(&self.setup, &load);
        outcome.expect("the paper's setups can be laid out").served
    }

    fn saturation(&self) -> f64 {
        let overhead = paper::overhead(&self.setup);
        saturation_of(|per_second| self.serve(per_second, overhead), self.guess, RESOLUTION)
    }

    /// A GET's p99 at a load, in microseconds.
    fn p99_us(&self, per_second: f64) -> f64 {
        let served = self.serve(per_second, paper::overhead(&self.setup));
        served.latencies[0].value_at_quantile(0.99) as f64 / 1e3
    }
}

/// Relative resolution of the saturations.
const RESOLUTION: f64 = 0.002;
/// Slices of 30 us (7.2.3).
const SHINJUKU: &str = "shinjuku:slice_us=30";

fn curves(model: &Model) -> Vec<Curve> {
    let wave = |cores, policy| model.wave(cores, Rung::Prestaged, policy);
    let on_host = |policy| model.on_host(15, true, policy);
    let upi = |ghz| model.over_upi(15, ghz, SHINJUKU);
    let curve = |name, setup, load: MakeLoad, guess| Curve { name, setup, load, guess };
    let (gets, scans): (MakeLoad, MakeLoad) = (paper::gets, paper::gets_and_ranges);
    // The longest run first.
    vec![
        curve("scans-on-host", on_host(SHINJUKU), scans, 220e3),
        curve("scans-15", wave(15, SHINJUKU), scans, 210e3),
        curve("scans-16", wave(16, SHINJUKU), scans, 220e3),
        curve("upi-3000", upi(3.0), scans, 215e3),
        curve("upi-2500", upi(2.5), scans, 215e3),
        curve("upi-2000", upi(2.0), scans, 210e3),
        curve("gets-on-host", on_host("fifo"), gets, 860e3),
        curve("gets-15", wave(15, "fifo"), gets, 840e3),
        curve("gets-16", wave(16, "fifo"), gets, 890e3),
    ]
}

/// The rows that follow from the fit under these values, computed on `threads` threads.
pub fn predict(model: &Model, threads: usize) -> BTreeMap<String, f64> {
    let curves = curves(model);
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        let worker = || {
            while let Some(curve) = curves.get(next.fetch_add(1, Ordering::Relaxed)) {
                let saturation = curve.saturation();
                found
                    .lock()
                    .expect("no thread panics while holding it")
                    .insert(curve.name, saturation);
            }
        };
        for _ in 0..threads.max(1) {
            scope.spawn(worker);
        }
    });
    let found = found.into_inner().expect("no thread panics while holding it");
    let tail = |of: &str, to: &str| {
        let curve = |name| curves.iter().find(|curve| curve.name == name).expect("such a curve");
        let load = found[to] / 2.0;
        curve(of).p99_us(load) - curve(to).p99_us(load)
    };
    let over = |of: &str, to: &str| 100.0 * (found[of] / found[to] - 1.0);
    [
        ("fig4a-wave15-saturation", over("gets-15", "gets-on-host")),
        ("fig4a-wave15-tail", tail("gets-15", "gets-on-host")),
        ("fig4a-wave16-saturation", over("gets-16", "gets-on-host")),
        ("fig4b-wave15-saturation", over("scans-15", "scans-on-host")),
        ("fig4b-wave15-tail", tail("scans-15", "scans-on-host")),
        ("fig4b-wave16-saturation", over("scans-16", "scans-on-host")),
        ("fig4b-onhost-saturation-tide", over("scans-on-host", "scans-15")),
        ("upi-offload-3000", -over("upi-3000", "scans-on-host")),
        ("upi-offload-2500", -over("upi-2500", "scans-on-host")),
        ("upi-offload-2000", -over("upi-2000", "scans-on-host")),
        ("upi-over-pcie", over("upi-3000", "scans-15")),
    ]
    .map(|(id, x)| (id.to_owned(), x))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_intervals_belong_to_the_committed_fit() {
        let kept = Intervals::builtin();
        assert_eq!(kept.digest, digest(), "{PATH} is out of date: run wave fit --intervals");
        assert!(kept.sets > 1 && !kept.rows.is_empty());
        let printed = paper::printed();
        for Interval { id, value, low, high } in &kept.rows {
            assert!(
                low <= value && value <= high && printed.iter().any(|row| row.id == *id),
                "{id}"
            );
        }
    }

    #[test]
    fn an_interval_covers_every_set_and_round_trips_through_its_file() {
        let set = |x: f64| BTreeMap::from([("a".to_owned(), x)]);
        let found = Intervals::of(&[set(1.0), set(-2.006), set(0.5)]);
        let Interval { value, low, high, .. } = *found.of_row("a").unwrap();
        assert_eq!([value, low, high], [1.0, -2.01, 1.0]);
        assert_eq!(found.of_row("b"), None);
        assert_eq!(toml::from_str::<Intervals>(&found.to_toml()).unwrap(), found);
    }
}
