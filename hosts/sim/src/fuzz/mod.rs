//! Histories under faults: everything drawn from a seed, run on the real code, checked from outside.
//!
//! [`plan::Plan`] is drawn from a seed, `churn` is the application, [`faults`] injects faults,
//! [`books`] checks events on the host against [`bounds`], `agent_inputs` checks what agents receive,
//! [`invariant`] has users' rules, [`run()`] puts them together, [`shrink()`] makes a failing plan smaller. The same
//! plan always gives the same history.

mod agent_inputs;
pub mod books;
pub mod bounds;
mod churn;
pub mod faults;
pub mod invariant;
pub mod plan;
mod run;
mod shrink;

pub use books::RULES;
pub use faults::{FAULTS, Fault};
pub use invariant::{Check, Host, Invariant};
pub use plan::{Overrides, Plan};
pub use run::{Report, Violation, run};
pub use shrink::shrink;
