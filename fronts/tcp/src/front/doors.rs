//! The agent's listening sockets: the door for processes, and those for reports, captures, traces and new agents.

use std::borrow::Cow;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_core::clock::Nanos;
use wave_links::socket::SocketError;
use wave_wires::Wire;

use super::{DOOR_DESCRIPTORS_MAX, TcpFront};
use crate::door::DoorError;
use crate::front_datapath::FrontDatapath;
use crate::refusal_log::{Peer, Refusal};

impl<W: Wire, D: FrontDatapath> TcpFront<W, D> {
    /// Descriptors that become readable when a process or an agent connects, or a reader sends or ends.
    pub(super) fn door_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let asked = self.captures.fds().chain(self.traces.fds());
        let others = self.reports.fds().chain(self.successor_fds());
        self.door.fds().chain(others).chain(asked).chain([self.streams.fd()])
    }

    /// Whether one of these descriptors is readable. This is one system call; a look at each door takes several.
    pub(super) fn has_door_event(&self) -> bool {
        let mut polled = ArrayVec::<PollFd<'_>, DOOR_DESCRIPTORS_MAX>::new();
        polled.extend(self.door_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }

    /// Lets processes in, sends reports, begins and ends captures and traces. Returns whether a process was let in.
    pub(super) fn poll_doors(&mut self, now: Nanos) -> bool {
        self.doors_polled = now;
        let has_admitted = self.admit_process(now);
        self.captures.poll(now);
        self.traces.poll(now);
        let (stack, processes, streams) = (&self.stack, &self.processes, &self.streams);
        let captured = self.captures.counters();
        let counts = (self.admission, streams.counts);
        let refusals = &self.refusals;
        let start = self.start;
        let clock = || Nanos(start.elapsed().as_nanos() as u64);
        self.reports.poll(now, clock, || {
            let pid_of = |process: u16| {
                let admitted = processes.get(usize::from(process))?.as_ref()?;
                Some(admitted.process.pid())
            };
            stack.data.suspend();
            let served_by = |flow| streams.served_by(flow);
            let refusals = refusals.report(now);
            let report =
                crate::report::report(stack, captured, counts, refusals, pid_of, served_by);
            stack.data.release();
            report
        });
        has_admitted
    }

    /// Lets a process in, if one has a good offer.
    fn admit_process(&mut self, now: Nanos) -> bool {
        match self.door.poll(now) {
            Ok(None) => false,
            Ok(Some(process)) => {
                self.admit(now, process);
                true
            }
            Err(error) => {
                self.admission.refused_offers += 1;
                self.record_door_error(now, &error);
                false
            }
        }
    }

    fn record_door_error(&mut self, now: Nanos, error: &DoorError) {
        let (peer, why) = match error {
            DoorError::Offer { pid, uid, error } => {
                (Peer { pid: *pid, uid: *uid }, error.to_string().into())
            }
            DoorError::Accept(SocketError::Stranger { pid, uid }) => {
                let why = Cow::from("its user may not use this agent: see --allow");
                (Peer { pid: *pid, uid: *uid }, why)
            }
            DoorError::Accept(error) => return self.refusals.log(now, format_args!("{error}")),
        };
        self.refusals.add(now, peer, Refusal::new("is turned away", why));
    }
}
