//! Programs and an agent in one process, without TCP between them.

mod agent;
mod life;
mod streams;
