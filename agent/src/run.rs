//! The loop of an agent's thread: it works, spins, parks, and leaves.

use std::time::{Duration, Instant};

use wave_core::agent::{Agent, AgentError, Step};
use wave_core::brain::Recorder;
use wave_core::clock::Nanos;
use wave_core::control::Revoked;
use wave_core::cores::Service;
use wave_core::link::{Doorbell, Port};
use wave_core::policy::{Note, Policy, Progress};
use wave_core::watchdog::Starved;
use wave_process::words::counted;
use wave_process::{Yields, say};

use crate::attach::{Attached, HostLine, OwnBell};
use crate::command::AgentArgs;
use crate::front::ThreadFront;

/// Interval at which an idle agent checks whether its host has gone.
const LIFE_CHECK: Duration = Duration::from_millis(50);
/// Sleep between polls of an agent that may neither spin nor park.
const NAP: Duration = Duration::from_micros(50);
/// After this long without work the agent rests: its recorder may spend time on writing.
const REST: Nanos = Nanos::from_millis(1);

/// Whether the agent has its CPU to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seat {
    /// The agent has a CPU of its own, and spins.
    #[default]
    Own,
    /// The agent yields its CPU between polls. After a long yield it does without for a while, and sleeps when it has no work.
    Shared,
}

/// CPUs that a worker and a client of a front need beside the agent.
pub const CPUS_BESIDE_FRONT: usize = 2;

impl Seat {
    /// The seat of an agent whose host and clients need `others` CPUs. The command line decides. Without `--cpu` and
    /// `--share-cpu`, the agent has a CPU of its own if this process may use more than `others`; otherwise it shares
    /// one, and says so (docs/adr/0095).
    pub fn of(args: &AgentArgs, others: usize) -> Seat {
        if args.share_cpu {
            return Seat::Shared;
        }
        let cpus = wave_process::cpus::allowed().map_or(usize::MAX, |cpus| cpus.len());
        if args.cpu.is_some() || cpus > others {
            return Seat::Own;
        }
        if !args.quiet {
            say!(
                "wave agent: sharing its CPU, as with --share-cpu: this process may use {}, and its host and clients need {}; \
                 --cpu N gives it one of its own",
                counted(cpus, "CPU"),
                others
            );
        }
        Seat::Shared
    }
}

/// Why an agent left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The host revoked its window.
    Revoked(Revoked),
    /// The host's watchdog revoked the window because of this thread.
    Starved(Stall),
    /// The host has gone without revoking the window.
    HostGone,
    /// The front was told to end, and has ended.
    FrontEnded,
}

/// A thread that waited too long beside an idle core, and what the agent knows of that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The thread, the core and the wait, as the host reports them.
    pub starved: Starved,
    /// What the policy has done for the core since the core last began to ask.
    pub service: Service,
    /// How long the agent's last turn of work took, or waited for a CPU.
    pub turn: Nanos,
}

impl Stall {
    /// What happened, as a clause about the policy of this name.
    pub fn about(&self, policy: &str) -> String {
        let Stall { starved: Starved { subject, core, waited }, service, turn } = self;
        let (thread, waited_ms, turn_ms) = (subject.id, waited.0 / 1_000_000, turn.0 / 1_000_000);
        // Not the policy's choice: it was not asked for most of the time.
        if turn.0 >= waited.0 / 2 {
            return format!(
                "thread {thread} waited for {waited_ms} ms beside idle core {core}, and the agent's last turn took {turn_ms} ms of \
                 them: a call of policy `{policy}` took that long, or other processes had the agent's CPU (--cpu N gives it \
                 one of its own, --share-cpu shares it)"
            );
        }
        let times = |count: u64| if count == 1 { "once".into() } else { format!("{count} times") };
        let made = match service.made {
            0 => "and chose no thread for it".into(),
            1 => "and its decision for the core did not run".into(),
            made => format!("and its {made} decisions for the core did not run"),
        };
        format!(
            "policy `{policy}` left thread {thread} waiting for {waited_ms} ms beside idle core {core}; since that core is idle the \
             policy was asked {}, {made}",
            times(service.asked)
        )
    }
}

/// The host wrote an invalid entry or header: the host is at fault.
#[derive(Debug, thiserror::Error)]
#[error("leaving, because the host's part of the window is invalid: {0}")]
pub struct RunError(#[from] AgentError);

/// Runs `policy` on an attached window until the host goes or turns the agent out. `recorder` gets the policy's
/// inputs and decisions; `()` records nothing, [`record_to`](crate::record_to) makes one that writes a file.
pub fn run<P: Policy, R: Recorder>(
    attached: Attached,
    policy: P,
    recorder: R,
    seat: Seat,
) -> Result<Exit, RunError> {
    run_with(attached, policy, recorder, seat, ())
}

/// [`run`] with a front on the same thread (Wave 7.3.2), or with the link to a front in another agent (Wave 7.3.1): the policy
/// gets the front's notes. Also returns when the front was told to end, and has ended.
pub fn run_with<P: Policy, R: Recorder, F: ThreadFront>(
    attached: Attached,
    policy: P,
    recorder: R,
    seat: Seat,
    front: F,
) -> Result<Exit, RunError> {
    run_announced(attached, policy, recorder, seat, front, || {})
}

/// [`run_with`], and calls `announce` once the agent decides.
pub(crate) fn run_announced<P: Policy, R: Recorder, F: ThreadFront>(
    attached: Attached,
    policy: P,
    recorder: R,
    seat: Seat,
    mut front: F,
    announce: impl FnOnce(),
) -> Result<Exit, RunError> {
    let Attached { layout, port, host_bells, own_bell, connection, .. } = attached;
    front.join(&own_bell);
    let start = front.start();
    let mut agent = Agent::with_front(layout, port, host_bells, policy, recorder, front);
    agent.announce();
    let (looked, turned, announce) = (Nanos(0), None, Some(announce));
    let (bell, flushed) = (own_bell, false);
    work(&mut Deciding { agent, start, bell, connection, looked, turned, flushed, announce }, seat)
}

/// Runs a front alone on this thread, until it was told to end and has ended.
pub fn serve<F: ThreadFront>(front: F) {
    let seat = front.seat();
    let mut alone = Alone { start: front.start(), front, notes: Vec::new() };
    match work(&mut alone, seat) {
        Ok(Exit::FrontEnded) => {}
        left => unreachable!("a front alone has no host: {left:?}"),
    }
}

/// The work of an agent's thread, turn by turn.
trait Duty {
    /// The time, by the clock that agent and front share.
    fn now(&self) -> Nanos;
    /// Does a bounded amount of work.
    fn turn(&mut self, now: Nanos) -> Result<Turn, RunError>;
    /// How long to look for work before parking.
    fn spin(&self) -> Nanos;
    /// Called while there is no work, with the time since there was some.
    fn rest(&mut self, _idle: Nanos) {}
    /// Announces that the thread is about to sleep. Returns whether it may, provided that the next turn finds no work.
    fn prepare_park(&mut self) -> bool;
    /// Withdraws the announcement.
    fn unpark(&mut self);
    /// Sleeps until something happens, or `timeout` is over.
    fn wait(&mut self, timeout: Duration);
}

enum Turn {
    /// The turn did something, and the next one follows at once.
    Progress,
    /// Nothing more to do until something happens or `until` is reached. `worked`: this turn did something.
    Idle { until: Option<Nanos>, worked: bool },
    /// The agent must leave.
    Over(Exit),
}

/// The loop of every agent and front: it works, spins, and parks.
fn work(duty: &mut impl Duty, seat: Seat) -> Result<Exit, RunError> {
    let mut idle_since = None;
    let mut yields = Yields::default();
    loop {
        let now = duty.now();
        match duty.turn(now)? {
            Turn::Over(exit) => return Ok(exit),
            Turn::Progress => {
                idle_since = None;
                // The next message may come from a process that shares this CPU.
                if seat == Seat::Shared {
                    yields.yield_now();
                }
                continue;
            }
            Turn::Idle { worked: false, .. } => {}
            Turn::Idle { worked: true, .. } => {
                idle_since = None;
                // The process that shares this CPU may answer before this thread would sleep.
                if seat == Seat::Shared {
                    yields.yield_now();
                }
            }
        }
        let idle = now.since(*idle_since.get_or_insert(now));
        duty.rest(idle);
        let may_spin = idle < duty.spin() && !yields.are_long();
        if may_spin || !duty.prepare_park() {
            match seat {
                Seat::Own => std::hint::spin_loop(),
                // A host that allows no spinning may have its threads in a scheduling class that never runs while
                // this thread is runnable: yielding does not let them run. A long yield would keep this thread from its work.
                Seat::Shared if duty.spin() == Nanos(0) || yields.are_long() => duty.wait(NAP),
                Seat::Shared => yields.yield_now(),
            }
            continue;
        }
        // The host can see the word that says "parked" now. Anything sent before that rang no doorbell: look once more.
        match duty.turn(duty.now())? {
            Turn::Over(exit) => return Ok(exit),
            Turn::Progress => {}
            Turn::Idle { until, .. } => {
                let left = |at: Nanos| Duration::from_nanos(at.since(duty.now()).0);
                duty.wait(until.map_or(LIFE_CHECK, |at| left(at).min(LIFE_CHECK)));
            }
        }
        duty.unpark();
    }
}

/// Decisions for a host, with a front or without.
struct Deciding<P: Policy, R: Recorder, L: Port, B: Doorbell, F: ThreadFront, A: FnOnce()> {
    agent: Agent<P, R, L, B, F>,
    start: Instant,
    bell: OwnBell,
    connection: HostLine,
    /// When the connection to the host was last checked.
    looked: Nanos,
    /// When the last turn began, unless the thread has slept since.
    turned: Option<Nanos>,
    flushed: bool,
    /// Called once the agent decides.
    announce: Option<A>,
}

impl<P: Policy, R: Recorder, L: Port, B: Doorbell, F: ThreadFront, A: FnOnce()> Duty
    for Deciding<P, R, L, B, F, A>
{
    fn now(&self) -> Nanos {
        since(self.start)
    }

    fn turn(&mut self, now: Nanos) -> Result<Turn, RunError> {
        if self.agent.front_mut().has_ended() {
            return Ok(Turn::Over(Exit::FrontEnded));
        }
        let turned = self.turned.replace(now);
        let mut step = self.agent.step(now)?;
        if self.agent.decides()
            && let Some(announce) = self.announce.take()
        {
            announce();
        }
        // A busy agent looks as well: a host that was killed has not revoked the window.
        let is_due = now.since(self.looked).0 > LIFE_CHECK.as_nanos() as u64;
        if step != Step::Revoked && is_due {
            self.looked = now;
            if self.connection.hung_up() {
                // A host revokes the window before it closes the connection, possibly after the step above.
                step = self.agent.step(now)?;
                if step != Step::Revoked {
                    return Ok(Turn::Over(Exit::HostGone));
                }
            }
        }
        Ok(match step {
            Step::Revoked => Turn::Over(self.left(turned.map_or(Nanos(0), |at| now.since(at)))),
            Step::Progress => {
                self.flushed = false;
                Turn::Progress
            }
            Step::Idle(until) => Turn::Idle { until, worked: false },
        })
    }

    fn spin(&self) -> Nanos {
        self.agent.spin()
    }

    fn rest(&mut self, idle: Nanos) {
        if R::ON && !self.flushed && idle >= REST {
            self.agent.recorder_mut().flush();
            self.flushed = true;
        }
    }

    fn prepare_park(&mut self) -> bool {
        self.agent.prepare_park()
    }

    fn unpark(&mut self) {
        self.agent.unpark();
    }

    fn wait(&mut self, timeout: Duration) {
        self.turned = None;
        // A sleeping agent may be killed, and its log should be complete then.
        let rest = Duration::from_nanos(REST.0);
        let timeout = if R::ON && !self.flushed { timeout.min(rest) } else { timeout };
        self.agent.front_mut().wait(Some(&self.bell), timeout);
    }
}

impl<P: Policy, R: Recorder, L: Port, B: Doorbell, F: ThreadFront, A: FnOnce()>
    Deciding<P, R, L, B, F, A>
{
    /// Why the window was revoked. The last turn took `turn`.
    fn left(&self, turn: Nanos) -> Exit {
        let why = self.agent.revoked();
        match self.agent.starved().filter(|_| why == Revoked::TurnedOut) {
            None => Exit::Revoked(why),
            Some(starved) => {
                let service = self.agent.brain().cores().service(starved.core);
                Exit::Starved(Stall { starved, service, turn })
            }
        }
    }
}

/// A front without a policy. Its notes are discarded.
struct Alone<F> {
    front: F,
    start: Instant,
    notes: Vec<Note>,
}

impl<F: ThreadFront> Duty for Alone<F> {
    fn now(&self) -> Nanos {
        since(self.start)
    }

    fn turn(&mut self, now: Nanos) -> Result<Turn, RunError> {
        if self.front.has_ended() {
            return Ok(Turn::Over(Exit::FrontEnded));
        }
        let progress = self.front.poll(now, &mut self.notes);
        self.notes.clear();
        self.front.maintain();
        let worked = progress == Progress::More;
        Ok(if worked && self.front.has_more() {
            Turn::Progress
        } else {
            Turn::Idle { until: self.front.next_deadline(), worked }
        })
    }

    fn spin(&self) -> Nanos {
        match self.front.seat() {
            Seat::Own => self.front.spin(),
            Seat::Shared => Nanos(0),
        }
    }

    fn prepare_park(&mut self) -> bool {
        self.front.prepare_park();
        true
    }

    fn unpark(&mut self) {
        self.front.unpark();
    }

    fn wait(&mut self, timeout: Duration) {
        self.front.wait(None, timeout);
    }
}

fn since(start: Instant) -> Nanos {
    Nanos(start.elapsed().as_nanos() as u64)
}
