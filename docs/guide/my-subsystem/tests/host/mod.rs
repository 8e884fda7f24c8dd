//! A small real host of the disk: one thread acts as control context and all arms, over shared memory and a socket.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use my_subsystem::SUBSYSTEM;
use my_subsystem::disk::Disk;
use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl, Revoked};
use wave_core::host::{Context, HostCore, Mechanism, Next, Signals};
use wave_core::layout::{Config, Layout};
use wave_core::link::{Doorbell, Side};
use wave_core::message::{Decision, Sequence, Subject, TxnId};
use wave_core::modelled::{ModelSetup, ModelledHost};
use wave_core::outcome::Code;
use wave_core::policy::Choice;
use wave_core::snapshot::{Record, State};
use wave_host::{
    Candidate, Candidates, Core, OfferError, Offered, SupervisedHost, Supervisor, create_window,
    offer,
};
use wave_links::socket::{Connection, Listener};
use wave_links::{AnyPort, EventFd, LinkSpec, SocketBell};

const CORES: u16 = 2;
const SUBJECTS: u32 = 64;

/// An agent's window, and this thread's ends of it.
struct Guest {
    connection: Connection,
    port: AnyPort,
    control: HostControl,
    arms: Vec<(AnyPort, HostCore)>,
    outside: (AnyPort, Context),
    bell: SocketBell,
}

impl Candidate for Guest {
    type Beside = ();

    fn state(&self) -> AgentState {
        self.control.agent_state(&self.port)
    }
    fn has_gone(&self, (): &()) -> bool {
        self.connection.hung_up()
    }
    fn turn_away(&self, (): &mut (), _: Option<&str>) {}
}

/// The parts of a guest other than its connection.
type Parts = (AnyPort, HostControl, Vec<(AnyPort, HostCore)>, (AnyPort, Context), SocketBell);

impl Guest {
    fn parts(connection: &Connection, layout: &Layout) -> Result<Parts, OfferError> {
        let link = LinkSpec::Shm;
        let (memory, fd) = create_window("disk", layout, &link)?;
        let core_bell = || {
            let bell = EventFd::new()?;
            Ok([bell.try_clone()?, bell])
        };
        let Offered { port, agent_bell, .. } =
            offer(connection, layout, &link, (&memory, fd.as_fd()), core_bell)?;
        let another = || link.port(&memory, Side::Host, &layout.mappings(Side::Host));
        let mut arms = Vec::new();
        for core in 0..CORES {
            arms.push((another()?, HostCore::new(layout, core, 0, true)));
        }
        let outside = Context::new(layout, &layout.messages[usize::from(CORES)]);
        Ok((port, HostControl::new(layout), arms, (another()?, outside), agent_bell))
    }

    fn obey(&self, signals: Signals) {
        assert!(!signals.fault(), "the agent wrote invalid data: {}", signals.seen());
        assert!(!signals.lost(), "queues have room for all messages about all requests");
        if signals.ring_agent() {
            self.bell.ring();
        }
    }
}

pub struct Host {
    disk: Disk,
    listener: Listener,
    layout: Layout,
    candidates: Candidates<Guest>,
    attached: Option<Guest>,
    supervisor: Supervisor,
    /// When each arm finishes its request.
    busy: [Option<Nanos>; CORES as usize],
    begin: Instant,
    looked: Nanos,
    /// Number of requests served by an agent's decisions, and by the host's own.
    pub served: [u64; 2],
}

struct Commits<'a>(&'a mut Disk, Nanos, u16);

impl Mechanism for Commits<'_> {
    type Work = Nanos;

    fn apply(&mut self, decision: &Decision) -> Result<Nanos, Code> {
        self.0.commit(self.1, self.2, decision)
    }
}

/// The disk, for its supervisor.
struct Supervised<'a>(&'a Disk, &'a [(AnyPort, HostCore)]);

impl SupervisedHost for Supervised<'_> {
    fn cores(&self) -> Vec<Core> {
        let core = |(_, arm): &(AnyPort, HostCore)| Core {
            record: arm.record(),
            is_here: true,
            is_agents: true,
        };
        self.1.iter().map(core).collect()
    }
    fn records(&self) -> impl Iterator<Item = Record> {
        (0..SUBJECTS).filter_map(|id| self.0.record(id))
    }
    fn waits(&self, subject: Subject, sequence: Sequence) -> bool {
        self.waiting_from(0).any(|waiting| waiting == (subject, sequence))
    }
    fn waiting_from(&self, _: u32) -> impl Iterator<Item = (Subject, Sequence)> {
        let waiting = self.records().filter(|record| record.state == State::Runnable);
        waiting.map(|record| (record.subject, record.sequence))
    }
    fn take_lost(&self) -> bool {
        false
    }
}

impl Host {
    pub fn new(folder: &Path) -> Host {
        let mut config = Config::coherent(CORES);
        (config.subsystem, config.subjects) = (SUBSYSTEM.id, SUBJECTS);
        config.patience = Nanos::from_millis(60_000);
        let setup = ModelSetup { cores: CORES, subjects: SUBJECTS, per_second: 20_000, seed: 1 };
        Host {
            disk: Disk::new(&setup),
            listener: Listener::bind(&folder.join("disk.sock"), &[]).unwrap(),
            layout: Layout::new(config).unwrap(),
            candidates: Candidates::new(Nanos::from_millis(60_000)),
            attached: None,
            supervisor: Supervisor::new(&config),
            busy: [None; CORES as usize],
            begin: Instant::now(),
            looked: Nanos(0),
            served: [0; 2],
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.listener.path().to_owned()
    }

    pub fn has_agent(&self) -> bool {
        self.attached.is_some()
    }

    /// One step of the control context and of every arm.
    pub fn step(&mut self) {
        let now = Nanos(self.begin.elapsed().as_nanos() as u64);
        if now.since(self.looked) > Nanos::from_millis(1) {
            self.looked = now;
            self.supervise(now);
        }
        while let Some(message) = self.disk.event(now) {
            if let Some(guest) = &mut self.attached {
                let (port, context) = &mut guest.outside;
                context.send(port, &message);
                let signals = context.take_signals();
                guest.obey(signals);
            }
        }
        for core in 0..CORES {
            self.turn(now, core);
        }
        self.disk.check().unwrap();
        std::thread::yield_now();
    }

    fn turn(&mut self, now: Nanos, core: u16) {
        let at = usize::from(core);
        if self.busy[at].is_some_and(|until| now < until) {
            return;
        }
        let done = self.busy[at].take().map(|_| self.disk.finish(now, core));
        let Some(guest) = &mut self.attached else {
            let Some(choice) = self.disk.fallback(core) else { return };
            let Choice { kind, subject, sequence, argument } = choice;
            let txn = TxnId::new(0);
            let decision = Decision { kind, subject, sequence, txn, flags: 0, argument };
            self.busy[at] = Some(now + self.disk.commit(now, core, &decision).unwrap());
            self.served[1] += 1;
            return;
        };
        let (port, arm) = &mut guest.arms[at];
        done.into_iter().for_each(|message| arm.hold(message));
        if let Next::Run(time) = arm.poll(port, now, &mut Commits(&mut self.disk, now, core)) {
            self.busy[at] = Some(now + time);
            self.served[0] += 1;
        }
        let signals = arm.take_signals();
        guest.obey(signals);
    }

    fn supervise(&mut self, now: Nanos) {
        let Host { candidates, listener, layout, .. } = self;
        let join = |connection, (port, control, arms, outside, bell): Parts| Guest {
            connection,
            port,
            control,
            arms,
            outside,
            bell,
        };
        let make = |connection: &Connection| Guest::parts(connection, layout);
        candidates.accept(listener, now, make, join);
        if let Some(mut guest) = candidates.announced(now, &mut ()) {
            self.detach(Revoked::Replaced);
            self.supervisor.begin();
            for (core, (port, arm)) in guest.arms.iter_mut().enumerate() {
                match self.busy[core] {
                    Some(_) => arm.runs_already(),
                    None => arm.ask_anew(port),
                }
            }
            self.attached = Some(guest);
        }
        let Some(guest) = &mut self.attached else { return };
        let host = Supervised(&self.disk, &guest.arms);
        let look = self.supervisor.supervise(now, &mut guest.control, &guest.port, &host);
        assert_eq!((look.fault, look.bark), (None, None));
        if look.ring {
            guest.bell.ring();
        }
        if guest.connection.hung_up() {
            self.detach(Revoked::TurnedOut);
        }
    }

    /// The agent no longer decides.
    pub fn detach(&mut self, why: Revoked) {
        if let Some(guest) = self.attached.take() {
            guest.control.revoke(&guest.port, why);
            guest.bell.ring();
        }
    }
}
