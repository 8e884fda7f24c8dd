//! Connections of a data path: their state, in the parts that stages own.

pub mod state;
