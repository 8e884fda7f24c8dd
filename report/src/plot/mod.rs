//! The plots, as self-contained SVG. Each kind has its own file; [`style`] has the common look.

pub mod bars;
pub mod chart;
pub mod curves;
mod percentiles;
mod rounds;
pub mod style;
mod throughput;

use super::model::RunResult;
use super::save::ReportError;

/// The plots of a run; None where there is no data.
#[derive(Debug, Default)]
pub struct Plots {
    /// p99 latency against throughput, or against the load of paired rounds.
    pub throughput: Option<String>,
    /// Latency at each percentile.
    pub percentiles: Option<Percentiles>,
    /// Saturation of each variant.
    pub ladder: Option<String>,
    /// Breakdown of a request's time.
    pub account: Option<String>,
}

/// Latency at each percentile, of each variant at one load.
#[derive(Debug)]
pub struct Percentiles {
    pub svg: String,
    /// The load, as text.
    pub load: String,
}

impl Plots {
    /// Each plot with its file name.
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
        throughput: match result.paired {
            Some(_) => rounds::draw(result),
            None => throughput::draw(result),
        }
        .map_err(in_file("throughput-latency.svg"))?,
        percentiles: percentiles::draw(result).map_err(in_file("cdf.svg"))?,
        ladder: bars::ladder(result).map_err(in_file("ladder.svg"))?,
        account: bars::account(result).map_err(in_file("account.svg"))?,
    })
}

fn in_file(file: &'static str) -> impl Fn(style::DrawError) -> ReportError {
    move |error| ReportError::Draw { file, why: error.to_string() }
}
