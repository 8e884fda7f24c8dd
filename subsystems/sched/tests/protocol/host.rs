//! The modelled host: a thread table, cores, outside contexts and a control context, driven as a
//! runtime drives them, one small step at a time.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl, Revoked};
use wave_core::host::{Context, HostCore, Mechanism, Next, Signals};
use wave_core::layout::{Layout, write_header};
use wave_core::link::{Doorbell, Home, Port, Side};
use wave_core::message::{Decision, Sequence, Subject, TxnId};
use wave_core::note::Request;
use wave_core::outcome::Code;
use wave_core::snapshot::{CoreRecord, Record, State};
use wave_sched::wire::{DECISION_RUN, Event, Kind, NO_CORE};

use wave_core_testing::nasty::{Bell, Link, NastyPort};

#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub subject: Subject,
    pub sequence: Sequence,
    pub state: State,
    pub core: u16,
    /// Number of runs that have ended.
    pub runs: u32,
    /// Whether it found no request when it last polled, and awaits one.
    pub awaits: bool,
    /// Whether there is a request that it has not seen.
    pub requested: bool,
}

/// The true state, and what the checker records.
pub struct Table {
    pub slots: Vec<Slot>,
    pub free: Vec<u32>,
    /// Every run that ever began, to check that no two have the same sequence.
    begun: BTreeSet<(u32, u32)>,
    pub commits: u64,
    /// The slice that every decision must carry.
    slice: Nanos,
    /// Runs that the core's own timer ended.
    pub slices: u64,
    /// Whether threads await requests.
    pub with_requests: bool,
    /// Requests that their threads found.
    pub found: u64,
}

impl Table {
    pub fn new(subjects: u32, slice: Nanos) -> Table {
        let slot = |id| Slot {
            subject: Subject { id, generation: 0 },
            sequence: Sequence(0),
            state: State::Free,
            core: 0,
            runs: 0,
            awaits: false,
            requested: false,
        };
        Table {
            slots: (0..subjects).map(slot).collect(),
            free: (0..subjects).collect(),
            begun: BTreeSet::new(),
            commits: 0,
            slice,
            slices: 0,
            with_requests: false,
            found: 0,
        }
    }

    pub fn commit(&mut self, core: u16, subject: Subject, at: Sequence) -> Result<u32, Code> {
        let slot = self.slots.get_mut(subject.id as usize).ok_or(Code::TargetNotFound)?;
        if slot.subject != subject || slot.state == State::Free {
            return Err(Code::TargetNotFound);
        }
        if slot.sequence != at {
            return Err(Code::TargetStale);
        }
        match slot.state {
            State::Runnable => {}
            State::Running => return Err(Code::TargetOnCpu),
            _ => return Err(Code::TargetNotRunnable),
        }
        (slot.state, slot.core) = (State::Running, core);
        self.commits += 1;
        assert!(self.begun.insert((subject.id, at.0)), "{subject:?} was run twice at {at:?}");
        Ok(subject.id)
    }

    /// Changes the state, and returns the message that reports it.
    pub fn change(&mut self, id: u32, kind: Kind, core: u16) -> Event {
        let slot = &mut self.slots[id as usize];
        let allowed = match kind {
            Kind::New => State::Free,
            Kind::Wakeup => State::Blocked,
            _ => State::Running,
        };
        assert_eq!(slot.state, allowed, "{kind:?} of {slot:?}");
        slot.sequence = slot.sequence.next();
        slot.state = match kind {
            Kind::Blocked => State::Blocked,
            Kind::Dead | Kind::Departed => State::Free,
            _ => State::Runnable,
        };
        if kind == Kind::New {
            slot.subject.generation += 1;
            slot.requested = false;
        }
        slot.awaits = kind == Kind::Awaits;
        let (thread, sequence) = (slot.subject, slot.sequence);
        if slot.state == State::Free {
            self.free.push(id);
        }
        Event { kind, thread, sequence, core, class: 0, ran: Nanos(0) }
    }

    pub fn record(&self, id: u32) -> Option<Record> {
        let slot = &self.slots[id as usize];
        (slot.sequence.0 != 0).then_some(Record {
            subject: slot.subject,
            sequence: slot.sequence,
            state: slot.state,
            core: slot.core,
            class: 0,
        })
    }

    pub fn in_state(&self, state: State) -> Vec<u32> {
        self.slots.iter().filter(|slot| slot.state == state).map(|slot| slot.subject.id).collect()
    }
}

struct Commits<'a>(&'a RefCell<Table>, u16);

impl Mechanism for Commits<'_> {
    type Work = u32;

    fn apply(&mut self, decision: &Decision) -> Result<u32, Code> {
        if decision.kind != DECISION_RUN {
            return Err(Code::UnsupportedVersion);
        }
        assert_eq!(Nanos(decision.argument), self.0.borrow().slice, "{decision:?}");
        self.0.borrow_mut().commit(self.1, decision.subject, decision.sequence)
    }
}

/// An incarnation of an agent, as the host sees it.
pub struct Incarnation {
    pub layout: Layout,
    pub link: Link,
    pub bells: Vec<Bell>,
    pub lost: RefCell<bool>,
}

impl Incarnation {
    pub fn new(layout: Layout, coherent: bool, seed: u64) -> Incarnation {
        let link = Link::new(&layout, coherent, seed);
        let bells = (0..layout.doorbells()).map(|_| Bell::default()).collect();
        Incarnation { layout, link, bells, lost: RefCell::new(false) }
    }

    fn obey(&self, signals: Signals) {
        assert!(!signals.fault(), "an honest agent was blamed");
        if signals.ring_agent() {
            self.bells[self.layout.agent_vector()].ring();
        }
        if signals.lost() {
            self.lost.replace(true);
        }
    }
}

struct CoreLink {
    port: NastyPort,
    protocol: HostCore,
    incarnation: Rc<Incarnation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Polling,
    Running(u32),
    Parked,
}

pub struct Core {
    index: u16,
    link: Option<CoreLink>,
    bell: Bell,
    epoch: u64,
    run: u32,
    record: CoreRecord,
    /// Messages about threads that the running thread woke or spawned, not sent yet.
    unsent: VecDeque<Event>,
    pub doing: Doing,
}

struct Outside {
    link: Option<(NastyPort, Context, Rc<Incarnation>)>,
    unsent: VecDeque<Event>,
}

enum Scan {
    Cores,
    Table { cores: Vec<CoreRecord>, here: usize, records: Vec<Record>, next: u32 },
}

struct Attached {
    incarnation: Rc<Incarnation>,
    port: NastyPort,
    control: HostControl,
    wanted: bool,
    cores_in_snapshot: Option<usize>,
    scan: Option<Scan>,
}

pub struct Host {
    pub table: RefCell<Table>,
    pub cores: Vec<Core>,
    outside: Vec<Outside>,
    candidates: Vec<(Rc<Incarnation>, NastyPort, HostControl)>,
    attached: Option<Attached>,
    current: Option<Rc<Incarnation>>,
    epoch: u64,
    agent_decides: bool,
    pub snapshots: u64,
    pub losses: u64,
    pub parks: u64,
}

impl Host {
    pub fn new(cores: u16, subjects: u32, outside: usize, slice: Nanos) -> Host {
        let core = |index| Core {
            index,
            link: None,
            bell: Bell::default(),
            epoch: 0,
            run: 0,
            record: CoreRecord { asks: true, ..CoreRecord::default() },
            unsent: VecDeque::new(),
            doing: Doing::Polling,
        };
        let voice = |_| Outside { link: None, unsent: VecDeque::new() };
        Host {
            table: RefCell::new(Table::new(subjects, slice)),
            cores: (0..cores).map(core).collect(),
            outside: (0..outside).map(voice).collect(),
            candidates: Vec::new(),
            attached: None,
            current: None,
            epoch: 0,
            agent_decides: false,
            snapshots: 0,
            losses: 0,
            parks: 0,
        }
    }

    pub fn has_agent(&self) -> bool {
        self.attached.is_some()
    }

    /// A request comes for a thread that has none, and goes to the agent that decides, as a note.
    pub fn step_front(&mut self, rng: &mut Pcg32) -> Option<(Rc<Incarnation>, Request)> {
        let incarnation = &self.attached.as_ref()?.incarnation;
        let table = &mut *self.table.borrow_mut();
        let waits = |slot: &&mut Slot| slot.state != State::Free && !slot.requested;
        let mut some: Vec<_> = table.slots.iter_mut().filter(waits).collect();
        if some.is_empty() {
            return None;
        }
        let slot = some.swap_remove(rng.random_range(0..some.len()));
        slot.requested = true;
        let (thread, class) = (slot.subject, rng.random_range(0..3));
        Some((Rc::clone(incarnation), Request { thread, class, slo: None }))
    }

    /// Makes a window for a new agent; it takes over when it announces itself.
    pub fn offer(&mut self, incarnation: &Rc<Incarnation>) {
        let layout = &incarnation.layout;
        let port = incarnation.link.port(Side::Host, layout);
        write_header(layout, port.window(Home::Nic));
        incarnation.link.settle();
        self.candidates.push((Rc::clone(incarnation), port, HostControl::new(layout)));
    }

    pub fn kill_agent(&mut self) {
        if let Some(old) = self.attached.take() {
            old.control.revoke(&old.port, Revoked::Replaced);
            self.switch(None);
            self.agent_decides = false;
            self.cores.iter().for_each(|core| core.bell.ring());
        }
    }

    fn switch(&mut self, to: Option<Rc<Incarnation>>) {
        self.current = to;
        self.epoch += 1;
        for core in &mut self.cores {
            // The new doorbell is the core's from now on; the old one tells the core to poll.
            if core.bell.take() || core.doing == Doing::Parked {
                core.doing = match core.doing {
                    Doing::Parked => Doing::Polling,
                    other => other,
                };
            }
            core.bell = match &self.current {
                Some(incarnation) => incarnation.bells[usize::from(core.index)].clone(),
                None => Bell::default(),
            };
        }
        let count = self.cores.len();
        for (at, outside) in self.outside.iter_mut().enumerate() {
            outside.link = self.current.as_ref().map(|incarnation| {
                let layout = &incarnation.layout;
                let context = Context::new(layout, &layout.messages[count + at]);
                (incarnation.link.port(Side::Host, layout), context, Rc::clone(incarnation))
            });
        }
    }

    /// One step of the control context. Returns whether anything happened.
    pub fn step_control(&mut self) -> bool {
        for at in 0..self.candidates.len() {
            let (_, port, control) = &self.candidates[at];
            match control.agent_state(port) {
                AgentState::Absent => {}
                AgentState::OtherVersion(version) => panic!("version {version}"),
                AgentState::Ready => {
                    let (incarnation, port, control) = self.candidates.remove(at);
                    if let Some(old) = self.attached.take() {
                        old.control.revoke(&old.port, Revoked::Replaced);
                    }
                    self.agent_decides = true;
                    self.switch(Some(Rc::clone(&incarnation)));
                    self.attached = Some(Attached {
                        incarnation,
                        port,
                        control,
                        wanted: true,
                        cores_in_snapshot: None,
                        scan: None,
                    });
                    return true;
                }
            }
        }
        let Some(agent) = &mut self.attached else { return false };
        let requests = agent.control.poll(&agent.port);
        assert!(!requests.fault, "an honest agent was blamed");
        let lost = agent.incarnation.lost.replace(false);
        self.losses += u64::from(lost);
        let epoch = self.epoch;
        let here = self.cores.iter().filter(|core| core.epoch == epoch).count();
        let before = agent.wanted;
        agent.wanted |= lost || requests.resync || agent.cores_in_snapshot != Some(here);
        // The snapshot is taken while threads run.
        match agent.scan.take() {
            None if agent.wanted => {
                agent.wanted = false;
                agent.scan = Some(Scan::Cores);
            }
            None => return before,
            Some(Scan::Cores) => {
                let cores = self.cores.iter().map(|core| match core.epoch == epoch {
                    true => core.record,
                    // The core's decisions came through another window.
                    false => CoreRecord { txn: TxnId::new(0), ..core.record },
                });
                let cores = cores.collect();
                agent.scan = Some(Scan::Table { cores, here, records: Vec::new(), next: 0 });
            }
            Some(Scan::Table { cores, here, mut records, next }) => {
                let table = self.table.borrow();
                let end = (next + 2).min(table.slots.len() as u32);
                records.extend((next..end).filter_map(|id| table.record(id)));
                if end < table.slots.len() as u32 {
                    agent.scan = Some(Scan::Table { cores, here, records, next: end });
                } else if agent.control.send_snapshot(&agent.port, &cores, records.into_iter()) {
                    agent.cores_in_snapshot = Some(here);
                    self.snapshots += 1;
                } else {
                    // Both extents are on their way to the agent.
                    agent.wanted = true;
                    return false;
                }
                agent.incarnation.obey(agent.control.take_signals());
            }
        }
        true
    }

    /// Sends one pending message from outside. If there is none, changes the table as `spawns` and
    /// `wakes` allow.
    pub fn step_outside(&mut self, at: usize, rng: &mut Pcg32, spawns: bool, wakes: bool) -> bool {
        let outside = &mut self.outside[at];
        if let Some(event) = outside.unsent.pop_front() {
            if let Some((port, context, incarnation)) = &mut outside.link {
                context.send(port, &event.to_message());
                incarnation.obey(context.take_signals());
            }
            return true;
        }
        let Some(event) = wake_or_spawn(&mut self.table.borrow_mut(), rng, NO_CORE, spawns, wakes)
        else {
            return false;
        };
        outside.unsent.push_back(event);
        true
    }

    /// One step of a core. Returns whether anything happened.
    pub fn step_core(&mut self, at: usize, now: Nanos, rng: &mut Pcg32, busy: bool) -> bool {
        let epoch = self.epoch;
        let core = &mut self.cores[at];
        if let Some(event) = core.unsent.pop_front() {
            if let Some(CoreLink { port, protocol, incarnation }) = &mut core.link {
                protocol.send(port, &event.to_message());
                incarnation.obey(protocol.take_signals());
            }
            return true;
        }
        match core.doing {
            Doing::Parked if core.bell.take() => core.doing = Doing::Polling,
            Doing::Parked => return false,
            Doing::Running(id) => self.run(at, id, rng, busy),
            Doing::Polling if core.epoch != epoch => self.adopt(at),
            Doing::Polling if self.agent_decides => return self.poll_agent(at, now),
            Doing::Polling => return self.fall_back(at),
        }
        true
    }

    fn adopt(&mut self, at: usize) {
        let core = &mut self.cores[at];
        core.link = self.current.as_ref().map(|incarnation| {
            let layout = &incarnation.layout;
            let protocol = HostCore::new(layout, core.index, core.run, at.is_multiple_of(2));
            core.record = protocol.record();
            let port = incarnation.link.port(Side::Host, layout);
            CoreLink { port, protocol, incarnation: Rc::clone(incarnation) }
        });
        core.epoch = self.epoch;
    }

    fn run(&mut self, at: usize, id: u32, rng: &mut Pcg32, busy: bool) {
        let core = &mut self.cores[at];
        let mut table = self.table.borrow_mut();
        for (other, slot) in table.slots.iter().enumerate() {
            let here = slot.state == State::Running && usize::from(slot.core) == at;
            assert_eq!(here, other as u32 == id, "core {at} runs {id}, the table says {slot:?}");
        }
        let left = table.slots[id as usize].runs;
        let polls = table.with_requests && rng.random();
        if polls && std::mem::take(&mut table.slots[id as usize].requested) {
            table.found += 1;
            return;
        }
        let kind = match rng.random_range(0..8) {
            _ if left == 0 => Kind::Dead,
            0 | 1 if busy => {
                let event = wake_or_spawn(&mut table, rng, core.index, true, true);
                core.unsent.extend(event);
                return;
            }
            2 | 3 if busy => return,
            _ if polls => Kind::Awaits,
            4 => Kind::Yield,
            5 if table.slice != Nanos(0) => {
                table.slices += 1;
                Kind::Preempt
            }
            5 => Kind::Preempt,
            _ => Kind::Blocked,
        };
        table.slots[id as usize].runs = left.saturating_sub(1);
        // As in a runtime: prefetch, then the table, then hold the message.
        if let Some(link) = &mut core.link {
            link.protocol.prefetch(&link.port);
        }
        let event = table.change(id, kind, core.index);
        if let Some(link) = &mut core.link {
            link.protocol.hold(event.to_message());
        }
        core.doing = Doing::Polling;
    }

    fn poll_agent(&mut self, at: usize, now: Nanos) -> bool {
        let core = &mut self.cores[at];
        let Some(CoreLink { port, protocol, incarnation }) = &mut core.link else { return false };
        let before = protocol.record();
        let next = protocol.poll(port, now, &mut Commits(&self.table, core.index));
        core.record = protocol.record();
        core.run = core.record.run;
        incarnation.obey(protocol.take_signals());
        match next {
            Next::Run(id) => core.doing = Doing::Running(id),
            Next::Spin => return before != core.record,
            Next::Park => {
                self.parks += 1;
                core.doing = Doing::Parked;
            }
        }
        true
    }

    fn fall_back(&mut self, at: usize) -> bool {
        let mut table = self.table.borrow_mut();
        let core = &mut self.cores[at];
        let runnable = table.slots.iter().find(|slot| slot.state == State::Runnable).copied();
        let Some(slot) = runnable else { return false };
        table.commit(core.index, slot.subject, slot.sequence).unwrap();
        match &mut core.link {
            Some(link) => {
                core.run = link.protocol.count_run();
                link.protocol.runs_already();
                core.record = link.protocol.record();
            }
            None => core.run += 1,
        }
        core.doing = Doing::Running(slot.subject.id);
        true
    }
}

/// Wakes a random blocked thread or creates one.
fn wake_or_spawn(
    table: &mut Table,
    rng: &mut Pcg32,
    core: u16,
    spawns: bool,
    wakes: bool,
) -> Option<Event> {
    let blocked = table.in_state(State::Blocked);
    if wakes && !blocked.is_empty() && (!spawns || rng.random()) {
        let id = blocked[rng.random_range(0..blocked.len())];
        return Some(table.change(id, Kind::Wakeup, core));
    }
    let id = if spawns { table.free.pop() } else { None }?;
    table.slots[id as usize].runs = rng.random_range(0..6);
    Some(table.change(id, Kind::New, core))
}
