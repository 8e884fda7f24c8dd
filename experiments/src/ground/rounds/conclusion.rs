//! What the rounds say of the rows: the orders that can be claimed, and the load that each serves at the same p99.

use wave_compare::EQUAL;
use wave_compare::curve::Served;
use wave_report::model::{Paired, ServedShare, VariantResult};
use wave_report::number::{micros, thousands};

use super::{At, Curves};
use crate::ground::neighbours::Neighbours;

/// Share of the machine's CPUs that other processes may use. Beyond that hardly a round is undisturbed, and rows are compared beside
/// these processes: a row whose threads share a CPU loses more to them than it would lose to rows on a quiet machine.
const OTHERS_SHARE_MAX: f64 = 0.25;

/// The machine during the rounds.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    cpus: usize,
    /// CPUs that other processes used, on average; `None` if the system does not tell.
    others: Option<f64>,
}

impl Machine {
    /// The CPUs `cpus` since `before`, which was measured on them. All agents must have ended: then they count as this process's.
    pub fn since(before: Option<Neighbours>, cpus: &[usize]) -> Machine {
        let others = before.zip(Neighbours::on(cpus)).map(|(before, now)| now.cpus_since(&before));
        Machine { cpus: cpus.len(), others }
    }

    /// CPUs that other processes used, on average; `None` if the system does not tell.
    pub fn others(self) -> Option<f64> {
        self.others
    }

    /// Whether nothing can be said of the rows on a quiet machine.
    fn is_busy(self) -> bool {
        self.others.is_some_and(|others| others > OTHERS_SHARE_MAX * self.cpus as f64)
    }

    /// The conclusion of a run that tells nothing, because the machine was busy.
    pub fn too_busy(self) -> Option<String> {
        self.is_busy().then(|| {
            format!(
                "Other processes used {:.1} of {} CPUs, so this run says nothing about a quiet machine.",
                self.others.unwrap_or(0.0),
                self.cpus
            )
        })
    }
}

/// The conclusion from the rows' curves, of which `reference` is the one that others are compared with, at the p99 that `at` names.
pub fn of(curves: &Curves, reference: usize, at: At, machine: Machine) -> Paired {
    let mut orders = curves.orders();
    if machine.is_busy() {
        orders.iter_mut().for_each(|order| order.claimed = None);
    }
    let claimed = orders.iter().filter(|order| order.claimed.is_some()).count();
    let limit_ns = curves.limit_ns(at);
    let served = curves.served(reference, limit_ns);
    let reference_per_second = match served {
        Served::Below(_) => None,
        served => Some(served.load()),
    };
    let count = curves.rows().count();
    let others = (0..count).filter(|row| *row != reference && reference_per_second.is_some());
    // Beside busy processes nothing is claimed.
    let others = others.filter(|_| !machine.is_busy());
    let shares: Vec<_> = others.filter_map(|row| curves.share(row, reference, at)).collect();
    let at = format!("{} p99 of {} us in quiet rounds", curves.class, micros(limit_ns as u64));
    Paired {
        rounds: curves.rounds as u32,
        class: curves.class.clone(),
        rows: curves.rows().cloned().collect(),
        claimed_share: claimed as f64 / orders.len().max(1) as f64,
        orders,
        conclusion: machine
            .too_busy()
            .unwrap_or_else(|| conclusion(curves.name(reference), served, &at, &shares, count - 1)),
        reference_per_second,
        reference: curves.name(reference).to_owned(),
        limit_ns,
        shares,
    }
}

/// The row that others are compared with if the scenario names none: the first on-host agent, else the first agent, else the first
/// row.
pub(crate) fn reference(variants: &[VariantResult]) -> usize {
    let first = |is: fn(&VariantResult) -> bool| variants.iter().position(is);
    let on_host = first(|variant| variant.placement == "onhost");
    on_host.or_else(|| first(|variant| !variant.policy.is_empty())).unwrap_or(0)
}

/// What the shares say, in a sentence. `at` names the p99, and `others` is the number of rows besides the reference.
fn conclusion(
    reference: &str,
    served: Served,
    at: &str,
    shares: &[ServedShare],
    others: usize,
) -> String {
    let (known, open): (Vec<_>, Vec<_>) = shares.iter().map(part).partition(Result::is_ok);
    let load = thousands(served.load());
    let mut parts = vec![match served {
        Served::Below(_) => {
            return format!(
                "\"{reference}\" exceeds a {at} at its lowest load, so nothing is compared with it."
            );
        }
        Served::At(_) => format!("\"{reference}\" serves {load} k/s"),
        Served::Above(_) => {
            format!("\"{reference}\" serves {load} k/s or more, its highest load")
        }
    }];
    parts.extend(known.into_iter().flatten());
    if shares.len() < others {
        parts.push(format!("of {} others the run's loads do not tell", others - shares.len()));
    }
    let open: Vec<String> = open.into_iter().filter_map(Result::err).collect();
    if !open.is_empty() {
        let rows = open.join(" or ");
        parts.push(format!("this run cannot tell whether {rows} serves more or less than that"));
    }
    format!("At a {at}, {}.", parts.join("; "))
}

/// What a share says; an error if that is open: the row and why.
fn part(share: &ServedShare) -> Result<String, String> {
    let ServedShare { name, ratio, pooled_ratio, low, high, .. } = share;
    let interval = |low: f64, high: f64| format!("95% interval {low:.2} to {high:.2}");
    let said = match (*low, *high) {
        // Below its lowest load, or above its highest one.
        (None, Some(high)) if high <= 1.0 => format!("\"{name}\" less than {high:.2} of that"),
        (Some(low), None) if low >= 1.0 => format!("\"{name}\" more than {low:.2} of that"),
        (Some(low), Some(high)) if low > 1.0 || high < 1.0 => {
            format!("\"{name}\" {ratio:.2} of that ({})", interval(low, high))
        }
        (Some(low), Some(high)) if low >= 1.0 / EQUAL && high <= EQUAL => {
            format!("\"{name}\" as much ({})", interval(low, high))
        }
        (Some(low), Some(high)) => return Err(format!("\"{name}\" ({})", interval(low, high))),
        _ => return Err(format!("\"{name}\" ({} of that)", share.words())),
    };
    match share.is_doubted {
        true => Err(format!(
            "\"{name}\" ({ratio:.2} of that by the median of rounds, {pooled_ratio:.2} by all samples)"
        )),
        false => Ok(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_busy_if_others_use_more_than_a_quarter_of_it() {
        assert!(!Machine { cpus: 2, others: Some(0.5) }.is_busy());
        assert!(Machine { cpus: 2, others: Some(0.6) }.is_busy());
        assert!(!Machine { cpus: 16, others: Some(2.0) }.is_busy());
    }

    fn share(name: &str, [ratio, low, high, pooled_ratio]: [f64; 4]) -> ServedShare {
        let name = name.to_owned();
        let (low, high) = (Some(low), Some(high));
        ServedShare { name, ratio, low, high, pooled_ratio, is_doubted: false }
    }

    #[test]
    fn conclusion_claims_what_rounds_and_all_samples_agree_on() {
        let shares = [
            share("slower", [0.6, 0.5, 0.7, 0.8]),
            share("wide", [0.9, 0.7, 1.2, 0.9]),
            share("equal", [1.0, 0.97, 1.02, 1.1]),
            ServedShare { is_doubted: true, ..share("stalls", [1.3, 1.2, 1.4, 0.5]) },
            ServedShare { low: None, ..share("far", [0.3, 0.2, 0.3, 0.3]) },
            // Beyond a load of the run in some of the resampled rounds only.
            ServedShare { low: None, ..share("open", [0.9, 0.8, 1.1, 0.9]) },
        ];
        let said = conclusion("near", Served::At(68_200.0), "GET p99 of 112 us", &shares, 6);
        assert_eq!(
            said,
            "At a GET p99 of 112 us, \"near\" serves 68.2 k/s; \"slower\" 0.60 of that (95% interval 0.50 to 0.70); \
             \"equal\" as much (95% interval 0.97 to 1.02); \"far\" less than 0.30 of that; \
             this run cannot tell whether \"wide\" (95% interval 0.70 to 1.20) or \
             \"stalls\" (1.30 of that by the median of rounds, 0.50 by all samples) or \"open\" (at most 1.10 of that) serves more or \
             less than that."
        );
        let nothing = conclusion("near", Served::Below(1.0), "GET p99 of 112 us", &[], 5);
        assert!(nothing.contains("nothing is compared"), "{nothing}");
        let all = conclusion("near", Served::Above(9_000.0), "GET p99 of 1000 us", &shares[..1], 3);
        assert!(
            all.contains("\"near\" serves 9.0 k/s or more, its highest load; \"slower\" 0.60 "),
            "{all}"
        );
        assert!(all.ends_with("of 2 others the run's loads do not tell."), "{all}");
    }
}
