//! Fronts on an agent's thread: they sleep when it does, and what they wait for wakes it.

use std::time::{Duration, Instant};

use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_core::link::Waiter;

use crate::attach::OwnBell;
use crate::run::Seat;

/// A front on a thread of the operating system: beside an agent that decides, or alone. `()` is none.
pub trait ThreadFront: Front {
    /// Where the clock of the agent and its front begins.
    fn start(&self) -> Instant {
        Instant::now()
    }

    /// Whether it was told to end, and has.
    fn has_ended(&mut self) -> bool {
        false
    }

    /// Whether a turn that did something left more to do at once. Only a front that is alone is asked: one that is done may sleep
    /// without another look.
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

    /// What takes milliseconds. Only a front that is alone is asked.
    fn look_after(&mut self) {}

    /// The agent beside it is rung by this bell, which is the same in each [`ThreadFront::wait`].
    fn join(&mut self, _bell: &OwnBell) {}

    /// Sleeps until it has something to do, the agent beside it is rung, or for `timeout`. Forgets rings of that agent's bell.
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

    fn look_after(&mut self) {
        (**self).look_after();
    }

    fn join(&mut self, bell: &OwnBell) {
        (**self).join(bell);
    }

    fn wait(&mut self, bell: Option<&OwnBell>, timeout: Duration) {
        (**self).wait(bell, timeout);
    }
}
