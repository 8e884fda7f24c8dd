//! A machine on which nothing costs anything: decisions, switches and preemptions take effect at
//! once, so its figures show the policy alone.

use std::collections::VecDeque;

use wave_core::brain::Brain;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Decision, Sequence, Subject, Upstream};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Decisions, Policy};
use wave_core::snapshot::{CoreRecord, Snapshot};
use wave_sched::policies;
use wave_sched::wire::{Event, Kind, NO_CORE};

/// A thread that computes from its arrival on, then ends.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub arrives: Nanos,
    pub service: Nanos,
    pub class: u16,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    pub ran: Nanos,
    pub ended: Option<Nanos>,
    /// Its longest wait for a core.
    pub waited_max: Nanos,
    waits_since: Nanos,
    sequence: Sequence,
}

#[derive(Default)]
struct Core {
    running: Option<(u32, Nanos)>,
    /// When the core's own timer ends the run.
    slice_end: Option<Nanos>,
    run: u32,
    down: VecDeque<Decision>,
}

struct Machine<'a> {
    brain: Brain<Box<dyn Policy + Send>>,
    jobs: &'a [Job],
    served: Vec<Served>,
    cores: Vec<Core>,
    now: Nanos,
}

/// Runs `jobs`, in the order of their arrival, until `until`.
pub fn serve(policy: &str, cores: u16, prestage: u16, jobs: &[Job], until: Nanos) -> Vec<Served> {
    let config = Config { prestage, subjects: jobs.len() as u32, ..Config::coherent(cores) };
    let brain = Brain::new(&config, policies::by_name(policy, &config).unwrap(), ());
    let mut machine = Machine {
        brain,
        jobs,
        served: vec![Served::default(); jobs.len()],
        cores: (0..cores).map(|_| Core::default()).collect(),
        now: Nanos(0),
    };
    let asks = CoreRecord { asks: true, ..CoreRecord::default() };
    let snapshot = Snapshot { cores: vec![asks; usize::from(cores)], records: Vec::new() };
    machine.brain.on_snapshot(Nanos(0), &snapshot);
    machine.run(until);
    machine.served
}

impl Machine<'_> {
    fn run(&mut self, until: Nanos) {
        let mut arrived = 0;
        loop {
            let arrival = self.jobs.get(arrived).map(|job| job.arrives);
            let end = (0..self.cores.len()).filter_map(|core| self.end(core)).min();
            let events = [arrival, end, self.brain.next_deadline()];
            let Some(next) = events.into_iter().flatten().min().filter(|at| *at <= until) else {
                self.now = until;
                for core in 0..self.cores.len() {
                    self.stop(core);
                }
                return;
            };
            assert!(next >= self.now);
            self.now = next;
            for core in 0..self.cores.len() {
                if self.end(core) == Some(next) {
                    let is_done = self.done_at(core) == Some(next);
                    self.switch(core, if is_done { Kind::Dead } else { Kind::Preempt });
                }
            }
            while self.jobs.get(arrived).is_some_and(|job| job.arrives == next) {
                let message = Some(self.event(arrived as u32, Kind::New, NO_CORE).to_message());
                let context = self.cores.len() as u16;
                self.tell(context, Upstream { message, outcome: None, asks: false });
                arrived += 1;
            }
            self.decide();
        }
    }

    /// When a core's run ends unless the agent ends it before.
    fn end(&self, core: usize) -> Option<Nanos> {
        let done = self.done_at(core)?;
        Some(self.cores[core].slice_end.map_or(done, |slice| slice.min(done)))
    }

    /// When the core's thread is done, if it is not stopped.
    fn done_at(&self, core: usize) -> Option<Nanos> {
        let (id, since) = self.cores[core].running?;
        let left = self.jobs[id as usize].service - self.served[id as usize].ran;
        Some(since + left)
    }

    /// Ends the run of a core. Returns its thread and its duration.
    fn stop(&mut self, core: usize) -> Option<(u32, Nanos)> {
        let (id, since) = self.cores[core].running.take()?;
        let ran = self.now - since;
        let served = &mut self.served[id as usize];
        served.ran = served.ran + ran;
        Some((id, ran))
    }

    fn event(&mut self, id: u32, kind: Kind, core: u16) -> Event {
        let served = &mut self.served[id as usize];
        served.sequence = served.sequence.next();
        match kind {
            Kind::Dead => served.ended = Some(self.now),
            _ => served.waits_since = self.now,
        }
        Event {
            kind,
            thread: Subject { id, generation: 1 },
            sequence: served.sequence,
            core,
            class: self.jobs[id as usize].class,
            ran: Nanos(0),
        }
    }

    fn tell(&mut self, context: u16, entry: Upstream) {
        assert!(!self.brain.on_entry(self.now, context, &entry).resync);
    }

    fn switch(&mut self, core: usize, kind: Kind) {
        let (id, ran) = self.stop(core).unwrap();
        let event = Event { ran, ..self.event(id, kind, core as u16) };
        let message = Some(event.to_message());
        match self.begin(core) {
            None => self.tell(core as u16, Upstream { message, outcome: None, asks: true }),
            outcome => self.tell(core as u16, Upstream { message, outcome, asks: false }),
        }
    }

    fn begin(&mut self, core: usize) -> Option<Outcome> {
        let Core { down, run, running, slice_end } = &mut self.cores[core];
        let decision = down.pop_front()?;
        let served = &mut self.served[decision.subject.id as usize];
        assert_eq!(
            served.sequence, decision.sequence,
            "no decision is stale on a machine without delays"
        );
        served.waited_max = served.waited_max.max(self.now - served.waits_since);
        *running = Some((decision.subject.id, self.now));
        let slice = Nanos(decision.argument);
        *slice_end = (slice != Nanos(0)).then(|| self.now + slice);
        *run += 1;
        Some(Outcome { txn: decision.txn, code: Code::Complete, run: *run })
    }

    fn decide(&mut self) {
        loop {
            let mut out = Decisions::default();
            self.brain.decide(self.now, 1000, &mut out);
            if out.staged.is_empty() && out.preemptions.is_empty() {
                return;
            }
            for (core, decision) in out.staged {
                self.cores[usize::from(core)].down.push_back(decision);
            }
            for core in 0..self.cores.len() {
                if self.cores[core].running.is_none()
                    && let Some(outcome) = self.begin(core)
                {
                    let outcome = Some(outcome);
                    self.tell(core as u16, Upstream { message: None, outcome, asks: false });
                }
            }
            for preemption in out.preemptions {
                let core = usize::from(preemption.core);
                if self.cores[core].run == preemption.run {
                    self.switch(core, Kind::Preempt);
                }
            }
        }
    }
}
