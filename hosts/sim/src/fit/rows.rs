//! The model's results for the printed rows: Tables 2 and 3 by their benchmarks, the ladder by saturation.

use wave_core::clock::Nanos;

use crate::enclave::Setup;
use crate::experiment::{self, Switches};
use crate::paper::{self, Model, Rung};
use crate::requests::{Load, Served};

const CORES: u16 = 16;
/// A search for saturation ends when its bounds are this close, relative to each other.
const RESOLUTION: f64 = 0.005;
/// Number of seeds for the first rung.
const SEEDS: u64 = 8;
/// The overload that shows the most that a rung serves, relative to the expected saturation.
const OVERLOAD: f64 = 1.1;
/// Saturation: at least this share is served, and a GET's p99 is at most this long (the glossary in ARCHITECTURE.md).
const SERVED_MIN: f64 = 0.99;
const P99_NS_MAX: u64 = 300_000;

/// The rung of a row of the ladder.
pub(super) fn rung(id: &str) -> Option<Rung> {
    let at = match id {
        "ladder-baseline" => 0,
        "ladder-nic-wb" => 1,
        "ladder-wc-wt" => 2,
        "ladder-prestage" => 3,
        _ => return None,
    };
    Some(Rung::ALL[at])
}

/// Tables 2 and 3 in this model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    end_to_end: f64,
    /// A switch, and opening a decision, for each rung.
    rungs: [[f64; 2]; 4],
    /// A switch, and opening a decision, on the host: without and with prestaging.
    on_host: [[f64; 2]; 2],
}

impl Tables {
    pub fn of(model: &Model) -> Tables {
        let link = &model.mount_evans;
        let ends = [&link.kick_send, &link.kick_flight, &link.kick_receive];
        Tables {
            end_to_end: ends.iter().map(|cost| cost.ns).sum(),
            rungs: Rung::ALL.map(|rung| benchmark(&model.wave(1, rung, "fifo"))),
            on_host: [false, true].map(|prestaged| benchmark(&model.on_host(1, prestaged, "fifo"))),
        }
    }

    /// The time of a context switch of a rung.
    pub fn switch(&self, rung: Rung) -> f64 {
        self.rungs[rung as usize][0]
    }

    /// The row of this name; `None` for a row of the ladder.
    pub fn row(&self, id: &str) -> Option<f64> {
        Some(match id {
            "table2-msix-end-to-end" => self.end_to_end,
            "table3-open-baseline" => self.rungs[0][1],
            "table3-open-nic-wb" => self.rungs[1][1],
            "table3-host-baseline" => self.rungs[0][0],
            "table3-host-nic-wb" => self.rungs[1][0],
            "table3-host-wc-wt" => self.rungs[2][0],
            "table3-host-prestage" => self.rungs[3][0],
            "table3-onhost-open" => self.on_host[0][1],
            "table3-onhost-baseline" => self.on_host[0][0],
            "table3-onhost-prestage" => self.on_host[1][0],
            _ => return None,
        })
    }
}

fn benchmark(setup: &Setup) -> [f64; 2] {
    let Switches { switch_ns, open_ns } = paper::context_switch(setup);
    // With everything prestaged, no core was kicked.
    [switch_ns, open_ns].map(|times| Switches::median(&times).map_or(0.0, f64::from))
}

/// The saturation of a rung, which is expected to be near `guess`.
///
/// From seed to seed, the saturation of a window of 40 ms differs by some percent, as its arrivals do. Where the cores
/// are the bottleneck, the mean saturation is the rate that the rung serves of an overload, which hardly depends on a
/// seed. On the first rung the agent is the bottleneck, and serves more of an overload than it can at a bounded latency:
/// there the saturation is the mean over seeds.
pub(super) fn saturation(model: &Model, rung: Rung, guess: f64) -> f64 {
    if rung != Rung::Baseline {
        return capacity(model, rung, guess);
    }
    let of_seed = |seed| {
        let mut setup = model.wave(CORES, rung, "fifo");
        setup.seed = seed;
        let overhead = paper::overhead(&setup);
        saturation_of(
            |per_second| serve(&setup, paper::gets(per_second, overhead)),
            guess,
            RESOLUTION,
        )
    };
    (1..=SEEDS).map(of_seed).sum::<f64>() / SEEDS as f64
}

/// The saturation of `serve`, which serves a load, searched from `guess` up and down.
pub(super) fn saturation_of(serve: impl Fn(f64) -> Served, guess: f64, resolution: f64) -> f64 {
    let sustains = |per_second: f64| {
        let served = serve(per_second);
        let all = served.done as f64 >= SERVED_MIN * served.sent as f64;
        all && served.latencies[0].value_at_quantile(0.99) <= P99_NS_MAX
    };
    let (mut low, mut high) = (guess * (1.0 - 2.0 * resolution), guess * (1.0 + 2.0 * resolution));
    let mut reach = 4.0 * resolution;
    let (mut low_known, mut high_known) = (false, false);
    while !low_known || !high_known {
        if !low_known {
            low_known = sustains(low);
            if !low_known {
                (high, high_known) = (low, true);
                low *= 1.0 - reach;
            }
        } else {
            high_known = !sustains(high);
            if !high_known {
                low = high;
                high *= 1.0 + reach;
            }
        }
        reach = (2.0 * reach).min(0.5);
    }
    while high - low > resolution * high {
        let middle = f64::midpoint(low, high);
        if sustains(middle) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The rate that a rung serves of an overload, per second.
fn capacity(model: &Model, rung: Rung, expected: f64) -> f64 {
    let setup = model.wave(CORES, rung, "fifo");
    let mut load = paper::gets(OVERLOAD * expected, paper::overhead(&setup));
    load.warmup = Nanos::from_millis(3);
    load.measure = Nanos::from_millis(17);
    let measure = load.measure;
    let served = serve(&setup, load);
    served.finished_within as f64 * 1e9 / measure.0 as f64
}

fn serve(setup: &Setup, load: Load) -> Served {
    experiment::serve(setup, &load).expect("the paper's setups can be laid out").served
}

/// Nanoseconds of a core, or of the agent if that is the bottleneck, for each request at this saturation.
pub(super) fn time(rung: Rung, per_second: f64) -> f64 {
    let servers = if rung == Rung::Baseline { 1 } else { CORES };
    f64::from(servers) * 1e9 / per_second
}

/// The inverse of [`time`].
pub(super) fn per_second(rung: Rung, time: f64) -> f64 {
    self::time(rung, time)
}
