//! Values of chunks: medians, spreads and confidence intervals.

use serde_json::{Value, json};

/// Student's t for a two-sided 95% interval, by degrees of freedom from 1; beyond, it is close to the normal distribution's.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// One value per chunk, in the order of the chunks.
#[derive(Clone, Debug, Default)]
pub struct Sample(pub Vec<f64>);

impl Sample {
    /// For each chunk, this sample's value divided by the other's.
    pub fn over(&self, other: &Sample) -> Sample {
        Sample(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs).collect())
    }

    /// The median; NaN without chunks.
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The quantile at `share`, from 0 to 1.
    fn at(&self, share: f64) -> f64 {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        values.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// `{p5, p50, p95}`.
    pub fn json(&self) -> Value {
        json!({ "p5": self.at(0.05), "p50": self.median(), "p95": self.at(0.95) })
    }

    /// The mean of independent chunks with its 95% confidence interval: `{mean, low, high}`.
    pub fn interval(&self) -> Value {
        let count = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / count;
        let squares: f64 = self.0.iter().map(|value| (value - mean).powi(2)).sum();
        let t = T_95.get(self.0.len().saturating_sub(2)).copied().unwrap_or(1.96);
        let half = t * (squares / (count - 1.0) / count).sqrt();
        json!({ "mean": mean, "low": mean - half, "high": mean + half })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ratio_and_interval_of_known_samples() {
        let sample = Sample(vec![3.0, 1.0, 2.0]);
        assert_eq!(sample.median(), 2.0);
        assert_eq!(sample.over(&Sample(vec![1.0, 2.0, 4.0])).0, [3.0, 0.5, 0.5]);
        // Mean 2, standard deviation 1, two degrees of freedom: 2 +- 4.303 / sqrt(3).
        let interval = sample.interval();
        assert!((interval["low"].as_f64().unwrap() - (2.0 - 2.484)).abs() < 1e-3, "{interval}");
        assert!(Sample::default().median().is_nan());
    }
}
