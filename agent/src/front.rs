//! Fronts on an agent's thread: they sleep when it sleeps, and their sockets wake it.

use std::time::{Duration, Instant};

use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_core::link::Waiter;

use crate::attach::OwnBell;
use crate::run::Seat;

/// A front on a thread of the operating system, which it shares with an agent that decides, or has alone. `()` is no front.
pub trait ThreadFront: Front {
    /// Time 0 of the clock that the agent and its front share.
    fn start(&self) -> Instant {
        Instant::now()
    }

    /// Whether the front was told to end, and has ended.
    fn has_ended(&mut self) -> bool {
        false
    }

    /// Whether a turn that did something left more to do at once; if not, the thread may sleep without another look. Only
    /// called on a front that is alone.
    fn has_more(&self) -> bool {
        true
    }

    /// Why the front ended on its own, if it did.
    fn failure(&self) -> Option<String> {
        None
    }

    /// How a front that is alone waits for work.
    fn seat(&self) -> Seat {
        Seat::Own
    }

    /// How long a front that is alone looks for work before it parks.
    fn spin(&self) -> Nanos {
        Nanos(0)
    }

    /// Does work that takes milliseconds. Only called on a front that is alone.
    fn maintain(&mut self) {}

    /// Tells the front the doorbell of the agent on its thread, the one that each [`ThreadFront::wait`] gets.
    fn join(&mut self, _bell: &OwnBell) {}

    /// Sleeps until the front has something to do, `bell` (the agent's) is rung, or `timeout` is over. Consumes its rings.
    fn wait(&mut self, bell: Option<&OwnBell>, timeout: Duration);
}

impl ThreadFront for () {
    fn wait(&mut self, bell: Option<&OwnBell>, timeout: Duration) {
        match bell {
            Some(bell) => drop(bell.wait(Some(timeout))),
            None => std::thread::sleep(timeout),
        }
    }
}

impl<F: ThreadFront + ?Sized> ThreadFront for &mut F {
    fn start(&self) -> Instant {
        (**self).start()
    }

    fn has_ended(&mut self) -> bool {
        (**self).has_ended()
    }

    fn has_more(&self) -> bool {
        (**self).has_more()
    }

    fn failure(&self) -> Option<String> {
        (**self).failure()
    }

    fn seat(&self) -> Seat {
        (**self).seat()
    }

    fn spin(&self) -> Nanos {
        (**self).spin()
    }

    fn maintain(&mut self) {
        (**self).maintain();
    }

    fn join(&mut self, bell: &OwnBell) {
        (**self).join(bell);
    }

    fn wait(&mut self, bell: Option<&OwnBell>, timeout: Duration) {
        (**self).wait(bell, timeout);
    }
}
