//! Turns events into each thread's runs: a pure function of the events, even if some of them are missing.
//!
//! ```text
//!             Wakeup                 Switch to it
//!  Blocked ───────────> Runnable ───────────────────> Running
//!     ^                     ^   Switch from it, still    │
//!     │                     └────────── runnable ────────┤
//!     └──────────────────────────────── blocked ─────────┘     dead: gone
//! ```
//!
//! Any other transition means that an event is missing: the thread is moved to the state that the event implies, the
//! guess is counted ([`History::repaired`]), and no CPU time is invented for the missing part.

use std::collections::{HashMap, HashSet};

use wave_sched::workload::{End, Run, Thread, Waker};

use super::event::{Doing, Event, Kind, Named, Next, Who};
use super::interference::Interference;

/// Builds threads from events in the kernel's order.
#[derive(Debug)]
pub struct History {
    begins_ns: u64,
    lives: Vec<Life>,
    alive: HashMap<Who, usize>,
    /// The thread that is believed to run on each CPU.
    cpus: HashMap<u16, usize>,
    /// CPUs with at least one switch in the events.
    switched: HashSet<u16>,
    repaired: u64,
    runs: usize,
    interference: Interference,
}

/// Known facts about one thread.
#[derive(Debug)]
struct Life {
    who: Who,
    named: Named,
    state: State,
    /// The current run, unless the thread is blocked.
    open: Option<Run>,
    runs: Vec<Run>,
    /// CPU time of all runs, the open one included.
    used_ns: u64,
    /// The last thread that announced a wake-up of this one.
    waking: Option<Waker>,
    end: End,
    ended_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Blocked,
    Runnable {
        /// When the thread was woken, if that was seen and the thread has not run since.
        woken_ns: Option<u64>,
    },
    Running {
        since_ns: u64,
        /// Time of the thread's last event, in nanoseconds.
        seen_ns: u64,
        /// The CPU, if known.
        cpu: Option<u16>,
    },
    Gone,
}

impl History {
    /// An empty history of a recording that begins at `begins_ns`, on the clock of the events.
    pub fn new(begins_ns: u64) -> History {
        History {
            begins_ns,
            lives: Vec::new(),
            alive: HashMap::new(),
            cpus: HashMap::new(),
            switched: HashSet::new(),
            repaired: 0,
            runs: 0,
            interference: Interference::default(),
        }
    }

    /// CPU time that unrecorded threads used while recorded threads waited for a CPU, until `ends_ns` on the clock of the
    /// events, in nanoseconds.
    pub fn interference_ns(&self, ends_ns: u64) -> u64 {
        self.interference.total_ns(ends_ns.saturating_sub(self.begins_ns))
    }

    /// Number of guessed transitions so far.
    pub fn repaired(&self) -> u64 {
        self.repaired
    }

    /// Number of runs that ended so far. Memory use grows with it.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// Takes the next event, in the order of time.
    pub fn feed(&mut self, event: &Event) {
        let now = event.time_ns.saturating_sub(self.begins_ns);
        self.interference.pass(now);
        match &event.kind {
            Kind::Seen(who, doing, named) => self.seen(*who, *doing, named, now),
            Kind::Made(who, maker, named) => {
                let waker = maker.and_then(|maker| self.waker(maker, event.cpu, now));
                if let Some(old) = self.alive.remove(who) {
                    self.repaired += 1;
                    self.stop(old);
                    self.close(old, now, End::Exited);
                    self.enter(old, State::Gone);
                }
                let life = self.add(*who, State::Blocked);
                self.lives[life].named = named.clone();
                self.lives[life].waking = waker;
            }
            Kind::Waking(who, waker) => {
                // A thread that wakes itself has not blocked yet.
                let waker = self.waker(*waker, event.cpu, now).filter(|_| waker != who);
                let life = self.life(*who, State::Blocked);
                self.lives[life].waking = waker;
            }
            Kind::Wakeup(who) => {
                let life = self.life(*who, State::Blocked);
                let waker = self.lives[life].waking.take();
                if let State::Blocked = self.lives[life].state {
                    self.open(life, now, Some(now), waker);
                }
            }
            Kind::Switch(from, next) => {
                self.switch(event.cpu, *from, *next, now);
                self.interference.switch(event.cpu, from.is_some(), *next);
            }
            Kind::Exit(who, named) => {
                if let Some(life) = self.alive.get(who) {
                    self.lives[*life].named = named.clone();
                }
            }
        }
    }

    /// Ends the recording. Returns the threads that ran, with wakers as indices among them, and the number of guessed
    /// transitions.
    pub fn finish(mut self, ends_ns: u64) -> (Vec<Thread>, u64) {
        let now = ends_ns.saturating_sub(self.begins_ns);
        for life in 0..self.lives.len() {
            if let State::Running { since_ns, seen_ns, .. } = self.lives[life].state {
                self.charge(life, now.max(seen_ns) - since_ns);
            }
            self.close(life, now, End::Cut);
        }
        let mut places = vec![None; self.lives.len()];
        let ran = self.lives.iter().enumerate().filter(|(_, life)| !life.runs.is_empty());
        for (place, (at, _)) in ran.enumerate() {
            places[at] = Some(place as u32);
        }
        let place = |waker: Waker| {
            let thread = places[waker.thread as usize]?;
            Some(Waker { thread, ..waker })
        };
        let cause = |run: Run| {
            let waker = run.waker.and_then(place);
            Run { waker, blocked_ns: run.blocked_ns.filter(|_| waker.is_none()), ..run }
        };
        let threads = self.lives.into_iter().filter(|life| !life.runs.is_empty()).map(|life| {
            let runs = life.runs.into_iter();
            Thread {
                pid: life.who.pid,
                process: life.named.process,
                name: life.named.name,
                end: life.end,
                ended_ns: life.ended_ns,
                runs: runs.map(cause).collect(),
            }
        });
        (threads.collect(), self.repaired)
    }

    fn seen(&mut self, who: Who, doing: Doing, named: &Named, now: u64) {
        let life = match self.alive.get(&who) {
            Some(life) => *life,
            None => {
                let life = self.add(who, State::Blocked);
                match doing {
                    Doing::Runnable => self.open(life, now, None, None),
                    Doing::Running => {
                        self.open(life, now, None, None);
                        // The CPU on which it runs was not seen.
                        self.start(life, None, now);
                    }
                    Doing::Blocked | Doing::Dead => {}
                }
                life
            }
        };
        self.lives[life].named = named.clone();
    }

    fn switch(&mut self, cpu: u16, from: Option<(Who, Doing)>, next: Next, now: u64) {
        let leaves = from.map(|(who, doing)| {
            let known = self.alive.get(&who).copied();
            let life = known.unwrap_or_else(|| {
                // The first thread on this CPU has run since before the recording. For any other thread, the event that
                // made it known is missing.
                let since = if self.switched.contains(&cpu) { now } else { 0 };
                self.repaired += u64::from(since > 0);
                let life = self.add(who, State::Blocked);
                self.open(life, since, None, None);
                self.start(life, Some(cpu), since);
                life
            });
            (life, doing)
        });
        self.switched.insert(cpu);
        self.vacate(cpu, leaves.map(|(life, _)| life));
        if let Some((life, doing)) = leaves {
            self.leave(life, cpu, doing, now);
        }
        if let Next::Recorded(who) = next {
            let life = self.life(who, State::Blocked);
            match self.lives[life].state {
                State::Runnable { .. } => {}
                State::Running { .. } => {
                    self.repaired += 1;
                    self.stop(life);
                }
                State::Blocked | State::Gone => {
                    self.repaired += 1;
                    let waker = self.lives[life].waking.take();
                    self.open(life, now, None, waker);
                }
            }
            self.start(life, Some(cpu), now);
            self.cpus.insert(cpu, life);
        }
    }

    /// Removes the thread that was believed to run on a CPU, unless it is `known`: it has left without an event.
    fn vacate(&mut self, cpu: u16, known: Option<usize>) {
        if let Some(stale) = self.cpus.remove(&cpu)
            && known != Some(stale)
            && matches!(self.lives[stale].state, State::Running { cpu: on, .. } if on == Some(cpu))
        {
            self.repaired += 1;
            self.stop(stale);
        }
    }

    fn leave(&mut self, life: usize, cpu: u16, doing: Doing, now: u64) {
        if let State::Running { cpu: Some(on), .. } = self.lives[life].state
            && on != cpu
        {
            // It has left CPU `on`, and its switch to this one is missing.
            self.stop(life);
        }
        match self.lives[life].state {
            State::Running { since_ns, seen_ns, .. } => {
                self.charge(life, now.max(seen_ns) - since_ns);
                if let Some(run) = &mut self.lives[life].open {
                    run.preemptions += u64::from(doing == Doing::Runnable);
                }
                self.enter(life, State::Runnable { woken_ns: None });
            }
            State::Runnable { .. } => {
                // Its start is missing: how long it waited and ran is unknown.
                self.repaired += 1;
                if let Some(run) = &mut self.lives[life].open {
                    run.waited_ns = None;
                }
                self.enter(life, State::Runnable { woken_ns: None });
            }
            State::Blocked | State::Gone => {
                self.repaired += 1;
                if doing == Doing::Runnable {
                    self.open(life, now, None, None);
                }
            }
        }
        match doing {
            Doing::Blocked => {
                self.close(life, now, End::Blocked);
                self.enter(life, State::Blocked);
            }
            Doing::Dead => {
                self.close(life, now, End::Exited);
                self.lives[life].end = End::Exited;
                self.enter(life, State::Gone);
                let who = self.lives[life].who;
                self.alive.remove(&who);
            }
            Doing::Runnable | Doing::Running => {}
        }
    }

    /// Index of a thread. Adds an unknown thread in this state.
    fn life(&mut self, who: Who, state: State) -> usize {
        self.alive.get(&who).copied().unwrap_or_else(|| self.add(who, state))
    }

    fn add(&mut self, who: Who, state: State) -> usize {
        let named = Named { process: who.pid, name: String::new() };
        self.lives.push(Life {
            who,
            named,
            state,
            open: None,
            runs: Vec::new(),
            used_ns: 0,
            waking: None,
            end: End::Cut,
            ended_ns: 0,
        });
        self.alive.insert(who, self.lives.len() - 1);
        self.lives.len() - 1
    }

    /// Changes a thread's state. All changes go through here.
    fn enter(&mut self, life: usize, state: State) {
        let waits = |state: State| matches!(state, State::Runnable { .. });
        match [self.lives[life].state, state].map(waits) {
            [false, true] => self.interference.begin_wait(),
            [true, false] => self.interference.end_wait(),
            _ => {}
        }
        self.lives[life].state = state;
    }

    /// Opens a run: a blocked thread becomes runnable.
    fn open(&mut self, at: usize, now: u64, woken_ns: Option<u64>, waker: Option<Waker>) {
        let life = &mut self.lives[at];
        let at_ns = now.max(life.ended_ns);
        let blocked_ns = (!life.runs.is_empty()).then_some(at_ns - life.ended_ns);
        life.open = Some(Run { at_ns, waker, blocked_ns, ..Run::default() });
        life.waking = None;
        self.enter(at, State::Runnable { woken_ns });
    }

    /// Starts a run: a runnable thread gets a CPU.
    fn start(&mut self, at: usize, cpu: Option<u16>, now: u64) {
        let life = &mut self.lives[at];
        if let State::Runnable { woken_ns: Some(since) } = life.state
            && let Some(run) = &mut life.open
        {
            run.waited_ns = Some(now.saturating_sub(since));
        }
        self.enter(at, State::Running { since_ns: now, seen_ns: now, cpu });
    }

    /// Records that a running thread has left its CPU at an unknown time before now.
    fn stop(&mut self, life: usize) {
        if let State::Running { since_ns, seen_ns, .. } = self.lives[life].state {
            self.charge(life, seen_ns - since_ns);
            self.enter(life, State::Runnable { woken_ns: None });
        }
    }

    fn charge(&mut self, life: usize, span_ns: u64) {
        let life = &mut self.lives[life];
        if let Some(run) = &mut life.open {
            run.cpu_ns += span_ns;
            life.used_ns += span_ns;
        }
    }

    /// Ends the current run. A run with neither CPU time nor an observed wait for a CPU is dropped.
    fn close(&mut self, life: usize, now: u64, end: End) {
        let life = &mut self.lives[life];
        if let Some(run) = life.open.take()
            && (run.cpu_ns > 0 || run.waited_ns.is_some())
        {
            life.runs.push(run);
            (life.end, life.ended_ns) = (end, now.max(run.at_ns));
            self.runs += 1;
        }
    }

    /// This thread as a waker: it runs on `cpu`, even if its start there was not seen.
    fn waker(&mut self, who: Who, cpu: u16, now: u64) -> Option<Waker> {
        let thread = *self.alive.get(&who)?;
        if !matches!(self.lives[thread].state, State::Running { .. }) {
            self.repaired += 1;
            self.vacate(cpu, None);
            match self.lives[thread].state {
                // How long it waited is unknown.
                State::Runnable { .. } => self.enter(thread, State::Runnable { woken_ns: None }),
                _ => {
                    let waker = self.lives[thread].waking.take();
                    self.open(thread, now, None, waker);
                }
            }
            self.start(thread, Some(cpu), now);
            self.cpus.insert(cpu, thread);
        }
        let life = &mut self.lives[thread];
        let State::Running { since_ns, seen_ns, .. } = &mut life.state else { return None };
        *seen_ns = now.max(*seen_ns);
        Some(Waker { thread: thread as u32, cpu_ns: life.used_ns + *seen_ns - *since_ns })
    }
}

#[cfg(test)]
mod tests;
