//! The command line of `cargo xtask bench`.

pub const USAGE: &str = "\
usage: cargo xtask bench compare BASE [--json] [--pairs N] [BENCH]...
                                         whether this working tree is slower than the commit BASE
         --json       one JSON object on standard output, and nothing else
         --pairs N    pairs of runs of each bench (20); one more warms up
         BENCH        a bench of `wave bench list` that is compared, as queue (all)";

/// Printed after [`USAGE`] by `--help`.
pub const DETAILS: &str = "
BASE is checked out (as a worktree of git) and built below target/bench-compare, with the same cargo and the same flags; both
are kept for the next comparison with it, and may be removed (then `git worktree prune`). Then the two binaries of
`wave bench` run in pairs on the same CPUs, with the base first in every other pair. The runs of a pair are adjacent, so a
disturbance that lasts longer than a pair affects both.

  ratio         median over pairs of tip / base, or of base / tip where lower is better: above 1 the tip is better
  interval      of that median, 95%, by order statistics (6th to 15th of 20): nothing is assumed of the distribution
  held          the lower end is at least 1, or it is at least 0.95 and the interval is at most 3% of the median wide
  slower        the upper end is below 0.95, however wide the interval is
  not held      the lower end is below 0.95, the upper one is not, and the interval is at most 3% wide
  not measured  the interval is wider than that, or there is none: fewer than six pairs, or the tip has no such figure or
                bench; also in place of held and not compared, where a run of the tip failed, or five of either side
  not compared  the base has no such figure or bench, or there are no counters: not judged
  (peer)        a peer's figure is not judged: its ratio shows the effect of the machine and the binary's layout

A figure may be 0: two zeros have the ratio 1; beside one zero the ratio is 0, or infinite (null in --json).

instructions_per_switch is the number of instructions that the host core's thread executes in user mode, by the processor's
counters, divided by the number of switches. Where there are no counters, the command says so and does not judge it.

A bench's rows are printed when its pairs are done. The command first names a folder: runs.jsonl there gets every run, and
summary.json is what --json prints, exit code included. Ctrl-C and SIGTERM keep both, and print the rows of the pairs that
are complete.

Exit codes: 0 all figures held; 1 a figure is slower, or did not hold; 2 bad arguments; 3 nothing could be compared (no such
commit, a build that fails); 4 no result: a figure was not measured, and none is slower; 130 or 143 after Ctrl-C or SIGTERM.

Examples:
  cargo xtask bench compare main
  cargo xtask bench compare HEAD~10 switch rpc --pairs 40
  cargo xtask bench compare HEAD           in an unchanged tree: which differences this machine can detect";

const PAIRS: usize = 20;
/// Enough for some hours of every bench.
const PAIRS_MAX: usize = 1_000;

#[derive(Debug)]
pub enum Request {
    Help,
    Compare(Wanted),
}

/// The requested comparison.
#[derive(Debug)]
pub struct Wanted {
    /// The commit, as it was typed.
    pub base: String,
    /// Pairs of each bench, without the warm-up pair.
    pub pairs: usize,
    /// Print one object instead of a table.
    pub json: bool,
    /// Names of the benches; all that are compared if there are none.
    pub benches: Vec<String>,
}

/// Parses the arguments of `cargo xtask bench`.
pub fn parse(arguments: &[String]) -> Result<Request, String> {
    if arguments.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(Request::Help);
    }
    let (name, rest) = arguments.split_first().ok_or("a command is missing: compare")?;
    if name != "compare" {
        return Err(format!("unknown command: {name}"));
    }
    let (mut base, mut pairs, mut json, mut benches) = (None, PAIRS, false, Vec::new());
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => json = true,
            "--pairs" => pairs = number(words.next().ok_or("--pairs needs a value")?)?,
            option if option.starts_with('-') => {
                return Err(format!("bench compare has no option {option}"));
            }
            _ if base.is_none() => base = Some(word.clone()),
            name => benches.push(name.to_owned()),
        }
    }
    let base = base.ok_or("BASE is missing: the commit to compare with")?;
    Ok(Request::Compare(Wanted { base, pairs, json, benches }))
}

fn number(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(number) if (1..=PAIRS_MAX).contains(&number) => Ok(number),
        _ => Err(format!("--pairs needs a number from 1 to {PAIRS_MAX}, not {value:?}")),
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_comparison_defaults_to_all_benches_and_twenty_pairs() {
        let Ok(Request::Compare(wanted)) = parsed("compare main") else { panic!() };
        assert_eq!((wanted.base.as_str(), wanted.pairs, wanted.json), ("main", 20, false));
        assert!(wanted.benches.is_empty());
        let Ok(Request::Compare(wanted)) = parsed("compare --pairs 40 --json HEAD~1 rpc queue")
        else {
            panic!()
        };
        assert_eq!((wanted.base.as_str(), wanted.pairs, wanted.json), ("HEAD~1", 40, true));
        assert_eq!(wanted.benches, ["rpc", "queue"]);
    }

    #[test]
    fn bad_arguments_are_refused() {
        for line in ["", "compare", "other", "compare main --pairs 0", "compare main --pairs"] {
            assert!(parsed(line).is_err(), "{line:?}");
        }
        assert!(matches!(parsed("compare --help"), Ok(Request::Help)));
    }
}
