//! Policies, each in a file of its own, pure, with its source.
//!
//! All share [`tiered`], which keeps what is mapped, when to scan and what is to be moved; a policy is
//! what it keeps of a batch, and what it makes of it ([`Classifier`]). [`threshold`] is the one to read first.

pub mod idle_age;
pub mod sol;
pub mod threshold;
pub mod tiered;

use alloc::boxed::Box;
use alloc::string::{String, ToString};

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::policy::{Choice, Policy};

pub use tiered::{Classifier, Tiered};

/// Names of the shipped policies.
pub const NAMES: &[&str] = &["sol", "idle-age", "threshold"];

/// A policy that moves batches between tiers.
pub trait Tiering: Policy {
    /// The next decision, if there is one now.
    fn next(&mut self, now: Nanos) -> Option<Choice>;

    /// What is known of a batch that is managed.
    fn explain(&self, strip: u32, batch: u32) -> Option<Explanation>;

    /// Bytes that the policy keeps for each batch.
    fn state_bytes_per_batch(&self) -> usize;
}

/// Why a batch is where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explanation {
    /// Pages that it has had.
    pub pages: u32,
    /// How often it is scanned.
    pub period: Nanos,
    /// Whether it is in the slow tier.
    pub slow: bool,
    /// Whether it should be.
    pub cold: bool,
    /// How warm the policy takes it to be: 0 to 1, cold below `limit`.
    pub warmth: f32,
    /// Where cold begins.
    pub limit: f32,
    /// Observations that this rests on.
    pub weight: f32,
}

/// Nothing that is shipped answers to this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory policy `{0}`; shipped are: sol, idle-age, threshold")]
pub struct UnknownPolicy(pub String);

/// The shipped policy of this name with its defaults, for address spaces of at most
/// [`Config::subjects`] strips. Its randomness comes from `seed`.
///
/// # Errors
/// No policy has this name.
pub fn by_name(
    name: &str,
    config: &Config,
    seed: u64,
) -> Result<Box<dyn Tiering + Send>, UnknownPolicy> {
    let strips = config.subjects;
    Ok(match name {
        "sol" => Box::new(Tiered::new(sol::Sol::default(), strips, seed)),
        "idle-age" => Box::new(Tiered::new(idle_age::IdleAge::default(), strips, seed)),
        "threshold" => Box::new(Tiered::new(threshold::Threshold::default(), strips, seed)),
        _ => return Err(UnknownPolicy(name.to_string())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_goes_by_its_name_and_keeps_little() {
        let config = Config { subjects: 100, ..Config::coherent(1) };
        for name in NAMES {
            let policy = by_name(name, &config, 0).unwrap();
            assert_eq!(policy.name(), *name);
            let bytes = policy.state_bytes_per_batch();
            assert!(bytes <= 32, "{name} keeps {bytes} bytes a batch");
        }
        let error = by_name("lru", &config, 0).err().unwrap();
        let names = NAMES.join(", ");
        assert_eq!(
            error.to_string(),
            alloc::format!("there is no memory policy `lru`; shipped are: {names}")
        );
    }
}
