//! The p99 of each row over loads and rounds, and what follows: orders of neighbours, and the load that a row serves at one p99
//! as a share of another's.

use wave_compare::curve::{Served, served, top};
use wave_compare::{Pair, Pool, Spread, Verdict, resampled_range};
use wave_report::model::{PairedLoad, PairedOrder, PairedRow, ServedShare};
use wave_workloads::point::{ClassLatency, Point};
use wave_workloads::recorder::{LATENCY_MAX_NS, decode};

/// The share of samples below the figure that is compared.
const P99: f64 = 0.99;

/// The trials of one row at one load, a round each.
pub struct Rounds<'a> {
    pub per_second: f64,
    /// Each trial's point, and the time of its start since that of the run, in seconds.
    pub trials: Vec<(&'a Point, f64)>,
}

/// The p99 at which loads are compared.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// The lowest that any row has at its highest load, in the rounds considered.
    LowestAtTop,
    Ns(f64),
}

/// The rows of a run.
pub struct Curves {
    /// Class of requests whose p99 this is.
    pub class: String,
    pub rounds: usize,
    /// A fact about trials in which the generator was late, if there are any.
    pub late: Option<(String, String)>,
    seed: u64,
    rows: Vec<Curve>,
}

/// The p99 of a row at each load: of each round, and of all samples.
struct Curve {
    row: PairedRow,
    pools: Vec<Pool>,
}

impl Curve {
    fn of(name: String, loads: &[Rounds<'_>], class: &str, rounds: usize) -> Curve {
        let pools: Vec<Pool> = loads.iter().map(|load| load.pool(class, rounds)).collect();
        let at = |(load, pool): (&Rounds<'_>, &Pool)| {
            let p99_ns: Vec<f64> = (0..rounds).map(|round| pool.quantile(&[round], P99)).collect();
            let spread = Spread::of(&p99_ns).expect("there is a round");
            PairedLoad {
                offered_per_second: load.per_second,
                quiet_p99_ns: spread.quiet,
                median_p99_ns: spread.median,
                worst_p99_ns: spread.worst,
                worst_at_s: load.trials[spread.worst_round].1,
                p99_ns,
            }
        };
        let loads = loads.iter().zip(&pools).map(at).collect();
        Curve { row: PairedRow { name, loads }, pools }
    }

    /// Pairs of load and p99: of quiet rounds, among the `drawn` ones.
    fn quiet(&self, drawn: &[usize]) -> Vec<(f64, f64)> {
        let at = |load: &PairedLoad| {
            let values: Vec<f64> = drawn.iter().map(|round| load.p99_ns[*round]).collect();
            (load.offered_per_second, Spread::of(&values).map_or(f64::NAN, |spread| spread.quiet))
        };
        self.row.loads.iter().map(at).collect()
    }

    /// The same of all samples.
    fn pooled(&self, rounds: &[usize]) -> Vec<(f64, f64)> {
        let loads = self.row.loads.iter().map(|load| load.offered_per_second);
        loads.zip(self.pools.iter().map(|pool| pool.quantile(rounds, P99))).collect()
    }
}

impl Curves {
    /// The curves of rows, by name and loads; `class` is the class of requests whose p99 is compared. `None` without trials.
    pub fn of<'a>(
        rows: impl Iterator<Item = (String, Vec<Rounds<'a>>)>,
        class: &str,
        seed: u64,
    ) -> Option<Curves> {
        let rows: Vec<_> = rows.collect();
        let counts = rows.iter().flat_map(|(_, loads)| loads).map(|load| load.trials.len());
        let rounds = counts.min().filter(|rounds| *rounds > 0)?;
        let late = late(rows.iter().flat_map(|(_, loads)| loads).flat_map(|load| &load.trials));
        let rows = rows.into_iter().map(|(name, loads)| Curve::of(name, &loads, class, rounds));
        Some(Curves { class: class.to_owned(), rounds, late, seed, rows: rows.collect() })
    }

    /// The rows' rounds.
    pub fn rows(&self) -> impl Iterator<Item = &PairedRow> {
        self.rows.iter().map(|curve| &curve.row)
    }

    pub fn name(&self, row: usize) -> &str {
        &self.rows[row].row.name
    }

    /// The p99 of a row at the load with this index, in each round.
    pub fn p99_ns(&self, row: usize, load: usize) -> &[f64] {
        &self.rows[row].row.loads[load].p99_ns
    }

    fn all_rounds(&self) -> Vec<usize> {
        (0..self.rounds).collect()
    }

    /// Pairs of load and p99 of each row in quiet rounds, among the `drawn` ones.
    fn quiet(&self, drawn: &[usize]) -> Vec<Vec<(f64, f64)>> {
        self.rows.iter().map(|curve| curve.quiet(drawn)).collect()
    }

    /// The p99 that `at` names, in quiet rounds.
    pub fn limit_ns(&self, at: At) -> f64 {
        limit_ns(&self.quiet(&self.all_rounds()), at)
    }

    /// The load that a row serves at this p99 in quiet rounds.
    pub fn served(&self, row: usize, limit_ns: f64) -> Served {
        let quiet = self.rows[row].quiet(&self.all_rounds());
        served(&quiet, limit_ns).unwrap_or(Served::Below(0.0))
    }

    /// The load that `row` serves at this p99, as a share of what `reference` serves. `None` if the loads of the run do not tell.
    pub fn share(&self, row: usize, reference: usize, at: At) -> Option<ServedShare> {
        let both = |curves: &[Vec<(f64, f64)>]| {
            let limit = limit_ns(curves, at);
            [row, reference].map(|row| served(&curves[row], limit).unwrap_or(Served::Below(0.0)))
        };
        let range = |drawn: &[usize]| {
            let [own, other] = both(&self.quiet(drawn));
            own.over(other)
        };
        let (low, high) = resampled_range(self.rounds, self.seed, range)?;
        let (low, high) =
            (Some(low).filter(|low| *low > 0.0), Some(high).filter(|high| high.is_finite()));
        if low.is_none() && high.is_none() {
            return None;
        }
        let ratio = |[own, other]: [Served; 2]| own.load() / other.load();
        let all = self.all_rounds();
        let pooled: Vec<_> = self.rows.iter().map(|curve| curve.pooled(&all)).collect();
        // The order of p99 at the highest load that agrees with this share.
        let claim = if low.is_some_and(|low| low > 1.0) {
            Verdict::Lower
        } else if high.is_some_and(|high| high < 1.0) {
            Verdict::Higher
        } else {
            Verdict::Equal
        };
        Some(ServedShare {
            name: self.name(row).to_owned(),
            ratio: ratio(both(&self.quiet(&all))),
            low,
            high,
            pooled_ratio: ratio(both(&pooled)),
            is_doubted: self.slow_samples_speak_against(claim, row, reference),
        })
    }

    /// Whether the slow samples at the highest load speak against this order of two rows. Rows with different loads are not compared.
    fn slow_samples_speak_against(&self, claim: Verdict, row: usize, reference: usize) -> bool {
        let [own, other] = [row, reference].map(|row| &self.rows[row]);
        let top = |curve: &Curve| curve.row.loads.last().map(|load| load.offered_per_second);
        let pools = own.pools.last().zip(other.pools.last()).filter(|_| top(own) == top(other));
        let pair = pools.and_then(|(own, other)| Pair::of(own, other, P99, self.seed));
        pair.is_some_and(|pair| pair.speaks_against(claim))
    }

    /// Each row against the next one, at each load.
    pub fn orders(&self) -> Vec<PairedOrder> {
        let mut orders = Vec::new();
        for rows in self.rows.windows(2) {
            for (load, (first, second)) in
                rows[0].row.loads.iter().zip(&rows[1].row.loads).enumerate()
            {
                // A row with more cores has higher loads.
                if first.offered_per_second != second.offered_per_second {
                    continue;
                }
                let [one, other] = [&rows[0], &rows[1]].map(|curve| &curve.pools[load]);
                let Some(pair) = Pair::of(one, other, P99, self.seed) else { continue };
                orders.push(PairedOrder {
                    offered_per_second: first.offered_per_second,
                    first: rows[0].row.name.clone(),
                    second: rows[1].row.name.clone(),
                    ratio: pair.ratio.value,
                    low: pair.ratio.low,
                    high: pair.ratio.high,
                    pooled_ratio: pair.pooled,
                    more_slow: pair.slow.value,
                    more_slow_low: pair.slow.low,
                    more_slow_high: pair.slow.high,
                    claimed: pair.verdict().map(|verdict| verdict.name().to_owned()),
                });
            }
        }
        orders
    }
}

fn late<'a>(trials: impl Iterator<Item = &'a (&'a Point, f64)>) -> Option<(String, String)> {
    let trials: Vec<_> = trials.map(|(point, _)| &point.generator).collect();
    let late: Vec<_> = trials.iter().filter_map(|lag| lag.why_invalid.as_deref()).collect();
    Some((
        format!("the generator was late in {} of {} trials", late.len(), trials.len()),
        format!(
            "they count, as latency counts from when a request was due; first: {}",
            late.first()?
        ),
    ))
}

fn limit_ns(curves: &[Vec<(f64, f64)>], at: At) -> f64 {
    match at {
        At::Ns(ns) => ns,
        At::LowestAtTop => {
            let tops = curves.iter().filter_map(|curve| top(curve));
            tops.fold(f64::INFINITY, f64::min)
        }
    }
}

impl Rounds<'_> {
    /// The samples of this class in the first `rounds` rounds.
    fn pool(&self, class: &str, rounds: usize) -> Pool {
        Pool::of_rounds(self.trials[..rounds].iter().map(|(point, _)| samples(point, class)))
    }
}

/// The latencies of a class of requests of `point`, with their counts. A request that was not done counts as one that takes longer
/// than any other, whatever its class, so that a row that refuses requests does not seem quick.
fn samples(point: &Point, class: &str) -> Vec<(f64, u64)> {
    let of_class = point.classes.iter().find(|of| of.name == class);
    samples_of(point, of_class).unwrap_or_else(|| vec![(LATENCY_MAX_NS as f64, 1)])
}

/// The same of latencies measured anywhere; `None` if there was no such request.
pub fn samples_of(point: &Point, latencies: Option<&ClassLatency>) -> Option<Vec<(f64, u64)>> {
    let not_done = point.sent.saturating_sub(point.done);
    let done = latencies.and_then(|of| decode(&of.histogram).ok()).filter(|of| !of.is_empty());
    let slowest = |count: u64| (LATENCY_MAX_NS as f64, count);
    let Some(done) = done else { return (not_done > 0).then(|| vec![slowest(not_done)]) };
    let values = done.iter_recorded();
    let mut samples: Vec<(f64, u64)> = values
        .map(|one| (one.value_iterated_to() as f64, one.count_since_last_iteration()))
        .collect();
    if not_done > 0 {
        let of_class = done.len() as f64 * not_done as f64 / point.done.max(1) as f64;
        samples.push(slowest(of_class.ceil() as u64));
    }
    Some(samples)
}

#[cfg(test)]
mod tests {
    use wave_workloads::recorder::{Latency, encode, histogram};

    use super::*;
    use crate::ground::failed_point;

    #[test]
    fn requests_that_were_not_done_count_as_the_slowest() {
        let mut latencies = histogram();
        (1..=1000).for_each(|us| latencies.record(us * 1000).unwrap());
        let class = ClassLatency {
            name: "GET".into(),
            latency: Latency::of(&latencies),
            histogram: encode(&latencies),
        };
        let with = |refused: u64| {
            let classes = vec![class.clone()];
            let point =
                Point { sent: 1000 + refused, done: 1000, refused, classes, ..failed_point(1.0) };
            Pool::of_rounds([samples(&point, "GET")]).quantile(&[0], 0.99) / 1e3
        };
        assert!((with(0) - 990.0).abs() < 2.0, "{}", with(0));
        // The 995th of 1,005, and the last but one.
        assert!((with(5) - 995.0).abs() < 2.0, "{}", with(5));
        assert_eq!(with(20), LATENCY_MAX_NS as f64 / 1e3);
        assert_eq!(samples(&failed_point(1.0), "GET"), [(LATENCY_MAX_NS as f64, 1)]);
    }
}
