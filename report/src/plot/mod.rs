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
    /// p99 latency of the other classes of requests against throughput.
    pub classes: Option<String>,
    /// Latency at each percentile.
    pub percentiles: Option<Percentiles>,
    /// Latency at each percentile of the other classes, at the same load.
    pub percentiles_of_classes: Option<String>,
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
    pub fn files(&self) -> [(&'static str, Option<&str>); 6] {
        [
            ("throughput-latency.svg", self.throughput.as_deref()),
            ("throughput-latency-classes.svg", self.classes.as_deref()),
            ("cdf-classes.svg", self.percentiles_of_classes.as_deref()),
            ("cdf.svg", self.percentiles.as_ref().map(|plot| plot.svg.as_str())),
            ("ladder.svg", self.ladder.as_deref()),
            ("account.svg", self.account.as_deref()),
        ]
    }
}

/// Draws every plot that `result` has data for.
pub fn all(result: &RunResult) -> Result<Plots, ReportError> {
    Ok(Plots {
        throughput: match (&result.paired, &result.ladder) {
            (Some(_), _) => rounds::draw(result),
            // A ladder's two loads per variant make no curve.
            (None, Some(_)) => Ok(None),
            (None, None) => throughput::draw(result),
        }
        .map_err(in_file("throughput-latency.svg"))?,
        classes: match &result.ladder {
            Some(_) => Ok(None),
            None => throughput::others(result),
        }
        .map_err(in_file("throughput-latency-classes.svg"))?,
        percentiles_of_classes: percentiles::others(result).map_err(in_file("cdf-classes.svg"))?,
        percentiles: percentiles::draw(result).map_err(in_file("cdf.svg"))?,
        ladder: bars::ladder(result).map_err(in_file("ladder.svg"))?,
        account: bars::account(result).map_err(in_file("account.svg"))?,
    })
}

fn in_file(file: &'static str) -> impl Fn(style::DrawError) -> ReportError {
    move |error| ReportError::Draw { file, why: error.to_string() }
}
