//! The host's side of scheduling, without stacks, signals or waiting. The same code schedules users' threads (`hosts/user`) and
//! modelled ones (`hosts/sim`), so the fuzzer tests what users run. The kernel's host has its own implementation, in BPF.
//!
//! A host adds the stack or task of each thread ([`table::Table`] is generic over it), the loop, sleeping, and interrupts.

pub mod core_loop;
pub mod fallback;
mod sync;
pub mod table;
#[cfg(test)]
mod tests;
