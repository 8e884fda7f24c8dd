//! Draws from a Beta distribution, compared with a limit: exact, or nearly as good and much faster.
//!
//! A Beta(a, b) is X / (X + Y) where X is Gamma(a) and Y is Gamma(b). The exact way draws both by rejection.
//!
//! Only the comparison of a draw with a limit L is needed, not the draw itself, and X / (X + Y) < L if and only if the cube
//! root of (1 - L) X is less than that of L Y. The fast way takes cube roots of Gammas for normal (Wilson and Hilferty, "The
//! distribution of chi-square", 1931), so that their difference is normal too, and compares it with a normal number from a
//! table. That has no branch, and is good for a and b of at least 1. [`ks_distance`] says how good.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rand::RngCore;
use rand_distr::{Distribution, Gamma};
use rand_pcg::Pcg64Mcg;

/// The greatest distance of the fast distribution from the exact one, by [`ks_distance`].
pub const KS_MAX: f64 = 0.015;

/// Method of drawing from a beta distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// Two Gamma variates by rejection: the reference.
    Exact,
    /// A normal number from a table.
    #[default]
    Fast,
}

/// The most draws of one call of [`Draws::below`].
pub const DRAWS: usize = 64;
/// Draws in a group, which compilers vectorize.
pub const CHUNK: usize = 8;

/// Draws compared with one limit.
#[derive(Clone, Debug)]
pub struct Draws {
    sampling: Sampling,
    limit: f32,
    roots: Roots,
    normals: Normals,
}

impl Draws {
    /// Draws for a limit between 0 and 1.
    pub fn new(sampling: Sampling, limit: f32) -> Draws {
        Draws { sampling, limit, roots: Roots::new(limit), normals: Normals::new() }
    }

    /// Draws from the first `count` Betas, Beta(`alphas[0]`, `betas[0]`) and so on, and sets a bit for each draw that is below
    /// the limit. The bits from `count` on are arbitrary. Each shape must be at least 1.
    #[inline]
    pub fn below(
        &self,
        count: usize,
        alphas: &[f32; DRAWS],
        betas: &[f32; DRAWS],
        rng: &mut Pcg64Mcg,
    ) -> u64 {
        debug_assert!(alphas.iter().chain(betas).all(|shape| *shape >= 1.0));
        if self.sampling == Sampling::Exact {
            let shapes = alphas.iter().zip(betas).take(count).enumerate();
            return shapes.fold(0, |below, (at, (&alpha, &beta))| {
                below | u64::from(exact(alpha, beta, rng) < self.limit) << at
            });
        }
        let chunks = alphas.as_chunks::<CHUNK>().0.iter().zip(betas.as_chunks::<CHUNK>().0);
        let chunks = chunks.take(count.div_ceil(CHUNK)).enumerate();
        chunks.fold(0, |below, (at, (alphas, betas))| {
            // All random numbers first, so that the rest is a loop without branches.
            let normals = self.normals.draw(rng);
            let mut chunk = [false; CHUNK];
            for (at, below) in chunk.iter_mut().enumerate() {
                let (difference, variance) = self.roots.difference(alphas[at], betas[at]);
                *below = normals[at] * variance < difference * difference.abs();
            }
            below | u64::from(mask(&chunk)) << (at * CHUNK)
        })
    }
}

/// A mask with a bit for each value that is true.
#[inline]
pub fn mask(all: &[bool; CHUNK]) -> u8 {
    // The product's highest byte has a bit of each byte.
    (u64::from_le_bytes(all.map(u8::from)).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Signed squares of normal numbers, in ascending order, all equally likely.
#[derive(Clone, Debug)]
struct Normals(Box<[f32; NORMALS]>);

const NORMALS: usize = 1 << NORMAL_BITS;
const NORMAL_BITS: u32 = 12;

impl Normals {
    fn new() -> Normals {
        let mut normals = Box::new([0.0; NORMALS]);
        let half = NORMALS / 2;
        let mut normal: f64 = 0.0;
        for at in 0..half {
            // The tail probability of this entry, solved by Newton's steps from the entry before.
            let beyond = 0.5 - (at as f64 + 0.5) / NORMALS as f64;
            for _ in 0..NEWTONS_STEPS {
                let density =
                    libm::exp(-normal * normal / 2.0) / libm::sqrt(core::f64::consts::TAU);
                let tail = libm::erfc(normal * core::f64::consts::FRAC_1_SQRT_2) / 2.0;
                normal += (tail - beyond) / density;
            }
            let square = (normal * normal) as f32;
            (normals[half + at], normals[half - 1 - at]) = (square, -square);
        }
        Normals(normals)
    }

    #[inline]
    fn draw(&self, rng: &mut Pcg64Mcg) -> [f32; CHUNK] {
        let mut normals = [0.0; CHUNK];
        for four in normals.as_chunks_mut::<4>().0 {
            let word = rng.next_u64();
            for (normal, shift) in four.iter_mut().zip([0, 16, 32, 48]) {
                *normal = self.0[(word >> shift) as usize % NORMALS];
            }
        }
        normals
    }

    /// The probability of an entry below `square`.
    fn chance(&self, square: f32) -> f64 {
        self.0.partition_point(|normal| *normal < square) as f64 / NORMALS as f64
    }
}

/// Enough to get from one entry of the table to the next, which is close.
const NEWTONS_STEPS: usize = 4;

fn exact(alpha: f32, beta: f32, rng: &mut Pcg64Mcg) -> f32 {
    let (x, y) = (gamma(alpha, rng), gamma(beta, rng));
    // Both can be zero, though hardly ever; then the result is zero as well.
    x / (x + y).max(f32::MIN_POSITIVE)
}

fn gamma(shape: f32, rng: &mut Pcg64Mcg) -> f32 {
    Gamma::new(shape, 1.0).map_or(shape, |gamma| gamma.sample(rng))
}

/// Cube roots of 1 minus the limit, and of the limit.
#[derive(Clone, Copy, Debug)]
struct Roots {
    above: f32,
    below: f32,
}

impl Roots {
    fn new(limit: f32) -> Roots {
        let root = |x: f32| x * inverse_cube_root(x) * inverse_cube_root(x);
        Roots { above: root(1.0 - limit), below: root(limit) }
    }

    /// The cube root of L Y minus that of (1 - L) X, for a Beta(`alpha`, `beta`): its mean and its variance.
    #[inline]
    fn difference(&self, alpha: f32, beta: f32) -> (f32, f32) {
        const NINTH: f32 = 1.0 / 9.0;
        let Roots { above, below } = self;
        let (a, b) = (inverse_cube_root(alpha), inverse_cube_root(beta));
        // The cube root of a Gamma(s) has the mean s^(1/3) (1 - 1 / 9 s) and the variance s^(-1/3) / 9.
        let mean = below * (b * b) * (beta - NINTH) - above * (a * a) * (alpha - NINTH);
        let variance = (above * above * NINTH) * a + (below * below * NINTH) * b;
        (mean, variance)
    }
}

/// One over the cube root of `x` to five digits, in operations that compilers vectorize: a first guess from a third of the
/// exponent, and two of Newton's steps.
#[inline]
fn inverse_cube_root(x: f32) -> f32 {
    let guess = f32::from_bits(0x54a2_fa8c - x.to_bits() / 3);
    let third = x * (1.0 / 3.0);
    let step = |root: f32| root * (4.0 / 3.0 - third * (root * root * root));
    step(step(guess))
}

/// The largest distance from the distribution of Beta(`alpha`, `beta`) itself (Kolmogorov-Smirnov): of `count` exact draws,
/// with an error of about 1 / sqrt(`count`), or of the probabilities behind the fast draws, at as many limits.
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
            let normals = Normals::new();
            for limit in (1..count).map(share) {
                let (mean, variance) =
                    Roots::new(limit as f32).difference(alpha as f32, beta as f32);
                let chance = normals.chance(mean * mean.abs() / variance);
                let exact = distribution(f64::from(limit as f32), alpha, beta);
                worst = worst.max((chance - exact).abs());
            }
        }
    }
    worst
}

/// The probability that a Beta(`alpha`, `beta`) is at most `x`: that of at least `alpha` hits among `alpha + beta - 1` trials
/// of probability `x`.
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

    /// Shapes as SOL's batches have them: little evidence, much of one kind, much of both.
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
    fn cube_roots_have_five_digits() {
        for at in 1..1000 {
            let x = at as f32 * 0.037;
            let error = inverse_cube_root(x) * libm::cbrtf(x) - 1.0;
            assert!(error.abs() < 3e-5, "{x}: {error}");
        }
    }

    #[test]
    fn normals_match_the_normal_distribution() {
        let normals = Normals::new();
        // From a table: half below zero, 84.13% below one standard deviation, 97.72% below two.
        for (square, chance) in [(0.0, 0.5), (1.0, 0.841_345), (4.0, 0.977_250), (-9.0, 0.001_350)]
        {
            let found = normals.chance(square);
            assert!((found - chance).abs() <= 0.5 / NORMALS as f64 + 1e-6, "{square}: {found}");
        }
        assert!(normals.0.is_sorted());
    }

    #[test]
    fn masks_have_a_bit_per_value() {
        for at in 0..CHUNK {
            assert_eq!(mask(&core::array::from_fn(|other| other == at)), 1 << at);
            assert_eq!(mask(&core::array::from_fn(|other| other != at)), !(1 << at));
        }
    }

    #[test]
    fn the_share_of_draws_below_a_limit_is_right() {
        const COUNT: usize = 100_000;
        for (alpha, beta) in SHAPES {
            for limit in [0.1, 0.333, 0.8] {
                let (alphas, betas) = ([alpha as f32; 64], [beta as f32; 64]);
                let expected = distribution(f64::from(limit), alpha, beta);
                for sampling in [Sampling::Exact, Sampling::Fast] {
                    let mut rng = Pcg64Mcg::new(5);
                    let draws = Draws::new(sampling, limit);
                    let mut hits = 0;
                    for _ in 0..COUNT / 64 {
                        hits += draws.below(64, &alphas, &betas, &mut rng).count_ones();
                    }
                    let share = f64::from(hits) / (COUNT / 64 * 64) as f64;
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
            // A correct sampler exceeds this with one seed in a million.
            assert!(exact < 0.0086, "Beta({alpha}, {beta}): {exact}");
            assert!(fast < KS_MAX, "Beta({alpha}, {beta}): {fast}");
        }
    }
}
