//! Assignment of CPUs: one rule for every placement, so that compared systems are seated alike.
//!
//! From the CPUs that this process may use, in ascending order:
//!
//! 1. The generator takes the first, and each agent takes one of the next.
//! 2. Each host core takes one, from the last downwards. The same worker thus has the same CPU
//!    whatever decides; with plain Linux threads the agents' CPUs stay idle.
//! 3. Too few CPUs: host cores keep theirs for themselves as long as one is left over; the
//!    generator and all agents share it, each yielding it between polls.
//! 4. Fewer still: the generator and the agents have the first CPU, and the others are divided among
//!    the host cores, which then yield theirs between polls, too. With a single CPU, all share it.

/// The CPU of each role, and which roles yield theirs between polls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seating {
    /// The CPU of each host core.
    pub workers: Vec<usize>,
    pub agents: Vec<usize>,
    pub generator: usize,
    /// Whether host cores share CPUs, with each other or with others.
    pub workers_yield: bool,
    /// Whether agents share CPUs, with each other or with the generator.
    pub agents_yield: bool,
    /// Whether the generator shares its CPU.
    pub generator_yields: bool,
}

/// Seats `workers` host cores, `agents` agents and the generator on `cpus`.
///
/// # Panics
///
/// Without a CPU.
pub fn seat(cpus: &[usize], workers: usize, agents: usize) -> Seating {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    let (&first, rest) = cpus.split_first().expect("a process has at least one CPU");
    // CPUs for host cores: those after the first.
    let for_workers = if rest.is_empty() { &cpus[..] } else { rest };
    let last_first: Vec<usize> = for_workers.iter().rev().copied().cycle().take(workers).collect();
    let left = rest.len().saturating_sub(workers);
    let agents: Vec<usize> = if left >= agents {
        rest[..agents].to_vec()
    } else {
        // The spare CPUs, then the generator's, dealt out in turn.
        let spare = rest[..left].iter().chain([&first]).copied();
        spare.cycle().take(agents).collect()
    };
    let count = |cpu: usize| {
        let seats = last_first.iter().chain(&agents).chain([&first]);
        seats.filter(|&&seat| seat == cpu).count()
    };
    let shared = |seats: &[usize]| seats.iter().any(|&cpu| count(cpu) > 1);
    Seating {
        workers_yield: shared(&last_first),
        agents_yield: shared(&agents),
        generator_yields: shared(&[first]),
        workers: last_first,
        agents,
        generator: first,
    }
}

impl Seating {
    /// Whether any CPU is shared.
    pub fn is_tight(&self) -> bool {
        self.workers_yield || self.agents_yield || self.generator_yields
    }

    /// CPUs without a host core, for housekeeping threads; the generator's if there is none.
    pub fn housekeeping(&self, cpus: &[usize]) -> Vec<usize> {
        let free: Vec<usize> =
            cpus.iter().copied().filter(|cpu| !self.workers.contains(cpu)).collect();
        if free.is_empty() { vec![self.generator] } else { free }
    }
}

impl std::fmt::Display for Seating {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all: Vec<(usize, String)> = vec![(self.generator, "generator".into())];
        let name = |what: &str, at: usize, of: usize| {
            if of == 1 { what.to_owned() } else { format!("{what} {at}") }
        };
        for (at, &cpu) in self.agents.iter().enumerate() {
            all.push((cpu, name("agent", at, self.agents.len())));
        }
        for (at, &cpu) in self.workers.iter().enumerate() {
            all.push((cpu, name("host core", at, self.workers.len())));
        }
        all.sort_by_key(|(cpu, _)| *cpu);
        let mut text = String::new();
        for group in all.chunk_by(|a, b| a.0 == b.0) {
            if !text.is_empty() {
                text.push_str("; ");
            }
            let names: Vec<&str> = group.iter().map(|(_, name)| name.as_str()).collect();
            text.push_str(&format!("CPU {}: {}", group[0].0, names.join(", ")));
            if names.len() > 1 {
                text.push_str(" (shared)");
            }
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shared_cpus_are_yielded_by_all_of_their_users(
            cpus in prop::collection::btree_set(0usize..64, 1..24),
            workers in 1usize..20,
            agents in 0usize..6,
        ) {
            let cpus: Vec<usize> = cpus.into_iter().collect();
            let seating = seat(&cpus, workers, agents);
            prop_assert_eq!((seating.workers.len(), seating.agents.len()), (workers, agents));
            let seats: Vec<(usize, bool)> = seating.workers.iter()
                .map(|&cpu| (cpu, seating.workers_yield))
                .chain(seating.agents.iter().map(|&cpu| (cpu, seating.agents_yield)))
                .chain([(seating.generator, seating.generator_yields)])
                .collect();
            for (at, (cpu, yields)) in seats.iter().enumerate() {
                prop_assert!(cpus.contains(cpu));
                let alone = seats.iter().enumerate().all(|(other, seat)| other == at || seat.0 != *cpu);
                prop_assert!(alone || *yields);
            }
            // Nothing is shared if there is a CPU for each, and host cores share only if none is left over.
            prop_assert!(!seating.is_tight() || cpus.len() < workers + agents + 1);
            prop_assert!(!seating.workers_yield || cpus.len() < workers + 1);
            prop_assert!(seating.housekeeping(&cpus).iter().all(|cpu| cpus.contains(cpu)));
        }

        #[test]
        fn workers_and_generator_have_equal_seats_with_and_without_agent(
            count in 1usize..16,
            workers in 1usize..8,
        ) {
            let cpus: Vec<usize> = (0..count).collect();
            let (with, without) = (seat(&cpus, workers, 1), seat(&cpus, workers, 0));
            prop_assert_eq!(with.workers, without.workers);
            prop_assert_eq!(with.generator, without.generator);
        }
    }

    #[test]
    fn two_cpus_leave_one_to_the_host_core() {
        let seating = seat(&[4, 6], 1, 1);
        assert_eq!(seating.to_string(), "CPU 4: generator, agent (shared); CPU 6: host core");
        assert!(!seating.workers_yield && seating.agents_yield && seating.generator_yields);
    }
}
