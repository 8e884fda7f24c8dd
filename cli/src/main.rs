//! Wave's command line.
#![forbid(unsafe_code)]

mod commands;
mod interop;

fn main() -> std::process::ExitCode {
    commands::Wave::read().execute()
}
