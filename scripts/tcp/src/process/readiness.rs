//! Readiness: poll(2), and epoll(7) on the sets of `wave-readiness`, the same that unmodified programs use.

use std::time::Duration;

use rustix::event::epoll::CreateFlags;
use rustix::io::Errno;
use wave_readiness::{Alone, Epoll, Event, EventData, EventFlags, Source, Target};

use super::{Answer, Outcome, Process, Returned, Socket, Unsupported, done, failed, names, number};
use crate::machine::Machine;
use crate::script::Argument;

/// Limit of events of one epoll_wait.
const EVENTS_MAX: i64 = 1024;

/// epoll's names of events.
const EVENTS: [(&str, EventFlags); 8] = [
    ("EPOLLIN", EventFlags::IN),
    ("EPOLLOUT", EventFlags::OUT),
    ("EPOLLRDHUP", EventFlags::RDHUP),
    ("EPOLLHUP", EventFlags::HUP),
    ("EPOLLERR", EventFlags::ERR),
    ("EPOLLPRI", EventFlags::PRI),
    ("EPOLLET", EventFlags::ET),
    ("EPOLLONESHOT", EventFlags::ONESHOT),
];

/// An epoll set.
#[derive(Debug)]
pub struct Set(Epoll);

impl Set {
    pub fn new() -> Result<Set, Unsupported> {
        let kernel = rustix::event::epoll::create(CreateFlags::CLOEXEC);
        let kernel = kernel.map_err(|errno| Unsupported(format!("epoll_create: {errno}")))?;
        Ok(Set(Epoll::new(kernel)))
    }
}

/// The source of a descriptor, and its state when the sets were last updated.
#[derive(Debug)]
pub struct Watched {
    source: Source,
    /// Bytes or connections that had arrived by the last update of the sets.
    arrived: u64,
    /// Ended by the peer, failed, connected: as of the last update of the sets.
    state: Option<[bool; 3]>,
}

impl Default for Watched {
    fn default() -> Watched {
        Watched { source: Source::new(EventFlags::empty()), arrived: 0, state: None }
    }
}

impl Process {
    /// Updates the sets with the state of their descriptors.
    pub(super) fn notify_sets(&mut self, machine: &mut Machine) {
        let context = &mut machine.context;
        for file in self.files.values_mut() {
            let mut events = EventFlags::empty();
            let (arrived, state) = match file.socket {
                // Like Linux's unconnected socket.
                Socket::Fresh { .. } => {
                    events = EventFlags::OUT | EventFlags::HUP;
                    (0, [false; 3])
                }
                Socket::Set(_) => continue,
                Socket::Listener(name) => {
                    let count = context.acceptable(name) as u64;
                    if count > 0 {
                        events |= EventFlags::IN;
                    }
                    (count, [false; 3])
                }
                Socket::Stream(name) => {
                    if context.readable(name).is_some() {
                        events |= EventFlags::IN;
                    }
                    let is_there = matches!(context.connected(name), Some(Ok(())));
                    let socket = context.socket(name);
                    let (has_error, has_end) = (socket.error.is_some(), socket.receiving.has_end());
                    let ring_bytes = u64::from(socket.sending.ring.bytes);
                    // Linux reports a socket as writable when at least a third of its buffer is free.
                    if is_there && 3 * socket.sending.room() >= ring_bytes || has_error {
                        events |= EventFlags::OUT;
                    }
                    if has_end {
                        events |= EventFlags::RDHUP;
                    }
                    if has_error {
                        events |= EventFlags::ERR | EventFlags::HUP;
                    }
                    (socket.receiving.received, [has_end, has_error, is_there])
                }
            };
            let Watched { source, arrived: before, state: state_before } = &mut file.watched;
            let mut edge = EventFlags::empty();
            if arrived > *before {
                edge |= Source::DATA;
            }
            if state_before.is_some_and(|before| before != state) {
                edge |= Source::ANY;
            }
            // New room wakes only entries that had seen the ring full.
            if events.difference(source.bits()).contains(EventFlags::OUT) {
                edge |= Source::ROOM;
            }
            (*before, *state_before) = (arrived, Some(state));
            if !edge.is_empty() || events != source.bits() {
                source.changed(events, edge);
            }
        }
    }

    /// epoll_ctl(2): `epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLIN|EPOLLET, fd=4})`.
    pub(super) fn watch(&mut self, fd: i64, arguments: &[Argument]) -> Answer {
        let form = "epoll_ctl takes 5, EPOLL_CTL_ADD, 4, {events=EPOLLIN, fd=4}";
        let wrong = || Unsupported(form.into());
        let operation = names(arguments.get(1)).first().ok_or_else(wrong)?;
        let of = arguments.get(2).and_then(number).ok_or_else(wrong)?;
        let interest = match arguments.get(3) {
            Some(Argument::Struct(fields)) => interest(fields)?,
            None | Some(Argument::Any | Argument::Number(0)) if operation == "EPOLL_CTL_DEL" => {
                Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }
            }
            _ => return Err(wrong()),
        };
        let Some(target) = self.files.get(&of) else { return failed(Errno::BADF) };
        let target = Target::Source(of as i32, &target.watched.source);
        let Socket::Set(Set(set)) = &self.files[&fd].socket else { return failed(Errno::INVAL) };
        let done_with = match operation.as_str() {
            "EPOLL_CTL_ADD" => set.add(target, interest),
            "EPOLL_CTL_MOD" => set.modify(target, interest),
            "EPOLL_CTL_DEL" => set.delete(target),
            _ => return Err(wrong()),
        };
        match done_with {
            Ok(()) => done(0),
            Err(errno) => failed(errno),
        }
    }

    /// epoll_wait(2): `epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0)`, or with a list of events.
    pub(super) fn wait(&mut self, fd: i64, arguments: &[Argument]) -> Answer {
        let most = arguments.get(2).and_then(number).filter(|most| (1..=EVENTS_MAX).contains(most));
        let Some(most) = most else { return failed(Errno::INVAL) };
        let timeout = arguments.get(3).and_then(number).unwrap_or(0);
        let Socket::Set(Set(set)) = &self.files[&fd].socket else { return failed(Errno::INVAL) };
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = vec![none; most as usize];
        let count = match set.wait(&Alone, &mut events, Some(Duration::ZERO)) {
            Ok(count) => count,
            Err(errno) => return failed(errno),
        };
        if count == 0 && timeout != 0 {
            return Ok(Outcome::Waits);
        }
        let found: Vec<String> = events[..count].iter().map(shown).collect();
        let wanted = match arguments.get(1) {
            None | Some(Argument::Any) => None,
            Some(Argument::List(list)) => Some(list.iter().map(wanted).collect::<Result<_, _>>()?),
            Some(one) => Some(vec![wanted(one)?]),
        };
        // A single struct without events stands for an empty list.
        let wanted: Option<Vec<String>> =
            wanted.map(|all: Vec<Option<String>>| all.into_iter().flatten().collect());
        let differs = wanted
            .filter(|wanted| *wanted != found)
            .map(|wanted| (format!("[{}]", wanted.join(", ")), format!("[{}]", found.join(", "))));
        Ok(Outcome::Returned(Returned { value: count as i64, errno: None, differs }))
    }

    pub(super) fn poll(&mut self, machine: &mut Machine, arguments: &[Argument]) -> Answer {
        let Some(Argument::List(list)) = arguments.first() else {
            return Err(Unsupported(
                "poll takes [{fd=4, events=POLLIN, revents=POLLIN}], 1, 0".into(),
            ));
        };
        let timeout = arguments.get(2).and_then(number).unwrap_or(0);
        let mut ready = 0;
        let mut differs = None;
        for one in list {
            let Argument::Struct(fields) = one else {
                return Err(Unsupported("poll takes {fd=4, events=POLLIN, revents=POLLIN}".into()));
            };
            let field = |wanted: &str| {
                fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value)
            };
            let fd = field("fd").and_then(number).unwrap_or(-1);
            let events = names(field("events"));
            if events.iter().any(|event| event != "POLLIN" && event != "POLLOUT") {
                return Err(Unsupported("poll supports POLLIN and POLLOUT".into()));
            }
            let Some(file) = self.files.get(&fd) else { return failed(Errno::BADF) };
            let context = &mut machine.context;
            let (is_readable, is_writable) = match file.socket {
                Socket::Fresh { .. } | Socket::Set(_) => (false, false),
                Socket::Listener(name) => (context.acceptable(name) > 0, false),
                Socket::Stream(name) => {
                    (context.readable(name).is_some(), context.writable(name).is_some())
                }
            };
            let is_ready = |event: &&String| match event.as_str() {
                "POLLIN" => is_readable,
                _ => is_writable,
            };
            let found: Vec<&str> = events.iter().filter(is_ready).map(String::as_str).collect();
            ready += i64::from(!found.is_empty());
            let mut wanted: Vec<&str> = match field("revents") {
                Some(Argument::Number(0)) => Vec::new(),
                revents => names(revents).iter().map(String::as_str).collect(),
            };
            let mut sorted = found.clone();
            wanted.sort_unstable();
            sorted.sort_unstable();
            if wanted != sorted && differs.is_none() {
                let text = |names: &[&str]| {
                    let names = if names.is_empty() { "0".to_owned() } else { names.join("|") };
                    format!("revents={names}")
                };
                differs = Some((text(&wanted), text(&found)));
            }
        }
        if ready == 0 && timeout != 0 {
            return Ok(Outcome::Waits);
        }
        Ok(Outcome::Returned(Returned { value: ready, errno: None, differs }))
    }
}

/// Parses `{events=EPOLLIN|EPOLLET, fd=4}`; any other field is accepted as data in place of `fd`.
fn interest(fields: &[(String, Argument)]) -> Result<Event, Unsupported> {
    let mut event = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("events", Argument::Number(0)) => {}
            ("events", Argument::Names(all)) => {
                for one in all {
                    let known = EVENTS.iter().find(|(name, _)| name == one);
                    let Some((_, flag)) = known else {
                        let all: Vec<&str> = EVENTS.iter().map(|(name, _)| *name).collect();
                        return Err(Unsupported(format!("events are {}", all.join(", "))));
                    };
                    event.flags = event.flags.union(*flag);
                }
            }
            ("fd" | "u32" | "u64" | "ptr", value) => {
                let data = number(value).unwrap_or(0);
                event.data = EventData::new_u64(data as u64);
            }
            _ => return Err(Unsupported("an event is {events=EPOLLIN, fd=4}".into())),
        }
    }
    Ok(event)
}

/// An expected event; `None` for `{events=0, ptr=0}`, which stands for no event.
fn wanted(event: &Argument) -> Result<Option<String>, Unsupported> {
    let Argument::Struct(fields) = event else {
        return Err(Unsupported("an event is {events=EPOLLIN, fd=4}".into()));
    };
    let event = interest(fields)?;
    let flags = event.flags;
    Ok((!flags.is_empty()).then(|| shown(&event)))
}

fn shown(event: &Event) -> String {
    let Event { flags, data, .. } = *event;
    let names = EVENTS.iter().filter(|(_, flag)| flags.contains(*flag)).map(|(name, _)| *name);
    format!("{{events={}, fd={}}}", names.collect::<Vec<_>>().join("|"), data.u64())
}
