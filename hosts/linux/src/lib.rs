//! The real Linux kernel as a host.

pub mod record;
