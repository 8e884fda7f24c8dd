//! Linux's epoll, poll and select for descriptors of which some are the kernel's and some are sockets of this process.
//!
//! A socket layer has a [`Source`] per open file description, and tells it of each change. A program's set is an [`Epoll`] around the
//! kernel's own. A call that waits has a [`Waiter`], which processes news from agents and sleeps in the kernel.
//!
//! ```
//! use std::time::Duration;
//! use wave_readiness::{Alone, Epoll, Event, EventData, EventFlags, Source, Target};
//!
//! let kernel = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
//! let set = Epoll::new(kernel);
//! let socket = Source::new(EventFlags::OUT);
//! let interest = Event { flags: EventFlags::IN, data: EventData::new_u64(7) };
//! set.add(Target::Source(5, &socket), interest)?;
//! socket.changed(EventFlags::IN | EventFlags::OUT, EventFlags::IN);
//!
//! let mut events = [interest; 8];
//! assert_eq!(set.wait(&Alone, &mut events, Some(Duration::ZERO))?, 1);
//! assert_eq!(events[0].data.u64(), 7);
//! # Ok::<(), rustix::io::Errno>(())
//! ```
//!
//! The order of events among sources is the kernel's: first ready, first reported; a level-triggered entry that was reported moves to
//! the tail. `tests/differential` compares all of this with the running kernel.
//!
//! Must not know: sockets, agents, the meaning of a descriptor's number to a program.

#![forbid(unsafe_code)]

mod epoll;
mod list;
mod poll;
mod select;
mod source;
mod sync;
mod waiter;
mod waker;

pub use epoll::{Epoll, Interest, Target};
pub use poll::{Polled, poll};
pub use rustix::event::epoll::{Event, EventData, EventFlags};
pub use rustix::event::{PollFd, PollFlags, Timespec};
pub use rustix::io::Errno;
pub use select::{Bits, select};
pub use source::Source;
pub use waiter::{Alone, Waiter, prepare_sleep};
pub use waker::{Keeper, set_keeper};
