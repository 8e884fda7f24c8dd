//! User-registered policies in the simulator: they keep every rule under faults with the help of `wave_sched::scheduler`, and
//! the fuzzer finds a faulty policy.

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_core::policy::Policy;
use wave_core::settings::{Known, Policies, SettingError};
use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};
use wave_sim::agent::PolicyText;
use wave_sim::enclave::SetupError;
use wave_sim::fuzz::{Overrides, Plan, RULES, run};
use wave_sim::paper::{Rung, wave};

/// Last in, first out, with slices.
#[derive(Default)]
struct Lifo(Vec<Thread>);

impl Scheduler for Lifo {
    fn ready(&mut self, thread: Thread) {
        self.0.push(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.0.pop().map(|thread| Run::for_slice(thread, Nanos::from_micros(5)))
    }
}

/// Even classes first; only they are prestaged.
#[derive(Default)]
struct ByClass([VecDeque<Thread>; 2]);

impl Scheduler for ByClass {
    fn ready(&mut self, thread: Thread) {
        self.0[usize::from(thread.class() % 2)].push_back(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.0.iter_mut().find_map(VecDeque::pop_front).map(Run::to_completion)
    }

    fn may_prestage(&self, cores: u16) -> bool {
        self.0[0].len() >= usize::from(cores)
    }
}

/// First in, first out, except that it forgets every hundredth thread.
#[derive(Default)]
struct Forgets(VecDeque<Thread>, u32);

impl Scheduler for Forgets {
    fn ready(&mut self, thread: Thread) {
        self.1 += 1;
        if !self.1.is_multiple_of(100) {
            self.0.push_back(thread);
        }
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.0.pop_front().map(Run::to_completion)
    }
}

const fn known(name: &'static str) -> Known {
    Known { name, about: "", settings: &[] }
}

static OWN: Policies<dyn Policy + Send> = Policies(&[
    (known("lifo"), |config, _| Ok(Box::new(Scheduled::of(config, Lifo::default())))),
    (known("by-class"), |config, _| Ok(Box::new(Scheduled::of(config, ByClass::default())))),
    (known("forgets"), |config, _| Ok(Box::new(Scheduled::of(config, Forgets::default())))),
    (known("few-cores"), |config, _| match config.cores {
        0..3 => Ok(Box::new(Scheduled::of(config, Lifo::default()))),
        cores => {
            let number = cores.into();
            Err(SettingError::Beyond { key: "cores", number, most: 2, of: "places" })
        }
    }),
]);

fn with(policy: &str) -> Overrides {
    let policy = Some(PolicyText::own(&OWN, policy));
    Overrides { policy, ..Overrides::default() }
}

#[test]
fn no_history_breaks_a_rule_under_policies_of_a_few_lines() {
    for policy in ["lifo", "by-class"] {
        for seed in 0..24 {
            let report = run(&Plan::new(seed, &[]).with(&with(policy)));
            assert_eq!(report.violation, None, "{policy}, seed {seed}");
        }
    }
}

#[test]
fn a_policy_that_forgets_a_thread_is_found() {
    let mut rules: Vec<_> = (0..24)
        .filter_map(|seed| run(&Plan::new(seed, &[]).with(&with("forgets"))).violation)
        .map(|violation| violation.rule)
        .collect();
    rules.sort_unstable();
    assert!(rules.len() >= 20, "{rules:?}");
    let is_explained = |rule: &&str| RULES.iter().any(|(name, _)| name == rule);
    assert!(rules.iter().all(is_explained), "{rules:?}");
}

#[test]
fn a_setup_that_cannot_run_is_refused_with_its_cause() {
    let few_cores = PolicyText::own(&OWN, "few-cores");
    let check = |cores, policy: &PolicyText| {
        let mut setup = wave(cores, Rung::Prestaged, "fifo");
        setup.agent.policy = policy.clone();
        setup.check()
    };
    assert_eq!(check(2, &few_cores), Ok(()));
    let refused = check(3, &few_cores).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "policy `few-cores`: `cores` is 3, but there are only 2 places"
    );
    let nosuch = check(2, &PolicyText::shipped("nosuch")).unwrap_err();
    assert!(matches!(nosuch, SetupError::Policy(_)), "{nosuch}");
    let no_cores = check(0, &PolicyText::shipped("fifo")).unwrap_err();
    assert!(matches!(no_cores, SetupError::Config(_)), "{no_cores}");
}
