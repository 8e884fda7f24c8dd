//! Medians over several runs of a bake-off, or over parts of one.

use std::collections::BTreeMap;

use serde::Serialize;
use wave_terminal::Table;

use super::curve::Ratio;
use super::report::{ProgramResult, Results};

/// A ratio of savings over several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Median {
    /// Median of the runs that have a ratio; the mean of the middle two if their number is even.
    pub ratio: Option<f64>,
    pub least: Option<f64>,
    pub most: Option<f64>,
    /// Number of runs.
    pub runs: usize,
    /// Number of runs with a ratio.
    pub compared: usize,
    /// Whether the curves overlapped in all runs with a ratio.
    pub overlap: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Medians {
    /// SOL's net savings over the best rival's at equal refaults.
    pub sol_vs_best_rival: BTreeMap<String, Median>,
    /// The same for SOL as it ships, alone.
    pub shipped_vs_best_rival: BTreeMap<String, Median>,
    /// Names of the judges: the programs that decide the comparison.
    pub judges: Vec<String>,
}

impl Median {
    fn of(ratios: &[Option<&Ratio>]) -> Median {
        let there: Vec<&Ratio> = ratios.iter().flatten().copied().collect();
        let mut values: Vec<f64> = there.iter().filter_map(|ratio| ratio.ratio).collect();
        values.sort_by(f64::total_cmp);
        let compared = there.iter().filter(|ratio| ratio.ratio.is_some());
        let ratio = match values.len() {
            0 => None,
            count => Some((values[(count - 1) / 2] + values[count / 2]) / 2.0),
        };
        Median {
            ratio,
            least: values.first().copied(),
            most: values.last().copied(),
            runs: ratios.len(),
            compared: values.len(),
            overlap: !values.is_empty() && compared.clone().all(|ratio| ratio.overlap),
        }
    }

    fn show(&self) -> String {
        let Median { ratio: Some(ratio), least: Some(least), most: Some(most), .. } = self else {
            return format!("no comparison in {} runs", self.runs);
        };
        let overlap = if self.overlap { "" } else { ", no overlap" };
        format!(
            "{ratio:.2} ({least:.2} to {most:.2}), {} of {} runs{overlap}",
            self.compared, self.runs
        )
    }
}

impl Medians {
    /// The medians for each program in these results.
    pub fn of(results: &[Results]) -> Medians {
        let mut programs: BTreeMap<String, Vec<&ProgramResult>> = BTreeMap::new();
        for result in results.iter().flat_map(|results| &results.programs) {
            programs.entry(result.label()).or_default().push(result);
        }
        let medians = |of: fn(&ProgramResult) -> Option<&Ratio>| {
            let median = |(label, runs): (&String, &Vec<&ProgramResult>)| {
                let ratios: Vec<_> = runs.iter().map(|run| of(run)).collect();
                (label.clone(), Median::of(&ratios))
            };
            programs.iter().map(median).collect()
        };
        Medians {
            sol_vs_best_rival: medians(|run| run.sol_vs_best_rival.as_ref()),
            shipped_vs_best_rival: medians(|run| run.shipped_vs_best_rival.as_ref()),
            judges: programs
                .iter()
                .filter(|(_, runs)| runs.iter().any(|run| run.judge))
                .map(|(label, _)| label.clone())
                .collect(),
        }
    }

    pub fn text(&self) -> String {
        let head = ["program", "judges", "sol / best rival", "sol as shipped / best rival"];
        let mut table = Table::new(2, head);
        for (label, median) in &self.sol_vs_best_rival {
            let judges = if self.judges.contains(label) { "yes" } else { "" };
            let shipped = self.shipped_vs_best_rival.get(label).map(Median::show);
            let row =
                [label.clone(), judges.to_owned(), median.show(), shipped.unwrap_or_default()];
            table.push(row);
        }
        table.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(ratio: Option<f64>, overlap: bool) -> Ratio {
        Ratio {
            ratio,
            least: ratio,
            most: ratio,
            overlap,
            refaults_per_second: [1.0, 2.0],
            best_at: BTreeMap::new(),
        }
    }

    #[test]
    fn a_median_states_its_range_and_the_runs_without_a_ratio() {
        let ratios = [ratio(Some(1.2), true), ratio(Some(0.8), true), ratio(Some(0.9), true)];
        let median = Median::of(&ratios.each_ref().map(Some));
        assert_eq!((median.ratio, median.least, median.most), (Some(0.9), Some(0.8), Some(1.2)));
        assert!(median.overlap && median.show().starts_with("0.90 (0.80 to 1.20), 3 of 3 runs"));
        let apart = [ratio(Some(1.0), false), ratio(None, true), ratio(Some(2.0), true)];
        let median = Median::of(&[Some(&apart[0]), Some(&apart[1]), Some(&apart[2]), None]);
        assert_eq!((median.ratio, median.runs, median.compared), (Some(1.5), 4, 2));
        assert!(median.show().ends_with("2 of 4 runs, no overlap"));
        assert_eq!(Median::of(&[None]).show(), "no comparison in 1 runs");
    }
}
