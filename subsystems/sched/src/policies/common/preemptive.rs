//! A policy made from a [`Discipline`].

use alloc::vec::Vec;
use core::fmt::Debug;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::note::Request;
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Note, Policy, Preemption, Progress};
use wave_core::snapshot::{Snapshot, State};

use super::{Run, Runs};
use crate::wire::{self, Event, Kind, NO_CORE};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Not waiting: blocked, dead or unknown.
    #[default]
    Away,
    Waiting,
    Staged,
    Running,
    /// Runnable, but without work before a request's note.
    Awaiting,
}

/// How a request's note says that it is to be served.
#[derive(Clone, Copy, Debug)]
struct Asked {
    class: u16,
    slo: Option<Nanos>,
}

/// A policy's record of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    generation: u32,
    sequence: Sequence,
    place: Place,
    /// The request whose note made it ready, until it awaits another.
    serves: Option<Asked>,
    /// A request that came, or may have come, since it last awaited one.
    noted: Option<Asked>,
    /// After a snapshot: the next AWAITS may have been heard before, or end a run that began before a note. So that AWAITS
    /// leaves `noted` for the next one.
    unsure: bool,
    /// Its class, or that of the request that it serves.
    pub class: u16,
    /// The core that it ran on last, or [`NO_CORE`]. Always a core of the enclave.
    pub core: u16,
    /// When it began to wait, while it waits.
    pub since: Nanos,
    /// For the discipline's use, such as a deadline; zero for a new thread.
    pub mark: u64,
}

pub(crate) const UNKNOWN: Thread = Thread {
    generation: 0,
    sequence: Sequence(0),
    place: Place::Away,
    serves: None,
    noted: None,
    unsure: false,
    class: 0,
    core: NO_CORE,
    since: Nanos(0),
    mark: 0,
};

impl Thread {
    /// The longest wait allowed to the request that the thread serves, where the request's note has an SLO.
    pub fn slo(&self) -> Option<Nanos> {
        self.serves.and_then(|asked| asked.slo)
    }

    fn serve(&mut self, asked: Asked) {
        self.serves = Some(asked);
        self.class = asked.class;
    }
}

/// Reason for which a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was created, woke up, or a request came for it.
    Woken,
    /// The thread yielded its core.
    Yielded,
    /// The thread's run was preempted.
    Preempted,
    /// A core refused the decision for a reason of its own. The thread must not be first again: it could be refused for ever,
    /// and hold up the others.
    Refused,
    /// A snapshot shows the thread as runnable.
    Found,
    /// A snapshot shows the thread as running: it leaves the queue at once, and keeps the mark of a thread found runnable.
    Runs,
}

/// In which order threads wait, and which runs are ended for them.
pub trait Discipline: Debug {
    /// Whether decisions are prestaged on running cores while the queue is long ([`Preemptive`]). A prestaged decision cannot
    /// be taken back for a more urgent thread that comes later.
    const PRESTAGES: bool = true;
    /// Whether a thread prefers the core that it ran on last, if that core asks too.
    const STICKY: bool = false;

    /// Name of the policy, as users type it.
    fn name(&self) -> &'static str;

    /// Number of threads that wait.
    fn waiting(&self) -> usize;

    /// Whether a waiting thread may be prestaged on a running core now, where [`Discipline::PRESTAGES`].
    fn may_prestage(&self, _cores: u16) -> bool {
        true
    }

    /// See [`Policy::idles_for`].
    fn idles_for(&self) -> Nanos {
        Nanos(0)
    }

    /// A thread begins to wait; [`Thread::since`] is now.
    fn enter(&mut self, now: Nanos, id: u32, thread: &mut Thread, cause: Cause);

    /// A thread stops waiting.
    fn leave(&mut self, id: u32);

    /// Takes the thread that should run next on this core. `threads` are all threads, by id. A [`Discipline::STICKY`] thread
    /// may get another core.
    fn take(&mut self, now: Nanos, core: u16, threads: &[Thread]) -> Option<u32>;

    /// Removes all threads; a snapshot is about to replace them.
    fn clear(&mut self);

    /// A thread has run for the duration `ran`.
    fn charge(&mut self, _id: u32, _thread: &mut Thread, _ran: Nanos) {}

    /// The rank of a run of this thread that begins now; [`Runs::first`] returns the run of the lowest rank.
    fn rank(&self, now: Nanos, thread: &Thread) -> u64;

    /// The core whose run should end for a waiting thread to which no other core has a claim. Called repeatedly until it
    /// returns `None`.
    fn victim(&mut self, now: Nanos, runs: &Runs, threads: &[Thread]) -> Option<u16>;

    /// When there may next be a [`Discipline::victim`] if nothing else happens. Called after `victim` returned `None`; must lie
    /// in the future.
    fn next_victim(&self, now: Nanos, runs: &Runs) -> Option<Nanos>;

    /// The slice carried by the decision for the thread taken last, which the core's own timer ends; zero: none.
    fn slice_in_decisions(&self) -> Nanos {
        Nanos(0)
    }

    /// When to end a run that began at `start`, for a thread that was prestaged on its core. `None`: the run is not ended.
    fn slice_end(&self, _start: Nanos) -> Option<Nanos> {
        None
    }
}

/// The policy made from a discipline.
///
/// Cores that ask are served first. Other threads are prestaged on running cores only while at least as many wait as there are
/// cores (Wave 4.1), as in [`super::super::fifo`] and for its reasons.
#[derive(Debug)]
pub struct Preemptive<D> {
    threads: Vec<Thread>,
    runs: Runs,
    discipline: D,
    /// The next deadline, as the last `decide` computed it.
    deadline: Option<Nanos>,
}

impl<D: Discipline> Preemptive<D> {
    /// For an enclave of this configuration.
    pub fn with(config: &Config, discipline: D) -> Preemptive<D> {
        Preemptive {
            threads: alloc::vec![UNKNOWN; config.subjects as usize],
            runs: Runs::new(config.cores),
            discipline,
            deadline: None,
        }
    }

    /// Number of threads that wait for a decision.
    pub fn queue_len(&self) -> usize {
        self.discipline.waiting()
    }

    /// Takes a thread from its believed place. Returns its run, if it was on a core.
    fn withdraw(&mut self, id: u32) -> Option<Run> {
        let thread = &mut self.threads[id as usize];
        match core::mem::replace(&mut thread.place, Place::Away) {
            Place::Waiting => {
                self.discipline.leave(id);
                None
            }
            Place::Running => self.runs.end_of(thread.core, id),
            Place::Away | Place::Staged | Place::Awaiting => None,
        }
    }

    fn enter(&mut self, now: Nanos, id: u32, cause: Cause) {
        let thread = &mut self.threads[id as usize];
        thread.place = Place::Waiting;
        thread.since = now;
        self.discipline.enter(now, id, thread, cause);
    }

    fn begin(&mut self, now: Nanos, core: u16, id: u32, has_slice: bool) {
        self.withdraw(id);
        let thread = &mut self.threads[id as usize];
        thread.place = Place::Running;
        if usize::from(core) < self.runs.cores() {
            thread.core = core;
            let rank = self.discipline.rank(now, thread);
            self.runs.begin(core, Run { thread: id, start: now, has_slice }, rank);
        }
    }

    fn stage(&mut self, desk: &mut Desk<'_>, core: u16, id: u32) {
        let thread = &mut self.threads[id as usize];
        thread.place = Place::Staged;
        let subject = Subject { id, generation: thread.generation };
        let slice = self.discipline.slice_in_decisions();
        desk.stage(core, wire::run(subject, thread.sequence, slice));
        self.runs.bind(core);
    }

    fn serve(&mut self, now: Nanos, desk: &mut Desk<'_>) {
        while let Some(core) = desk.asking() {
            let Some(id) = self.discipline.take(now, core, &self.threads) else {
                return self.serve_others(now, desk, core);
            };
            let last = self.threads[id as usize].core;
            let core = if D::STICKY && desk.asks(last) { last } else { core };
            self.stage(desk, core, id);
        }
        let cores = usize::from(desk.cores());
        while D::PRESTAGES
            && (cores == 1 || self.discipline.waiting() >= cores)
            && self.discipline.may_prestage(desk.cores())
        {
            let Some(core) = desk.open() else { return };
            let Some(id) = self.discipline.take(now, core, &self.threads) else { return };
            self.stage(desk, core, id);
        }
    }

    /// There is no thread for the core `but`, but perhaps for others.
    fn serve_others(&mut self, now: Nanos, desk: &mut Desk<'_>, but: u16) {
        for core in (0..desk.cores()).filter(|core| *core != but) {
            if self.discipline.waiting() == 0 || desk.is_full() {
                return;
            }
            if desk.asks(core)
                && let Some(id) = self.discipline.take(now, core, &self.threads)
            {
                self.stage(desk, core, id);
            }
        }
    }

    fn end_runs(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        self.runs.check_asked(|core| desk.run(core));
        while self.discipline.waiting() > self.runs.claims() {
            let Some(core) = self.discipline.victim(now, &self.runs, &self.threads) else {
                self.deadline = self.discipline.next_victim(now, &self.runs);
                return Progress::Done;
            };
            let run = desk.run(core);
            if desk.is_full() || !desk.preempt(Preemption { core, run }) {
                return Progress::More;
            }
            let is_bound = desk.unanswered(core) > 0;
            let has_room = !is_bound && desk.has_room(core);
            if has_room && let Some(id) = self.discipline.take(now, core, &self.threads) {
                self.stage(desk, core, id);
            }
            self.runs.ending(core, run, !is_bound && !has_room);
        }
        self.end_runs_for_bound(now, desk)
    }

    /// No thread waits that every core could serve, but threads may have been prestaged when more waited.
    fn end_runs_for_bound(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        let mut at = 0;
        while let Some(core) = self.runs.next_bound(at, |core| desk.unanswered(core) > 0) {
            at += 1;
            let end = self.runs.get(core).and_then(|run| self.discipline.slice_end(run.start));
            let (Some(end), run) = (end, desk.run(core)) else { continue };
            if end > now {
                self.deadline = Some(self.deadline.map_or(end, |other| other.min(end)));
            } else if desk.preempt(Preemption { core, run }) {
                self.runs.ending(core, run, false);
            } else {
                return Progress::More;
            }
        }
        Progress::Done
    }
}

impl<D: Discipline> Policy for Preemptive<D> {
    fn name(&self) -> &'static str {
        self.discipline.name()
    }

    fn idles_for(&self) -> Nanos {
        self.discipline.idles_for()
    }

    fn on_message(&mut self, now: Nanos, message: &Message) {
        let Some(event) = Event::from_message(message) else { return };
        let id = event.thread.id;
        if id as usize >= self.threads.len() {
            return;
        }
        let ended = self.withdraw(id);
        let thread = &mut self.threads[id as usize];
        let ran = match ended {
            // The host does not measure.
            Some(run) if event.ran == Nanos(0) => now.since(run.start),
            _ => event.ran,
        };
        if thread.generation != event.thread.generation {
            *thread = UNKNOWN;
        }
        thread.generation = event.thread.generation;
        thread.sequence = event.sequence;
        thread.class = thread.serves.map_or(event.class, |asked| asked.class);
        if ran != Nanos(0) {
            self.discipline.charge(id, thread, ran);
        }
        let cause = match event.kind {
            Kind::New | Kind::Wakeup => Cause::Woken,
            Kind::Yield => Cause::Yielded,
            Kind::Preempt => Cause::Preempted,
            Kind::Awaits => {
                (thread.serves, thread.class) = (None, event.class);
                let noted = thread.noted;
                if !core::mem::take(&mut thread.unsure) {
                    thread.noted = None;
                }
                let Some(asked) = noted else {
                    thread.place = Place::Awaiting;
                    return;
                };
                thread.serve(asked);
                Cause::Woken
            }
            Kind::Blocked | Kind::Dead | Kind::Departed => return,
        };
        self.enter(now, id, cause);
    }

    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        let id = decision.subject.id;
        let unchanged = self.threads.get(id as usize).is_some_and(|thread| {
            thread.generation == decision.subject.generation && thread.sequence == decision.sequence
        });
        if outcome.code == Code::Complete {
            self.runs.end(core);
        }
        if !unchanged {
            return;
        }
        let is_staged = self.threads[id as usize].place == Place::Staged;
        match outcome.code {
            // For any snapshot: a thread's sequence does not change while it runs.
            Code::Complete => self.begin(now, core, id, decision.argument != 0),
            Code::TargetOnCpu if is_staged => self.threads[id as usize].place = Place::Running,
            // The thread's next message will report what made the decision stale.
            Code::TargetStale
            | Code::TargetNotFound
            | Code::TargetNotRunnable
            | Code::TargetOnCpu => {}
            // The refusal concerns the core or the form of the decision: the thread still waits.
            _ if is_staged => self.enter(now, id, Cause::Refused),
            _ => {}
        }
    }

    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        self.deadline = None;
        self.serve(now, desk);
        if desk.is_full() { Progress::More } else { self.end_runs(now, desk) }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    fn on_note(&mut self, now: Nanos, note: &Note) {
        let Some(request) = Request::from_note(note) else { return };
        let Subject { id, generation } = request.thread;
        let Some(thread) = self.threads.get_mut(id as usize) else { return };
        if thread.generation != generation {
            return;
        }
        let asked = Asked { class: request.class.into(), slo: request.slo };
        if thread.place == Place::Awaiting {
            thread.serve(asked);
            self.enter(now, id, Cause::Woken);
        } else {
            // Also if the thread only waits: it may have run already, on a decision from before a snapshot.
            thread.noted = Some(asked);
        }
    }

    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.discipline.clear();
        self.runs.clear();
        for thread in &mut self.threads {
            // The host's snapshot has no notes, so their state is kept.
            let Thread { generation, serves, noted, .. } = *thread;
            *thread = Thread { generation, serves, noted, ..UNKNOWN };
        }
        self.deadline = None;
        for record in &snapshot.records {
            let id = record.subject.id;
            if id as usize >= self.threads.len() {
                continue;
            }
            // A lying host may name a thread twice.
            self.withdraw(id);
            let thread = &mut self.threads[id as usize];
            if thread.generation != record.subject.generation {
                *thread = UNKNOWN;
            }
            thread.generation = record.subject.generation;
            thread.sequence = record.sequence;
            thread.class = thread.serves.map_or(record.class, |asked| asked.class);
            thread.unsure = true;
            thread.noted.get_or_insert(Asked { class: thread.class, slo: None });
            match record.state {
                State::Runnable => self.enter(now, id, Cause::Found),
                State::Running => {
                    self.enter(now, id, Cause::Runs);
                    // The agent that decided the run may have given it no slice.
                    self.begin(now, record.core, id, false);
                }
                State::Blocked | State::Free => {}
            }
        }
    }
}
