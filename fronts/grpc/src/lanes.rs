//! Pieces of the lanes between the first core of a front and a connection core ([`wave_agent::lanes`]).

use wave_agent::lanes::Weigh;
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_rpc::dispatch::{Arrival, Event};
use wave_rpc::status::Code;

use crate::slots::Ready;

/// The writing end of a lane to a core of a front.
pub type Out<T> = wave_agent::lanes::Out<T, Ready>;

/// A request of a connection core to the first core. It names a call by the core's slot and a number that is unique on that
/// core.
#[derive(Debug)]
pub enum ToHost {
    /// A call begins, if this host is still attached.
    Begin {
        /// Number of the attached host, counted from the first.
        host: u32,
        call: Subject,
        /// The call, for the dispatcher.
        arrival: Arrival,
    },
    /// The client has sent a message.
    Message {
        call: Subject,
        /// The message, not compressed.
        message: bytes::Bytes,
        /// Whether it is the last.
        end: bool,
        compressed: bool,
    },
    /// The client sends nothing more.
    HalfClose(Subject),
    /// A reply of this many bytes was passed on to the client.
    Grant(Subject, u32),
    /// The call was cancelled: its events are no longer wanted.
    Cancel(Subject, Code),
    /// The core begins calls for this host from now on.
    Ready(u32),
}

/// A message of the first core to a connection core.
#[derive(Debug)]
pub enum ToCore {
    /// An event of a call, or the host's service.
    Event(Event),
    /// A host is attached, and not ready yet.
    Attached,
    /// The attached host and its workers are ready.
    Ready {
        /// Number of the attached host, counted from the first.
        host: u32,
        /// How long to look for work before sleeping.
        spin: Nanos,
    },
    /// The host has gone, and all its calls with it.
    Gone,
}

impl Weigh for ToHost {
    fn bytes(&self) -> usize {
        match self {
            ToHost::Begin { arrival, .. } => {
                arrival.metadata.len() + arrival.message.as_ref().map_or(0, bytes::Bytes::len)
            }
            ToHost::Message { message, .. } => message.len(),
            ToHost::HalfClose(_) | ToHost::Grant(..) | ToHost::Cancel(..) | ToHost::Ready(_) => 0,
        }
    }
}

impl Weigh for ToCore {
    fn bytes(&self) -> usize {
        match self {
            ToCore::Event(Event::Message { message, .. }) => message.len(),
            ToCore::Event(_) | ToCore::Attached | ToCore::Ready { .. } | ToCore::Gone => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    use wave_agent::lanes::{In, lane};

    use super::*;

    fn grant(at: u32) -> ToHost {
        ToHost::Grant(Subject { id: at, generation: 0 }, at)
    }

    /// Two threads that sleep whenever they find nothing: a single lost wake-up stops both.
    #[test]
    fn no_wake_up_is_lost_between_two_sleepers() {
        const TURNS: u32 = 20_000;
        let ready = [Arc::new(Ready::default()), Arc::new(Ready::default())];
        let (mut there, mut in_there) = lane(Arc::clone(&ready[1]));
        let (mut back, mut in_back) = lane(Arc::clone(&ready[0]));
        let other = Arc::clone(&ready[1]);
        let echo = std::thread::spawn(move || {
            for _ in 0..TURNS {
                back.send(wait(&mut in_there, &other));
                back.flush();
            }
        });
        for turn in 0..TURNS {
            there.send(grant(turn));
            there.flush();
            assert!(matches!(wait(&mut in_back, &ready[0]), ToHost::Grant(_, at) if at == turn));
        }
        echo.join().unwrap();
    }

    /// Waits for a piece as a front's core does.
    fn wait(from: &mut In<ToHost>, ready: &Ready) -> ToHost {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Some(piece) = from.take() {
                return piece;
            }
            ready.prepare_park();
            let piece = from.take();
            if piece.is_none() && !ready.sleep(&waker) {
                std::thread::park();
            }
            ready.awake();
            ready.unpark();
            ready.take_rung();
            if let Some(piece) = piece {
                return piece;
            }
        }
    }

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn only_a_sleeping_receiver_is_rung() {
        let ready = Arc::new(Ready::default());
        let (mut out, _inward) = lane(Arc::clone(&ready));
        out.send(grant(0));
        out.flush();
        assert!(!ready.take_rung());
        ready.prepare_park();
        out.flush();
        assert!(!ready.take_rung(), "nothing new was sent");
        out.send(grant(1));
        out.flush();
        assert!(ready.take_rung());
    }
}
