//! Wave's command line.
#![forbid(unsafe_code)]
#![allow(dead_code, unused_imports)]

mod report;
mod scenario;

fn main() {}
