//! The costs of a modelled machine's own work, each figure with its source. The costs of the link are
//! in [`wave_links::costs::Costs`].

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_links::costs::Source;

/// The machines that come with this crate.
const BUILTIN: &[(&str, &str)] = &[
    ("ghost", include_str!("../machines/ghost.toml")),
    ("ghost-on-host", include_str!("../machines/ghost-on-host.toml")),
    ("user", include_str!("../machines/user.toml")),
    ("shinjuku", include_str!("../machines/shinjuku.toml")),
    ("shinjuku-offload", include_str!("../machines/shinjuku-offload.toml")),
    ("shinjuku-ideal", include_str!("../machines/shinjuku-ideal.toml")),
];

/// One figure: in nanoseconds, unless its field says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The figure, in the unit of its field.
    pub value: f64,
    /// Source of the figure: measured, printed, fitted or assumed.
    pub source: Source,
}

impl Figure {
    /// The figure, rounded to whole nanoseconds.
    pub fn nanos(&self) -> Nanos {
        Nanos(self.value.round() as u64)
    }
}

/// A machine, as a TOML file states it. A file with a missing or an unknown figure is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name of the machine in results.
    pub name: String,
    /// One sentence on what is modelled.
    pub description: String,
    /// The host's work at the end of a run, before its message goes out. A prefetch overlaps it.
    pub switch_before: Figure,
    /// The host's work from a committed decision until the thread runs.
    pub switch_after: Figure,
    /// The remaining cost of reading a prefetched decision, in addition to the link's own
    /// `prefetch_residue`: work that does not overlap.
    pub prefetch_residue: Figure,
    /// Setting the core's own timer, for a run with a slice.
    pub timer_set: Figure,
    /// How late that timer expires; the run continues meanwhile.
    pub timer_late: Figure,
    /// Taking the timer's interrupt, which ends the run.
    pub timer_receive: Figure,
    /// From an interrupt until an idle core executes again, in addition to the link's `kick_receive`.
    pub idle_exit: Figure,
    /// The host's work for a message that an outside context sends (creating or waking a thread).
    pub spawn: Figure,
    /// The agent's work for a message, without its queue's accesses.
    pub agent_message: Figure,
    /// The agent's work for a decision, without its queue's accesses.
    pub agent_decision: Figure,
    /// One round of the agent's loop.
    pub agent_poll: Figure,
    /// The agent's clock rate, in GHz, at which the agent's costs were measured or fitted.
    pub agent_ghz: Figure,
    /// Words that the host reads for a decision, beyond those of Wave's entry (a count).
    pub decision_words_read_more: Figure,
    /// Words that the agent writes for a decision, beyond those of Wave's entry (a count).
    pub decision_words_written_more: Figure,
    /// Words that the agent touches for a message, beyond those of Wave's entry (a count).
    pub message_words_more: Figure,
    /// Cost of a request for its core, in addition to the request's own service time.
    pub request_overhead: Figure,
    /// Context switches that the host does for one request (a count, with a fraction).
    pub crossings_per_request: Figure,
    /// Running threads check the preemption word themselves, at safe points. Without this, a kick interrupts
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safe_points: Option<SafePoints>,
    /// The agent and the generators share a CPU, which each yields between looks. Without this, each has
    /// a CPU of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_cpu: Option<SharedCpu>,
    /// The agent's work is divided over three CPUs in a pipeline: one receives, one decides, one sends. Without this, one
    /// CPU does all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Pipeline>,
}

/// The CPUs beside the deciding one, which runs the agent's loop (Mind the Gap, section 3.4.1). Messages from outside
/// contexts do not pass through them: a networker hands those over in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Time for which a core's message occupies the receiving CPU, before the agent's loop can see it.
    pub receive: Figure,
    /// Time for which a decision occupies the sending CPU. It is a part of the link's path to the host, whose total stays
    /// `dma_submit` plus `dma_flight`.
    pub send: Figure,
}

impl Pipeline {
    fn all(&self) -> [(&'static str, &Figure); 2] {
        [("receive", &self.receive), ("send", &self.send)]
    }
}

/// Costs of preemption at safe points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SafePoints {
    /// From the time at which the preemption word is visible until the thread has left, without reading its line.
    pub leave: Figure,
    /// Time for which the kick of a core that does not sleep occupies the agent, instead of the link's
    /// `kick_send`. The core is not interrupted.
    pub ring_core: Figure,
}

impl SafePoints {
    fn all(&self) -> [(&'static str, &Figure); 2] {
        [("leave", &self.leave), ("ring_core", &self.ring_core)]
    }
}

/// Costs of sharing a CPU. Of the parts of one round (generator, switch, agent, switch), only the sum
/// matters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedCpu {
    /// From yielding the CPU until another task, which waited for it, runs.
    pub yield_switch: Figure,
    /// Yielding the CPU when no other task waits for it.
    pub yield_alone: Figure,
    /// The generator's work between two looks at the clock, without yielding the CPU.
    pub generator_look: Figure,
    /// Time for which waking a sleeping agent occupies the waking context, instead of the link's `kick_send`.
    pub ring_agent: Figure,
    /// From getting the CPU until an agent that slept polls again.
    pub wake_agent: Figure,
    /// Time of the CPU that the control context takes each time it checks the agent.
    pub control_look: Figure,
}

impl SharedCpu {
    fn all(&self) -> [(&'static str, &Figure); 6] {
        [
            ("yield_switch", &self.yield_switch),
            ("yield_alone", &self.yield_alone),
            ("generator_look", &self.generator_look),
            ("ring_agent", &self.ring_agent),
            ("wake_agent", &self.wake_agent),
            ("control_look", &self.control_look),
        ]
    }
}

/// An error in a machine file: its author's fault.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum MachineError {
    /// Not TOML, or not the figures of a machine.
    #[error("not a machine file: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A figure that is negative or too large.
    #[error("{field} = {value}: a figure lies between 0 and 1e9")]
    Range { field: &'static str, value: f64 },
}

impl Machine {
    /// Reads and checks the text of a machine file.
    pub fn parse(text: &str) -> Result<Machine, MachineError> {
        let machine: Machine = toml::from_str(text)?;
        for (field, figure) in machine.all() {
            // A clock rate of zero is refused. NaN fails this check, too.
            let stands_still = field == "agent_ghz" && figure.value == 0.0;
            if stands_still || !(0.0..=1e9).contains(&figure.value) {
                return Err(MachineError::Range { field, value: figure.value });
            }
        }
        Ok(machine)
    }

    /// A machine that comes with this crate: one of [`Machine::builtin_names`].
    pub fn builtin(name: &str) -> Option<Machine> {
        let text = Machine::builtin_text(name)?;
        Some(Machine::parse(text).expect("built-in machine files are tested"))
    }

    /// The text of the file of a built-in machine.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// The names that [`Machine::builtin`] knows.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// The text of a machine file with these figures.
    pub fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut text = format!(
            "name = {}\ndescription = {}\n\n",
            quoted(&self.name),
            quoted(&self.description)
        );
        let tables = [
            ("safe_points", self.safe_points.iter().flat_map(SafePoints::all).collect()),
            ("shared_cpu", self.shared_cpu.iter().flat_map(SharedCpu::all).collect::<Vec<_>>()),
            ("pipeline", self.pipeline.iter().flat_map(Pipeline::all).collect()),
        ];
        for (table, figures) in [("", self.own())].into_iter().chain(tables) {
            if !table.is_empty() && !figures.is_empty() {
                text.push_str(&format!("\n[{table}]\n"));
            }
            for (name, Figure { value, source }) in figures {
                let source = quoted(&source.to_string());
                text.push_str(&format!("{name} = {{ value = {value}, source = {source} }}\n"));
            }
        }
        text
    }

    /// Each figure with its name, in the file's order.
    pub fn all(&self) -> Vec<(&'static str, &Figure)> {
        let mut all = self.own();
        all.extend(self.safe_points.iter().flat_map(SafePoints::all));
        all.extend(self.shared_cpu.iter().flat_map(SharedCpu::all));
        all.extend(self.pipeline.iter().flat_map(Pipeline::all));
        all
    }

    /// The figures that every machine has.
    fn own(&self) -> Vec<(&'static str, &Figure)> {
        vec![
            ("switch_before", &self.switch_before),
            ("switch_after", &self.switch_after),
            ("prefetch_residue", &self.prefetch_residue),
            ("timer_set", &self.timer_set),
            ("timer_late", &self.timer_late),
            ("timer_receive", &self.timer_receive),
            ("idle_exit", &self.idle_exit),
            ("spawn", &self.spawn),
            ("agent_message", &self.agent_message),
            ("agent_decision", &self.agent_decision),
            ("agent_poll", &self.agent_poll),
            ("agent_ghz", &self.agent_ghz),
            ("decision_words_read_more", &self.decision_words_read_more),
            ("decision_words_written_more", &self.decision_words_written_more),
            ("message_words_more", &self.message_words_more),
            ("request_overhead", &self.request_overhead),
            ("crossings_per_request", &self.crossings_per_request),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_machines_are_valid() {
        for name in Machine::builtin_names() {
            let machine = Machine::builtin(name).unwrap();
            assert_eq!(machine.name, name);
            assert_eq!(Machine::parse(&machine.to_toml()).unwrap(), machine);
        }
    }

    #[test]
    fn a_figure_without_a_source_or_below_zero_is_refused() {
        let ghost = BUILTIN[0].1;
        let negative = ghost.replacen("value = ", "value = -", 1);
        assert!(matches!(Machine::parse(&negative), Err(MachineError::Range { .. })));
        let at = ghost.find(", source").unwrap();
        let end = ghost[at..].find(" }").unwrap() + at;
        let without = format!("{}{}", &ghost[..at], &ghost[end..]);
        assert!(matches!(Machine::parse(&without), Err(MachineError::Syntax(_))));
    }
}
