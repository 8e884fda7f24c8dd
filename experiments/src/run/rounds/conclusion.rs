//! What the rounds say of the rows: the orders that can be claimed, and the load that each serves at the same p99.

use wave_compare::curve::{Served, served};
use wave_compare::{Interval, Pair, Pool, Spread, Verdict};
use wave_report::model::{Paired, PairedLoad, PairedOrder, PairedRow, ServedShare, VariantResult};
use wave_report::number::{micros, thousands};

use wave_workloads::point::{ClassLatency, Point};
use wave_workloads::recorder::{LATENCY_MAX_NS, decode};

use super::AtLoad;
use crate::run::neighbours::Neighbours;

/// The share of samples below the figure that is compared.
const P99: f64 = 0.99;

/// Share of the machine's CPUs that other processes may use. Beyond that hardly a round is undisturbed, and rows are compared beside
/// these processes: a row whose threads share a CPU loses more to them than it would lose to rows on a quiet machine.
const OTHERS_SHARE_MAX: f64 = 0.25;

/// The machine during the rounds.
#[derive(Clone, Copy, Debug)]
pub(in crate::run) struct Machine {
    cpus: usize,
    /// CPUs that other processes used, on average.
    others: f64,
}

impl Machine {
    /// The CPUs `cpus` since `before`, which was measured on them. All agents must have ended: then they count as this process's.
    pub(in crate::run) fn since(before: Option<Neighbours>, cpus: &[usize]) -> Machine {
        let others = before.zip(Neighbours::on(cpus)).map(|(before, now)| now.cpus_since(&before));
        Machine { cpus: cpus.len(), others: others.unwrap_or(0.0) }
    }

    /// Whether nothing can be said of the rows on a quiet machine.
    fn is_busy(self) -> bool {
        self.others > OTHERS_SHARE_MAX * self.cpus as f64
    }

    /// The conclusion of a run that tells nothing, because the machine was busy.
    pub(in crate::run) fn too_busy(self) -> Option<String> {
        self.is_busy().then(|| {
            format!(
                "Other processes used {:.1} of {} CPUs, so this run says nothing about a quiet machine.",
                self.others, self.cpus
            )
        })
    }
}

/// The conclusion from the trials of each row; `class` is the class of requests whose p99 is compared. `None` without trials.
pub(super) fn of(
    variants: &[VariantResult],
    rows: &[Vec<AtLoad>],
    class: &str,
    machine: Machine,
    seed: u64,
) -> Option<Paired> {
    let counts = rows.iter().flatten().map(|load| load.trials.len());
    let rounds = counts.min().filter(|rounds| *rounds > 0)?;
    let curves: Vec<Curve> = variants
        .iter()
        .zip(rows)
        .map(|(variant, loads)| Curve::of(variant, loads, class, rounds))
        .collect();
    let reference = reference(variants);
    let mut orders = orders(variants, &curves, seed);
    if machine.is_busy() {
        orders.iter_mut().for_each(|order| order.claimed = None);
    }
    let claimed = orders.iter().filter(|order| order.claimed.is_some()).count();
    let Shares { limit_ns, reference_per_second, shares } =
        shares(variants, &curves, reference, rounds, seed);
    Some(Paired {
        rounds: rounds as u32,
        class: class.to_owned(),
        rows: curves.iter().map(|curve| curve.row.clone()).collect(),
        claimed_share: claimed as f64 / orders.len().max(1) as f64,
        orders,
        conclusion: machine.too_busy().unwrap_or_else(|| {
            conclusion(
                &variants[reference].name,
                reference_per_second,
                &format!("{class} p99 of {} us in quiet rounds", micros(limit_ns as u64)),
                &shares,
            )
        }),
        reference_per_second,
        reference: variants[reference].name.clone(),
        limit_ns,
        shares,
    })
}

/// The row that others are compared with: the first on-host agent, else the first agent, else the first row.
fn reference(variants: &[VariantResult]) -> usize {
    let first = |is: fn(&VariantResult) -> bool| variants.iter().position(is);
    let on_host = first(|variant| variant.placement == "onhost");
    on_host.or_else(|| first(|variant| !variant.policy.is_empty())).unwrap_or(0)
}

/// The p99 of a row at each load: of each round, and of all samples.
struct Curve {
    row: PairedRow,
    pools: Vec<Pool>,
}

impl Curve {
    fn of(variant: &VariantResult, loads: &[AtLoad], class: &str, rounds: usize) -> Curve {
        let pools: Vec<Pool> = loads.iter().map(|load| load.pool(class, rounds)).collect();
        let at = |(load, pool): (&AtLoad, &Pool)| {
            let p99_ns: Vec<f64> = (0..rounds).map(|round| pool.quantile(&[round], 0.99)).collect();
            let spread = Spread::of(&p99_ns).expect("there is a round");
            PairedLoad {
                offered_per_second: load.per_second,
                quiet_p99_ns: spread.quiet,
                median_p99_ns: spread.median,
                worst_p99_ns: spread.worst,
                worst_at_s: load.trials[spread.worst_round].at_s,
                p99_ns,
            }
        };
        let loads = loads.iter().zip(&pools).map(at).collect();
        Curve { row: PairedRow { name: variant.name.clone(), loads }, pools }
    }

    /// Pairs of load and p99: of quiet rounds, among the `drawn` ones.
    fn quiet(&self, drawn: &[usize]) -> Vec<(f64, f64)> {
        let at = |load: &PairedLoad| {
            let values: Vec<f64> = drawn.iter().map(|round| load.p99_ns[*round]).collect();
            (load.offered_per_second, Spread::of(&values).map_or(f64::NAN, |spread| spread.quiet))
        };
        self.row.loads.iter().map(at).collect()
    }

    /// The same of all samples of the `drawn` rounds.
    fn pooled(&self, drawn: &[usize]) -> Vec<(f64, f64)> {
        let loads = self.row.loads.iter().map(|load| load.offered_per_second);
        loads.zip(self.pools.iter().map(|pool| pool.quantile(drawn, P99))).collect()
    }
}

impl AtLoad {
    /// The samples of this class in the first `rounds` rounds.
    fn pool(&self, class: &str, rounds: usize) -> Pool {
        let trials = self.trials[..rounds].iter();
        Pool::of_rounds(trials.map(|trial| samples(&trial.outcome.measured, class)))
    }
}

/// The latencies of a class of requests of `point`, with their counts. A request that was not done counts as one that takes longer
/// than any other, whatever its class: else a row that refuses requests would seem quick. So does a row that has done none.
fn samples(point: &Point, class: &str) -> Vec<(f64, u64)> {
    let of_class = point.classes.iter().find(|of| of.name == class);
    samples_of(point, of_class).unwrap_or_else(|| vec![(LATENCY_MAX_NS as f64, 1)])
}

/// The same of latencies measured anywhere; `None` if there was no such request.
pub(in crate::run) fn samples_of(
    point: &Point,
    latencies: Option<&ClassLatency>,
) -> Option<Vec<(f64, u64)>> {
    let not_done = point.sent.saturating_sub(point.done);
    let done = latencies.and_then(|of| decode(&of.histogram).ok()).filter(|of| !of.is_empty());
    let Some(done) = done else { return (not_done > 0).then(|| vec![(LATENCY_MAX_NS as f64, 1)]) };
    let values = done.iter_recorded();
    let mut samples: Vec<(f64, u64)> = values
        .map(|one| (one.value_iterated_to() as f64, one.count_since_last_iteration()))
        .collect();
    if not_done > 0 {
        let of_class = done.len() as f64 * not_done as f64 / point.done.max(1) as f64;
        samples.push((LATENCY_MAX_NS as f64, of_class.ceil() as u64));
    }
    Some(samples)
}

/// Each row against the next one, at each load.
fn orders(variants: &[VariantResult], curves: &[Curve], seed: u64) -> Vec<PairedOrder> {
    let mut orders = Vec::new();
    for (at, pair) in curves.windows(2).enumerate() {
        for (load, (first, second)) in pair[0].row.loads.iter().zip(&pair[1].row.loads).enumerate()
        {
            // A row with more cores has higher loads.
            if first.offered_per_second != second.offered_per_second {
                continue;
            }
            let [one, other] = [&pair[0], &pair[1]].map(|curve| &curve.pools[load]);
            let Some(pair) = Pair::of(one, other, P99, seed) else { continue };
            orders.push(PairedOrder {
                offered_per_second: first.offered_per_second,
                first: variants[at].name.clone(),
                second: variants[at + 1].name.clone(),
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

/// What rows serve at one p99.
struct Shares {
    /// The p99: the lowest that any row has at its highest load in quiet rounds.
    limit_ns: f64,
    /// The load of the reference; `None` if it exceeds this p99 at its lowest load.
    reference_per_second: Option<f64>,
    /// The load of each other row, as a share of the reference's.
    shares: Vec<ServedShare>,
}

fn shares(
    variants: &[VariantResult],
    curves: &[Curve],
    reference: usize,
    rounds: usize,
    seed: u64,
) -> Shares {
    let lowest_at_top = |curves: &[Vec<(f64, f64)>]| {
        let tops = curves.iter().filter_map(|curve| curve.last().map(|(_, p99)| *p99));
        tops.fold(f64::INFINITY, f64::min)
    };
    let share = |curves: &[Vec<(f64, f64)>], row: usize| {
        let limit = lowest_at_top(curves);
        let of = |row: usize| served(&curves[row], limit).map_or(f64::NAN, Served::load);
        of(row) / of(reference)
    };
    let quiet = |drawn: &[usize]| -> Vec<Vec<(f64, f64)>> {
        curves.iter().map(|curve| curve.quiet(drawn)).collect()
    };
    let all: Vec<usize> = (0..rounds).collect();
    let of_all = quiet(&all);
    let pooled: Vec<_> = curves.iter().map(|curve| curve.pooled(&all)).collect();
    let limit = lowest_at_top(&of_all);
    let reference_per_second = match served(&of_all[reference], limit) {
        None | Some(Served::Below(_)) => {
            return Shares { limit_ns: limit, reference_per_second: None, shares: Vec::new() };
        }
        Some(served) => Some(served.load()),
    };
    let others = (0..curves.len()).filter(|row| *row != reference);
    let shares = others.filter_map(|row| {
        let paired = Interval::resampled(rounds, seed, |drawn| share(&quiet(drawn), row))?;
        let is_bound = matches!(served(&of_all[row], limit), Some(Served::Below(_)));
        // What a share claims of the p99 at the highest load.
        let claim = match paired.value {
            _ if paired.has_one() => Verdict::Equal,
            ratio if ratio < 1.0 => Verdict::Higher,
            _ => Verdict::Lower,
        };
        let [own, others] = [row, reference].map(|row| curves[row].pools.last());
        let pair = Pair::of(own?, others?, P99, seed);
        Some(ServedShare {
            name: variants[row].name.clone(),
            ratio: paired.value,
            low: paired.low,
            high: paired.high,
            is_bound,
            pooled_ratio: share(&pooled, row),
            is_doubted: pair.is_some_and(|pair| pair.speaks_against(claim)),
        })
    });
    Shares { limit_ns: limit, reference_per_second, shares: shares.collect() }
}

/// What the shares say, in a sentence. `at` names the p99.
fn conclusion(
    reference: &str,
    reference_per_second: Option<f64>,
    at: &str,
    shares: &[ServedShare],
) -> String {
    let Some(per_second) = reference_per_second else {
        return format!(
            "\"{reference}\" exceeds a {at} at its lowest load, so nothing is compared with it."
        );
    };
    let (known, open): (Vec<_>, Vec<_>) = shares.iter().map(part).partition(Result::is_ok);
    let mut parts = vec![format!("\"{reference}\" serves {} k/s", thousands(per_second))];
    parts.extend(known.into_iter().flatten());
    let open: Vec<String> = open.into_iter().filter_map(Result::err).collect();
    if !open.is_empty() {
        let rows = open.join(" or ");
        parts.push(format!("this run cannot tell whether {rows} serves more or less than that"));
    }
    format!("At a {at}, {}.", parts.join("; "))
}

/// What a share says; an error if that is open: the row and why.
fn part(share: &ServedShare) -> Result<String, String> {
    let ServedShare { name, ratio, pooled_ratio, .. } = share;
    let of_rounds = Interval { value: *ratio, low: share.low, high: share.high };
    let interval = format!("95% interval {:.2} to {:.2}", share.low, share.high);
    if share.is_bound {
        return Ok(format!("\"{name}\" less than {ratio:.2} of that"));
    }
    if of_rounds.has_one() && !of_rounds.is_equal() {
        Err(format!("\"{name}\" ({interval})"))
    } else if share.is_doubted {
        Err(format!(
            "\"{name}\" ({ratio:.2} of that by the median of rounds, {pooled_ratio:.2} by all samples)"
        ))
    } else if of_rounds.has_one() {
        Ok(format!("\"{name}\" as much ({interval})"))
    } else {
        Ok(format!("\"{name}\" {ratio:.2} of that ({interval})"))
    }
}

#[cfg(test)]
mod tests {
    use wave_workloads::recorder::{Latency, encode, histogram};

    use super::*;
    use crate::run::failed_point;

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

    #[test]
    fn machine_is_busy_if_others_use_more_than_a_quarter_of_it() {
        assert!(!Machine { cpus: 2, others: 0.5 }.is_busy());
        assert!(Machine { cpus: 2, others: 0.6 }.is_busy());
        assert!(!Machine { cpus: 16, others: 2.0 }.is_busy());
    }

    fn share(name: &str, [ratio, low, high, pooled_ratio]: [f64; 4]) -> ServedShare {
        let (name, is_bound, is_doubted) = (name.to_owned(), false, false);
        ServedShare { name, ratio, low, high, is_bound, pooled_ratio, is_doubted }
    }

    #[test]
    fn conclusion_claims_what_rounds_and_all_samples_agree_on() {
        let shares = [
            share("slower", [0.6, 0.5, 0.7, 0.8]),
            share("wide", [0.9, 0.7, 1.2, 0.9]),
            share("equal", [1.0, 0.97, 1.02, 1.1]),
            ServedShare { is_doubted: true, ..share("stalls", [1.3, 1.2, 1.4, 0.5]) },
            ServedShare { is_bound: true, ..share("far", [0.3, 0.2, 0.4, 0.3]) },
        ];
        let said = conclusion("near", Some(68_200.0), "GET p99 of 112 us", &shares);
        assert_eq!(
            said,
            "At a GET p99 of 112 us, \"near\" serves 68.2 k/s; \"slower\" 0.60 of that (95% interval 0.50 to 0.70); \
             \"equal\" as much (95% interval 0.97 to 1.02); \"far\" less than 0.30 of that; \
             this run cannot tell whether \"wide\" (95% interval 0.70 to 1.20) or \
             \"stalls\" (1.30 of that by the median of rounds, 0.50 by all samples) serves more or less than that."
        );
        let nothing = conclusion("near", None, "GET p99 of 112 us", &[]);
        assert!(nothing.contains("nothing is compared"), "{nothing}");
    }
}
