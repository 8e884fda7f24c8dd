//! The agent's loop: poll messages, feed the policy, top up decisions, commit, poll the front.
//!
//! [`Agent::step`] does a bounded amount of work and reports whether there was any. The loop around
//! it (a thread that spins, then parks; a simulator that counts) belongs to the caller.
//!
//! # Parking
//!
//! An agent parks only while it is *quiet*: every core asks and no decision is on its way. It stores
//! PARKED in host memory, fences, and reads the word back (on a link that posts writes, the load
//! proves that the word has arrived, and pulls in what the host had sent before). It then steps once
//! more, and only then waits for its doorbell. A host context that sends while it is asking, or from
//! outside a core, fences after its message and checks that word.

use alloc::vec::Vec;

use crate::brain::{Brain, Recorder};
use crate::clock::Nanos;
use crate::control::{BadIncarnation, Revoked};
use crate::endpoint::{Receiver, Sender, home_of};
use crate::host::preempt_word;
use crate::layout::{AGENT_READY, Layout, PROTOCOL_VERSION};
use crate::link::{Doorbell, Home, LINE_WORDS, Port, Side, Window};
use crate::message::{
    BadEntry, KIND_BULK, KIND_BULK_RETURNED, KIND_CORE, KIND_EXTENT_RETURNED, KIND_RESYNC,
    KIND_SNAPSHOT, Message, Subject, Upstream,
};
use crate::park::ParkWord;
use crate::planted::{Planted, is_planted};
use crate::policy::{BadBulk, Decisions, Note, Policy, Progress};
use crate::queue::{Full, Malformed, PushError, Tag};
use crate::snapshot::{self, SnapshotError};
use crate::watchdog::Starved;

/// Entries taken from one queue before the next queue's turn: no context can starve another.
pub const ENTRIES_PER_TURN: usize = 16;
/// How many queues ahead of its turn a queue's next entry is prefetched: the lines of several cores
/// then travel at the same time.
pub const QUEUES_AHEAD: usize = 4;
/// Decisions made in one step, at most.
pub const DECISIONS_PER_STEP: usize = 64;
/// How long the agent waits for a snapshot before it asks again.
pub const RESYNC_PATIENCE: Nanos = Nanos::from_millis(5);

/// Result of a step of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was done: step again at once.
    Progress,
    /// Nothing to do until a doorbell rings, or until this time.
    Idle(Option<Nanos>),
    /// The host has revoked this incarnation: leave ([`Agent::revoked`] has the reason).
    Revoked,
}

/// The host wrote something that no Wave host writes. The agent leaves, and the host falls back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum AgentError {
    /// The window's incarnation word is not valid.
    #[error(transparent)]
    Incarnation(#[from] BadIncarnation),
    /// A queue entry is malformed: the peer is at fault.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// An entry's kind, flags and length do not fit together.
    #[error(transparent)]
    BadEntry(#[from] BadEntry),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Bulk data is malformed: the host is at fault.
    #[error(transparent)]
    Bulk(#[from] BadBulk),
    /// The credit of a decision queue is impossible.
    #[error("core {core}: {error}")]
    Decisions { core: u16, error: PushError },
}

/// The agent's own I/O, polled by its loop: sockets, timers, packets. `()` stands for no front.
pub trait Front {
    /// Does a bounded amount of work; puts notes for the policy into `notes`.
    fn poll(&mut self, now: Nanos, notes: &mut Vec<Note>) -> Progress;

    /// Receives a note that the policy sent. The default ignores it.
    fn on_note(&mut self, _now: Nanos, _note: &Note) {}

    /// The time of the next poll if nothing happens before; `None` if the front has no timer.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// The agent is about to sleep, and polls once more before it does.
    fn prepare_park(&mut self) {}

    /// The agent has woken up, or does not sleep after all.
    fn unpark(&mut self) {}
}

impl Front for () {
    fn poll(&mut self, _now: Nanos, _notes: &mut Vec<Note>) -> Progress {
        Progress::Done
    }
}

/// A borrowed front.
impl<F: Front + ?Sized> Front for &mut F {
    fn poll(&mut self, now: Nanos, notes: &mut Vec<Note>) -> Progress {
        (**self).poll(now, notes)
    }

    fn on_note(&mut self, now: Nanos, note: &Note) {
        (**self).on_note(now, note);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        (**self).next_deadline()
    }

    fn prepare_park(&mut self) {
        (**self).prepare_park();
    }

    fn unpark(&mut self) {
        (**self).unpark();
    }
}

/// An absent front has no work and ignores notes.
impl<F: Front> Front for Option<F> {
    fn poll(&mut self, now: Nanos, notes: &mut Vec<Note>) -> Progress {
        self.as_mut().map_or(Progress::Done, |front| front.poll(now, notes))
    }

    fn on_note(&mut self, now: Nanos, note: &Note) {
        self.iter_mut().for_each(|front| front.on_note(now, note));
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.as_ref().and_then(F::next_deadline)
    }

    fn prepare_park(&mut self) {
        self.iter_mut().for_each(F::prepare_park);
    }

    fn unpark(&mut self) {
        self.iter_mut().for_each(F::unpark);
    }
}

/// One incarnation of an agent over one window, with a front on its thread.
pub struct Agent<P: Policy, R: Recorder, L: Port, B: Doorbell, F: Front = ()> {
    layout: Layout,
    port: L,
    bells: Vec<B>,
    messages: Vec<Receiver>,
    decisions: Vec<Sender>,
    control: Sender,
    brain: Brain<P, R>,
    out: Decisions,
    front: F,
    notes: Vec<Note>,
    to_kick: Vec<u16>,
    bulk: Vec<u64>,
    /// Extents of bulk data that were read, but not yet returned because the control queue was full.
    returns: Vec<Subject>,
    resync_asked: Option<Nanos>,
    wants_resync: bool,
    synced: bool,
    decided: u64,
    kicked: u64,
}

impl<P: Policy, R: Recorder, L: Port, B: Doorbell> Agent<P, R, L, B> {
    /// Creates an agent without a front over a checked layout. `bells` are the host's vectors: one per core, then the
    /// control context's.
    pub fn new(layout: Layout, port: L, bells: Vec<B>, policy: P, recorder: R) -> Self {
        Agent::with_front(layout, port, bells, policy, recorder, ())
    }
}

impl<P: Policy, R: Recorder, L: Port, B: Doorbell, F: Front> Agent<P, R, L, B, F> {
    /// Creates an agent with a front; otherwise as [`Agent::new`].
    pub fn with_front(
        layout: Layout,
        port: L,
        bells: Vec<B>,
        policy: P,
        recorder: R,
        front: F,
    ) -> Self {
        let receive = |place| Receiver::new(place, Side::Agent);
        let send = |place| Sender::new(place, Side::Agent);
        let cores = usize::from(layout.config.cores);
        assert!(bells.len() > cores, "a doorbell per core and one for the control context");
        Agent {
            messages: layout.messages.iter().map(receive).collect(),
            decisions: layout.decisions.iter().map(send).collect(),
            control: send(&layout.control),
            brain: Brain::new(&layout.config, policy, recorder),
            out: Decisions::with_capacity(DECISIONS_PER_STEP),
            front,
            notes: Vec::with_capacity(DECISIONS_PER_STEP),
            to_kick: Vec::with_capacity(cores * (ENTRIES_PER_TURN + 1) + 2 * DECISIONS_PER_STEP),
            bulk: Vec::with_capacity(layout.config.bulk().words()),
            returns: Vec::with_capacity(layout.config.bulk().extents.into()),
            resync_asked: None,
            wants_resync: false,
            synced: false,
            decided: 0,
            kicked: 0,
            layout,
            port,
            bells,
        }
    }

    /// The front, to be polled or asked.
    pub fn front_mut(&mut self) -> &mut F {
        &mut self.front
    }

    /// Announces this agent and its protocol version to the host (Wave Table 1,
    /// `START_WAVE_AGENT`). The host answers with a snapshot; until then nothing is decided.
    pub fn announce(&mut self) {
        let nic = self.port.window(home_of(Side::Agent));
        nic.store(self.layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
        nic.fence();
        self.bells[self.layout.control_vector()].ring();
    }

    /// Whether the host has taken this agent: its snapshot has arrived, and the agent decides.
    pub fn decides(&self) -> bool {
        self.synced
    }

    /// The part of the agent that has no link: order, cores and policy.
    pub fn brain(&self) -> &Brain<P, R> {
        &self.brain
    }

    /// The recorder: flush it while the agent is idle.
    pub fn recorder_mut(&mut self) -> &mut R {
        self.brain.recorder_mut()
    }

    /// Ends this incarnation and returns its recorder.
    pub fn into_recorder(self) -> R {
        self.brain.into_recorder()
    }

    /// Decisions committed and kicks sent so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.decided, self.kicked)
    }

    /// How long to poll for work before parking.
    pub fn spin(&self) -> Nanos {
        self.layout.config.spin
    }

    /// Why the host has revoked this incarnation, after [`Step::Revoked`].
    pub fn revoked(&self) -> Revoked {
        let nic = self.port.window(home_of(Side::Agent));
        let word = nic.load(self.layout.incarnation, 0);
        Revoked::from_word(word).ok().flatten().unwrap_or(Revoked::TurnedOut)
    }

    /// The thread for which the host's watchdog has turned this agent out, after [`Step::Revoked`]; `None` if the host does not
    /// say.
    pub fn starved(&self) -> Option<Starved> {
        let nic = self.port.window(home_of(Side::Agent));
        let words = [1, 2, 3].map(|at| nic.load(self.layout.incarnation, at));
        Starved::from_words(words, &self.layout.config)
    }

    /// One round of the loop. Takes a bounded number of entries from each queue, as it stands when its
    /// turn comes.
    pub fn step(&mut self, now: Nanos) -> Result<Step, AgentError> {
        let nic = self.port.window(home_of(Side::Agent));
        if Revoked::from_word(nic.load(self.layout.incarnation, 0))?.is_some() {
            return Ok(Step::Revoked);
        }
        let mut progress = self.poll_messages(now)?;
        progress |= self.poll_front(now);
        self.return_extents();
        if self.synced {
            // Decisions that found no room in the last step count against the budget.
            let budget = DECISIONS_PER_STEP - self.out.staged.len();
            progress |= self.brain.decide(now, budget, &mut self.out) == Progress::More;
            progress |= !self.out.staged.is_empty();
            self.commit()?;
        }
        self.kick_sleepers();
        for queue in &mut self.decisions {
            progress |= !queue.poll(&self.port);
        }
        self.wants_resync |= self.brain.check_order(now).is_err();
        if self.wants_resync {
            self.ask_for_snapshot(now);
        }
        if progress {
            return Ok(Step::Progress);
        }
        let deadlines = [self.brain.next_deadline(), self.front.next_deadline()];
        Ok(Step::Idle(deadlines.into_iter().flatten().min()))
    }

    /// Announces that the agent is about to sleep. Returns whether it may: then step once more, wait
    /// for the doorbell if that finds nothing, and call [`Agent::unpark`].
    pub fn prepare_park(&mut self) -> bool {
        if !self.brain.is_quiet() || !self.synced {
            return false;
        }
        ParkWord::of_agent(&self.layout).park(&self.port);
        self.front.prepare_park();
        true
    }

    /// Clears PARKED in the agent's parking word.
    pub fn unpark(&mut self) {
        ParkWord::of_agent(&self.layout).unpark(&self.port);
        self.front.unpark();
    }

    /// Wave Table 1, `POLL_MESSAGES` and `POLL_TXNS_OUTCOMES`.
    fn poll_messages(&mut self, now: Nanos) -> Result<bool, AgentError> {
        let mut progress = false;
        for context in 0..self.messages.len() {
            if let Some(ahead) = self.messages.get_mut(context + QUEUES_AHEAD) {
                ahead.prefetch(&self.port);
            }
            for _ in 0..ENTRIES_PER_TURN {
                let Some(entry) = self.messages[context].pop(&self.port)? else { break };
                self.messages[context].release(&self.port);
                self.messages[context].prefetch_ahead(&self.port);
                progress = true;
                let entry = Upstream::decode(&entry)?;
                match entry.message {
                    Some(message) if message.kind >= KIND_CORE => self.on_core(now, &message)?,
                    _ => {
                        let reaction = self.brain.on_entry(now, context as u16, &entry);
                        if let Some(core) = reaction.to_kick {
                            self.to_kick.push(core);
                        }
                        self.wants_resync |= reaction.resync;
                    }
                }
            }
        }
        if progress && self.layout.messages[0].home == Home::Host {
            // The credits of queues across the link: no other store would publish them.
            self.port.window(Home::Host).publish();
        }
        Ok(progress)
    }

    /// Handles a message of the core crate (`KIND_CORE` and up). Skips kinds that this version does not know.
    fn on_core(&mut self, now: Nanos, message: &Message) -> Result<(), AgentError> {
        if message.kind == KIND_BULK {
            return self.on_bulk(now, message);
        }
        if message.kind == KIND_SNAPSHOT {
            let extent = message.subject;
            let Layout { config, snapshots, .. } = &self.layout;
            let snapshot = snapshot::read(&self.port, config, snapshots, extent.id)?;
            self.notify_host(KIND_EXTENT_RETURNED, extent);
            self.brain.on_snapshot(now, &snapshot);
            self.resync_asked = None;
            self.synced = true;
            // A core that sleeps asks, even if it did not when the snapshot was taken.
            for core in 0..self.layout.config.cores {
                if ParkWord::of_core(&self.layout, core).is_parked(&self.port) {
                    let entry = Upstream { message: None, outcome: None, asks: true };
                    self.brain.on_entry(now, core, &entry);
                }
            }
            // A core may sleep with a decision in its queue, whose outcome the snapshot does not show.
            let cores = self.brain.cores();
            self.to_kick.clear();
            self.to_kick.extend((0..cores.len()).filter(|&core| cores.waits(core)));
        }
        Ok(())
    }

    /// Copies an extent, returns it, and trusts only the copy.
    fn on_bulk(&mut self, now: Nanos, message: &Message) -> Result<(), AgentError> {
        let pool = self.layout.bulk();
        let (extent, words) = (message.subject, message.payload[0]);
        let bad = |what| BadBulk { words: words as usize, at: 0, what };
        if extent.id >= pool.extents {
            return Err(bad("the extent is not in the pool").into());
        }
        if words > u64::from(pool.lines) * LINE_WORDS as u64 {
            return Err(bad("an extent does not hold that many words").into());
        }
        if self.returns.len() == self.returns.capacity() {
            return Err(bad("more extents are lent than the pool has").into());
        }
        let near = self.port.window(home_of(Side::Agent));
        let first = pool.target + extent.id * pool.lines;
        self.bulk.clear();
        for line in 0..(words as usize).div_ceil(LINE_WORDS) {
            let mut buffer = [0; LINE_WORDS];
            near.read_line(first + line as u32, &mut buffer);
            let left = words as usize - self.bulk.len();
            self.bulk.extend_from_slice(&buffer[..left.min(LINE_WORDS)]);
        }
        self.returns.push(extent);
        self.return_extents();
        if self.synced {
            self.brain.on_bulk(now, &self.bulk)?;
        }
        Ok(())
    }

    /// Returns extents that were read, as far as the control queue has room.
    fn return_extents(&mut self) {
        while let Some(&extent) = self.returns.last() {
            if !self.notify_host(KIND_BULK_RETURNED, extent) {
                return;
            }
            self.returns.pop();
        }
    }

    /// Asks for a snapshot, unless an earlier one may still be on its way. That one may be older than
    /// the present loss, so `wants_resync` stays set.
    fn ask_for_snapshot(&mut self, now: Nanos) {
        if self.resync_asked.is_none_or(|asked| now.since(asked) >= RESYNC_PATIENCE) {
            self.resync_asked = Some(now);
            self.wants_resync = false;
            self.notify_host(KIND_RESYNC, Subject::default());
        }
    }

    /// Sends to the host's control context. Returns false if the queue is full: the host does not read it.
    fn notify_host(&mut self, kind: u16, subject: Subject) -> bool {
        let told =
            self.control.push(&self.port, Tag { kind, flags: 0 }, &[subject.to_word()]).is_ok();
        if told {
            self.control.fence(&self.port);
            self.bells[self.layout.control_vector()].ring();
        }
        told
    }

    fn poll_front(&mut self, now: Nanos) -> bool {
        let mut progress = self.front.poll(now, &mut self.notes) == Progress::More;
        for note in self.notes.drain(..) {
            progress = true;
            self.brain.on_note(now, &note);
        }
        for note in self.out.notes.drain(..) {
            self.front.on_note(now, &note);
        }
        progress
    }

    /// Wave Table 1, `TXNS_COMMIT`: all decisions of this step, one publish, and a kick (MSI-X) for
    /// each core that sleeps.
    fn commit(&mut self) -> Result<(), AgentError> {
        // An outcome can overtake the credit of the same entry if the two travel by different paths. A
        // decision without room waits here for the next step, as do later ones for its core.
        let mut kept = 0;
        for at in 0..self.out.staged.len() {
            let (core, decision) = self.out.staged[at];
            let waits = self.out.staged[..kept].iter().any(|(earlier, _)| *earlier == core);
            let (tag, words) = decision.encode();
            let queue = &mut self.decisions[usize::from(core)];
            match if waits { Err(Full.into()) } else { queue.push(&self.port, tag, &words) } {
                Ok(()) => {
                    if !is_planted(Planted::AgentMissingFence) {
                        queue.publish(&self.port);
                    }
                    self.decided += 1;
                    if self.brain.cores().waits(core) {
                        self.to_kick.push(core);
                    }
                }
                Err(PushError::Full(_)) => {
                    self.out.staged[kept] = (core, decision);
                    kept += 1;
                }
                Err(error) => return Err(AgentError::Decisions { core, error }),
            }
        }
        self.out.staged.truncate(kept);
        for preemption in &self.out.preemptions {
            let host = self.port.window(Home::Host);
            let line = self.layout.preempt + u32::from(preemption.core);
            host.store(line, 0, preempt_word(preemption.run));
            host.publish();
            // A running core sees the word when it is interrupted, a sleeping one has no run to end.
            self.kicked += 1;
            self.bells[usize::from(preemption.core)].ring();
            self.brain.recorder_mut().kicked(preemption.core);
        }
        self.out.preemptions.clear();
        Ok(())
    }

    /// Kicks those cores of the list that sleep. A core that spins needs no kick.
    fn kick_sleepers(&mut self) {
        let Some(&first) = self.to_kick.first() else { return };
        if is_planted(Planted::DroppedKick) {
            self.to_kick.clear();
            return;
        }
        let nic = self.port.window(home_of(Side::Agent));
        if !is_planted(Planted::AgentMissingFence) {
            // A copy that arrives after the look at the status would be missed by both sides.
            for &core in &self.to_kick {
                while !self.decisions[usize::from(core)].poll(&self.port) {
                    core::hint::spin_loop();
                }
            }
            self.decisions[usize::from(first)].fence(&self.port);
            nic.fence();
        }
        for core in self.to_kick.drain(..) {
            if ParkWord::of_core(&self.layout, core).is_parked(&self.port) {
                self.kicked += 1;
                self.bells[usize::from(core)].ring();
                self.brain.recorder_mut().kicked(core);
            }
        }
    }
}
