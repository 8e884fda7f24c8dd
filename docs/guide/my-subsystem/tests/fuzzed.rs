//! Histories of the subsystem under faults, and of hosts that break the contract.

use my_subsystem::disk::Disk;
use std::collections::{BTreeMap, HashMap};

use my_subsystem::SUBSYSTEM;
use my_subsystem::wire::DONE;
use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message};
use wave_core::modelled::{ModelSetup, ModelledHost};
use wave_core::outcome::Code;
use wave_core::policy::Choice;
use wave_core::snapshot::{Record, State};
use wave_core::subsystem::{MakeModel, Subsystem};
use wave_sim::fuzz::{FAULTS, Fault, Overrides, Plan, Report, run};

fn history(subsystem: &'static Subsystem, seed: u64, faults: &[Fault]) -> Report {
    let overrides = Overrides { subsystem: Some(subsystem), ..Overrides::default() };
    run(&Plan::new(seed, faults).with(&overrides))
}

#[test]
fn no_faulty_history_breaks_a_rule() {
    let mut faults = BTreeMap::new();
    for seed in 0..40 {
        let report = history(&SUBSYSTEM, seed, &[]);
        assert_eq!(report.violation, None, "seed {seed}");
        assert!(report.messages >= 10_000, "seed {seed}: {} messages", report.messages);
        for (fault, times) in report.faults {
            *faults.entry(fault).or_insert(0) += times;
        }
    }
    let never: Vec<_> = FAULTS.into_iter().filter(|fault| !faults.contains_key(fault)).collect();
    assert!(never.is_empty(), "never happened: {never:?}");
}

#[test]
fn the_number_of_subjects_is_limited_to_the_ids() {
    let threads = Some(5_000);
    let overrides = Overrides { subsystem: Some(&SUBSYSTEM), threads, ..Overrides::default() };
    assert_eq!(run(&Plan::new(3, &[]).with(&overrides)).violation, None);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let hash = |seed| history(&SUBSYSTEM, seed, &[]).trace_hash;
    assert_eq!(hash(3), hash(3));
    assert_ne!(hash(3), hash(4));
}

/// A disk that breaks one clause of the contract.
struct Broken {
    disk: Disk,
    how: How,
    commits: u32,
    /// The message that ends the second run of a request, by arm.
    twice: HashMap<u16, Message>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Commits a stale decision.
    CommitsTheStale,
    /// Serves a request that another arm is serving.
    ServesTwice,
    /// Refuses a decision, but commits another request.
    RefusesAndActs,
    /// Sends a message one sequence ahead of its request's record.
    SkipsASequence,
    /// Returns a record that contradicts the last message.
    RecordsSomethingElse,
    /// Serves no request without an agent.
    NeverFallsBack,
    /// Announces an event that never comes.
    AnnouncesNothing,
    FailsItsCheck,
    Panics,
}

impl ModelledHost for Broken {
    fn next_event(&self) -> Option<Nanos> {
        self.disk.next_event()
    }
    fn event(&mut self, now: Nanos) -> Option<Message> {
        if self.how == How::AnnouncesNothing && self.commits > 500 {
            return None;
        }
        let mut message = self.disk.event(now)?;
        if self.how == How::SkipsASequence && message.subject.generation == 5 {
            message.sequence = message.sequence.next();
        }
        Some(message)
    }
    fn commit(&mut self, now: Nanos, core: u16, decision: &Decision) -> Result<Nanos, Code> {
        self.commits += 1;
        let result = self.disk.commit(now, core, decision);
        let is_late = self.commits > 500;
        match (self.how, result) {
            (How::Panics, _) if is_late => panic!("the disk is broken"),
            (How::CommitsTheStale, Err(Code::TargetStale | Code::TargetNotFound)) => {
                // Applies the decision to the request that has the id now.
                let now_there =
                    self.disk.record(decision.subject.id).ok_or(Code::TargetNotFound)?;
                let (subject, sequence) = (now_there.subject, now_there.sequence);
                self.disk.commit(now, core, &Decision { subject, sequence, ..*decision })
            }
            (How::ServesTwice, Err(Code::TargetOnCpu)) => {
                let (subject, sequence) = (decision.subject, decision.sequence.next());
                let done = Message {
                    kind: DONE,
                    subject,
                    sequence,
                    argument: core.into(),
                    payload: [0; 3],
                };
                self.twice.insert(core, done);
                Ok(Nanos(5_000))
            }
            (How::RefusesAndActs, Err(code)) => {
                let next = self.disk.fallback(core).ok_or(code)?;
                let Choice { kind, subject, sequence, .. } = next;
                let other = Decision { kind, subject, sequence, ..*decision };
                let _ = self.disk.commit(now, core, &other);
                Err(code)
            }
            (_, result) => result,
        }
    }
    fn finish(&mut self, now: Nanos, core: u16) -> Message {
        self.twice.remove(&core).unwrap_or_else(|| self.disk.finish(now, core))
    }
    fn fallback(&mut self, core: u16) -> Option<Choice> {
        (self.how != How::NeverFallsBack).then(|| self.disk.fallback(core)).flatten()
    }
    fn record(&self, id: u32) -> Option<Record> {
        let mut record = self.disk.record(id)?;
        let is_it = record.subject.generation == 5 && record.state == State::Free;
        if self.how == How::RecordsSomethingElse && is_it {
            record.state = State::Running;
        }
        Some(record)
    }
    fn run_max(&self) -> Nanos {
        self.disk.run_max()
    }
    fn stop(&mut self) {
        self.disk.stop();
    }
    fn check(&self) -> Result<(), String> {
        match self.how == How::FailsItsCheck && self.commits > 500 {
            true => Err("an arm is lost".to_owned()),
            false => self.disk.check(),
        }
    }
}

/// The subsystem with a disk that breaks the contract in this way. A macro, because a model's constructor cannot capture
/// variables.
macro_rules! broken {
    ($how:ident) => {{
        let make: MakeModel = |setup: &ModelSetup| {
            Box::new(Broken {
                disk: Disk::new(setup),
                how: How::$how,
                commits: 0,
                twice: HashMap::new(),
            })
        };
        &*Box::leak(Box::new(Subsystem { model: Some(make), ..SUBSYSTEM }))
    }};
}

/// The rules that any of a dozen histories with these faults break; no faults means all kinds of faults.
fn rules(subsystem: &'static Subsystem, faults: &[Fault]) -> Vec<&'static str> {
    let broken = (0..12).filter_map(|seed| history(subsystem, seed, faults).violation);
    let mut rules: Vec<_> = broken.map(|violation| violation.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

#[test]
fn a_host_that_breaks_the_contract_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let expected = [
        (broken!(CommitsTheStale), "current"),
        (broken!(ServesTwice), "once"),
        (broken!(RefusesAndActs), "refusal"),
        (broken!(SkipsASequence), "subject"),
        (broken!(RecordsSomethingElse), "subject"),
        (broken!(FailsItsCheck), "model"),
        (broken!(NeverFallsBack), "recovery"),
        (broken!(AnnouncesNothing), "panic"),
        (broken!(Panics), "panic"),
    ];
    for (subsystem, rule) in expected {
        // The host's fallback runs only while an agent stays away.
        let faults: &[_] = if rule == "recovery" { &[Fault::AgentCrash] } else { &[] };
        let rules = rules(subsystem, faults);
        println!("{rule}: {rules:?}");
        assert!(rules.contains(&rule), "{rule} not among {rules:?}");
    }
}
