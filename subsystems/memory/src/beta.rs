//! Draws from a Beta distribution against a limit: exact, or about as good and much faster.
//!
//! A Beta(a, b) is X / (X + Y) where X is Gamma(a) and Y is Gamma(b). The exact way draws both by rejection.
//!
//! Nobody asks for the draw itself, only whether it is below a limit L, and X / (X + Y) < L where the cube root of
//! (1 - L) X is less than that of L Y. The fast way takes cube roots of Gammas for normal (Wilson and Hilferty, "The
//! distribution of chi-square", 1931), so that their difference is normal too, and compares one uniform number
//! with the chance that it is negative. That has no branch, and is good for a and b of at least 1.
//! [`ks_distance`] says how good.

use alloc::vec::Vec;

use rand::RngCore;
use rand_distr::{Distribution, Gamma};
use rand_pcg::Pcg64Mcg;

/// Nothing fast is further than this from the exact distribution, by [`ks_distance`].
pub const KS_MAX: f64 = 0.015;

/// How to draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// Two Gamma variates by rejection: the reference.
    Exact,
    /// A uniform number and a chance.
    #[default]
    Fast,
}

impl Sampling {
    /// Draws from as many Betas as there are `below`: the first from Beta(`alphas[0]`, `betas[0]`), and so on, and
    /// says of each draw whether it is below `limit`. Each shape must be at least 1, the limit between 0 and 1.
    #[inline]
    pub fn below(
        self,
        limit: f32,
        alphas: &[f32],
        betas: &[f32],
        rng: &mut Pcg64Mcg,
        below: &mut [bool],
    ) {
        debug_assert!(alphas.iter().chain(betas).all(|shape| *shape >= 1.0));
        match self {
            Sampling::Exact => {
                for (below, (&alpha, &beta)) in below.iter_mut().zip(alphas.iter().zip(betas)) {
                    *below = exact(alpha, beta, rng) < limit;
                }
            }
            Sampling::Fast => {
                let roots = Roots::new(limit);
                let chunks = alphas.chunks(LANES).zip(betas.chunks(LANES));
                for (below, (alphas, betas)) in below.chunks_mut(LANES).zip(chunks) {
                    // The random numbers first, so that the rest is a loop without branches.
                    let mut uniforms = [0; LANES];
                    for pair in uniforms[..below.len()].chunks_mut(2) {
                        let word = rng.next_u64();
                        for (uniform, shift) in pair.iter_mut().zip([0, 32]) {
                            *uniform = (word >> shift) as u32;
                        }
                    }
                    let shapes = alphas.iter().zip(betas);
                    for ((below, uniform), (&alpha, &beta)) in
                        below.iter_mut().zip(uniforms).zip(shapes)
                    {
                        *below = unit(uniform) * roots.inverse_chance(alpha, beta) < 1.0;
                    }
                }
            }
        }
    }
}

const LANES: usize = 64;

fn exact(alpha: f32, beta: f32, rng: &mut Pcg64Mcg) -> f32 {
    let (x, y) = (gamma(alpha, rng), gamma(beta, rng));
    // Both can be zero, if hardly ever: then it is zero as well.
    x / (x + y).max(f32::MIN_POSITIVE)
}

fn gamma(shape: f32, rng: &mut Pcg64Mcg) -> f32 {
    Gamma::new(shape, 1.0).map_or(shape, |gamma| gamma.sample(rng))
}

/// From 0 up to 1, without 1.
#[inline]
fn unit(uniform: u32) -> f32 {
    // Signed, as that is what vectors convert.
    (uniform >> 8) as i32 as f32 / (1 << 24) as f32
}

/// Cube roots of what is above a limit and of the limit.
struct Roots {
    above: f32,
    below: f32,
}

impl Roots {
    #[inline]
    fn new(limit: f32) -> Roots {
        let root = |x: f32| x * inverse_cube_root(x) * inverse_cube_root(x);
        Roots { above: root(1.0 - limit), below: root(limit) }
    }

    /// One over the chance that a Beta(`alpha`, `beta`) is below the limit.
    #[inline]
    fn inverse_chance(&self, alpha: f32, beta: f32) -> f32 {
        let Roots { above, below } = self;
        let (a, b) = (inverse_cube_root(alpha), inverse_cube_root(beta));
        // The cube root of a Gamma(s) has the mean s^(1/3) (1 - 1 / 9 s) and the variance s^(-1/3) / 9.
        let difference = below * b * b * (beta - 1.0 / 9.0) - above * a * a * (alpha - 1.0 / 9.0);
        let variance = (above * above * a + below * below * b) / 9.0;
        let deviations = difference * inverse_root(variance);
        let deviations = if deviations > FAR { FAR } else { deviations };
        let deviations = if deviations < -FAR { -FAR } else { deviations };
        // The normal distribution, within 0.00015: Bowling et al., "A logistic approximation to the cumulative
        // normal distribution", 2009.
        let exponent = deviations * (1.5976 + 0.070_566 * deviations * deviations);
        1.0 + power_of_two(-exponent * core::f32::consts::LOG2_E)
    }
}

/// So many standard deviations away, nothing comes any more.
const FAR: f32 = 8.0;

/// 2^`x` to four digits for an `x` of less than a hundred, in operations that compilers vectorize: a whole number
/// that goes into the exponent, and a polynomial for the rest.
#[inline]
fn power_of_two(x: f32) -> f32 {
    // Added to this, the whole part of a number is in the lowest bits.
    const ROUND: f32 = (3 << 22) as f32;
    let whole = x + ROUND;
    let rest = x - (whole - ROUND);
    let power = 1.0
        + rest
            * (core::f32::consts::LN_2
                + rest * (0.240_226_5 + rest * (0.055_504_1 + rest * 0.009_618_1)));
    f32::from_bits(power.to_bits().wrapping_add(whole.to_bits() << 23))
}

/// 1 / sqrt(`x`) to five digits, in operations that compilers vectorize: a first guess from halving the
/// exponent, and two of Newton's steps.
#[inline]
fn inverse_root(x: f32) -> f32 {
    let guess = f32::from_bits(0x5f37_59df - (x.to_bits() >> 1));
    let step = |root: f32| root * (1.5 - 0.5 * x * root * root);
    step(step(guess))
}

/// One over the cube root of `x`, the same way.
#[inline]
fn inverse_cube_root(x: f32) -> f32 {
    let guess = f32::from_bits(0x54a2_fa8c - x.to_bits() / 3);
    let step = |root: f32| root * (4.0 / 3.0 - x / 3.0 * root * root * root);
    step(step(guess))
}

/// The largest distance from the distribution of Beta(`alpha`, `beta`) itself (Kolmogorov and Smirnov's): of
/// `count` exact draws, which show about 1 / sqrt(`count`), or of the chances behind the fast ones at as many limits.
pub fn ks_distance(sampling: Sampling, alpha: u32, beta: u32, count: u32, seed: u64) -> f64 {
    let share = |at: u32| f64::from(at) / f64::from(count);
    let mut worst: f64 = 0.0;
    match sampling {
        Sampling::Exact => {
            let mut rng = Pcg64Mcg::new(u128::from(seed) << 1 | 1);
            let mut draws: Vec<f32> =
                (0..count).map(|_| exact(alpha as f32, beta as f32, &mut rng)).collect();
            draws.sort_unstable_by(f32::total_cmp);
            for (at, &draw) in (0..).zip(&draws) {
                let exact = distribution(f64::from(draw), alpha, beta);
                worst = worst.max(exact - share(at)).max(share(at + 1) - exact);
            }
        }
        Sampling::Fast => {
            for limit in (1..count).map(share) {
                let inverse = Roots::new(limit as f32).inverse_chance(alpha as f32, beta as f32);
                let exact = distribution(f64::from(limit as f32), alpha, beta);
                worst = worst.max((1.0 / f64::from(inverse) - exact).abs());
            }
        }
    }
    worst
}

/// The probability that a Beta(`alpha`, `beta`) is at most `x`: that of at least `alpha` hits among
/// `alpha + beta - 1` trials of chance `x`.
fn distribution(x: f64, alpha: u32, beta: u32) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    let trials = alpha + beta - 1;
    let odds = x / (1.0 - x);
    let mut chance = libm::pow(1.0 - x, f64::from(trials));
    let mut sum = 0.0;
    for hits in 0..=trials {
        if hits >= alpha {
            sum += chance;
        }
        chance *= odds * f64::from(trials - hits) / f64::from(hits + 1);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What SOL's batches have: little evidence, much of one kind, much of both.
    const SHAPES: [(u32, u32); 9] =
        [(1, 1), (1, 2), (2, 1), (1, 9), (3, 5), (1, 33), (33, 1), (17, 17), (1, 50)];

    #[test]
    fn the_exact_distribution_is_that_of_the_textbook() {
        assert!((distribution(0.3, 1, 1) - 0.3).abs() < 1e-12);
        assert!((distribution(0.3, 2, 1) - 0.09).abs() < 1e-12);
        assert!((distribution(0.3, 1, 3) - (1.0 - 0.343)).abs() < 1e-12);
        assert!((distribution(0.5, 17, 17) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn inverse_roots_have_five_digits() {
        for at in 0..1000 {
            let x = 1.0 + at as f32 * 0.37;
            let error = inverse_root(x) * libm::sqrtf(x) - 1.0;
            assert!(error.abs() < 1e-5, "{x}: {error}");
        }
    }

    #[test]
    fn cube_roots_and_powers_have_four_digits() {
        for at in 1..1000 {
            let x = at as f32 * 0.037;
            let error = inverse_cube_root(x) * libm::cbrtf(x) - 1.0;
            assert!(error.abs() < 3e-5, "{x}: {error}");
            for x in [x, -x] {
                let error = power_of_two(x) / libm::exp2f(x) - 1.0;
                assert!(error.abs() < 1e-4, "{x}: {error}");
            }
        }
    }

    #[test]
    fn as_many_draws_are_below_as_should_be() {
        const COUNT: usize = 100_000;
        for (alpha, beta) in SHAPES {
            for limit in [0.1, 0.333, 0.8] {
                let (alphas, betas) = ([alpha as f32; 64], [beta as f32; 64]);
                let expected = distribution(f64::from(limit), alpha, beta);
                for sampling in [Sampling::Exact, Sampling::Fast] {
                    let mut rng = Pcg64Mcg::new(5);
                    let mut below = [false; 64];
                    let mut hits = 0;
                    for _ in 0..COUNT / 64 {
                        sampling.below(limit, &alphas, &betas, &mut rng, &mut below);
                        hits += below.iter().filter(|below| **below).count();
                    }
                    let share = hits as f64 / (COUNT / 64 * 64) as f64;
                    let far = if sampling == Sampling::Fast { KS_MAX } else { 0.0 };
                    // Five standard deviations.
                    let chance = 5.0 * libm::sqrt(0.25 / COUNT as f64);
                    assert!(
                        (share - expected).abs() < far + chance,
                        "Beta({alpha}, {beta}) below {limit}, {sampling:?}: {share}, not {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn draws_are_within_their_stated_distance() {
        for (alpha, beta) in SHAPES {
            let exact = ks_distance(Sampling::Exact, alpha, beta, 100_000, 1);
            let fast = ks_distance(Sampling::Fast, alpha, beta, 100_000, 1);
            std::println!("Beta({alpha}, {beta}): exact {exact:.4}, fast {fast:.4}");
            // Exceeded by one seed in a million, if the draws are what they should be.
            assert!(exact < 0.0086, "Beta({alpha}, {beta}): {exact}");
            assert!(fast < KS_MAX, "Beta({alpha}, {beta}): {fast}");
        }
    }
}
