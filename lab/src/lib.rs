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

/// The scheduling policy that `text` names, of the program's own or shipped.
fn scheduling_policy(registry: &Registry, text: &str) -> Result<PolicyText, String> {
    registry.check(text)?;
    let shipped: &'static Policies<dyn Policy + Send> = &wave_sched::policies::SHIPPED;
    let from = registry.own(text).unwrap_or(shipped);
    let name = text.split_once(':').map_or(text, |(name, _)| name);
    match from.0.iter().any(|(known, _)| known.name == name) {
        true => Ok(PolicyText { text: text.to_owned(), from }),
        false => Err(format!("`{name}` does not schedule threads")),
    }
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
