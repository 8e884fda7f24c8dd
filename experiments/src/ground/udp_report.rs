//! The fields and files that results of all scenarios over UDP share.

use std::path::{Path, PathBuf};

use maud::html;
use serde::Serialize;
use wave_report::model::Machine;
use wave_report::plot::curves::{self, Curve};
use wave_report::{Directory, ReportError, document, facts, figure, folder};
use wave_terminal::Table;

use super::neighbours::Neighbours;
use super::{Failure, Journal, links, rounds};
use crate::ground::fields::Link;
use wave_apps::machine;

/// The common fields of a result.
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    scenario: String,
    host: &'static str,
    kind: &'static str,
    pub(crate) description: String,
    version: &'static str,
    machine: Machine,
    pub(crate) seating: String,
    started: String,
    pub(crate) link: String,
    /// Fitted, measured or assumed facts, each with its source.
    facts: Vec<(String, String)>,
    /// The answer to the scenario's question, in a sentence.
    pub(crate) conclusion: String,
    /// Replaces the conclusion if the machine was busy.
    #[serde(skip)]
    pub(crate) busy: Option<String>,
}

/// A report page's own parts: setup, tables, notes.
pub(crate) struct Page<'a> {
    pub setup: &'a str,
    pub tables: Vec<Table>,
    pub notes: &'a str,
}

impl Header {
    /// The header of a run on `cpus`, watched since `before`. All agents must have ended.
    pub(crate) fn new(
        kind: &'static str,
        (scenario, description): (&str, &str),
        link: &Link,
        seating: String,
        cpus: &[usize],
        (journal, before): (&Journal, Option<Neighbours>),
    ) -> Result<Header, Failure> {
        let if_disturbed = "this may widen intervals";
        let ran_on = rounds::Machine::since(before, cpus);
        let mut facts: Vec<_> =
            Neighbours::fact(ran_on.others(), journal, if_disturbed).into_iter().collect();
        facts.extend(journal.fact());
        facts.extend(links::facts_of_all([link].into_iter())?);
        Ok(Header {
            scenario: scenario.to_owned(),
            host: "user",
            kind,
            description: description.to_owned(),
            version: machine::version(),
            machine: machine::machine(cpus.len()),
            seating,
            started: journal.started(),
            link: link.to_string(),
            facts,
            conclusion: String::new(),
            busy: ran_on.too_busy(),
        })
    }

    /// Sets the conclusion: that the machine was busy, or else `sentence`.
    pub(crate) fn conclude(&mut self, sentence: String) {
        self.conclusion = self.busy.take().unwrap_or(sentence);
    }

    pub(crate) fn page(&self, page: &Page<'_>, plot: &str) -> String {
        let machine = &self.machine;
        let body = html! {
            p { (self.description) }
            p { (page.setup) }
            p { strong { (self.conclusion) } }
            @for table in &page.tables { (wave_report::table(table)) }
            p { (page.notes) }
            (figure(plot))
            (facts(&self.facts))
            p { "Wave " (self.version) ", " (machine.model) ", " (machine.cpus) " CPUs, Linux " (machine.kernel) ", " (self.started) }
        };
        document(&self.scenario, &body)
    }

    /// Writes plot, table, `result` (which contains this header) and its page into a folder below `out`.
    pub(crate) fn write(
        &self,
        out: &Path,
        (plot_file, plot): (&str, &str),
        (csv_file, csv): (&str, &[u8]),
        result: &impl Serialize,
        page: &Page<'_>,
    ) -> Result<PathBuf, Failure> {
        let directory = Directory::create(folder(out, &self.scenario, self.host))?;
        directory.write(plot_file, plot.as_bytes())?;
        directory.write(csv_file, csv)?;
        directory.write("results.json", &serde_json::to_vec(result).map_err(Failure::cannot)?)?;
        directory.write("report.html", self.page(page, plot).as_bytes())?;
        Ok(directory.into_path())
    }
}

/// Draws `curves`; an error names `file`.
pub(crate) fn drawn(
    file: &'static str,
    title: &str,
    axes: [&str; 2],
    curves: &[Curve],
) -> Result<String, Failure> {
    let plot = curves::draw(title, axes, curves);
    Ok(plot.map_err(|error| ReportError::Draw { file, why: error.to_string() })?)
}
