//! Shares a core's time between two polls of its sockets (a *turn*) among the addresses of its clients, and an address's time
//! among its connections: round robin with quanta, in which connections that did not use up their last quantum come before those
//! that wait (as sparse flows in RFC 8290, 4.2).
//!
//! tokio alone does not share: its `LocalSet` polls up to 61 tasks before its runtime polls the sockets, a task that uses up
//! tokio's budget is one of them again at once, and the budget is 128 reads whatever they cost.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use tokio::task::coop::has_budget_remaining;
use wave_core::clock::Nanos;
use wave_rpc::client::Address;

use crate::limits::{ADDRESS_QUANTUM, CONNECTION_QUANTUM, READ_BYTES_MAX, READ_BYTES_MIN};
use crate::slots::Ready;

/// The tasks of one core, in turns.
#[derive(Debug)]
pub struct RoundRobin {
    /// Rung when a task waits for the next turn: the core must not sleep.
    ready: Arc<Ready>,
    turn: Cell<u64>,
    is_waiting: Cell<bool>,
    /// Addresses that used time in this turn, or have tasks that wait. `None`: the core's own tasks.
    lines: RefCell<BTreeMap<Option<Address>, Line>>,
    /// Bytes read in this turn, and the most in one turn.
    read: Cell<[u64; 2]>,
}

/// The tasks of one address.
#[derive(Debug, Default)]
struct Line {
    /// Time used in this turn, by [`Class`].
    used: [Nanos; 2],
    waiting: VecDeque<Weak<Flow>>,
    /// The last task that was called.
    called: Weak<Flow>,
}

/// Both classes of an address have a quantum of their own, so that neither starves the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Tasks that left their last quantum unfinished.
    Sparse,
    /// Tasks that waited in the line, and new connections.
    Waited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// May run as one of this class.
    May(Class),
    Waits,
    /// Its turn has come.
    Called,
}

/// A task, as its core's round robin sees it.
#[derive(Debug)]
pub struct Flow {
    round_robin: Rc<RoundRobin>,
    address: Option<Address>,
    state: Cell<State>,
    /// The last turn in which it ran, and the time that it used then.
    used: Cell<(u64, Nanos)>,
    /// When it was last polled.
    polled: Cell<Instant>,
    /// Bytes that it read in this poll.
    read: Cell<usize>,
    /// Most bytes of its next reads.
    read_max: Cell<usize>,
    /// It has more to do, in another turn.
    has_more: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl RoundRobin {
    pub fn new(ready: Arc<Ready>) -> RoundRobin {
        RoundRobin {
            ready,
            turn: Cell::new(1),
            is_waiting: Cell::new(false),
            lines: RefCell::default(),
            read: Cell::default(),
        }
    }

    /// A task for the connection of an address, or one of the core's own tasks.
    pub fn flow(self: &Rc<Self>, address: Option<Address>) -> Rc<Flow> {
        let class = if address.is_some() { Class::Waited } else { Class::Sparse };
        Rc::new(Flow {
            round_robin: Rc::clone(self),
            address,
            state: Cell::new(State::May(class)),
            used: Cell::default(),
            polled: Cell::new(Instant::now()),
            read: Cell::new(0),
            read_max: Cell::new(READ_BYTES_MAX),
            has_more: Cell::new(false),
            waker: RefCell::default(),
        })
    }

    /// Begins a turn: the sockets were polled. Calls the first waiting task of each address.
    pub fn begin(&self) {
        self.turn.set(self.turn.get() + 1);
        self.note_read(0);
        let mut lines = self.lines.borrow_mut();
        lines.retain(|_, line| {
            line.used = Default::default();
            line.call_next(self.turn.get());
            !line.waiting.is_empty()
        });
        self.is_waiting.set(!lines.is_empty());
    }

    /// Whether tasks wait for the next turn.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.get()
    }

    /// Most bytes that were read in one turn. Those of TLS count twice, encrypted and decrypted.
    pub fn read_max(&self) -> u64 {
        let [now, max] = self.read.get();
        now.max(max)
    }

    fn note_read(&self, now: u64) {
        self.read.set([now, self.read_max()]);
    }

    /// Whether the task may run now. If not, it waits in its address's line.
    fn may_run(&self, flow: &Rc<Flow>, waker: &Waker) -> bool {
        let class = match flow.state.get() {
            State::Waits => return false,
            State::Called => return true,
            State::May(class) => class,
        };
        let is_free = self.lines.borrow().get(&flow.address).is_none_or(|line| {
            let is_first = class == Class::Sparse || line.waiting.is_empty();
            is_first && line.used[class as usize] < ADDRESS_QUANTUM
        });
        let may = is_free && flow.used(self.turn.get()) < CONNECTION_QUANTUM;
        match class {
            _ if !may => self.wait(flow, waker),
            Class::Sparse => {}
            Class::Waited => flow.state.set(State::Called),
        }
        may
    }

    /// Puts a task at the end of its address's line.
    fn wait(&self, flow: &Rc<Flow>, waker: &Waker) {
        flow.state.set(State::Waits);
        *flow.waker.borrow_mut() = Some(waker.clone());
        let mut lines = self.lines.borrow_mut();
        lines.entry(flow.address).or_default().waiting.push_back(Rc::downgrade(flow));
        if !self.is_waiting.replace(true) {
            self.ready.ring();
        }
    }

    /// Counts the time that a task has used, and calls the next one of its address.
    fn charge(&self, flow: &Flow, class: Class, time: Nanos) {
        let turn = self.turn.get();
        flow.used.set((turn, flow.used(turn) + time));
        let mut lines = self.lines.borrow_mut();
        let line = lines.entry(flow.address).or_default();
        line.used[class as usize] = line.used[class as usize] + time;
        if class == Class::Waited {
            line.call_next(turn);
        }
    }
}

impl Line {
    /// Wakes the first waiting task, unless the address or the task has used up its quantum, or another task was called and has
    /// not run yet.
    fn call_next(&mut self, turn: u64) {
        let is_called = |flow: Rc<Flow>| flow.state.get() == State::Called;
        if self.used[Class::Waited as usize] >= ADDRESS_QUANTUM
            || self.called.upgrade().is_some_and(is_called)
        {
            return;
        }
        while let Some(first) = self.waiting.front() {
            let Some(flow) = first.upgrade() else {
                // The task has ended.
                self.waiting.pop_front();
                continue;
            };
            if flow.used(turn) < CONNECTION_QUANTUM {
                self.called = Rc::downgrade(&flow);
                self.waiting.pop_front();
                flow.state.set(State::Called);
                flow.waker.take().into_iter().for_each(Waker::wake);
            }
            return;
        }
    }
}

impl Flow {
    /// Runs the task in turns. It goes on in a later turn if its quantum is used up, or if tokio makes it yield: tokio forgets
    /// such tasks when `block_on` returns, as in a front's polls.
    pub async fn run<T>(self: Rc<Self>, task: impl Future<Output = T>) -> T {
        let mut task = pin!(task);
        poll_fn(|cx| {
            if !self.round_robin.may_run(&self, cx.waker()) {
                return Poll::Pending;
            }
            self.polled.set(Instant::now());
            let polled = task.as_mut().poll(cx);
            self.end_poll();
            if polled.is_pending() && (self.has_more.take() || !has_budget_remaining()) {
                self.round_robin.wait(&self, cx.waker());
            }
            polled
        })
        .await
    }

    /// Waits for another turn if the quantum of this one is used up.
    pub async fn proceed(&self) {
        poll_fn(|_| self.poll_proceed()).await;
    }

    /// As [`Flow::proceed`]. The task need not be woken: [`Flow::run`] polls it again.
    pub fn poll_proceed(&self) -> Poll<()> {
        let used = self.used(self.round_robin.turn.get()) + self.time();
        if used < CONNECTION_QUANTUM {
            return Poll::Ready(());
        }
        self.has_more.set(true);
        Poll::Pending
    }

    /// Most bytes that the task may read at once: fewer after a poll that took more than two quanta.
    pub fn read_max(&self) -> usize {
        self.read_max.get()
    }

    /// Counts bytes that the task has read.
    pub fn count_read(&self, bytes: usize) {
        self.read.set(self.read.get() + bytes);
        let [now, _] = self.round_robin.read.get();
        self.round_robin.note_read(now + bytes as u64);
    }

    fn end_poll(&self) {
        let is_long = self.polled.get().elapsed().as_nanos() as u64 > 2 * CONNECTION_QUANTUM.0;
        let time = self.time();
        let class = if self.state.get() == State::Called { Class::Waited } else { Class::Sparse };
        self.state.set(State::May(Class::Sparse));
        self.round_robin.charge(self, class, time);
        let read = self.read.take();
        let max = match is_long {
            true if read > 0 => read / 2,
            true => self.read_max.get(),
            false => self.read_max.get() * 2,
        };
        self.read_max.set(max.clamp(READ_BYTES_MIN, READ_BYTES_MAX));
    }

    /// Time of this poll. A byte counts as 1 ns at least, so that the work of a turn is bounded whatever the clock says.
    fn time(&self) -> Nanos {
        let elapsed = self.polled.get().elapsed().as_nanos() as u64;
        Nanos(elapsed.max(self.read.get() as u64))
    }

    /// Time that the task has used in this turn, before the current poll.
    fn used(&self, turn: u64) -> Nanos {
        let (last, used) = self.used.get();
        if last == turn { used } else { Nanos(0) }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::Notify;
    use tokio::task::{AbortHandle, LocalSet};

    use super::*;

    /// A core whose tasks count bytes instead of reading them.
    struct Core {
        tasks: LocalSet,
        runtime: Runtime,
        round_robin: Rc<RoundRobin>,
        ran: Rc<RefCell<Vec<usize>>>,
    }

    impl Core {
        fn new() -> Core {
            Core {
                tasks: LocalSet::new(),
                runtime: Builder::new_current_thread().build().unwrap(),
                round_robin: Rc::new(RoundRobin::new(Arc::default())),
                ran: Rc::default(),
            }
        }

        fn flow(&self, address: u8) -> Rc<Flow> {
            self.round_robin.flow(Some(Address::V4(address.into())))
        }

        /// Adds a task that uses up its quantum whenever it runs.
        fn busy(&self, address: u8, name: usize) -> AbortHandle {
            let (flow, ran) = (self.flow(address), Rc::clone(&self.ran));
            let task = Rc::clone(&flow).run(async move {
                loop {
                    ran.borrow_mut().push(name);
                    flow.count_read(CONNECTION_QUANTUM.0 as usize);
                    flow.proceed().await;
                }
            });
            self.tasks.spawn_local(task).abort_handle()
        }

        /// A turn. Returns the names of the tasks that ran, in order.
        fn turn(&mut self) -> Vec<usize> {
            self.round_robin.begin();
            self.runtime.block_on(poll_fn(|cx| {
                // More often than the local set needs for 61 tasks at once.
                for _ in 0..10 {
                    let _ = Pin::new(&mut self.tasks).poll(cx);
                }
                Poll::Ready(())
            }));
            self.ran.take()
        }
    }

    #[test]
    fn connections_of_an_address_take_turns() {
        let mut core = Core::new();
        let mut counts = [0usize; 10];
        (0..counts.len()).for_each(|name| drop(core.busy(1, name)));
        for _ in 0..100 {
            let ran = core.turn();
            assert!(!ran.is_empty() && ran.len() <= 5, "{ran:?}");
            ran.iter().for_each(|&name| counts[name] += 1);
        }
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 2, "{counts:?}");
    }

    #[test]
    fn task_runs_once_in_a_turn_and_other_addresses_in_each() {
        let mut core = Core::new();
        (0..100).for_each(|name| drop(core.busy(1, name)));
        core.busy(2, 1_000);
        for _ in 0..20 {
            let ran = core.turn();
            assert_eq!(ran.iter().filter(|&&name| name == 1_000).count(), 1, "{ran:?}");
        }
    }

    #[test]
    fn sparse_connection_runs_at_once_beside_a_crowd_of_its_address() {
        let mut core = Core::new();
        let (asked, ran) = (Rc::new(Notify::new()), Rc::clone(&core.ran));
        let asks = Rc::clone(&asked);
        core.tasks.spawn_local(core.flow(1).run(async move {
            loop {
                asks.notified().await;
                ran.borrow_mut().push(1_000);
            }
        }));
        core.turn();
        (0..100).for_each(|name| drop(core.busy(1, name)));
        for _ in 0..20 {
            core.turn();
            asked.notify_one();
            assert!(core.turn().contains(&1_000));
        }
    }

    #[test]
    fn ended_tasks_leave_the_line() {
        let mut core = Core::new();
        let tasks: Vec<_> = (0..20).map(|name| core.busy(1, name)).collect();
        core.turn();
        tasks[..19].iter().for_each(AbortHandle::abort);
        core.turn();
        for _ in 0..3 {
            assert_eq!(core.turn(), [19]);
        }
        tasks[19].abort();
        core.turn();
        core.turn();
        assert!(!core.round_robin.is_waiting() && core.round_robin.lines.borrow().is_empty());
    }

    #[test]
    fn bytes_whose_work_takes_long_are_read_in_smaller_pieces() {
        let core = Core::new();
        let flow = core.flow(1);
        let long = CONNECTION_QUANTUM.0 as u128 * 3;
        for _ in 0..20 {
            flow.polled.set(Instant::now());
            flow.count_read(flow.read_max());
            while flow.polled.get().elapsed().as_nanos() < long {}
            flow.end_poll();
        }
        assert_eq!(flow.read_max(), READ_BYTES_MIN);
    }
}
