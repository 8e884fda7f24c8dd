//! Waiting for agents, other threads and the kernel together, and the loop of calls that may have to wait.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use smallvec::SmallVec;
use wave_readiness::Waiter;

use crate::description::Tcp;
use crate::lock::Waiting;
use crate::signals::{self, RESTART};
use crate::sockets::{Open, Sockets, Verdict};
use crate::sys::{self, SignalMask};
use crate::world::{RETRY, World};

/// A wait for no more descriptors allocates nothing.
const FEW: usize = 8;

/// Entries of poll(2).
pub type Entries = SmallVec<[libc::pollfd; FEW]>;

/// The end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Something may have changed.
    Rung,
    /// The deadline has passed.
    TimedOut,
    /// A signal has arrived, or the thread is cancelled.
    Interrupted,
}

/// The [`wave_readiness::Waiter`] of a call that waits for several descriptors.
pub struct Thread<'a> {
    sockets: &'a Sockets,
    mask: Option<SignalMask>,
    /// Sockets for which it waits, beside those in sets, and which other processes may have, too.
    shared: Vec<c_int>,
    /// Marks the thread as inside the call.
    _waiting: Waiting,
}

impl<'a> Thread<'a> {
    /// Fails with EAGAIN in a signal handler whose thread is inside a call.
    pub fn new(sockets: &'a Sockets, mask: Option<SignalMask>) -> Result<Thread<'a>, Errno> {
        let waiting = Waiting::begin().ok_or(Errno::AGAIN)?;
        Ok(Thread { sockets, mask, shared: Vec::new(), _waiting: waiting })
    }

    /// The same for a call that names these descriptors itself.
    pub fn naming(mut self, fds: impl Iterator<Item = c_int>) -> Thread<'a> {
        let shared = self.open().shared_with_others(fds);
        self.shared = shared;
        self
    }

    fn open(&self) -> Open<'_> {
        self.sockets.open_waiting().expect("this thread waits")
    }
}

impl Waiter for Thread<'_> {
    fn process_events(&self) {
        let mut world = self.open();
        world.process_events();
        // Another thread may have accepted the connection that this one has waited for.
        world.await_sets();
        for fd in &self.shared {
            if let Some(at) = world.find(*fd) {
                world.await_connections(at);
                // The agent may have taken it away just before this thread began to wait.
                world.take_over(at);
            }
        }
    }

    fn park(&self) {
        self.open().park();
    }

    fn unpark(&self) {
        let mut world = self.open();
        for agent in &mut world.agents {
            agent.wake(true);
        }
        world.unpark();
    }

    fn bell(&self) -> Option<Arc<OwnedFd>> {
        self.open().bell()
    }

    fn patience(&self) -> Option<Duration> {
        let world = self.open();
        // Without an agent there is nothing to check.
        (!world.agents.is_empty() || !world.listeners.is_empty()).then(|| world.patience())
    }

    fn poll(&self, fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
        let timeout = timeout.map(|timeout| {
            Duration::new(timeout.tv_sec.max(0) as u64, timeout.tv_nsec.max(0) as u32)
        });
        Waiting::outside(|| signals::sleep(sys::raw_entries(fds), timeout, self.mask))
    }
}

/// The reason why a call stops waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The call must not wait at all.
    Nonblocking,
    /// The socket's timeout has passed.
    TimedOut,
    /// A signal has arrived, whose handler runs after the call. `restarts` if the call may then be made again (SA_RESTART): the kernel's
    /// restart unless the socket has a timeout.
    Interrupted { restarts: bool },
}

impl Stop {
    /// The errno of calls that transfer or accept.
    pub fn errno(self) -> Errno {
        match self {
            Stop::Nonblocking | Stop::TimedOut => Errno::AGAIN,
            Stop::Interrupted { restarts: true } => RESTART,
            Stop::Interrupted { restarts: false } => Errno::INTR,
        }
    }
}

impl Sockets {
    /// Sleeps until there may be news from an agent, another thread, or a descriptor in `kernel`, whose `revents` are then set.
    pub fn sleep<'a>(
        &'a self,
        mut world: Open<'a>,
        deadline: Option<Instant>,
        kernel: &mut Entries,
        mask: Option<SignalMask>,
    ) -> (Open<'a>, Woken) {
        world.park();
        if world.process_events() {
            world.unpark();
            return (world, Woken::Rung);
        }
        let own = match world.enter_sleep() {
            Ok(own) => own,
            // No descriptor is free for an eventfd that could wake this thread, so it polls.
            Err(_) => {
                world.unpark();
                drop(world);
                let slept = signals::sleep(&mut [], Some(RETRY), mask);
                let is_interrupted = slept == Err(Errno::INTR);
                let woken = if is_interrupted { Woken::Interrupted } else { Woken::Rung };
                return (self.reopen(), woken);
            }
        };
        let bells: SmallVec<[(u64, Arc<OwnedFd>); FEW]> = world
            .agents
            .iter()
            .filter(|agent| !agent.context.is_dead())
            .map(|agent| (agent.incarnation, Arc::clone(&agent.bell)))
            .collect();
        let most = world.patience();
        drop(world);

        let count = kernel.len();
        let entry =
            |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        kernel.extend(bells.iter().map(|(_, bell)| entry(bell)));
        kernel.push(entry(&own));
        let now = Instant::now();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let most = left.map_or(most, |left| left.min(most));
        let ready = signals::sleep(kernel, Some(most), mask);
        let rung: SmallVec<[bool; FEW]> =
            kernel[count..].iter().map(|entry| entry.revents != 0).collect();
        kernel.truncate(count);

        let mut world = self.reopen();
        world.leave_sleep(own);
        for ((incarnation, _), was_rung) in bells.iter().zip(rung) {
            // Other threads may have removed the agent.
            if let Some(agent) =
                world.agents.iter_mut().find(|agent| agent.incarnation == *incarnation)
                && (was_rung || ready == Ok(0))
            {
                agent.wake(was_rung);
            }
        }
        world.unpark();
        let woken = match ready {
            Err(Errno::INTR) => Woken::Interrupted,
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => Woken::TimedOut,
            _ => Woken::Rung,
        };
        if ready.is_err() {
            kernel.iter_mut().for_each(|entry| entry.revents = 0);
        }
        (world, woken)
    }

    fn reopen(&self) -> Open<'_> {
        self.open().expect("this thread has just unlocked it")
    }

    /// Calls `step` until it answers. Given a [`Stop`], it must answer. Fails with [`RESTART`] to be made again: see [`signals::waits`].
    ///
    /// Waits between the steps as a socket call does, for at most the socket's `timeout`; does not wait on a nonblocking socket or if
    /// `never_waits`. `kernel` can name a kernel descriptor to wait for as well.
    pub fn call<R>(
        &self,
        fd: c_int,
        never_waits: bool,
        timeout: Timeout,
        kernel: impl Fn(&mut World, usize) -> Option<c_int>,
        mut step: impl FnMut(&mut World, usize, Option<Stop>) -> Option<Result<R, Errno>>,
    ) -> Verdict<R> {
        let (mut world, at) = match self.find(fd) {
            Ok(found) => found,
            Err(verdict) => return verdict,
        };
        let never_waits = never_waits || world.is_known_nonblocking(at);
        if let Some(answer) = step(&mut world, at, never_waits.then_some(Stop::Nonblocking)) {
            world.settle(at);
            return Verdict::Ours(answer);
        }
        if world.is_nonblocking(fd, at) {
            let answer = step(&mut world, at, Some(Stop::Nonblocking));
            world.settle(at);
            return Verdict::Ours(answer.expect("a call that must not wait answers"));
        }
        let patience = world.description(at).wait_bounds.timeout(timeout);
        let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        // The call continues even if the descriptor is closed meanwhile.
        world.description(at).handles += 1;
        world.description(at).callers += 1;
        let receivers = u32::from(timeout == Timeout::Recv && world.view(at).tcp != Tcp::Listen);
        world.description(at).receivers += receivers;
        let answer = loop {
            let mut polled: Entries = kernel(&mut world, at)
                .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
                .into_iter()
                .collect();
            let (next, woken) = self.sleep(world, deadline, &mut polled, None);
            world = next;
            world.process_events();
            if !world.take_over(at) {
                world.description(at).receivers -= receivers;
                world.description(at).callers -= 1;
                world.release(at);
                return Verdict::Kernels;
            }
            if let Some(answer) = step(&mut world, at, None) {
                break answer;
            }
            match woken {
                Woken::TimedOut => {
                    break step(&mut world, at, Some(Stop::TimedOut)).expect("as above");
                }
                Woken::Interrupted => {
                    let stop = Stop::Interrupted { restarts: patience.is_none() };
                    break step(&mut world, at, Some(stop)).expect("as above");
                }
                Woken::Rung => {}
            }
        };
        world.description(at).receivers -= receivers;
        world.settle(at);
        world.description(at).callers -= 1;
        world.release(at);
        Verdict::Ours(answer)
    }
}
