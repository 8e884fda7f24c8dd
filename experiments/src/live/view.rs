//! Contents of the live view at one moment, and their layout.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};
use wave_process::words::counted;
use wave_user::{EnclaveStats, Mode};
use wave_workloads::recorder::{Latency, Recorded};

/// State of the live view at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    title: String,
    step: String,
    at_ns: u64,
    stats: Vec<(EnclaveStats, usize)>,
    cores: Vec<Core>,
    /// Name, total, and rate per second.
    outcomes: Vec<(String, u64, f64)>,
    classes: Vec<(String, Latency)>,
    /// Requests sent, done and in flight.
    requests: Option<(u64, u64, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    enclave: usize,
    index: usize,
    busy_percent: f64,
    parked_percent: f64,
    switches_per_second: f64,
    fallback_per_second: f64,
}

impl View {
    /// The current state, with rates since `before`.
    pub fn new(
        (title, step): (String, String),
        at_ns: u64,
        stats: Vec<(EnclaveStats, usize)>,
        recorded: Option<&Recorded>,
        before: &View,
    ) -> View {
        let mut view = View { title, step, at_ns, ..View::default() };
        let seconds = at_ns.saturating_sub(before.at_ns).max(1) as f64 / 1e9;
        // The counters of another system start from zero.
        let same = before.stats.len() == stats.len()
            && before
                .stats
                .iter()
                .zip(&stats)
                .all(|(old, new)| switches(&old.0) <= switches(&new.0));
        for (enclave, (now, _)) in stats.iter().enumerate() {
            let then = same.then(|| &before.stats[enclave].0);
            for (index, core) in now.cores.iter().enumerate() {
                let Some(old) = then.and_then(|then| then.cores.get(index)) else { continue };
                let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
                view.cores.push(Core {
                    enclave,
                    index,
                    busy_percent: (rate(core.busy.0, old.busy.0) / 1e7).min(100.0),
                    parked_percent: (rate(core.parked.0, old.parked.0) / 1e7).min(100.0),
                    switches_per_second: rate(core.switches, old.switches),
                    fallback_per_second: rate(core.fallback_switches, old.fallback_switches),
                });
            }
        }
        for (code, count) in
            stats.iter().flat_map(|(stats, _)| &stats.cores).flat_map(|core| &core.outcomes)
        {
            match view.outcomes.iter_mut().find(|(name, ..)| name == code.name()) {
                Some((_, sum, _)) => *sum += count,
                None => view.outcomes.push((code.name().to_owned(), *count, 0.0)),
            }
        }
        for (name, count, rate) in &mut view.outcomes {
            let old = before.outcomes.iter().find(|(other, ..)| other == name);
            let old = old.filter(|_| same).map_or(*count, |(_, count, _)| *count);
            *rate = count.saturating_sub(old) as f64 / seconds;
        }
        if let Some(recorded) = recorded {
            let classes = recorded.classes.iter();
            view.classes = classes.map(|(name, all)| (name.clone(), Latency::of(all))).collect();
            view.requests = Some((recorded.sent, recorded.done, recorded.outstanding));
        }
        view.stats = stats;
        view
    }
}

fn switches(stats: &EnclaveStats) -> u64 {
    stats.cores.iter().map(|core| core.switches).sum()
}

pub fn draw(frame: &mut Frame<'_>, view: &View) {
    let enclaves = view.stats.len().max(1) as u16;
    let cores = view.cores.len().max(1) as u16;
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(enclaves + 2),
        Constraint::Length(cores + 3),
        Constraint::Length(view.outcomes.len().max(1) as u16 + 3),
        Constraint::Min(4),
    ])
    .split(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let head = vec![
        Line::from(vec![
            Span::styled(view.title.clone(), bold),
            Span::raw("  "),
            Span::raw(&view.step),
        ]),
        Line::styled(
            "q closes this view; a watched run is a little slower",
            Style::new().fg(Color::DarkGray),
        ),
    ];
    frame.render_widget(Paragraph::new(head), areas[0]);
    frame.render_widget(Paragraph::new(deciders(view)).block(block("deciding")), areas[1]);

    let rows = view.cores.iter().map(|core| {
        let polling = (100.0 - core.busy_percent - core.parked_percent).max(0.0);
        Row::new([
            format!("{}.{}", core.enclave, core.index),
            bar(core.busy_percent),
            format!("{:5.1}", core.busy_percent),
            format!("{polling:5.1}"),
            format!("{:5.1}", core.parked_percent),
            format!("{:8.0}", core.switches_per_second),
            format!("{:8.0}", core.fallback_per_second),
        ])
    });
    let header = ["core", "", "busy %", "poll %", "parked %", "switches/s", "fallback/s"];
    frame.render_widget(table(header, [5, 22, 8, 8, 9, 11, 13], rows, "host cores"), areas[2]);

    let rows = view.outcomes.iter().map(|(name, count, rate)| {
        Row::new([name.clone(), format!("{count:12}"), format!("{rate:10.0}")])
    });
    let header = ["outcome", "total", "per second"];
    frame.render_widget(table(header, [22, 13, 11], rows, "outcomes of decisions"), areas[3]);

    let us = |ns: u64| format!("{:9.1}", ns as f64 / 1e3);
    let rows = view.classes.iter().map(|(name, latency)| {
        Row::new([
            name.clone(),
            us(latency.p50_ns),
            us(latency.p90_ns),
            us(latency.p99_ns),
            us(latency.p999_ns),
            us(latency.max_ns),
        ])
    });
    let title = match view.requests {
        Some((sent, done, under_way)) => {
            format!("latency of this point, us: {sent} sent, {done} done, {under_way} in flight")
        }
        None => "latency of this point, us".to_owned(),
    };
    let header = ["class", "p50", "p90", "p99", "p99.9", "max"];
    frame.render_widget(table(header, [16, 10, 10, 10, 10, 10], rows, &title), areas[4]);
}

fn deciders(view: &View) -> Vec<Line<'_>> {
    if view.stats.is_empty() {
        return vec![Line::raw("Linux, with plain threads (or nothing has started yet)")];
    }
    let enclaves = view.stats.iter().enumerate();
    enclaves
        .map(|(index, (stats, alive))| {
            let (who, color) = match stats.mode {
                Mode::Agent => ("agent", Color::Green),
                Mode::Fallback => ("fallback", Color::Yellow),
            };
            Line::from(vec![
                Span::raw(format!("enclave {index}: ")),
                Span::styled(format!("{who:9}"), Style::new().fg(color)),
                Span::raw(format!(
                    "{}, {} lost ({} by watchdog, {} for nonsense), {}, {}, {} alive",
                    counted(stats.agents, "agent"),
                    stats.lost_agents,
                    stats.barks,
                    stats.faults,
                    counted(stats.snapshots, "snapshot"),
                    counted(stats.overflows, "overflow"),
                    counted(*alive, "thread"),
                )),
            ])
        })
        .collect()
}

fn bar(percent: f64) -> String {
    "█".repeat((percent / 5.0).round() as usize)
}

fn block(title: &str) -> Block<'_> {
    Block::new().borders(Borders::ALL).title(title.to_owned())
}

fn table<'a, const N: usize>(
    header: [&'a str; N],
    widths: [u16; N],
    rows: impl Iterator<Item = Row<'a>>,
    title: &str,
) -> Table<'a> {
    let header = Row::new(header).style(Style::new().add_modifier(Modifier::BOLD));
    let block = Block::new().borders(Borders::ALL).title(title.to_owned());
    Table::new(rows, widths.map(Constraint::Length)).header(header).block(block)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use wave_core::clock::Nanos;
    use wave_core::outcome::Code;
    use wave_user::CoreStats;

    use super::*;

    fn stats(switches: u64, busy: u64, parked: u64) -> Vec<(EnclaveStats, usize)> {
        let core = CoreStats {
            switches,
            busy: Nanos(busy),
            parked: Nanos(parked),
            outcomes: vec![(Code::Complete, switches)],
            ..CoreStats::default()
        };
        let stats = EnclaveStats {
            cores: vec![core],
            mode: Mode::Agent,
            agents: 3,
            lost_agents: 2,
            barks: 1,
            faults: 0,
            snapshots: 4,
            overflows: 0,
        };
        vec![(stats, 17)]
    }

    #[test]
    fn rates_are_since_the_previous_update() {
        let titles = || ("experiment".to_owned(), "a step".to_owned());
        let before = View::new(titles(), 0, stats(100, 0, 0), None, &View::default());
        let now = stats(1_100, 600_000_000, 100_000_000);
        let view = View::new(titles(), 1_000_000_000, now, None, &before);
        assert_eq!(view.cores[0].switches_per_second, 1_000.0);
        let mut terminal = Terminal::new(TestBackend::new(110, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &view)).unwrap();
        let text: String =
            terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
        for part in [
            "experiment",
            "a step",
            "agent",
            "3 agents",
            "60.0",
            "30.0",
            "10.0",
            "17 threads",
            "COMPLETE",
            "1100",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn counters_of_another_system_give_no_rates() {
        let titles = (String::new(), String::new());
        let before = View::new(titles.clone(), 0, stats(500, 0, 0), None, &View::default());
        let view = View::new(titles, 1_000_000_000, stats(5, 0, 0), None, &before);
        assert!(view.cores.is_empty());
        assert_eq!(view.outcomes[0].2, 0.0);
    }
}
