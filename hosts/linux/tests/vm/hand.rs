//! A hand-driven agent: the test sees each message, and makes each decision, right or wrong.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Channel, Sender as Wire, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use wave_agent::{Attached, attach};
use wave_core::control::Revoked;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{AGENT_READY, PROTOCOL_VERSION};
use wave_core::link::{Doorbell, Home, Port, Side, Window};
use wave_core::message::{Decision, KIND_CORE, Sequence, Subject, TxnId, Upstream};
use wave_core::outcome::{Code, Counts};
use wave_linux::sched::{self, Enclave};
use wave_sched::wire::{DECISION_RUN, Event, Kind};

use crate::processes::{cpus, wait_for};

/// Kind and sequence of a thread's last message.
pub type Known = (Kind, Sequence);

pub struct Hand {
    attached: Attached,
    messages: Vec<Receiver>,
    decisions: Vec<Sender>,
    /// For each core: the last decision made, and the last one answered, with its code.
    made: Vec<TxnId>,
    answered: Vec<(TxnId, Code)>,
    /// For each core: whether it asks.
    pub asks: Vec<bool>,
    pub threads: HashMap<Subject, Known>,
    /// Counts of all outcomes received.
    pub told: Counts,
}

impl Hand {
    /// Attaches, and waits until every core uses the window.
    pub fn attach(enclave: &Enclave) -> Hand {
        let attached = attach(enclave.socket()).unwrap();
        let layout = &attached.layout;
        let cores = usize::from(layout.config.cores);
        let nic = attached.port.window(Home::Nic);
        nic.store(layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
        nic.fence();
        attached.host_bells[layout.control_vector()].ring();
        let mut hand = Hand {
            messages: layout.messages.iter().map(|at| Receiver::new(at, Side::Agent)).collect(),
            decisions: layout.decisions.iter().map(|at| Sender::new(at, Side::Agent)).collect(),
            made: vec![TxnId::new(0); cores],
            answered: vec![(TxnId::new(0), Code::Complete); cores],
            asks: vec![false; cores],
            threads: HashMap::new(),
            told: Counts::default(),
            attached,
        };
        hand.wait_for("every core's request", |hand| hand.asks.iter().all(|asks| *asks));
        hand
    }

    /// Listens until `condition` holds.
    pub fn wait_for(&mut self, what: &str, mut condition: impl FnMut(&Hand) -> bool) {
        wait_for(what, || {
            self.listen();
            let is_there = condition(self);
            assert!(
                is_there || self.revoked().is_none(),
                "{:?} while the agent waited for {what}",
                self.revoked()
            );
            is_there
        });
    }

    /// Why the host has told this agent to leave.
    fn revoked(&self) -> Option<Revoked> {
        let nic = self.attached.port.window(Home::Nic);
        Revoked::from_word(nic.load(self.attached.layout.incarnation, 0)).unwrap()
    }

    fn listen(&mut self) {
        for context in 0..self.messages.len() {
            while let Some(entry) = self.messages[context].pop(&self.attached.port).unwrap() {
                let entry = Upstream::decode(&entry).unwrap();
                if let Some(message) = entry.message.filter(|message| message.kind < KIND_CORE) {
                    let event = Event::from_message(&message).unwrap();
                    let known = self.threads.insert(event.thread, (event.kind, event.sequence));
                    // Messages from several contexts may arrive in any order.
                    if let Some(known) = known.filter(|known| known.1.ahead_of(event.sequence) > 0)
                    {
                        self.threads.insert(event.thread, known);
                    }
                }
                if let Some(outcome) = entry.outcome {
                    self.told.add(outcome.code);
                    self.answered[context] = (outcome.txn, outcome.code);
                    self.asks[context] = false;
                }
                if let Some(asks) = self.asks.get_mut(context) {
                    *asks |= entry.asks;
                }
            }
        }
    }

    /// Leaves a decision for a core without ringing.
    pub fn leave(&mut self, core: usize, decision: Decision) {
        self.made[core] = self.made[core].next();
        let (tag, words) = Decision { txn: self.made[core], ..decision }.encode();
        let queue = &mut self.decisions[core];
        queue.push(&self.attached.port, tag, &words).unwrap();
        queue.fence(&self.attached.port);
    }

    /// Waits for the outcome of the last decision for a core.
    pub fn answer(&mut self, core: usize) -> Code {
        let made = self.made[core];
        self.wait_for("an outcome", |hand| hand.answered[core].0 == made);
        self.answered[core].1
    }

    /// Leaves a decision for a core, rings, and waits for the outcome.
    pub fn try_to(&mut self, core: usize, decision: Decision) -> Code {
        self.leave(core, decision);
        self.attached.host_bells[core].ring();
        self.answer(core)
    }

    /// As [`Hand::try_to`], repeated while a kernel thread has the core.
    pub fn decide(&mut self, core: usize, decision: Decision) -> Code {
        loop {
            match self.try_to(core, decision) {
                Code::CpuUnavailable => self.wait_for("a core", |hand| hand.asks[core]),
                code => return code,
            }
        }
    }

    /// The right decision about a thread, according to its last message.
    pub fn right(&self, subject: Subject) -> Decision {
        let sequence = self.threads[&subject].1;
        Decision { kind: DECISION_RUN, subject, sequence, ..Decision::default() }
    }

    /// Decides until a thread that was told to rest sleeps, wherever it is by now.
    pub fn lets_rest(&mut self, core: usize, subject: Subject) {
        self.wait_for("its rest", |hand| hand.threads.contains_key(&subject));
        while self.threads[&subject].0 != Kind::Blocked {
            self.decide(core, self.right(subject));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a message about a thread.
    pub fn hears(&mut self, kind: Kind, subject: Subject) {
        self.wait_for("a message", |hand| hand.threads[&subject].0 == kind);
    }
}

/// A thread of the enclave that sleeps or spins, as the test asks.
pub struct Puppet {
    pub tid: i32,
    wire: Option<Wire<()>>,
    rests: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Puppet {
    /// Starts the thread asleep, before any agent has heard of it.
    pub fn new() -> Puppet {
        let (wire, told): (Wire<()>, Channel<()>) = channel();
        let (here, joined) = channel();
        let rests = Arc::new(AtomicBool::new(false));
        let body = {
            let rests = Arc::clone(&rests);
            move || {
                // SAFETY: a system call that only reads this thread's id.
                here.send(unsafe { libc::gettid() }).unwrap();
                wave_process::cpus::pin(&cpus()).unwrap();
                sched::join(0).unwrap();
                while told.recv().is_ok() {
                    while !rests.load(Ordering::SeqCst) {
                        std::hint::spin_loop();
                    }
                }
            }
        };
        let thread = std::thread::spawn(body);
        let tid = joined.recv().unwrap();
        let puppet = Puppet { tid, wire: Some(wire), rests, thread: Some(thread) };
        wait_for("a thread that sleeps", || {
            let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
            let state = status.rsplit(") ").next().unwrap_or_default().to_owned();
            let policy = state.split(' ').nth(38).unwrap_or_default();
            state.starts_with('S') && policy == sched::SCHED_EXT.to_string()
        });
        puppet
    }

    /// Wakes the thread. Once an agent lets it run, it spins until [`Puppet::rest`].
    pub fn wake(&self) {
        self.rests.store(false, Ordering::SeqCst);
        self.wire.as_ref().unwrap().send(()).unwrap();
    }

    /// Makes the thread sleep again as soon as it runs.
    pub fn rest(&self) {
        self.rests.store(true, Ordering::SeqCst);
    }

    /// Restricts the thread to one CPU.
    pub fn pin(&self, cpu: usize) {
        let mut command = Command::new("taskset");
        command.args(["-cp", &cpu.to_string(), &self.tid.to_string()]).stdout(Stdio::null());
        assert!(command.status().unwrap().success());
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // Once it runs, the thread ends without sleeping again.
        drop(self.wire.take());
        self.rest();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A thread outside the enclave that never leaves a CPU.
pub struct Hog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hog {
    pub fn on(cpu: usize) -> Hog {
        let stop = Arc::new(AtomicBool::new(false));
        let spins = Arc::new(AtomicBool::new(false));
        let body = {
            let (stop, spins) = (Arc::clone(&stop), Arc::clone(&spins));
            move || {
                wave_process::cpus::pin(&[cpu]).unwrap();
                spins.store(true, Ordering::SeqCst);
                while !stop.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
            }
        };
        let thread = Some(std::thread::spawn(body));
        wait_for("the hog", || spins.load(Ordering::SeqCst));
        Hog { stop, thread }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
