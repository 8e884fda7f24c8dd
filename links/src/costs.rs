//! The costs of a link's operations, each with the source of its figure.

use std::fmt;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use wave_process::words::plain;

/// The links with built-in cost tables.
const BUILTIN: [(&str, &str); 6] = [
    ("mount-evans", MOUNT_EVANS),
    ("coherent", include_str!("../costs/coherent.toml")),
    ("on-host", include_str!("../costs/on-host.toml")),
    ("stingray", include_str!("../costs/stingray.toml")),
    ("ideal", include_str!("../costs/ideal.toml")),
    ("shinjuku", include_str!("../costs/shinjuku.toml")),
];
const MOUNT_EVANS: &str = include_str!("../costs/mount-evans.toml");

/// The largest cost that a file may state: one second.
const NS_MAX: f64 = 1e9;

/// The costs of one link, as a TOML file states them. A file with a missing or an unknown field is
/// refused.
///
/// An *occupying* cost is time that the CPU loses that does the operation; a *flight* is the time
/// until the other side can see the effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct Costs {
    /// The link's name in results.
    pub name: String,
    /// One sentence on what is modelled.
    pub description: String,
    /// Whether a cache-coherent link joins the sides. Page types then have no effect.
    pub coherent: bool,
    /// Occupies: the host loads an uncached word, or the first word of a write-through line.
    pub host_read: Cost,
    /// Occupies: the host stores an uncached or write-through word.
    pub host_write: Cost,
    /// Occupies: one write-combined line is drained.
    pub line_drain: Cost,
    /// Flight: until a posted store is in the peer's memory. A load's request takes as long.
    pub posted_flight: Cost,
    /// Occupies: a write-through line is dropped from the cache.
    pub flush: Cost,
    /// Occupies: the remaining cost of a load whose prefetch came in time, or just too late.
    pub prefetch_residue: Cost,
    /// Occupies: one access to a side's own memory where it is mapped uncached.
    pub agent_access_uncached: Cost,
    /// Occupies: ringing a doorbell, for the ringing side.
    pub kick_send: Cost,
    /// Time that a kick takes on its way.
    pub kick_flight: Cost,
    /// Occupies: receiving a kick, for the core that was kicked.
    pub kick_receive: Cost,
    /// Occupies: starting a copy; also the agent's cost of storing a line into host memory.
    pub dma_submit: Cost,
    /// Flight: of a copy, whatever its size.
    pub dma_flight: Cost,
    /// Flight: of a copy, in addition for each KiB.
    pub dma_ns_per_kib: Cost,
    /// Occupies (coherent links): the first load of a line that another context changed.
    pub line_transfer: Cost,
}

/// A cost in nanoseconds, and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct Cost {
    /// Nanoseconds, at least 0 and at most a second.
    #[serde(serialize_with = "as_short_number")]
    pub ns: f64,
    /// Source of the figure: measured, printed, fitted or assumed.
    pub source: Source,
}

impl Cost {
    /// The figure, rounded to whole nanoseconds.
    pub fn nanos(&self) -> Nanos {
        Nanos(self.ns.round() as u64)
    }
}

/// The source of a figure. Written `kind: note`, for instance `paper: Table 2, row 1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Source {
    /// How far the figure can be trusted.
    pub kind: SourceKind,
    /// The table, the target of the fit, the reason for the assumption, or the method of measurement. Never empty.
    pub note: String,
}

/// How far a figure can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A paper prints the figure.
    Paper,
    /// With this figure, a model reproduces a figure that a paper prints.
    Fitted,
    /// Not measured; the note says why it is plausible.
    Assumed,
    /// The figure was measured.
    Measured,
}

impl SourceKind {
    const ALL: [(&'static str, SourceKind); 4] = [
        ("paper", SourceKind::Paper),
        ("fitted", SourceKind::Fitted),
        ("assumed", SourceKind::Assumed),
        ("measured", SourceKind::Measured),
    ];
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = SourceKind::ALL.iter().find(|(_, kind)| kind == self).map_or("", |(n, _)| n);
        f.write_str(name)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.note)
    }
}

impl From<Source> for String {
    fn from(source: Source) -> String {
        source.to_string()
    }
}

impl TryFrom<String> for Source {
    type Error = String;

    fn try_from(text: String) -> Result<Source, String> {
        let known = |name: &str| SourceKind::ALL.iter().find(|(known, _)| *known == name.trim());
        match text.split_once(':') {
            Some((kind, note)) if known(kind).is_some() && !note.trim().is_empty() => {
                let kind = known(kind).expect("just found").1;
                Ok(Source { kind, note: note.trim().to_owned() })
            }
            _ => Err(format!(
                "a source is `paper: ...`, `fitted: ...`, `assumed: ...` or `measured: ...`, \
                 not `{text}`"
            )),
        }
    }
}

/// An error in a cost file: its author's fault.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum CostsError {
    /// Not TOML, or not the fields of a cost file.
    #[error("not a cost file: {}", syntax(.0))]
    Syntax(#[from] toml::de::Error),
    /// A figure outside 0 to one second.
    #[error("{field} = {ns} ns: a cost lies between 0 and {NS_MAX} ns")]
    Range { field: &'static str, ns: f64 },
}

/// The error and its line number, in one line of text.
fn syntax(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let place = text.lines().next().unwrap_or_default();
    format!("{place}: {}", plain(error.message(), "a table"))
}

impl Costs {
    /// Reads and checks the text of a cost file.
    pub fn parse(text: &str) -> Result<Costs, CostsError> {
        let costs: Costs = toml::from_str(text)?;
        for (field, cost) in costs.all() {
            // NaN fails this, too.
            if !(0.0..=NS_MAX).contains(&cost.ns) {
                return Err(CostsError::Range { field, ns: cost.ns });
            }
        }
        Ok(costs)
    }

    /// A link with a built-in cost table: one of [`Costs::builtin_names`].
    pub fn builtin(name: &str) -> Option<Costs> {
        let text = Costs::builtin_text(name)?;
        Some(Costs::parse(text).expect("built-in cost files are tested"))
    }

    /// The text of the file of a built-in link.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// The names that [`Costs::builtin`] knows.
    pub fn builtin_names() -> &'static [&'static str] {
        const NAMES: [&str; BUILTIN.len()] = {
            let mut names = [""; BUILTIN.len()];
            let mut at = 0;
            while at < names.len() {
                names[at] = BUILTIN[at].0;
                at += 1;
            }
            names
        };
        &NAMES
    }

    /// The text of a cost file with these costs.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("strings, numbers and tables always have a TOML form")
    }

    /// Each cost with its name, in the file's order.
    pub fn all(&self) -> [(&'static str, &Cost); 14] {
        [
            ("host_read", &self.host_read),
            ("host_write", &self.host_write),
            ("line_drain", &self.line_drain),
            ("posted_flight", &self.posted_flight),
            ("flush", &self.flush),
            ("prefetch_residue", &self.prefetch_residue),
            ("agent_access_uncached", &self.agent_access_uncached),
            ("kick_send", &self.kick_send),
            ("kick_flight", &self.kick_flight),
            ("kick_receive", &self.kick_receive),
            ("dma_submit", &self.dma_submit),
            ("dma_flight", &self.dma_flight),
            ("dma_ns_per_kib", &self.dma_ns_per_kib),
            ("line_transfer", &self.line_transfer),
        ]
    }
}

/// Writes whole nanoseconds without a fraction, as people write them.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn as_short_number<S: serde::Serializer>(ns: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if ns.fract() == 0.0 && ns.abs() <= NS_MAX {
        serializer.serialize_u64(*ns as u64)
    } else {
        serializer.serialize_f64(*ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_costs_survive_a_round_trip() {
        for name in Costs::builtin_names() {
            let costs = Costs::builtin(name).unwrap();
            assert_eq!(costs.name, *name);
            assert_eq!(Costs::parse(&costs.to_toml()).unwrap(), costs);
        }
        assert!(Costs::builtin("none").is_none());
    }

    #[test]
    fn the_papers_figures_add_up() {
        let costs = Costs::builtin("mount-evans").unwrap();
        let ends = costs.kick_send.ns + costs.kick_flight.ns + costs.kick_receive.ns;
        // Fitted together with other rows, within the printed rounding.
        assert!((1550.0..=1650.0).contains(&ends), "{ends}");
        assert_eq!(costs.host_read.ns, 2.0 * costs.posted_flight.ns);
        assert_eq!(costs.host_read.source.kind, SourceKind::Paper);
        assert_eq!(costs.agent_access_uncached.nanos(), Nanos(98));
    }

    #[test]
    fn a_figure_without_a_source_is_refused() {
        let drop_note = MOUNT_EVANS.replace("paper: Table 2, row 1", "paper:");
        assert!(Costs::parse(&drop_note).unwrap_err().to_string().contains("a source is"));
        let no_source = MOUNT_EVANS.replace(", source = \"paper: Table 2, row 1\"", "");
        assert!(Costs::parse(&no_source).is_err());
    }

    #[test]
    fn an_unknown_or_missing_field_is_refused() {
        let more = format!("{MOUNT_EVANS}\nhost_reed = {{ ns = 1, source = \"assumed: x\" }}\n");
        assert!(Costs::parse(&more).is_err());
        let fewer = MOUNT_EVANS.replace("coherent = false", "");
        assert!(Costs::parse(&fewer).is_err());
    }

    #[test]
    fn a_figure_out_of_range_is_named() {
        for wrong in ["-1", "nan", "2e9"] {
            let text = MOUNT_EVANS.replace("ns = 750", &format!("ns = {wrong}"));
            let error = Costs::parse(&text).unwrap_err();
            assert!(matches!(error, CostsError::Range { field: "host_read", .. }));
        }
    }
}
