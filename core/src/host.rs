//! The host's side of a switch, as a sans-I/O state machine (Wave Figure 2, 5.4).
//!
//! ```text
//!              hold(message)                decision committed
//!   Running ------------------> Looking --------------------------> Running
//!                                  |  ^
//!                     slot empty:  |  | poll again (spin)
//!                     ask, then    v  |
//!                               Spinning ---- spun long enough ----> Parking: status = parked,
//!                                  ^                                 fence, read back, look again
//!                                  |  rung, or time to look             |            |
//!                                  +------------- Parked <-- still empty +    found: Running
//! ```
//!
//! Around a switch the order is: prefetch the decision, update the host's own state, write the
//! message (unpublished), read the decision, check it, write its outcome into the *same entry*, and
//! publish once. If no decision is staged, the message goes out alone with the flag ASKS.
//!
//! # Parking without losing a wake-up
//!
//! A core that finds its slot empty and goes to sleep while a decision is in flight would sleep
//! for ever. It therefore stores *parked*, fences, **reads the status back from NIC memory**, looks
//! once more, and only then waits. The read-back is what makes this right for links that post
//! writes: it returns after the store has arrived, and whatever the agent had sent before the store
//! arrived has arrived here. The agent checks the status after it has published a decision for a
//! core that asks, and again when a core asks although decisions are outstanding.
//! The agent parks by the mirror image of this ([`crate::agent`]); it does so only while every core
//! asks, so a running core never needs to fence and look whether the agent sleeps.

use crate::clock::Nanos;
use crate::endpoint::{Receiver, Sender};
use crate::layout::{Layout, QueuePlace};
use crate::link::{Home, Port, Side, Window};
use crate::message::{Decision, FLAG_ASKS, FLAG_ATOMIC, FLAG_OUTCOME, KIND_NONE, Message, TxnId};
use crate::outcome::{Code, Counts, Outcome};
use crate::park::ParkWord;
use crate::planted::{Planted, is_planted};
use crate::queue::{PushError, Tag};
use crate::snapshot::CoreRecord;

/// The host's side of a subsystem, the source of truth: checks decisions and commits them.
///
/// Contract: [`Mechanism::apply`] commits at most once per subject and sequence, whichever core or
/// fallback asks; a refusal changes nothing; nothing in a decision is trusted.
pub trait Mechanism {
    /// What the driver has to carry out for a committed decision.
    type Work;

    /// Checks a decision for this core and commits it, or returns why it is refused.
    fn apply(&mut self, decision: &Decision) -> Result<Self::Work, Code>;
}

/// What a context asks of its driver, which reads it after each call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals(u8);

impl Signals {
    const RING_AGENT: u8 = 1;
    const LOST: u8 = 2;
    const BAD_CREDIT: u8 = 4;
    const BAD_ENTRY: u8 = 8;

    /// Whether there is nothing to report.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The agent sleeps: ring its doorbell.
    pub const fn ring_agent(self) -> bool {
        self.0 & Self::RING_AGENT != 0
    }
    /// A message or an outcome found no room: a snapshot must follow.
    pub const fn lost(self) -> bool {
        self.0 & Self::LOST != 0
    }
    /// The agent wrote something that no Wave agent writes: revoke its window.
    pub const fn fault(self) -> bool {
        self.0 & (Self::BAD_CREDIT | Self::BAD_ENTRY) != 0
    }
    /// The fault in words, as the host saw it.
    pub const fn seen(self) -> &'static str {
        match self.0 & Self::BAD_ENTRY != 0 {
            true => "one of its decisions is not a valid entry",
            false => "it took more messages than there were",
        }
    }
}

/// A producing context: the sending end of a core or of an outside thread.
#[derive(Debug)]
pub struct Context {
    up: Sender,
    agent: ParkWord,
    signals: Signals,
    /// An entry found no room, and the agent has not been told this context's state since.
    unsure: bool,
}

impl Context {
    /// Creates the context that owns this queue of messages.
    pub fn new(layout: &Layout, place: &QueuePlace) -> Context {
        Context {
            up: Sender::new(place, Side::Host),
            agent: ParkWord::of_agent(layout),
            signals: Signals::default(),
            unsure: false,
        }
    }

    /// Sends a message now (Wave Table 1, `SEND_MESSAGES`), and checks whether the agent sleeps.
    /// A message that finds no room is dropped, which the signals report.
    pub fn send(&mut self, port: &impl Port, message: &Message) {
        self.push(port, Tag { kind: message.kind, flags: 0 }, &message.words());
        self.publish(port);
        self.ring_sleeping_agent(port);
    }

    /// Sends a message if there is room for it. Returns whether there was.
    pub fn try_send(&mut self, port: &impl Port, message: &Message) -> bool {
        if self.up.room(port) == 0 {
            return false;
        }
        self.send(port, message);
        true
    }

    fn publish(&mut self, port: &impl Port) {
        if is_planted(Planted::MissingFence) {
            return;
        }
        self.up.publish(port);
    }

    /// What the driver has to do; cleared by reading.
    #[inline]
    pub fn take_signals(&mut self) -> Signals {
        core::mem::take(&mut self.signals)
    }

    #[inline]
    fn push<const N: usize>(&mut self, port: &impl Port, tag: Tag, words: &[u64; N]) {
        match self.up.push(port, tag, words) {
            Ok(()) => return,
            Err(PushError::Full(_)) => self.signals.0 |= Signals::LOST,
            Err(PushError::BadCredit { .. }) => {
                self.signals.0 |= Signals::LOST | Signals::BAD_CREDIT
            }
        }
        self.unsure = true;
    }

    fn ring_sleeping_agent(&mut self, port: &impl Port) {
        if !is_planted(Planted::MissingFence) {
            self.up.fence(port);
        }
        if self.agent.is_parked(port) {
            self.signals.0 |= Signals::RING_AGENT;
        }
    }
}

/// The next step of a core's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<Work> {
    /// Run the work of this committed decision.
    Run(Work),
    /// Nothing yet: look again soon.
    Spin,
    /// Wait for the core's doorbell, then poll again. The driver's own timer may cut the wait short.
    Park,
}

/// One core's protocol. The driver owns the port and passes it to each call.
#[derive(Debug)]
pub struct HostCore {
    context: Context,
    down: Receiver,
    park: ParkWord,
    preempt: u32,
    held: Option<Message>,
    run: u32,
    txn: TxnId,
    asks: bool,
    /// The core is idle and has not asked: its run ended without a message, or it answered that it is offline,
    /// so that the agent sends it nothing.
    away: bool,
    idle_since: Option<Nanos>,
    parked: bool,
    spin: Nanos,
    prefetches: bool,
    budget: u32,
    counts: Counts,
}

impl HostCore {
    /// Core number `core` in a fresh window. `run` is its count of switches so far, which continues
    /// from one incarnation of the agent to the next. `prefetches` is false only for the steps of
    /// Wave 7.2.2 that go without prefetching.
    pub fn new(layout: &Layout, core: u16, run: u32, prefetches: bool) -> HostCore {
        let at = usize::from(core);
        HostCore {
            context: Context::new(layout, &layout.messages[at]),
            down: Receiver::new(&layout.decisions[at], Side::Host),
            park: ParkWord::of_core(layout, core),
            preempt: layout.preempt + u32::from(core),
            held: None,
            run,
            txn: TxnId::new(0),
            asks: true,
            away: false,
            idle_since: None,
            parked: false,
            spin: layout.config.spin,
            prefetches,
            budget: layout.config.decisions.entries,
            counts: Counts::default(),
        }
    }

    /// The core's record for a snapshot.
    #[inline]
    pub fn record(&self) -> CoreRecord {
        CoreRecord { run: self.run, txn: self.txn, asks: self.asks }
    }

    /// Notes that the core runs something that no decision of this window started (it was running
    /// when the window was created, or the host's fallback chose it).
    pub fn runs_already(&mut self) {
        self.asks = false;
    }

    /// Counts a switch that no decision made.
    pub fn count_run(&mut self) -> u32 {
        self.run = self.run.wrapping_add(1);
        self.run
    }

    /// How often each code was answered in this window.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What the driver has to do; cleared by reading.
    #[inline]
    pub fn take_signals(&mut self) -> Signals {
        self.context.take_signals()
    }

    /// Prefetches the line that will hold the decision (Wave Table 1, `PREFETCH_TXNS`). Call it at the
    /// very start of a switch: the state update and the message hide the transfer.
    #[inline]
    pub fn prefetch(&mut self, port: &impl Port) {
        if self.prefetches {
            self.down.prefetch(port);
        }
    }

    /// Takes the message that ends the current run. It goes out with the outcome of the next
    /// decision, or alone as soon as the queue turns out to be empty.
    #[inline]
    pub fn hold(&mut self, message: Message) {
        debug_assert!(self.held.is_none(), "a run ends once");
        self.held = Some(message);
    }

    /// Ends the current run without a message. The core asks as soon as the queue turns out to be empty.
    pub fn finish(&mut self) {
        debug_assert!(self.held.is_none(), "a run ends once");
        self.away = true;
    }

    /// Sends a message that ends no run (Wave Table 1, `SEND_MESSAGES`).
    pub fn send(&mut self, port: &impl Port, message: &Message) {
        if let Some(held) = self.held.take() {
            self.ask(port, &held);
        }
        let tag = Tag { kind: message.kind, flags: 0 };
        self.context.push(port, tag, &message.words());
        self.context.publish(port);
        if self.asks {
            self.context.ring_sleeping_agent(port);
        }
    }

    /// Whether the agent has asked for the end of the current run. Cheap enough for every safe
    /// point: one load of near memory.
    #[inline]
    pub fn preempt_requested(&self, port: &impl Port) -> bool {
        port.window(Home::Host).load(self.preempt, 0) == preempt_word(self.run)
    }

    /// Looks for a decision (Wave Table 1, `POLL_TXNS`; Tide's `READ_TXN`), commits it, and reports
    /// the outcome (`SET_TXNS_OUTCOMES`). Refused decisions are answered and skipped.
    ///
    /// Bounded: at most one ring of decisions is looked at.
    #[inline]
    pub fn poll<M: Mechanism>(
        &mut self,
        port: &impl Port,
        now: Nanos,
        mechanism: &mut M,
    ) -> Next<M::Work> {
        if self.parked {
            self.parked = false;
            self.park.unpark(port);
        }
        if let Some(work) = self.poll_queue(port, mechanism) {
            return Next::Run(work);
        }
        if let Some(held) = self.held.take() {
            self.ask(port, &held);
        } else if self.away {
            // The run ended without a message, or the core was offline for a part of one poll only.
            self.ask_anew(port);
        }
        let since = *self.idle_since.get_or_insert(now);
        // Polling advances copies of messages and of credit. A core must not park while a copy is under way.
        let settled = self.context.up.poll(port) & self.down.poll(port);
        if !settled || now.since(since) < self.spin {
            return Next::Spin;
        }
        self.park.park(port);
        if core::mem::take(&mut self.context.unsure) {
            self.ask_again(port);
        }
        let found = match is_planted(Planted::NoSecondLook) {
            true => None,
            false => self.poll_queue(port, mechanism),
        };
        match found {
            Some(work) => {
                self.park.unpark(port);
                Next::Run(work)
            }
            None => {
                // After a loss the agent may believe that this core asked already, and sleep.
                if self.context.agent.is_parked(port) {
                    self.context.signals.0 |= Signals::RING_AGENT;
                }
                self.parked = true;
                self.idle_since = None;
                Next::Park
            }
        }
    }

    /// For a core that goes offline: answers the decisions left in its queue. `mechanism` must refuse all
    /// of them, with [`Code::CpuOffline`] or [`Code::CpuUnavailable`], even if the core comes back
    /// meanwhile: the core would not run a committed one. The agent then sends nothing more until the
    /// core asks ([`HostCore::ask_anew`]).
    pub fn refuse_all<M: Mechanism>(&mut self, port: &impl Port, mechanism: &mut M) {
        if let Some(held) = self.held.take() {
            self.push_alone(port, held.kind, &held.words());
        }
        let work = self.poll_queue(port, mechanism);
        debug_assert!(work.is_none(), "a core that is offline commits nothing");
        self.asks = false;
    }

    /// Asks for a decision without the end of a run: the core is back online.
    pub fn ask_anew(&mut self, port: &impl Port) {
        self.asks = true;
        self.ask_again(port);
        self.context.ring_sleeping_agent(port);
    }

    /// A message that neither asks nor answers.
    fn push_alone<const N: usize>(&mut self, port: &impl Port, kind: u16, words: &[u64; N]) {
        self.context.push(port, Tag { kind, flags: 0 }, words);
        self.context.publish(port);
    }

    #[inline]
    fn poll_queue<M: Mechanism>(&mut self, port: &impl Port, mechanism: &mut M) -> Option<M::Work> {
        for _ in 0..self.budget {
            let decision = match self.down.pop(port) {
                Ok(None) => return None,
                Ok(Some(entry)) => Decision::decode(&entry).ok(),
                Err(_) => None,
            };
            let Some(decision) = decision else {
                self.context.signals.0 |= Signals::BAD_ENTRY;
                continue;
            };
            let result = match decision.flags {
                0 => mechanism.apply(&decision),
                FLAG_ATOMIC => Err(Code::Unsupported),
                _ => Err(Code::InvalidFlags),
            };
            self.txn = decision.txn;
            let code = *result.as_ref().err().unwrap_or(&Code::Complete);
            self.counts.add(code);
            if code == Code::Complete {
                self.run = self.run.wrapping_add(1);
            }
            self.send_outcome(port, Outcome { txn: decision.txn, code, run: self.run });
            if let Ok(work) = result {
                self.asks = false;
                self.idle_since = None;
                if self.prefetches {
                    self.down.prefetch_ahead(port);
                }
                return Some(work);
            }
        }
        None
    }

    /// Message and outcome of one switch: one entry, one publish.
    #[inline]
    fn send_outcome(&mut self, port: &impl Port, outcome: Outcome) {
        let word = outcome.to_word();
        let asks = match outcome.code {
            Code::Complete | Code::CpuOffline | Code::CpuUnavailable => 0,
            _ => FLAG_ASKS,
        };
        if outcome.code != Code::Complete {
            self.away = asks == 0;
        }
        match self.held.take() {
            Some(message) => {
                let [a, b, c, d, e] = message.words();
                let tag = Tag { kind: message.kind, flags: FLAG_OUTCOME | asks };
                self.context.push(port, tag, &[a, b, c, d, e, word]);
                self.asks = true;
            }
            None => {
                let tag = Tag { kind: KIND_NONE, flags: FLAG_OUTCOME | asks };
                self.context.push(port, tag, &[word]);
            }
        }
        if is_planted(Planted::OutcomeTwice) {
            self.context.push(port, Tag { kind: KIND_NONE, flags: FLAG_OUTCOME | asks }, &[word]);
        }
        self.context.publish(port);
    }

    /// After a loss the agent cannot tell which run a request ended, so a snapshot that is older
    /// than the request may hide it. This request goes out after the core's status has arrived, against
    /// which the agent checks such a snapshot.
    #[cold]
    fn ask_again(&mut self, port: &impl Port) {
        self.context.push(port, Tag { kind: KIND_NONE, flags: FLAG_ASKS }, &[]);
        self.context.up.fence(port);
        self.away = false;
    }

    fn ask(&mut self, port: &impl Port, held: &Message) {
        let tag = Tag { kind: held.kind, flags: FLAG_ASKS };
        self.context.push(port, tag, &held.words());
        self.context.publish(port);
        self.asks = true;
        self.away = false;
    }
}

/// The preemption word that names a run: never zero, so that zeroed memory preempts nothing.
pub const fn preempt_word(run: u32) -> u64 {
    1 << 32 | run as u64
}
