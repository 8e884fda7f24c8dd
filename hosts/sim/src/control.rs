//! The control context of the modelled host: agents attach, are watched, and are turned out. It
//! follows the same states as the runtime's (docs/adr/0003).

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl, Revoked};
use wave_core::link::Doorbell;
use wave_core::message::TxnId;
use wave_core::snapshot::CoreRecord;
use wave_core::watchdog::Watchdog;

use crate::enclave::{CoreShared, Enclave, HostEvent, Incarnation, Mode, SimPort};
use crate::world::{Cause, TaskId};

/// How long an agent may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(50);
/// Shortest time between two snapshots.
const SNAPSHOT_GAP: Nanos = Nanos::from_millis(1);

/// An agent that has been given a window.
pub(crate) struct Candidate {
    incarnation: Rc<Incarnation>,
    port: SimPort,
    control: HostControl,
    since: Option<Nanos>,
    cores_in_snapshot: Option<usize>,
    wants_snapshot: bool,
    last_snapshot: Option<Nanos>,
}

impl Candidate {
    pub(crate) fn new(incarnation: Rc<Incarnation>, port: SimPort) -> Candidate {
        let control = HostControl::new(&incarnation.layout);
        Candidate {
            incarnation,
            port,
            control,
            since: None,
            cores_in_snapshot: None,
            wants_snapshot: true,
            last_snapshot: None,
        }
    }
}

struct Control {
    enclave: Rc<Enclave>,
    task: TaskId,
    attached: Option<Candidate>,
    waiting: Vec<Candidate>,
    watchdog: Watchdog,
    cores_seen: Vec<CoreRecord>,
}

pub(crate) fn start(enclave: &Rc<Enclave>) {
    let shared = Rc::clone(enclave);
    let task = enclave.world.spawn(move || {
        let task = shared.control_task.get().expect("set before it runs");
        let watchdog = Watchdog::new(shared.setup.config.patience);
        let cores_seen = vec![CoreRecord::default(); shared.cores.len()];
        let enclave = shared;
        Control { enclave, task, attached: None, waiting: Vec::new(), watchdog, cores_seen }.main();
    });
    enclave.control_task.set(Some(task));
}

impl Control {
    fn main(mut self) {
        loop {
            let now = self.enclave.world.now();
            let quarter = Nanos((self.enclave.setup.config.patience.0 / 4).max(250_000));
            let wait = match &self.attached {
                Some(agent) if agent.wants_snapshot => SNAPSHOT_GAP,
                _ => quarter,
            };
            self.enclave.world.wait(self.task, Cause::KICK.or(Cause::NUDGE), Some(now + wait));
            let new = std::mem::take(&mut *self.enclave.candidates.borrow_mut());
            self.waiting.extend(new);
            let cpu = self.enclave.cpu.clone();
            if let Some(cpu) = &cpu {
                cpu.enter(self.task);
                self.enclave.world.spend(cpu.costs().control_look.nanos());
            }
            self.promote();
            self.serve();
            if let Some(cpu) = &cpu {
                cpu.leave();
            }
        }
    }

    fn promote(&mut self) {
        let now = self.enclave.world.now();
        let mut at = 0;
        while at < self.waiting.len() {
            let candidate = &mut self.waiting[at];
            candidate.incarnation.control_bell.take();
            let since = *candidate.since.get_or_insert(now);
            if candidate.control.agent_state(&candidate.port) == AgentState::Ready {
                let agent = self.waiting.swap_remove(at);
                self.attach(agent);
                continue;
            }
            let alive = is_alive(&self.enclave, &candidate.incarnation);
            if !alive || now.since(since) > CANDIDATE_PATIENCE {
                let gone = self.waiting.swap_remove(at);
                self.enclave.world.forget_window(gone.incarnation.window);
                continue;
            }
            at += 1;
        }
    }

    fn attach(&mut self, agent: Candidate) {
        if let Some(old) = self.attached.take() {
            old.control.revoke(&old.port, Revoked::Replaced);
        }
        self.enclave.counters.borrow_mut().attached += 1;
        self.watchdog = Watchdog::new(self.enclave.setup.config.patience);
        self.enclave.mode.set(Mode::Agent);
        self.switch_windows(Some(&agent.incarnation));
        self.attached = Some(agent);
        self.enclave.tell(&HostEvent::Attached);
    }

    fn switch_windows(&self, to: Option<&Rc<Incarnation>>) {
        let enclave = &self.enclave;
        *enclave.incarnation.borrow_mut() = to.cloned();
        enclave.epoch.set(enclave.epoch.get() + 1);
        (0..enclave.setup.config.cores).for_each(|core| enclave.nudge_core(core));
    }

    fn serve(&mut self) {
        let enclave = Rc::clone(&self.enclave);
        let Some(agent) = &mut self.attached else { return };
        agent.incarnation.control_bell.take();
        let now = enclave.world.now();
        let requests = agent.control.poll(&agent.port);
        let mut fault = requests.fault;
        if requests.resync {
            enclave.tell(&HostEvent::ResyncAsked);
        }
        let epoch = enclave.epoch.get();
        let came_over = |core: &CoreShared| core.epoch.get() == epoch;
        let here = enclave.cores.iter().filter(|core| came_over(core)).count();
        agent.wants_snapshot |= requests.resync;
        agent.wants_snapshot |= agent.incarnation.lost.replace(false);
        agent.wants_snapshot |= agent.cores_in_snapshot != Some(here);
        let rested = agent.last_snapshot.is_none_or(|last| now.since(last) >= SNAPSHOT_GAP);
        if agent.wants_snapshot && rested {
            let record = |core: &CoreShared| {
                let record = core.record.get();
                let txn = if came_over(core) { record.txn } else { TxnId::new(0) };
                CoreRecord { txn, ..record }
            };
            let cores: Vec<_> = enclave.cores.iter().map(record).collect();
            let records: Vec<_> = enclave.table.borrow().records().collect();
            if agent.control.send_snapshot(&agent.port, &cores, records.into_iter()) {
                agent.cores_in_snapshot = Some(here);
                agent.wants_snapshot = false;
                agent.last_snapshot = Some(now);
                enclave.counters.borrow_mut().snapshots += 1;
            }
        }
        let signals = agent.control.take_signals();
        fault |= signals.fault() | agent.incarnation.fault.get();
        if signals.ring_agent() {
            agent.incarnation.agent_bell.ring();
        }
        let mut idle = false;
        for (core, seen) in enclave.cores.iter().zip(&mut self.cores_seen) {
            let record = core.record.get();
            idle |= core.online.get() && record.has_idled_since(seen);
            *seen = record;
        }
        let bark = {
            let table = enclave.table.borrow();
            let waits = |subject, sequence| table.waits(subject, sequence);
            let waiting = |from| table.waiting_from(from);
            self.watchdog.look(now, idle && enclave.mode.get() == Mode::Agent, waits, waiting)
        };
        let alive = is_alive(&enclave, &agent.incarnation);
        if !alive || fault || bark.is_some() {
            {
                let mut counters = enclave.counters.borrow_mut();
                counters.lost_agents += 1;
                counters.barks += u64::from(bark.is_some());
                counters.faults += u64::from(fault);
            }
            if let Some(agent) = self.attached.take() {
                agent.control.revoke(&agent.port, Revoked::TurnedOut);
                self.switch_windows(None);
                enclave.enter_fallback();
                enclave.tell(&HostEvent::Lost { barked: bark.is_some(), fault });
            }
        }
    }
}

/// Whether the agent's end of the connection is still there, as a host learns it from a socket.
fn is_alive(enclave: &Enclave, incarnation: &Incarnation) -> bool {
    incarnation.agent_task.get().is_none_or(|task| enclave.world.is_alive(task))
}
