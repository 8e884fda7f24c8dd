//! A front that terminates TCP: it connects an agent that owns an IP address with processes and packets.
//!
//! Roles at the door are the reverse of other subsystems': many processes attach to one agent. The agent listens; a process
//! connects and offers its window, its doorbells and its payload memory. [`Door`] checks the offer, and [`Process`] is the
//! agent's end of the window: requests in, events out, payload by bytes. [`TcpFront`] joins them with a stack of `wave-tcp` and
//! a wire.
//!
//! Must not know: what a process does with its connections; TCP itself, which is in `wave-tcp`.

#![forbid(unsafe_code)]

mod address_conflict;
mod admitted;
mod captures;
mod door;
mod front;
mod front_datapath;
mod groups;
mod handover;
mod process;
mod readers;
mod refusal_log;
mod report;
mod report_socket;
mod streams;
mod tool_sockets;
mod traces;
mod wire_port;

pub use address_conflict::holder_of;
pub use admitted::{EVENTS_MAX, PROCESSES_MAX, SPANS_MAX};
pub use captures::{CaptureRequest, Captures, captures_path};
pub use door::{Door, DoorError, DoorOptions, OFFER_PATIENCE, OfferError, WAITING_MAX};
pub use front::{TcpFront, TcpOptions};
pub use front_datapath::FrontDatapath;
pub use groups::{GroupWires, Groups, Sender, steering_over};
pub use handover::{HandoverError, Predecessor, Successors, WireKind, replace_path};
pub use process::{Fault, Process, REQUESTS_PER_TURN, Received};
pub use report_socket::{ReportSocket, reports_path};
pub use traces::{TraceRequest, Traces, traces_path};
