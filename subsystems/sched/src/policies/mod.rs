//! Policies, each in a file of its own, pure, with its source.

pub mod fifo;

use alloc::boxed::Box;
use alloc::string::String;

use wave_core::layout::Config;
use wave_core::policy::Policy;

/// Names of the shipped policies.
pub const NAMES: &[&str] = &["fifo"];

/// No policy of this name is shipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{0}`; shipped are: fifo")]
pub struct UnknownPolicy(pub String);

/// The shipped policy of this name, for an enclave of this configuration.
pub fn by_name(name: &str, config: &Config) -> Result<Box<dyn Policy + Send>, UnknownPolicy> {
    match name {
        "fifo" => Ok(Box::new(fifo::Fifo::new(config))),
        _ => Err(UnknownPolicy(name.into())),
    }
}
