//! Output of a reproduction: a self-contained page, and its numbers as CSV and JSON.

use std::path::{Path, PathBuf};

use maud::{Markup, html};

use super::figures::Figure;
use super::group::GROUPS;
use super::rows::{Kind, Row};
use super::{Reproduction, plots, words};
use wave_report::{Directory, document, figure};
use wave_terminal::Failure;

/// Groups whose rows are drawn as bars: times and rates of one kind.
const DRAWN: [&str; 2] = ["table3", "ladder"];

const COLUMNS: [&str; 20] = [
    "id",
    "group",
    "text",
    "unit",
    "paper",
    "paper_low",
    "paper_high",
    "ours",
    "by_seed",
    "rel_diff",
    "diff",
    "kind",
    "label",
    "interval_low",
    "interval_high",
    "width",
    "inside",
    "place",
    "why",
    "version",
];

/// Writes report.html, rows.csv, reproduce.json and figures/, each atomically; returns the page's path.
///
/// # Errors
/// Says what could not be written or drawn.
pub fn save(reproduction: &Reproduction, out: &Path) -> Result<PathBuf, Failure> {
    let plots = draw(reproduction)?;
    let json = serde_json::to_vec_pretty(reproduction).map_err(Failure::cannot)?;
    let csv = csv(&reproduction.rows, &reproduction.version);
    let files: Vec<(String, String)> =
        plots.iter().map(|plot| (format!("{}.svg", plot.id), plot.svg.clone())).collect();
    let write = || {
        let directory = Directory::create(out.to_path_buf())?;
        directory.write("rows.csv", &csv)?;
        directory.write("reproduce.json", &json)?;
        directory.replace("figures", &files)?;
        directory.write("report.html", page(reproduction, &plots).as_bytes())
    };
    write().map_err(Failure::cannot)?;
    Ok(out.join("report.html"))
}

struct Plot<'a> {
    id: &'a str,
    group: &'a str,
    text: &'a str,
    svg: String,
}

fn draw(reproduction: &Reproduction) -> Result<Vec<Plot<'_>>, Failure> {
    let mut plots = Vec::new();
    let failed = |id: &str| {
        let id = id.to_owned();
        move |error: wave_report::plot::style::DrawError| {
            Failure::Cannot(format!("{id}.svg: cannot be drawn: {error}"))
        }
    };
    for group in DRAWN {
        let rows = rows(reproduction, group);
        let title = format!("{}: {}", words::title(group), what(group));
        if let Some(svg) = plots::bars(&title, &rows).map_err(failed(group))? {
            plots.push(Plot { id: group, group, text: "", svg });
        }
    }
    for figure in &reproduction.figures {
        let Figure { id, group, text, .. } = figure;
        if let Some(svg) = plots::figure(figure).map_err(failed(id))? {
            plots.push(Plot { id, group, text, svg });
        }
    }
    Ok(plots)
}

/// The one-line description of a group.
fn what(group: &str) -> &str {
    GROUPS.iter().find(|known| known.id == group).map_or("", |group| group.about)
}

fn rows<'a>(reproduction: &'a Reproduction, group: &str) -> Vec<&'a Row> {
    reproduction.rows.iter().filter(|row| row.group == group).collect()
}

/// A header, and a row per printed figure with the `version` that has computed it; a field without a value is empty.
pub(super) fn csv(rows: &[Row], version: &str) -> Vec<u8> {
    let optional = |number: Option<f64>| number.map_or_else(String::new, |n| n.to_string());
    let cells = |row: &Row| {
        let [low, high] = row.paper_range;
        [
            row.id.clone(),
            row.group.clone(),
            row.text.clone(),
            row.unit.clone(),
            row.paper.to_string(),
            low.to_string(),
            high.to_string(),
            optional(row.ours),
            row.by_seed.iter().map(f64::to_string).collect::<Vec<_>>().join(" "),
            optional(row.rel_diff),
            optional(row.diff),
            row.kind.name().to_owned(),
            row.label(),
            optional(row.interval.map(|[low, _]| low)),
            optional(row.interval.map(|[_, high]| high)),
            optional(row.width),
            row.inside.map_or_else(String::new, |inside| inside.to_string()),
            row.place.clone(),
            row.why.unwrap_or_default().to_owned(),
            version.to_owned(),
        ]
    };
    wave_report::csv(COLUMNS, rows.iter().map(cells))
}

fn page(reproduction: &Reproduction, plots: &[Plot<'_>]) -> String {
    let mut groups: Vec<&str> = Vec::new();
    let named = reproduction.rows.iter().map(|row| &row.group);
    for group in named.chain(reproduction.figures.iter().map(|figure| &figure.group)) {
        if !groups.contains(&group.as_str()) {
            groups.push(group);
        }
    }
    // In the order of `GROUPS`; unknown groups come last.
    groups.sort_by_key(|group| {
        GROUPS.iter().position(|known| known.id == *group).unwrap_or(GROUPS.len())
    });
    let body = html! {
        p.lead {
            "What the Wave paper prints about scheduling, beside what the same core, policies and "
            "queues do on a modelled machine in virtual time; about memory, beside what the same policies do over "
            "modelled address spaces; and the figures of Mind the Gap. Nothing is read off the papers' plots."
        }
        p {
            (seeds(reproduction)) " " (words::missed(&reproduction.rows)) " " (words::resumed(reproduction))
        }
        p {
            "An interval is the least and the most that a row comes to under parameter sets that meet every fitted row \
             within its rounding (wave fit --intervals; for Mind the Gap, the ends of its one fitted value), or under the stated uncertainty of the inputs of Figures 5 and 6b. It does not contain the seeds' spread."
        }
        (kinds(reproduction))
        @for group in &groups { (section(reproduction, group, plots)) }
    };
    document("The paper's results, simulated", &body)
}

fn seeds(reproduction: &Reproduction) -> String {
    match reproduction.seeds {
        1 => "Arrivals are random, under one seed: the spread over seeds is not known.".to_owned(),
        seeds => format!(
            "Where arrivals are random, a figure of ours is the median over {seeds} seeds; the spread is its least and its most."
        ),
    }
}

fn kinds(reproduction: &Reproduction) -> Markup {
    let rows = || reproduction.rows.iter();
    let kinds = Kind::ALL
        .into_iter()
        .map(|kind| (kind, meaning(kind), rows().filter(|row| row.kind == kind).count()));
    html! {
        dl {
            dt { "Version" } dd { (reproduction.version) }
            @for (kind, meaning, count) in kinds {
                dt { (kind.name()) ", " (count) } dd { (meaning) }
            }
        }
    }
}

fn meaning(kind: Kind) -> &'static str {
    match kind {
        Kind::Fitted => {
            "Parameters of the modelled machines were chosen so that it comes near the printed figure. That \
             it does says that the model has room for it, no more."
        }
        Kind::Predicted => {
            "It follows from parameters that were fitted to other figures, or come from elsewhere: it could \
             have come out otherwise."
        }
        Kind::Compatible => {
            "It follows as a predicted one does, and either its interval is wider than half of the effect and contains the printed \
             figure, or it has none, so it foretells little. A row of a model whose printed figure is outside is called missed, however it was made."
        }
        Kind::Measured => "It was measured on this machine, without a model.",
        Kind::Extrapolated => "It follows from measured figures by a rule that is not tested here.",
        Kind::ByConstruction => {
            "What was modelled contains it. That it was found says that the policy works there, nothing of live programs."
        }
        Kind::Assumed => {
            "It goes in as it is: a condition of the experiment, or a cost that the paper prints. That it \
             agrees says nothing, but that the simulator charges what it was told to."
        }
    }
}

fn section(reproduction: &Reproduction, group: &str, plots: &[Plot<'_>]) -> Markup {
    let all = rows(reproduction, group);
    let (inputs, rows): (Vec<&Row>, Vec<&Row>) =
        all.into_iter().partition(|row| row.kind == Kind::Assumed);
    let plots = plots.iter().filter(|plot| plot.group == group);
    html! {
        section id=(group) {
            h2 { (words::title(group)) }
            p { (sentence(what(group))) }
            @if !rows.is_empty() {
                p { strong { (words::summary(group, &rows)) "." } }
                (wave_report::table(&words::table(&rows).without(&WITHIN_A_GROUP)))
                (whys(&rows))
            }
            @if !inputs.is_empty() {
                p { "Inputs. They are used as they are, so their agreement says nothing." }
                (wave_report::table(&words::table(&inputs).without(&WITHIN_A_GROUP)))
                (whys(&inputs))
            }
            @for plot in plots {
                (figure(&plot.svg))
                p { (plot.text) }
            }
        }
    }
}

/// `text` with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// Columns that tables of several groups have.
const WITHIN_A_GROUP: [&str; 2] = ["group", "figure"];

/// Explanations of differences, once where several rows share one.
fn whys(rows: &[&Row]) -> Markup {
    let mut whys: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows {
        let Some(why) = row.why else { continue };
        match whys.iter_mut().find(|(known, _)| *known == why) {
            Some((_, ids)) => ids.push(&row.id),
            None => whys.push((why, vec![&row.id])),
        }
    }
    html! { @for (why, ids) in whys {
        p { @for (index, id) in ids.iter().enumerate() {
            @if index > 0 { ", " }
            code { (id) }
        } ": " (why) }
    } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::figures::Curve;
    use crate::reproduce::tests::{curves, row};

    fn sample() -> Reproduction {
        let attack = "<script>alert('x')</script>&\"";
        let mut rows = vec![
            row("table3", "ns", Some(1020.0)),
            row("ladder", "req/s", None),
            row("fig4a", "%", Some(4.6)),
        ];
        rows[0].text = attack.to_owned();
        rows[2].why = Some("for <b>reasons</b>");
        let mut ours = Curve::ours(attack, vec![[1.0, 2.0], [2.0, f64::NAN], [3.0, 4.0]]);
        ours.band = vec![[1.0, 3.0]; 3];
        let paper = Curve::paper("paper", vec![[2.0, 3.0]]);
        Reproduction {
            version: "0.0.0".to_owned(),
            seeds: 3,
            parts: 2,
            resumed: vec!["ladder-3".to_owned()],
            rows,
            figures: vec![curves("fig4a", vec![ours, paper]), curves("beyond", Vec::new())],
        }
    }

    /// Whether every opened element is closed, in order.
    fn balanced(page: &str) -> bool {
        let mut open = Vec::new();
        // Child selectors in the style sheet and escaped "<" in texts are not tags.
        for tag in page.split('<').skip(1) {
            let tag = tag.split('>').next().unwrap_or_default();
            let name = tag.split_whitespace().next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(closed) if open.pop() != Some(closed) => return false,
                Some(_) => {}
                None if tag.ends_with('/') || name.starts_with('!') || name == "meta" => {}
                None => open.push(name),
            }
        }
        open.is_empty()
    }

    #[test]
    fn page_is_well_formed_and_self_contained() {
        let reproduction = sample();
        let page = page(&reproduction, &draw(&reproduction).unwrap());
        assert!(balanced(&page));
        for row in &reproduction.rows {
            assert!(
                page.contains(&row.id) && page.contains(words::title(&row.group)),
                "{}",
                row.id
            );
        }
        assert!(page.contains("section id=\"beyond\""), "a group without rows");
        for outside in ["src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(!page.contains("<script") && !page.contains("<b>"), "an unescaped text");
        assert!(page.contains("for &lt;b&gt;reasons"));
    }

    #[test]
    fn csv_has_a_row_per_figure_and_parses() {
        let rows = sample().rows;
        let bytes = csv(&rows, "0.2.0");
        let mut reader = csv::Reader::from_reader(bytes.as_slice());
        assert_eq!(reader.headers().unwrap(), COLUMNS.as_slice());
        let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(records.len(), rows.len());
        assert_eq!(&records[0][2], rows[0].text);
        assert_eq!(records[0][7].parse(), Ok(1020.0));
        assert_eq!((&records[1][7], &records[1][9]), ("", ""), "nothing of ours");
        assert_eq!(&records[2][18], "for <b>reasons</b>");
    }

    #[test]
    fn saving_removes_plots_of_an_earlier_run() {
        let out = tempfile::tempdir().unwrap();
        let mut reproduction = sample();
        let report = save(&reproduction, out.path()).unwrap();
        assert_eq!(report, out.path().join("report.html"));
        let svg = out.path().join("figures/fig4a.svg");
        assert!(svg.is_file() && out.path().join("figures/table3.svg").is_file());
        reproduction.figures.clear();
        save(&reproduction, out.path()).unwrap();
        assert!(!svg.exists());
        let json = std::fs::read(out.path().join("reproduce.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["rows"][0]["id"], "table3-sample");
        assert_eq!(json["rows"][1]["ours"], serde_json::Value::Null);
        let mut files: Vec<_> =
            std::fs::read_dir(out.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["figures", "report.html", "reproduce.json", "rows.csv"]);
    }
}
