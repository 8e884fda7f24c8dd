//! The end of a wire at a data path: frames in, segments out, and the segments for which the wire has no room.

use std::collections::VecDeque;
use std::io;

use wave_links::LentPayload;
use wave_process::say;
use wave_tcp::datapath::{Packet, PartialChecksum, Payload, Segment, Ticket, Write};
use wave_wires::{Checksum, CsumPlace, Frame, Offload, RawPart, Sent, Wire};

use crate::captures::Recorders;

/// Number of waiting segments at which the data path starts no new turn.
const HELD_MAX: usize = 256;

/// The payload memories of processes, by their numbers.
pub(crate) trait ProcessPayloads {
    /// The memory of this process, unless the process has gone.
    fn payload(&self, process: u16) -> Option<&LentPayload>;
}

pub(crate) struct WirePort<W> {
    pub(crate) wire: W,
    /// Segments for which the wire had no room, oldest first.
    held: VecDeque<Segment<Frame>>,
    recorders: Recorders,
    failure: Option<String>,
}

impl<W: Wire> WirePort<W> {
    /// `outputs`: most segments that one poll yields.
    pub(crate) fn new(wire: W, recorders: Recorders, outputs: usize) -> WirePort<W> {
        // The data path does nothing while HELD_MAX segments wait.
        let held = VecDeque::with_capacity(HELD_MAX + outputs);
        WirePort { wire, held, recorders, failure: None }
    }

    /// Whether so many segments wait that the data path must wait, too.
    pub(crate) fn is_full(&self) -> bool {
        self.held.len() >= HELD_MAX
    }

    /// Whether segments wait for the wire.
    pub(crate) fn is_behind(&self) -> bool {
        !self.held.is_empty()
    }

    /// Why the wire is gone, if it is.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Takes frames from the wire, at most `budget`. Returns whether there were any.
    pub(crate) fn receive(&mut self, budget: usize, mut take: impl FnMut(Packet<Frame>)) -> bool {
        for count in 0..budget {
            match self.wire.receive() {
                Ok(Some(frame)) => {
                    self.recorders.received(&frame);
                    let checksum_is_good = frame.checksum == Checksum::Good;
                    let segment_bytes = frame.segment_bytes;
                    take(Packet { frame, checksum_is_good, segment_bytes });
                }
                Ok(None) => return count > 0,
                Err(error) => {
                    self.failure = Some(format!("the wire is gone: {error}"));
                    return count > 0;
                }
            }
        }
        budget > 0
    }

    /// Sends a segment, or queues it behind those that wait, so that a connection's segments stay in order. `done` gets its ticket
    /// once its payload memory is free.
    pub(crate) fn send(
        &mut self,
        payloads: &impl ProcessPayloads,
        segment: Segment<Frame>,
        done: &mut impl FnMut(Ticket),
    ) {
        let kept = match self.held.is_empty() {
            true => self.try_send(payloads, segment, done),
            false => Some(segment),
        };
        self.held.extend(kept);
    }

    /// Sends segments that wait, as far as there is room.
    pub(crate) fn send_held(
        &mut self,
        payloads: &impl ProcessPayloads,
        done: &mut impl FnMut(Ticket),
    ) {
        while let Some(segment) = self.held.pop_front() {
            if let Some(segment) = self.try_send(payloads, segment, done) {
                return self.held.push_front(segment);
            }
        }
    }

    /// Loses the segments that wait, as any cable may.
    pub(crate) fn discard_held(&mut self, done: &mut impl FnMut(Ticket)) {
        self.held.drain(..).filter_map(|segment| segment.ticket).for_each(done);
    }

    /// Sends a segment. Returns it if the wire has no room.
    fn try_send(
        &mut self,
        payloads: &impl ProcessPayloads,
        segment: Segment<Frame>,
        done: &mut impl FnMut(Ticket),
    ) -> Option<Segment<Frame>> {
        let parts = match &segment.payload {
            Payload::None => [RawPart::EMPTY; 2],
            Payload::Frame(frame, range) => [RawPart::of(&frame[range.clone()]), RawPart::EMPTY],
            Payload::Ring { process, ring, position, bytes } => {
                let payload = payloads.payload(*process);
                ring.parts(*position, *bytes)
                    .map(|(offset, len)| {
                        Some(RawPart::from(payload?.part(offset, len as usize).ok()?))
                    })
                    .map(Option::unwrap_or_default)
            }
        };
        let place = |place: PartialChecksum| CsumPlace { start: place.start, offset: place.offset };
        let offload =
            Offload { segment_bytes: segment.segment_bytes, checksum: segment.checksum.map(place) };
        match self.wire.send(segment.head.bytes(), parts, offload) {
            Ok(Sent::Full) => return Some(segment),
            Ok(Sent::Taken) => {
                self.recorders.sent(segment.head.bytes(), parts, offload, self.wire.limits());
            }
            Ok(Sent::Lost) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                say!("wave tcp: a segment was not sent: {error}");
            }
            Err(error) => self.failure = Some(format!("the wire is gone: {error}")),
        }
        if let Some(ticket) = segment.ticket {
            done(ticket);
        }
        None
    }
}

/// Copies received bytes to a process's ring.
pub(crate) fn copy(payloads: &impl ProcessPayloads, write: &Write<Frame>) {
    let payload = payloads.payload(write.process);
    let mut left = &write.frame[write.bytes.clone()];
    for (offset, len) in write.ring.parts(write.position, write.bytes.len() as u32) {
        let (first, rest) = left.split_at(len as usize);
        // The rings were checked against the memory when they were offered. Its size is sealed, and so are the pages that
        // the stack uses.
        let written = payload.map(|payload| payload.write(offset, first));
        debug_assert!(matches!(written, Some(Ok(()))), "{written:?}");
        left = rest;
    }
}
