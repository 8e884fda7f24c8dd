//! The report of an agent that the watchdog has turned out: policy, thread, idle core, and how often the policy was
//! asked.

mod common;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};

use common::{agent, start, wait_for};
use wave_agent::{Exit, Stall};
use wave_core::clock::Nanos;
use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};

/// Much longer than a busy machine keeps a thread from its CPU.
const PATIENCE: Nanos = Nanos::from_millis(1_000);

/// Runs threads of class 0 only.
#[derive(Default)]
struct LeavesOthers(VecDeque<Thread>);

impl Scheduler for LeavesOthers {
    fn ready(&mut self, thread: Thread) {
        if thread.class() == 0 {
            self.0.push_back(thread);
        }
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.0.pop_front().map(Run::to_completion)
    }
}

/// Does not return from its first call of `ready` before it is told to.
struct Hangs(Receiver<()>);

impl Scheduler for Hangs {
    fn ready(&mut self, _thread: Thread) {
        self.0.recv().unwrap();
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        None
    }
}

fn stall(agent: common::Agent) -> Stall {
    match agent.join().unwrap().unwrap() {
        Exit::Starved(stall) => stall,
        exit => panic!("the host does not say which thread waits: {exit:?}"),
    }
}

#[test]
fn a_policy_that_leaves_a_thread_waiting_is_named_with_the_thread_and_the_idle_core() {
    let enclave = start("leaves", |options| options.config.patience = PATIENCE);
    let agent = agent(&enclave, |config| Box::new(Scheduled::of(config, LeavesOthers::default())));
    enclave.spawn(0, || ()).unwrap().join().unwrap();
    let left = enclave.spawn(1, || ()).unwrap();
    wait_for("the watchdog", || enclave.stats().barks == 1);
    let stall = stall(agent);
    left.join().unwrap();
    let Stall { starved, service, .. } = stall;
    assert!(starved.waited >= PATIENCE, "{stall:?}");
    assert!(service.asked > 0 && service.made == 0, "{stall:?}");
    let (thread, core) = (starved.subject.id, starved.core);
    let text = stall.about("leaves");
    assert!(
        text.starts_with(&format!("policy `leaves` left thread {thread} waiting for ")),
        "{text}"
    );
    let asked = match service.asked {
        1 => "once".into(),
        asked => format!("{asked} times"),
    };
    let end = format!(
        "beside idle core {core}; since that core is idle the policy was asked {asked}, and chose no thread for it"
    );
    assert!(text.ends_with(&end), "{text}");
}

#[test]
fn an_agent_that_was_held_up_says_so_and_does_not_claim_a_choice_of_the_policy() {
    let enclave = start("hangs", |options| options.config.patience = PATIENCE);
    let (release, hold) = channel();
    let agent = agent(&enclave, |config| Box::new(Scheduled::of(config, Hangs(hold))));
    let waits = enclave.spawn(0, || ()).unwrap();
    wait_for("the watchdog", || enclave.stats().barks == 1);
    release.send(()).unwrap();
    let stall = stall(agent);
    waits.join().unwrap();
    let text = stall.about("hangs");
    assert!(text.contains("the agent's last turn took"), "{text}");
    assert!(text.contains("a call of policy `hangs` took that long"), "{text}");
}
