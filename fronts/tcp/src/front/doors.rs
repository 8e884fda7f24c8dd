//! Where others come to the agent: the door for processes, and the sockets for reports, captures and traces.

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_core::clock::Nanos;
use wave_tcp::stages::recover::Recovery;
use wave_wires::Wire;

use super::{DOOR_DESCRIPTORS_MAX, TcpFront};

impl<W: Wire, R: Recovery> TcpFront<W, R> {
    /// What becomes readable when somebody comes, asks, or has had enough.
    pub(super) fn door_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let asked = self.captures.fds().chain(self.traces.fds());
        let others = self.inquiries.fds().chain(self.successor_fds());
        self.door.fds().chain(others).chain(asked)
    }

    /// Whether somebody is there: one system call, where a look at each door is several, and dearer.
    pub(super) fn hears_a_call(&self) -> bool {
        let mut polled = ArrayVec::<PollFd<'_>, DOOR_DESCRIPTORS_MAX>::new();
        polled.extend(self.door_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }

    /// Lets processes in, answers inquiries, begins and ends captures and traces.
    pub(super) fn look_at_doors(&mut self, now: Nanos) -> bool {
        self.knocked = now;
        let has_let_in = self.let_in(now);
        self.captures.look(now);
        self.traces.look(now);
        let (stack, processes) = (&self.stack, &self.processes);
        let (captured, turned_away) = (self.captures.captured(), self.turned_away);
        self.inquiries.answer(now, || {
            let pid_of = |process: u16| {
                let seated = processes.get(usize::from(process))?.as_ref()?;
                Some(seated.process.pid())
            };
            crate::report::report(stack, captured, turned_away, pid_of)
        });
        has_let_in
    }

    /// Lets processes in.
    fn let_in(&mut self, now: Nanos) -> bool {
        match self.door.poll(now) {
            Ok(None) => false,
            Ok(Some(process)) => {
                self.seat(now, process);
                true
            }
            Err(error) => {
                self.turned_away.at_the_door += 1;
                self.complain(now, format_args!("{error}"));
                false
            }
        }
    }
}
