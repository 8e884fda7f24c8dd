//! Programs by their seeds.

use super::model::{Choice, Model, Step};

/// Of so many programs, one has its agent replaced.
const REPLACED_EVERY: u64 = 10;

/// Random numbers of a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }
}

/// A program, as numbers of which any part is a program, too.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub choices: Vec<Choice>,
    /// The choice before which the agent is replaced.
    pub replaced_at: Option<usize>,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let mut random = Random(seed);
        let length = 10 + random.below(40);
        let choices = (0..length).map(|_| [(); 6].map(|()| random.next() as u16)).collect();
        let is_replaced = seed.is_multiple_of(REPLACED_EVERY);
        let replaced_at = is_replaced.then(|| random.below(length));
        Plan { seed, choices, replaced_at }
    }

    /// Its steps, as the `number`th program of a run, and the number of its connections.
    pub fn steps(&self, number: usize) -> (Vec<Step>, usize) {
        let mut model = Model::new(number);
        for (at, choice) in self.choices.iter().enumerate() {
            if self.replaced_at == Some(at) {
                model.steps.push(Step::of_test("replace"));
            }
            model.choose(*choice);
        }
        model.finish();
        let connections = model.connections();
        (model.steps, connections)
    }

    /// The program without `count` of its choices.
    pub fn without(&self, from: usize, count: usize) -> Plan {
        let mut rest = self.clone();
        rest.choices.drain(from..from + count);
        rest.replaced_at = self.replaced_at.map(|at| match at {
            at if at >= from + count => at - count,
            at => at.min(from.min(rest.choices.len().saturating_sub(1))),
        });
        rest
    }
}
