//! Policies, each in a file of its own, pure, with its source.
//!
//! All share [`mod@tiered`], which keeps what is mapped, when to scan and what is to be moved; a policy is
//! what it keeps of a batch, and what it makes of it ([`Classifier`]). [`threshold`] is the one to read first.
//!
//! A policy is asked for by its name, and settings after a colon:
//!
//! ```text
//! sol
//! sol:shortest_ms=600,hot_share=0.3,sampling=exact,seed=7
//! threshold:period_ms=2400,hot_share=0.5
//! ```
//!
//! What is not set has its default; `wave policies` lists them.

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
    /// The next decision, if there is one now.
    fn next(&mut self, now: Nanos) -> Option<Choice>;

    /// What is known of a batch that is managed.
    fn explain(&self, strip: u32, batch: u32) -> Option<Explanation>;

    /// Bytes that the policy keeps for each batch.
    fn state_bytes_per_batch(&self) -> usize;

    /// How long it may scan nothing at all.
    fn longest_period(&self) -> Nanos;
}

/// Why a batch is where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explanation {
    /// Pages that the batch has had.
    pub pages: u32,
    /// How often it is scanned.
    pub period: Nanos,
    /// Whether it is in the slow tier.
    pub slow: bool,
    /// Whether the batch belongs into the slow tier.
    pub cold: bool,
    /// How warm the policy takes it to be: 0 to 1, cold below `limit`.
    pub warmth: f32,
    /// Warmth below which a batch is cold.
    pub limit: f32,
    /// Observations that this rests on.
    pub weight: f32,
    /// How long until it is judged again where the batch belongs: until then warmth and verdict may differ.
    pub judged_in: Nanos,
    /// Of a batch that stayed when it was to be paged out: how long until that is tried again.
    pub retry_in: Option<Nanos>,
}

/// Where a policy's randomness comes from.
pub(crate) const SEED: Setting = Setting::number(
    "seed",
    "1",
    0..=u64::MAX,
    "where its randomness comes from: the same seed and readings, the same decisions",
);

/// Whether to bring back what strided access will reach.
pub(crate) const PREFETCH: Setting = Setting::one_of(
    "prefetch",
    &["off", "on"],
    "whether paged-out memory that a program goes through at a stride is brought back ahead of it",
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

/// What there is to know of each.
pub static KNOWN: [Known; 2] = known(&SHIPPED);

/// Names of the shipped policies.
pub static NAMES: &[&str] = &names(&KNOWN);

/// The shipped policy of this name, with its settings, for address spaces of at most
/// [`Config::subjects`] strips.
///
/// # Errors
/// Says what is unknown, or no value, and what is allowed.
pub fn by_name(text: &str, config: &Config) -> Result<Box<dyn Tiering + Send>, PolicyError> {
    SHIPPED.make(text, config)
}

/// A policy of two tiers, with the settings that all share.
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
    fn every_policy_goes_by_its_name_and_keeps_little() {
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
    fn an_unknown_policy_is_refused_with_the_shipped_ones() {
        assert_eq!(error("lru"), "there is no policy `lru`; shipped policies: sol, threshold");
        assert_eq!(
            error("threshold:idle_ms=5"),
            "policy `threshold`: it has no setting `idle_ms`; it takes period_ms=N, 1 to 3600000 \
             (default 9600); hot_share=SHARE, above 0 and below 1, such as 0.25 (default 0.333); \
             prefetch=off|on (default off); seed=N, 0 to 18446744073709551615 (default 1)"
        );
        assert_eq!(
            error("sol:hot_share=2"),
            "policy `sol`: `2` is no value for `hot_share`: write hot_share=SHARE, above 0 and \
             below 1, such as 0.25"
        );
        assert_eq!(
            error("sol:sampling=normal"),
            "policy `sol`: `normal` is no value for `sampling`: write sampling=fast|exact"
        );
        assert_eq!(
            error("sol:shortest_ms=10000"),
            "policy `sol`: `shortest_ms` is 10000, and may not be more than `horizon_ms`, which \
             is 9600"
        );
    }
}
