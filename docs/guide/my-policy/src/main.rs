//! The agent: attaches to a host and runs the policy of this crate, or one that Wave ships.

use my_policy::TwoClass;
use wave_agent::{Registry, main_with};

fn main() -> std::process::ExitCode {
    main_with(Registry::shipped().with("two-class", |config| Box::new(TwoClass::new(config))))
}
