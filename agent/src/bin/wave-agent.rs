//! An agent with the shipped policies.

fn main() -> std::process::ExitCode {
    wave_agent::main_with(wave_agent::Registry::shipped())
}
