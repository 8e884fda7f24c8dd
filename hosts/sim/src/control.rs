//! The control context of the modelled host: it attaches agents, watches them, and turns them out. It
//! has the same states as the runtime's control context (docs/adr/0003).

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl, Revoked};
use wave_core::link::Doorbell;
use wave_core::message::{Sequence, Subject};
use wave_core::snapshot::Record;
use wave_host::{Candidate, Candidates, Core, SupervisedHost, Supervisor};

use crate::enclave::{CoreShared, Enclave, HostEvent, Incarnation, Mode, SimPort};
use crate::modelled::Modelled;
use crate::world::{Cause, TaskId};

/// How long an agent may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(50);
/// Time between two attempts to send a snapshot.
const SNAPSHOT_RETRY: Nanos = Nanos::from_millis(1);

/// An agent that has been given a window.
pub(crate) struct Guest {
    incarnation: Rc<Incarnation>,
    port: SimPort,
    control: HostControl,
}

impl Guest {
    pub(crate) fn new(incarnation: Rc<Incarnation>, port: SimPort) -> Guest {
        let control = HostControl::new(&incarnation.layout);
        Guest { incarnation, port, control }
    }
}

impl Candidate for Guest {
    type Beside = Rc<Enclave>;

    fn state(&self) -> AgentState {
        self.incarnation.control_bell.take();
        self.control.agent_state(&self.port)
    }

    fn has_gone(&self, enclave: &Rc<Enclave>) -> bool {
        !is_alive(enclave, &self.incarnation)
    }

    fn turn_away(&self, enclave: &mut Rc<Enclave>, _: Option<&str>) {
        enclave.world.forget_window(self.incarnation.window);
    }
}

struct Control {
    enclave: Rc<Enclave>,
    task: TaskId,
    attached: Option<Guest>,
    candidates: Candidates<Guest>,
    supervisor: Supervisor,
}

pub(crate) fn start(enclave: &Rc<Enclave>) {
    let shared = Rc::clone(enclave);
    let task = enclave.world.spawn(move || {
        let task = shared.control_task.get().expect("set before it runs");
        let supervisor = Supervisor::new(&shared.setup.config);
        let candidates = Candidates::new(CANDIDATE_PATIENCE);
        Control { enclave: shared, task, attached: None, candidates, supervisor }.main();
    });
    enclave.control_task.set(Some(task));
}

impl Control {
    fn main(mut self) {
        loop {
            let now = self.enclave.world.now();
            let quarter = Nanos((self.enclave.setup.config.patience.0 / 4).max(250_000));
            let wait = match &self.attached {
                Some(_) if self.supervisor.wants_snapshot() => SNAPSHOT_RETRY,
                _ => quarter,
            };
            self.enclave.world.wait(self.task, Cause::KICK.or(Cause::NUDGE), Some(now + wait));
            let new = std::mem::take(&mut *self.enclave.candidates.borrow_mut());
            let cpu = self.enclave.cpu.clone();
            if let Some(cpu) = &cpu {
                cpu.enter(self.task);
                self.enclave.world.spend(cpu.costs().control_look.nanos());
            }
            let now = self.enclave.world.now();
            new.into_iter().for_each(|guest| self.candidates.push(guest, now));
            while let Some(guest) = self.candidates.announced(now, &mut self.enclave) {
                self.attach(guest);
            }
            self.serve();
            if let Some(cpu) = &cpu {
                cpu.leave();
            }
        }
    }

    fn attach(&mut self, agent: Guest) {
        if let Some(old) = self.attached.take() {
            old.control.revoke(&old.port, Revoked::Replaced);
        }
        self.enclave.counters.borrow_mut().attached += 1;
        self.supervisor.begin();
        self.enclave.fallback.leave();
        self.switch_windows(Some(&agent.incarnation));
        self.attached = Some(agent);
        self.enclave.emit(&HostEvent::Attached);
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
        let Guest { incarnation, port, control } = agent;
        let host = Supervised { enclave: &enclave, incarnation };
        let look = self.supervisor.supervise(now, control, port, &host);
        if look.asked {
            enclave.emit(&HostEvent::ResyncAsked);
        }
        enclave.counters.borrow_mut().snapshots += u64::from(look.has_sent);
        if look.ring {
            incarnation.agent_bell.ring();
        }
        let fault = look.fault.is_some() | incarnation.fault.get();
        let alive = is_alive(&enclave, incarnation);
        if !alive || fault || look.bark.is_some() {
            {
                let mut counters = enclave.counters.borrow_mut();
                counters.lost_agents += 1;
                counters.barks += u64::from(look.bark.is_some());
                counters.faults += u64::from(fault);
            }
            if let Some(agent) = self.attached.take() {
                let why = if fault { Revoked::Fault } else { Revoked::TurnedOut };
                agent.control.revoke(&agent.port, why);
                self.switch_windows(None);
                enclave.enter_fallback();
                enclave.emit(&HostEvent::Lost { barked: look.bark.is_some(), fault });
            }
        }
    }
}

/// The enclave, as its supervisor sees it.
struct Supervised<'a> {
    enclave: &'a Enclave,
    incarnation: &'a Incarnation,
}

impl SupervisedHost for Supervised<'_> {
    fn cores(&self) -> Vec<Core> {
        let epoch = self.enclave.epoch.get();
        let decides = self.enclave.mode() == Mode::Agent;
        let see = |core: &CoreShared| Core {
            record: core.record.get(),
            is_here: core.epoch.get() == epoch,
            is_agents: decides && core.online.get(),
        };
        self.enclave.cores.iter().map(see).collect()
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        let modelled = self.enclave.modelled.iter().flat_map(Modelled::records);
        self.enclave.table.records().chain(modelled)
    }

    fn waits(&self, subject: Subject, sequence: Sequence) -> bool {
        match &self.enclave.modelled {
            Some(modelled) => modelled.waits(subject, sequence),
            None => self.enclave.table.waits(subject, sequence),
        }
    }

    fn waiting_from(&self, from: u32) -> impl Iterator<Item = (Subject, Sequence)> {
        let modelled = self.enclave.modelled.iter();
        let modelled = modelled.flat_map(move |modelled| modelled.waiting_from(from));
        self.enclave.table.waiting_from(from).chain(modelled)
    }

    fn take_lost(&self) -> bool {
        self.incarnation.lost.replace(false)
    }
}

/// Whether the agent's end of the connection still exists, as a host learns it from a socket.
fn is_alive(enclave: &Enclave, incarnation: &Incarnation) -> bool {
    incarnation.agent_task.get().is_none_or(|task| enclave.world.is_alive(task))
}
