//! Arrivals of an open-loop load: Poisson times, a mix of request classes, and keys.
//!
//! Everything follows from a rate and a seed; no clock is read. Times, classes and keys are drawn from
//! separate streams, so that a change of the mix does not change the times.

use rand::Rng;
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64;

/// A load cannot be generated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The rate is zero, negative or not a number.
    #[error("a rate of {0} requests per second cannot be generated: it must be above zero")]
    Rate(f64),
    /// A mix needs 1 to 256 classes.
    #[error("a mix has 1 to 256 classes, not {0}")]
    Classes(usize),
    /// A weight is negative or not a number, or all are zero.
    #[error("the weights of a mix are not negative and add up to more than zero: {0}")]
    Weight(String),
    /// There is no key to request.
    #[error("a load needs at least one key")]
    NoKey,
}

/// A kind of request: an index into its [`Mix`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u8);

/// The next request of a [`Load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Due time, in nanoseconds from the start of the load.
    pub at_ns: u64,
    /// Class of the request.
    pub class: Class,
    pub key: u64,
}

/// Endless requests: [`Arrivals`] with a class and a key each.
#[derive(Clone, Debug)]
pub struct Load {
    arrivals: Arrivals,
    mix: Mix,
    keys: u64,
    class_stream: Pcg64,
    key_stream: Pcg64,
}

impl Load {
    /// Requests at `rate_per_second`, of the classes of `mix`, for keys drawn uniformly from `0..keys`.
    pub fn new(rate_per_second: f64, mix: Mix, keys: u64, seed: u64) -> Result<Load, Error> {
        if keys == 0 {
            return Err(Error::NoKey);
        }
        Ok(Load {
            arrivals: Arrivals::new(rate_per_second, seed)?,
            mix,
            keys,
            class_stream: stream(seed, Stream::Class),
            key_stream: stream(seed, Stream::Key),
        })
    }

    /// The same load with equal gaps: no queue forms if each request is served within a gap.
    pub fn evenly(self) -> Load {
        Load { arrivals: Arrivals { evenly: true, ..self.arrivals }, ..self }
    }

    pub fn rate_per_second(&self) -> f64 {
        self.arrivals.rate_per_second()
    }
}

impl Iterator for Load {
    type Item = Arrival;

    #[inline]
    fn next(&mut self) -> Option<Arrival> {
        Some(Arrival {
            at_ns: self.arrivals.next()?,
            class: self.mix.class(&mut self.class_stream),
            key: self.key_stream.random_range(0..self.keys),
        })
    }
}

/// Endless intended arrival times, in nanoseconds from the start: a Poisson process, whose gaps
/// are independent and exponential. Equal times occur where the rate is high.
#[derive(Clone, Debug)]
pub struct Arrivals {
    random: Pcg64,
    rate_per_second: f64,
    mean_gap_ns: f64,
    /// Not rounded, so that rounding does not add up: f64 holds whole nanoseconds for 104 days.
    at_ns: f64,
    /// Whether all gaps equal the mean.
    evenly: bool,
}

impl Arrivals {
    /// A process of `rate_per_second` arrivals, the same for the same seed.
    pub fn new(rate_per_second: f64, seed: u64) -> Result<Arrivals, Error> {
        if !(rate_per_second.is_finite() && rate_per_second > 0.0) {
            return Err(Error::Rate(rate_per_second));
        }
        Ok(Arrivals {
            random: stream(seed, Stream::Time),
            rate_per_second,
            mean_gap_ns: 1e9 / rate_per_second,
            at_ns: 0.0,
            evenly: false,
        })
    }

    pub fn rate_per_second(&self) -> f64 {
        self.rate_per_second
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        let gap: f64 = if self.evenly { 1.0 } else { Exp1.sample(&mut self.random) };
        self.at_ns += gap * self.mean_gap_ns;
        Some(self.at_ns as u64)
    }
}

/// The classes of a load with their frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    names: Vec<String>,
    /// Class `i` is drawn where a number in `0..1` is below `up_to[i]` and not below its
    /// predecessor's. The last one is infinite: rounding leaves no gap.
    up_to: Vec<f64>,
}

impl Mix {
    /// A mix of these names and weights. Weights may have any sum.
    pub fn new(classes: &[(&str, f64)]) -> Result<Mix, Error> {
        if classes.is_empty() || classes.len() > 256 {
            return Err(Error::Classes(classes.len()));
        }
        let total: f64 = classes.iter().map(|(_, weight)| weight).sum();
        let sound = |weight: f64| weight.is_finite() && weight >= 0.0;
        if total <= 0.0 || !classes.iter().all(|&(_, weight)| sound(weight)) {
            return Err(Error::Weight(format!("{classes:?}")));
        }
        let mut sum = 0.0;
        let mut up_to: Vec<f64> = classes
            .iter()
            .map(|(_, weight)| {
                sum += weight;
                sum / total
            })
            .collect();
        // From the last class that occurs at all.
        let last = classes.iter().rposition(|&(_, weight)| weight > 0.0);
        for bound in &mut up_to[last.unwrap_or(0)..] {
            *bound = f64::INFINITY;
        }
        Ok(Mix { names: classes.iter().map(|(name, _)| name.to_string()).collect(), up_to })
    }

    /// `GET` and nothing else, as in Wave's Figure 4a.
    pub fn get_only() -> Mix {
        Mix::new(&[("GET", 1.0)]).expect("one class of weight one")
    }

    /// 99.5% `GET` and 0.5% `RANGE`, as in Wave's Figure 4b.
    pub fn get_and_range() -> Mix {
        Mix::new(&[("GET", 99.5), ("RANGE", 0.5)]).expect("two classes of weights above zero")
    }

    /// The classes' names; [`Class`] is an index into these.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    #[inline]
    fn class(&self, random: &mut Pcg64) -> Class {
        if self.names.len() == 1 {
            return Class(0);
        }
        let drawn: f64 = random.random();
        let index = self.up_to.iter().position(|&up_to| drawn < up_to);
        Class(index.expect("the last bound is infinite") as u8)
    }
}

/// Purpose of a stream of random numbers.
enum Stream {
    Time = 1,
    Class = 2,
    Key = 3,
}

fn stream(seed: u64, purpose: Stream) -> Pcg64 {
    // Spreads small seeds: PCG streams of neighbouring states resemble each other at first.
    let state = u128::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Pcg64::new(state, purpose as u128)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn times_never_decrease_and_repeat_for_a_seed(rate in 0.1f64..1e8, seed: u64) {
            let times: Vec<u64> = Arrivals::new(rate, seed).unwrap().take(1_000).collect();
            prop_assert!(times.is_sorted());
            let again: Vec<u64> = Arrivals::new(rate, seed).unwrap().take(1_000).collect();
            prop_assert_eq!(times, again);
        }

        #[test]
        fn even_gaps_are_equal(rate in 1f64..1e6, seed: u64) {
            let load = Load::new(rate, Mix::get_only(), 1, seed).unwrap().evenly();
            let due = |number: f64| (number * 1e9 / rate) as u64;
            for (number, arrival) in load.take(1_000).enumerate() {
                prop_assert!(arrival.at_ns.abs_diff(due(number as f64 + 1.0)) <= 1);
            }
        }

        #[test]
        fn however_they_are_taken_they_are_the_same(
            seed: u64,
            chunks in prop::collection::vec(0usize..50, 1..20),
        ) {
            let whole: Vec<u64> =
                Arrivals::new(1e5, seed).unwrap().take(chunks.iter().sum()).collect();
            let mut arrivals = Arrivals::new(1e5, seed).unwrap();
            let mut pieces = Vec::new();
            for chunk in chunks {
                pieces.extend(arrivals.by_ref().take(chunk));
            }
            prop_assert_eq!(whole, pieces);
        }

        // 40,000 exponential gaps: the mean is within 5 standard errors (2.5%), and so are the
        // standard deviation (equal to the mean; its standard error is 0.7%) and the share of
        // gaps above the mean (1/e).
        #[test]
        fn gaps_are_exponential_of_the_right_mean(rate in 1.0f64..1e6, seed: u64) {
            const COUNT: usize = 40_000;
            let mut before = 0;
            let gaps: Vec<f64> = Arrivals::new(rate, seed)
                .unwrap()
                .take(COUNT)
                .map(|at| (at - std::mem::replace(&mut before, at)) as f64 * rate / 1e9)
                .collect();
            let mean = gaps.iter().sum::<f64>() / COUNT as f64;
            prop_assert!((mean - 1.0).abs() < 0.025, "mean {}", mean);
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / COUNT as f64;
            prop_assert!((variance.sqrt() - 1.0).abs() < 0.05, "deviation {}", variance.sqrt());
            let above = gaps.iter().filter(|&&gap| gap > 1.0).count() as f64 / COUNT as f64;
            prop_assert!((above - (-1f64).exp()).abs() < 0.0125, "above {}", above);
            // Neighbouring gaps are uncorrelated.
            let together = gaps.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean));
            let correlation = together.sum::<f64>() / COUNT as f64 / variance;
            prop_assert!(correlation.abs() < 0.03, "correlation {}", correlation);
        }

        #[test]
        fn another_mix_has_the_same_times(seed: u64, keys in 1u64..1_000) {
            let times = |mix| -> Vec<u64> {
                let load = Load::new(1e6, mix, keys, seed).unwrap();
                load.take(500).inspect(|arrival| assert!(arrival.key < keys))
                    .map(|arrival| arrival.at_ns).collect()
            };
            prop_assert_eq!(times(Mix::get_only()), times(Mix::get_and_range()));
        }

        #[test]
        fn classes_occur_by_weight(
            weights in prop::collection::vec(0u32..100, 1..6),
            seed: u64,
        ) {
            prop_assume!(weights.iter().any(|&weight| weight > 0));
            const COUNT: usize = 20_000;
            let classes: Vec<(&str, f64)> =
                weights.iter().map(|&weight| ("class", f64::from(weight))).collect();
            let mut seen = vec![0usize; weights.len()];
            for arrival in Load::new(1.0, Mix::new(&classes).unwrap(), 1, seed).unwrap().take(COUNT) {
                seen[usize::from(arrival.class.0)] += 1;
            }
            let total: u32 = weights.iter().sum();
            for (&weight, &count) in weights.iter().zip(&seen) {
                if weight == 0 {
                    prop_assert_eq!(count, 0);
                }
                let share = f64::from(weight) / f64::from(total);
                // 5 standard errors of a share of one half.
                prop_assert!((count as f64 / COUNT as f64 - share).abs() < 0.018);
            }
        }
    }

    #[test]
    fn impossible_rates_are_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(Arrivals::new(rate, 1), Err(Error::Rate(_))));
        }
        assert_eq!(Mix::new(&[]), Err(Error::Classes(0)));
        assert!(matches!(Mix::new(&[("a", 0.0)]), Err(Error::Weight(_))));
        let negative = Mix::new(&[("a", 2.0), ("b", -1.0)]);
        assert!(matches!(negative, Err(Error::Weight(_))));
        let load = Load::new(1.0, Mix::get_only(), 0, 1);
        assert_eq!(load.unwrap_err(), Error::NoKey);
    }
}
