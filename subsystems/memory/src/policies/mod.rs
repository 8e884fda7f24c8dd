//! Policies: one per file, pure, each with its source.
//!
//! All share [`mod@tiered`], which tracks mappings, scan times and moves; a policy adds the state of a batch and its judgement
//! ([`Classifier`]). Read [`threshold`] first.
//!
//! A policy is selected by its name, with settings after a colon:
//!
//! ```text
//! sol
//! sol:shortest_ms=600,hot_share=0.3,sampling=exact,seed=7
//! threshold:period_ms=2400,hot_share=0.5
//! ```
//!
//! A setting that is left out has its default; `wave policies` lists them.

mod classifier;
pub mod prefetch;
pub mod sol;
pub mod strides;
pub mod threshold;
pub mod tiered;

use alloc::boxed::Box;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::policy::{Choice, Policy};
pub use wave_core::settings::PolicyError;
use wave_core::settings::{Known, Policies, Setting, Settings, known, names};

pub use tiered::{Classifier, Tiered};

/// A policy that moves batches between tiers.
pub trait Tiering: Policy {
    /// The next decision, if there is one at this time.
    fn next(&mut self, now: Nanos) -> Option<Choice>;

    /// The policy's knowledge of a batch. `None` for a batch that is not managed.
    fn explain(&self, strip: u32, batch: u32) -> Option<Explanation>;

    /// Bytes that the policy keeps for each batch.
    fn state_bytes_per_batch(&self) -> usize;

    /// The longest time in which the policy may scan nothing at all.
    fn longest_period(&self) -> Nanos;

    /// The time in which the policy judges each batch once.
    fn epoch(&self) -> Nanos;
}

/// Why a batch is where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explanation {
    /// The most pages that the batch has had.
    pub pages: u32,
    /// The scan period.
    pub period: Nanos,
    /// Whether it is in the slow tier.
    pub slow: bool,
    /// Whether the batch belongs in the slow tier.
    pub cold: bool,
    /// The policy's estimate of its warmth: 0 to 1, cold below `limit`.
    pub warmth: f32,
    /// Warmth below which a batch is cold.
    pub limit: f32,
    /// Number of observations behind `warmth`.
    pub weight: f32,
    /// Time until the policy next judges which tier the batch belongs in: until then warmth and verdict may differ.
    pub judged_in: Nanos,
    /// Time until the next attempt to page the batch out. `None` unless it stayed at the last attempt.
    pub retry_in: Option<Nanos>,
}

/// The seed of a policy's random numbers.
pub(crate) const SEED: Setting = Setting::number(
    "seed",
    "1",
    0..=u64::MAX,
    "the seed of its random numbers: the same seed and readings give the same decisions",
);

/// Whether to bring memory back ahead of strided access.
pub(crate) const PREFETCH: Setting = Setting::one_of(
    "prefetch",
    &["off", "on"],
    "whether to bring paged-out memory back ahead of a program's strided access",
);

/// Policies for memory that Wave ships.
pub static SHIPPED: Policies<dyn Tiering + Send> = Policies(&[
    (
        Known {
            name: "sol",
            about: "learns how warm each batch is, and how often to look at it, by Thompson sampling",
            settings: &sol::SETTINGS,
        },
        |config, settings| Ok(tiered(sol::Sol::from_settings(settings)?, settings, config)),
    ),
    (
        Known {
            name: "threshold",
            about: "pages out batches with less than a set share of pages touched at the last scan",
            settings: &threshold::SETTINGS,
        },
        |config, settings| {
            Ok(tiered(threshold::Threshold::from_settings(settings), settings, config))
        },
    ),
]);

/// The shipped policies with their descriptions and settings.
pub static KNOWN: [Known; 2] = known(&SHIPPED);

/// Names of the shipped policies.
pub static NAMES: &[&str] = &names(&KNOWN);

/// The shipped policy of this name, with its settings, for address spaces of at most
/// [`Config::subjects`] strips.
///
/// # Errors
/// The name or a setting is unknown, or a value is not allowed; the error lists what is.
pub fn by_name(text: &str, config: &Config) -> Result<Box<dyn Tiering + Send>, PolicyError> {
    SHIPPED.make(text, config)
}

/// A policy of two tiers, with the settings common to all.
fn tiered<C: Classifier<Batch: Send> + Send + 'static>(
    classifier: C,
    settings: &Settings<'_>,
    config: &Config,
) -> Box<dyn Tiering + Send> {
    let policy = Tiered::new(classifier, config.subjects, settings.number(SEED.key));
    match settings.choice(PREFETCH.key) {
        "on" => Box::new(policy.with_prefetch()),
        _ => Box::new(policy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};

    fn config() -> Config {
        Config { subjects: 100, ..Config::coherent(1) }
    }

    fn error(text: &str) -> String {
        by_name(text, &config()).err().expect("it is wrong").to_string()
    }

    #[test]
    fn every_policy_is_found_by_name_and_keeps_at_most_32_bytes_a_batch() {
        for Known { name, settings, .. } in KNOWN {
            for setting in settings {
                let text = alloc::format!("{name}:{}={}", setting.key, setting.default);
                assert_eq!(by_name(&text, &config()).unwrap().name(), name);
            }
            for text in [String::from(name), alloc::format!("{name}:prefetch=on")] {
                let bytes = by_name(&text, &config()).unwrap().state_bytes_per_batch();
                assert!(bytes <= 32, "{text} keeps {bytes} bytes a batch");
            }
        }
    }

    #[test]
    fn settings_take_effect() {
        for (text, deadline_ms) in [
            ("sol", 300),
            ("sol:shortest_ms=600,hot_share=0.3,sampling=exact,seed=7", 600),
            ("threshold:hot_share=0.5,period_ms=1200", 1_200),
        ] {
            let mut policy = by_name(text, &config()).unwrap();
            let space = crate::space::Space::new(1, crate::space::Pattern::Sum([].into()), 1);
            space.messages().for_each(|message| policy.on_message(Nanos(0), &message));
            while policy.next(Nanos(0)).is_some() {}
            assert_eq!(policy.next_deadline(), Some(Nanos::from_millis(deadline_ms)), "{text}");
        }
        let limit = |text: &str| {
            let mut policy = by_name(text, &config()).unwrap();
            let space = crate::space::Space::new(1, crate::space::Pattern::Sum([].into()), 1);
            space.messages().for_each(|message| policy.on_message(Nanos(0), &message));
            policy.explain(0, 0).unwrap().limit
        };
        assert_eq!(["sol:hot_share=0.3", "threshold:hot_share=0.7"].map(limit), [0.3, 0.7]);
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_list_of_shipped_ones() {
        assert_eq!(error("lru"), "there is no policy `lru`; shipped policies: sol, threshold");
        assert_eq!(
            error("threshold:idle_ms=5"),
            "policy `threshold`: it has no setting `idle_ms`; it takes period_ms=N, 1 to 3600000 \
             (default 9600); hot_share=SHARE, above 0 and below 1, such as 0.25 (default 0.333); \
             prefetch=off|on (default off); seed=N, 0 to 18446744073709551615 (default 1)"
        );
        assert_eq!(
            error("sol:hot_share=2"),
            "policy `sol`: `2` is not a valid value for `hot_share`: write hot_share=SHARE, above 0 and \
             below 1, such as 0.25"
        );
        assert_eq!(
            error("sol:sampling=normal"),
            "policy `sol`: `normal` is not a valid value for `sampling`: write sampling=fast|exact"
        );
        assert_eq!(
            error("sol:shortest_ms=10000"),
            "policy `sol`: `shortest_ms` is 10000, but must not exceed `horizon_ms`, which \
             is 9600"
        );
    }
}
