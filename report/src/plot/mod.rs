//! The plots, as SVG without anything from outside. What each shows is in its own file; how they look is in [`style`].

pub mod bars;
pub mod chart;
pub mod curves;
mod percentiles;
pub mod style;
mod throughput;

use super::model::RunResult;
use super::save::ReportError;

/// The plots of a run; none where there is nothing to show.
#[derive(Debug, Default)]
pub struct Plots {
    /// p99 latency against throughput.
    pub throughput: Option<String>,
    /// Latency at each percentile.
    pub percentiles: Option<Percentiles>,
    /// Saturation of each variant.
    pub ladder: Option<String>,
    /// What a request's nanoseconds are spent on.
    pub account: Option<String>,
}

/// Latency at each percentile, of each variant at one load.
#[derive(Debug)]
pub struct Percentiles {
    pub svg: String,
    /// Which load that is, in words.
    pub load: String,
}

impl Plots {
    /// Each plot by the name of its file.
    pub fn files(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("throughput-latency.svg", self.throughput.as_deref()),
            ("cdf.svg", self.percentiles.as_ref().map(|plot| plot.svg.as_str())),
            ("ladder.svg", self.ladder.as_deref()),
            ("account.svg", self.account.as_deref()),
        ]
    }
}

/// Draws every plot that `result` has data for.
pub fn all(result: &RunResult) -> Result<Plots, ReportError> {
    Ok(Plots {
        throughput: throughput::draw(result).map_err(in_file("throughput-latency.svg"))?,
        percentiles: percentiles::draw(result).map_err(in_file("cdf.svg"))?,
        ladder: bars::ladder(result).map_err(in_file("ladder.svg"))?,
        account: bars::account(result).map_err(in_file("account.svg"))?,
    })
}

fn in_file(file: &'static str) -> impl Fn(style::DrawError) -> ReportError {
    move |error| ReportError::Draw { file, why: error.to_string() }
}
