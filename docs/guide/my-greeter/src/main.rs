//! The greeter of the guide (docs/guide/rpc.md): its program is `greeter.rs`, as the guide has it.
#![forbid(unsafe_code)]

include!("greeter.rs");

#[cfg(test)]
mod tests;
