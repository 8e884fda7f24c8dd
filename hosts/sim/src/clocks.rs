//! The pace of cores: turbo frequencies by the number of active cores, and the cost of timer ticks.

use serde::Deserialize;
use wave_core::clock::Nanos;
use wave_links::costs::Source;

use crate::app::Pace;

const TURBO: &str = include_str!("../data/turbo.toml");

/// One step of a turbo table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The step applies up to this many active logical cores, first siblings counted first.
    pub active_cores_max: u32,
    /// Frequency of each active core, in GHz.
    pub ghz: f64,
    /// Uncertainty of the frequency, as a fraction.
    pub uncertainty: f64,
    /// Source of the table's figures.
    pub source: Source,
}

/// Frequencies by the number of active cores.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turbo {
    /// The steps, from few active cores to many.
    #[serde(rename = "step")]
    steps: Vec<Step>,
}

impl Turbo {
    /// The table of the paper's host: `data/turbo.toml`, which names its sources.
    pub fn milan() -> Turbo {
        let turbo: Turbo = toml::from_str(TURBO).expect("the table is tested");
        assert!(!turbo.steps.is_empty(), "the table is tested");
        turbo
    }

    /// The step for this many active cores.
    pub fn at(&self, active: u32) -> &Step {
        let step = self.steps.iter().find(|step| active <= step.active_cores_max);
        step.unwrap_or_else(|| self.steps.last().expect("never empty"))
    }

    /// Steps of the table, by the number of active cores.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

/// Timer ticks: each costs every core that runs something `cost`; idle cores only wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Time between two ticks.
    pub period: Nanos,
    /// Time that a tick takes.
    pub cost: Nanos,
}

impl Ticks {
    /// The pace that ticks leave of `ghz`, in cycles per nanosecond.
    pub fn pace(ticks: Option<Ticks>, ghz: f64) -> Pace {
        let left = ticks.map_or(1.0, |ticks| 1.0 - ticks.cost.0 as f64 / ticks.period.0 as f64);
        Pace(ghz * left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_covers_every_core_and_never_rises() {
        let turbo = Turbo::milan();
        let steps = turbo.steps();
        assert_eq!(steps.last().unwrap().active_cores_max, 128);
        assert!(steps.windows(2).all(|pair| {
            pair[0].active_cores_max < pair[1].active_cores_max && pair[0].ghz >= pair[1].ghz
        }));
        assert_eq!(turbo.at(1).ghz, 3.5);
        assert_eq!(turbo.at(1000).ghz, turbo.at(128).ghz);
    }
}
