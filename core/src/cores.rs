//! The agent's view of the host's cores: their requests for work, and their unanswered decisions.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::layout::CORES_MAX;
use crate::message::{Decision, TxnId};
use crate::outcome::{Code, Outcome};
use crate::policy::Choice;
use crate::snapshot::CoreRecord;

const SET_WORDS: usize = CORES_MAX.div_ceil(64);

/// A set of cores that is scanned round-robin.
#[derive(Clone, Debug, Default)]
struct CoreSet([u64; SET_WORDS]);

impl CoreSet {
    fn set(&mut self, core: u16, member: bool) {
        let (word, bit) = (usize::from(core) / 64, core % 64);
        self.0[word] = self.0[word] & !(1 << bit) | u64::from(member) << bit;
    }

    /// Whether `core` is a member; false for a core beyond the set.
    #[inline]
    fn has(&self, core: u16) -> bool {
        self.0.get(usize::from(core) / 64).is_some_and(|word| word >> (core % 64) & 1 != 0)
    }

    /// The first member at or after `from`, wrapping around.
    #[inline]
    fn next(&self, from: u16) -> Option<u16> {
        let (start, bit) = (usize::from(from) / 64, from % 64);
        let first = self.0[start] & (u64::MAX << bit);
        if first != 0 {
            return Some((start * 64) as u16 + first.trailing_zeros() as u16);
        }
        (1..=SET_WORDS).find_map(|step| {
            let word = (start + step) % SET_WORDS;
            let bits = self.0[word];
            (bits != 0).then(|| (word * 64) as u16 + bits.trailing_zeros() as u16)
        })
    }
}

#[derive(Clone, Debug)]
struct Core {
    /// Whether a snapshot has reported the core. Before that its run number is unknown.
    known: bool,
    asks: bool,
    /// The core reported that it is offline; it gets no decision until it asks.
    away: bool,
    run: u32,
    next_txn: TxnId,
    answered: TxnId,
    /// Decisions without an outcome, oldest first.
    outstanding: VecDeque<Decision>,
    /// The last completed decision, and its outcome.
    completed: Option<(Decision, Outcome)>,
    /// Since the core last began to ask.
    service: Service,
}

/// What a policy has done for a core that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// How often it was asked for decisions since then.
    pub asked: u64,
    /// How many decisions it made for this core since then.
    pub made: u64,
}

/// All cores of an enclave, as the agent knows them.
#[derive(Clone, Debug)]
pub struct Cores {
    cores: Vec<Core>,
    prestage: usize,
    asking: CoreSet,
    open: CoreSet,
    asking_count: usize,
    outstanding_count: usize,
    turn: u16,
    /// How often the policy was asked for decisions.
    asked: u64,
}

impl Cores {
    /// Creates `count` cores in an unknown state. Each may have `prestage` decisions prestaged.
    pub fn new(count: u16, prestage: u16) -> Cores {
        let room = usize::from(prestage).max(1);
        let core = Core {
            known: false,
            asks: false,
            away: false,
            run: 0,
            next_txn: TxnId::new(1),
            answered: TxnId::new(0),
            outstanding: VecDeque::new(),
            completed: None,
            service: Service::default(),
        };
        let mut cores = alloc::vec![core; usize::from(count)];
        for core in &mut cores {
            core.outstanding.reserve(room);
        }
        let mut cores = Cores {
            cores,
            prestage: usize::from(prestage),
            asking: CoreSet::default(),
            open: CoreSet::default(),
            asking_count: 0,
            outstanding_count: 0,
            turn: 0,
            asked: 0,
        };
        for core in 0..count {
            cores.refresh(core);
        }
        cores
    }

    /// Number of cores of the enclave.
    pub fn len(&self) -> u16 {
        self.cores.len() as u16
    }

    /// Whether the enclave has no cores.
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }

    /// Unanswered decisions for `core`, oldest first. Panics if there is no such core.
    pub fn waiting(&self, core: u16) -> impl Iterator<Item = &Decision> {
        self.cores[usize::from(core)].outstanding.iter()
    }

    /// Whether every core waits for a decision and none is on its way: the host then rings a sleeping
    /// agent for anything that happens.
    pub fn all_quiet(&self) -> bool {
        self.asking_count == self.cores.len() && self.outstanding_count == 0
    }

    /// A core that waits and has nothing on its way.
    #[inline]
    pub fn asking(&self) -> Option<u16> {
        self.asking.next(self.turn)
    }

    /// A core with room for one more decision.
    #[inline]
    pub fn open(&self) -> Option<u16> {
        self.open.next(self.turn)
    }

    /// Whether `core` waits and has nothing on its way; false where there is no such core.
    #[inline]
    pub fn asks(&self, core: u16) -> bool {
        self.asking.has(core)
    }

    /// Whether `core` has room for one more decision; false where there is no such core.
    #[inline]
    pub fn has_room(&self, core: u16) -> bool {
        self.open.has(core)
    }

    /// How many decisions for `core` have not been answered.
    #[inline]
    pub fn unanswered(&self, core: u16) -> usize {
        self.cores[usize::from(core)].outstanding.len()
    }

    /// Whether `core` waits although decisions are on their way to it.
    pub fn waits(&self, core: u16) -> bool {
        self.cores[usize::from(core)].asks
    }

    /// The policy is asked for decisions.
    pub(crate) fn ask(&mut self) {
        self.asked += 1;
    }

    /// What the policy has done for this core since it last began to ask. Panics if there is no such core.
    pub fn service(&self, core: u16) -> Service {
        let service = self.cores[usize::from(core)].service;
        Service { asked: self.asked - service.asked, ..service }
    }

    /// The core's run number, as of its last completed decision.
    pub fn run(&self, core: u16) -> u32 {
        self.cores[usize::from(core)].run
    }

    #[inline]
    fn refresh(&mut self, core: u16) {
        let state = &self.cores[usize::from(core)];
        let outstanding = state.outstanding.len();
        let room = match (state.away, state.asks) {
            (true, _) => 0,
            (false, true) => self.prestage.max(1),
            (false, false) => self.prestage,
        };
        let (asking, open) = (room > 0 && state.asks && outstanding == 0, outstanding < room);
        self.asking.set(core, asking);
        self.open.set(core, open);
    }

    fn set_asks(&mut self, core: u16, asks: bool) {
        let state = &mut self.cores[usize::from(core)];
        if state.asks != asks {
            state.asks = asks;
            // The count of all calls, until `Cores::service` subtracts it.
            state.service = Service { asked: self.asked, made: 0 };
            if asks { self.asking_count += 1 } else { self.asking_count -= 1 }
        }
    }

    /// The core asked for a decision. Returns whether one is on its way already: the core may have gone
    /// to sleep without seeing it, and must be checked.
    #[inline]
    pub fn asked(&mut self, core: u16) -> bool {
        self.set_asks(core, true);
        self.cores[usize::from(core)].away = false;
        self.refresh(core);
        !self.cores[usize::from(core)].outstanding.is_empty()
    }

    /// Numbers a decision and records it as on its way.
    #[inline]
    pub(crate) fn stage(&mut self, core: u16, choice: Choice) -> Decision {
        let state = &mut self.cores[usize::from(core)];
        assert!(
            state.outstanding.len() < self.prestage.max(1),
            "the policy's fault: core {core} has no room for a decision"
        );
        let decision = Decision {
            kind: choice.kind,
            subject: choice.subject,
            sequence: choice.sequence,
            txn: state.next_txn,
            flags: 0,
            argument: choice.argument,
        };
        state.next_txn = state.next_txn.next();
        state.outstanding.push_back(decision);
        state.service.made += 1;
        self.outstanding_count += 1;
        self.turn = if core + 1 < self.len() { core + 1 } else { 0 };
        self.refresh(core);
        decision
    }

    /// Matches an outcome with its decision. Outcomes come in the order of the decisions; if some
    /// were lost, the decisions before this one are forgotten. `None` for one that was answered
    /// before (a snapshot came first), or was never made (the peer's fault, and harmless).
    #[inline]
    pub fn answered(&mut self, core: u16, outcome: Outcome) -> Option<Decision> {
        let decision = self.forget_until(core, outcome.txn);
        // This also applies if a snapshot has already covered the decision: a request that was in flight
        // when the snapshot was taken must not outlive the run that answered it.
        let state = &mut self.cores[usize::from(core)];
        if outcome.code == Code::Complete && outcome.run.wrapping_sub(state.run) as i32 >= 0 {
            state.run = outcome.run;
            state.completed = decision.map(|decision| (decision, outcome));
            self.set_asks(core, false);
        }
        if matches!(outcome.code, Code::CpuOffline | Code::CpuUnavailable) {
            self.cores[usize::from(core)].away = true;
        }
        self.refresh(core);
        decision
    }

    #[inline]
    fn forget_until(&mut self, core: u16, txn: TxnId) -> Option<Decision> {
        let state = &mut self.cores[usize::from(core)];
        let behind = txn.after(state.answered) as usize;
        if behind == 0 || behind > state.outstanding.len() {
            return None;
        }
        let mut last = None;
        for _ in 0..behind {
            last = state.outstanding.pop_front();
        }
        self.outstanding_count -= behind;
        state.answered = txn;
        last
    }

    /// The last decision that completed on a core after a snapshot's record of it. The snapshot may show
    /// the subject's earlier state, and no message ever reports that a subject runs.
    pub(crate) fn completed_since(
        &self,
        core: u16,
        record: &CoreRecord,
    ) -> Option<(Decision, Outcome)> {
        let state = &self.cores[usize::from(core)];
        let is_newer = state.known && state.run.wrapping_sub(record.run) as i32 > 0;
        state.completed.filter(|_| is_newer)
    }

    /// Takes a core's state from a snapshot, where it is newer than the known state.
    pub fn resync(&mut self, core: u16, record: &CoreRecord) {
        self.forget_until(core, record.txn);
        let state = &mut self.cores[usize::from(core)];
        let ahead = record.run.wrapping_sub(state.run) as i32;
        // Within one run a core only ever goes from running to asking; and a core that asked before the
        // first snapshot, when nothing could be decided, still asks.
        let first = !core::mem::replace(&mut state.known, true);
        let asks = match first || ahead > 0 {
            true => record.asks || (first && state.asks),
            false => state.asks || (ahead == 0 && record.asks),
        };
        if first || ahead > 0 {
            state.run = record.run;
        }
        self.set_asks(core, asks);
        self.refresh(core);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Sequence, Subject};

    fn choice() -> Choice {
        Choice { kind: 1, subject: Subject::default(), sequence: Sequence(1), argument: 0 }
    }

    fn complete(txn: u32, run: u32) -> Outcome {
        Outcome { txn: TxnId::new(txn), code: Code::Complete, run }
    }

    fn record(run: u32, txn: u32, asks: bool) -> CoreRecord {
        CoreRecord { run, txn: TxnId::new(txn), asks }
    }

    /// A snapshot overtakes a request and the decision that answered it.
    #[test]
    fn a_request_does_not_outlive_the_run_that_answered_it() {
        let mut cores = Cores::new(1, 1);
        cores.resync(0, &record(7, 0, true));
        cores.stage(0, choice());
        cores.resync(0, &record(8, 1, false));
        cores.asked(0);
        assert_eq!(cores.answered(0, complete(1, 8)), None);
        assert!(!cores.waits(0));
        assert!(!cores.all_quiet());
    }

    #[test]
    fn a_snapshot_of_an_older_run_does_not_change_a_newer_one() {
        let mut cores = Cores::new(1, 1);
        cores.resync(0, &record(7, 0, true));
        cores.stage(0, choice());
        cores.answered(0, complete(1, 8)).unwrap();
        cores.resync(0, &record(7, 0, true));
        assert!(!cores.waits(0));
        cores.asked(0);
        cores.resync(0, &record(8, 1, false));
        assert!(cores.waits(0));
    }

    #[test]
    fn a_request_before_the_first_snapshot_is_kept() {
        let mut cores = Cores::new(1, 1);
        cores.asked(0);
        cores.resync(0, &record(7, 0, false));
        assert!(cores.waits(0));
    }

    #[test]
    fn decisions_with_lost_outcomes_are_forgotten_at_the_next_outcome() {
        let mut cores = Cores::new(1, 3);
        cores.resync(0, &record(0, 0, true));
        let staged: Vec<_> = (0..3).map(|_| cores.stage(0, choice())).collect();
        assert_eq!(cores.answered(0, complete(3, 1)), Some(staged[2]));
        assert_eq!(cores.answered(0, complete(2, 1)), None);
        assert_eq!(cores.answered(0, complete(9, 1)), None, "never made");
        cores.asked(0);
        assert!(cores.all_quiet());
    }

    #[test]
    fn an_offline_core_gets_no_decision_until_it_asks() {
        let mut cores = Cores::new(1, 2);
        cores.resync(0, &record(0, 0, true));
        cores.stage(0, choice());
        let offline = Outcome { txn: TxnId::new(1), code: Code::CpuOffline, run: 0 };
        assert!(cores.answered(0, offline).is_some());
        assert_eq!((cores.asking(), cores.open()), (None, None));
        cores.asked(0);
        assert_eq!(cores.asking(), Some(0));
    }

    #[test]
    fn cores_take_turns() {
        let mut cores = Cores::new(CORES_MAX as u16, 1);
        for core in 0..cores.len() {
            cores.resync(core, &record(0, 0, true));
        }
        let mut order = Vec::new();
        while let Some(core) = cores.asking() {
            cores.stage(core, choice());
            order.push(core);
        }
        assert_eq!(order, (0..cores.len()).collect::<Vec<_>>());
        assert_eq!(cores.open(), None);
        // The next scan begins after the core that was served last.
        cores.answered(3, complete(1, 1)).unwrap();
        cores.asked(3);
        cores.answered(1, complete(1, 1)).unwrap();
        cores.asked(1);
        assert_eq!(cores.asking(), Some(1));
        cores.stage(1, choice());
        assert_eq!(cores.asking(), Some(3));
    }

    #[test]
    fn the_state_of_a_core_is_found_by_its_number() {
        let mut cores = Cores::new(2, 1);
        cores.resync(0, &record(0, 0, true));
        assert!(cores.asks(0) && !cores.asks(1));
        assert!(cores.has_room(0) && cores.has_room(1));
        cores.stage(0, choice());
        assert!(!cores.asks(0) && !cores.has_room(0));
        assert_eq!((cores.unanswered(0), cores.unanswered(1)), (1, 0));
        for beyond in [2, CORES_MAX as u16, u16::MAX] {
            assert!(!cores.asks(beyond) && !cores.has_room(beyond));
        }
    }

    #[test]
    #[should_panic(expected = "the policy's fault")]
    fn staging_without_room_panics_and_blames_the_policy() {
        let mut cores = Cores::new(1, 1);
        cores.stage(0, choice());
        cores.stage(0, choice());
    }
}
