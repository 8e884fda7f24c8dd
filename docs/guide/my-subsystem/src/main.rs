//! The agent: attaches to a host of this subsystem, or of one that Wave ships.

use wave_agent::{Registry, main_with};

fn main() -> std::process::ExitCode {
    main_with(Registry::shipped().with_subsystem(&my_subsystem::SUBSYSTEM))
}
