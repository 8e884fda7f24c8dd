//! A log as a trace: the runs of each core, and all messages to and decisions of the agent.
//!
//! Times are the agent's: a message is shown when the agent read it, not when the host sent it.

mod command;
mod event;
#[cfg(test)]
pub mod tests;
mod waiting;

use std::collections::VecDeque;
use std::io::{self, Write};

use serde_json::{Value, json};
use wave_core::brain::Input;
use wave_core::clock::Nanos;
use wave_core::log::{Header, Record, What};
use wave_core::message::{Decision, Message, Subject, Upstream};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::Note;
use wave_core::snapshot::{Snapshot, State};
use wave_core::subsystem::{EndedRun, Show, Shown};

pub use command::{TraceArgs, execute};
use event::{Track, Writer};
use waiting::Waiting;

/// Maximum number of decisions for one core that are kept until their outcomes arrive. With an honest host far fewer
/// are outstanding at a time.
const UNANSWERED_MAX: usize = 1 << 16;

/// The part of a log to show, in the agent's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Start of the span, on the agent's clock.
    pub from: Nanos,
    /// End of the span, inclusive.
    pub until: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// `None` if the log does not have the decision.
    subject: Option<Subject>,
    shown: bool,
    /// Time after which the core's own timer ends the run; 0 if it does not.
    slice_ns: u64,
}

#[derive(Debug, Default)]
struct Core {
    running: Option<Run>,
    /// The core's run number, as of the last outcome or snapshot.
    run: Option<u32>,
    /// The run that the agent last asked to end, and the time of asking.
    asked: Option<(u32, Nanos)>,
    /// Decisions without an outcome, oldest first, and whether each is shown as in flight.
    unanswered: VecDeque<(Decision, bool)>,
}

/// Turns records into a trace, one by one.
pub struct Trace<W: Write> {
    writer: Writer<W>,
    show: Show,
    span: Span,
    /// Whether the span has begun.
    on: bool,
    now: Nanos,
    cores: Vec<Core>,
    waiting: Waiting,
    counted: Option<u64>,
}

impl<W: Write> Trace<W> {
    /// Begins the trace of a log with this header; `show` describes the messages and decisions of its subsystem.
    pub fn new(header: &Header, show: Show, span: Span, out: W) -> io::Result<Trace<W>> {
        let about = json!({ "policy": header.policy, "about": header.about });
        let mut writer = Writer::new(out, &about)?;
        let (cores, contexts) = (header.config.cores, header.config.contexts);
        for core in 0..cores {
            writer.name(Track::Context(core), "host", &format!("core {core}"))?;
        }
        for context in 0..contexts {
            let name = if context + 1 == contexts { "control" } else { "outside" };
            writer.name(Track::Context(cores + context), "host", &format!("{name} {context}"))?;
        }
        writer.name(Track::Policy, "agent", &format!("policy {}", header.policy))?;
        Ok(Trace {
            writer,
            show,
            span,
            on: false,
            now: Nanos(0),
            cores: (0..cores).map(|_| Core::default()).collect(),
            waiting: Waiting::new(header.config.subjects),
            counted: None,
        })
    }

    /// Takes the next record. Returns whether the span continues after it.
    pub fn feed(&mut self, record: &Record) -> io::Result<bool> {
        if record.now > self.span.until {
            return Ok(false);
        }
        if record.now != self.now {
            self.count()?;
        }
        if !self.on && record.now >= self.span.from {
            self.turn_on()?;
        }
        self.now = record.now;
        match &record.what {
            What::Input(Input::Entry { context, entry }) => self.entry(*context, entry)?,
            What::Input(Input::Snapshot(snapshot)) => self.snapshot(snapshot)?,
            What::Input(Input::Note(note)) => self.note("note in", note)?,
            What::Input(Input::Bulk(words)) => {
                let args = json!({ "words": words.len() });
                self.instant(Track::Policy, "message", "bulk data", args)?;
            }
            What::Input(Input::Decide { .. }) => {}
            What::Decided { core, decision } => self.decided(*core, decision)?,
            What::Preempted(preemption) => {
                if self.is_core(preemption.core) {
                    self.core(preemption.core).asked = Some((preemption.run, record.now));
                }
                let args = json!({ "run": preemption.run });
                self.instant(Track::Context(preemption.core), "preempt", "preempt", args)?;
            }
            What::Noted(note) => self.note("note out", note)?,
            What::Kicked { core } => {
                self.instant(Track::Context(*core), "kick", "kick", Value::Null)?;
            }
        }
        Ok(true)
    }

    /// Ends the trace and every run in it. Returns the number of events.
    pub fn finish(mut self) -> io::Result<u64> {
        self.count()?;
        for core in 0..self.cores.len() as u16 {
            self.end_run(core, json!({ "ended": "the trace ends" }))?;
            while let Some((decision, shown)) = self.core(core).unanswered.pop_front() {
                self.arrived(core, &decision, shown, json!({ "outcome": "not in the trace" }))?;
            }
        }
        let events = self.writer.events();
        self.writer.finish()?;
        Ok(events)
    }

    /// Begins the span, with every run in progress.
    fn turn_on(&mut self) -> io::Result<()> {
        self.on = true;
        let from = self.span.from;
        for (core, state) in self.cores.iter_mut().enumerate() {
            if let Some(run) = &mut state.running {
                run.shown = true;
                let name = name_of(&self.show, run.subject);
                let args = json!({ "began": "before the trace" });
                self.writer.begin(from, Track::Context(core as u16), &name, args)?;
            }
        }
        Ok(())
    }

    fn core(&mut self, core: u16) -> &mut Core {
        &mut self.cores[usize::from(core)]
    }

    fn is_core(&self, context: u16) -> bool {
        usize::from(context) < self.cores.len()
    }

    fn instant(&mut self, track: Track, category: &str, name: &str, args: Value) -> io::Result<()> {
        if self.on { self.writer.instant(self.now, track, category, name, args) } else { Ok(()) }
    }

    fn entry(&mut self, context: u16, entry: &Upstream) -> io::Result<()> {
        if let Some(message) = &entry.message {
            self.message(context, message)?;
        }
        // Same order as in the agent: in the host's time, asking precedes the outcome.
        if entry.asks {
            self.instant(Track::Context(context), "message", "asks", Value::Null)?;
        }
        match entry.outcome {
            Some(outcome) if self.is_core(context) => self.outcome(context, outcome),
            _ => Ok(()),
        }
    }

    fn message(&mut self, context: u16, message: &Message) -> io::Result<()> {
        let track = Track::Context(context);
        let subject = message.subject;
        let Some(understood) = (self.show.message)(message) else {
            let name = format!("message of kind {}", message.kind);
            return self.instant(track, "message", &name, json!({ "subject": subject.id }));
        };
        if let Some(waits) = understood.waits {
            self.waiting.on_message(message, waits);
        }
        let Shown { name: kind, fields } = understood.shown;
        let mut args = json!({
            self.show.subject: subject.id,
            "generation": subject.generation,
            "sequence": message.sequence.0,
        });
        add_fields(&mut args, &fields);
        let name = format!("{kind} {}", name_of(&self.show, Some(subject)));
        self.instant(track, "message", &name, args)?;
        match understood.ends_run {
            Some(EndedRun { core, is_forced }) if self.is_core(core) => {
                let mut args = json!({ "ended": kind });
                add_fields(&mut args, &fields);
                if is_forced {
                    args["why"] = self.why_preempted(core).into();
                }
                self.end_run(core, args)
            }
            _ => Ok(()),
        }
    }

    /// Reason for the preemption of a core's run, as far as the log shows it.
    fn why_preempted(&self, core: u16) -> String {
        let Core { asked, run, running, .. } = &self.cores[usize::from(core)];
        match (asked, running) {
            (Some((number, at)), _) if Some(*number) == *run => {
                format!(
                    "the agent asked for it {} ns before it learned of it",
                    self.now.since(*at).0
                )
            }
            (_, Some(Run { slice_ns, .. })) if *slice_ns > 0 => {
                format!("its slice of {slice_ns} ns was over")
            }
            _ => "the host wanted its core".to_owned(),
        }
    }

    fn outcome(&mut self, core: u16, outcome: Outcome) -> io::Result<()> {
        let Outcome { txn, code, run } = outcome;
        let unanswered = &mut self.core(core).unanswered;
        let at = unanswered.iter().position(|(decision, _)| decision.txn == txn);
        // Outcomes come in order: an earlier decision without one was lost.
        for _ in 0..at.unwrap_or(0) {
            if let Some((lost, shown)) = self.core(core).unanswered.pop_front() {
                self.arrived(core, &lost, shown, json!({ "outcome": "lost" }))?;
            }
        }
        let answered = at.and_then(|_| self.core(core).unanswered.pop_front());
        if let Some((decision, shown)) = answered {
            self.arrived(core, &decision, shown, json!({ "outcome": code.name() }))?;
        }
        let subject = answered.map(|(decision, _)| decision.subject);
        let mut args = json!({ "txn": txn.number(), "code": code.name(), "run": run });
        if let Some(subject) = subject {
            args[self.show.subject] = subject.id.into();
            args["generation"] = subject.generation.into();
        }
        let complete = code == Code::Complete;
        if !complete {
            args["reason"] = reason(code).into();
        }
        let category = if complete { "outcome" } else { "failure" };
        let name = format!("{} {}", code.name(), name_of(&self.show, subject));
        self.instant(Track::Context(core), category, &name, args)?;
        if complete {
            if let Some((decision, _)) = &answered {
                self.waiting.on_complete(decision);
            }
            if self.show.occupies_core {
                self.end_run(core, json!({ "ended": "not recorded" }))?;
                let slice_ns = answered.map_or(0, |(decision, _)| decision.argument);
                let args = json!({ "txn": txn.number(), "run": run, "slice_ns": slice_ns });
                self.begin_run(core, run, subject, slice_ns, args)?;
            }
        }
        Ok(())
    }

    fn decided(&mut self, core: u16, decision: &Decision) -> io::Result<()> {
        let Decision { subject, sequence, txn, .. } = decision;
        let Shown { name, fields } = (self.show.decision)(decision);
        let mut args = json!({
            "txn": txn.number(),
            "core": core,
            self.show.subject: subject.id,
            "generation": subject.generation,
            "sequence": sequence.0,
        });
        add_fields(&mut args, &fields);
        let name = format!("{name} {} for core {core}", name_of(&self.show, Some(*subject)));
        self.instant(Track::Policy, "decision", &name, args.clone())?;
        let shown = self.on;
        if shown {
            let (name, id) = on_its_way(core, decision);
            self.writer.on_its_way(self.now, true, &name, &id, args)?;
        }
        let unanswered = &mut self.core(core).unanswered;
        if unanswered.len() == UNANSWERED_MAX {
            unanswered.pop_front();
        }
        unanswered.push_back((*decision, shown));
        Ok(())
    }

    fn arrived(
        &mut self,
        core: u16,
        decision: &Decision,
        shown: bool,
        args: Value,
    ) -> io::Result<()> {
        let (name, id) = on_its_way(core, decision);
        if shown { self.writer.on_its_way(self.now, false, &name, &id, args) } else { Ok(()) }
    }

    fn note(&mut self, name: &str, note: &Note) -> io::Result<()> {
        let args = json!({ "kind": note.kind, "subject": note.subject.id, "words": note.words });
        self.instant(Track::Policy, "note", name, args)
    }

    fn snapshot(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let args = json!({ "subjects": snapshot.records.len() });
        self.instant(Track::Policy, "message", "snapshot", args)?;
        self.waiting.on_snapshot(snapshot);
        for (core, record) in (0..).zip(&snapshot.cores) {
            // A record older than the last outcome says nothing about a newer run.
            let known = self.core(core).run;
            if known.is_some_and(|known| record.run.wrapping_sub(known) as i32 <= 0) {
                continue;
            }
            self.end_run(core, json!({ "ended": "before a snapshot" }))?;
            self.core(core).run = Some(record.run);
            let runs = |record: &&wave_core::snapshot::Record| {
                record.state == State::Running && record.core == core
            };
            if let Some(record) = snapshot.records.iter().find(runs) {
                let args = json!({ "began": "before a snapshot" });
                let run = snapshot.cores[usize::from(core)].run;
                self.begin_run(core, run, Some(record.subject), 0, args)?;
            }
        }
        Ok(())
    }

    fn begin_run(
        &mut self,
        core: u16,
        run: u32,
        subject: Option<Subject>,
        slice_ns: u64,
        args: Value,
    ) -> io::Result<()> {
        let shown = self.on;
        let state = self.core(core);
        state.run = Some(run);
        state.running = Some(Run { subject, shown, slice_ns });
        let (track, name) = (Track::Context(core), name_of(&self.show, subject));
        if shown { self.writer.begin(self.now, track, &name, args) } else { Ok(()) }
    }

    fn end_run(&mut self, core: u16, args: Value) -> io::Result<()> {
        let Some(run) = self.core(core).running.take() else { return Ok(()) };
        let (track, name) = (Track::Context(core), name_of(&self.show, run.subject));
        if run.shown { self.writer.end(self.now, track, &name, args) } else { Ok(()) }
    }

    /// Writes the number of waiting subjects at the end of a moment, if it changed.
    fn count(&mut self) -> io::Result<()> {
        let count = self.waiting.count();
        if self.on && self.show.occupies_core && self.counted.replace(count) != Some(count) {
            let name = format!("waiting {}s", self.show.subject);
            self.writer.counter(self.now, &name, count)?;
        }
        Ok(())
    }
}

fn name_of(show: &Show, subject: Option<Subject>) -> String {
    match subject {
        Some(Subject { id, generation }) => format!("{} {id} gen {generation}", show.subject),
        None => format!("unknown {}", show.subject),
    }
}

fn add_fields(args: &mut Value, fields: &[(&'static str, u64)]) {
    for (name, value) in fields {
        args[*name] = (*value).into();
    }
}

/// Name and id of a decision in flight.
fn on_its_way(core: u16, decision: &Decision) -> (String, String) {
    (format!("to core {core}"), format!("{core}.{}", decision.txn.number()))
}

/// Text for the reason why a decision failed.
fn reason(code: Code) -> &'static str {
    match code {
        Code::Complete => "the decision was committed",
        Code::Aborted => "the agent withdrew it before the host read it",
        Code::TargetOnCpu => "the thread is already running",
        Code::TargetStale => "the thread's state changed, and the agent had not seen that",
        Code::TargetNotFound => "the thread no longer exists",
        Code::TargetNotRunnable => "the thread is blocked",
        Code::AgentStale => "the agent has been replaced",
        Code::CpuOffline => "the core is offline",
        Code::CpuUnavailable => "a higher class owns the core",
        Code::InvalidFlags => "the host does not know its flags",
        Code::InvalidTarget => "the target cannot be scheduled at all",
        Code::NotPermitted => "the thread or the core belongs to another enclave",
        Code::InvalidCpu => "there is no such core",
        Code::NoAgent => "no agent is attached",
        Code::UnsupportedVersion => "this version of the host does not support the entry",
        Code::Poisoned => "another member of its all-or-nothing group failed",
        Code::Affinity => "the thread may not run on this core",
        Code::Unsupported => {
            "the host cannot commit such a group, or cannot end a run as requested"
        }
        Code::Held => "a limit on the host holds it back",
        Code::Partial => "a part of it was done; the rest may follow",
    }
}
