//! What came of a bake-off: a table, one object, and a folder with a page and plots.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use maud::{Markup, html};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use super::curve::{self, Ratio, Spot};
use super::plan::{self, Plan};
use crate::run::{Failure, machine};
use wave_report::plot::chart::{Axis, chart};
use wave_report::plot::style::{
    DrawError, Key, axis_number, colour, legend, legend_height, log_number, log_ticks, marker,
    plot, ticks,
};
use wave_report::slug;
use wave_report::{Directory, document, figure};

const OURS: &str = "sol";
/// Who does this share of the accesses has kept up.
pub const KEPT_UP: f64 = 0.95;

/// One setting of one tool, on one program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Point {
    /// Whose curve.
    pub tool: String,
    /// What was set.
    pub setting: String,
    /// The process, before the tool began.
    pub resident_before_bytes: u64,
    /// Of the process, in swap; a mean.
    pub swapped_bytes: f64,
    /// What compressed swap took for that; a mean.
    pub compressed_bytes: f64,
    /// The difference.
    pub net_saved_bytes: f64,
    /// Pages read back from swap.
    pub refaults_per_second: f64,
    /// Pages written to it.
    pub pages_out_per_second: f64,
    /// Faults that waited for swap or a file.
    pub major_faults_per_second: f64,
    /// What the program came to.
    pub accesses_per_second: f64,
    /// Whether that is what it was to do, or nearly. If not, its refaults are of other accesses, and nothing is compared.
    pub kept_up: bool,
    /// CPU time of the tool, compressing included, as a share of one core.
    pub core_share: f64,
}

/// All on one program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProgramResult {
    /// As in the file.
    pub name: String,
    /// Whether it judges.
    pub judge: bool,
    /// How it uses its memory.
    pub pattern: String,
    /// Every setting of every tool.
    pub points: Vec<Point>,
    /// Ours over DAMON's savings.
    pub vs_damon: Option<Ratio>,
    /// Ours over MGLRU's.
    pub vs_mglru: Option<Ratio>,
}

/// A whole bake-off.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Results {
    /// The file's name for it.
    pub scenario: String,
    /// What for.
    pub description: String,
    /// When.
    pub started: String,
    /// Which version of this program.
    pub version: String,
    /// The kernel's release.
    pub kernel: String,
    /// CPUs that it had.
    pub cpus: usize,
    /// The whole file.
    pub plan: Plan,
    /// For each program, ours over DAMON's savings at equal refaults.
    pub net_saved_ratio_vs_damon: std::collections::BTreeMap<String, Option<f64>>,
    /// The same, over MGLRU's.
    pub net_saved_ratio_vs_mglru: std::collections::BTreeMap<String, Option<f64>>,
    /// How the ratios are made.
    pub comparison: String,
    /// What was measured.
    pub programs: Vec<ProgramResult>,
    /// How it was.
    pub facts: Vec<(String, String)>,
}

impl ProgramResult {
    /// Compares the tools by their points.
    pub fn new(planned: &plan::Program, points: Vec<Point>) -> ProgramResult {
        let mut result = ProgramResult {
            name: planned.name.clone(),
            judge: planned.judge,
            pattern: planned.pattern.describe().to_owned(),
            points,
            vs_damon: None,
            vs_mglru: None,
        };
        let vs = |tool| curve::compare(&result.spots(OURS), &result.spots(tool));
        (result.vs_damon, result.vs_mglru) = (vs("damon"), vs("mglru"));
        result
    }

    /// On a logarithm's axis nothing is 0: fewer than one refault in ten seconds counts as that.
    fn spots(&self, tool: &str) -> Vec<Spot> {
        const LEAST: f64 = 0.1;
        let of = self.points.iter().filter(|point| point.tool == tool && point.kept_up);
        of.map(|point| Spot {
            refaults: point.refaults_per_second.max(LEAST),
            saved: point.net_saved_bytes,
        })
        .collect()
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

    /// Net saved over refaults per second, a curve per tool. Settings that another one of the same tool beats are
    /// hollow.
    fn draw(&self) -> Result<String, DrawError> {
        const HEIGHT: u32 = 420;
        let tools = self.tools();
        let curves: Vec<Vec<Spot>> = tools
            .iter()
            .map(|tool| {
                let mib = |spot: Spot| Spot { saved: spot.saved / f64::from(1 << 20), ..spot };
                self.spots(tool).into_iter().map(mib).collect()
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
        plot(&format!("{}: net saved against refaults", self.name), HEIGHT + rows, |root| {
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

fn show(ratio: Option<&Ratio>) -> String {
    let Some(Ratio { ratio: Some(ratio), least, most, overlap, refaults_per_second: [a, b] }) =
        ratio
    else {
        return "no comparison: one of the two saves nothing, or the program kept up with none of its settings".to_owned();
    };
    let [least, most] = [least, most].map(|end| end.unwrap_or(*ratio));
    match overlap {
        true => format!("{ratio:.2} ({least:.2} to {most:.2} over {a:.1} to {b:.1} refaults/s)"),
        false => {
            format!("{ratio:.2} (no refaults in common: ours at {a:.1}/s, theirs at {b:.1}/s)")
        }
    }
}

impl Results {
    /// What a bake-off by this plan found.
    pub fn new(
        plan: &Plan,
        started: String,
        programs: Vec<ProgramResult>,
        facts: Vec<(String, String)>,
    ) -> Results {
        let ratios = |of: fn(&ProgramResult) -> Option<&Ratio>| {
            let of = |result: &ProgramResult| {
                (result.name.clone(), of(result).and_then(|ratio| ratio.ratio))
            };
            programs.iter().map(of).collect()
        };
        Results {
            scenario: plan.name.clone(),
            description: plan.description.clone(),
            started,
            version: machine::version().to_owned(),
            kernel: machine::kernel(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            plan: plan.clone(),
            net_saved_ratio_vs_damon: ratios(|result| result.vs_damon.as_ref()),
            net_saved_ratio_vs_mglru: ratios(|result| result.vs_mglru.as_ref()),
            comparison: "sol's net savings over the other tool's at equal refaults: of each tool the settings that no \
                         other of its settings beats, linear between them in the logarithm of refaults, as a \
                         geometric mean over the refaults that both curves have; without such, at their nearest ends. \
                         Settings under which the program fell behind its accesses count for nothing"
                .to_owned(),
            programs,
            facts,
        }
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for program in &self.programs {
            let _ = writeln!(text, "{}: {}", program.name, program.pattern);
            let head = [
                "tool",
                "setting",
                "net saved MiB",
                "swapped MiB",
                "refaults/s",
                "tool's CPU %",
                "accesses/s",
            ];
            let mut table = wave_lab::table(&head);
            for point in &program.points {
                table.add_row(row(point));
            }
            let _ = writeln!(text, "{table}");
            let _ = writeln!(text, "sol over damon: {}", show(program.vs_damon.as_ref()));
            let _ = writeln!(text, "sol over mglru: {}\n", show(program.vs_mglru.as_ref()));
        }
        let _ = writeln!(text, "A ratio is {}.", self.comparison);
        for (what, how) in &self.facts {
            let _ = writeln!(text, "{what}: {how}");
        }
        text.trim_end().to_owned()
    }

    /// Writes report.html, a plot for each program, and results.json into a folder of its own below `out`.
    pub fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let write = || -> Result<PathBuf, Box<dyn std::error::Error>> {
            let directory = Directory::create(out.join(slug(&self.scenario)))?;
            let mut plots = Vec::new();
            for program in &self.programs {
                let svg = program.draw().map_err(|error| error.to_string())?;
                directory.write(&format!("{}.svg", slug(&program.name)), svg.as_bytes())?;
                plots.push(svg);
            }
            directory.write("results.json", &serde_json::to_vec_pretty(self)?)?;
            directory.write("report.html", self.page(&plots).as_bytes())?;
            Ok(directory.into_path())
        };
        write().map_err(Failure::cannot)
    }

    fn page(&self, plots: &[String]) -> String {
        let body = html! {
            p.lead { (self.description) }
            dl {
                dt { "Started" } dd { (self.started) }
                dt { "Version" } dd { (self.version) ", seed " (self.plan.seed) }
                dt { "Machine" } dd { (self.cpus) " CPUs, Linux " (self.kernel) }
                dt { "Each setting" } dd {
                    (self.plan.warmup_seconds) " s to settle, then " (self.plan.seconds) " s measured"
                }
            }
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

fn row(point: &Point) -> [String; 7] {
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    let behind = if point.kept_up { "" } else { " (behind)" };
    [
        point.tool.clone(),
        point.setting.clone(),
        mib(point.net_saved_bytes),
        mib(point.swapped_bytes),
        format!("{:.1}", point.refaults_per_second),
        format!("{:.1}", 100.0 * point.core_share),
        format!("{:.0}{behind}", point.accesses_per_second),
    ]
}

fn section(program: &ProgramResult, svg: &str) -> Markup {
    html! {
        section {
            h2 { (program.name) }
            p { (program.pattern) "." }
            (figure(svg))
            p { "sol over damon: " (show(program.vs_damon.as_ref())) }
            p { "sol over mglru: " (show(program.vs_mglru.as_ref())) }
            div.scroll { table {
                thead { tr {
                    th { "tool" } th { "setting" } th.n { "net saved MiB" } th.n { "swapped MiB" }
                    th.n { "refaults/s" } th.n { "tool's CPU %" } th.n { "accesses/s" }
                } }
                tbody { @for point in &program.points { tr {
                    @for (index, cell) in row(point).iter().enumerate() { td.n[index > 1] { (cell) } }
                } } }
            } }
        }
    }
}
