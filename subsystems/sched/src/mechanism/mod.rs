//! The host's side of scheduling, without stacks, signals or waits: the same code schedules users' threads (`hosts/user`) and
//! modelled ones (`hosts/sim`), so that the fuzzer tests what users run. The kernel's host has its own, in BPF.
//!
//! A host adds what carries a thread ([`table::Table`] is generic over that), its loop, its sleeps, and how it interrupts.

pub mod core_loop;
pub mod fallback;
mod sync;
pub mod table;
#[cfg(test)]
mod tests;
