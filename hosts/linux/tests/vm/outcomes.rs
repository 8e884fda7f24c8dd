//! Provokes every code that the BPF program can answer, one by one.

use std::collections::BTreeSet;

use wave_core::clock::Nanos;
use wave_core::message::{Decision, FLAG_ATOMIC, Sequence, Subject};
use wave_core::outcome::Code;
use wave_linux::sched::{ANSWERS, Enclave};
use wave_sched::wire::Kind;

use crate::enclaves::two as two_enclaves;
use crate::hand::{Hand, Hog, Puppet};
use crate::processes::{
    Agent, agents_cpu, alone, count, finish, is_well, online, start, wait_for, work,
};

/// A CPU may go offline or come back slowly, while a thread waits for the test's decision. The kernel's own patience is 30 s.
const LONG_PATIENCE: Nanos = Nanos::from_millis(20_000);
/// The host looks after its cores four times within an enclave's patience, and the kernel gives a waiting class a share of each
/// second: with a longer patience, that share would come before the host's refusal.
const SHORT_PATIENCE: Nanos = Nanos::from_millis(4 * 400);

/// Wakes a thread, and returns the subject by which the agent knows it.
fn wake_new(hand: &mut Hand, puppet: &Puppet) -> Subject {
    let known: BTreeSet<Subject> = hand.threads.keys().copied().collect();
    puppet.wake();
    hand.wait_for("a new thread", |hand| hand.threads.len() > known.len());
    *hand.threads.keys().find(|subject| !known.contains(subject)).unwrap()
}

/// The codes that the agent was told, as often as the host counted them.
fn provoked(enclave: &Enclave, hand: &Hand) -> BTreeSet<&'static str> {
    let stats = enclave.stats();
    assert_eq!((stats.lost_agents, &stats.turned_out), (0, &None), "{stats:?}");
    for code in Code::ALL {
        assert_eq!(count(&stats, *code), hand.told.get(*code), "{code:?}: {stats:?}");
    }
    Code::ALL.iter().filter(|code| hand.told.get(**code) > 0).map(|code| code.name()).collect()
}

#[test]
fn every_outcome_is_provoked_told_and_counted() {
    let Some(_alone) = alone() else { return };
    agents_cpu();
    let enclave = start(|options| options.config.patience = LONG_PATIENCE);
    let mut hand = Hand::attach(&enclave);
    let puppet = Puppet::new();
    let subject = wake_new(&mut hand, &puppet);
    type Spoil = fn(&mut Decision);
    let wrong: [(Spoil, Code); 5] = [
        (|it| it.sequence = Sequence(it.sequence.0.wrapping_sub(1)), Code::TargetStale),
        (|it| it.subject.generation += 1, Code::TargetNotFound),
        (|it| it.flags = FLAG_ATOMIC, Code::Unsupported),
        (|it| it.flags = 1 << 7, Code::InvalidFlags),
        (|it| it.kind += 1, Code::UnsupportedVersion),
    ];
    for (spoil, code) in wrong {
        let mut decision = hand.right(subject);
        spoil(&mut decision);
        assert_eq!(hand.decide(0, decision), code, "{decision:?}");
        // On a slow machine, all of them would together take longer than the host waits for a thread.
        assert_eq!(hand.decide(0, hand.right(subject)), Code::Complete);
        puppet.rest();
        hand.hears(Kind::Blocked, subject);
        puppet.wake();
        hand.hears(Kind::Wakeup, subject);
    }
    let right = hand.right(subject);
    assert_eq!(hand.decide(0, right), Code::Complete);
    assert_eq!(hand.decide(1, right), Code::TargetOnCpu);
    puppet.rest();
    hand.hears(Kind::Blocked, subject);
    assert_eq!(hand.decide(0, hand.right(subject)), Code::TargetNotRunnable);

    // The thread's affinity shrinks between the decision and the core's look at it.
    puppet.wake();
    hand.hears(Kind::Wakeup, subject);
    let decided = hand.right(subject);
    puppet.pin(0);
    hand.hears(Kind::Departed, subject);
    assert_eq!(hand.decide(1, decided), Code::Affinity);
    // The host itself now runs the thread.
    drop(puppet);

    // A decision is left for a core that runs a thread and goes offline: the kernel first takes its threads away.
    let [runs, waits, last] = [(); 3].map(|()| Puppet::new());
    let running = wake_new(&mut hand, &runs);
    assert_eq!(hand.decide(1, hand.right(running)), Code::Complete);
    let waiting = wake_new(&mut hand, &waits);
    hand.leave(1, hand.right(waiting));
    // Wherever the thread runs, it soon sleeps.
    waits.rest();
    online(1, false);
    hand.hears(Kind::Preempt, running);
    assert_eq!(hand.decide(0, hand.right(running)), Code::Complete);
    let staged = hand.answer(1);
    // While the kernel takes the core away, a thread of a higher class has it.
    let answers = [Code::Complete, Code::CpuOffline, Code::CpuUnavailable];
    assert!(answers.contains(&staged), "{staged:?}");
    hand.lets_rest(2, waiting);
    // Decisions are left for the offline core, without and with a ring.
    let waiting = wake_new(&mut hand, &last);
    hand.leave(1, hand.right(waiting));
    assert_eq!(hand.answer(1), Code::CpuOffline);
    assert_eq!(hand.decide(1, hand.right(waiting)), Code::CpuOffline);
    assert!(!hand.asks[1]);
    online(1, true);
    hand.wait_for("a core that is back", |hand| hand.asks[1]);
    let mut provoked = provoked(&enclave, &hand);
    // Without an agent, the host lets the threads run to their end.
    drop((hand, last, runs, waits, enclave));

    // A decision is left for a core that another program occupies.
    let enclave = start(|options| options.config.patience = SHORT_PATIENCE);
    let mut hand = Hand::attach(&enclave);
    let puppet = Puppet::new();
    let hog = Hog::on(2);
    let subject = wake_new(&mut hand, &puppet);
    assert_eq!(hand.try_to(2, hand.right(subject)), Code::CpuUnavailable);
    drop(hog);
    hand.wait_for("a core that is free again", |hand| hand.asks[2]);
    assert_eq!(hand.decide(2, hand.right(subject)), Code::Complete);
    provoked.extend(self::provoked(&enclave, &hand));
    drop((hand, puppet, enclave));

    // A thread of another enclave.
    let (first, second) = two_enclaves();
    let (mut theirs, mut hand) = (Hand::attach(&first), Hand::attach(&second));
    let puppet = Puppet::new();
    let subject = wake_new(&mut theirs, &puppet);
    assert_eq!(hand.decide(0, theirs.right(subject)), Code::NotPermitted);
    assert_eq!(theirs.decide(0, theirs.right(subject)), Code::Complete);
    assert_eq!(count(&second.stats(), Code::NotPermitted), 1);
    provoked.insert(Code::NotPermitted.name());
    assert_eq!(BTreeSet::from(ANSWERS.map(Code::name)), provoked);
    drop(theirs);
}

/// An agent that attaches meanwhile must not believe that these cores ask.
#[test]
fn offline_and_occupied_cores_delay_no_thread() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|_| {});
    for _ in 0..2 {
        let hog = Hog::on(0);
        online(1, false);
        let agent = Agent::start(&enclave, "fifo");
        finish(work(6, 32));
        online(1, true);
        drop(hog);
        finish(work(6, 32));
        let lost = enclave.stats().lost_agents;
        drop(agent);
        wait_for("the fallback", || enclave.stats().lost_agents > lost);
    }
    let stats = is_well(&enclave);
    assert_eq!((stats.lost_agents, stats.barks), (2, 0), "{stats:?}");
}
