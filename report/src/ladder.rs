//! Throughputs of a ladder as a table, for the terminal and for the page.

use super::model::{Figure, Ladder, Rung};
use super::number::thousands;
use wave_terminal::Table;

/// A row per variant.
pub fn table(ladder: &Ladder) -> Table {
    let ratios = match ladder.rounds {
        1 => ["of the\nfirst row", "of the\nrow above"],
        _ => ["of the first row\n(95% interval)", "of the row above\n(95% interval)"],
    };
    let head = vec!["variant", "served\nk/s", ratios[0], ratios[1], "confirmed"];
    let row = |rung: &Rung| {
        vec![
            rung.name.clone(),
            thousands(rung.per_second.value),
            rung.of_first.map_or_else(String::new, ratio),
            rung.of_previous.map_or_else(String::new, ratio),
            (if rung.is_confirmed { "yes" } else { "no" }).to_owned(),
        ]
    };
    Table::new(1, head).with(ladder.rungs.iter().map(row))
}

/// How the figures are to be read, in a few lines.
pub fn notes(ladder: &Ladder) -> Vec<String> {
    let rounds = match ladder.rounds {
        1 => "Ratios are of one run each.".to_owned(),
        rounds => {
            format!(
                "Medians of {rounds} rounds, each with every variant; ratios are within a round."
            )
        }
    };
    vec![
        format!(
            "served: throughput under an overload of {} k/s. {rounds}",
            thousands(ladder.offered_per_second)
        ),
        format!(
            "confirmed: at {:.0}% of this throughput, a further run answered at least 99% of its requests in time.",
            ladder.confirmed_at * 1e2
        ),
    ]
}

fn ratio(figure: Figure) -> String {
    let digits = if figure.interval.is_some() { two_digits } else { three_digits };
    figure.words(digits)
}

fn two_digits(value: f64) -> String {
    format!("{value:.2}")
}

fn three_digits(value: f64) -> String {
    format!("{value:.3}")
}
