//! `wave memory`: the memory of running programs under an agent.

pub mod agent;
pub mod course;
pub mod explain;
mod heat;
pub mod overhead;
pub mod report;
pub mod run;
pub mod sample;
pub mod swap;
