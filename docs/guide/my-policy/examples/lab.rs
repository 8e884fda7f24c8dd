//! The laboratory: lists, simulates, fuzzes and replays the policies of this crate and those that Wave ships.
//!
//!     cargo run --release --example lab -- simulate --policy fifo --policy two-class --load 30000,50000

fn main() -> std::process::ExitCode {
    wave_lab::main_with(wave_agent::Registry::shipped().with_policies(&my_policy::POLICIES))
}
