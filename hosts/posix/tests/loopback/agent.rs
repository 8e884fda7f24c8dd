//! An agent without TCP: it connects two sockets of the attached processes by copying bytes between their rings.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_core::clock::Nanos;
use wave_front_tcp::{Door, DoorOptions, Process, Received};
use wave_tcp::context::{Event, Filled, Progress, Reason, Request, Tail, Update};
use wave_tcp::datapath::{FlowId, Ring};

/// Number of turns without work before the agent parks.
const TURNS_BEFORE_PARKING: u32 = 8;
/// Most bytes copied at a time.
const COPY_MAX: u64 = 3_000;

/// An agent on its own thread, and the folder of its socket.
pub struct Agent {
    folder: tempfile::TempDir,
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

/// A test's control of its agent.
#[derive(Default)]
struct Control {
    is_stopped: AtomicBool,
    /// The agent ignores requests.
    is_deaf: AtomicBool,
    /// Number of turns before the agent dies; 0 is never.
    turns_left: AtomicU64,
}

impl Agent {
    pub fn start(seed: u64) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        let door = Door::bind(&folder.path().join("socket"), DoorOptions::default()).unwrap();
        let control = Arc::new(Control::default());
        let theirs = control.clone();
        let thread = std::thread::spawn(move || Loopback::new(door, seed).run(&theirs));
        Agent { folder, control, thread: Some(thread) }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn set_deaf(&self, is_deaf: bool) {
        self.control.is_deaf.store(is_deaf, SeqCst);
    }

    /// Makes the agent die by itself after this number of turns.
    pub fn die_after(&self, turns: u64) {
        self.control.turns_left.store(turns + 1, SeqCst);
    }

    pub fn kill(&mut self) {
        self.control.is_stopped.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.control.is_stopped.store(true, SeqCst);
        let thread = self.thread.take();
        if let Some(Err(panic)) = thread.map(JoinHandle::join).filter(|_| !std::thread::panicking())
        {
            std::panic::resume_unwind(panic);
        }
    }
}

struct Listener {
    process: usize,
    name: u32,
    local: SocketAddr,
    slots: VecDeque<(u32, Ring, Ring, u32)>,
}

struct Caller {
    process: usize,
    socket: u32,
    remote: SocketAddr,
    receive: Ring,
    send: Ring,
    filled: u32,
}

/// One end of a connection.
struct End {
    process: usize,
    socket: u32,
    flow: FlowId,
    peer: usize,
    /// The listener whose program has not accepted it yet.
    listener: Option<u32>,
    receive: Ring,
    send: Ring,
    host: Update,
    is_closed: bool,
    /// Bytes delivered to this end.
    received: u64,
    /// Bytes delivered to the peer.
    sent: u64,
    fin_received: bool,
    fin_sent: bool,
    told: Progress,
}

struct Guest {
    process: Process,
    is_gone: bool,
    /// Events for which its queue had no room.
    owed: VecDeque<Event>,
}

struct Loopback {
    door: Door,
    guests: Vec<Option<Guest>>,
    listeners: Vec<Listener>,
    callers: Vec<Caller>,
    ends: Vec<Option<End>>,
    generation: u32,
    next_port: u16,
    random: u64,
    start: Instant,
}

impl Loopback {
    fn new(door: Door, seed: u64) -> Loopback {
        Loopback {
            door,
            guests: Vec::new(),
            listeners: Vec::new(),
            callers: Vec::new(),
            ends: Vec::new(),
            generation: 0,
            next_port: 40_000,
            random: seed | 1,
            start: Instant::now(),
        }
    }

    fn run(&mut self, control: &Control) {
        let mut idle = 0;
        while !control.is_stopped.load(SeqCst) {
            match control.turns_left.load(SeqCst) {
                0 => {}
                1 => return,
                left => control.turns_left.store(left - 1, SeqCst),
            }
            if self.turn(control) {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < TURNS_BEFORE_PARKING {
                std::thread::yield_now();
                continue;
            }
            for guest in self.guests.iter_mut().flatten() {
                guest.process.park();
            }
            if !self.turn(control) {
                self.sleep();
            }
            for guest in self.guests.iter_mut().flatten() {
                guest.process.unpark();
            }
        }
    }

    fn sleep(&self) {
        let door = self.door.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let guests = self.guests.iter().flatten().filter(|guest| !guest.is_gone);
        let guests = guests.flat_map(|guest| {
            let [bell, line] = guest.process.fds();
            [
                PollFd::from_borrowed_fd(bell, PollFlags::IN),
                PollFd::from_borrowed_fd(line, PollFlags::RDHUP),
            ]
        });
        let mut fds: Vec<_> = door.chain(guests).collect();
        // Wakes up often enough to notice that it must stop.
        let _ = poll(&mut fds, Timespec::try_from(Duration::from_millis(20)).ok().as_ref());
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    /// One turn of the agent. Returns whether there was work.
    fn turn(&mut self, control: &Control) -> bool {
        let mut worked = false;
        let now = Nanos(self.start.elapsed().as_nanos() as u64);
        if let Ok(Some(mut process)) = self.door.poll(now) {
            process.announce();
            let guest = Guest { process, is_gone: false, owed: VecDeque::new() };
            match self.guests.iter().position(Option::is_none) {
                Some(at) => self.guests[at] = Some(guest),
                None => self.guests.push(Some(guest)),
            }
            worked = true;
        }
        if !control.is_deaf.load(SeqCst) {
            worked |= self.take_requests();
        }
        self.connect_callers();
        for at in 0..self.ends.len() {
            worked |= self.carry(at);
        }
        for at in 0..self.ends.len() {
            self.report(at);
            self.end_if_over(at);
        }
        for guest in self.guests.iter_mut().flatten() {
            guest.process.publish();
        }
        worked
    }

    fn take_requests(&mut self) -> bool {
        let mut worked = false;
        for at in 0..self.guests.len() {
            let mut requests = Vec::new();
            let Some(guest) = &mut self.guests[at] else { continue };
            let has_gone = guest.is_gone || guest.process.has_hung_up();
            let budget = 64;
            let taken = guest.process.poll(budget, |context, request| {
                assert_eq!(context, 0);
                requests.push(request);
            });
            let taken = taken.unwrap();
            worked |= taken > 0;
            for request in requests {
                let Received::Request(request) = request else { panic!("{request:?}") };
                self.request(at, request);
            }
            if has_gone && taken == 0 {
                self.leave(at);
            }
        }
        worked
    }

    fn leave(&mut self, process: usize) {
        if let Some(guest) = &mut self.guests[process] {
            guest.is_gone = true;
        }
        self.listeners.retain(|listener| listener.process != process);
        self.callers.retain(|caller| caller.process != process);
        let mine: Vec<_> =
            self.ends.iter().flatten().filter(|end| end.process == process).collect();
        if mine.is_empty() {
            self.guests[process] = None;
        }
        let flows: Vec<_> =
            mine.into_iter().filter(|end| !end.is_closed).map(|end| end.flow).collect();
        for flow in flows {
            self.end_mut(process, flow).unwrap().host.is_finished = true;
            self.close(process, flow);
        }
    }

    fn tell(&mut self, process: usize, event: Event) {
        let Some(guest) = &mut self.guests[process] else { return };
        if !guest.is_gone {
            guest.owed.push_back(event);
        }
        guest.pay();
    }

    fn end_mut(&mut self, process: usize, flow: FlowId) -> Option<&mut End> {
        let end = self.ends.get_mut(flow.index as usize)?.as_mut()?;
        Some(end).filter(|end| end.flow == flow && end.process == process)
    }

    fn request(&mut self, process: usize, request: Request) {
        match request {
            Request::Update(update) => {
                let Some(end) = self.end_mut(process, update.flow) else { return };
                let limit = Ring::limit(end.send.bytes, end.sent, update.filled.send);
                assert!(update.written <= limit, "{update:?}");
                let (had, has) = (end.host.filled, update.filled);
                let rings =
                    [(end.receive, had.receive, has.receive), (end.send, had.send, has.send)];
                assert!(update.written >= end.host.written && update.read >= end.host.read);
                assert!(update.read <= end.told.received, "{update:?} of {:?}", end.told);
                assert!(!end.host.is_finished || update.written == end.host.written);
                end.host = update;
                for (ring, had, has) in rings {
                    let more = has.checked_sub(had).expect("populated memory never shrinks");
                    self.check_populated(process, ring.offset + u64::from(had), more);
                }
            }
            Request::Listen { listener: name, mut local, backlog, .. } => {
                assert!(backlog > 0);
                local.set_ip([192, 0, 2, 1].into());
                if local.port() == 0 {
                    self.next_port += 1;
                    local.set_port(self.next_port);
                }
                if self.listeners.iter().any(|other| other.local.port() == local.port()) {
                    let reason = Reason::AddressInUse;
                    return self.tell(process, Event::NotListening { listener: name, reason });
                }
                self.listeners.push(Listener { process, name, local, slots: VecDeque::new() });
                self.tell(process, Event::Listening { listener: name, local });
            }
            Request::Share { listener: name } => {
                let is_it = |other: &&mut Listener| (other.process, other.name) == (process, name);
                let slots = self.listeners.iter_mut().find(is_it).map(|one| one.slots.split_off(0));
                for (socket, ..) in slots.unwrap_or_default() {
                    self.tell(process, Event::Unused { socket });
                }
            }
            Request::Join { .. }
            | Request::Lend { .. }
            | Request::QueryTcpInfo { .. }
            | Request::ShutdownRead { .. }
            | Request::QueryLocalAddress { .. }
            | Request::Report { .. }
            | Request::Placeholders
            | Request::Take { .. } => {}
            Request::Accept { flow } => {
                if let Some(end) = self.end_mut(process, flow) {
                    end.listener = None;
                }
            }
            // This agent sends no segments.
            Request::LimitSegments { .. } => {}
            Request::Unlisten { listener: name } => {
                let is_it = |other: &Listener| (other.process, other.name) == (process, name);
                if let Some(at) = self.listeners.iter().position(is_it) {
                    for (socket, ..) in self.listeners.swap_remove(at).slots {
                        self.tell(process, Event::Unused { socket });
                    }
                }
                let is_its = |end: &End| (end.process, end.listener) == (process, Some(name));
                let ends = self.ends.iter().flatten().filter(|end| is_its(end));
                let places: Vec<_> = ends.map(|end| end.flow.index as usize).collect();
                places.into_iter().for_each(|at| self.reset(at));
            }
            Request::Slot { listener: name, socket, receive, send, filled } => {
                self.check_populated(process, receive.offset, filled);
                let mut listeners = self.listeners.iter_mut();
                let found = listeners.find(|other| (other.process, other.name) == (process, name));
                match found {
                    Some(listener) => listener.slots.push_back((socket, receive, send, filled)),
                    None => self.tell(process, Event::Failed { socket, reason: Reason::Invalid }),
                }
            }
            Request::Connect { socket, remote, receive, send, filled, .. } => {
                self.check_populated(process, receive.offset, filled);
                self.callers.push(Caller { process, socket, remote, receive, send, filled });
            }
            Request::Cancel { socket } => {
                let is_it = |caller: &Caller| (caller.process, caller.socket) == (process, socket);
                if let Some(at) = self.callers.iter().position(is_it) {
                    self.callers.remove(at);
                    self.tell(process, Event::Closed { socket });
                }
            }
            Request::Close { flow } => self.close(process, flow),
            // This agent sends no packets to which the options could apply.
            Request::Configure { .. } => {}
            Request::Abort { flow } => {
                if self.end_mut(process, flow).is_some() {
                    self.reset(flow.index as usize);
                }
            }
        }
    }

    /// Checks that a process has populated the memory that it names.
    fn check_populated(&mut self, process: usize, at: u64, bytes: u32) {
        let guest = self.guests[process].as_mut().unwrap();
        assert!(
            guest.process.payload_mut().is_backed(at, bytes),
            "{bytes} bytes at {at} are not populated"
        );
    }

    fn close(&mut self, process: usize, flow: FlowId) {
        let Some(end) = self.end_mut(process, flow) else { return };
        assert!(end.host.is_finished);
        end.is_closed = true;
        if end.received > end.host.read {
            self.reset(flow.index as usize);
        }
    }

    fn connect_callers(&mut self) {
        let mut at = 0;
        while at < self.callers.len() {
            let port = self.callers[at].remote.port();
            let listener = self.listeners.iter_mut().find(|other| other.local.port() == port);
            let Some(listener) = listener else {
                let Caller { process, socket, .. } = self.callers.remove(at);
                self.tell(process, Event::Failed { socket, reason: Reason::Refused });
                continue;
            };
            let Some((socket, receive, send, filled)) = listener.slots.pop_front() else {
                at += 1;
                continue;
            };
            let (to, name) = (listener.process, listener.name);
            let caller = self.callers.remove(at);
            self.next_port += 1;
            let local = SocketAddr::new([192, 0, 2, 1].into(), self.next_port);
            let [one, other] = [self.free_end(0), self.free_end(1)];
            let near = self.insert(
                one,
                other,
                caller.process,
                caller.socket,
                [caller.receive, caller.send],
                caller.filled,
            );
            let far = self.insert(other, one, to, socket, [receive, send], filled);
            self.end_mut(to, far).unwrap().listener = Some(name);
            self.tell(
                to,
                Event::Accepted { listener: name, socket, flow: far, remote: local, mss: 1460 },
            );
            let (process, socket) = (caller.process, caller.socket);
            self.tell(process, Event::Connected { socket, flow: near, local, mss: 1460 });
        }
    }

    /// A free place in `ends`: the first (`skip` 0) or the second (`skip` 1).
    fn free_end(&mut self, skip: usize) -> usize {
        let mut free = (0..).filter(|at| self.ends.get(*at).is_none_or(Option::is_none));
        let at = free.nth(skip).unwrap();
        self.ends.resize_with(self.ends.len().max(at + 1), || None);
        at
    }

    fn insert(
        &mut self,
        at: usize,
        peer: usize,
        process: usize,
        socket: u32,
        [receive, send]: [Ring; 2],
        filled: u32,
    ) -> FlowId {
        self.generation += 1;
        let flow = FlowId { index: at as u32, generation: self.generation };
        let (is_finished, is_eager) = (false, false);
        let filled = Filled { receive: filled, send: 0 };
        let host =
            Update { flow, written: 0, read: 0, is_finished, is_eager, tail: Tail::Whole, filled };
        let told = Progress { socket, received: 0, acknowledged: 0, is_finished };
        self.ends[at] = Some(End {
            process,
            socket,
            flow,
            peer,
            listener: None,
            receive,
            send,
            host,
            is_closed: false,
            received: 0,
            sent: 0,
            fin_received: false,
            fin_sent: false,
            told,
        });
        flow
    }

    /// Copies some of an end's written bytes to its peer. Returns whether anything changed.
    fn carry(&mut self, at: usize) -> bool {
        let some = 1 + self.below(COPY_MAX);
        let Some(from) = &self.ends[at] else { return false };
        let Some(to) = &self.ends[from.peer] else { return false };
        let limit = Ring::limit(to.receive.bytes, to.host.read, to.host.filled.receive);
        let room = limit - to.received;
        let bytes = (from.host.written - from.sent).min(room).min(some) as u32;
        if bytes > 0 && to.is_closed {
            // The peer is closed, so the bytes would never be read.
            self.reset(at);
            return true;
        }
        let guest = |end: &End| &self.guests[end.process].as_ref().unwrap().process;
        let mut copied = Vec::new();
        for (place, part) in from.send.parts(from.sent, bytes) {
            let start = copied.len();
            copied.resize(start + part as usize, 0);
            guest(from).payload().read(place, &mut copied[start..]).unwrap();
        }
        let mut rest = &copied[..];
        for (place, part) in to.receive.parts(to.received, bytes) {
            let (these, others) = rest.split_at(part as usize);
            guest(to).payload().write(place, these).unwrap();
            rest = others;
        }
        let peer = from.peer;
        let from = self.ends[at].as_mut().unwrap();
        from.sent += u64::from(bytes);
        let ends_now = from.host.is_finished && from.sent == from.host.written && !from.fin_sent;
        from.fin_sent |= ends_now;
        let to = self.ends[peer].as_mut().unwrap();
        to.received += u64::from(bytes);
        to.fin_received |= ends_now;
        bytes > 0 || ends_now
    }

    /// Reports an end's progress to its process, if the queue has room.
    fn report(&mut self, at: usize) {
        let Some(end) = &mut self.ends[at] else { return };
        let Some(guest) = &mut self.guests[end.process] else { return };
        guest.pay();
        let (received, acknowledged) = (end.received, end.sent);
        let now =
            Progress { socket: end.socket, received, acknowledged, is_finished: end.fin_received };
        let is_news = now != end.told && !guest.is_gone && guest.owed.is_empty();
        if is_news && guest.process.send(0, &Event::Progress(now)).unwrap() {
            end.told = now;
        }
    }

    fn end_if_over(&mut self, at: usize) {
        let Some(end) = &self.ends[at] else { return };
        if end.is_closed && end.fin_sent && end.fin_received {
            let (process, socket) = (end.process, end.socket);
            // A peer that still exists can read the bytes it has received.
            self.ends[at] = None;
            self.tell(process, Event::Closed { socket });
        }
    }

    fn reset(&mut self, at: usize) {
        let Some(end) = &self.ends[at] else { return };
        let flow = end.flow;
        let peer = end.peer;
        let is_its_peer = self.ends[peer].as_ref().is_some_and(|end| {
            end.peer == at && end.flow.generation.abs_diff(flow.generation) == 1
        });
        let lost = if is_its_peer { vec![at, peer] } else { vec![at] };
        for at in lost {
            let End { process, socket, is_closed, .. } = self.ends[at].take().unwrap();
            let event = match is_closed {
                true => Event::Closed { socket },
                false => Event::Failed { socket, reason: Reason::Reset },
            };
            self.tell(process, event);
        }
    }
}

impl Guest {
    fn pay(&mut self) {
        while let Some(event) = self.owed.front() {
            if self.is_gone || !self.process.send(0, event).unwrap() {
                return;
            }
            self.owed.pop_front();
        }
    }
}
