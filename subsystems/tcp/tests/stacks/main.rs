//! Stacks in virtual time, over the modelled network of `wave-wires`.

mod capabilities;
mod closed_ports;
mod congestion;
mod connections;
mod cookies;
mod errors;
mod failures;
mod handover;
mod ipv6;
mod opening;
mod options;
mod peer;
mod programs;
mod recovery;
mod sending;
mod sharing;
mod strangers;
mod takeover;
mod windows;
