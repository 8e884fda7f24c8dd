//! Flips expectations one at a time: a script that still passes does not check that one.

use wave_core::clock::Nanos;
use wave_tcp::packet::{Ecn, Flags};

use crate::script::{Action, Argument, Body, Call, Event, Packet, Script, TcpOption, When};

/// A script with one expectation flipped.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The line of the expectation.
    pub line: usize,
    /// The flipped expectation, in words.
    pub what: String,
    pub script: Script,
}

pub fn mutants(script: &Script) -> Vec<Mutant> {
    let mut all = Vec::new();
    for at in 0..script.events.len() {
        let event = &script.events[at];
        let mut changed: Vec<(String, Event)> = Vec::new();
        match &event.action {
            Action::Out(packet) => {
                for (what, packet) in packets(packet) {
                    changed.push((what, Event { action: Action::Out(packet), ..event.clone() }));
                }
                if event.at != When::Any {
                    let late = Event { skew: shift(script, event), ..event.clone() };
                    changed.push(("time".to_owned(), late));
                }
            }
            Action::Call(call) => {
                for (what, call) in calls(call) {
                    changed.push((what, Event { action: Action::Call(call), ..event.clone() }));
                }
                if call.until.is_some() {
                    let late = Event { skew: shift(script, event), ..event.clone() };
                    changed.push(("time".to_owned(), late));
                }
            }
            Action::In(_) | Action::Sleep => {}
        }
        for (what, event) in changed {
            let mut script = script.clone();
            let line = event.line;
            script.events[at] = event;
            all.push(Mutant { line, what, script });
        }
    }
    all
}

/// A shift of the expected time that is beyond the tolerance at both ends of a range.
fn shift(script: &Script, event: &Event) -> Nanos {
    let width = match event.at {
        When::AbsoluteRange(from, to) | When::RelativeRange(from, to) => to.0 - from.0,
        _ => 0,
    };
    Nanos(2 * script.tolerance.0 + width + 1_000_000)
}

fn packets(packet: &Packet) -> Vec<(String, Packet)> {
    let Body::Tcp(segment) = &packet.body else { return Vec::new() };
    let mut all = Vec::new();
    let mut change = |what: String, of: &dyn Fn(&mut crate::script::Segment)| {
        let mut segment = segment.clone();
        of(&mut segment);
        all.push((what, Packet { body: Body::Tcp(segment), ..packet.clone() }));
    };
    for (name, flag) in [
        ("FIN", Flags::FIN),
        ("SYN", Flags::SYN),
        ("RST", Flags::RST),
        ("PSH", Flags::PSH),
        ("ECE", Flags::ECE),
        ("CWR", Flags::CWR),
    ] {
        change(format!("flag {name}"), &|segment| segment.flags.0 ^= flag.0);
    }
    change("sequence number".into(), &|segment| segment.seq = segment.seq.wrapping_add(1));
    change("length".into(), &|segment| segment.bytes ^= 1);
    match segment.ack {
        Some(_) => {
            change("acknowledgement".into(), &|segment| {
                segment.ack = segment.ack.map(|ack| ack ^ 1)
            });
            change("flag ACK".into(), &|segment| {
                segment.ack = None;
                segment.flags = segment.flags.without(Flags::ACK);
            });
        }
        None => change("flag ACK".into(), &|segment| {
            segment.ack = Some(0);
            segment.flags |= Flags::ACK;
        }),
    }
    if segment.window.is_some() {
        change("window".into(), &|segment| segment.window = segment.window.map(|win| win ^ 1));
    }
    for at in 0..segment.options.as_ref().map_or(0, Vec::len) {
        change(format!("option {}", at + 1), &|segment| {
            segment.options.as_mut().expect("the segment has options").remove(at);
        });
        change(format!("value of option {}", at + 1), &|segment| {
            let option = &mut segment.options.as_mut().expect("the segment has options")[at];
            *option = other(option);
        });
    }
    if let Some(ecn) = packet.ecn {
        let other = if ecn == Ecn::NotCapable { Ecn::Congestion } else { Ecn::NotCapable };
        all.push(("ECN".into(), Packet { ecn: Some(other), ..packet.clone() }));
    }
    all
}

/// The same option with another value, or another option if this one has no value.
fn other(option: &TcpOption) -> TcpOption {
    match option {
        TcpOption::Mss(mss) => TcpOption::Mss(mss ^ 1),
        TcpOption::Scale(shift) => TcpOption::Scale(shift ^ 1),
        TcpOption::Timestamps(value, echo) => TcpOption::Timestamps(*value, echo ^ 1),
        TcpOption::Sack(blocks) => {
            TcpOption::Sack(blocks.iter().map(|(from, to)| (*from, to ^ 1)).collect())
        }
        TcpOption::Nop => TcpOption::Eol,
        TcpOption::SackOk | TcpOption::Eol => TcpOption::Nop,
        TcpOption::Raw(bytes) => TcpOption::Raw(bytes.iter().map(|byte| byte ^ 1).collect()),
    }
}

fn calls(call: &Call) -> Vec<(String, Call)> {
    let mut all = Vec::new();
    // A new descriptor gets the number that the script expects, so a flipped result would still pass.
    let opens =
        matches!(call.name.as_str(), "socket" | "accept" | "epoll_create" | "epoll_create1");
    if let Some(result) = call.result.filter(|result| !opens || *result < 0) {
        all.push(("result".into(), Call { result: Some(result + 1), ..call.clone() }));
    }
    if let Some(errno) = &call.errno {
        let other = if errno == "EPIPE" { "EBADF" } else { "EPIPE" };
        all.push(("errno".into(), Call { errno: Some(other.into()), ..call.clone() }));
    }
    let filled = match call.name.as_str() {
        "getsockopt" => Some(3),
        "ioctl" => Some(2),
        "poll" => Some(0),
        "epoll_wait" => Some(1),
        _ => None,
    };
    if let Some((at, argument)) =
        filled.and_then(|at| Some((at, flipped(call.arguments.get(at)?)?)))
    {
        let mut call = call.clone();
        call.arguments[at] = argument;
        all.push(("value of an argument".into(), call));
    }
    all
}

/// An expected output argument of a call, changed; `None` if it is not compared.
fn flipped(argument: &Argument) -> Option<Argument> {
    if let Argument::Struct(fields) = argument {
        let mut fields = fields.clone();
        let (_, events) = fields.iter_mut().find(|(name, _)| name == "events")?;
        *events = match events {
            Argument::Number(0) => Argument::Names(vec!["EPOLLIN".into()]),
            _ => Argument::Number(0),
        };
        return Some(Argument::Struct(fields));
    }
    let Argument::List(list) = argument else { return None };
    let mut list = list.clone();
    match list.first_mut()? {
        Argument::Number(number) => *number += 1,
        Argument::Names(names) => *names = vec!["EBADF".into()],
        Argument::Struct(fields) => {
            let (_, revents) = fields.iter_mut().find(|(name, _)| name == "revents")?;
            *revents = match revents {
                Argument::Number(0) => Argument::Names(vec!["POLLIN".into()]),
                _ => Argument::Number(0),
            };
        }
        _ => return None,
    }
    Some(Argument::List(list))
}
