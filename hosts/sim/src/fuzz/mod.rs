//! Histories under faults: everything drawn from a seed, run on the real code, checked from outside.
//!
//! [`plan::Plan`] says what a seed means, `churn` is the application, [`faults`] injects,
//! [`books`] checks what happens on the host against [`bounds`], `hearing` what agents are told,
//! [`run()`] puts them together, [`shrink()`] makes a failing plan smaller. The same plan gives the same history, always.

pub mod books;
pub mod bounds;
mod churn;
pub mod faults;
mod hearing;
pub mod plan;
mod run;
mod shrink;

pub use books::RULES;
pub use faults::{FAULTS, Fault};
pub use plan::{Overrides, Plan};
pub use run::{Report, Violation, run};
pub use shrink::shrink;
