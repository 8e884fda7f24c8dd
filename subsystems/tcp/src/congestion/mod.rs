//! Congestion control: pure policies. What happened comes in, a window goes out.

mod reno;

pub use reno::Reno;
