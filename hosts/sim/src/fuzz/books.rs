//! The checkers: books of their own about every thread and core, kept from what is seen to happen.
//!
//! | rule | what it says |
//! | --- | --- |
//! | `thread` | a thread's messages tell a possible life, one version after the other |
//! | `once` | a thread gets onto a core only while it waits, and a core runs one at a time |
//! | `current` | a decision is committed only if it names the thread's generation and sequence |
//! | `answer` | each decision of a window is answered once, in order, to the host's own knowledge |
//! | `outcome` | the agent hears of each decision once, in order |
//! | `order` | the policy hears each thread's messages in order, with none missing between resyncs |
//! | `revoked` | nothing that a revoked agent left is committed |
//! | `idle` | no core is idle while a thread waits, beyond a bound |
//! | `calm` | without a fault that explains it, the watchdog does not bark and nobody asks for a resync |
//! | `agent` | an honest agent never finds the host's window wrong |
//! | `end` | when the faults are over, every thread ends within a bound |

use std::collections::HashMap;

use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message, Sequence, Subject, TxnId, Upstream};
use wave_sched::wire::{Event, Kind};

use crate::enclave::HostEvent;

/// How long a core may be idle beside a waiting thread while nothing is wrong: longer than the
/// longest chain of a prestaged decision, a run that it waits for, and a kick.
pub const IDLE_MAX: Nanos = Nanos::from_millis(1);
/// How long a core may take, beside its look at a queue, to turn from a revoked window.
const REVOKED_GRACE: Nanos = Nanos::from_micros(60);

/// A rule was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which: a name of the table above.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

fn broken(rule: &'static str, what: String) -> Result<(), Broken> {
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
}

#[derive(Clone, Copy, Debug)]
struct Core {
    runs: Option<u32>,
    idle_since: Option<Nanos>,
    online: bool,
    /// The attach that it has adopted.
    adopted: u64,
    /// The last decision of that window that it answered.
    answered: Option<TxnId>,
    /// Whether entries of the window that it looks at may be anything.
    tainted: bool,
}

/// The books of one enclave's host.
#[derive(Debug)]
pub struct Books {
    threads: HashMap<u32, Thread>,
    cores: Vec<Core>,
    attaches: u64,
    attached_at: Nanos,
    /// The longest look at a queue of decisions: a core finishes it, whatever happens meanwhile.
    look_max: Nanos,
    /// Until then some fault may explain what is slow, or asked for again.
    disturbed_until: Nanos,
    /// Whether entries of this window may be anything.
    tainted: bool,
}

impl Books {
    /// Books of so many cores, all idle, whose looks at their queues take `look_max` at most.
    pub fn new(cores: u16, look_max: Nanos) -> Books {
        let core = Core {
            runs: None,
            idle_since: Some(Nanos(0)),
            online: true,
            adopted: 0,
            answered: None,
            tainted: false,
        };
        Books {
            threads: HashMap::new(),
            cores: vec![core; usize::from(cores)],
            attaches: 0,
            attached_at: Nanos(0),
            look_max,
            // The first agent has to attach.
            disturbed_until: Nanos::from_millis(2),
            tainted: false,
        }
    }

    /// A fault may show until then.
    pub fn disturb(&mut self, until: Nanos) {
        self.disturbed_until = self.disturbed_until.max(until);
    }

    /// Somebody writes nonsense into the current window.
    pub fn taint(&mut self) {
        self.tainted = true;
        self.cores.iter_mut().for_each(|core| core.tainted = true);
    }

    /// A core went offline, or came back.
    pub fn set_online(&mut self, now: Nanos, core: u16, online: bool) {
        let core = &mut self.cores[usize::from(core)];
        core.online = online;
        core.idle_since = core.idle_since.map(|_| now);
    }

    /// Something happened on the host.
    pub fn on_event(&mut self, now: Nanos, event: &HostEvent) -> Result<(), Broken> {
        match *event {
            HostEvent::Changed(event) => self.changed(now, &event),
            HostEvent::Started { core, thread, sequence, decision } => {
                self.started(now, core, thread, sequence, decision)
            }
            HostEvent::Refused { core, decision, .. } => self.answers(core, &decision),
            HostEvent::Idle { core } => {
                self.cores[usize::from(core)].idle_since = Some(now);
                Ok(())
            }
            HostEvent::Adopted { core } => {
                let core = &mut self.cores[usize::from(core)];
                (core.adopted, core.answered) = (self.attaches, None);
                core.tainted = self.tainted;
                Ok(())
            }
            HostEvent::Attached => {
                self.turned(now);
                Ok(())
            }
            HostEvent::Lost { barked, fault } => {
                self.turned(now);
                if now > self.disturbed_until {
                    return broken(
                        "calm",
                        format!("agent turned out (barked {barked}, fault {fault})"),
                    );
                }
                Ok(())
            }
            HostEvent::ResyncAsked => {
                if now > self.disturbed_until {
                    return broken("calm", "the agent asked for a resync".to_owned());
                }
                Ok(())
            }
        }
    }

    fn turned(&mut self, now: Nanos) {
        self.attaches += 1;
        self.attached_at = now;
        self.tainted = false;
    }

    fn changed(&mut self, now: Nanos, event: &Event) -> Result<(), Broken> {
        let Event { kind, thread: Subject { id, generation }, sequence, core, .. } = *event;
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
        let state = match kind {
            Kind::New | Kind::Wakeup | Kind::Yield | Kind::Preempt => State::Waits { since: now },
            Kind::Blocked => State::Blocked,
            Kind::Dead | Kind::Departed => State::Gone,
        };
        self.threads.insert(id, Thread { generation, sequence, state });
        if !matches!(kind, Kind::New | Kind::Wakeup) {
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
            let adopted = self.cores[usize::from(core)].adopted;
            if adopted != self.attaches
                && now.since(self.attached_at) > REVOKED_GRACE + self.look_max
            {
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
        let place = &mut self.cores[usize::from(core)];
        let busy = place.runs.replace(subject.id);
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

    /// Looks for an idle core beside a waiting thread. `bound_max` holds while something is wrong.
    pub fn look(&self, now: Nanos, bound_max: Nanos) -> Result<(), Broken> {
        let idle = self.cores.iter().filter(|core| core.online).filter_map(|core| core.idle_since);
        let Some(idle) = idle.min() else { return Ok(()) };
        let waits = self.threads.iter().filter_map(|(id, thread)| match thread.state {
            State::Waits { since } => Some((since, *id)),
            _ => None,
        });
        let Some((waits, id)) = waits.min() else { return Ok(()) };
        let since = idle.max(waits);
        let bound = if since > self.disturbed_until { IDLE_MAX } else { bound_max };
        if now.since(since) > bound {
            let what =
                format!("thread {id} waits and a core is idle for {} ns", now.since(since).0);
            return broken("idle", what);
        }
        Ok(())
    }

    /// Threads that have not ended.
    pub fn living(&self) -> usize {
        self.threads.values().filter(|thread| thread.state != State::Gone).count()
    }
}

/// What one agent heard.
#[derive(Debug, Default)]
pub struct Hearing {
    outcomes: HashMap<u16, TxnId>,
    /// Messages that came before one that precedes them.
    pub reordered: u64,
    arrived: HashMap<u32, Sequence>,
}

impl Hearing {
    /// An entry came from a core or an outside context.
    pub fn on_entry(&mut self, context: u16, entry: &Upstream) -> Result<(), Broken> {
        if let Some(message) = entry.message {
            let last = self.arrived.entry(message.subject.id).or_insert(message.sequence);
            if message.sequence.ahead_of(*last) < 0 {
                self.reordered += 1;
            } else {
                *last = message.sequence;
            }
        }
        if let Some(outcome) = entry.outcome {
            let last = self.outcomes.insert(context, outcome.txn).unwrap_or(TxnId::new(0));
            // Some may have found no room, but none comes again.
            if !(1..1 << 23).contains(&outcome.txn.after(last)) {
                return broken("outcome", format!("core {context}: {outcome:?} after {last:?}"));
            }
        }
        Ok(())
    }
}

/// What one policy was told.
#[derive(Debug, Default)]
pub struct Told {
    last: HashMap<u32, (Sequence, bool)>,
}

impl Told {
    /// A message was delivered.
    pub fn on_message(&mut self, message: &Message) -> Result<(), Broken> {
        let told = self.last.insert(message.subject.id, (message.sequence, false));
        let Some((last, fresh_snapshot)) = told else { return Ok(()) };
        let ahead = message.sequence.ahead_of(last);
        // What was told before a snapshot that is older comes once more after it.
        if ahead == 1 || (fresh_snapshot && ahead >= 0) {
            return Ok(());
        }
        broken(
            "order",
            format!("thread {}: {:?} after {last:?}", message.subject.id, message.sequence),
        )
    }

    /// A snapshot said how things stand.
    pub fn on_snapshot(&mut self, records: impl Iterator<Item = (u32, Sequence)>) {
        self.last.clear();
        self.last.extend(records.map(|(id, sequence)| (id, (sequence, true))));
    }
}
