//! What a process needs of its system: [`cpus`] on which its threads may run, [`places`] for files out of reach of other users,
//! [`outputs`], the files that commands write, [`lines`] of output written without ever waiting, [`words`] for counts, its
//! [`heap`]'s free memory, and [`Yields`], which yields a CPU while that takes a short time.

pub mod cpus;
pub mod heap;
pub mod lines;
pub mod outputs;
pub mod places;
pub mod words;
mod yields;

pub use yields::Yields;
