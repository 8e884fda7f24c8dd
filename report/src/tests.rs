use std::fs;
use std::path::PathBuf;

use super::*;

/// An empty directory for this test.
fn directory(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("wave-report-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

#[test]
fn csv_has_a_row_per_point_and_reads_back() {
    let mut result = sample::load();
    result.variants[0].name = "with, a comma and \"quotes\"".into();
    let bytes = points::csv(&result);
    let mut reader = ::csv::Reader::from_reader(bytes.as_slice());
    let header = reader.headers().unwrap().clone();
    let rows: Vec<::csv::StringRecord> = reader.records().collect::<Result<_, _>>().unwrap();
    let points: Vec<_> =
        result.variants.iter().flat_map(|v| v.points.iter().map(move |p| (v, p))).collect();
    assert_eq!(rows.len(), points.len());
    let column = |name: &str| {
        header.iter().position(|other| other == name).unwrap_or_else(|| panic!("no {name}"))
    };
    for (row, (variant, point)) in rows.iter().zip(points) {
        assert_eq!(&row[column("variant")], variant.name);
        assert_eq!(row[column("achieved_per_second")].parse(), Ok(point.achieved_per_second));
        assert_eq!(row[column("GET_p99_ns")].parse(), Ok(point.classes[0].latency.p99_ns));
        assert_eq!(row[column("valid")].parse(), Ok(point.generator.valid));
        assert_eq!(row[column("agent_percent")].parse(), Ok(point.cpu.agent_percent));
        assert_eq!(row[column("outcome_stale")].parse(), Ok(3));
    }
}

#[test]
fn a_class_that_a_point_lacks_leaves_its_columns_empty() {
    let mut result = sample::load();
    let mut scan = result.variants[0].points[0].classes[0].clone();
    scan.name = "RANGE".into();
    result.variants[0].points[0].classes.push(scan);
    let bytes = points::csv(&result);
    let mut reader = ::csv::Reader::from_reader(bytes.as_slice());
    let column = reader.headers().unwrap().iter().position(|name| name == "RANGE_p50_ns").unwrap();
    let filled: Vec<bool> = reader.records().map(|row| !row.unwrap()[column].is_empty()).collect();
    assert_eq!(filled.iter().position(|filled| *filled), Some(0));
    assert_eq!(filled.iter().filter(|filled| **filled).count(), 1);
}

#[test]
fn each_json_line_is_a_point_without_its_histogram() {
    let result = sample::load();
    let bytes = points::json_lines(&result).unwrap();
    let lines: Vec<&str> = std::str::from_utf8(&bytes).unwrap().lines().collect();
    assert_eq!(lines.len(), 24);
    let line: serde_json::Value = serde_json::from_str(lines[6]).unwrap();
    assert_eq!(line["variant"], "on-host agent");
    assert_eq!(line["offered_per_second"], 10_000.0);
    assert!(line["classes"][0]["histogram"].is_null());
}

#[test]
fn the_json_object_holds_the_whole_run() {
    let result = sample::load();
    let json = to_json(&result);
    assert_eq!(json["scenario"], "rocksdb-fifo");
    assert_eq!(json["variants"][3]["points"][0]["classes"][0]["name"], "GET");
    assert_eq!(json["variants"][0]["saturation_by_limit"][1], serde_json::json!([300, 62_000.0]));
    assert_eq!(serde_json::from_value::<RunResult>(json).unwrap(), result);
}

#[test]
fn text_of_a_run_is_escaped_in_the_page() {
    let attack = "<script>alert('x')</script>&\"";
    let mut result = sample::ladder();
    for text in [
        &mut result.description,
        &mut result.seating,
        &mut result.started,
        &mut result.machine.model,
    ] {
        *text = attack.into();
    }
    result.facts = vec![(attack.into(), attack.into())];
    result.extra = serde_json::json!({ attack: [attack] });
    for variant in &mut result.variants {
        variant.name = format!("{attack}{}", variant.name);
        variant.account[0].0 = attack.into();
        variant.points[0].generator.valid = false;
        variant.points[0].generator.why_invalid = Some(attack.into());
        variant.points[0].classes[0].name = attack.into();
    }
    let page = html::page(&result, &plot::all(&result).unwrap());
    assert!(!page.contains("<script"), "an unescaped text");
    // Name, description, facts, account, class and reason, in tables and in plots.
    assert!(page.matches("&lt;script&gt;").count() >= 20);
}

#[test]
fn page_is_self_contained() {
    let result = sample::load();
    let page = html::page(&result, &plot::all(&result).unwrap());
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("<svg").count(), 3);
    for shown in [
        "cpu 1: worker",
        "at 1000 µs",
        "printed (Wave, Table 2)",
        "wait for the decision",
        "lag p99 of 212 us",
    ] {
        assert!(page.contains(shown), "{shown} is missing");
    }
}

/// The sample, with a second class of requests that takes 50 times as long.
fn two_classes() -> RunResult {
    let mut result = sample::load();
    for point in result.variants.iter_mut().flat_map(|variant| &mut variant.points) {
        let mut scan = point.classes[0].clone();
        scan.name = "SCAN".into();
        scan.latency.p99_ns *= 50;
        point.classes.push(scan);
    }
    result
}

#[test]
fn every_class_is_plotted() {
    let result = two_classes();
    let plots = plot::all(&result).unwrap();
    for svg in [&plots.classes, &plots.percentiles_of_classes] {
        let svg = svg.as_ref().unwrap();
        assert!(svg.contains("SCAN") && !svg.contains("GET"), "{svg}");
    }
    for svg in [&plots.throughput, &plots.percentiles.as_ref().map(|plot| plot.svg.clone())] {
        assert!(svg.as_ref().unwrap().contains("GET"));
    }
    let page = html::page(&result, &plots);
    assert_eq!(page.matches("<svg").count(), 5);
    let plots = plot::all(&sample::load()).unwrap();
    assert!(plots.classes.is_none() && plots.percentiles_of_classes.is_none());
}

#[test]
fn saturation_is_defined_by_the_class_that_it_is_of() {
    let mut result = sample::load();
    for point in result.variants.iter_mut().flat_map(|variant| &mut variant.points) {
        point.classes[0].name = "PUT".into();
    }
    assert!(terminal::definition(&result).contains("a PUT p99 of at most 300 us"));
}

#[test]
fn notes_take_five_lines_and_the_conclusion_ends_the_text() {
    let mut result = sample::load();
    result.extra = serde_json::Value::Null;
    for variant in &mut result.variants {
        variant.points[5].generator.valid = false;
    }
    let facts: Vec<String> = (0..9).map(|fact| format!("fact {fact}")).collect();
    let text = terminal::whole(&result, facts);
    let mut sections = text.split("\n\n").skip(1); // the banner
    for table in ["variant", "variant"] {
        let section = sections.next().unwrap();
        assert!(section.contains(table), "{section}");
        let after = section.lines().rev().take_while(|line| !line.starts_with(' '));
        assert!((1..=5).contains(&after.count()), "{section}");
    }
    assert!(text.contains("more notes."), "{text}");
    let conclusion = sections.next().unwrap().replace('\n', " ");
    assert!(conclusion.starts_with("Within a GET p99 of 300 us"), "{text}");
    assert_eq!(
        (to_json(&result)["conclusion"].as_str(), sections.next()),
        (Some(&*conclusion), None)
    );
    let page = html::page(&result, &plot::all(&result).unwrap());
    assert!(page.contains("<strong>Within a GET p99 of 300 us"), "{page}");
}

#[test]
fn account_names_its_load() {
    let result = sample::load();
    let plots = plot::all(&result).unwrap();
    // A table's head, and a plot's bar.
    let page = html::page(&result, &plots);
    assert!(page.contains("<th class=\"n\">Linux threads, at 58.9 k/s</th>"), "{page}");
    assert!(plots.account.unwrap().contains("Linux threads, at 58.9 k/s"));
}

#[test]
fn style_sheet_has_the_plots_colours() {
    let style = include_str!("style.css");
    let svg = plot::all(&sample::load()).unwrap().throughput.unwrap();
    for colour in [
        plot::style::PAPER,
        plot::style::INK,
        plot::style::MUTED,
        plot::style::GRID,
        plot::style::colour(0),
    ] {
        let colour = format!("=\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2);
        assert!(svg.contains(&colour) && style.contains(&colour), "{colour}");
    }
}

#[test]
fn percentiles_are_compared_at_the_highest_load_that_all_served() {
    let plots = plot::all(&sample::load()).unwrap();
    let percentiles = plots.percentiles.unwrap();
    // Linux threads saturate at 62 k/s.
    assert_eq!(percentiles.load, "55.0 thousand requests per second");
    assert!(percentiles.svg.contains("latency at each percentile, 55.0 k/s offered"));
    // The rungs of a ladder have no load in common.
    assert!(plot::all(&sample::ladder()).unwrap().percentiles.is_none());
}

#[test]
fn a_variant_without_a_valid_point_does_not_hide_the_others() {
    let mut result = sample::load();
    for point in &mut result.variants[1].points {
        point.generator.valid = false;
    }
    let percentiles = plot::all(&result).unwrap().percentiles.unwrap();
    assert_eq!(percentiles.load, "55.0 thousand requests per second");
    assert!(percentiles.svg.contains("on-host agent: no valid point"));
}

#[test]
fn a_run_without_points_has_a_page_and_no_plots() {
    let mut result = sample::load();
    for variant in &mut result.variants {
        variant.points.clear();
        variant.account.clear();
    }
    let plots = plot::all(&result).unwrap();
    assert!(plots.files().iter().all(|(_, svg)| svg.is_none()));
    assert!(html::page(&result, &plots).contains("Saturation: the highest offered load"));
}

#[test]
fn non_finite_numbers_do_not_break_the_report() {
    let mut result = sample::ladder();
    result.variants[0].points[0].achieved_per_second = f64::NAN;
    result.variants[1].points[0].offered_per_second = f64::INFINITY;
    let ladder = result.ladder.as_mut().unwrap();
    ladder.rungs[1].per_second =
        model::Figure { value: f64::NAN, interval: Some((1.0, f64::INFINITY)) };
    result.variants[2].account[0].1 = f64::INFINITY;
    let out = directory("not-finite");
    write(&result, &out).unwrap();
    assert!(to_json(&result)["variants"][0]["points"][0]["achieved_per_second"].is_null());
    assert!(!fs::read_to_string(out.join("ladder/ladder.svg")).unwrap().contains("NaN"));
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn files_of_an_earlier_run_are_removed() {
    let out = directory("second-run");
    let mut result = sample::ladder();
    let path = write(&result, &out).unwrap();
    assert_eq!(path, out.join("ladder"));
    assert!(path.join("ladder.svg").exists());
    assert!(path.join("histograms/shared-memory-70300-get.b64").exists());
    (result.kind, result.ladder) = ("load".into(), None);
    result.variants[0].points.remove(0);
    write(&result, &out).unwrap();
    assert!(!path.join("ladder.svg").exists());
    assert!(!path.join("histograms/shared-memory-70300-get.b64").exists());
    let mut names: Vec<String> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "account.svg",
            "histograms",
            "points.csv",
            "points.jsonl",
            "report.html",
            "results.json",
            "throughput-latency.svg"
        ]
    );
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn error_names_the_file() {
    let out = directory("error");
    fs::write(&out, "in the way").unwrap();
    let error = write(&sample::ladder(), &out).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: is a file, expected", out.display())), "{error}");
    fs::remove_file(out).unwrap();
}

#[test]
fn terminal_table_fits_and_names_invalid_points() {
    let mut result = sample::load();
    result.variants[3].name =
        "a variant with quite a long name, longer than any column would like it to be".into();
    let summary = terminal::summary(&result);
    for line in summary.lines() {
        let width = line.chars().count();
        assert!(width <= usize::from(wave_terminal::WIDTH), "{width} columns: {line}");
    }
    let row = summary.lines().find(|line| line.contains("on-host agent")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[..5], ["on-host", "agent", "1", "10.0", "10.0"]);
    let reason = "Invalid, offload, coherent link at 80.0 k/s: lag p99 of 212 us exceeds 50 us";
    assert!(summary.contains(reason), "{summary}");
    let rows: Vec<_> = summary.lines().filter(|line| line.contains(" invalid")).collect();
    assert!(matches!(rows[..], [row] if row.matches('(').count() == 3), "{summary}");
    for word in ["workers", "note", "saturation", "served"] {
        assert!(summary.split_whitespace().any(|whole| whole == word), "{word}: {summary}");
    }
    assert!(summary.contains("p99 of at most 300 us"));
}

/// The third variant has no measurement at its highest loads, and so no saturation.
fn unmeasured() -> RunResult {
    let mut result = sample::load();
    let variant = &mut result.variants[2];
    for point in &mut variant.points[4..] {
        point.generator.valid = false;
        point.generator.why_invalid = Some("the agent was lost".into());
    }
    variant.saturation_per_second = None;
    variant.not_measurable = Some("at least 55.0 k/s; 65.0 k/s is not a measurement".into());
    variant.saturation_by_limit.clear();
    variant.limits_not_measurable = vec![300];
    result
}

#[test]
fn run_with_unmeasured_points_is_marked_in_every_form() {
    let result = unmeasured();
    assert!(!result.is_measured());
    let banner = result.banner().unwrap();
    assert!(banner.starts_with("INCOMPLETE: 2 of 24 points are not measurements"), "{banner}");
    assert!(
        banner.contains("Not measurable: saturation of \"offload, coherent link\". Run it again")
    );
    let summary = terminal::summary(&result);
    let first: String = summary.lines().skip(1).take(3).collect::<Vec<_>>().join(" ");
    assert!(first.contains(&banner), "{summary}");
    let (table, notes) = terminal::saturation(&result).unwrap();
    let table = table.fitted();
    let notes = notes.join(" ");
    let row = table.lines().find(|line| line.contains("coherent")).unwrap();
    // Its row has no saturation, no difference from the first, and none for the other limit.
    assert!(row.contains("unknown") && row.contains('?'), "{table}");
    assert!(notes.contains("?: not measurable within that limit."), "{notes}");
    assert!(!row.contains('%'), "{table}");
    assert!(notes.contains("Not measurable: offload, coherent link: at least 55.0 k/s"), "{notes}");
    let page = html::page(&result, &plot::all(&result).unwrap());
    for shown in
        ["class=\"banner\"", "2 of 24 points are not measurements", "Not measurable: offload"]
    {
        assert!(page.contains(shown), "{shown}");
    }
    let json = to_json(&result);
    assert_eq!(json["banner"], banner);
    assert!(json["variants"][2]["saturation_per_second"].is_null());
    // A run whose points are all valid has no banner.
    let mut calm = sample::load();
    calm.variants[2].points.pop();
    assert!(calm.banner().is_none() && calm.is_measured());
    assert!(to_json(&calm)["banner"].is_null() && !terminal::summary(&calm).contains('═'));
    let simulated = RunResult { host: "sim".into(), ..result };
    assert!(!simulated.banner().unwrap().contains("quiet"));
    let page = html::page(&simulated, &plot::all(&simulated).unwrap());
    for text in [page, terminal::summary(&simulated)] {
        assert!(text.contains("SIMULATED in virtual time (Example CPU)"), "{text}");
    }
    assert!(calm.simulated().is_none());
}

#[test]
fn run_without_a_valid_point_is_no_result() {
    let mut result = sample::load();
    for point in result.variants.iter_mut().flat_map(|variant| &mut variant.points) {
        point.generator.valid = false;
    }
    assert!(!result.is_measured());
    let banner = result.banner().unwrap();
    assert!(banner.starts_with("NO RESULT: 24 of 24 points are not measurements"), "{banner}");
    assert!(!result.is_judged_by_checks());
    let crash = RunResult { kind: "crash".into(), ..result };
    let banner = crash.banner().unwrap();
    assert!(crash.is_judged_by_checks() && !crash.is_measured());
    assert!(banner.starts_with("CHECKS ONLY: 24 of 24 points are not measurements"), "{banner}");
}

#[test]
fn no_line_is_drawn_through_an_invalid_point() {
    let lines = |result: &RunResult| {
        let svg = plot::all(result).unwrap().throughput.unwrap();
        // A curve is the only line of this colour with three points or more; markers are closed.
        let colour = plot::style::colour(0);
        let colour = format!("stroke=\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2);
        let lines = svg.lines().filter(|line| line.contains("<polyline") && line.contains(&colour));
        lines.map(|line| line.matches(',').count()).collect::<Vec<_>>()
    };
    let mut result = sample::load();
    let legend = 2;
    assert_eq!(lines(&result), [6, legend]);
    let point = &mut result.variants[0].points[3].generator;
    (point.valid, point.why_invalid) = (false, Some("lagged".into()));
    assert_eq!(lines(&result), [3, 2, legend]);
    let svg = plot::all(&result).unwrap().throughput.unwrap();
    assert!(svg.contains("A hollow marker is not a measurement"));
}

#[test]
fn saturation_at_the_highest_offered_load_is_reported_as_a_lower_bound() {
    let mut result = sample::load();
    let of = |result: &RunResult| {
        let text = terminal::saturation(result).unwrap().1.join(" ");
        let page = html::page(result, &plot::all(result).unwrap());
        [text, page].map(|form| form.contains("Lower bounds, as the highest load offered"))
    };
    assert_eq!(of(&result), [false; 2]);
    let variant = &mut result.variants[0];
    variant.points.retain(|point| point.offered_per_second <= 55_000.0);
    variant.saturation_per_second = Some(55_000.0);
    assert_eq!(of(&result), [true; 2]);
    let sentence = terminal::lower_bounds(&result).unwrap();
    assert!(sentence.ends_with("was served: Linux threads."), "{sentence}");
}

#[test]
fn backlog_worked_off_after_the_measured_time_counts_as_not_served() {
    let mut point = sample::load().variants[0].points[0].clone();
    assert_eq!(point.note(), "");
    point.achieved_per_second *= 0.9;
    assert_eq!(point.note(), "90.0% served");
}

/// A new user saw `160.` on one line and `0` on the next.
#[test]
fn numbers_are_not_broken_over_lines() {
    let mut result = sample::load();
    for variant in &mut result.variants {
        variant.name = format!("{}, which has quite a long name of many words", variant.name);
        variant.saturation_by_limit =
            (1..=9).map(|limit| (limit * 100, 160_000.0 + f64::from(limit) * 1e3)).collect();
    }
    let table = terminal::saturation(&result).unwrap().0.fitted();
    let words: Vec<&str> = table.split_whitespace().collect();
    for limit in 161..=169 {
        let number = format!("{limit}.0");
        let count = words.iter().filter(|word| **word == number).count();
        assert_eq!(count, result.variants.len(), "{number} in {table}");
    }
}

#[test]
fn limit_exceeded_by_every_load_is_shown_as_none() {
    let mut result = sample::load();
    result.variants[0].saturation_by_limit.remove(0);
    let table = terminal::saturation(&result).unwrap().0.fitted();
    let row = table.lines().find(|line| line.contains("Linux threads")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns, ["Linux", "threads", "1", "62.0", "none", "62.0", "63.2"]);
}

#[test]
fn comparison_table_has_only_columns_with_figures() {
    use super::model::{Compared, Figure, RangeCost};
    let mut result = sample::load();
    assert!(compared::table(&result).is_none());
    let all = [(None, None), (Some(2.34), Some(0.0412))];
    for (variant, (against, growth)) in result.variants.iter_mut().zip(all) {
        variant.compared = Some(Compared {
            offered_per_second: 9_600.0,
            p99_ns: Some(150_000),
            slowdown: Some(15.0),
            oracle_slowdown: against.map(|against| 15.0 / against),
            slowdown_vs_oracle: against.map(|value| Figure { value, interval: Some((2.2, 2.5)) }),
            range: Some(RangeCost {
                preempted: u64::from(growth.is_some()),
                service_growth: growth,
                ..RangeCost::default()
            }),
            ..Compared::default()
        });
    }
    let (table, notes) = compared::table(&result).unwrap();
    let names: Vec<String> = table.columns().map(|(name, _)| name.replace('\n', " ")).collect();
    assert_eq!(names, ["variant", "GET p99 us", "ideal sharing", "/ ideal sharing", "RANGE time"]);
    assert_eq!(table.rows()[0], ["Linux threads", "150", "", "", ""]);
    assert_eq!(table.rows()[1], ["on-host agent", "150", "64.1", "2.34\n(2.20 to 2.50)", "+4.1%"]);
    assert!(notes.iter().any(|note| note.contains("against \"Linux threads\"")));
    let page = html::page(&result, &plot::all(&result).unwrap());
    for text in [terminal::summary(&result), page] {
        assert!(text.contains("Compared at 9600/s") && text.contains("+4.1%"), "{text}");
    }
}
