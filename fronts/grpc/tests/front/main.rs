//! The front between real clients and a real host: HTTP/2 on one side, an RPC server's workers on the other.

mod bare_frames;
mod calls;
mod client;
mod compressed;
mod cores;
mod crowds;
mod dial;
mod first_calls;
mod fixture;
mod floods;
mod frames;
mod h2spec;
mod hostile_streams;
mod hosts;
mod http2_errors;
mod killed;
mod limits;
mod memory;
mod notes;
mod orca;
mod refused;
mod tls;
