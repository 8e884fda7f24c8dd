//! A front's turns on its thread: it works, and sleeps.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::{AbortHandle, LocalSet, yield_now};
use wave_agent::lanes::ROOM_EVERY;
use wave_agent::{OwnBell, Seat, ThreadFront};
use wave_core::agent::{Front, Step};
use wave_core::clock::Nanos;
use wave_core::link::Waiter;
use wave_core::policy::{Note, Progress};
use wave_rpc::dispatch::HostGone;

use super::{Line, RpcFront};
use crate::cores::CoreThread;
use crate::engine::Engine;
use crate::host::Host;
use crate::notes::NotesTo;

/// Intervals between polls of the sockets, which are system calls: while idle, and while busy.
const TURN_IDLE: Nanos = Nanos::from_micros(2);
const TURN_BUSY: Nanos = Nanos::from_micros(100);
/// Most rounds of calls and connections in one poll.
const ROUNDS_PER_POLL: usize = 8;

impl RpcFront {
    /// Does a bounded amount of work: the host's events, connections, calls. Returns idle if there is no more to do now.
    fn step(&mut self) -> Step {
        let now = self.now();
        self.check_host(now);
        let RpcFront { engine, tasks, round_robin, turned, progressed, parks, cores, .. } = self;
        // Inside the runtime, where waking a task needs no system call.
        let stepped = self.runtime.block_on(async {
            let mut any = false;
            let stepped = rounds(engine, tasks, &mut any).await?;
            *progressed |= any;
            // While the front parks, its sleep polls the sockets.
            let has_sockets = cores.is_empty();
            let turn_every = match round_robin.is_waiting() {
                true => Nanos(0),
                false if any || !has_sockets => TURN_BUSY,
                false => TURN_IDLE,
            };
            if *parks || now.since(*turned) < turn_every {
                return Ok(stepped);
            }
            *turned = now;
            yield_now().await;
            round_robin.begin();
            rounds(engine, tasks, progressed).await
        });
        self.polled = now;
        self.announce(now);
        stepped.unwrap_or_else(|gone| {
            self.lose_host(gone);
            Step::Progress
        })
    }
}

impl Front for RpcFront {
    fn poll(&mut self, _now: Nanos, notes: &mut Vec<Note>) -> Progress {
        let step = self.step();
        let mut due = None;
        let first = notes.len();
        let mut engine = self.engine.borrow_mut();
        let mut own = engine.own();
        if let Some(own) = &mut own {
            notes.extend(own.dispatch.take_notes().map(|request| request.to_note()));
        }
        if let Some(to) = &mut self.notes {
            to.pass(self.polled, &notes[first..], |open| {
                let requests = own.iter().flat_map(|own| own.dispatch.open_notes());
                open.extend(requests.map(|request| request.to_note()));
            });
            due = to.due(self.polled);
        }
        drop(engine);
        let has_progressed = std::mem::take(&mut self.progressed);
        // Tasks wait also while other cores have no room, and then for these.
        let waits = self.round_robin.is_waiting() && !self.engine.borrow().is_behind();
        self.has_more = !matches!(step, Step::Idle(_)) || waits;
        if let Step::Idle(until) = step {
            self.due = until.into_iter().chain(due).min();
        }
        self.has_worked |= has_progressed || self.has_more;
        if has_progressed || self.has_more { Progress::More } else { Progress::Done }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.due
    }

    fn prepare_park(&mut self) {
        // The load is not sampled while the front sleeps, so it is sampled now.
        let now = self.now();
        self.engine.borrow_mut().measure(now);
        if let Some(host) = &mut self.engine.borrow_mut().shared.host {
            host.prepare_park();
        }
        self.ready.prepare_park();
        self.parks = true;
    }

    fn unpark(&mut self) {
        if let Some(host) = &mut self.engine.borrow_mut().shared.host {
            host.unpark();
        }
        self.ready.unpark();
        self.parks = false;
    }
}

impl ThreadFront for RpcFront {
    fn start(&self) -> Instant {
        self.start
    }

    fn has_ended(&mut self) -> bool {
        let cores_ended = self.cores.iter_mut().fold(true, |all, core| core.has_ended() & all);
        if !self.ready.is_to_end() {
            return false;
        }
        let mut engine = self.engine.borrow_mut();
        let now = engine.shared.now();
        let patience = Nanos(self.options.limits.drain.as_nanos() as u64);
        let until = *self.drains_until.get_or_insert_with(|| {
            engine.drain();
            // The sockets close at once, so that another front can listen there.
            self.listens.iter().for_each(AbortHandle::abort);
            self.cores.iter().for_each(CoreThread::end);
            now + patience
        });
        let has_ended = engine.is_empty() && cores_ended || now >= until;
        if has_ended {
            self.cores.iter_mut().for_each(CoreThread::join);
        }
        has_ended
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn failure(&self) -> Option<String> {
        self.unfit.as_ref().map(ToString::to_string)
    }

    fn seat(&self) -> Seat {
        self.options.seat
    }

    fn spin(&self) -> Nanos {
        let engine = self.engine.borrow();
        engine.shared.host.as_ref().map_or(Nanos(0), Host::spin)
    }

    /// Returns memory to the system after a flood of connections or calls.
    fn maintain(&mut self) {
        // Floods of connections take place on connection cores alone.
        let has_worked = std::mem::take(&mut self.has_worked) || !self.cores.is_empty();
        self.spare.iter_mut().for_each(|spare| spare.trim(self.polled, has_worked));
    }

    fn join(&mut self, bell: &OwnBell) {
        self.other = self.make_watch(bell);
    }

    fn wait(&mut self, agents: Option<&OwnBell>, timeout: Duration) {
        if self.engine.borrow().is_behind() {
            // While other cores have no room, the sockets wait, too.
            return std::thread::sleep(Duration::from_nanos(ROOM_EVERY.0));
        }
        let (ready, line, other) = (&self.ready, &self.line, &self.other);
        let round_robin = &self.round_robin;
        round_robin.begin();
        self.tasks.block_on(&self.runtime, async {
            let timer = tokio::time::sleep(timeout);
            tokio::pin!(timer);
            poll_fn(|cx| {
                let mut is_over = ready.sleep(cx.waker()) || round_robin.is_waiting();
                if let Some(Line { bell, rung: Some(rung), .. }) = line
                    && let Poll::Ready(guard) = rung.poll_read_ready(cx)
                {
                    bell.wait(Some(Duration::ZERO));
                    if let Ok(mut guard) = guard {
                        guard.clear_ready();
                    }
                    is_over = true;
                }
                if let Some(other) = other
                    && let Poll::Ready(guard) = other.poll_read_ready(cx)
                {
                    if let Ok(mut guard) = guard {
                        guard.clear_ready();
                    }
                    is_over = true;
                }
                if is_over { Poll::Ready(()) } else { timer.as_mut().poll(cx) }
            })
            .await;
        });
        self.ready.awake();
        self.turned = self.now();
        if let Some(bell) = agents {
            bell.wait(Some(Duration::ZERO));
        }
        // A scheduler may have connected.
        self.notes.iter_mut().for_each(NotesTo::awake);
    }
}

/// Runs calls and connections alternately while one leaves work for the other, for a bounded number of rounds.
async fn rounds(
    engine: &RefCell<Engine>,
    tasks: &mut LocalSet,
    any: &mut bool,
) -> Result<Step, HostGone> {
    poll_fn(|cx| {
        for _ in 0..ROUNDS_PER_POLL {
            let stepped = {
                let mut engine = engine.borrow_mut();
                let now = engine.shared.now();
                engine.step(now)?
            };
            if engine.borrow().is_behind() {
                return Poll::Ready(Ok(stepped));
            }
            // The local set never completes, because the accepting tasks do not end.
            let _ = Pin::new(&mut *tasks).poll(cx);
            if stepped == Step::Progress {
                *any = true;
            } else if !engine.borrow().is_rung() {
                return Poll::Ready(Ok(stepped));
            }
        }
        Poll::Ready(Ok(Step::Progress))
    })
    .await
}
