//! A policy made from a [`Discipline`].

use alloc::vec::Vec;
use core::fmt::Debug;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Decision, Message, Sequence, Subject, TxnId};
use wave_core::note::Request;
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Note, Policy, Preemption, Progress};
use wave_core::snapshot::{CoreRecord, Record, Snapshot, State};

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
    /// Whether a message or a snapshot has reported it: until then no sequence is too old, for sequences wrap.
    is_known: bool,
    place: Place,
    /// While it is staged: the core, and the number of the decision.
    staged: (u16, TxnId),
    /// The snapshot that is being applied has its record.
    is_recorded: bool,
    /// Its last message said that it was created.
    pub(crate) is_created: bool,
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
    is_known: false,
    place: Place::Away,
    staged: (NO_CORE, TxnId::new(0)),
    is_recorded: false,
    is_created: false,
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

    /// After a snapshot the next AWAITS may be one that was heard before. The host's snapshot has no notes, so their state is
    /// kept, and each thread may have a request.
    fn expect_old_news(&mut self) {
        self.unsure = true;
        self.noted.get_or_insert(Asked { class: self.class, slo: None });
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
    /// At a snapshot the thread runs, or its decision is still on its way: it leaves the queue at once, and keeps the mark of a
    /// thread found runnable.
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

    /// A run of a thread begins on this core, or a snapshot or a message shows that one has begun. Reported again if a snapshot
    /// shows the same run.
    fn begin(&mut self, _id: u32, _thread: &Thread, _core: u16) {}

    /// A run of a thread is over, and lasted for `ran`; zero if its length is not known.
    fn charge(&mut self, _id: u32, _thread: &mut Thread, _ran: Nanos) {}

    /// A thread that was taken does not run: a core refused it, it changed before a core had the decision, or the decision was
    /// lost. If it still waits, `enter` follows.
    fn not_run(&mut self, _id: u32, _thread: &Thread) {}

    /// A thread is gone, after its last run was charged. May be reported again, and for a thread that never entered.
    fn end(&mut self, _id: u32, _thread: &Thread) {}

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
            self.discipline.begin(id, thread, core);
        }
    }

    fn stage(&mut self, desk: &mut Desk<'_>, core: u16, id: u32) {
        let thread = &mut self.threads[id as usize];
        thread.place = Place::Staged;
        let subject = Subject { id, generation: thread.generation };
        let slice = self.discipline.slice_in_decisions();
        thread.staged = (core, desk.stage(core, wire::run(subject, thread.sequence, slice)));
        self.runs.bind(core);
    }

    /// The thread's run is over, or will not begin, as this message says.
    fn close(&mut self, now: Nanos, event: &Event) {
        let id = event.thread.id;
        let place = self.threads[id as usize].place;
        let run = self.withdraw(id);
        let thread = &mut self.threads[id as usize];
        let ran = match run {
            // The host does not measure.
            Some(run) if event.ran == Nanos(0) => now.since(run.start),
            _ => event.ran,
        };
        let was_decided = matches!(place, Place::Staged | Place::Running);
        if !was_decided && ran != Nanos(0) && usize::from(event.core) < self.runs.cores() {
            // The host decided by itself, as it does until each core uses a new agent's window.
            self.discipline.begin(id, thread, event.core);
        }
        let has_run = place == Place::Running || was_decided && event.kind.ends_run();
        if has_run || ran != Nanos(0) {
            self.discipline.charge(id, thread, ran);
        } else if place == Place::Staged {
            self.discipline.not_run(id, thread);
        }
    }

    /// The snapshot's record of a thread, where it is newer than messages and outcomes.
    fn take_over(&mut self, now: Nanos, record: &Record, cores: &[CoreRecord]) {
        let id = record.subject.id;
        let thread = &mut self.threads[id as usize];
        let ahead = if thread.is_known { record.sequence.ahead_of(thread.sequence) } else { 1 };
        let is_same = ahead == 0 && thread.generation == record.subject.generation;
        let stands = match (thread.place, record.state) {
            // The record is older than the outcome: a thread's sequence does not change while it runs.
            (Place::Running, State::Runnable) => is_same,
            (Place::Staged, State::Runnable) => {
                let (core, txn) = thread.staged;
                is_same && !cores.get(usize::from(core)).is_some_and(|core| core.has_answered(txn))
            }
            _ => false,
        };
        if ahead < 0 || stands {
            thread.expect_old_news();
            return self.resume(now, id);
        }
        let is_same_run = is_same && record.state == State::Running;
        match thread.place {
            Place::Running if !is_same_run => self.discipline.charge(id, thread, Nanos(0)),
            Place::Staged if !is_same_run => self.discipline.not_run(id, thread),
            _ => {}
        }
        let is_same_thread = thread.generation == record.subject.generation;
        if record.state == State::Free || !is_same_thread {
            self.discipline.end(id, thread);
        }
        let Thread { serves, noted, core, .. } = if is_same_thread { *thread } else { UNKNOWN };
        *thread = Thread { serves, noted, core, is_known: true, is_recorded: true, ..UNKNOWN };
        (thread.generation, thread.sequence) = (record.subject.generation, record.sequence);
        thread.class = thread.serves.map_or(record.class, |asked| asked.class);
        thread.expect_old_news();
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

    /// The snapshot is older than what is known of this thread: a later message, its unanswered decision, or its run.
    fn resume(&mut self, now: Nanos, id: u32) {
        let thread = &mut self.threads[id as usize];
        thread.mark = 0;
        match core::mem::replace(&mut thread.place, Place::Away) {
            Place::Waiting => self.enter(now, id, Cause::Found),
            Place::Running => {
                let core = thread.core;
                self.enter(now, id, Cause::Runs);
                self.begin(now, core, id, false);
            }
            Place::Staged => {
                self.enter(now, id, Cause::Runs);
                self.withdraw(id);
                self.threads[id as usize].place = Place::Staged;
            }
            place => thread.place = place,
        }
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
        let known = &self.threads[id as usize];
        let is_same_thread = known.generation == event.thread.generation;
        // After a snapshot a thread's last message may come again.
        if known.is_known && is_same_thread && known.sequence == event.sequence {
            return;
        }
        self.close(now, &event);
        let thread = &mut self.threads[id as usize];
        if !is_same_thread {
            self.discipline.end(id, thread);
            *thread = UNKNOWN;
        }
        thread.is_known = true;
        thread.is_created = event.kind == Kind::New;
        (thread.generation, thread.sequence) = (event.thread.generation, event.sequence);
        thread.class = thread.serves.map_or(event.class, |asked| asked.class);
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
            Kind::Blocked => return,
            Kind::Dead | Kind::Departed => return self.discipline.end(id, thread),
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
        let thread = &mut self.threads[id as usize];
        if outcome.code == Code::Complete {
            // For any snapshot: a thread's sequence does not change while it runs.
            return self.begin(now, core, id, decision.argument != 0);
        }
        if thread.place != Place::Staged {
            return;
        }
        if outcome.code == Code::TargetOnCpu {
            // On a core that no outcome named.
            (thread.place, thread.core) = (Place::Running, NO_CORE);
            return;
        }
        thread.place = Place::Away;
        self.discipline.not_run(id, thread);
        match outcome.code {
            // The thread's next message will report what made the decision stale.
            Code::TargetStale | Code::TargetNotFound | Code::TargetNotRunnable => {}
            // The refusal concerns the core or the form of the decision: the thread still waits.
            _ => self.enter(now, id, Cause::Refused),
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
        self.deadline = None;
        self.threads.iter_mut().for_each(|thread| thread.is_recorded = false);
        for record in &snapshot.records {
            let thread = self.threads.get_mut(record.subject.id as usize);
            // A lying host may name a thread twice.
            if thread.is_some_and(|thread| !core::mem::replace(&mut thread.is_recorded, true)) {
                self.take_over(now, record, &snapshot.cores);
            }
        }
        for id in 0..self.threads.len() as u32 {
            if !self.threads[id as usize].is_recorded {
                self.resume(now, id);
            }
        }
    }
}
