//! gRPC: the services of `proto/`, an on-host server of them, and a load for any server of them.
//!
//! ```text
//! load (h2 client) ══ TCP ══> onhost (tonic), or an agent's front ──> store ──> rocksdb
//! ```

pub mod load;
pub mod onhost;
pub mod proto;
pub mod store;
