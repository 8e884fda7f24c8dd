//! The post stage: counts, and the outputs of an entry.

use super::{Outcome, ProtocolResult, SEND};
use crate::context::Event;
use crate::datapath::{Output, Payload, Segment, Ticket, Tuple, Write};
use crate::flow::state::{Post, Pre};
use crate::packet::{MacAddress, partial_checksum};
use crate::stages::post;
use crate::trace::Trace;

/// The post stage's counts (Stats). They commute.
pub fn count<F>(post: &mut Post, result: &ProtocolResult<F>) {
    if let Some(acknowledged) = &result.acknowledged {
        post::count(post, acknowledged);
    }
}

/// The post stage (Ack, Stamp, Pos): the outputs of an entry, in order.
pub fn post<F>(
    mac: MacAddress,
    trace: &Trace,
    flow: Option<(&Tuple, &Pre, &Post)>,
    result: ProtocolResult<F>,
    mut out: impl FnMut(Output<F>),
) -> Outcome {
    if trace.is_on() {
        result.trace_outputs(trace);
    }
    let ProtocolResult { flow: id, segments, write, notify, process, outcome, .. } = result;
    let Some((tuple, pre, post)) = flow else { return outcome };
    for (header, data) in segments.into_iter().flatten() {
        let payload = match header.bytes {
            0 => Payload::None,
            bytes => Payload::Ring { process, ring: post.send, position: data.position, bytes },
        };
        out(Output::Send(Segment {
            ticket: data.is_awaited.then_some(Ticket(SEND | u64::from(id.index))),
            head: post::head(mac, tuple, pre, &header),
            payload,
            checksum: Some(partial_checksum(&tuple.local)),
            segment_bytes: data.segment_bytes,
        }));
    }
    if let Some((frame, position, bytes)) = write {
        // A placeholder: the queue of copies assigns the ticket.
        let ticket = Ticket(0);
        out(Output::Write(Write { ticket, process, ring: post.receive, position, frame, bytes }));
    }
    if let Some((context, progress)) = notify {
        out(Output::Notify(context, Event::Progress(progress)));
    }
    outcome
}
