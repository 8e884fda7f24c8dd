//! Runs a script and checks its expectations.

use wave_core::clock::Nanos;
use wave_posix::is_ring_size;
use wave_tcp::datapaths::DatapathKind;
use wave_tcp::packet::Ecn;
use wave_tcp_testbed::{byte, first_wrong};

use crate::frames;
use crate::machine::{BEGIN, Machine};
use crate::notation::{ecn, returned, seconds};
use crate::peers::{Peers, UnknownEcho};
use crate::process::{Outcome, Process, Returned, Unsupported};
use crate::script::{Action, Argument, Body, Call, Event, Packet, Script, Segment, When};
use crate::{BadScript, Failure, RunError};

/// Default ring sizes in bytes (SO_RCVBUF, SO_SNDBUF): they give a window scale of 8, as packetdrill's defaults do.
const RING_BYTES: [u32; 2] = [8 << 20, 256 << 10];
/// How long to wait for a packet that may be sent at any time (`*`).
const PATIENCE: Nanos = Nanos::from_millis(3_600_000);

/// Runs a script over a data path.
///
/// # Errors
/// An expectation was not met, or the script uses a feature that this interpreter lacks.
pub fn run(script: &Script, kind: DatapathKind) -> Result<(), RunError> {
    let mut run = Run {
        machine: Machine::new(kind, ring_bytes(script)?, script.settings),
        process: Process::default(),
        peers: Peers::default(),
        pending: None,
        tolerance: script.tolerance,
        last_line: 0,
    };
    for (at, event) in script.events.iter().enumerate() {
        let next = script.events[at..].iter().find(|event| matches!(event.action, Action::Out(_)));
        run.event(event, next)?;
        run.last_line = event.line;
    }
    run.finish()
}

/// Ring sizes: those of the first SO_RCVBUF and SO_SNDBUF in the script.
fn ring_bytes(script: &Script) -> Result<[u32; 2], RunError> {
    let mut bytes = RING_BYTES;
    let mut is_named = [false; 2];
    for event in &script.events {
        let Action::Call(call) = &event.action else { continue };
        let [_, _, Argument::Names(names), Argument::List(values), ..] = call.arguments.as_slice()
        else {
            continue;
        };
        let at = match names[0].as_str() {
            "SO_RCVBUF" => 0,
            "SO_SNDBUF" => 1,
            _ => continue,
        };
        if call.name != "setsockopt" || std::mem::replace(&mut is_named[at], true) {
            continue;
        }
        match values.as_slice() {
            [Argument::Number(size)] if u32::try_from(*size).is_ok_and(is_ring_size) => {
                bytes[at] = *size as u32;
            }
            _ => {
                return Err(bad(
                    event.line,
                    "SO_RCVBUF and SO_SNDBUF set ring sizes here: powers of two, 4096 to 16777216",
                ));
            }
        }
    }
    Ok(bytes)
}

fn bad(line: usize, what: impl Into<String>) -> RunError {
    RunError::Bad(BadScript { line, column: 1, what: what.into() })
}

struct Run {
    machine: Machine,
    process: Process,
    peers: Peers,
    pending: Option<Pending>,
    tolerance: Nanos,
    last_line: usize,
}

struct Pending {
    call: Call,
    line: usize,
    /// Time at which the call must return, within the tolerance.
    until: Nanos,
}

impl Run {
    /// Time since the script's start.
    fn elapsed(&self) -> Nanos {
        Nanos(self.machine.now().0 - BEGIN.0)
    }

    fn fail<T>(&self, line: usize, expected: String, actual: String) -> Result<T, RunError> {
        Err(RunError::Failed(Failure { line, expected, actual }))
    }

    fn event(&mut self, event: &Event, next_out: Option<&Event>) -> Result<(), RunError> {
        let now = self.machine.now();
        let (from, to) = match event.at {
            When::Any => (now, now + PATIENCE),
            When::Absolute(at) => (BEGIN + at, BEGIN + at),
            When::Relative(at) => (now + at, now + at),
            When::AbsoluteRange(from, to) => (BEGIN + from, BEGIN + to),
            When::RelativeRange(from, to) => (now + from, now + to),
        };
        match &event.action {
            Action::Out(packet) => self.expect(event, packet, from, to),
            Action::In(packet) => {
                self.advance(from)?;
                self.check_silence(next_out, event.line)?;
                self.inject(event.line, packet)
            }
            Action::Call(call) => {
                let until = match (event.at, call.until) {
                    (When::Absolute(_), Some(until)) => Some(BEGIN + until),
                    (_, Some(until)) => Some(now + until),
                    (_, None) => None,
                };
                self.advance(from)?;
                self.check_silence(next_out, event.line)?;
                self.begin(event, call, until)
            }
            Action::Sleep => {
                self.advance(from)?;
                self.check_silence(next_out, event.line)
            }
        }
    }

    fn advance(&mut self, to: Nanos) -> Result<(), RunError> {
        while self.machine.step_to(to) {
            self.try_again()?;
        }
        self.check_overdue()
    }

    /// Fails if a packet was sent that no later line can expect.
    fn check_silence(&mut self, next_out: Option<&Event>, line: usize) -> Result<(), RunError> {
        let is_patient = next_out.is_some_and(|next| !matches!(next.at, When::Relative(_)));
        let now = self.machine.now();
        match self.machine.sent.front() {
            Some((at, frame)) if *at + self.tolerance < now && !is_patient => {
                let actual = self.shown(*at, &frame.clone(), None);
                self.fail(line, "no packet before this line".to_owned(), actual)
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), RunError> {
        if let Some(pending) = &self.pending {
            let until = pending.until + self.tolerance;
            self.advance(until)?;
        }
        if let Some(Pending { call, line, .. }) = self.pending.take() {
            return self.fail(
                line,
                call.expected(),
                format!("{} still blocks at the script's end", call.name),
            );
        }
        self.check_silence(None, self.last_line)
    }

    fn inject(&mut self, line: usize, packet: &Packet) -> Result<(), RunError> {
        let Some(ports) = self.peers.ports(packet.ports) else {
            return Err(bad(line, "expect our SYN (`>`) before this packet answers it"));
        };
        let frame = match &packet.body {
            Body::Icmp(message) => {
                let seq = message.seq.wrapping_add(self.peers.own(packet.ports));
                let quoted = (ports.1, ports.0);
                frames::unreachable(message.code, message.mtu, quoted, seq, message.bytes)
            }
            Body::Tcp(segment) => {
                let (wire, position) =
                    self.peers.on_wire(packet.ports, segment).map_err(|UnknownEcho(echo)| {
                        bad(line, format!("ecr {echo} echoes one of our timestamps, but no earlier line names one"))
                    })?;
                let payload: Vec<u8> = (position..).take(wire.bytes as usize).map(byte).collect();
                let ecn = packet.ecn.unwrap_or(Ecn::NotCapable);
                frames::frame(ports, &wire, ecn, &payload)
                    .map_err(|_| bad(line, "these options are longer than 40 bytes"))?
            }
        };
        self.machine.receive(frame);
        self.try_again()
    }

    fn expect(
        &mut self,
        event: &Event,
        packet: &Packet,
        from: Nanos,
        to: Nanos,
    ) -> Result<(), RunError> {
        let Body::Tcp(expected) = &packet.body else {
            return Err(bad(event.line, "only segments can be expected"));
        };
        let most = to + self.tolerance;
        while self.machine.sent.is_empty() && self.machine.step_to(most) {
            self.try_again()?;
        }
        let wanted = |at: Nanos| format!("{} > {expected}", seconds(Nanos(at.0 - BEGIN.0)));
        let Some((at, frame)) = self.machine.sent.pop_front() else {
            self.check_overdue()?;
            return self.fail(event.line, wanted(from), "no packet".to_owned());
        };
        let Some(mut seen) = frames::read(&frame) else {
            return self.fail(
                event.line,
                wanted(from),
                "a packet that is not a TCP segment".to_owned(),
            );
        };
        while seen.segment.bytes < expected.bytes {
            let next = self.machine.sent.front().and_then(|(_, frame)| frames::read(frame));
            if !next.is_some_and(|next| seen.join(&next)) {
                break;
            }
            self.machine.sent.pop_front();
        }
        let (actual, position) = self.peers.in_script(&seen, Some(expected));
        let is_meant = self.peers.is_meant(packet.ports, seen.ports);
        let text = {
            let ports = if is_meant {
                String::new()
            } else {
                format!("{} > {} ", seen.ports.0, seen.ports.1)
            };
            let marks = packet.ecn.map_or(String::new(), |_| format!("{} ", ecn(seen.ecn)));
            format!("{} > {marks}{ports}{actual}", seconds(Nanos(at.0 - BEGIN.0)))
        };
        let same =
            is_meant && packet.ecn.is_none_or(|ecn| ecn == seen.ecn) && is_same(expected, &actual);
        if !same {
            return self.fail(event.line, wanted(from), text);
        }
        if let Some((at, _)) = position.and_then(|position| first_wrong(position, &seen.payload)) {
            return self.fail(
                event.line,
                wanted(from),
                format!("{text}, but byte {at} of the stream is not the byte written"),
            );
        }
        let (from, to) = (from + event.skew, to + event.skew);
        let is_in_time =
            event.at == When::Any || (at + self.tolerance >= from && at <= to + self.tolerance);
        if !is_in_time {
            return self.fail(event.line, wanted(from), text);
        }
        Ok(())
    }

    /// Formats a frame in packetdrill's notation.
    fn shown(&mut self, at: Nanos, frame: &[u8], expected: Option<&Segment>) -> String {
        let at = seconds(Nanos(at.0 - BEGIN.0));
        match frames::read(frame) {
            Some(seen) => format!("{at} > {}", self.peers.in_script(&seen, expected).0),
            None => format!("{at} > a packet that is not a TCP segment"),
        }
    }

    fn begin(&mut self, event: &Event, call: &Call, until: Option<Nanos>) -> Result<(), RunError> {
        if let Some(pending) = &self.pending {
            return self.fail(
                event.line,
                format!("{} of line {} has returned by now", pending.call.name, pending.line),
                "it still blocks".to_owned(),
            );
        }
        let outcome = self.process.call(&mut self.machine, call, false);
        if let Some(port) = self.process.connected_to.take() {
            self.peers.connects(port);
        }
        match outcome {
            Err(Unsupported(what)) => Err(bad(event.line, what)),
            Ok(Outcome::Returned(got)) => {
                let now = self.machine.now();
                // A blocking call must return at its end time, not before.
                let waits = until.is_some_and(|until| until + event.skew > now + self.tolerance)
                    || (until.is_some() && event.skew != Nanos(0));
                if waits {
                    return self.fail(
                        event.line,
                        format!("{} blocks", call.name),
                        format!("{} immediately", shown(call, &got)),
                    );
                }
                self.compare(event.line, call, &got)
            }
            Ok(Outcome::Waits) => match until {
                Some(until) => {
                    let until = until + event.skew;
                    self.pending = Some(Pending { call: call.clone(), line: event.line, until });
                    Ok(())
                }
                None => self.fail(event.line, call.expected(), format!("{} blocks", call.name)),
            },
        }
    }

    /// Retries the blocked call after an event.
    fn try_again(&mut self) -> Result<(), RunError> {
        let Some(Pending { call, line, until }) = self.pending.take() else { return Ok(()) };
        match self.process.call(&mut self.machine, &call, true) {
            Err(Unsupported(what)) => Err(bad(line, what)),
            Ok(Outcome::Waits) => {
                self.pending = Some(Pending { call, line, until });
                self.check_overdue()
            }
            Ok(Outcome::Returned(got)) => {
                self.compare(line, &call, &got)?;
                let now = self.machine.now();
                if now + self.tolerance < until || now > until + self.tolerance {
                    let at = |at: Nanos| seconds(Nanos(at.0 - BEGIN.0));
                    let what = shown(&call, &got);
                    return self.fail(
                        line,
                        format!("{what} at {}", at(until)),
                        format!("at {}", at(now)),
                    );
                }
                Ok(())
            }
        }
    }

    fn check_overdue(&self) -> Result<(), RunError> {
        match &self.pending {
            Some(pending) if self.machine.now() > pending.until + self.tolerance => self.fail(
                pending.line,
                pending.call.expected(),
                format!("{} still blocks at {}", pending.call.name, seconds(self.elapsed())),
            ),
            _ => Ok(()),
        }
    }

    fn compare(&self, line: usize, call: &Call, got: &Returned) -> Result<(), RunError> {
        let is_same = call.result.is_none_or(|result| result == got.value)
            && (call.errno.is_none() || call.errno.as_deref() == got.errno);
        if !is_same {
            return self.fail(line, call.expected(), shown(call, got));
        }
        match &got.differs {
            Some((expected, actual)) => {
                self.fail(line, format!("{}: {expected}", call.name), actual.clone())
            }
            None => Ok(()),
        }
    }
}

fn shown(call: &Call, got: &Returned) -> String {
    returned(&call.name, Some(got.value), got.errno)
}

fn is_same(expected: &Segment, actual: &Segment) -> bool {
    expected.flags == actual.flags
        && (expected.seq, expected.bytes, expected.ack) == (actual.seq, actual.bytes, actual.ack)
        && (expected.window.is_none() || expected.window == actual.window)
        && expected.urgent == actual.urgent
        && (expected.options.is_none() || expected.options == actual.options)
}
