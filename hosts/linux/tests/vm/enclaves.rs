//! Several enclaves at once: trouble in one of them does not affect the others.

use wave_core::clock::Nanos;
use wave_core::outcome::Code;
use wave_linux::sched::{Enclave, Options, Stats};

use crate::processes::{Agent, SUBJECTS, alone, command, count, finish, is_well, socket, wait_for};

/// Two enclaves, of CPU 0 and of CPUs 1 and 2. The agents share the last CPU.
pub fn two() -> (Enclave, Enclave) {
    let options = |name: &str, cpus: &[usize]| {
        let mut options = Options::new(socket(name), cpus.to_vec());
        // An honest agent that shares its CPU with a hostile one may be late on a busy, emulated machine.
        options.config.patience = Nanos::from_millis(30_000);
        options.config.subjects = SUBJECTS;
        options
    };
    let all = vec![options("first", &[0]), options("second", &[1, 2])];
    let mut enclaves = Enclave::start_all(all).unwrap_or_else(|error| panic!("{error}"));
    let second = enclaves.pop().unwrap();
    (enclaves.pop().unwrap(), second)
}

/// Checks that only the enclave's own agent decided, and without refusals that a correct agent does not get.
fn undisturbed(enclave: &Enclave) -> Stats {
    let stats = is_well(enclave);
    assert_eq!((stats.lost_agents, stats.barks, stats.unwatched), (0, 0, 0), "{stats:?}");
    assert_eq!(count(&stats, Code::NotPermitted), 0, "{stats:?}");
    stats
}

fn switches_by_host(stats: &Stats) -> u64 {
    stats.cores.iter().map(|core| core.fallback_switches).sum()
}

#[test]
fn each_enclave_has_its_own_agent_and_counters() {
    let Some(_alone) = alone() else { return };
    let (first, second) = two();
    let _agents = [Agent::start(&first, "fifo"), Agent::start(&second, "round-robin")];
    let work = [first.spawn(command(4, 48)), second.spawn(command(6, 48))];
    for child in work {
        finish(child.unwrap());
    }
    let [first, second] = [undisturbed(&first), undisturbed(&second)];
    assert!(count(&first, Code::Complete) > 4 * 48, "{first:?}");
    assert!(count(&second, Code::Complete) > 6 * 48, "{second:?}");
    assert_eq!((first.cores.len(), second.cores.len()), (1, 2));
    assert_eq!((switches_by_host(&first), switches_by_host(&second)), (0, 0));
}

#[test]
fn a_hostile_agent_and_a_killed_one_disturb_no_other_enclave() {
    let Some(_alone) = alone() else { return };
    let (first, second) = two();
    let _honest = Agent::start(&second, "fifo");
    let victim = first.spawn(command(4, usize::MAX)).unwrap();
    let neighbour = second.spawn(command(6, usize::MAX)).unwrap();
    wait_for("the neighbour", || count(&second.stats(), Code::Complete) > 100);
    // It names threads of both enclaves. The watchdog turns it out occasionally, and it attaches again.
    let mut hostile = None;
    wait_for("refusals as not permitted", || {
        let stats = first.stats();
        if !stats.agent_decides {
            drop(hostile.take());
            hostile = Some(Agent::launch(&first, "hostile::hostile_agent_process", "decisions"));
        }
        count(&stats, Code::NotPermitted) > 20
    });
    drop(hostile);
    // An agent is killed while it decides.
    wait_for("the fallback", || !first.stats().agent_decides);
    let decided = count(&first.stats(), Code::Complete);
    let killed = Agent::start(&first, "fifo");
    wait_for("decisions", || count(&first.stats(), Code::Complete) > decided + 20);
    drop(killed);
    wait_for("the fallback", || !first.stats().agent_decides);
    assert!(first.stats().lost_agents >= 2);
    let before = count(&second.stats(), Code::Complete);
    wait_for("the neighbour", || {
        let stats = second.stats();
        assert_eq!(stats.lost_agents, 0, "{stats:?}");
        count(&stats, Code::Complete) > before + 100
    });
    finish(neighbour);
    let stats = undisturbed(&second);
    assert_eq!(switches_by_host(&stats), 0, "{stats:?}");
    // The host itself finishes the first enclave's work.
    finish(victim);
    wait_for("the end of all threads", || first.stats().threads == 0);
    assert_eq!(first.stats().turned_out, None);
}

#[test]
fn one_enclave_ends_before_the_other() {
    let Some(_alone) = alone() else { return };
    let (first, second) = two();
    let _agents = [Agent::start(&first, "fifo"), Agent::start(&second, "fifo")];
    let left = first.spawn(command(4, usize::MAX)).unwrap();
    wait_for("decisions", || count(&first.stats(), Code::Complete) > 20);
    drop(first);
    finish(second.spawn(command(4, 32)).unwrap());
    undisturbed(&second);
    // The BPF program schedules the rest without a control thread.
    finish(left);
}

#[test]
fn enclaves_share_no_cpu() {
    let Some(_alone) = alone() else { return };
    let options = |name: &str| Options::new(socket(name), vec![0, 1]);
    let error = Enclave::start_all(vec![options("a"), options("b")]).unwrap_err().to_string();
    assert!(error.starts_with("CPU 0 is named twice"), "{error}");
    assert!(Enclave::start_all(Vec::new()).unwrap_err().to_string().contains("1 to 8 enclaves"));
}
