//! Latency as a function of the load: the load that a row serves at a given latency.

/// The highest load at which a row's latency is at most `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Served {
    /// The latency exceeds the limit at the lowest load, this one.
    Below(f64),
    /// Between two loads, or at one.
    At(f64),
    /// The latency is below the limit at the highest load, this one.
    Above(f64),
}

impl Served {
    /// The load, or the bound of it.
    pub fn load(self) -> f64 {
        let (Self::Below(load) | Self::At(load) | Self::Above(load)) = self;
        load
    }

    /// The least and the greatest load that it may be; 0 and infinity where it is known only from one side.
    fn range(self) -> (f64, f64) {
        match self {
            Self::Below(load) => (0.0, load),
            Self::At(load) => (load, load),
            Self::Above(load) => (load, f64::INFINITY),
        }
    }

    /// This load divided by the `other`: the least and the greatest ratio that it may be.
    pub fn over(self, other: Self) -> (f64, f64) {
        let ((own_low, own_high), (low, high)) = (self.range(), other.range());
        (own_low / high, own_high / low)
    }
}

/// The load at which a row reaches the latency `limit`. `points` are pairs of load and latency, in ascending order of loads.
///
/// Between two loads the logarithm of latency is interpolated. Where measured latency falls with
/// load, neighbouring points are replaced by the mean of their logarithms (isotonic regression). `None` without points.
pub fn served(points: &[(f64, f64)], limit: f64) -> Option<Served> {
    let rising = logarithms(points);
    let loads: Vec<f64> = points.iter().map(|(load, _)| *load).collect();
    let (limit, first, last) = (limit.ln(), *loads.first()?, *loads.last()?);
    // A latency as of `top` is reached in spite of rounding.
    let is_above = |latency: f64| latency > limit + 1e-9;
    if is_above(rising[0]) {
        return Some(Served::Below(first));
    }
    // The first load whose latency is above the limit.
    let Some(above) = rising.iter().position(|latency| is_above(*latency)) else {
        let is_at = rising.last().is_some_and(|latency| *latency >= limit - 1e-9);
        return Some(if is_at { Served::At(last) } else { Served::Above(last) });
    };
    let share = (limit - rising[above - 1]) / (rising[above] - rising[above - 1]);
    let share = share.max(0.0);
    Some(Served::At(loads[above - 1] + share * (loads[above] - loads[above - 1])))
}

/// The latency at the highest load, as [`served`] sees it. `None` without points.
pub fn top(points: &[(f64, f64)]) -> Option<f64> {
    Some(logarithms(points).last()?.exp())
}

/// The logarithms of latencies, made to rise with load.
fn logarithms(points: &[(f64, f64)]) -> Vec<f64> {
    rising(points.iter().map(|(_, latency)| latency.ln()).collect())
}

/// The closest values, by least squares, that never fall: pools neighbours that do.
fn rising(values: Vec<f64>) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for value in values {
        pools.push((value, 1));
        while let [.., (before, count_before), (last, count)] = pools[..]
            && before > last
        {
            let both = count_before + count;
            let mean = (before * count_before as f64 + last * count as f64) / both as f64;
            pools.truncate(pools.len() - 2);
            pools.push((mean, both));
        }
    }
    pools.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_at_a_latency_lies_between_its_neighbours() {
        let points = [(20.0, 100.0), (40.0, 100.0), (60.0, 400.0)];
        assert_eq!(served(&points, 50.0), Some(Served::Below(20.0)));
        assert_eq!(served(&points, 400.0), Some(Served::At(60.0)));
        assert_eq!(served(&points, 500.0), Some(Served::Above(60.0)));
        // Half of the way, in logarithms.
        let Some(Served::At(load)) = served(&points, 200.0) else { panic!("it is between loads") };
        assert!((load - 50.0).abs() < 1e-9, "{load}");
        assert_eq!(served(&[], 1.0), None);
    }

    #[test]
    fn latency_at_the_highest_load_is_served_at_that_load() {
        for points in [
            [(20.0, 50.0), (40.0, 49.0), (60.0, 48.0)],
            [(20.0, 50.0), (40.0, 70.0), (60.0, 300.0)],
            [(20.0, 50.0), (40.0, 300.0), (60.0, 60.0)],
        ] {
            let limit = top(&points).unwrap();
            assert_eq!(served(&points, limit), Some(Served::At(60.0)), "{points:?}");
        }
        assert_eq!(top(&[]), None);
    }

    #[test]
    fn ratio_of_loads_outside_of_the_run_is_open_on_one_side() {
        let (below, at, above) = (Served::Below(1.0), Served::At(2.0), Served::Above(4.0));
        assert_eq!(at.over(at), (1.0, 1.0));
        assert_eq!(
            [below.over(at), at.over(above), below.over(above)],
            [(0.0, 0.5), (0.0, 0.5), (0.0, 0.25)]
        );
        let open = f64::INFINITY;
        assert_eq!(
            [above.over(at), at.over(below), above.over(below)],
            [(2.0, open), (2.0, open), (4.0, open)]
        );
        assert_eq!([below.over(below), above.over(above)], [(0.0, open); 2]);
    }

    #[test]
    fn latency_that_falls_with_load_is_smoothed() {
        assert_eq!(rising(vec![1.0, 3.0, 2.0, 4.0]), [1.0, 2.5, 2.5, 4.0]);
        assert_eq!(rising(vec![3.0, 2.0, 1.0]), [2.0, 2.0, 2.0]);
    }
}
