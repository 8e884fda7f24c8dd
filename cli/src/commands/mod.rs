//! The commands, each in a file of its own.

pub mod agent;
pub mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Schedules the threads of a host from an agent elsewhere, over the queues of the Wave paper.
#[derive(Debug, Parser)]
#[command(
    name = "wave",
    version = crate::run::machine::version(),
    after_help = "Examples:
  wave doctor                              what this machine can run, and why not
  wave run scenarios/rocksdb-fifo.toml     the demonstration, under a minute
  wave agent --attach /tmp/my.sock         an agent by hand, for a host that listens there

Exit codes: 0 all is well; 1 a check of the run failed; 2 bad arguments or a bad scenario;
3 this machine cannot run it (the message says what to type)."
)]
pub struct Wave {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an experiment and write its report.
    Run(run::RunArgs),
    /// Run an agent and attach it to a host.
    Agent(agent::AgentCommand),
}

impl Wave {
    /// Does what was asked for.
    pub fn execute(self) -> ExitCode {
        match self.command {
            Command::Run(args) => run::execute(&args),
            Command::Agent(args) => agent::execute(args),
        }
    }
}
