//! Latencies of a load under scheduling without any cost: the same arrivals, warm-up included, scheduled by an oracle.

use wave_core::clock::Nanos;
use wave_sched::oracles::{Oracle, ProcessorSharing, RoundRobin};
use wave_workloads::recorder::histogram;

use crate::ground::point::Terms;

/// A p99 latency in nanoseconds under each oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ideal {
    /// p99 under processor sharing.
    pub shared_ns: u64,
    /// p99 with slices of the given length; None without one.
    pub sliced_ns: Option<u64>,
}

/// Schedules the load at `per_second` on `cores` cores. Returns the p99 of `class`, an index; `classes_ns` are the service
/// times.
pub fn ideal(
    terms: &Terms,
    per_second: f64,
    classes_ns: &[u64],
    class: usize,
    cores: u32,
    slice: Option<Nanos>,
) -> Ideal {
    let p99 = |oracle: &mut dyn Oracle| p99_ns(oracle, terms, per_second, classes_ns, class);
    Ideal {
        shared_ns: p99(&mut ProcessorSharing::new(cores)),
        sliced_ns: slice.map(|slice| p99(&mut RoundRobin::new(cores, slice))),
    }
}

/// The p99 of `class` under `oracle`, over the requests due after the warm-up, as a point counts them.
pub fn p99_ns(
    oracle: &mut dyn Oracle,
    terms: &Terms,
    per_second: f64,
    classes_ns: &[u64],
    class: usize,
) -> u64 {
    let warm_up_ns = terms.settings.warm_up.as_nanos() as u64;
    let end_ns = warm_up_ns + terms.settings.duration.as_nanos() as u64;
    let arrivals: Vec<_> =
        terms.load(per_second).take_while(|arrival| arrival.at_ns < end_ns).collect();
    let mut latencies = histogram();
    let mut ended = |(at, id): (Nanos, u64)| {
        let arrival = arrivals[id as usize];
        if arrival.at_ns >= warm_up_ns && usize::from(arrival.class.0) == class {
            latencies.saturating_record(at.0 - arrival.at_ns);
        }
    };
    for (id, arrival) in arrivals.iter().enumerate() {
        while let Some(completion) = oracle.complete_by(Nanos(arrival.at_ns)) {
            ended(completion);
        }
        let service = Nanos(classes_ns[usize::from(arrival.class.0)]);
        oracle.arrive(Nanos(arrival.at_ns), id as u64, service);
    }
    while let Some(completion) = oracle.complete() {
        ended(completion);
    }
    latencies.value_at_quantile(0.99)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wave_workloads::arrivals::Mix;
    use wave_workloads::generator::{Seat, Settings};

    use super::*;

    const GET_NS: u64 = 10_000;

    fn terms(mix: Mix) -> Terms {
        let [seconds, warm_up] = [2.0, 0.5].map(Duration::from_secs_f64);
        Terms { mix, keys: 100, seed: 1, settings: Settings::new(seconds, warm_up, Seat::Own) }
    }

    #[test]
    fn uncontended_requests_take_their_service_time() {
        let slice = Some(Nanos::from_micros(30));
        let found = ideal(&terms(Mix::get_only()), 5.0, &[GET_NS], 0, 1, slice);
        let exact = |ns: u64| ns.abs_diff(GET_NS) <= GET_NS / 1_000;
        assert!(exact(found.shared_ns) && found.sliced_ns.is_some_and(exact), "{found:?}");
    }

    /// A GET waits for a slice of each RANGE in the system: with slices as long as a GET, its latency is that of processor
    /// sharing; with longer slices it is longer.
    #[test]
    fn get_tail_beside_ranges_grows_with_the_slice() {
        let terms = terms(Mix::get_and_range());
        let tail = |us: Option<u64>| {
            let slice = us.map(Nanos::from_micros);
            ideal(&terms, 9_600.0, &[GET_NS, 1_000 * GET_NS], 0, 1, slice)
        };
        let shared_ns = tail(None).shared_ns as f64;
        let ratio = |us| tail(Some(us)).sliced_ns.unwrap() as f64 / shared_ns;
        let ratios = [1, 10, 30, 100].map(ratio);
        assert!((0.9..1.1).contains(&ratios[0]) && (0.8..1.2).contains(&ratios[1]), "{ratios:?}");
        assert!((2.0..3.0).contains(&ratios[2]) && ratios[3] > 5.0, "{ratios:?}");
    }

    #[test]
    fn warm_up_requests_are_served_but_not_counted() {
        let whole = terms(Mix::get_and_range());
        let mut none = whole.clone();
        none.settings.duration = Duration::ZERO;
        assert_eq!(ideal(&none, 9_600.0, &[GET_NS, 1_000 * GET_NS], 0, 1, None).shared_ns, 0);
        // Work left over from the warm-up delays the counted requests.
        let mut idle_before = whole.clone();
        idle_before.settings.warm_up = Duration::ZERO;
        let ns = |terms| ideal(terms, 16_000.0, &[GET_NS, 1_000 * GET_NS], 0, 1, None).shared_ns;
        assert_ne!(ns(&whole), ns(&idle_before));
    }
}
