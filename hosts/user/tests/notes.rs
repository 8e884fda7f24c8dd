//! Threads that await requests, which a front of the agent announces by notes.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::{start, sum, wait_for};
use wave_agent::{Attached, attach};
use wave_core::agent::{Agent, Front, Step};
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_core::note::Request;
use wave_core::policy::{Note, Progress};
use wave_sched::policies::by_name;
use wave_user::{Enclave, JoinHandle, await_note, current};

const WORKERS: usize = 6;

/// The queues between a front and its workers; requests are only counted.
#[derive(Default)]
struct Requests {
    /// Number of requests that the front still has to send.
    wanted: AtomicU64,
    /// Whether requests are sent without notes, as if the notes had been lost with the agent.
    without_notes: AtomicBool,
    sent: [AtomicU64; WORKERS],
    served: [AtomicU64; WORKERS],
    /// How often a worker found no request.
    looks: AtomicU64,
    workers: Mutex<Vec<(usize, Subject)>>,
    stop: AtomicBool,
}

impl Requests {
    fn all(counts: &[AtomicU64; WORKERS]) -> u64 {
        counts.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    fn send(&self, count: u64) {
        self.wanted.fetch_add(count, Ordering::SeqCst);
    }

    fn wait(&self) {
        wait_for("every request's service", || {
            self.wanted.load(Ordering::SeqCst) == 0
                && Requests::all(&self.sent) == Requests::all(&self.served)
        });
    }

    /// Serves requests as a worker's thread.
    fn serve(&self, at: usize) {
        let thread = current().unwrap().subject();
        self.workers.lock().unwrap().push((at, thread));
        while !self.stop.load(Ordering::SeqCst) {
            let sent = self.sent[at].load(Ordering::SeqCst);
            if self.served[at].swap(sent, Ordering::SeqCst) == sent {
                self.looks.fetch_add(1, Ordering::SeqCst);
                await_note();
            }
        }
    }
}

struct Sender(Arc<Requests>, usize);

impl Front for Sender {
    fn poll(&mut self, _now: Nanos, notes: &mut Vec<Note>) -> Progress {
        let Sender(requests, turn) = self;
        let workers = requests.workers.lock().unwrap();
        if requests.wanted.load(Ordering::SeqCst) == 0 || workers.len() < WORKERS {
            return Progress::Done;
        }
        *turn += 1;
        let (at, thread) = workers[*turn % WORKERS];
        requests.sent[at].fetch_add(1, Ordering::SeqCst);
        if !requests.without_notes.load(Ordering::SeqCst) {
            notes.push(Request { thread, class: 0, slo: None }.to_note());
        }
        requests.wanted.fetch_sub(1, Ordering::SeqCst);
        Progress::More
    }
}

type Running = std::thread::JoinHandle<()>;

/// Attaches an agent whose front sends the requests that the test asks for.
fn agent(enclave: &Enclave, policy: &'static str, requests: &Arc<Requests>) -> Running {
    let attached = attach(enclave.socket()).unwrap();
    let front = Sender(Arc::clone(requests), 0);
    let agents = enclave.stats().agents;
    let running = std::thread::spawn(move || {
        let Attached { layout, port, host_bells, connection, .. } = attached;
        let policy = by_name(policy, &layout.config).unwrap();
        let mut agent = Agent::with_front(layout, port, host_bells, policy, (), front);
        agent.announce();
        let start = Instant::now();
        loop {
            let step = agent.step(Nanos(start.elapsed().as_nanos() as u64)).unwrap();
            if step == Step::Revoked || connection.hung_up() {
                return;
            }
            std::thread::yield_now();
        }
    });
    wait_for("the agent", || enclave.stats().agents > agents);
    running
}

fn workers(enclave: &Enclave, requests: &Arc<Requests>) -> Vec<JoinHandle<()>> {
    let spawn = |at| {
        let requests = Arc::clone(requests);
        enclave.spawn(0, move || requests.serve(at)).unwrap()
    };
    (0..WORKERS).map(spawn).collect()
}

fn end(enclave: Enclave, requests: &Requests, workers: Vec<JoinHandle<()>>) {
    requests.stop.store(true, Ordering::SeqCst);
    // No note reaches the awaiting threads any more; the host's own queue runs them.
    enclave.kill_agent();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

#[test]
fn each_note_causes_a_run_and_few_runs_happen_without_a_note() {
    for policy in ["fifo", "multi-queue", "shinjuku:slice_us=100"] {
        let name = format!("notes-{}", policy.split(':').next().unwrap());
        let enclave = start(&name, |options| options.config.cores = 2);
        let requests = Arc::new(Requests::default());
        let agent = agent(&enclave, policy, &requests);
        let workers = workers(&enclave, &requests);
        const COUNT: u64 = 300;
        for _ in 0..COUNT {
            requests.send(1);
            requests.wait();
        }
        assert_eq!(Requests::all(&requests.served), COUNT);
        // Each request causes a run, and another if the note came before the thread had awaited. After each
        // snapshot (one per core that switches windows), every thread may run twice.
        let runs = sum(&enclave, |core| core.switches);
        let snapshots = enclave.stats().snapshots;
        assert!(runs <= 2 * COUNT + (1 + 2 * snapshots) * WORKERS as u64, "{policy}: {runs} runs");
        end(enclave, &requests, workers);
        agent.join().unwrap();
    }
}

#[test]
fn no_request_is_lost_when_its_agent_is_replaced_or_killed() {
    let enclave = start("notes-replaced", |options| options.config.cores = 2);
    let requests = Arc::new(Requests::default());
    let mut agents = vec![agent(&enclave, "multi-queue", &requests)];
    let workers = workers(&enclave, &requests);
    for round in 0..30 {
        requests.send(round % 7);
        if round % 2 == 0 {
            requests.wait();
        }
        // Requests whose notes were lost.
        requests.without_notes.store(true, Ordering::SeqCst);
        requests.send(3);
        wait_for("the last requests", || requests.wanted.load(Ordering::SeqCst) == 0);
        requests.without_notes.store(false, Ordering::SeqCst);
        if round % 3 == 0 {
            enclave.kill_agent();
            // Under the host's own queue, the threads find these requests.
            requests.wait();
        }
        agents.push(agent(&enclave, "multi-queue", &requests));
        requests.wait();
    }
    end(enclave, &requests, workers);
    agents.into_iter().for_each(|agent| agent.join().unwrap());
}
