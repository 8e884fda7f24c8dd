//! The state of a process: its agents, its sockets, and the descriptors of each socket.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use smallvec::SmallVec;
use wave_posix::{AgentWindow, Context, HostFailure, ToeError};
use wave_readiness::{EventFlags, Source};

use crate::agent::Agent;
use crate::config::Config;
use crate::cork_timers::CorkTimers;
use crate::deferred_close::DeferredCloses;
use crate::description::{Description, Notified, State, Tcp, View};
use crate::descriptor_bitmap::DescriptorBitmap;
use crate::inherited_sets::{InheritedSet, Unclaimed};
use crate::messages::warn_user;
use crate::poll::{EarlyInterest, Set};
use crate::sigio::Signals;
use crate::sys;

/// Longest sleep before a check whether the agents are still alive. A hang-up wakes at once.
const LIFE_CHECK: Duration = Duration::from_secs(1);
/// Sleep between two attempts to send entries for which an agent's queue had no room.
pub const RETRY: Duration = Duration::from_millis(1);
/// Longest time for an agent to let this process attach.
pub const ATTACH_PATIENCE: Duration = Duration::from_secs(5);
/// Longest time for an agent to answer a request that involves no peer.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// The process's agents, sockets and descriptors.
pub struct World {
    pub config: Config,
    /// Descriptors of the program that are ours (`ours`), and descriptors that are hidden from it (`private`).
    ours: &'static DescriptorBitmap,
    pub private: &'static DescriptorBitmap,
    /// The last agent is the current one, if it is alive. Earlier ones have died, but some sockets still refer to them.
    pub agents: Vec<Agent>,
    incarnations: u64,
    /// Index of each descriptor's description, plus one; 0 is none.
    pub fds: Vec<u32>,
    pub descriptions: Vec<Option<Description>>,
    free: Vec<usize>,
    /// Indices of listening descriptions. Those without an agent look for one at `next_try`.
    pub listeners: Vec<usize>,
    pub next_try: Option<Instant>,
    /// Some listener had no place at an agent when it was last looked for.
    pub lacks_place: bool,
    /// Other processes may have some of the listeners, too.
    pub has_inherited_listeners: bool,
    /// Bytes that are held back for more to follow.
    pub cork_timers: CorkTimers,
    /// The program's sets that may contain our sockets, by descriptor.
    pub sets: HashMap<c_int, Arc<Set>>,
    /// Sets from the parent: unused ones, and those whose sockets this process has not waited for.
    pub inherited_sets: Vec<InheritedSet>,
    pub unclaimed: Vec<Unclaimed>,
    /// Copies of the sets, while this process forks.
    pub sets_at_fork: Vec<InheritedSet>,
    /// Interests in kernel sockets that may become ours, by the socket's descriptor.
    pub early: HashMap<c_int, Vec<EarlyInterest>>,
    /// Duplicates of kernel sockets that may become ours: the socket's inode, and a descriptor.
    pub duplicates: Vec<(u64, c_int)>,
    /// Number of parked threads.
    parked: usize,
    /// Eventfds of sleeping threads; `idle_sleepers` has unused ones.
    sleepers: Vec<Arc<OwnedFd>>,
    idle_sleepers: Vec<Arc<OwnedFd>>,
    /// Sleeping threads must be woken: something may have changed for them.
    has_changes: bool,
    /// Events may have been processed without an update of descriptions and sets, which the next [`World::process_events`] makes.
    pub has_unnotified: bool,
    /// Descriptions without handles, which a call may still refer to until it ends.
    closed: Vec<usize>,
    /// Some connection is, or was, shared with other processes.
    pub shares: bool,
    /// The missing agent has been reported to the user.
    has_reported: bool,
    /// Failures that were reported to the user.
    reported: Vec<HostFailure>,
    /// The secret that entitles children to take over connections, and the number of forks while connections were open.
    pub family_secret: Option<u128>,
    pub forks: u64,
    /// Closed sockets of which another process may have a copy.
    pub deferred_closes: DeferredCloses,
    /// Signals to send once the lock is released.
    pub signals: Signals,
    /// A socket may need the thread that looks for events ([`crate::signals`]); the thread runs.
    pub wants_watcher: bool,
    pub has_watcher: bool,
}

impl World {
    pub fn new(
        config: Config,
        ours: &'static DescriptorBitmap,
        private: &'static DescriptorBitmap,
    ) -> World {
        World {
            config,
            ours,
            private,
            agents: Vec::new(),
            incarnations: 0,
            fds: Vec::new(),
            descriptions: Vec::new(),
            free: Vec::new(),
            listeners: Vec::new(),
            next_try: None,
            lacks_place: false,
            has_inherited_listeners: false,
            cork_timers: CorkTimers::default(),
            sets: HashMap::new(),
            inherited_sets: Vec::new(),
            unclaimed: Vec::new(),
            sets_at_fork: Vec::new(),
            early: HashMap::new(),
            duplicates: Vec::new(),
            parked: 0,
            sleepers: Vec::new(),
            idle_sleepers: Vec::new(),
            has_changes: false,
            has_unnotified: false,
            closed: Vec::new(),
            shares: false,
            has_reported: false,
            reported: Vec::new(),
            family_secret: None,
            forks: 0,
            deferred_closes: DeferredCloses::default(),
            signals: Signals::default(),
            wants_watcher: false,
            has_watcher: false,
        }
    }

    /// The doorbell of the current agent, if it is alive.
    pub fn bell(&self) -> Option<Arc<OwnedFd>> {
        let agent = self.agents.last().filter(|agent| !agent.context.is_dead());
        agent.map(|agent| Arc::clone(&agent.bell))
    }

    /// The incarnation of the agent at which new sockets are created. Attaches to it if necessary.
    pub fn attach(&mut self) -> Result<u64, Errno> {
        self.attach_within(ATTACH_PATIENCE).map_err(|error| {
            if !std::mem::replace(&mut self.has_reported, true) {
                let socket = self.config.socket.display();
                warn_user(&format!("no agent at {socket}, so the kernel's TCP is used: {error}"));
            }
            Errno::NETDOWN
        })
    }

    /// As [`World::attach`], but gives up after `patience`, and reports nothing to the user.
    pub fn attach_within(&mut self, patience: Duration) -> Result<u64, ToeError> {
        if let Some(agent) = self.agents.last_mut() {
            // Its death may not have been noticed yet.
            agent.wake(false);
            if !agent.context.is_dead() {
                return Ok(agent.incarnation);
            }
        }
        self.incarnations += 1;
        let (socket, incarnation) = (&self.config.socket, self.incarnations);
        let mut agent = sys::without_cancellation(|| Agent::attach(socket, incarnation, patience))?;
        let deferred: Vec<u64> = self
            .agents
            .iter()
            .map(|old| old.incarnation)
            .filter(|incarnation| self.has_deferred_closes_of(*incarnation))
            .collect();
        self.agents.retain(|old| {
            let is_used = old.is_used_by(&self.descriptions) || deferred.contains(&old.incarnation);
            if !is_used {
                old.descriptors().for_each(|fd| self.private.clear(fd));
            }
            is_used
        });
        agent.descriptors().for_each(|fd| self.private.set(fd));
        if self.parked > 0 {
            agent.context.queues.park();
        }
        let incarnation = agent.incarnation;
        self.agents.push(agent);
        self.prepare_sleep();
        self.has_reported = false;
        // Sleeping threads wait for the old agent's doorbell, or for none.
        self.has_changes = true;
        self.sets.values().for_each(|set| set.wake());
        Ok(incarnation)
    }

    /// Has the agent tell people of a failure whose errno does not say what it means: this process may have no standard error.
    pub fn report(&mut self, failure: HostFailure) {
        if let Ok(incarnation) = self.attach_within(ATTACH_PATIENCE) {
            self.context(incarnation).report(failure);
        }
    }

    /// As [`World::report`], and says so to the program's user the first time. The program gets ENOBUFS.
    pub fn lacks_memory(&mut self, failure: HostFailure) -> Errno {
        self.report(failure);
        if !self.reported.contains(&failure) {
            self.reported.push(failure);
            warn_user(match failure {
                HostFailure::NoRings => "no room for the rings of another connection (ENOBUFS)",
                _ => {
                    "no memory for data to be sent: see ulimit -f and -v, and the free memory (ENOBUFS)"
                }
            });
        }
        Errno::NOBUFS
    }

    /// The agent of this incarnation, which must have sockets.
    pub fn agent(&mut self, incarnation: u64) -> &mut Agent {
        let agent = self.agents.iter_mut().find(|agent| agent.incarnation == incarnation);
        agent.expect("an agent stays as long as it has sockets")
    }

    pub fn context(&mut self, incarnation: u64) -> &mut Context<AgentWindow> {
        &mut self.agent(incarnation).context
    }

    /// The description of a descriptor, if the descriptor is ours.
    pub fn find(&self, fd: c_int) -> Option<usize> {
        let place = *self.fds.get(usize::try_from(fd).ok()?)?;
        (place as usize).checked_sub(1)
    }

    pub fn description(&mut self, at: usize) -> &mut Description {
        self.descriptions[at].as_mut().expect("a description lives as long as its handles")
    }

    pub fn all(&self) -> impl Iterator<Item = &Description> {
        self.descriptions.iter().flatten()
    }

    /// Makes a descriptor ours.
    pub fn insert(&mut self, fd: c_int, description: Description) -> usize {
        let at = self.free.pop().unwrap_or_else(|| {
            self.descriptions.push(None);
            self.descriptions.len() - 1
        });
        self.descriptions[at] = Some(Description { forks: self.forks, ..description });
        self.set(fd, at);
        at
    }

    /// Adds a descriptor to a description.
    pub fn share(&mut self, at: usize, fd: c_int) {
        self.description(at).handles += 1;
        self.set(fd, at);
    }

    /// Adds one of the program's sets.
    pub fn add_set(&mut self, fd: c_int, set: Arc<Set>) {
        self.sets.insert(fd, set);
        self.mark_set(fd);
    }

    pub fn mark_set(&mut self, fd: c_int) {
        self.ours.set(fd);
    }

    /// Removes a set, if the descriptor is one.
    pub fn remove_set(&mut self, fd: c_int) {
        let mut is_one = self.sets.remove(&fd).is_some();
        self.inherited_sets.retain_mut(|set| {
            let count = set.numbers.len();
            set.numbers.retain(|number| *number != fd);
            is_one |= set.numbers.len() < count;
            !set.numbers.is_empty()
        });
        if is_one {
            self.ours.clear(fd);
        }
    }

    /// Frees descriptions that no call refers to any more.
    #[inline]
    pub fn free_closed(&mut self) {
        while let Some(at) = self.closed.pop() {
            self.descriptions[at] = None;
            self.free.push(at);
        }
    }

    /// Shows a descriptor that was hidden.
    pub fn show(&mut self, fd: c_int) {
        self.private.clear(fd);
    }

    /// Hides a descriptor from the program.
    pub fn hide(&mut self, fd: c_int) {
        self.private.set(fd);
    }

    fn set(&mut self, fd: c_int, at: usize) {
        let place = fd as usize;
        if self.fds.len() <= place {
            self.fds.resize(place + 1, 0);
        }
        self.fds[place] = at as u32 + 1;
        self.ours.set(fd);
    }

    /// Removes a descriptor from its description, which keeps the handle until [`World::release`].
    pub fn remove(&mut self, fd: c_int) -> Option<usize> {
        let at = self.find(fd)?;
        self.fds[fd as usize] = 0;
        self.ours.clear(fd);
        Some(at)
    }

    /// Releases a handle. The last one closes the socket.
    pub fn release(&mut self, at: usize) {
        let description = self.description(at);
        description.handles -= 1;
        if description.handles > 0 {
            return;
        }
        let (incarnation, state) = (description.incarnation, description.state);
        self.listeners.retain(|listener| *listener != at);
        self.has_changes = true;
        if state == State::Stream {
            self.closed.push(at);
            return;
        }
        self.descriptions[at] = None;
        self.free.push(at);
        match state {
            State::Listening { listener: Some(listener), .. } => {
                let context = self.context(incarnation);
                context.unlisten(listener);
                context.flush();
            }
            State::Connecting(name) | State::Open(name) | State::Over(name) => {
                self.agent(incarnation).owners.remove(&name);
                match state {
                    State::Open(_) => self.end_connection(incarnation, name),
                    _ => self.context(incarnation).close(name),
                }
            }
            State::Idle
            | State::Reset
            | State::NotOwned
            | State::Stream
            | State::Listening { listener: None, .. } => {}
        }
    }

    /// Processes events from the agents. Returns whether there were any.
    pub fn process_events(&mut self) -> bool {
        let mut found = std::mem::take(&mut self.has_unnotified);
        let mut changed: SmallVec<[usize; 16]> = SmallVec::new();
        for agent in &mut self.agents {
            found |= agent.process_events();
            while let Some(name) = agent.context.pop_changed() {
                changed.extend(agent.owners.get(&name).copied());
            }
        }
        let has_changes = found || !changed.is_empty();
        if has_changes {
            changed.extend_from_slice(&self.listeners);
            for at in changed {
                if !self.on_taken_away(at) {
                    self.notify(at, EventFlags::empty());
                }
            }
            self.has_changes = true;
        }
        if !self.listeners.is_empty() && (has_changes || self.may_lack_place()) {
            self.reattach_listeners();
        }
        self.uncork_expired();
        self.finish_deferred_closes(false);
        found
    }

    /// Records a change for which other threads may be waiting.
    pub fn note_change(&mut self) {
        self.has_changes = true;
    }

    /// Wakes sleeping threads, if there is news.
    #[inline]
    pub fn wake_others(&mut self) {
        if std::mem::take(&mut self.has_changes) {
            for sleeper in &self.sleepers {
                // A write to a full eventfd fails, but the eventfd is then readable anyway.
                let _ = rustix::io::write(sleeper, &1_u64.to_ne_bytes());
            }
        }
    }

    /// Announces that a thread is about to sleep. The thread must call [`World::process_events`] once more before it does.
    pub fn park(&mut self) {
        self.parked += 1;
        for agent in &mut self.agents {
            agent.context.flush();
            if !agent.context.is_dead() {
                agent.context.queues.park();
            }
        }
    }

    /// Announces that a thread is awake. Agents ring the doorbell as long as another thread sleeps.
    pub fn unpark(&mut self) {
        self.parked -= 1;
        if self.parked == 0 {
            for agent in self.agents.iter_mut().filter(|agent| !agent.context.is_dead()) {
                agent.context.queues.unpark();
            }
        }
    }

    /// Longest sleep before the next look. It is bounded by the checks of the agents, held bytes, deferred closes, and entries that wait
    /// for room in an agent's queue, which no doorbell announces.
    pub fn patience(&self) -> Duration {
        let mut living = self.agents.iter().filter(|agent| !agent.context.is_dead());
        if living.any(|agent| agent.context.has_unsent()) {
            return RETRY;
        }
        let others = [self.cork_timers.left(), self.deferred_closes.patience()];
        others.into_iter().flatten().fold(LIFE_CHECK, Duration::min)
    }

    /// Creates what a thread needs to sleep, ahead of a sandbox that forbids it.
    pub fn prepare_sleep(&mut self) {
        wave_readiness::prepare_sleep();
        if self.idle_sleepers.is_empty()
            && let Ok(own) = self.new_sleeper()
        {
            self.idle_sleepers.push(own);
        }
    }

    fn new_sleeper(&self) -> Result<Arc<OwnedFd>, Errno> {
        let own = sys::move_away(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        self.private.set(own.as_raw_fd());
        Ok(Arc::new(own))
    }

    /// Registers a thread that is about to sleep, and returns the eventfd that wakes it.
    pub fn enter_sleep(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        let own = match self.idle_sleepers.pop() {
            Some(own) => own,
            None => self.new_sleeper()?,
        };
        self.sleepers.push(Arc::clone(&own));
        Ok(own)
    }

    pub fn leave_sleep(&mut self, own: Arc<OwnedFd>) {
        self.sleepers.retain(|sleeper| !Arc::ptr_eq(sleeper, &own));
        let _ = rustix::io::read(&own, &mut [0; 8]);
        self.idle_sleepers.push(own);
    }

    /// Waits for an agent's answer to a request that involves no peer, with the lock held. `None` after [`ANSWER_PATIENCE`], or if the
    /// agent has died. Descriptions, listeners and agents stay as they are meanwhile, so that names remain valid; the next
    /// [`World::process_events`] updates them.
    pub fn await_answer<R>(
        &mut self,
        incarnation: u64,
        mut answer: impl FnMut(&mut Context<AgentWindow>) -> Option<R>,
    ) -> Option<R> {
        let start = std::time::Instant::now();
        self.has_unnotified = true;
        self.has_changes = true;
        loop {
            let agent = self.agent(incarnation);
            agent.process_events();
            let context = &mut agent.context;
            if let Some(answer) = answer(context) {
                return Some(answer);
            }
            let left = ANSWER_PATIENCE.saturating_sub(start.elapsed());
            if left.is_zero() || context.is_dead() {
                return None;
            }
            context.flush();
            context.queues.park();
            if !context.process_events() {
                let woken = context.queues.wait(left.min(Duration::from_millis(100)));
                let is_hung_up = woken == wave_posix::Woken::HungUp || context.queues.hung_up();
                if is_hung_up {
                    context.handle_death();
                }
            }
            if self.parked == 0 {
                self.context(incarnation).queues.unpark();
            }
        }
    }

    /// Notifies sets and polls of a description's readiness. `edge` has changes in addition to those found here.
    pub fn notify(&mut self, at: usize, mut edge: EventFlags) {
        let mut view = self.view(at);
        if self.is_unwanted(at, &view) {
            view = self.view(at);
        }
        let events = view.events();
        let description = self.description(at);
        let state = Some((view.tcp, view.is_done, view.has_error));
        let notified =
            std::mem::replace(&mut description.notified, Notified { arrived: view.arrived, state });
        // tcp_data_ready, and a listener's sk_data_ready.
        let is_enough = view.is_readable || view.is_done || view.tcp == Tcp::Listen;
        let has_input = view.arrived > notified.arrived && is_enough;
        if has_input {
            edge |= EventFlags::IN | EventFlags::RDNORM;
        }
        if notified.state.is_some_and(|before| Some(before) != state) {
            edge |= Source::ANY;
        }
        // Room wakes only waiters that had found no room (SOCK_NOSPACE).
        let has_room = events.difference(description.source.bits()).contains(EventFlags::OUT);
        if has_room {
            edge |= EventFlags::OUT | EventFlags::WRNORM;
        }
        if !edge.is_empty() || events != description.source.bits() {
            description.source.changed(events, edge);
            if description.signals.is_some() {
                self.note_signals(at, &notified, &view, has_input, has_room);
            }
        }
    }

    /// Data that arrives after both directions were shut resets the connection (tcp_rcv_state_process in FIN_WAIT).
    fn is_unwanted(&mut self, at: usize, view: &View) -> bool {
        let description = self.description(at);
        let is_shut = description.is_read_shut && description.is_write_shut;
        let State::Open(name) = description.state else { return false };
        if !is_shut || view.arrived <= description.notified.arrived {
            return false;
        }
        let (incarnation, arrived) = (description.incarnation, description.notified.arrived);
        let agent = self.agent(incarnation);
        let unread = arrived.saturating_sub(agent.context.socket(name).receiving.read);
        let mut left = vec![0; unread as usize];
        agent.copy_out(name, 0, unread, &mut [IoSliceMut::new(&mut left)], 0);
        self.abort(at, name);
        let description = self.description(at);
        description.left = left;
        description.state = State::Reset;
        description.error = Some(Errno::CONNRESET);
        true
    }

    /// Updates the readiness, like [`World::tell`], after one of the program's own calls, which may have consumed data or room.
    pub fn settle(&mut self, at: usize) {
        if self.has_unnotified {
            self.process_events();
        }
        let view = self.view(at);
        let events = view.events();
        let description = self.description(at);
        description.notified.arrived = view.arrived;
        if events != description.source.bits() {
            description.source.changed(events, EventFlags::empty());
        }
    }
}

impl Agent {
    fn is_used_by(&self, descriptions: &[Option<Description>]) -> bool {
        descriptions.iter().flatten().any(|description| description.incarnation == self.incarnation)
    }
}
