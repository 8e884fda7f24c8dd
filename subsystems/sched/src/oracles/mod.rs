//! What scheduling would give if it cost nothing: queues with `c` servers, without agents, links or switches. A policy under
//! load is compared with these; no policy of the same kind can do better.
//!
//! Each is a state machine of jobs: report arrivals in order of time, and take completions as they come due. Ids are the
//! caller's. An event costs logarithmic time in the number of jobs, except for [`RoundRobin`].
//!
//! Unlike a policy these may allocate at any time: they run beside an experiment, not in an agent.

use alloc::collections::{BTreeSet, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use wave_core::clock::Nanos;

/// A queue with several servers.
pub trait Oracle {
    /// A job arrives that needs a server for `service`. Panics if the completion of a job was due before `now` and has not been
    /// taken.
    fn arrive(&mut self, now: Nanos, id: u64, service: Nanos);

    /// The job that completes next if nothing arrives before, and its completion time. Of two that complete at the same time,
    /// the earlier arrival.
    fn next_completion(&self) -> Option<(Nanos, u64)>;

    /// Takes the job that completes next.
    fn complete(&mut self) -> Option<(Nanos, u64)>;

    /// Takes the job that completes next, if it completes by `now`.
    fn complete_by(&mut self, now: Nanos) -> Option<(Nanos, u64)> {
        self.next_completion().filter(|(at, _)| *at <= now)?;
        self.complete()
    }

    /// Number of jobs, served or waiting.
    fn len(&self) -> usize;

    /// Whether there are no jobs.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn check_order(oracle: &impl Oracle, now: Nanos) {
    let due = oracle.next_completion();
    assert!(
        due.is_none_or(|(at, _)| at >= now),
        "the caller's fault: the completion due at {due:?} has not been taken at {now:?}"
    );
}

/// Fractions of a nanosecond.
const FRACTION_BITS: u32 = 32;

fn exact(time: Nanos) -> u128 {
    u128::from(time.0) << FRACTION_BITS
}

fn rounded_up(time: u128) -> Nanos {
    Nanos(time.div_ceil(1 << FRACTION_BITS) as u64)
}

/// Processor sharing: of `n` jobs on `c` servers each gets `min(1, c/n)` of a server, always.
///
/// Virtual time is the service received by a job that was there from the start. All jobs receive the same, so a job completes
/// when virtual time has grown by its service since its arrival, and jobs complete in the order of that sum. Times are exact to
/// 2^-32 ns, and rounded up to the nanosecond when returned; no work is ever lost to rounding.
#[derive(Clone, Debug)]
pub struct ProcessorSharing {
    servers: u128,
    now: u128,
    virtual_now: u128,
    /// Work done, but too little to be divided among the jobs.
    undivided: u128,
    /// By the virtual time of each job's completion, then by arrival.
    jobs: BinaryHeap<Reverse<(u128, u64, u64)>>,
    arrivals: u64,
}

impl ProcessorSharing {
    /// A queue with `servers` servers, at least one.
    pub fn new(servers: u32) -> ProcessorSharing {
        assert!(servers > 0, "caller's fault: no servers");
        ProcessorSharing {
            servers: servers.into(),
            now: 0,
            virtual_now: 0,
            undivided: 0,
            jobs: BinaryHeap::new(),
            arrivals: 0,
        }
    }

    /// Number of jobs, and number of busy servers.
    fn load(&self) -> (u128, u128) {
        let jobs = self.jobs.len() as u128;
        (jobs, jobs.min(self.servers))
    }

    fn next(&self) -> Option<(u128, u64)> {
        let Reverse((virtual_end, _, id)) = self.jobs.peek()?;
        let (jobs, busy) = self.load();
        let left = virtual_end.saturating_sub(self.virtual_now) * jobs;
        Some((self.now + left.saturating_sub(self.undivided).div_ceil(busy), *id))
    }

    fn advance(&mut self, now: u128) {
        if self.jobs.is_empty() {
            self.undivided = 0;
        } else {
            let (jobs, busy) = self.load();
            let work = (now - self.now) * busy + self.undivided;
            self.virtual_now += work / jobs;
            self.undivided = work % jobs;
        }
        self.now = now;
    }
}

impl Oracle for ProcessorSharing {
    fn arrive(&mut self, now: Nanos, id: u64, service: Nanos) {
        check_order(self, now);
        self.advance(exact(now).max(self.now));
        self.jobs.push(Reverse((self.virtual_now + exact(service), self.arrivals, id)));
        self.arrivals += 1;
    }

    fn next_completion(&self) -> Option<(Nanos, u64)> {
        self.next().map(|(at, id)| (rounded_up(at), id))
    }

    fn complete(&mut self) -> Option<(Nanos, u64)> {
        let (at, id) = self.next()?;
        self.advance(at);
        self.jobs.pop();
        Some((rounded_up(at), id))
    }

    fn len(&self) -> usize {
        self.jobs.len()
    }
}

/// Shortest remaining processing time first, preemptive: always the `c` jobs that need least. On one server no policy has a
/// smaller mean time in the system (Schrage 1968).
#[derive(Clone, Debug)]
pub struct Srpt {
    servers: usize,
    /// By completion time, then by arrival.
    served: BTreeSet<(Nanos, u64, u64)>,
    /// By remaining service, then by arrival.
    waiting: BinaryHeap<Reverse<(Nanos, u64, u64)>>,
    arrivals: u64,
}

impl Srpt {
    /// A queue with `servers` servers, at least one.
    pub fn new(servers: u32) -> Srpt {
        assert!(servers > 0, "caller's fault: no servers");
        Srpt {
            servers: servers as usize,
            served: BTreeSet::new(),
            waiting: BinaryHeap::new(),
            arrivals: 0,
        }
    }
}

impl Oracle for Srpt {
    fn arrive(&mut self, now: Nanos, id: u64, service: Nanos) {
        check_order(self, now);
        let ticket = self.arrivals;
        self.arrivals += 1;
        let longest = self.served.last().copied().filter(|_| self.served.len() == self.servers);
        match longest {
            Some(longest @ (end, ticket_of_longest, id_of_longest)) if end > now + service => {
                self.served.remove(&longest);
                self.waiting.push(Reverse((end.since(now), ticket_of_longest, id_of_longest)));
            }
            Some(_) => return self.waiting.push(Reverse((service, ticket, id))),
            None => {}
        }
        self.served.insert((now + service, ticket, id));
    }

    fn next_completion(&self) -> Option<(Nanos, u64)> {
        self.served.first().map(|(end, _, id)| (*end, *id))
    }

    fn complete(&mut self) -> Option<(Nanos, u64)> {
        let (now, _, id) = self.served.pop_first()?;
        if let Some(Reverse((left, ticket, next))) = self.waiting.pop() {
            self.served.insert((now + left, ticket, next));
        }
        Some((now, id))
    }

    fn len(&self) -> usize {
        self.served.len() + self.waiting.len()
    }
}

/// First in, first out, each job to completion on one of `c` servers.
#[derive(Clone, Debug)]
pub struct FirstInFirstOut {
    servers: usize,
    /// By completion time, then by arrival.
    served: BinaryHeap<Reverse<(Nanos, u64, u64)>>,
    waiting: VecDeque<(Nanos, u64, u64)>,
    arrivals: u64,
}

impl FirstInFirstOut {
    /// A queue with `servers` servers, at least one.
    pub fn new(servers: u32) -> FirstInFirstOut {
        assert!(servers > 0, "caller's fault: no servers");
        FirstInFirstOut {
            servers: servers as usize,
            served: BinaryHeap::new(),
            waiting: VecDeque::new(),
            arrivals: 0,
        }
    }
}

impl Oracle for FirstInFirstOut {
    fn arrive(&mut self, now: Nanos, id: u64, service: Nanos) {
        check_order(self, now);
        let ticket = self.arrivals;
        self.arrivals += 1;
        if self.served.len() < self.servers {
            self.served.push(Reverse((now + service, ticket, id)));
        } else {
            self.waiting.push_back((service, ticket, id));
        }
    }

    fn next_completion(&self) -> Option<(Nanos, u64)> {
        self.served.peek().map(|Reverse((end, _, id))| (*end, *id))
    }

    fn complete(&mut self) -> Option<(Nanos, u64)> {
        let Reverse((now, _, id)) = self.served.pop()?;
        if let Some((service, ticket, next)) = self.waiting.pop_front() {
            self.served.push(Reverse((now + service, ticket, next)));
        }
        Some((now, id))
    }

    fn len(&self) -> usize {
        self.served.len() + self.waiting.len()
    }
}

/// Slices that cost nothing: a job that has been served for a quantum goes to the end of the queue if another waits, or as soon
/// as one does; it may continue on any server. The limit of a policy with such slices when switches, links and agents are free.
///
/// Each slice is an event, which costs linear time in the number of servers. [`Oracle::complete_by`] handles those up to its
/// time; [`Oracle::next_completion`] runs all slices until then, on a copy.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    servers: usize,
    quantum: Nanos,
    /// In the order in which they got a server.
    served: Vec<Slice>,
    /// Remaining service, place among arrivals, id.
    waiting: VecDeque<(Nanos, u64, u64)>,
    arrivals: u64,
}

#[derive(Clone, Debug)]
struct Slice {
    /// When its quantum ends.
    over: Nanos,
    /// When it completes, if it keeps its server.
    end: Nanos,
    ticket: u64,
    id: u64,
}

impl RoundRobin {
    /// A queue with `servers` servers and slices of `quantum`; both must be more than zero.
    pub fn new(servers: u32, quantum: Nanos) -> RoundRobin {
        assert!(servers > 0, "caller's fault: no servers");
        assert!(quantum > Nanos(0), "the caller's fault: slices of length zero");
        RoundRobin {
            servers: servers as usize,
            quantum,
            served: Vec::with_capacity(servers as usize),
            waiting: VecDeque::new(),
            arrivals: 0,
        }
    }

    fn serve(&mut self, now: Nanos, (left, ticket, id): (Nanos, u64, u64)) {
        self.served.push(Slice { over: now + self.quantum, end: now + left, ticket, id });
    }

    /// The server whose job completes next, or must next make room for a waiting one. At the same time, completions come first,
    /// by arrival; then the job that got its server first.
    fn next_event(&self) -> Option<(Nanos, usize)> {
        let others_wait = !self.waiting.is_empty();
        let order = |index: usize, job: &Slice| match others_wait && job.over < job.end {
            true => (job.over, true, index as u64),
            false => (job.end, false, job.ticket),
        };
        let served = self.served.iter().enumerate();
        let first = served.min_by_key(|(index, job)| order(*index, job));
        first.map(|(index, job)| (order(index, job).0, index))
    }

    /// The job on a server makes room for the first waiting job.
    fn rotate(&mut self, now: Nanos, index: usize) {
        let job = self.served.remove(index);
        self.waiting.push_back((job.end.since(now), job.ticket, job.id));
        self.serve_next(now);
    }

    fn serve_next(&mut self, now: Nanos) {
        if let Some(next) = self.waiting.pop_front() {
            self.serve(now, next);
        }
    }
}

impl Oracle for RoundRobin {
    fn arrive(&mut self, now: Nanos, id: u64, service: Nanos) {
        while let Some((at, index)) = self.next_event().filter(|(at, _)| *at <= now) {
            if at == self.served[index].end {
                check_order(self, now);
                break;
            }
            self.rotate(at, index);
        }
        let job = (service, self.arrivals, id);
        self.arrivals += 1;
        if self.served.len() < self.servers {
            return self.serve(now, job);
        }
        self.waiting.push_back(job);
        // Jobs whose slices ended while no job waited.
        while let Some(index) = self.served.iter().position(|job| job.over < now) {
            self.rotate(now, index);
        }
    }

    fn next_completion(&self) -> Option<(Nanos, u64)> {
        self.clone().complete()
    }

    fn complete(&mut self) -> Option<(Nanos, u64)> {
        self.complete_by(Nanos(u64::MAX))
    }

    fn complete_by(&mut self, now: Nanos) -> Option<(Nanos, u64)> {
        loop {
            let (at, index) = self.next_event().filter(|(at, _)| *at <= now)?;
            if at < self.served[index].end {
                self.rotate(at, index);
                continue;
            }
            let job = self.served.remove(index);
            self.serve_next(at);
            return Some((at, job.id));
        }
    }

    fn len(&self) -> usize {
        self.served.len() + self.waiting.len()
    }
}

#[cfg(test)]
mod tests;
