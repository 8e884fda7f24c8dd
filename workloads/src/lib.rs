//! Workloads for hosts: a RocksDB service, an open-loop load generator, and the measures and
//! baselines behind results.
//!
//! Knows requests, arrival times, latencies and load points. Must not know what schedules the
//! requests: a host accepts them by implementing [`generator::Server`] and reports each one's end
//! to a [`recorder::Recorder`]. The one host that lives here is the baseline,
//! [`linux_threads::Pool`], which Linux schedules; [`signal`] is one for preemption.
//!
//! ```text
//! arrivals ──> generator ──> Server (a host, or linux_threads) ──> service ──> rocksdb
//!                  └──────────────> recorder <────────┘
//!                                      └──> point ──> saturation
//! ```

#![deny(unsafe_op_in_unsafe_fn)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod arrivals;
pub mod cpu;
pub mod generator;
pub mod grpc;
pub mod linux_threads;
pub mod mapping;
pub mod point;
pub mod recorder;
pub mod rocksdb;
pub mod service;
pub mod signal;
pub mod udp;
