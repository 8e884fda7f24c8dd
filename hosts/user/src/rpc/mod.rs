//! Serves RPCs that an agent terminates: the application sees requests, but neither sockets nor HTTP/2.
//!
//! A [`Server`] has *workers*, each with a queue of requests and one of replies. [`Server::start`] gives each worker a pthread
//! that calls handlers; [`Server::start_polled`] gives the [`Worker`]s to the caller, who polls; [`Server::start_threads`] runs
//! each worker as a thread of an enclave, so that handlers are scheduled, and preempted, by the enclave's agent.
//!
//! Handlers are not async. The handler of a method with one message each way occupies its worker until it returns. A streaming
//! handler lets its worker serve other calls while it waits for its client, and after every few messages. So a handler's calls that
//! receive or send may return after other handlers have run, and on another pthread if the worker is a thread of an enclave:
//! [the rule](crate#threads-move-between-pthreads) for what may be held across a switch holds for them, on any worker.
//!
//! ```no_run
//! use wave_user::rpc::{Methods, Options, Server};
//! let methods = Methods::new().unary("/echo.Echo/Unary", |_call, request| Ok(request.to_vec()));
//! let server = Server::start(Options::new("/tmp/echo.sock"), methods)?;
//! # Ok::<(), wave_user::rpc::ServeError>(())
//! ```

mod call;
mod control;
mod idle;
mod methods;
mod missed_requests;
mod server;
mod serving;
mod streams;
pub mod typed;
mod worker;

pub use call::{Call, EndedError};
pub use methods::{Handler, Methods};
pub use server::{Options, ServeError, Server, Stats, Work};
pub use wave_rpc::metadata::{BadPair, Metadata, push as push_pair};
pub use wave_rpc::service::{Method, Service};
pub use wave_rpc::status::{Code, Status};
pub use wave_rpc::stub::{Event, SendError, Wait};
pub use wave_rpc::wire::{Begin, COMPRESSED, END};
pub use worker::{Lost, Worker};
