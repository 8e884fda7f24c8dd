//! The greeter of the guide (docs/guide/rpc.md). The program is in `greeter.rs`, exactly as the
//! guide shows it.
#![forbid(unsafe_code)]

include!("greeter.rs");

#[cfg(test)]
mod tests;
