//! The report on each figure, as rows and as an object.

use serde_json::{Value, json};
use wave_compare::{Better, CONFIDENCE, Estimate, median};

use super::builds::Side;
use super::figures::{Bench, COUNTED, Figure};
use super::pairs::{Pair, Pairs};
use super::verdict::{LOWER_END_MIN, Verdict, WIDTH_MAX};

/// Added to the number of a signal that ended the comparison.
const EXIT_SIGNAL: u8 = 128;

/// A figure, and its result.
#[derive(Debug)]
pub struct Row {
    bench: String,
    figure: Figure,
    better: Better,
    pairs: usize,
    base: Option<f64>,
    tip: Option<f64>,
    estimate: Option<Estimate>,
    /// `None` if there is nothing to judge; `note` then says why.
    verdict: Option<Verdict>,
    note: String,
}

/// The rows of a bench. `no_counters` is the reason why nothing is counted, if nothing is.
pub fn rows(bench: &Bench, pairs: &Pairs, no_counters: Option<&str>) -> Vec<Row> {
    bench.compared().map(|figure| row(&bench.name, figure, pairs, no_counters)).collect()
}

fn row(
    bench: &str,
    (figure, better): (&Figure, Better),
    pairs: &Pairs,
    no_counters: Option<&str>,
) -> Row {
    let number = |of: fn(&Pair) -> &Value| -> Vec<f64> {
        pairs.whole.iter().filter_map(|pair| figure.of(of(pair))).collect()
    };
    let (base, tip) = (number(|pair| &pair.base), number(|pair| &pair.tip));
    let both = |pair: &Pair| Some(better.ratio(figure.of(&pair.base)?, figure.of(&pair.tip)?));
    let ratios: Vec<f64> = pairs.whole.iter().filter_map(both).collect();
    let estimate = Estimate::of(&ratios);
    let (verdict, note) = match (&estimate, &pairs.unknown) {
        (_, Some((side, why))) => {
            // A bench may be new in the tip, but the tip must not lack one of the base's.
            let verdict = (*side == Side::Tip).then_some(Verdict::NotMeasured);
            (verdict, format!("the {} does not know this bench: {why}", side.name()))
        }
        (Some(estimate), _) => (Some(Verdict::by(estimate)), note(estimate)),
        (None, _) if pairs.whole.is_empty() => (Some(Verdict::NotMeasured), failures(pairs)),
        (None, _) if figure.key == COUNTED && base.is_empty() && tip.is_empty() => {
            (None, no_counters.unwrap_or("the thread was not found").to_owned())
        }
        (None, _) if base.is_empty() && !tip.is_empty() => {
            (None, "the base has no such figure".to_owned())
        }
        (None, _) if tip.is_empty() => {
            (Some(Verdict::NotMeasured), "the tip has no such figure".to_owned())
        }
        (None, _) => {
            let why = format!("pairs: {}; an interval needs six", ratios.len());
            (Some(Verdict::NotMeasured), why)
        }
    };
    let (verdict, note) = match (verdict, pairs.doubt()) {
        (None | Some(Verdict::Held), Some(doubt)) => (Some(Verdict::NotMeasured), doubt),
        _ => (verdict, note),
    };
    Row {
        bench: bench.to_owned(),
        figure: figure.clone(),
        better,
        pairs: ratios.len(),
        base: median(&base),
        tip: median(&tip),
        estimate,
        verdict,
        note,
    }
}

fn note(estimate: &Estimate) -> String {
    let (width, most) = (estimate.width() * 100.0, WIDTH_MAX * 100.0);
    match Verdict::by(estimate) {
        Verdict::Held | Verdict::NotMeasured
            if estimate.high.is_infinite() || width.is_infinite() =>
        {
            "a figure of 0 makes the ratio infinite, or 0".to_owned()
        }
        Verdict::NotMeasured => {
            format!("the interval is {width:.1}% wide, and the limit is {most:.0}%")
        }
        Verdict::Held if width > most => {
            format!("the interval is {width:.1}% wide, and not below 1")
        }
        _ => String::new(),
    }
}

fn failures(pairs: &Pairs) -> String {
    match pairs.failed.first() {
        Some((side, why)) => format!("the {} failed: {why}", side.name()),
        None => "no pair was run".to_owned(),
    }
}

impl Row {
    pub fn line(&self) -> String {
        let peer = if self.figure.is_peer { " (peer)" } else { "" };
        let name = format!("{} {}{peer}", self.bench, self.figure.key);
        let [base, tip] = [self.base, self.tip].map(|number| number.map_or("-".into(), short));
        let (ratio, low, high) = self.estimate.map_or_else(
            || ["-"; 3].map(str::to_owned).into(),
            |found| [found.median, found.low, found.high].map(|part| format!("{part:.3}")).into(),
        );
        let verdict = match self.verdict {
            Some(verdict) => verdict.to_string(),
            None => "not compared".to_owned(),
        };
        let note = if self.note.is_empty() { String::new() } else { format!(": {}", self.note) };
        format!(
            "{name:<46} {:<6} {base:>9} {tip:>9} {ratio:>7} {low:>7} {high:>7}  {verdict}{note}",
            self.better.name()
        )
    }

    fn json(&self) -> Value {
        json!({
            "bench": self.bench,
            "figure": self.figure.key,
            "better": self.better.name(),
            "peer": self.figure.is_peer,
            "pairs": self.pairs,
            "base_median": self.base,
            "tip_median": self.tip,
            "ratio": self.estimate.map(|estimate| estimate.median),
            "low": self.estimate.map(|estimate| estimate.low),
            "high": self.estimate.map(|estimate| estimate.high),
            "width": self.estimate.map(|estimate| estimate.width()),
            "verdict": self.verdict.map(|verdict| verdict.to_string()),
            "note": (!self.note.is_empty()).then_some(&self.note),
        })
    }

    /// The figure's verdict, unless it is a peer's: those are not judged.
    fn judged(&self) -> Option<Verdict> {
        self.verdict.filter(|_| !self.figure.is_peer)
    }
}

pub fn heading() -> String {
    format!(
        "{:<46} {:<6} {:>9} {:>9} {:>7} {:>15}  verdict",
        "figure", "better", "base", "tip", "ratio", "95% interval"
    )
}

/// The result of all rows together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    Held,
    NotHeld,
    /// A figure was not measured; all others held.
    NotMeasured,
    /// No figure could be judged.
    Nothing,
}

impl Whole {
    pub fn of(rows: &[Row]) -> Self {
        let verdicts: Vec<Verdict> = rows.iter().filter_map(Row::judged).collect();
        let bad = [Verdict::Slower, Verdict::NotHeld];
        if verdicts.is_empty() {
            Self::Nothing
        } else if verdicts.iter().any(|verdict| bad.contains(verdict)) {
            Self::NotHeld
        } else if verdicts.contains(&Verdict::NotMeasured) {
            Self::NotMeasured
        } else {
            Self::Held
        }
    }

    /// The exit code, as `wave run` has it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Held => 0,
            Self::NotHeld => 1,
            Self::Nothing => 3,
            Self::NotMeasured => 4,
        }
    }
}

/// The number of figures with each verdict, as a line.
pub fn counts(rows: &[Row]) -> String {
    let all = [Verdict::Held, Verdict::Slower, Verdict::NotHeld, Verdict::NotMeasured];
    let parts = all.map(|verdict| {
        let count = rows.iter().filter(|row| row.judged() == Some(verdict)).count();
        format!("{count} {verdict}")
    });
    parts.join(", ")
}

/// The exit code of a comparison with these rows, and with the signal that ended it, if any.
pub fn exit_code(rows: &[Row], signal: Option<u8>) -> u8 {
    signal.map_or(Whole::of(rows).exit_code(), |signal| EXIT_SIGNAL + signal)
}

/// The rule, the compared sides and the rows.
pub fn summary(compared: &Value, rows: &[Row], signal: Option<u8>) -> Value {
    let mut summary = compared.clone();
    summary["rule"] = json!({
        "ratio": "median over pairs, above 1: the tip is better",
        "confidence": CONFIDENCE,
        "interval": "order statistics",
        "lower_end_min": LOWER_END_MIN,
        "width_max": WIDTH_MAX,
    });
    summary["figures"] = rows.iter().map(Row::json).collect();
    summary["interrupted"] = signal.is_some().into();
    summary["exit_code"] = exit_code(rows, signal).into();
    summary
}

/// Four significant digits, or all digits before the point.
fn short(number: f64) -> String {
    match number.abs() {
        1e6.. => format!("{:.2}M", number / 1e6),
        1e3.. => format!("{number:.0}"),
        100.0.. => format!("{number:.1}"),
        10.0.. => format!("{number:.2}"),
        1.0.. => format!("{number:.3}"),
        _ => format!("{number:.4}"),
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    /// Pairs of the bench `switch`: yields of the base and of the tip.
    fn yields(of: impl Fn(usize) -> (f64, f64), count: usize) -> Pairs {
        let printed =
            |ns: f64| json!({ "yield_ns": { "p50": ns }, "futex_handoff_ns": { "p50": 1.0 } });
        let pair = |at| Pair { base: printed(of(at).0), tip: printed(of(at).1) };
        Pairs { whole: (0..count).map(pair).collect(), ..Pairs::default() }
    }

    fn switch(pairs: &Pairs) -> Vec<Row> {
        rows(&Bench::switch(), pairs, Some("no counters here"))
    }

    #[test]
    fn a_slower_tip_fails_and_peers_rows_are_kept() {
        let rows = switch(&yields(|at| (100.0, 110.0 + at as f64 / 10.0), 20));
        assert_eq!(rows[0].verdict, Some(Verdict::Slower));
        assert!(rows[0].line().contains(" 0.901 "), "{}", rows[0].line());
        assert_eq!((rows[1].verdict, rows[1].note.as_str()), (None, "no counters here"));
        assert_eq!((rows[2].verdict, rows[2].judged()), (Some(Verdict::Held), None));
        assert_eq!(Whole::of(&rows), Whole::NotHeld);
        assert_eq!(counts(&rows), "0 held, 1 slower, 0 not held, 0 not measured");
    }

    #[test]
    fn a_figure_that_was_not_measured_has_its_reason() {
        let wide = switch(&yields(|at| (100.0, 95.0 + at as f64), 20));
        assert!(wide[0].note.starts_with("the interval is 8."), "{}", wide[0].note);
        assert_eq!(Whole::of(&wide), Whole::NotMeasured);
        let few = switch(&yields(|_| (100.0, 100.0), 2));
        assert!(few[0].line().ends_with("not measured: pairs: 2; an interval needs six"));
        let failed = Pairs { failed: vec![(Side::Tip, "two CPUs".into())], ..Pairs::default() };
        assert!(switch(&failed)[0].line().ends_with("not measured: the tip failed: two CPUs"));
    }

    #[test]
    fn a_bench_that_the_base_lacks_is_not_judged() {
        let unknown = Some((Side::Base, "unrecognized subcommand".into()));
        let rows = switch(&Pairs { unknown, ..Pairs::default() });
        assert!(rows[0].line().contains("not compared: the base does not know this bench"));
        assert_eq!(Whole::of(&rows), Whole::Nothing);
    }

    #[test]
    fn a_figure_may_be_new_but_not_disappear() {
        let mut pairs = yields(|_| (100.0, 100.0), 20);
        pairs.whole.iter_mut().for_each(|pair| pair.base = json!({}));
        assert_eq!(switch(&pairs)[0].verdict, None);
        let mut pairs = yields(|_| (100.0, 100.0), 20);
        pairs.whole.iter_mut().for_each(|pair| pair.tip = json!({}));
        assert_eq!(switch(&pairs)[0].verdict, Some(Verdict::NotMeasured));
    }

    #[test]
    fn the_summary_has_the_rule_and_every_row() {
        let rows = switch(&yields(|_| (100.0, 100.0), 20));
        let summary = summary(&json!({ "pairs": 20 }), &rows, None);
        assert_eq!((&summary["pairs"], &summary["exit_code"]), (&json!(20), &json!(0)));
        assert_eq!(summary["rule"]["width_max"], json!(0.03));
        assert_eq!(summary["figures"][0]["verdict"], json!("held"));
        assert_eq!(summary["figures"].as_array().unwrap().len(), 3);
        assert_eq!(summary["interrupted"], json!(false));
    }

    #[test]
    fn the_summary_of_an_interrupted_comparison_has_its_exit_code() {
        let rows = switch(&yields(|_| (100.0, 100.0), 20));
        let summary = summary(&json!({}), &rows, Some(15));
        assert_eq!((&summary["interrupted"], &summary["exit_code"]), (&json!(true), &json!(143)));
    }

    #[test]
    fn a_clear_improvement_holds_and_shows_its_width() {
        let rows = switch(&yields(|at| (200.0, 90.0 + at as f64), 20));
        let line = rows[0].line();
        assert!(line.ends_with("held: the interval is 9.1% wide, and not below 1"), "{line}");
        assert_eq!(Whole::of(&rows), Whole::Held);
    }

    #[test]
    fn a_figure_that_becomes_zero_is_compared() {
        let zero = switch(&yields(|_| (100.0, 0.0), 20));
        assert_eq!((zero[0].verdict, zero[0].tip), (Some(Verdict::Held), Some(0.0)));
        assert!(zero[0].note.contains("infinite"), "{}", zero[0].note);
        assert_eq!(zero[0].json()["tip_median"], json!(0.0));
        assert_eq!(switch(&yields(|_| (0.0, 100.0), 20))[0].verdict, Some(Verdict::Slower));
        assert_eq!(switch(&yields(|_| (0.0, 0.0), 20))[0].verdict, Some(Verdict::Held));
    }

    #[test]
    fn a_tip_that_failed_in_a_run_does_not_hold() {
        let of = |tip: f64, side, failures| {
            let failed = vec![(side, "exit status: 101".to_owned()); failures];
            switch(&Pairs { failed, ..yields(|_| (100.0, tip), 16) })
        };
        let rows = of(100.0, Side::Tip, 4);
        let line = rows[0].line();
        let note = "not measured: runs of the tip that failed: 4: exit status: 101";
        assert!(line.ends_with(note), "{line}");
        assert_eq!(rows[1].verdict, Some(Verdict::NotMeasured));
        assert_eq!(Whole::of(&rows), Whole::NotMeasured);
        assert_eq!(Whole::of(&of(110.0, Side::Tip, 4)), Whole::NotHeld);
        // The tip may fix a crash of the base, unless the base crashes too often for a comparison.
        assert_eq!(Whole::of(&of(100.0, Side::Base, 4)), Whole::Held);
        assert_eq!(Whole::of(&of(100.0, Side::Base, 5)), Whole::NotMeasured);
    }

    #[test]
    fn a_bench_that_the_tip_lacks_is_not_measured() {
        let unknown = Some((Side::Tip, "unrecognized subcommand".into()));
        let rows = switch(&Pairs { unknown, ..Pairs::default() });
        assert!(rows[0].line().contains("not measured: the tip does not know this bench"));
        assert_eq!(Whole::of(&rows), Whole::NotMeasured);
    }

    #[test]
    fn a_count_may_be_missing_on_both_sides_but_not_on_the_tip_alone() {
        let mut pairs = yields(|_| (100.0, 100.0), 20);
        assert_eq!(switch(&pairs)[1].verdict, None);
        pairs.whole.iter_mut().for_each(|pair| pair.base[COUNTED] = json!(900.0));
        let rows = switch(&pairs);
        assert_eq!((&*rows[1].figure.key, rows[1].verdict), (COUNTED, Some(Verdict::NotMeasured)));
        assert_eq!(Whole::of(&rows), Whole::NotMeasured);
    }
}
