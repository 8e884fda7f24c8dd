//! User-registered policies in the simulator: they keep every rule under faults with the help of `wave_sched::scheduler`, and
//! the fuzzer finds a faulty policy.

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_core::policy::Policy;
use wave_core::settings::{Known, Policies, SettingError};
use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};
use wave_sim::agent::PolicyText;
use wave_sim::enclave::SetupError;
use wave_sim::fuzz::{Host, Invariant, Overrides, Plan, RULES, run};
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

/// Never runs two threads of class 1 at once. Nothing is prestaged, so a core that is served runs nothing.
#[derive(Default)]
struct Alone {
    free: VecDeque<Thread>,
    alone: VecDeque<Thread>,
    /// The core that was given a thread of class 1.
    on: Option<u16>,
    says_so: bool,
    /// Counts threads of class 1; every 50th is forgotten.
    forgets: Option<u32>,
}

impl Scheduler for Alone {
    fn ready(&mut self, thread: Thread) {
        if thread.class() != 1 {
            return self.free.push_back(thread);
        }
        self.forgets = self.forgets.map(|count| count + 1);
        if self.forgets.is_none_or(|count| count % 50 != 0) {
            self.alone.push_back(thread);
        }
    }

    fn pick(&mut self, core: u16) -> Option<Run> {
        if self.on.is_none_or(|on| on == core)
            && let Some(thread) = self.alone.pop_front()
        {
            self.on = Some(core);
            return Some(Run::to_completion(thread));
        }
        self.on = self.on.filter(|on| *on != core);
        self.free.pop_front().map(Run::to_completion)
    }

    fn may_prestage(&self, _cores: u16) -> bool {
        false
    }

    fn idles_for(&self) -> Nanos {
        if self.says_so { Nanos::from_millis(20) } else { Nanos(0) }
    }
}

static ONE_WRITER: [Invariant; 2] = [
    Invariant {
        name: "one-writer",
        about: "no two threads of class 1 run at once",
        policy: "alone",
        make: |_| Box::new(one_writer),
    },
    Invariant {
        name: "one-writer-of-lifo",
        about: "no two threads of class 1 run at once",
        policy: "lifo",
        make: |_| Box::new(one_writer),
    },
];

fn one_writer(host: &Host<'_>) -> Result<(), String> {
    match host.running().filter(|thread| thread.class == 1).count() {
        0 | 1 => Ok(()),
        count => Err(format!("{count} threads of class 1 run at once")),
    }
}

const fn known(name: &'static str) -> Known {
    Known { name, about: "", settings: &[] }
}

static OWN: Policies<dyn Policy + Send> = Policies(&[
    (known("lifo"), |config, _| Ok(Box::new(Scheduled::of(config, Lifo::default())))),
    (known("by-class"), |config, _| Ok(Box::new(Scheduled::of(config, ByClass::default())))),
    (known("forgets"), |config, _| Ok(Box::new(Scheduled::of(config, Forgets::default())))),
    (known("alone"), |config, _| {
        Ok(Box::new(Scheduled::of(config, Alone { says_so: true, ..Alone::default() })))
    }),
    (known("alone-in-silence"), |config, _| Ok(Box::new(Scheduled::of(config, Alone::default())))),
    (known("alone-and-forgets"), |config, _| {
        let forgets = Some(0);
        Ok(Box::new(Scheduled::of(config, Alone { says_so: true, forgets, ..Alone::default() })))
    }),
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
    Overrides { policy, invariants: &ONE_WRITER, ..Overrides::default() }
}

/// The rules that the policy breaks in the first 24 histories.
fn broken_by(policy: &str) -> Vec<&'static str> {
    let of = |seed| run(&Plan::new(seed, &[]).with(&with(policy))).violation;
    (0..24).filter_map(of).map(|violation| violation.rule).collect()
}

#[test]
fn a_policy_that_says_that_it_idles_on_purpose_breaks_no_rule() {
    assert_eq!(broken_by("alone"), [""; 0]);
    let silent = broken_by("alone-in-silence");
    assert!(silent.iter().any(|rule| ["idle", "calm"].contains(rule)), "{silent:?}");
}

#[test]
fn a_policy_that_idles_for_longer_than_it_says_is_found() {
    let broken = broken_by("alone-and-forgets");
    let is_expected = |rule: &&str| ["progress", "calm", "end"].contains(rule);
    assert!(broken.len() >= 20 && broken.iter().all(is_expected), "{broken:?}");
    assert!(broken.contains(&"progress"), "{broken:?}");
}

#[test]
fn an_invariant_of_a_users_own_is_reported_by_its_name() {
    // The same rule holds for the policy that keeps it, and is not checked under others.
    for (policy, rule) in
        [("lifo", Some("one-writer-of-lifo")), ("alone", None), ("by-class", None)]
    {
        let broken = broken_by(policy);
        assert!(broken.iter().all(|broken| Some(*broken) == rule), "{policy}: {broken:?}");
        // Enclaves of one core cannot break it.
        assert_eq!(broken.len() >= 8, rule.is_some(), "{policy}: {broken:?}");
    }
}

#[test]
fn no_history_breaks_a_rule_under_policies_of_a_few_lines() {
    for policy in ["lifo", "by-class"] {
        for seed in 0..24 {
            let overrides = Overrides { invariants: &[], ..with(policy) };
            let report = run(&Plan::new(seed, &[]).with(&overrides));
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
