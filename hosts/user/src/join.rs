//! Waiting for a thread's result.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use wave_sched::mechanism::table::Leave;

use crate::current;
use crate::enclave::Waker;
use crate::klt::Inside;
use crate::shared::lock;
use crate::table::Thread;

/// The thread panicked with this payload.
#[derive(Debug, thiserror::Error)]
#[error("the thread panicked")]
pub struct JoinError(pub Box<dyn Any + Send>);

struct State<T> {
    result: Option<Result<T, JoinError>>,
    waiter: Option<Waker>,
}

struct Packet<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

/// A handle to wait for a thread and take its result.
pub struct JoinHandle<T> {
    packet: Arc<Packet<T>>,
    pub(crate) thread: Option<Thread>,
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// Drops a value of a user's type. Its destructor may panic, and no panic may unwind into a core's loop.
pub(crate) fn discard<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // The panic's payload may panic in its own destructor.
        std::mem::forget(panic);
    }
}

impl<T: Send + 'static> JoinHandle<T> {
    /// Wraps a thread's body so that a handle can wait for its result.
    pub(crate) fn wrap(
        body: impl FnOnce() -> T + Send + 'static,
    ) -> (JoinHandle<T>, impl FnOnce() + Send + 'static) {
        let packet = Arc::new(Packet {
            state: Mutex::new(State { result: None, waiter: None }),
            done: Condvar::new(),
        });
        let handle = JoinHandle { packet: Arc::clone(&packet), thread: None };
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(body)).map_err(JoinError);
            let inside = Inside::enter();
            let waiter = {
                let mut state = lock(&packet.state);
                state.result = Some(result);
                state.waiter.take()
            };
            packet.done.notify_all();
            if let Some(waiter) = waiter {
                waiter.wake();
            }
            drop(inside);
            // Without a handle, this drops the result.
            discard(packet);
        };
        (handle, run)
    }

    /// The thread's identity, for example for [`Thread::unpark`].
    pub fn thread(&self) -> Thread {
        self.thread.expect("set at spawn")
    }

    /// Waits for the thread's end. A calling thread of an enclave blocks; any other calling thread sleeps in
    /// the kernel.
    ///
    /// Switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
    pub fn join(self) -> Result<T, JoinError> {
        let inside = Inside::enter();
        loop {
            let mut state = lock(&self.packet.state);
            if let Some(result) = state.result.take() {
                drop(state);
                drop(inside);
                current::preempt_point();
                return result;
            }
            match Waker::of_current() {
                Some(waker) => {
                    state.waiter = Some(waker);
                    drop(state);
                    current::suspend(Leave::Wait);
                }
                None => {
                    drop(self.packet.done.wait(state).unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }
}
