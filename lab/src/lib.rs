//! The laboratory: commands for policies and logs, away from a host. `policies` lists policies, `simulate` runs them
//! over a range of loads, `fuzz` runs them through histories with faults, and `run` and `sweep` simulate scenarios.
//! `replay` feeds a log to a policy, and `trace` converts it for Perfetto.
//!
//! `wave` has all of these commands except `simulate`, for the policies that Wave ships; its `run` and `sweep` also
//! run real hosts. A program with its own policies or subsystems gets all of them from [`main_with`].
#![forbid(unsafe_code)]

pub mod fuzz;
pub mod policies;
pub mod replay;
mod scenarios;
pub mod simulate;
pub mod trace;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use wave_agent::Registry;
use wave_core::subsystem::Subsystem;
use wave_sim::agent::PolicyText;

pub use wave_sim::fuzz::{Check, Host, Invariant};

/// Lists, simulates, sweeps and fuzzes the policies of this program and those that Wave ships; replays and traces logs.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit codes: 0 success; 1 a check failed; 2 bad arguments or a bad log; 3 the output cannot be written."
)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List every policy, with its settings.
    Policies(policies::PoliciesArgs),
    /// Simulate policies over a range of loads.
    Simulate(simulate::SimulateArgs),
    /// Run a scenario on a simulated machine: tables, plots and a report.
    Run(scenarios::RunArgs),
    /// Run every combination of a scenario's values on simulated machines.
    Sweep(scenarios::SweepArgs),
    /// Run seeded histories of the real code under faults, and check them.
    Fuzz(fuzz::FuzzArgs),
    /// Feed an agent's log to a policy again, expecting the same decisions.
    Replay(replay::ReplayArgs),
    /// Write an agent's log as a trace that Perfetto opens.
    Trace(trace::TraceArgs),
}

/// The `main` of a laboratory.
///
/// ```no_run
/// use wave_agent::Registry;
///
/// fn main() -> std::process::ExitCode {
///     wave_lab::main_with(Registry::shipped())
/// }
/// ```
pub fn main_with(registry: Registry) -> ExitCode {
    main_with_invariants(registry, &[])
}

/// The `main` of a laboratory whose command `fuzz` checks rules of its own as well, each under its policy.
///
/// ```no_run
/// use wave_agent::Registry;
/// use wave_lab::Invariant;
///
/// static INVARIANTS: [Invariant; 1] = [Invariant {
///     name: "one-writer",
///     about: "no two threads of class 1 run at once",
///     policy: "my-policy",
///     make: |_config| {
///         Box::new(|host| match host.running().filter(|thread| thread.class == 1).count() {
///             0 | 1 => Ok(()),
///             count => Err(format!("{count} threads of class 1 run")),
///         })
///     },
/// }];
///
/// fn main() -> std::process::ExitCode {
///     wave_lab::main_with_invariants(Registry::shipped(), &INVARIANTS)
/// }
/// ```
pub fn main_with_invariants(registry: Registry, invariants: &'static [Invariant]) -> ExitCode {
    run_with_invariants(&registry, invariants, std::env::args_os().skip(1))
}

/// Runs one command with these arguments, the command's name first, as [`main_with`] does with the process's. Prints to
/// standard output and standard error, and returns the exit code. Messages name the program of this process.
///
/// ```
/// use std::process::ExitCode;
/// use wave_agent::Registry;
///
/// let code = wave_lab::run_from(&Registry::shipped(), ["fuzz", "--policy", "nosuch"]);
/// assert_eq!(code, ExitCode::from(2));
/// ```
pub fn run_from(
    registry: &Registry,
    arguments: impl IntoIterator<Item = impl Into<OsString>>,
) -> ExitCode {
    run_with_invariants(registry, &[], arguments)
}

/// As [`run_from`], in a laboratory made by [`main_with_invariants`].
pub fn run_with_invariants(
    registry: &Registry,
    invariants: &'static [Invariant],
    arguments: impl IntoIterator<Item = impl Into<OsString>>,
) -> ExitCode {
    let program = wave_terminal::program();
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    if arguments.first().is_some_and(|first| ASKED.iter().any(|asked| first == asked)) {
        return wave_agent::main_from(registry, arguments);
    }
    let words = std::iter::once(OsString::from(&program)).chain(arguments);
    let matches = command(&program).try_get_matches_from(words).and_then(wave_agent::checked);
    let lab = match matches.and_then(|matches| Lab::from_arg_matches(&matches)) {
        Ok(lab) => lab,
        Err(error) => {
            // clap returns a help text as an error, too. A closed pipe is no failure.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match lab.command {
        Command::Policies(args) => policies::execute(registry, &args),
        Command::Simulate(args) => simulate::execute(registry, &args),
        Command::Run(args) => scenarios::run(&args),
        Command::Sweep(args) => scenarios::sweep(&args),
        Command::Fuzz(args) => fuzz::execute(registry, invariants, &args),
        Command::Replay(args) => replay::execute(registry, &args),
        Command::Trace(args) => trace::execute(registry, &args),
    }
}

/// Arguments by which `wave` asks an agent's program for its policies and their decisions. A laboratory answers, too.
const ASKED: [&str; 2] = ["--policies", "--simulated"];

/// The command line of a laboratory started as `program`. Help texts are written for `wave`; in examples of the laboratory's
/// commands `wave` is replaced by the program's name.
fn command(program: &str) -> clap::Command {
    let mut command = Lab::command().bin_name(program);
    for name in command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect::<Vec<_>>() {
        command = command.mut_subcommand(&name, |sub| {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            sub.after_help(help.replace(&format!("wave {name}"), &format!("{program} {name}")))
        });
    }
    command
}

/// The policy that `text` names, with checked settings: one of the program's own, or one of the subsystem's.
fn policy_of(
    registry: &Registry,
    subsystem: &'static Subsystem,
    text: &str,
) -> Result<PolicyText, String> {
    let name = text.split_once(':').map_or(text, |(name, _)| name);
    let has_it = |subsystem: &Subsystem| subsystem.policies.iter().any(|known| known.name == name);
    if let Some(list) = registry.own(text) {
        list.parse(text).map_err(|error| error.to_string())?;
        return Ok(PolicyText::own(list, text));
    }
    let known = subsystem.policies.iter().find(|known| known.name == name);
    if let (Some(make), Some(known)) = (subsystem.make, known) {
        known.parse(text).map_err(|error| error.to_string())?;
        return Ok(PolicyText::of(make, text));
    }
    Err(match registry.subsystems().iter().find(|other| has_it(other)) {
        Some(other) => {
            let (theirs, wanted) = (other.name, subsystem.name);
            format!("`{name}` is a policy of the subsystem `{theirs}`, not of `{wanted}`")
        }
        None => {
            let own = registry.own_policies();
            let names = own.chain(subsystem.policies.iter().copied()).map(|known| known.name);
            let names = names.collect::<Vec<_>>().join(", ");
            format!("there is no policy `{name}`; policies of `{}`: {names}", subsystem.name)
        }
    })
}

/// The subsystem that `--subsystem` names, if it can be simulated and fuzzed.
fn simulated(registry: &Registry, name: &str) -> Result<&'static Subsystem, String> {
    let is_modelled = |known: &Subsystem| {
        known.model.is_some() && known.make.is_some() && !known.policies.is_empty()
    };
    let is_simulated = |known: &Subsystem| is_sched(known) || is_modelled(known);
    let known = registry.subsystems().iter().copied();
    match known.clone().find(|known| known.name == name) {
        Some(subsystem) if is_simulated(subsystem) => Ok(subsystem),
        Some(_) => Err(format!(
            "subsystem `{name}` cannot be simulated: it has no modelled host, or no policies"
        )),
        None => {
            let names = known.filter(|known| is_simulated(known)).map(|known| known.name);
            let names = names.collect::<Vec<_>>().join(", ");
            Err(format!("there is no subsystem `{name}`; these can be simulated: {names}"))
        }
    }
}

/// Whether the subsystem's subjects are threads.
fn is_sched(subsystem: &Subsystem) -> bool {
    subsystem.id == wave_sched::SUBSYSTEM.id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_texts_name_the_program_as_it_was_started() {
        let mut command = command("my-lab");
        for name in ["policies", "simulate", "run", "sweep", "fuzz", "replay", "trace"] {
            let sub = command.find_subcommand_mut(name).unwrap();
            let help = sub.render_long_help().to_string();
            assert!(help.contains(&format!("my-lab {name}")), "{help}");
            assert!(!help.contains(&format!("wave {name}")), "{help}");
        }
    }

    #[test]
    fn wrong_arguments_exit_with_2_and_help_exits_with_0() {
        let run = |arguments: &[&str]| run_from(&Registry::shipped(), arguments);
        assert_eq!(run(&["nosuch"]), ExitCode::from(2));
        assert_eq!(run(&["simulate", "--policy", "fifo"]), ExitCode::from(2));
        assert_eq!(run(&["fuzz", "--help"]), ExitCode::SUCCESS);
    }

    #[test]
    fn a_policy_that_does_not_schedule_threads_is_refused_by_its_subsystem() {
        let registry = Registry::shipped();
        let refused =
            |text| policy_of(&registry, &wave_sched::SUBSYSTEM, text).map(drop).unwrap_err();
        for (policy, subsystem) in [("sol:seed=7", "memory"), ("jbsq:k=4", "rpc")] {
            let (name, _) = policy.split_once(':').unwrap();
            let expected =
                format!("`{name}` is a policy of the subsystem `{subsystem}`, not of `sched`");
            assert_eq!(refused(policy), expected);
        }
        let unknown = refused("nosuch:x=1");
        assert!(unknown.starts_with("there is no policy `nosuch`; "), "{unknown}");
        assert!(unknown.contains("fifo") && !unknown.contains("jbsq"), "{unknown}");
        assert!(refused("shinjuku:slice_us=x").contains("slice_us=N"));
    }
}
