//! A modelled core: drives the real host protocol, and runs threads that consist only of durations.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::host::{HostCore, Mechanism, Next};
use wave_core::link::{Home, Mapping};
use wave_core::message::Decision;
use wave_core::outcome::Code;
use wave_core::planted::{Planted, is_planted};
use wave_sched::mechanism::core_loop::{Run, Runs, must_adopt};
use wave_sched::mechanism::table::Leave;

use crate::app::After;
use crate::enclave::{Enclave, HostEvent, Incarnation, Mode, SimPort};
use crate::modelled::Modelled;
use crate::world::{Cause, TaskId};

/// How long a spinning core waits for a store to its queue before it looks without one.
const LOOK_AGAIN: Nanos = Nanos(2_000);

struct CoreLink {
    port: SimPort,
    protocol: HostCore,
    incarnation: Rc<Incarnation>,
}

struct Core {
    enclave: Rc<Enclave>,
    index: u16,
    task: TaskId,
    link: Option<CoreLink>,
    epoch: u64,
    runs: Runs,
    /// When the last run ended, until the next begins.
    left_at: Option<Nanos>,
    was_idle: bool,
}

/// What a core does for a committed decision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Thread(Run),
    /// The core is occupied for this long, by a modelled host.
    Time(Nanos),
}

/// Applies decisions for one core.
struct Commits<'a> {
    enclave: &'a Enclave,
    core: u16,
    /// The core was offline when it began to look. Even if it comes back meanwhile it refuses, because
    /// nobody would carry out a committed decision.
    is_away: bool,
    /// Cost of reading the words of a decision that Wave's entry does not have.
    more_words: Nanos,
}

impl Mechanism for Commits<'_> {
    type Work = Work;

    fn apply(&mut self, decision: &Decision) -> Result<Work, Code> {
        self.enclave.world.spend(self.more_words);
        let modelled = self.enclave.modelled.as_ref();
        let before = modelled.and_then(Modelled::checked);
        let result = self.check(decision);
        let has_changed = result.is_err() && before != modelled.and_then(Modelled::checked);
        let Decision { subject: thread, sequence, .. } = *decision;
        let core = self.core;
        self.enclave.emit(&match result {
            Ok(_) => HostEvent::Started { core, thread, sequence, decision: Some(*decision) },
            Err(code) => HostEvent::Refused { core, decision: *decision, code, has_changed },
        });
        result
    }
}

impl Commits<'_> {
    fn check(&self, decision: &Decision) -> Result<Work, Code> {
        if let Some(modelled) = &self.enclave.modelled {
            self.is_here()?;
            let time = modelled.commit(self.enclave.world.now(), self.core, decision)?;
            return Ok(Work::Time(time));
        }
        let run = Run::of(decision)?;
        self.is_here()?;
        run.commit(&self.enclave.table, self.core, decision).map(Work::Thread)
    }

    fn is_here(&self) -> Result<(), Code> {
        let refuses_all = self.is_away && !is_planted(Planted::BackTooSoon);
        match refuses_all || !self.enclave.is_online(self.core) {
            true => Err(Code::CpuOffline),
            false => Ok(()),
        }
    }
}

/// Starts the task of a core.
pub(crate) fn start(enclave: &Rc<Enclave>, index: u16) {
    let shared = Rc::clone(enclave);
    let task = enclave.world.spawn(move || {
        let task = shared.cores[usize::from(index)].task.get().expect("set before it runs");
        let mut core = Core {
            enclave: shared,
            index,
            task,
            link: None,
            epoch: 0,
            runs: Runs::default(),
            left_at: None,
            was_idle: true,
        };
        core.main();
    });
    enclave.cores[usize::from(index)].task.set(Some(task));
}

impl Core {
    fn main(&mut self) {
        loop {
            if must_adopt(self.epoch, self.enclave.epoch.get(), || self.link.is_some()) {
                self.adopt();
            }
            if !self.enclave.is_online(self.index) {
                self.stay_offline();
                continue;
            }
            match self.next() {
                Next::Run(Work::Thread(run)) => self.run_thread(run),
                Next::Run(Work::Time(time)) => self.carry_out(time),
                Next::Spin => {
                    self.idle();
                    let again = self.enclave.world.now() + LOOK_AGAIN;
                    let causes = Cause::STORE.or(Cause::KICK).or(Cause::NUDGE);
                    self.enclave.world.wait(self.task, causes, Some(again));
                    self.take_kick();
                }
                Next::Park => {
                    self.idle();
                    self.park();
                }
            }
        }
    }

    fn idle(&mut self) {
        if !std::mem::replace(&mut self.was_idle, true) {
            self.enclave.emit(&HostEvent::Idle { core: self.index });
        }
    }

    fn next(&mut self) -> Next<Work> {
        let now = self.enclave.world.now();
        match self.enclave.mode() {
            Mode::Fallback => self.next_from_fallback(now),
            Mode::Agent => {
                let Some(CoreLink { port, protocol, incarnation }) = &mut self.link else {
                    return Next::Spin;
                };
                let more_words = more_words(&self.enclave);
                let (enclave, core) = (&self.enclave, self.index);
                let mut commits = Commits { enclave, core, is_away: false, more_words };
                let next = protocol.poll(port, now, &mut commits);
                let record = protocol.record();
                self.runs.by_agent(record);
                self.enclave.cores[usize::from(self.index)].record.set(record);
                let signals = protocol.take_signals();
                if !signals.is_empty() {
                    self.enclave.obey(signals, incarnation);
                }
                if let Next::Run(_) = next {
                    self.enclave.counters.borrow_mut().switches += 1;
                    let usage = &self.enclave.cores[usize::from(self.index)].usage;
                    usage.link(port.charges(), protocol.counts());
                }
                next
            }
        }
    }

    fn next_from_fallback(&mut self, now: Nanos) -> Next<Work> {
        if let Some(work) = self.enclave.pop_fallback(self.index) {
            self.enclave.counters.borrow_mut().fallback_switches += 1;
            let record = self.runs.by_fallback(self.link.as_mut().map(|link| &mut link.protocol));
            self.enclave.cores[usize::from(self.index)].record.set(record);
            return Next::Run(work);
        }
        match self.runs.may_sleep(now, self.enclave.setup.config.spin) {
            true => Next::Park,
            false => Next::Spin,
        }
    }

    /// Sleeps until a bell rings. Nothing can happen between the last look and the sleep: the two are
    /// one step of virtual time.
    fn park(&mut self) {
        if self.epoch != self.enclave.epoch.get() {
            return;
        }
        let shared = &self.enclave.cores[usize::from(self.index)];
        shared.sleeps.set(true);
        shared.usage.parks(self.enclave.world.now());
        self.enclave.world.wait(self.task, Cause::KICK.or(Cause::NUDGE), None);
        shared.usage.wakes(self.enclave.world.now());
        shared.sleeps.set(false);
        if self.take_kick() {
            self.enclave.world.spend(self.enclave.setup.machine.idle_exit.nanos());
        }
    }

    /// Takes an interrupt, if one has arrived.
    fn take_kick(&mut self) -> bool {
        let Some(CoreLink { incarnation, .. }) = &self.link else { return false };
        let kicked = incarnation.core_bells[usize::from(self.index)].take();
        if kicked {
            self.enclave.counters.borrow_mut().kicks += 1;
            self.enclave.world.spend(self.enclave.setup.costs.kick_receive.nanos());
        }
        kicked
    }

    fn run_thread(&mut self, run: Run) {
        let enclave = Rc::clone(&self.enclave);
        let (world, machine) = (&enclave.world, &enclave.setup.machine);
        let (shared, id) = (&enclave.cores[usize::from(self.index)], run.id);
        shared.running.set(Some(id));
        enclave.app.before(&enclave, self.index, id);
        world.spend(machine.switch_after.nanos());
        if run.slice != Nanos(0) {
            world.spend(machine.timer_set.nanos());
        }
        let began = world.now();
        let idled = std::mem::replace(&mut self.was_idle, false);
        if let Some(left) = self.left_at.take() {
            let mut counters = enclave.counters.borrow_mut();
            counters.at_once += u64::from(!idled);
            if enclave.keeps_times.get() {
                counters.switch_ns.push(began.since(left).0 as u32);
            }
        }
        shared.usage.runs(began);
        let why = self.execute(run);
        shared.usage.stops(world.now());
        self.left_at = Some(world.now());
        let ran = world.now().since(began);
        // A preempted core reads its decision at once: there is nothing to hide a prefetch behind
        // (Wave 7.2.3).
        if why != Leave::Preempt
            && let Some(link) = &mut self.link
        {
            link.protocol.prefetch(&link.port);
        }
        world.spend(machine.switch_before.nanos());
        shared.running.set(None);
        let event = enclave.change(id, why, self.index, ran);
        enclave.counters.borrow_mut().messages += 1;
        if let Some(link) = &mut self.link {
            link.protocol.hold(event.to_message());
        }
        if event.kind.leaves_runnable() {
            enclave.became_runnable(&event);
        }
        enclave.app.left(&enclave, id, event.kind);
    }

    /// Occupies the core for `time`, by a decision that a modelled host has committed.
    fn carry_out(&mut self, time: Nanos) {
        let enclave = Rc::clone(&self.enclave);
        let shared = &enclave.cores[usize::from(self.index)];
        self.was_idle = false;
        shared.usage.runs(enclave.world.now());
        enclave.world.spend(time);
        shared.usage.stops(enclave.world.now());
        if let Some(link) = &mut self.link {
            link.protocol.prefetch(&link.port);
        }
        let message = enclave.finish(self.index);
        if let Some(link) = &mut self.link {
            link.protocol.hold(message);
        }
    }

    /// Runs a thread until it stops on its own, or is stopped.
    fn execute(&mut self, run: Run) -> Leave {
        let enclave = Rc::clone(&self.enclave);
        let (world, machine) = (&enclave.world, &enclave.setup.machine);
        let (id, own) = (run.id, enclave.table.own(run.id));
        let slice_end = run.end(world.now());
        let timer = (slice_end != Nanos::MAX).then(|| slice_end + machine.timer_late.nanos());
        // A core that polls the preemption word is not interrupted.
        let wakes = if machine.safe_points.is_some() { Cause::WORD } else { Cause::KICK };
        loop {
            let remaining = own.remaining.get();
            let from = world.now();
            let (pace, changes) = enclave.app.pace(from, self.index);
            let end = from + pace.time_for(remaining);
            let until = [changes, timer].into_iter().flatten().fold(end, Nanos::min);
            world.wait(self.task, wakes.or(Cause::NUDGE), Some(until));
            let done = pace.work_in(world.now().since(from)).0.min(remaining.0);
            let left = Nanos(remaining.0 - if world.now() >= end { remaining.0 } else { done });
            own.remaining.set(left);
            enclave.app.ran(world.now(), self.index, id, world.now().since(from));
            let looks = machine.safe_points.is_some() || self.take_kick();
            if left.0 == 0 {
                match enclave.app.after(&enclave, id) {
                    After::On(work) => own.remaining.set(work),
                    After::Again(work) => {
                        own.remaining.set(work);
                        return Leave::Yield;
                    }
                    After::Await(work) => {
                        own.remaining.set(work);
                        return Leave::Await;
                    }
                    After::Block => return Leave::Park,
                    After::Exit => return Leave::Exit,
                }
            }
            if !enclave.is_online(self.index) {
                return Leave::Preempt;
            }
            if looks
                && let Some(link) = &self.link
                && link.protocol.preempt_requested(&link.port)
            {
                machine.safe_points.iter().for_each(|points| world.spend(points.leave.nanos()));
                enclave.counters.borrow_mut().preempted += 1;
                return Leave::Preempt;
            }
            if timer.is_some_and(|at| at <= world.now()) {
                world.spend(machine.timer_receive.nanos());
                enclave.counters.borrow_mut().slices += 1;
                return Leave::Preempt;
            }
        }
    }

    /// Refuses all decisions in the queue, and waits until the core is back online.
    fn stay_offline(&mut self) {
        let enclave = Rc::clone(&self.enclave);
        if let Some(link) = &mut self.link {
            let more_words = more_words(&enclave);
            let core = self.index;
            let mut commits = Commits { enclave: &enclave, core, is_away: true, more_words };
            link.protocol.refuse_all(&link.port, &mut commits);
            let signals = link.protocol.take_signals();
            if !signals.is_empty() {
                enclave.obey(signals, &link.incarnation);
            }
            enclave.cores[usize::from(self.index)].record.set(link.protocol.record());
        }
        let causes = Cause::STORE.or(Cause::KICK).or(Cause::NUDGE);
        enclave.world.wait(self.task, causes, None);
        self.take_kick();
        if enclave.is_online(self.index)
            && let Some(link) = &mut self.link
        {
            link.protocol.ask_anew(&link.port);
            let signals = link.protocol.take_signals();
            if !signals.is_empty() {
                enclave.obey(signals, &link.incarnation);
            }
        }
    }

    /// Adopts the current incarnation's window, or none.
    fn adopt(&mut self) {
        if let Some(link) = self.link.take() {
            self.enclave.counters.borrow_mut().outcomes.merge(link.protocol.counts());
            let usage = &self.enclave.cores[usize::from(self.index)].usage;
            usage.link(link.port.charges(), link.protocol.counts());
            usage.unlink();
        }
        let epoch = self.enclave.epoch.get();
        let incarnation = self.enclave.incarnation.borrow().clone();
        let shared = &self.enclave.cores[usize::from(self.index)];
        if let Some(incarnation) = incarnation {
            let prefetches = self.enclave.setup.prefetch;
            let layout = &incarnation.layout;
            let mut protocol = HostCore::new(layout, self.index, self.runs.run(), prefetches);
            shared.record.set(protocol.record());
            let port = self.enclave.port(&incarnation, u64::from(self.index));
            // The agent's first snapshot may date from a time when this core was running.
            protocol.ask_anew(&port);
            let signals = protocol.take_signals();
            if !signals.is_empty() {
                self.enclave.obey(signals, &incarnation);
            }
            self.link = Some(CoreLink { port, protocol, incarnation });
        }
        self.epoch = epoch;
        shared.epoch.set(epoch);
        self.enclave.emit(&HostEvent::Adopted { core: self.index });
    }
}

/// Cost of reading the words of a decision that Wave's entry does not have: a round trip each over an
/// uncached mapping, otherwise nothing, as they come with the line.
fn more_words(enclave: &Enclave) -> Nanos {
    let decisions = &enclave.setup.config.decisions;
    let costs = &enclave.setup.costs;
    let uncached = decisions.host == Mapping::Uncached && decisions.home == Home::Nic;
    if !uncached || costs.coherent {
        return Nanos(0);
    }
    let words = enclave.setup.machine.decision_words_read_more.value;
    Nanos((words * costs.host_read.ns).round() as u64)
}
