//! The agent: attaches to a host and runs a policy of this crate, or one that Wave ships.

use wave_agent::{Registry, main_with};

fn main() -> std::process::ExitCode {
    main_with(Registry::shipped().with_policies(&my_policy::POLICIES))
}
