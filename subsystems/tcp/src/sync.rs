//! The threads, locks and channels of the executor with threads. The shuttle model compiles that executor against a module with
//! the same names (`tests/shuttle.rs`).

pub use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
pub use std::sync::{Arc, Mutex, RwLock};
pub use std::thread::{Builder, JoinHandle};
