//! How the protocol stage recovers from losses: go-back-N, which is the thesis', or by selective acknowledgements.
//!
//! | | [`GoBackN`] (thesis 4.3.1.1) | [`Sack`] (RFC 6675) |
//! | --- | --- | --- |
//! | intervals out of order | 1 | 4, told to the peer (RFC 2018, 2883) |
//! | a loss | 3 duplicates | 3 duplicates, 3 ranges or more than 2 segments above, or a quarter of a round trip (RFC 8985) |
//! | sent again | everything | what the peer does not have |
//! | on its way | sent and not acknowledged | of that, what the peer does not have and is not lost |
//! | a timeout | everything is sent again | the same, but for what the peer tells of from then on |
//!
//! A connection whose peer does not agree to selective acknowledgements recovers by go-back-N in either engine. State is the same
//! for both, so that a connection moves between engines.

use core::fmt::Debug;

use wave_core::clock::Nanos;

use super::acknowledge::rewind;
use super::transmit::Sent;
use crate::datapath::INTERVALS_MAX;
use crate::flow::intervals::Interval;
use crate::flow::state::{Protocol, Selective};
use crate::summary::Summary;

/// Duplicates that mean a loss.
const DUPLICATES: u8 = 3;

/// Most quarters of a round trip for which what is overtaken may only be late.
const REORDERING_MAX: u8 = 4;

/// What an acknowledgement said.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'a> {
    /// The segment.
    pub summary: &'a Summary,
    /// It acknowledges what was not acknowledged.
    pub is_new: bool,
    /// It says nothing new, as one does that answers a segment out of order.
    pub is_repeated: bool,
}

/// Part of the stream that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First position.
    pub from: u64,
    /// The position behind the last.
    pub to: u64,
    /// Most bytes that congestion control admits.
    pub room: u64,
    /// It is sent again because it was lost, and others behind it were not.
    pub is_hole: bool,
}

/// A way to recover from losses. Each function works on one connection, and has a bound.
pub trait Recovery: Copy + Debug + Send + 'static {
    /// Most intervals that a receiver keeps out of order, at most [`INTERVALS_MAX`].
    const INTERVALS: usize;
    /// Whether handshakes offer selective acknowledgements.
    const IS_SELECTIVE: bool;

    /// Takes what a valid acknowledgement says, after its position was taken. Returns whether a loss was noticed: once for all that
    /// was sent by then.
    fn on_acknowledgement(flow: &mut Protocol, heard: &Heard<'_>, now: Nanos) -> bool;

    /// Time has passed. Returns as [`Recovery::on_acknowledgement`].
    fn look(flow: &mut Protocol, now: Nanos) -> bool;

    /// What is sent next, if windows admit it.
    fn next(flow: &Protocol) -> Option<Span>;

    /// A segment of data was sent.
    fn on_sent(flow: &mut Protocol, sent: &Sent, now: Nanos);

    /// When to [`Recovery::look`].
    fn overdue_at(flow: &Protocol) -> Option<Nanos>;
}

/// One interval; after a loss all that is not acknowledged is sent again.
#[derive(Clone, Copy, Debug)]
pub struct GoBackN;

/// Selective acknowledgements.
#[derive(Clone, Copy, Debug)]
pub struct Sack;

impl Recovery for GoBackN {
    const INTERVALS: usize = 1;
    const IS_SELECTIVE: bool = false;

    fn on_acknowledgement(flow: &mut Protocol, heard: &Heard<'_>, _now: Nanos) -> bool {
        if heard.is_new {
            flow.duplicates = 0;
        } else if heard.is_repeated {
            flow.duplicates = flow.duplicates.saturating_add(1);
            if flow.duplicates == DUPLICATES && flow.acknowledged >= flow.recover {
                rewind(flow);
                flow.until_heard = Some(1);
                return true;
            }
        }
        false
    }

    fn look(_flow: &mut Protocol, _now: Nanos) -> bool {
        false
    }

    fn next(flow: &Protocol) -> Option<Span> {
        let room = (flow.acknowledged + u64::from(flow.window_bytes)).saturating_sub(flow.next);
        let span = Span { from: flow.next, to: flow.end(), room, is_hole: false };
        (span.from < span.to).then_some(span)
    }

    fn on_sent(_flow: &mut Protocol, _sent: &Sent, _now: Nanos) {}

    fn overdue_at(_flow: &Protocol) -> Option<Nanos> {
        None
    }
}

impl Recovery for Sack {
    const INTERVALS: usize = INTERVALS_MAX;
    const IS_SELECTIVE: bool = true;

    fn on_acknowledgement(flow: &mut Protocol, heard: &Heard<'_>, now: Nanos) -> bool {
        if !flow.is_selective {
            return GoBackN::on_acknowledgement(flow, heard, now);
        }
        if heard.is_new {
            advance(flow, now);
        }
        let is_news = take_blocks(flow, heard.summary);
        // RFC 6675, 2: a duplicate tells of something that came.
        if is_news && !heard.is_new {
            flow.duplicates = flow.duplicates.saturating_add(1);
        }
        suspect(flow, now);
        Sack::look(flow, now)
    }

    fn look(flow: &mut Protocol, now: Nanos) -> bool {
        let is_after_timeout = flow.acknowledged < flow.recover && !flow.selective.is_recovering;
        if !flow.is_selective || is_after_timeout {
            return false;
        }
        let Selective { is_recovering, lost, .. } = flow.selective;
        let Some(found) = find_lost(flow, now).filter(|found| *found > lost) else { return false };
        flow.selective.lost = found;
        suspect(flow, now);
        if is_recovering {
            return false;
        }
        flow.selective.is_recovering = true;
        flow.selective.resend = flow.acknowledged;
        flow.recover = flow.highest;
        flow.next = flow.highest;
        flow.until_heard = Some(1);
        true
    }

    fn next(flow: &Protocol) -> Option<Span> {
        if !flow.is_selective {
            return GoBackN::next(flow);
        }
        let Selective { board, is_recovering, lost, resend, .. } = &flow.selective;
        let in_flight = in_flight(flow);
        let mut room = u64::from(flow.window_bytes).saturating_sub(in_flight);
        if *is_recovering {
            // RFC 6675, section 5 (C): a segment at a time, or more.
            if in_flight > 0 && room < u64::from(flow.mss) {
                room = 0;
            }
            let from = board.skip(*resend);
            if from < *lost {
                let to = board.next(from).map_or(*lost, |has| has.min(*lost));
                return Some(Span { from, to, room, is_hole: true });
            }
        }
        let from = board.skip(flow.next);
        let to = board.next(from).unwrap_or(flow.end()).min(flow.end());
        (from < to).then_some(Span { from, to, room, is_hole: false })
    }

    fn on_sent(flow: &mut Protocol, sent: &Sent, now: Nanos) {
        // Karn's rule: of what was sent twice nothing is learnt.
        if sent.is_again {
            flow.selective.timed = None;
        } else if flow.selective.timed.is_none() {
            flow.selective.timed = Some((sent.position + u64::from(sent.bytes), now));
        }
    }

    fn overdue_at(flow: &Protocol) -> Option<Nanos> {
        let Selective { suspect, lost, suspected_at, .. } = flow.selective;
        let is_after_timeout = flow.acknowledged < flow.recover && !flow.selective.is_recovering;
        let is_suspected = flow.is_selective && suspect > lost && !is_after_timeout;
        reordering_window(flow).filter(|_| is_suspected).map(|window| suspected_at + window)
    }
}

/// Begins anew, after a timeout: the peer may have thrown away what it told of (RFC 2018, section 8).
pub fn forget(flow: &mut Protocol) {
    let Selective { reordering, round_trip_min, .. } = flow.selective;
    let at = flow.acknowledged;
    flow.selective =
        Selective { lost: at, resend: at, reordering, round_trip_min, ..Selective::default() };
}

/// The stream is acknowledged up to [`Protocol::acknowledged`].
fn advance(flow: &mut Protocol, now: Nanos) {
    flow.duplicates = 0;
    let selective = &mut flow.selective;
    let is_after_timeout = selective.lost < flow.recover && !selective.is_recovering;
    let overtaken = selective.board.ranges().last().map_or(0, |range| range.start);
    let (from, to) = (selective.resend.max(selective.lost), flow.acknowledged.min(overtaken));
    // What others had overtaken came by itself.
    if !is_after_timeout && selective.board.missing(from, to) > 0 {
        selective.reordering = selective.reordering.max(1);
    }
    selective.board.acknowledge(flow.acknowledged);
    selective.lost = selective.lost.max(flow.acknowledged);
    selective.resend = selective.resend.max(flow.acknowledged);
    if flow.acknowledged >= flow.recover && selective.is_recovering {
        selective.is_recovering = false;
        selective.lost = flow.acknowledged;
        selective.resend = flow.acknowledged;
    }
    if let Some((position, at)) = selective.timed
        && position <= flow.acknowledged
    {
        let took = now.since(at);
        selective.round_trip_min =
            Some(selective.round_trip_min.map_or(took, |least| least.min(took)));
        selective.timed = None;
    }
}

/// Takes the blocks that a peer can honestly have sent: of what was sent, and behind the byte that it expects. Returns whether one of
/// them is news.
fn take_blocks(flow: &mut Protocol, summary: &Summary) -> bool {
    let near = (flow.acknowledged, summary.ack);
    let mut is_news = false;
    for (first, behind) in summary.sack {
        let start = first.position(near.0, near.1);
        let end = behind.position(near.0, near.1);
        let Some((start, end)) = start.zip(end).filter(|(start, end)| start < end) else {
            continue;
        };
        if end <= flow.acknowledged {
            // It came twice, so that it had only been late (RFC 2883; RFC 8985, 6.2).
            flow.selective.reordering = (flow.selective.reordering + 1).min(REORDERING_MAX);
        } else if start > flow.acknowledged && end <= flow.highest {
            is_news |= flow.selective.board.insert(Interval { start, end });
        }
    }
    is_news
}

/// Remembers since when bytes are overtaken.
fn suspect(flow: &mut Protocol, now: Nanos) {
    let selective = &mut flow.selective;
    let Some(last) = selective.board.ranges().last() else { return };
    if selective.suspect <= selective.lost && last.start > selective.lost {
        selective.suspect = last.start;
        selective.suspected_at = now;
    }
}

/// How long bytes may be overtaken without being lost (RFC 8985, 6.2), once a round trip was measured.
fn reordering_window(flow: &Protocol) -> Option<Nanos> {
    let Selective { round_trip_min, reordering, .. } = flow.selective;
    round_trip_min.map(|least| Nanos(least.0 / 4 * u64::from(reordering.max(1))))
}

/// All before this that the peer does not have is lost.
fn find_lost(flow: &Protocol, now: Nanos) -> Option<u64> {
    let Selective { board, suspect, suspected_at, reordering, .. } = &flow.selective;
    let first = board.ranges().first()?.start;
    let window = reordering_window(flow);
    let is_overdue = window.is_some_and(|window| now >= *suspected_at + window);
    let by_time = (*suspect > flow.acknowledged && is_overdue).then_some(*suspect);
    // Where bytes come late without being lost, only time tells.
    if *reordering > 0 && window.is_some() {
        return by_time;
    }
    let by_count = (flow.duplicates >= DUPLICATES).then_some(first);
    [by_time, by_count, board.lost(flow.mss)].into_iter().flatten().max()
}

/// RFC 6675's pipe: what is sent, and neither had by the peer nor lost, and what is sent again.
fn in_flight(flow: &Protocol) -> u64 {
    let Selective { board, lost, resend, .. } = &flow.selective;
    board.missing(flow.acknowledged, *resend) + board.missing((*lost).max(*resend), flow.next)
}
