//! Refusals, as lines of the log and in the agent's report. Refused
//! programs see an errno at best, and often have no standard error. Demoted connections, with which a program is slower, have a line, too.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Arguments;

use serde_json::{Value, json};
use wave_core::clock::Nanos;
use wave_process::say;
use wave_tcp::context::demotion::Cause;
use wave_tcp::context::{HostFailure, Reason, Request};
use wave_tcp::control::Call;

/// Most refusals that a report has. Equal ones of a process are counted as one.
pub(crate) const REFUSALS_MAX: usize = 32;
/// Shortest interval between lines of the log: the next refusal may be the same in every turn.
const LOG_EVERY: Nanos = Nanos::from_millis(1_000);

/// The reason for turning out a process with more waiting events than its share.
pub(crate) const TAKES_NO_EVENTS: &str = "it does not take its events";

const NOT_TAKEN_OVER: &str = "cannot take over a connection of another process";

/// A process, as the kernel knew it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// What has happened to a process. The texts follow "process 1 of user 2".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) outcome: &'static str,
    pub(crate) why: Cow<'static, str>,
}

#[derive(Debug)]
struct RefusalRow {
    at: Nanos,
    peer: Peer,
    refusal: Refusal,
    count: u64,
}

/// The last refusals, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    last: VecDeque<RefusalRow>,
    /// When a line was last written, and the refusals since.
    logged_at: Option<Nanos>,
    suppressed: u64,
}

impl Refusals {
    /// Remembers a refusal, and writes a line about it.
    pub(crate) fn add(&mut self, now: Nanos, peer: Peer, refusal: Refusal) {
        let (Peer { pid, uid }, Refusal { outcome, why }) = (peer, &refusal);
        self.log(now, format_args!("process {pid} of user {uid} {outcome}: {why}"));
        let same = self.last.iter().position(|old| old.peer == peer && old.refusal == refusal);
        let count = same.and_then(|at| self.last.remove(at)).map_or(0, |old| old.count);
        if self.last.len() == REFUSALS_MAX {
            self.last.pop_front();
        }
        self.last.push_back(RefusalRow { at: now, peer, refusal, count: count + 1 });
    }

    /// Writes a line about a connection that has become a stream of the kernel's. `program` is the name of the process's program.
    pub(crate) fn log_demotion(
        &mut self,
        now: Nanos,
        peer: Peer,
        program: Option<&str>,
        cause: Cause,
    ) {
        let Peer { pid, uid } = peer;
        let program = program.map_or_else(String::new, |program| format!(" ({program})"));
        let state = "has a demoted connection, which is slower";
        self.log(now, format_args!("process {pid}{program} of user {uid} {state}: {cause}"));
    }

    /// Writes a line at most every [`LOG_EVERY`], and how many were left out before it.
    pub(crate) fn log(&mut self, now: Nanos, line: Arguments<'_>) {
        if self.logged_at.is_some_and(|at| now.since(at) < LOG_EVERY) {
            self.suppressed += 1;
            return;
        }
        self.logged_at = Some(now);
        match std::mem::take(&mut self.suppressed) {
            0 => say!("wave tcp: {line}"),
            more => say!(
                "wave tcp: {line} ({more} more lines left out; `wave tcp ss` has the refusals)"
            ),
        }
    }

    /// The refusals for a report, newest first.
    pub(crate) fn report(&self, now: Nanos) -> Value {
        let row = |refusal: &RefusalRow| {
            let RefusalRow { at, peer, refusal, count } = refusal;
            let seconds_ago = now.since(*at).0 / 1_000_000_000;
            json!({
                "seconds_ago": seconds_ago,
                "pid": peer.pid,
                "uid": peer.uid,
                "outcome": refusal.outcome,
                "why": refusal.why,
                "count": count,
            })
        };
        self.last.iter().rev().map(row).collect()
    }
}

impl Refusal {
    pub(crate) fn new(outcome: &'static str, why: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { outcome, why: why.into() }
    }

    /// The stack has refused a call, or reset a connection.
    pub(crate) fn of_stack(call: Call, reason: Reason) -> Refusal {
        let why = match (call, reason) {
            (Call::Listen, Reason::TooMany) => {
                "its program or user has its share of the agent's listeners (EMFILE)"
            }
            (Call::Listen, Reason::NoRoom) => "the agent has as many listeners as it can (ENOBUFS)",
            (Call::Listen, Reason::NotPermitted) => {
                "ports below 1024 are for root and the agent's user (EACCES)"
            }
            (Call::Connect, Reason::NotPermitted) => {
                "local ports below 1024 are for root and the agent's user (EACCES)"
            }
            (Call::Connect, Reason::TooMany) => {
                "its program or user has its share of the agent's connections or handshakes (EMFILE)"
            }
            (Call::Accept | Call::Connect, Reason::NoRoom) => {
                "the agent has as many connections or handshakes as it can (ENOBUFS)"
            }
            (Call::TakeOver(_), Reason::TooMany) => {
                "its program or user has its share of the agent's connections (ECONNRESET)"
            }
            (Call::TakeOver(_), Reason::Invalid) => {
                "the connection has ended, or no process of its family has it (ECONNRESET)"
            }
            (Call::TakeOver(_), Reason::NoRoom) => {
                "the connection has carried too many bytes since it was shared, or too many others are being taken over (ECONNRESET)"
            }
            (Call::TakeOver(_), Reason::TimedOut) => {
                "its owner's last requests did not arrive (ECONNRESET)"
            }
            (Call::TakeOver(_), _) => "the connection has ended (ECONNRESET)",
            (Call::Use, _) => "it used memory or positions that it does not have",
            (Call::Listen | Call::Accept | Call::Connect, _) => {
                "it named memory that it does not have, or a name twice (EINVAL)"
            }
        };
        Refusal::new(outcome_of(call), why)
    }

    /// A request's rings would have exceeded a share.
    pub(crate) fn beyond_share(request: &Request) -> Refusal {
        let call = match *request {
            Request::Slot { .. } => Call::Accept,
            Request::Take { flow, .. } => Call::TakeOver(flow),
            _ => Call::Connect,
        };
        let why = "its program or user has its share of the memory for rings that the agent can map (ENOBUFS)";
        Refusal::new(outcome_of(call), why)
    }

    /// A request named rings that are none.
    pub(crate) fn invalid() -> Refusal {
        Refusal::new("cannot open a connection", "it named rings outside of its memory (EINVAL)")
    }

    /// A process has reported this itself.
    pub(crate) fn reported(failure: HostFailure) -> Refusal {
        match failure {
            HostFailure::NotTakenOver => Refusal::new(
                NOT_TAKEN_OVER,
                "by its own report, the connection had ended, or had carried too many bytes (ECONNRESET)",
            ),
            HostFailure::NoRings => Refusal::new(
                outcome_of(Call::Connect),
                "by its own report, its payload memory has no room for more rings (ENOBUFS)",
            ),
            HostFailure::NoMemory => Refusal::new(
                "cannot send",
                "by its own report, its limits or the machine's give it no more memory (ENOBUFS)",
            ),
        }
    }
}

fn outcome_of(call: Call) -> &'static str {
    match call {
        Call::Listen => "cannot listen",
        Call::Accept => "cannot accept",
        Call::Connect => "cannot connect",
        Call::TakeOver(_) => NOT_TAKEN_OVER,
        Call::Use => "has lost a connection",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: i32) -> Peer {
        Peer { pid, uid: 1_000 }
    }

    #[test]
    fn equal_refusals_of_a_process_are_one_row_and_the_report_is_bounded() {
        let mut refusals = Refusals::default();
        let full = || Refusal::of_stack(Call::Listen, Reason::TooMany);
        for second in 0..3 {
            refusals.add(Nanos::from_millis(1_000 * second), peer(1), full());
        }
        refusals.add(Nanos::from_millis(4_000), peer(2), Refusal::reported(HostFailure::NoRings));
        let report = refusals.report(Nanos::from_millis(9_500));
        assert_eq!(report[1]["count"], 3);
        assert_eq!((&report[1]["seconds_ago"], &report[1]["pid"]), (&json!(7), &json!(1)));
        assert_eq!(report[0]["outcome"], "cannot connect");
        // A program that forks and fails does not take more than the report has.
        for pid in 0..1_000 {
            refusals.add(Nanos(0), peer(pid), full());
        }
        let report = refusals.report(Nanos(0));
        assert_eq!(report.as_array().map(Vec::len), Some(REFUSALS_MAX));
        assert_eq!(report[0]["pid"], 999);
    }

    #[test]
    fn enobufs_and_emfile_name_the_limit() {
        let why = |refusal: Refusal| refusal.why.into_owned();
        let listens = why(Refusal::of_stack(Call::Listen, Reason::NoRoom));
        let connects = why(Refusal::of_stack(Call::Connect, Reason::NoRoom));
        let shares = why(Refusal::of_stack(Call::Connect, Reason::TooMany));
        assert!(listens.contains("listeners") && connects.contains("handshakes"));
        assert!(shares.contains("share") && shares.contains("connections"));
    }
}
