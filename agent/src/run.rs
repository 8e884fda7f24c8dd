//! The thread around the agent's loop: steps, spins, parks, leaves.

use std::time::Duration;

use wave_core::agent::{Agent, AgentError, Step};
use wave_core::brain::Recorder;
use wave_core::clock::Nanos;
use wave_core::control::Revoked;
use wave_core::policy::Policy;

use crate::attach::Attached;
use crate::rpc::{Beside, Source, both};

/// How often an agent that finds nothing to do looks whether its host has gone.
const LIFE_CHECK: Duration = Duration::from_millis(50);
/// How long an agent that may not spin sleeps between looks while it may not park.
const NAP: Duration = Duration::from_micros(50);
/// After this long without work the agent rests: its recorder may take some time.
const REST: Nanos = Nanos::from_millis(1);

/// Whether the agent has its CPU for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seat {
    /// It spins.
    #[default]
    Own,
    /// It gives the CPU away between looks.
    Shared,
}

/// Why an agent left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The host revoked its window.
    Revoked(Revoked),
    /// The host has gone.
    HostGone,
    /// The front for RPCs was told to end, and has.
    FrontEnded,
}

/// The host wrote nonsense.
#[derive(Debug, thiserror::Error)]
#[error("leaving, because the host's window makes no sense: {0}")]
pub struct RunError(#[from] AgentError);

/// Runs `policy` on an attached window until the host goes or turns it out. `recorder` sees what it
/// hears and decides; `()` sees nothing, [`record_to`](crate::record_to) makes one that writes a file.
pub fn run<P: Policy, R: Recorder>(
    attached: Attached,
    policy: P,
    recorder: R,
    seat: Seat,
) -> Result<Exit, RunError> {
    run_with(attached, policy, recorder, seat, Source::None)
}

/// [`run`] with notes: the policy hears of each request that a front for RPCs hands to a thread
/// ([`wave_core::note::Request`]). Also returns when a front that shares the agent's core was told to end, and has.
pub fn run_with<P: Policy, R: Recorder>(
    attached: Attached,
    policy: P,
    recorder: R,
    seat: Seat,
    source: Source<'_>,
) -> Result<Exit, RunError> {
    let Attached { layout, port, host_bells, own_bell, connection, .. } = attached;
    let mut agent = Agent::new(layout, port, host_bells, policy, recorder);
    let mut beside = Beside::new(source, &own_bell);
    if let Some(notes) = beside.notes() {
        agent.add_front(notes);
    }
    agent.announce();
    let mut idle_since: Option<Nanos> = None;
    let mut flushed = false;
    let mut looked_for_host = Nanos(0);
    loop {
        if beside.has_ended() {
            return Ok(Exit::FrontEnded);
        }
        let stepped = beside.poll();
        let time = beside.now();
        let until = match both(agent.step(time)?, stepped) {
            Step::Revoked => return Ok(Exit::Revoked(agent.revoked())),
            Step::Progress => {
                (idle_since, flushed) = (None, false);
                // Who shares the CPU may be where the next message comes from.
                if seat == Seat::Shared {
                    std::thread::yield_now();
                }
                continue;
            }
            Step::Idle(until) => until,
        };
        let idle = time.since(*idle_since.get_or_insert(time));
        if R::ON && !flushed && idle >= REST {
            agent.recorder_mut().flush();
            flushed = true;
        }
        if time.since(looked_for_host).0 > LIFE_CHECK.as_nanos() as u64 {
            looked_for_host = time;
            if connection.hung_up() {
                return Ok(Exit::HostGone);
            }
        }
        if idle < agent.spin() || !agent.prepare_park() {
            match seat {
                Seat::Own => std::hint::spin_loop(),
                // A host that allows no spinning may have its threads in a class that never runs beside one
                // that is ready: giving way is not enough for them.
                Seat::Shared if agent.spin() == Nanos(0) => beside.wait(&own_bell, NAP),
                Seat::Shared => std::thread::yield_now(),
            }
            continue;
        }
        // The word that says "asleep" has arrived; what came before it must be seen first.
        let stepped = beside.prepare_park();
        match both(agent.step(beside.now())?, stepped) {
            Step::Revoked => return Ok(Exit::Revoked(agent.revoked())),
            Step::Progress => flushed = false,
            Step::Idle(_) => {
                let wait = until.map_or(LIFE_CHECK, |at| {
                    Duration::from_nanos(at.since(beside.now()).0).min(LIFE_CHECK)
                });
                // An agent that sleeps may be killed, and its log should be whole then.
                let wait =
                    if R::ON && !flushed { wait.min(Duration::from_nanos(REST.0)) } else { wait };
                beside.wait(&own_bell, wait);
            }
        }
        agent.unpark();
        beside.unpark();
    }
}
