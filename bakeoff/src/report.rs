//! Results of a bake-off: a table, one object, and a folder with a page and plots.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use maud::{Markup, html};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use super::curve::{self, Ratio, Spot};
use super::plan::{self, Plan};
use super::tools::{RIVALS, SOL};
use wave_apps::machine;
use wave_report::plot::chart::{Axis, chart};
use wave_report::plot::style::{
    DrawError, Key, axis_number, colour, legend, legend_height, log_number, log_ticks, marker,
    plot, ticks,
};
use wave_report::terminal::{Section, wrapped};
use wave_report::{Directory, Report, document, figure, slug};
use wave_scenario::SwapOn;
use wave_terminal::{Failure, Table};

/// Share of its planned access rate that a program must reach to have kept up.
pub const KEPT_UP: f64 = 0.95;

/// One setting of one tool, on one program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Point {
    /// Tool of this point's curve.
    pub tool: String,
    /// The tool's setting, as text.
    pub setting: String,
    /// Whether this is SOL as it ships.
    pub shipped: bool,
    /// Settings that a self-tuning tool arrived at.
    pub tuned: Option<String>,
    pub warmup_seconds: f64,
    /// Seconds of measurement.
    pub seconds: f64,
    /// Resident memory of the process before the tool started.
    pub resident_before_bytes: u64,
    /// Resident memory of the process; a mean.
    pub resident_bytes: f64,
    /// Memory of the process in swap; a mean.
    pub swapped_bytes: f64,
    /// Memory that compressed swap took for it; a mean.
    pub compressed_bytes: f64,
    /// The part of it that was still in memory, by the cgroup's count; a mean. Older results lack it.
    #[serde(default)]
    pub cached_bytes: f64,
    /// Memory that the tool itself took, at the end.
    pub tool_bytes: f64,
    /// Bytes in swap, minus the three figures above.
    pub net_saved_bytes: f64,
    /// Pages read back from swap.
    pub refaults_per_second: f64,
    pub pages_out_per_second: f64,
    /// Faults that waited for swap or a file.
    pub major_faults_per_second: f64,
    /// Access rate that the program reached.
    pub accesses_per_second: f64,
    /// Whether that is at least [`KEPT_UP`] of the planned rate. If not, the refaults are those of other accesses, and the
    /// point is not compared.
    pub kept_up: bool,
    /// CPU time of the tool, compressing included, as a share of one core.
    pub core_share: f64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProgramResult {
    pub name: String,
    pub swap_on: SwapOn,
    /// Whether the program is a judge: fixed before the first run.
    pub judge: bool,
    /// How the program uses its memory.
    pub pattern: String,
    /// Every setting of every tool.
    pub points: Vec<Point>,
    /// SOL's savings over each rival's.
    pub sol_vs: BTreeMap<String, Option<Ratio>>,
    /// SOL's savings over the best rival's.
    pub sol_vs_best_rival: Option<Ratio>,
    /// The same for SOL as it ships, alone.
    pub shipped_vs_best_rival: Option<Ratio>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Results {
    /// Name of the scenario in its file.
    pub scenario: String,
    pub description: String,
    pub started: String,
    /// Version of this program.
    pub version: String,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    pub cpus: usize,
    pub plan: Plan,
    /// For each program, SOL's net savings over the best rival's at equal refaults.
    pub sol_vs_best_rival: BTreeMap<String, Option<Ratio>>,
    /// The same for SOL as it ships, alone.
    pub shipped_vs_best_rival: BTreeMap<String, Option<Ratio>>,
    /// The rule by which ratios are computed.
    pub comparison: String,
    /// What SOL saves of the best rival's savings, in a sentence. Older results lack it.
    #[serde(default)]
    pub conclusion: String,
    pub programs: Vec<ProgramResult>,
    pub facts: Vec<(String, String)>,
}

impl ProgramResult {
    /// Compares the tools by their points.
    pub fn new(planned: &plan::Program, swap_on: SwapOn, points: Vec<Point>) -> ProgramResult {
        let mut result = ProgramResult {
            name: planned.name.clone(),
            swap_on,
            judge: planned.judge,
            pattern: planned.pattern.describe().to_owned(),
            points,
            sol_vs: BTreeMap::new(),
            sol_vs_best_rival: None,
            shipped_vs_best_rival: None,
        };
        let rivals = RIVALS.map(|rival| (rival, result.spots(|point| point.tool == rival)));
        let sol = result.spots(|point| point.tool == SOL);
        let shipped = result.spots(|point| point.shipped);
        let vs = |rival: &(&str, Vec<Spot>)| {
            (rival.0.to_owned(), curve::compare(&sol, std::slice::from_ref(rival)))
        };
        result.sol_vs = rivals.iter().map(vs).collect();
        result.sol_vs_best_rival = curve::compare(&sol, &rivals);
        result.shipped_vs_best_rival = curve::compare(&shipped, &rivals);
        result
    }

    /// Name of the program, with the kind of swap if not zram.
    pub(super) fn label(&self) -> String {
        match self.swap_on {
            SwapOn::Zram => self.name.clone(),
            SwapOn::File => format!("{}, swap in a file", self.name),
        }
    }

    /// Points to compare. A logarithmic axis has no 0: rates below one refault in ten seconds count as that.
    fn spots(&self, of: impl Fn(&Point) -> bool) -> Vec<Spot> {
        const LEAST: f64 = 0.1;
        let of = self.points.iter().filter(|point| of(point) && point.kept_up);
        of.map(|point| Spot {
            refaults: point.refaults_per_second.max(LEAST),
            saved: point.net_saved_bytes,
        })
        .collect()
    }

    /// The comparisons in words, the most important first.
    fn comparisons(&self) -> Vec<String> {
        let best = show(self.sol_vs_best_rival.as_ref());
        let shipped = show(self.shipped_vs_best_rival.as_ref());
        let all = [
            format!("sol over the best rival: {best}"),
            format!("sol as shipped over the best rival: {shipped}"),
        ];
        let vs = self.sol_vs.iter();
        let vs = vs.map(|(rival, ratio)| format!("sol over {rival}: {}", show(ratio.as_ref())));
        all.into_iter().chain(vs).collect()
    }

    fn tools(&self) -> Vec<&str> {
        let mut tools: Vec<&str> = Vec::new();
        for point in &self.points {
            if !tools.contains(&point.tool.as_str()) {
                tools.push(&point.tool);
            }
        }
        tools
    }

    /// Plots net savings over refaults per second, a curve per tool. Settings beaten by another of the same tool are hollow.
    fn draw(&self) -> Result<String, DrawError> {
        const HEIGHT: u32 = 420;
        let tools = self.tools();
        let curves: Vec<Vec<Spot>> = tools
            .iter()
            .map(|tool| {
                let mib = |spot: Spot| Spot { saved: spot.saved / f64::from(1 << 20), ..spot };
                self.spots(|point| point.tool == *tool).into_iter().map(mib).collect()
            })
            .collect();
        let all = || curves.iter().flatten();
        let logs = || all().map(|spot| spot.refaults.log10());
        let low = logs().reduce(f64::min).unwrap_or(0.0).floor();
        let high = logs().reduce(f64::max).unwrap_or(1.0).ceil().max(low + 1.0);
        let most = all().map(|spot| spot.saved).fold(1.0, f64::max);
        let up = ticks(most, 6);
        let top = up.last().copied().unwrap_or(most);
        let least = all().map(|spot| spot.saved).fold(0.0, f64::min);
        let rows = legend_height(tools.len());
        plot(&format!("{}: net saved against refaults", self.label()), HEIGHT + rows, |root| {
            let (upper, lower) = root.split_vertically(HEIGHT);
            let x = Axis::new(low, high, log_ticks(low, high), log_number, "refaults per second");
            let y = Axis::new(least, top, up.clone(), axis_number, "MiB net saved");
            let mut chart = chart(&upper, x, y)?;
            for (index, curve) in curves.iter().enumerate() {
                let line = curve::frontier(curve).into_iter();
                let line = line.map(|spot| (spot.refaults.log10(), spot.saved));
                let style = colour(index).stroke_width(2);
                chart.draw_series(LineSeries::new(line, style))?;
            }
            for (index, curve) in curves.iter().enumerate() {
                let best = curve::frontier(curve);
                for spot in curve {
                    let at = chart.backend_coord(&(spot.refaults.log10(), spot.saved));
                    marker(root, at, index, !best.contains(spot))?;
                }
            }
            let names: Vec<String> = tools.iter().map(|name| (*name).to_owned()).collect();
            legend(&lower, (100, 6), Key::Curve, &names)
        })
    }
}

/// SOL's savings against the best rival's on every program, in a sentence.
fn conclusion(programs: &[ProgramResult]) -> String {
    let each = programs.iter().map(|program| {
        let label = program.label();
        let Some(Ratio { ratio: Some(ratio), least, most, overlap, .. }) =
            &program.sol_vs_best_rival
        else {
            return format!("on {label} the two cannot be compared");
        };
        let [least, most] = [least, most].map(|end| end.unwrap_or(*ratio));
        match overlap {
            true => format!("{ratio:.2} times that ({least:.2} to {most:.2}) on {label}"),
            false => format!("{ratio:.2} times that on {label}, where no refaults are equal"),
        }
    });
    let each: Vec<String> = each.collect();
    format!("At equal refaults, SOL saves, against the rival that saves most: {}.", each.join("; "))
}

fn show(ratio: Option<&Ratio>) -> String {
    let Some(Ratio { ratio: Some(ratio), least, most, overlap, refaults_per_second, best_at }) =
        ratio
    else {
        return "no comparison: a rival saves nothing, or the program kept up with no setting"
            .to_owned();
    };
    let [a, b] = refaults_per_second;
    let [least, most] = [least, most].map(|end| end.unwrap_or(*ratio));
    let best: Vec<&str> = best_at.keys().map(String::as_str).collect();
    let best = best.join(", ");
    match overlap {
        true => {
            format!("{ratio:.2} ({least:.2} to {most:.2} over {a:.1} to {b:.1} refaults/s; {best})")
        }
        false => {
            format!("{ratio:.2} (no refaults in common: sol at {a:.1}/s, {best} at {b:.1}/s)")
        }
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let mut text = String::new();
        for program in &self.programs {
            let judge = if program.judge { " (judges)" } else { "" };
            let _ = writeln!(text, "{}{judge}: {}", program.label(), program.pattern);
            let table = table(program).to_string();
            let section = Section { table, notes: program.comparisons() };
            let _ = writeln!(text, "{section}\n");
        }
        let mut notes = vec![
            "A ratio compares net savings at equal refaults; the report has the rule.".to_owned(),
        ];
        notes.extend(self.facts.iter().map(|(what, how)| format!("{what}: {how}")));
        let notes = Section { table: String::new(), notes };
        format!("{text}{notes}\n\n{}", wrapped(&self.conclusion))
    }

    /// Writes report.html, a plot for each program, and results.json into a folder of its own below `out`.
    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let write = || -> Result<PathBuf, Box<dyn std::error::Error>> {
            let directory = Directory::create(out.join(slug(&self.scenario)))?;
            let mut plots = Vec::new();
            for program in &self.programs {
                let svg = program.draw().map_err(|error| error.to_string())?;
                directory.write(&format!("{}.svg", slug(&program.label())), svg.as_bytes())?;
                plots.push(svg);
            }
            directory.write("results.json", &serde_json::to_vec_pretty(self)?)?;
            directory.write("report.html", self.page(&plots).as_bytes())?;
            Ok(directory.into_path())
        };
        write().map_err(Failure::cannot)
    }

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::cannot)
    }
}

impl Results {
    /// Computes the results of a bake-off from its points.
    pub fn new(
        plan: &Plan,
        started: String,
        programs: Vec<ProgramResult>,
        facts: Vec<(String, String)>,
    ) -> Results {
        let ratios = |of: fn(&ProgramResult) -> &Option<Ratio>| {
            programs.iter().map(|result| (result.label(), of(result).clone())).collect()
        };
        Results {
            scenario: plan.name.to_string(),
            description: plan.description.clone(),
            started,
            version: machine::version().to_owned(),
            kernel: machine::kernel(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            plan: plan.clone(),
            sol_vs_best_rival: ratios(|result| &result.sol_vs_best_rival),
            shipped_vs_best_rival: ratios(|result| &result.shipped_vs_best_rival),
            comparison: "sol's net savings over those of the rival that saves most at equal refaults: of each tool the \
                         settings that no other of its settings beats, linear between them in the logarithm of refaults, \
                         as a geometric mean over the refaults that sol's curve and a rival's have in common; without \
                         such, at their nearest ends, over the rival for which that is least. Settings under which the \
                         program fell behind its accesses count for nothing"
                .to_owned(),
            conclusion: conclusion(&programs),
            programs,
            facts,
        }
    }

    fn page(&self, plots: &[String]) -> String {
        let body = html! {
            p.lead { (self.description) }
            dl {
                dt { "Started" } dd { (self.started) }
                dt { "Version" } dd { (self.version) ", seed " (self.plan.seed) }
                dt { "Machine" } dd { (self.cpus) " CPUs, Linux " (self.kernel) }
                dt { "Each setting" } dd {
                    (self.plan.warmup_seconds) " s to settle, then " (self.plan.seconds) " s measured; slow ones "
                    (self.plan.slow.warmup_seconds) " s and " (self.plan.slow.seconds) " s"
                }
            }
            p { strong { (self.conclusion) } }
            p { "A ratio is " (self.comparison) "." }
            @for (program, svg) in self.programs.iter().zip(plots) { (section(program, svg)) }
            section {
                h2 { "How it was measured" }
                dl { @for (what, how) in &self.facts { dt { (what) } dd { (how) } } }
            }
        };
        document(&self.scenario, &body)
    }
}

const HEAD: [&str; 9] = [
    "tool",
    "setting",
    "net saved MiB",
    "resident MiB",
    "swapped MiB",
    "tool's MiB",
    "refaults/s",
    "tool's CPU %",
    "accesses/s",
];

fn table(program: &ProgramResult) -> Table {
    Table::new(2, HEAD).with(program.points.iter().map(|point| row(point).into()))
}

fn row(point: &Point) -> [String; 9] {
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    let behind = if point.kept_up { "" } else { " (behind)" };
    let shipped = if point.shipped { " (as shipped)" } else { "" };
    [
        point.tool.clone(),
        format!("{}{shipped}", point.setting),
        mib(point.net_saved_bytes),
        mib(point.resident_bytes),
        mib(point.swapped_bytes),
        mib(point.tool_bytes),
        format!("{:.1}", point.refaults_per_second),
        format!("{:.1}", 100.0 * point.core_share),
        format!("{:.0}{behind}", point.accesses_per_second),
    ]
}

fn section(program: &ProgramResult, svg: &str) -> Markup {
    html! {
        section {
            h2 { (program.label()) @if program.judge { " (judges)" } }
            p { (program.pattern) "." }
            (figure(svg))
            @for line in program.comparisons() { p { (line) } }
            (wave_report::table(&table(program)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn point(tool: &str, refaults: f64, mib: f64, shipped: bool) -> Point {
        let saved = mib * f64::from(1 << 20);
        Point {
            tool: tool.to_owned(),
            setting: "x".to_owned(),
            shipped,
            tuned: None,
            warmup_seconds: 1.0,
            seconds: 1.0,
            resident_before_bytes: 64 << 20,
            resident_bytes: f64::from(64 << 20) - saved,
            swapped_bytes: saved,
            compressed_bytes: 0.0,
            cached_bytes: 0.0,
            tool_bytes: 0.0,
            net_saved_bytes: saved,
            refaults_per_second: refaults,
            pages_out_per_second: refaults,
            major_faults_per_second: refaults,
            accesses_per_second: 100.0,
            kept_up: true,
            core_share: 0.01,
        }
    }

    fn results(points: Vec<Point>) -> Results {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/memory-bakeoff.toml");
        let text = std::fs::read_to_string(file).unwrap();
        let plan = plan::read(&wave_scenario::Source::new(Path::new(file), &text)).unwrap();
        let result = ProgramResult::new(&plan.program[0], SwapOn::File, points);
        Results::new(&plan, String::new(), vec![result], Vec::new())
    }

    #[test]
    fn sol_and_shipped_sol_are_each_compared_with_the_best_rival() {
        let points = [
            point("sol", 10.0, 20.0, false),
            point("sol", 100.0, 40.0, false),
            point("sol", 10.0, 10.0, true),
            point("damon", 10.0, 40.0, false),
            point("damon", 100.0, 80.0, false),
            point("mglru", 10.0, 5.0, false),
            point("mglru", 100.0, 10.0, false),
        ];
        let found = serde_json::to_value(results(points.to_vec())).unwrap();
        let name = "hot set, swap in a file";
        let ratio = |key: &str| found[key][name]["ratio"].as_f64().unwrap();
        assert!((ratio("sol_vs_best_rival") - 0.5).abs() < 1e-9, "{found}");
        assert!((ratio("shipped_vs_best_rival") - 0.25).abs() < 1e-9, "{found}");
        assert_eq!(found["sol_vs_best_rival"][name]["overlap"], true);
        let conclusion = found["conclusion"].as_str().unwrap();
        assert!(conclusion.contains("0.50 times that (0.50 to 0.50) on hot set"), "{conclusion}");
        let text = results(points.to_vec()).text().replace('\n', " ");
        assert!(text.ends_with(conclusion), "{text}");
        let vs = &found["programs"][0]["sol_vs"];
        assert!((vs["mglru"]["ratio"].as_f64().unwrap() - 4.0).abs() < 1e-9, "{vs}");
        assert!(vs["reclaim"].is_null());
    }

    #[test]
    fn text_lists_every_comparison_and_leaves_out_points_that_fell_behind() {
        let mut behind = point("damon", 10.0, 40.0, false);
        behind.kept_up = false;
        let text = results(vec![point("sol", 10.0, 20.0, true), behind]).text();
        assert!(text.contains("sol over the best rival: no comparison"), "{text}");
        let rival = point("reclaim", 10.0, 10.0, false);
        let text = results(vec![point("sol", 10.0, 20.0, true), rival]).text();
        for line in ["sol over reclaim: 2.00", "sol as shipped over the best rival: 2.00 (2.00 to"]
        {
            assert!(text.contains(line), "{text}");
        }
    }
}
