//! What commands print: the laboratory's own.

pub(crate) use wave_lab::terminal::{note, out, print};
