//! Measures the cost of the Linux host in counts. `cargo xtask vm icount` boots machines in which the counts are
//! meaningful, and runs this there. Each line of the output is a name and a number.
//!
//! `switches`: instructions per wake-up and per switch ([`switches`]). `guests`: timer interrupts and exits of
//! virtual machines ([`guests`]).

#[cfg(target_arch = "x86_64")]
mod guests;
mod ring;
mod switches;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["switches"] => switches::measure(),
        #[cfg(target_arch = "x86_64")]
        ["guests"] => guests::measure(),
        #[cfg(target_arch = "x86_64")]
        ["agent", socket, policy] => guests::agent(socket.as_ref(), policy),

        _ => Err("usage: measure switches | guests (cargo xtask vm icount runs it)".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Why a measurement failed.
pub type Error = Box<dyn std::error::Error>;
