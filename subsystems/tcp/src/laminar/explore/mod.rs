//! Exhaustive searches of Laminar: every order of packets through the pipeline itself, interpreted, with words of few bits, so that
//! sequence numbers go around. [`receive`] searches reassembly, [`transmit`] what is sent and acknowledged.

pub mod receive;
pub mod transmit;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use wave_rmt::{Gress, Interpreter, Phv, Pipeline, Verdict};

/// Bits of a word: 32 sequence numbers.
pub const WORD: u8 = 5;
/// All bits of a word.
const MASK: u32 = (1 << WORD) - 1;

/// What a search found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Number of different states.
    pub states: usize,
    /// Number of packets passed.
    pub passes: u64,
    /// The shortest way to a violation, if there is one.
    pub counterexample: Option<Counterexample>,
    /// Actions of the searched tables that no packet ran.
    pub uncovered: Vec<String>,
}

/// A shortest way to a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// What is violated.
    pub what: String,
    /// The packets that lead there.
    pub steps: Vec<String>,
}

/// One side of a connection, as a search sees it.
trait Side {
    /// A state: the registers, and what the surroundings know.
    type At: Ord + Clone;

    /// All states that one event leads to, with the event's name.
    fn successors(&self, machine: &mut Machine<'_>, at: &Self::At) -> Vec<(Self::At, String)>;

    /// What is violated in a state.
    fn violation(&self, machine: &mut Machine<'_>, at: &Self::At) -> Option<String>;
}

/// The pipeline, and which of its actions ran.
struct Machine<'p> {
    pipeline: &'p Pipeline<'p>,
    machine: Interpreter<'p, WORD>,
    passes: u64,
    covered: BTreeSet<(usize, usize)>,
}

impl Machine<'_> {
    /// Passes a packet through the egress.
    fn pass(&mut self, phv: &mut Phv<WORD>) -> Verdict {
        let Machine { machine, covered, .. } = self;
        self.passes += 1;
        machine.pass_seen(Gress::Egress, phv, |table, action, _| {
            covered.extend(action.map(|action| (table, action)));
        })
    }

    /// Actions that did not run, of the tables that `is_searched` names.
    fn uncovered(&self, is_searched: fn(&str) -> bool) -> Vec<String> {
        let mut uncovered = vec![];
        for (number, table) in self.pipeline.egress.iter().enumerate() {
            for (index, action) in table.actions.iter().enumerate() {
                if is_searched(table.name) && !self.covered.contains(&(number, index)) {
                    uncovered.push(format!("{}.{}", table.name, action.name));
                }
            }
        }
        uncovered
    }
}

/// Searches all states of one side, breadth first, until a violation.
fn search<S: Side>(
    pipeline: &Pipeline<'_>,
    side: &S,
    start: S::At,
    is_searched: fn(&str) -> bool,
) -> Explored {
    let machine = Interpreter::new(pipeline);
    let mut machine = Machine { pipeline, machine, passes: 0, covered: BTreeSet::new() };
    let mut origins: BTreeMap<S::At, Option<(S::At, String)>> = BTreeMap::new();
    origins.insert(start.clone(), None);
    let mut waiting = VecDeque::from([start]);
    let mut counterexample = None;
    'search: while let Some(at) = waiting.pop_front() {
        for (next, step) in side.successors(&mut machine, &at) {
            if origins.contains_key(&next) {
                continue;
            }
            let violated = side.violation(&mut machine, &next);
            origins.insert(next.clone(), Some((at.clone(), step)));
            if let Some(what) = violated {
                counterexample = Some(Counterexample { what, steps: way(&origins, &next) });
                break 'search;
            }
            waiting.push_back(next);
        }
    }
    let uncovered = machine.uncovered(is_searched);
    Explored { states: origins.len(), passes: machine.passes, counterexample, uncovered }
}

fn way<A: Ord>(origins: &BTreeMap<A, Option<(A, String)>>, to: &A) -> Vec<String> {
    let (mut steps, mut at) = (vec![], to);
    while let Some(Some((from, step))) = origins.get(at) {
        steps.push(step.clone());
        at = from;
    }
    steps.reverse();
    steps
}
