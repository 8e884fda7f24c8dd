//! The checkers: they keep their own record of every thread and core from observed events. [`RULES`] lists the checks.
//! Rules about threads also hold for the subjects of a modelled host (ADR 44).

use std::collections::HashMap;

use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message, Sequence, Subject, TxnId};
use wave_core::snapshot::{self, Record};
use wave_sched::wire::{Event, Kind};

use super::bounds::{Bounds, Excuses};
use super::invariant;
use crate::enclave::HostEvent;

/// Every rule: its name, and its statement. The bounds are those of [`super::bounds`].
pub const RULES: [(&str, &str); 20] = [
    ("thread", "a thread's messages describe a possible history, one version after the other"),
    ("class", "a thread's messages carry the class with which it was created or last woken"),
    (
        "subject",
        "a subject's messages describe a possible history, one version after the other, and agree with the host's records",
    ),
    ("refusal", "a host that refuses a decision has changed nothing"),
    ("model", "the host's own check passes"),
    ("once", "a thread gets onto a core only while it waits, and a core runs one at a time"),
    ("current", "a decision is committed only if it names the thread's generation and sequence"),
    ("slice", "the core's own timer ends a run not before its slice is over, and not much later"),
    ("answer", "as far as the host knows, it answers each decision of a window once, in order"),
    ("outcome", "the agent receives the outcome of each decision at most once, in order"),
    (
        "order",
        "the policy receives each thread's messages in order, with none missing between resyncs",
    ),
    (
        "revoked",
        "after an agent is turned out, a core commits at most the decision that it was reading",
    ),
    ("idle", "no core is idle while a thread waits, beyond a bound"),
    ("progress", "no thread waits beside an idle core for longer than `idles_for` and a bound"),
    (
        "recovery",
        "under any fault, a thread that waits beside an idle core is served within a bound",
    ),
    ("calm", "without a fault that excuses it, no agent is turned out, and none asks for a resync"),
    ("apart", "an enclave's history is independent of faults in another"),
    ("panic", "neither Wave nor the policy panics"),
    ("agent", "an honest agent never finds the host's window wrong"),
    ("end", "when the faults are over, every thread ends within a bound"),
];

/// A rule that a history broke, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Name of the rule, one of [`RULES`].
    pub rule: &'static str,
    /// The checker's observation, in words.
    pub what: String,
}

pub(super) fn broken(rule: &'static str, what: String) -> Result<(), Broken> {
    Err(Broken { rule, what })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits { since: Nanos },
    Runs { core: u16 },
    Blocked,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    generation: u32,
    sequence: Sequence,
    state: State,
    /// When it began to wait or run, or else when it was last heard of.
    since: Nanos,
    /// The class in NEW or in the last WAKEUP; 0 for a subject of a modelled host.
    class: u16,
}

impl Thread {
    fn shown(&self, id: u32) -> invariant::Thread {
        let core = match self.state {
            State::Runs { core } => Some(core),
            _ => None,
        };
        let Thread { generation, class, since, .. } = *self;
        invariant::Thread { id, generation, class, since, core }
    }
}

#[derive(Clone, Copy, Debug)]
struct Core {
    runs: Option<u32>,
    /// The slice of this run; zero if there is none, or if the run may end for another reason.
    slice: Nanos,
    idle_since: Option<Nanos>,
    online: bool,
    /// Number of the attachment that the core has adopted.
    adopted: u64,
    /// The last decision of that window that the core answered.
    answered: Option<TxnId>,
    /// Commits from a revoked window, since the core adopted a window.
    from_revoked: u32,
    /// Whether the core's window may contain invalid entries.
    tainted: bool,
}

/// The checkers' record of one enclave's host.
#[derive(Debug)]
pub struct Books {
    /// Subjects of a modelled host, in place of threads.
    is_modelled: bool,
    threads: HashMap<u32, Thread>,
    cores: Vec<Core>,
    attaches: u64,
    turned_at: Nanos,
    bounds: Bounds,
    excuses: Excuses,
    /// Whether the current window may contain invalid entries.
    tainted: bool,
    /// The longest time that a core was seen idle while a thread waited, without an excuse.
    idle_longest: Nanos,
    /// A hash over all events.
    hash: u64,
}

impl Books {
    /// Creates the record of `cores` idle cores, which run threads or, if `is_modelled`, the subjects of a modelled host.
    pub fn new(cores: u16, bounds: Bounds, is_modelled: bool) -> Books {
        let core = Core {
            runs: None,
            slice: Nanos(0),
            idle_since: Some(Nanos(0)),
            online: true,
            adopted: 0,
            answered: None,
            from_revoked: 0,
            tainted: false,
        };
        Books {
            is_modelled,
            threads: HashMap::new(),
            cores: vec![core; usize::from(cores)],
            attaches: 0,
            turned_at: Nanos(0),
            bounds,
            // The first agent has yet to attach.
            excuses: bounds.turn(Nanos(0)),
            tainted: false,
            idle_longest: Nanos(0),
            hash: 0,
        }
    }

    /// Adds the excuses of a fault.
    pub fn excuse(&mut self, excuses: Excuses) {
        self.excuses.add(excuses);
    }

    /// The time until which decisions may be slow, as far as is known.
    pub fn slow_until(&self) -> Nanos {
        self.excuses.slow
    }

    /// The time from which nothing is excused, as far as is known.
    pub fn calm_from(&self) -> Nanos {
        self.excuses.end()
    }

    /// The longest time that a core was seen idle while a thread waited, without an excuse.
    pub fn idle_longest(&self) -> Nanos {
        self.idle_longest
    }

    /// Equal for equal histories of this enclave.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Marks the current window: a fault writes invalid entries into it.
    pub fn taint(&mut self) {
        self.tainted = true;
        for core in &mut self.cores {
            (core.tainted, core.slice) = (true, Nanos(0));
        }
    }

    /// A core went offline, or came back online.
    pub fn set_online(&mut self, now: Nanos, core: u16, online: bool) {
        let core = &mut self.cores[usize::from(core)];
        (core.online, core.slice) = (online, Nanos(0));
        core.idle_since = core.idle_since.map(|_| now);
    }

    /// Checks and records an event on the host.
    pub fn on_event(&mut self, now: Nanos, event: &HostEvent) -> Result<(), Broken> {
        self.note(now, event);
        match *event {
            HostEvent::Changed(event) => self.changed(now, &event),
            HostEvent::Told { ref message, core, record } => {
                self.check_message(now, message, core, record)
            }
            HostEvent::Started { core, thread, sequence, decision } => {
                self.started(now, core, thread, sequence, decision)
            }
            HostEvent::Refused { decision, has_changed: true, .. } => broken(
                "refusal",
                format!("{decision:?} is refused, but the host's state has changed"),
            ),
            HostEvent::Refused { core, decision, .. } => self.answers(core, &decision),
            HostEvent::Idle { core } => {
                self.cores[usize::from(core)].idle_since = Some(now);
                Ok(())
            }
            HostEvent::Adopted { core } => {
                let core = &mut self.cores[usize::from(core)];
                (core.adopted, core.answered) = (self.attaches, None);
                core.tainted = self.tainted;
                core.from_revoked = 0;
                Ok(())
            }
            HostEvent::Attached => {
                self.turned(now);
                Ok(())
            }
            HostEvent::Lost { barked, fault } => {
                let excused = self.excuses.loss;
                self.turned(now);
                if now > excused {
                    return broken(
                        "calm",
                        format!("agent turned out (barked {barked}, fault {fault})"),
                    );
                }
                Ok(())
            }
            HostEvent::ResyncAsked => {
                if now > self.excuses.resync {
                    return broken("calm", "the agent asked for a resync".to_owned());
                }
                Ok(())
            }
        }
    }

    fn turned(&mut self, now: Nanos) {
        self.attaches += 1;
        self.turned_at = now;
        self.excuses.add(self.bounds.turn(now));
        self.tainted = false;
    }

    fn note(&mut self, now: Nanos, event: &HostEvent) {
        let (kind, subject, number) = match event {
            HostEvent::Changed(event) => (event.kind as u64, event.thread, event.sequence.0),
            HostEvent::Started { core, thread, sequence, .. } => {
                (1 << 16 | u64::from(*core), *thread, sequence.0)
            }
            HostEvent::Told { message, core, .. } => {
                let core = u64::from(core.map_or(0, |core| core + 1));
                (
                    u64::from(message.kind) << 32 | 8 << 16 | core,
                    message.subject,
                    message.sequence.0,
                )
            }
            HostEvent::Refused { core, decision, code, .. } => {
                (2 << 16 | u64::from(*core), decision.subject, *code as u32)
            }
            HostEvent::Idle { core } => (3 << 16 | u64::from(*core), Subject::default(), 0),
            HostEvent::Adopted { core } => (4 << 16 | u64::from(*core), Subject::default(), 0),
            HostEvent::Attached => (5 << 16, Subject::default(), 0),
            HostEvent::ResyncAsked => (6 << 16, Subject::default(), 0),
            HostEvent::Lost { .. } => (7 << 16, Subject::default(), 0),
        };
        for word in [now.0, kind, subject.to_word(), number.into()] {
            let mixed = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            self.hash = mixed.rotate_left(23);
        }
    }

    fn changed(&mut self, now: Nanos, event: &Event) -> Result<(), Broken> {
        let Event { kind, thread: Subject { id, generation }, sequence, core, class, .. } = *event;
        let before = self.threads.get(&id).copied();
        let possible = match (kind, before) {
            (Kind::New, None) => sequence == Sequence(1),
            (Kind::New, Some(thread)) => {
                thread.state == State::Gone && generation == thread.generation + 1
            }
            (_, None) => false,
            (Kind::Wakeup, Some(thread)) => thread.state == State::Blocked,
            (_, Some(thread)) => thread.state == State::Runs { core },
        };
        let follows = before.is_none_or(|thread| sequence == thread.sequence.next());
        let same =
            kind == Kind::New || before.is_some_and(|thread| thread.generation == generation);
        if !(possible && follows && same) {
            return broken("thread", format!("{event:?} after {before:?}"));
        }
        // Only a waker may give the thread another class.
        let sets_class = matches!(kind, Kind::New | Kind::Wakeup);
        if before.is_some_and(|thread| !sets_class && thread.class != class) {
            return broken("class", format!("{event:?} after {before:?}"));
        }
        let state = match kind {
            Kind::New | Kind::Wakeup | Kind::Yield | Kind::Preempt | Kind::Awaits => {
                State::Waits { since: now }
            }
            Kind::Blocked => State::Blocked,
            Kind::Dead | Kind::Departed => State::Gone,
        };
        self.threads.insert(id, Thread { generation, sequence, state, since: now, class });
        if !matches!(kind, Kind::New | Kind::Wakeup) {
            let place = &mut self.cores[usize::from(core)];
            place.runs = None;
            let slice = std::mem::take(&mut place.slice);
            let is_early = kind == Kind::Preempt && event.ran < slice;
            let is_late = event.ran > slice + self.bounds.late_max;
            if slice != Nanos(0) && (is_early || is_late) {
                return broken("slice", format!("{event:?}, of a slice of {} ns", slice.0));
            }
        }
        Ok(())
    }

    /// Checks a message of a modelled host. `core` is the core whose run it ends.
    fn check_message(
        &mut self,
        now: Nanos,
        message: &Message,
        core: Option<u16>,
        record: Option<Record>,
    ) -> Result<(), Broken> {
        let Message { subject: Subject { id, generation }, sequence, .. } = *message;
        let before = self.threads.get(&id).copied();
        let says = (message.subject, message.sequence);
        let record = record.filter(|record| (record.subject, record.sequence) == says);
        let runs = before.and_then(|thread| match thread.state {
            State::Runs { core } => Some(core),
            _ => None,
        });
        let state = match (record.map(|record| record.state), before.map(|thread| thread.state)) {
            (Some(snapshot::State::Runnable), Some(waits @ State::Waits { .. })) => waits,
            (Some(snapshot::State::Runnable), _) => State::Waits { since: now },
            (Some(snapshot::State::Running), Some(runs @ State::Runs { .. })) if core.is_none() => {
                runs
            }
            (Some(snapshot::State::Blocked), _) => State::Blocked,
            (Some(snapshot::State::Free), _) => State::Gone,
            (Some(snapshot::State::Running) | None, _) => {
                return broken("subject", format!("{message:?}, but the record is {record:?}"));
            }
        };
        let follows = before.is_none_or(|thread| {
            let life = thread.generation.wrapping_add(u32::from(thread.state == State::Gone));
            (sequence, generation) == (thread.sequence.next(), life)
        });
        let ends = match core {
            Some(_) => runs == core,
            None => runs.is_none() || matches!(state, State::Runs { .. }),
        };
        if !(follows && ends) {
            return broken("subject", format!("{message:?} on core {core:?} after {before:?}"));
        }
        self.threads.insert(id, Thread { generation, sequence, state, since: now, class: 0 });
        if let Some(core) = core {
            self.cores[usize::from(core)].runs = None;
        }
        Ok(())
    }

    fn started(
        &mut self,
        now: Nanos,
        core: u16,
        subject: Subject,
        sequence: Sequence,
        decision: Option<Decision>,
    ) -> Result<(), Broken> {
        if let Some(decision) = decision {
            self.answers(core, &decision)?;
            let place = &mut self.cores[usize::from(core)];
            place.from_revoked += u32::from(place.adopted != self.attaches);
            // The core may have been in the middle of a poll, which ends with one commit.
            if place.from_revoked > 1 {
                return broken("revoked", format!("core {core} committed {decision:?}"));
            }
        }
        let thread = self.threads.get_mut(&subject.id);
        let Some(thread) = thread.filter(|thread| {
            thread.generation == subject.generation && thread.sequence == sequence
        }) else {
            return broken("current", format!("core {core} runs {subject:?} at {sequence:?}"));
        };
        let state = std::mem::replace(&mut thread.state, State::Runs { core });
        thread.since = now;
        let place = &mut self.cores[usize::from(core)];
        let busy = place.runs.replace(subject.id);
        let has_slice = !place.tainted && place.online && !self.is_modelled;
        let slice = decision.filter(|_| has_slice);
        place.slice = slice.map_or(Nanos(0), |decision| Nanos(decision.argument));
        place.idle_since = None;
        if !matches!(state, State::Waits { .. }) || busy.is_some() {
            let what =
                format!("core {core} runs {subject:?}, which was {state:?}; before {busy:?}");
            return broken("once", what);
        }
        Ok(())
    }

    fn answers(&mut self, core: u16, decision: &Decision) -> Result<(), Broken> {
        let place = &mut self.cores[usize::from(core)];
        if place.tainted {
            return Ok(());
        }
        let expected = place.answered.map_or(TxnId::new(1), TxnId::next);
        place.answered = Some(decision.txn);
        if decision.txn != expected {
            return broken("answer", format!("core {core} answers {decision:?}, not {expected:?}"));
        }
        Ok(())
    }

    /// Looks for a core that is idle while a thread waits.
    pub fn check_idle_cores(&mut self, now: Nanos) -> Result<(), Broken> {
        let idle = self.cores.iter().filter(|core| core.online).filter_map(|core| core.idle_since);
        let Some(idle) = idle.min() else { return Ok(()) };
        let waits = self.threads.iter().filter_map(|(id, thread)| match thread.state {
            State::Waits { since } => Some((since, *id)),
            _ => None,
        });
        let Some((waits, id)) = waits.min() else { return Ok(()) };
        let since = idle.max(waits);
        let (rule, since, bound) = if since > self.excuses.slow {
            self.idle_longest = self.idle_longest.max(now.since(since));
            let rule = if self.bounds.on_purpose == Nanos(0) { "idle" } else { "progress" };
            (rule, since, self.bounds.idle_max + self.bounds.on_purpose)
        } else {
            ("recovery", since.max(self.turned_at), self.bounds.recovery_max)
        };
        if now.since(since) <= bound {
            return Ok(());
        }
        let both = now.since(since).0;
        let who = if self.is_modelled { "subject" } else { "thread" };
        let what = format!(
            "{who} {id} has waited and a core has been idle for {both} ns, at most {} are allowed",
            bound.0
        );
        broken(rule, what)
    }

    /// The threads that run, by core.
    pub fn running(&self) -> impl Iterator<Item = invariant::Thread> {
        let ids = self.cores.iter().filter_map(|core| core.runs);
        ids.filter_map(|id| self.threads.get(&id).map(|thread| thread.shown(id)))
    }

    /// The threads that wait, by number.
    pub fn waiting(&self) -> Vec<invariant::Thread> {
        let waits = |thread: &Thread| matches!(thread.state, State::Waits { .. });
        let waiting = self.threads.iter().filter(|(_, thread)| waits(thread));
        let mut waiting: Vec<_> = waiting.map(|(id, thread)| thread.shown(*id)).collect();
        waiting.sort_unstable_by_key(|thread| thread.id);
        waiting
    }

    /// Number of threads that have not ended, or of a modelled host's subjects that wait or run.
    pub fn living(&self) -> usize {
        let ends = |state| match state {
            State::Gone => true,
            State::Blocked => self.is_modelled,
            State::Waits { .. } | State::Runs { .. } => false,
        };
        self.threads.values().filter(|thread| !ends(thread.state)).count()
    }
}
