//! The laboratory: simulates, fuzzes, traces and replays this subsystem.
//!
//!     cargo run --release --example lab -- simulate --subsystem disk --policy arrival --policy nearest --load 100000

fn main() -> std::process::ExitCode {
    wave_lab::main_with(wave_agent::Registry::shipped().with_subsystem(&my_subsystem::SUBSYSTEM))
}
