//! A subsystem's modelled host in an enclave, in place of threads (ADR 44).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use hdrhistogram::Histogram;
use wave_core::clock::Nanos;
use wave_core::layout::ConfigError;
use wave_core::message::{Decision, Message, Sequence, Subject, TxnId};
use wave_core::modelled::ModelledHost;
use wave_core::outcome::Code;
use wave_core::policy::Choice;
use wave_core::snapshot::{Record, State};

use crate::app::{After, Application, Outside};
use crate::enclave::{Counters, Enclave, HostEvent, Mode, Setup};
use crate::experiment::Ended;
use crate::world::{Cause, TaskId, World};

/// The txn of the host's own decisions.
const BY_HOST: TxnId = TxnId::new(0);

/// A modelled host, and the task of its events.
pub(crate) struct Modelled {
    host: RefCell<Box<dyn ModelledHost>>,
    subjects: u32,
    events: Cell<Option<TaskId>>,
    /// Whether the records before and after a refusal are compared.
    is_checked: Cell<bool>,
}

impl Modelled {
    fn new(host: Box<dyn ModelledHost>, subjects: u32) -> Modelled {
        Modelled {
            host: RefCell::new(host),
            subjects,
            events: Cell::new(None),
            is_checked: Cell::new(false),
        }
    }

    fn record(&self, id: u32) -> Option<Record> {
        self.host.borrow().record(id)
    }

    /// The record of every id that was ever used.
    pub(crate) fn records(&self) -> Vec<Record> {
        let host = self.host.borrow();
        (0..self.subjects).filter_map(|id| host.record(id)).collect()
    }

    /// The record of every id that was ever used, if refusals are checked ([`Enclave::check_refusals`]).
    pub(crate) fn checked(&self) -> Option<Vec<Record>> {
        self.is_checked.get().then(|| self.records())
    }

    pub(crate) fn waits(&self, subject: Subject, sequence: Sequence) -> bool {
        let record = self.record(subject.id).filter(|record| record.state == State::Runnable);
        record.is_some_and(|record| (record.subject, record.sequence) == (subject, sequence))
    }

    /// Subjects that wait, from this id on, then from 0.
    pub(crate) fn waiting_from(&self, from: u32) -> impl Iterator<Item = (Subject, Sequence)> {
        let records = self.records().into_iter();
        let waiting = records.filter(|record| record.state == State::Runnable);
        let (before, after): (Vec<_>, Vec<_>) =
            waiting.partition(|record| record.subject.id < from);
        after.into_iter().chain(before).map(|record| (record.subject, record.sequence))
    }

    pub(crate) fn commit(&self, now: Nanos, core: u16, decision: &Decision) -> Result<Nanos, Code> {
        self.host.borrow_mut().commit(now, core, decision)
    }

    /// Commits the host's own choice for a core, if it has one.
    ///
    /// # Panics
    /// If the host refuses its own choice.
    pub(crate) fn fall_back(&self, now: Nanos, core: u16) -> Option<(Subject, Sequence, Nanos)> {
        let mut host = self.host.borrow_mut();
        let Choice { kind, subject, sequence, argument } = host.fallback(core)?;
        let decision = Decision { kind, subject, sequence, txn: BY_HOST, flags: 0, argument };
        let time = host.commit(now, core, &decision);
        let time = time.unwrap_or_else(|code| {
            panic!("the host refuses its own decision, {decision:?}: {}", code.name())
        });
        Some((subject, sequence, time))
    }
}

impl Enclave {
    /// Tells the checkers of a message, and wakes a sleeping core if the fallback decides.
    fn happened(&self, core: Option<u16>, message: &Message) {
        let modelled = self.modelled.as_ref().expect("asked by modelled hosts alone");
        let record = modelled.record(message.subject.id);
        self.counters.borrow_mut().messages += 1;
        self.emit(&HostEvent::Told { message: *message, core, record });
        let is_runnable = record.is_some_and(|record| record.state == State::Runnable);
        if is_runnable && self.mode() == Mode::Fallback {
            self.wake_sleeper();
        }
    }

    /// Ends the run on `core`, and returns the message that ends it.
    pub(crate) fn finish(&self, core: u16) -> Message {
        let modelled = self.modelled.as_ref().expect("asked by modelled hosts alone");
        let now = self.world.now();
        let message = modelled.host.borrow_mut().finish(now, core);
        self.happened(Some(core), &message);
        if let Some(events) = modelled.events.get() {
            self.world.wake(events, now, Cause::NUDGE);
        }
        message
    }

    /// From now on compares the records before and after every refusal of the modelled host. This is slow.
    pub(crate) fn check_refusals(&self) {
        self.modelled.iter().for_each(|modelled| modelled.is_checked.set(true));
    }

    /// The modelled host creates no new events from now on.
    pub(crate) fn stop_model(&self) {
        let modelled = self.modelled.as_ref().expect("asked of modelled hosts alone");
        modelled.host.borrow_mut().stop();
    }

    /// Checks the modelled host's own rules.
    pub(crate) fn check_model(&self) -> Result<(), String> {
        self.modelled.as_ref().map_or(Ok(()), |modelled| modelled.host.borrow().check())
    }
}

/// The application of a modelled host: performs each of its events when it is due.
struct Events;

impl Application for Events {
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>) {
        let weak = Rc::downgrade(enclave);
        let task = enclave.world().spawn(move || {
            if let Some(enclave) = weak.upgrade() {
                happen(&enclave);
            }
        });
        let modelled = enclave.modelled.as_ref().expect("started by modelled hosts alone");
        modelled.events.set(Some(task));
    }

    fn after(&self, _: &Enclave, _: u32) -> After {
        unreachable!("a modelled host has no threads")
    }
}

fn happen(enclave: &Rc<Enclave>) {
    let (world, modelled) = (enclave.world().clone(), enclave.modelled.as_ref());
    let modelled = modelled.expect("started by modelled hosts alone");
    let task = modelled.events.get().expect("set before it runs");
    let mut outside = Outside::new(enclave, 0);
    loop {
        let message = modelled.host.borrow_mut().event(world.now());
        match message {
            Some(message) => {
                enclave.happened(None, &message);
                world.spend(enclave.setup().machine.spawn.nanos());
                outside.send(&message);
            }
            None => {
                let next = modelled.host.borrow().next_event();
                // Otherwise this loop would ask again at once, for ever.
                assert!(
                    next.is_none_or(|at| at > world.now()),
                    "the modelled host's next event is due, but `event` returned none"
                );
                world.wait(task, Cause::NUDGE, next);
            }
        }
    }
}

impl Enclave {
    /// Creates an enclave of the configuration's subsystem, whose host is modelled. Its cores and events start with the world,
    /// without an agent until one is started ([`Enclave::start_agent`]).
    pub fn with_model(
        world: &World,
        setup: Setup,
        host: Box<dyn ModelledHost>,
    ) -> Result<Rc<Enclave>, ConfigError> {
        let subjects = setup.config.subjects;
        Enclave::make(world, setup, Some(Modelled::new(host, subjects)), Rc::new(Events))
    }
}

/// The result of simulating a subsystem.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Waits for a decision, in nanoseconds: those that began after the warm-up and have ended.
    pub waits: Histogram<u64>,
    /// Subjects that began to wait during the measurement, and still waited at the end.
    pub unfinished: u64,
    /// Subjects that waited at the end.
    pub waiting: u64,
    /// Subjects that began to wait during the measurement.
    pub arrived: u64,
    /// Decisions committed during the measurement, the host's own included.
    pub started: u64,
    /// Time for which cores were occupied during the measurement: the sum over all cores.
    pub busy: Nanos,
    /// The host and its agents, warm-up included.
    pub counters: Counters,
    /// End of the run, in virtual time.
    pub until: Nanos,
    /// Equal for equal histories.
    pub trace_hash: u64,
}

/// The waits that are measured.
#[derive(Debug)]
struct Waits {
    from: Nanos,
    since: HashMap<Subject, Nanos>,
    over: Histogram<u64>,
    arrived: u64,
    started: u64,
}

impl Waits {
    fn on_event(&mut self, now: Nanos, event: &HostEvent) {
        match event {
            HostEvent::Told { record: Some(record), .. } => {
                if record.state == State::Runnable {
                    // Another message of a subject that already waits does not restart its wait.
                    if let Entry::Vacant(wait) = self.since.entry(record.subject) {
                        wait.insert(now);
                        self.arrived += u64::from(now >= self.from);
                    }
                } else {
                    self.since.remove(&record.subject);
                }
            }
            HostEvent::Started { thread, .. } => {
                self.started += u64::from(now >= self.from);
                let since = self.since.remove(thread).filter(|since| *since >= self.from);
                if let Some(since) = since {
                    self.over.record(now.since(since).0).expect("it grows with what is recorded");
                }
            }
            _ => {}
        }
    }
}

/// Runs a modelled host under one agent for `warmup`, then for `measure`. Waits that begin during `warmup` are not measured.
pub fn simulate(
    setup: &Setup,
    host: Box<dyn ModelledHost>,
    [warmup, measure]: [Nanos; 2],
) -> Result<Outcome, ConfigError> {
    let world = World::new();
    let _ended = Ended(world.clone());
    let enclave = Enclave::with_model(&world, setup.clone(), host)?;
    let over = Histogram::new(3).expect("a precision that it knows");
    let waits = Waits { from: warmup, since: HashMap::new(), over, arrived: 0, started: 0 };
    let waits = Rc::new(RefCell::new(waits));
    let seen = Rc::clone(&waits);
    enclave.watch(Box::new(move |now, event| seen.borrow_mut().on_event(now, event)));
    enclave.start_agent();
    world.run_until(warmup);
    let before = enclave.usage().busy;
    world.run_until(warmup + measure);
    let waits = waits.borrow();
    let unfinished = waits.since.values().filter(|since| **since >= warmup).count();
    Ok(Outcome {
        waits: waits.over.clone(),
        unfinished: unfinished as u64,
        waiting: waits.since.len() as u64,
        arrived: waits.arrived,
        started: waits.started,
        busy: enclave.usage().busy.since(before),
        counters: enclave.counters(),
        until: world.now(),
        trace_hash: world.trace_hash(),
    })
}
