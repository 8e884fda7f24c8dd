//! The agent with the policies that Wave ships.

fn main() -> std::process::ExitCode {
    wave_agent::main_with(wave_agent::Registry::shipped())
}
