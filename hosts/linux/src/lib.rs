//! The real Linux kernel as a host.
