//! A host core: a pthread that switches between threads as an agent or the fallback decides.

mod preemption;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wave_core::clock::{Clock, Nanos};
use wave_core::host::{HostCore, Mechanism, Next};
use wave_core::link::Waiter;
use wave_core::message::Decision;
use wave_core::outcome::Code;
use wave_links::{AnyBell, AnyPort};
use wave_sched::mechanism::core_loop::{Run, Runs, must_adopt};
use wave_sched::mechanism::table::{Leave, Left};
use wave_sched::wire::Event;

use crate::clock::MonotonicClock;
use crate::door::Incarnation;
use crate::futex;
use crate::klt;
use crate::safe_points::SafePoints;
use crate::shared::{CoreShared, Shared, lock};
use crate::stats::{Mode, PUBLISH_EVERY, bump};
use crate::table::{Slot, Thread};
use crate::timers::Timers;

/// The core's end of the current window.
struct CoreLink {
    port: AnyPort,
    protocol: HostCore,
    incarnation: Arc<Incarnation>,
}

/// One host core. It lives on its pthread; threads that run on it reach it through
/// [`mod@crate::current`]. No borrow of a cell is held across a switch.
///
/// While a kernel-level thread runs, its pthread uses the core, and the core's own pthread sleeps ([`klt`]).
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: u16,
    /// The core's own pthread, and the CPU to which it is pinned.
    tid: libc::pid_t,
    cpu: Option<usize>,
    link: RefCell<Option<CoreLink>>,
    timers: RefCell<Timers>,
    current: Cell<u32>,
    /// Whether `current` runs on this core's pthread: on its fiber, or while switching to or from it.
    on_fiber: Cell<bool>,
    /// The current run, and the time at which the core itself ends it.
    run: Cell<Run>,
    slice_end: Cell<Nanos>,
    /// The time at which the timer interrupts a kernel-level thread.
    alarm: Cell<Nanos>,
    /// The pthread that a kick interrupts.
    interrupts: Cell<Option<libc::pid_t>>,
    epoch: Cell<u64>,
    runs: Cell<Runs>,
    safe_points: SafePoints,
    /// Total charge of the link when the core last found its queue empty. `None` before the first look of
    /// an idle period; always zero on a link that charges nothing.
    charged_at_look: Cell<Option<u64>>,
}

impl CoreLink {
    /// The doorbell by which the agent rings core `index`.
    fn bell(&self, index: u16) -> &AnyBell {
        &self.incarnation.core_bells[usize::from(index)]
    }
}

/// Applies decisions for one core.
struct Commits<'a> {
    shared: &'a Shared,
    core: u16,
}

impl Mechanism for Commits<'_> {
    type Work = Run;

    #[inline]
    fn apply(&mut self, decision: &Decision) -> Result<Run, Code> {
        let run = Run::of(decision)?;
        let Shared { table, klts, signal, .. } = self.shared;
        if run.slice != Nanos(0)
            && let Some(klt) = table.get(run.id).and_then(Slot::klt)
            && !klts.get(klt).has_timer(*signal)
        {
            return Err(Code::Unsupported);
        }
        run.commit(table, self.core, decision)
    }
}

impl Core {
    /// Creates a core. Call on the core's own pthread, which is pinned to `cpu`.
    pub(crate) fn new(shared: Arc<Shared>, index: u16, cpu: Option<usize>) -> Core {
        Core {
            // SAFETY: takes nothing.
            tid: unsafe { libc::gettid() },
            cpu,
            on_fiber: Cell::new(false),
            run: Cell::new(Run::of_fallback(0)),
            slice_end: Cell::new(Nanos::MAX),
            alarm: Cell::new(Nanos::MAX),
            interrupts: Cell::new(None),
            timers: RefCell::new(Timers::new(shared.config.subjects as usize)),
            shared,
            index,
            link: RefCell::new(None),
            current: Cell::new(0),
            epoch: Cell::new(0),
            runs: Cell::default(),
            safe_points: SafePoints::new(),
            charged_at_look: Cell::new(None),
        }
    }

    /// The id of the running thread.
    pub(crate) fn current(&self) -> u32 {
        self.current.get()
    }

    /// The slot of the running thread.
    pub(crate) fn own_slot(&self) -> &Slot {
        self.shared.table.own(self.current())
    }

    /// The slot of the user-level thread that this pthread runs, if it runs one.
    pub(crate) fn running_slot(&self) -> Option<&Slot> {
        self.on_fiber.get().then(|| self.own_slot())
    }

    fn mine(&self) -> &CoreShared {
        &self.shared.cores[usize::from(self.index)]
    }

    /// Runs threads until the enclave stops.
    pub(crate) fn run(&self) {
        let clock = MonotonicClock;
        let counters = &self.mine().counters;
        self.mine().tid.store(self.tid, Ordering::Relaxed);
        let mut now = clock.now();
        while !self.shared.stop.load(Ordering::Relaxed) {
            // The mode is read before the epoch: if the host decides, the core has left the previous agent's window. Until it
            // is polled, a window can take the end of only one run.
            let mut mode = self.shared.mode();
            if self.must_adopt() {
                self.adopt();
                mode = self.shared.mode();
            }
            self.fire_timers(now);
            match self.next(mode, now) {
                Next::Run(run) => {
                    bump(&counters.switches, 1);
                    if counters.switches.load(Ordering::Relaxed).is_multiple_of(PUBLISH_EVERY) {
                        self.publish();
                    }
                    self.charged_at_look.set(None);
                    self.safe_points.begin(now, run.slice);
                    self.run.set(run);
                    self.slice_end.set(run.end(now));
                    let reason = self.switch_to(run.id);
                    let end = clock.now();
                    if reason == Leave::Preempt {
                        counters.preempted_at_ns.store(end.0, Ordering::Relaxed);
                        counters.preempted_runs.add(end.since(now));
                    }
                    bump(&counters.busy_ns, end.since(now).0);
                    self.let_go(run.id, reason, end.since(now));
                    now = end;
                }
                Next::Spin => {
                    bump(&counters.spins, 1);
                    if self.shared.yields_cpu {
                        std::thread::yield_now();
                    } else {
                        std::hint::spin_loop();
                    }
                    let end = clock.now();
                    self.account_poll(end.since(now));
                    now = end;
                }
                Next::Park => {
                    bump(&counters.parks, 1);
                    self.charged_at_look.set(None);
                    self.publish();
                    counters.asleep_since_ns.store(now.0, Ordering::Relaxed);
                    self.wait(now);
                    let end = clock.now();
                    counters.asleep_since_ns.store(0, Ordering::Relaxed);
                    bump(&counters.parked_ns, end.since(now).0);
                    now = end;
                }
            }
        }
        self.leave_link();
    }

    /// Accounts for a look of duration `took` that found nothing.
    #[inline]
    fn account_poll(&self, took: Nanos) {
        let link = self.link.borrow();
        let charges = link.as_ref().and_then(|link| link.port.charges());
        let charged = charges.map_or(0, |charges| charges.total_ns());
        if let Some(before) = self.charged_at_look.replace(Some(charged)) {
            let counters = &self.mine().counters;
            bump(&counters.polling_ns, took.0);
            bump(&counters.polling_charged_ns, charged.saturating_sub(before));
        }
    }

    /// Publishes this window's counters to other threads.
    #[cold]
    fn publish(&self) {
        if let Some(CoreLink { port, protocol, .. }) = &*self.link.borrow() {
            self.mine().counters.publish(protocol.counts(), port.charges());
        }
    }

    #[inline]
    fn next(&self, mode: Mode, now: Nanos) -> Next<Run> {
        match mode {
            Mode::Agent => self.next_from_agent(now),
            Mode::Fallback => self.next_from_fallback(now),
        }
    }

    #[inline]
    fn next_from_agent(&self, now: Nanos) -> Next<Run> {
        let mut link = self.link.borrow_mut();
        let Some(CoreLink { port, protocol, incarnation }) = &mut *link else { return Next::Spin };
        let mut commits = Commits { shared: &self.shared, core: self.index };
        let next = protocol.poll(port, now, &mut commits);
        let record = protocol.record();
        self.in_runs(|runs| runs.by_agent(record));
        self.mine().set_record(record);
        let signals = protocol.take_signals();
        if !signals.is_empty() {
            self.shared.obey(signals, incarnation);
        }
        next
    }

    fn next_from_fallback(&self, now: Nanos) -> Next<Run> {
        if let Some(run) = self.pop_fallback() {
            return Next::Run(run);
        }
        if !self.in_runs(|runs| runs.may_sleep(now, self.shared.config.spin)) {
            return Next::Spin;
        }
        self.mine().sleeps.store(true, Ordering::SeqCst);
        match self.pop_fallback() {
            Some(run) => {
                self.mine().sleeps.store(false, Ordering::SeqCst);
                Next::Run(run)
            }
            None => Next::Park,
        }
    }

    fn pop_fallback(&self) -> Option<Run> {
        let (thread, _) = self.shared.fallback.pop(&self.shared.table, self.index)?;
        bump(&self.mine().counters.fallback_switches, 1);
        let mut link = self.link.borrow_mut();
        let protocol = link.as_mut().map(|link| &mut link.protocol);
        self.mine().set_record(self.in_runs(|runs| runs.by_fallback(protocol)));
        self.shared.share_fallback();
        Some(Run::of_fallback(thread.id))
    }

    fn in_runs<T>(&self, change: impl FnOnce(&mut Runs) -> T) -> T {
        let mut runs = self.runs.get();
        let result = change(&mut runs);
        self.runs.set(runs);
        result
    }

    /// Whether the core must adopt another window, or none.
    #[inline]
    fn must_adopt(&self) -> bool {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        must_adopt(self.epoch.get(), epoch, || self.link.borrow().is_some())
    }

    /// Runs a thread until it gives the core back.
    fn switch_to(&self, id: u32) -> Leave {
        self.current.set(id);
        self.mine().runs.store(id, Ordering::Relaxed);
        match self.shared.table.own(id).klt() {
            Some(at) => self.switch_to_klt(at, id),
            None => self.switch_to_fiber(id),
        }
    }

    fn switch_to_fiber(&self, id: u32) -> Leave {
        let slot = self.shared.table.own(id);
        let mut fiber = slot
            .take_fiber()
            .or_else(|| self.shared.fibers.take())
            .expect("the enclave has a fiber for every id");
        self.interrupt(slot.is_in_region().then_some(self.tid));
        self.on_fiber.set(true);
        let reason = fiber.resume(id);
        self.on_fiber.set(false);
        self.prefetch();
        match reason {
            Leave::Exit => self.shared.fibers.give_back(fiber),
            _ => slot.keep_fiber(fiber),
        }
        reason
    }

    fn switch_to_klt(&self, at: u32, id: u32) -> Leave {
        let (shared, mine) = (&self.shared, self.mine());
        let klt = shared.klts.get(at);
        self.interrupt(Some(klt.tid()));
        mine.away.store(1, Ordering::Relaxed);
        mine.runner.store(klt.tid(), Ordering::SeqCst);
        // Threads of this process that change the epoch or `stop` look for the runner afterwards. The agent rings
        // after it has stored its word, and may have done both before the ring could interrupt this thread.
        let is_late = self.epoch.get() != shared.epoch.load(Ordering::SeqCst)
            || shared.stop.load(Ordering::SeqCst)
            || self.is_asked_to_end();
        self.alarm.set(Nanos::MAX);
        klt.open(self, id, self.cpu);
        if is_late {
            klt::interrupt(klt.tid(), shared.signal);
        }
        while mine.away.load(Ordering::Acquire) != 0 {
            futex::wait(&mine.away, 1);
        }
        self.prefetch();
        mine.runner.store(0, Ordering::SeqCst);
        if self.alarm.get() != Nanos::MAX {
            klt.set_timer(None, shared.signal);
        }
        let reason = klt.reason();
        if reason == Leave::Exit {
            shared.klts.give_back(at);
        }
        reason
    }

    /// Starts the prefetch, which runs while the following code updates the host's state (Wave 5.4).
    #[inline]
    fn prefetch(&self) {
        if let Some(link) = &mut *self.link.borrow_mut() {
            link.protocol.prefetch(&link.port);
        }
    }

    /// Moves a thread that has left its fiber to its new state, and holds its message.
    fn let_go(&self, id: u32, reason: Leave, ran: Nanos) {
        if reason != Leave::Preempt && self.is_asked_to_end() {
            bump(&self.mine().counters.ended_first, 1);
        }
        let Left { event, woken } = self.shared.table.leave(id, reason, self.index, ran);
        if let Some(link) = &mut *self.link.borrow_mut() {
            link.protocol.hold(event.to_message());
        }
        if event.kind.leaves_runnable() {
            self.shared.became_runnable(&event);
        } else if reason == Leave::Exit {
            let _ = self.shared.free.push(id);
        }
        if let Some(event) = woken {
            self.woken(event);
        }
    }

    /// Tells the agent that the running thread, or a timer, woke a thread.
    pub(crate) fn woken(&self, event: Event) {
        let event = Event { core: self.index, ..event };
        self.send(&event);
        self.shared.became_runnable(&event);
    }

    /// Sends a message that ends no run.
    pub(crate) fn send(&self, event: &Event) {
        if let Some(CoreLink { port, protocol, incarnation }) = &mut *self.link.borrow_mut() {
            protocol.send(port, &event.to_message());
            let signals = protocol.take_signals();
            if !signals.is_empty() {
                self.shared.obey(signals, incarnation);
            }
        }
    }

    pub(crate) fn add_timer(&self, deadline: Nanos, thread: Thread) {
        self.timers.borrow_mut().add(deadline, thread);
    }

    #[inline]
    fn fire_timers(&self, now: Nanos) {
        loop {
            let Some(thread) = self.timers.borrow_mut().pop(now) else { return };
            if let Some(event) = self.shared.table.wake(thread.0) {
                self.woken(event);
            }
        }
    }

    fn wait(&self, now: Nanos) {
        self.interrupt(None);
        self.mine().sleeps.store(true, Ordering::SeqCst);
        let timeout = self.timers.borrow().next().map(|at| Duration::from_nanos(at.since(now).0));
        let changed = self.epoch.get() != self.shared.epoch.load(Ordering::SeqCst);
        if !changed && !self.shared.stop.load(Ordering::SeqCst) {
            let own = &self.mine().bell;
            match &*self.link.borrow() {
                Some(link) => link.bell(self.index).wait_with(own, timeout),
                None => {
                    own.wait(timeout);
                }
            }
        }
        self.mine().sleeps.store(false, Ordering::SeqCst);
    }

    /// Adopts the current incarnation's window, or none.
    #[cold]
    fn adopt(&self) {
        self.leave_link();
        let epoch = {
            let incarnation = lock(&self.shared.incarnation);
            if let Some(incarnation) = &*incarnation {
                let prefetches = self.shared.prefetches;
                let run = self.runs.get().run();
                let mut protocol = HostCore::new(&incarnation.layout, self.index, run, prefetches);
                self.mine().set_record(protocol.record());
                let port = incarnation.port();
                let incarnation = Arc::clone(incarnation);
                // Asked anew, because the agent's first snapshot may still show this core as running.
                protocol.ask_anew(&port);
                let signals = protocol.take_signals();
                if !signals.is_empty() {
                    self.shared.obey(signals, &incarnation);
                }
                *self.link.borrow_mut() = Some(CoreLink { port, protocol, incarnation });
            }
            self.shared.epoch.load(Ordering::Acquire)
        };
        self.epoch.set(epoch);
        self.mine().epoch.store(epoch, Ordering::Release);
    }

    fn leave_link(&self) {
        self.interrupt(None);
        if let Some(link) = self.link.borrow_mut().take() {
            self.mine().counters.leave_window(link.protocol.counts(), link.port.charges());
        }
    }
}
