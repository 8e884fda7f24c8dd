//! The laboratory: what is done with policies and logs away from a host. Policies are listed, simulated over a range of loads and
//! run through faulty histories; logs are replayed and drawn as traces.
//!
//! `wave` has all of them but `simulate`, for what Wave ships. A program with policies or subsystems of its own gets all of them from
//! [`main_with`].
#![forbid(unsafe_code)]

mod failure;
pub mod fuzz;
pub mod policies;
pub mod progress;
pub mod replay;
pub mod simulate;
pub mod terminal;
pub mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use wave_agent::Registry;
use wave_core::policy::Policy;
use wave_core::settings::Policies;
use wave_core::subsystem::Subsystem;
use wave_sim::agent::PolicyText;

pub use failure::Failure;

/// Lists, simulates and fuzzes the policies of this program and those that Wave ships; replays and traces logs.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit codes: 0 all is well; 1 a check failed; 2 bad arguments or a bad log; 3 the output cannot be written."
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
    /// Run thousands of faulty histories of the real code, and check them.
    Fuzz(fuzz::FuzzArgs),
    /// Feed an agent's log to a policy again, expecting the same decisions.
    Replay(replay::ReplayArgs),
    /// Write an agent's log as a trace that Perfetto opens.
    Trace(trace::TraceArgs),
}

/// The whole of a laboratory's `main`.
///
/// ```no_run
/// use wave_agent::Registry;
///
/// fn main() -> std::process::ExitCode {
///     wave_lab::main_with(Registry::shipped())
/// }
/// ```
pub fn main_with(registry: Registry) -> ExitCode {
    let program = terminal::program();
    let mut command = Lab::command().bin_name(program.clone());
    for name in command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect::<Vec<_>>() {
        command = command.mut_subcommand(&name, |sub| {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            sub.after_help(help.replace(&format!("wave {name}"), &format!("{program} {name}")))
        });
    }
    let lab = Lab::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match lab.command {
        Command::Policies(args) => policies::execute(&registry, &args),
        Command::Simulate(args) => simulate::execute(&registry, &args),
        Command::Fuzz(args) => fuzz::execute(&registry, &args),
        Command::Replay(args) => replay::execute(&registry, &args),
        Command::Trace(args) => trace::execute(&registry, &args),
    }
}

/// The policy for threads that `text` names, with its settings checked: one of the program's own, or one that Wave ships.
fn scheduling_policy(registry: &Registry, text: &str) -> Result<PolicyText, String> {
    let name = text.split_once(':').map_or(text, |(name, _)| name);
    let shipped: &'static Policies<dyn Policy + Send> = &wave_sched::policies::SHIPPED;
    let has_it = || shipped.0.iter().any(|(known, _)| known.name == name);
    if let Some(from) = registry.own(text).or_else(|| has_it().then_some(shipped)) {
        from.parse(text).map_err(|error| error.to_string())?;
        return Ok(PolicyText { text: text.to_owned(), from });
    }
    let is_of = |other: &&&Subsystem| other.policies.iter().any(|known| known.name == name);
    Err(match registry.subsystems().iter().find(is_of) {
        Some(other) => {
            format!(
                "`{name}` is a policy of the subsystem `{}`: it does not schedule threads",
                other.name
            )
        }
        None => {
            let own = registry.own_policies().map(|known| known.name);
            let names = own.chain(shipped.0.iter().map(|(known, _)| known.name));
            let names = names.collect::<Vec<_>>().join(", ");
            format!("there is no policy `{name}`; policies that schedule threads: {names}")
        }
    })
}

/// A plain table for a terminal.
pub fn table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_style(comfy_table::TableComponent::HeaderLines, '─')
        .set_style(comfy_table::TableComponent::MiddleHeaderIntersections, '─')
        .set_header(header);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_does_not_schedule_threads_is_refused_by_its_subsystem() {
        let registry = Registry::shipped();
        let refused = |text| scheduling_policy(&registry, text).map(drop).unwrap_err();
        for (policy, subsystem) in [("sol:seed=7", "memory"), ("jbsq:k=4", "rpc")] {
            let (name, _) = policy.split_once(':').unwrap();
            let expected = format!(
                "`{name}` is a policy of the subsystem `{subsystem}`: it does not schedule threads"
            );
            assert_eq!(refused(policy), expected);
        }
        let unknown = refused("nosuch:x=1");
        assert!(unknown.starts_with("there is no policy `nosuch`; "), "{unknown}");
        assert!(unknown.contains("fifo") && !unknown.contains("jbsq"), "{unknown}");
        assert!(refused("shinjuku:slice_us=x").contains("slice_us=N"));
    }
}
