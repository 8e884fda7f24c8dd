//! The front's thread: its sleep, and its end.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_agent::{OwnBell, Seat, ThreadFront};
use wave_wires::Wire;

use super::{DESCRIPTORS_MAX, TcpFront};
use crate::front_datapath::FrontDatapath;

impl<W: Wire, D: FrontDatapath> ThreadFront for TcpFront<W, D> {
    fn start(&self) -> Instant {
        self.start
    }

    fn has_ended(&mut self) -> bool {
        if self.is_replaced {
            return true;
        }
        if self.failure().is_none() && self.ends.load(Ordering::Relaxed) {
            self.end(self.hang_ups_checked);
            return true;
        }
        self.failure().is_some()
    }

    fn failure(&self) -> Option<String> {
        let of_wire = || self.wire_port.failure().map(str::to_owned);
        self.failure.clone().or_else(of_wire).or_else(|| self.stack.data.failure())
    }

    fn seat(&self) -> Seat {
        self.seat
    }

    /// This front is always alone on its thread, so there is no agent's bell.
    fn wait(&mut self, _bell: Option<&OwnBell>, timeout: Duration) {
        if self.is_replaced {
            return;
        }
        // On the stack, so that a sleep allocates nothing.
        let mut polled = ArrayVec::<PollFd<'_>, DESCRIPTORS_MAX>::new();
        let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        polled.extend(self.wire_port.wire.as_fd().map(input));
        let first = polled.len();
        polled.extend(self.door_fds().map(input));
        let doors = first..polled.len();
        for process in self.live_processes() {
            let [bell, line] = process.fds();
            // Nothing is ever read from the process's connection, so only its hang-up may wake the thread.
            polled.extend([input(bell), PollFd::from_borrowed_fd(line, PollFlags::RDHUP)]);
        }
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // A signal also ends the wait.
        let _ = poll(&mut polled, Some(&timeout));
        let is_set = |polled: &PollFd<'_>| !polled.revents().is_empty();
        let is_called = polled[doors.clone()].iter().any(is_set);
        // Each process has two descriptors: its bell, then its connection.
        let may_have_exited = polled[doors.end..].iter().skip(1).step_by(2).any(is_set);
        drop(polled);
        self.is_called |= is_called;
        self.may_have_exited |= may_have_exited;
    }
}
