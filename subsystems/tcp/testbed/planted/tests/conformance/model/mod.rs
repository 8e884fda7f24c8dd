//! The model: two data paths, their hosts and peers.

#[macro_use]
mod rules;
mod finish;

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_tcp::context::{ContextId, Event, Update};
use wave_tcp::datapath::{
    Batch, Command, Established, FlowId, Limits, OUTPUTS_PER_STEP, Output, Packet, Path, Segment,
    Ticket, Write,
};
use wave_tcp::packet::{Flags, Parsed, parse};
use wave_tcp_testbed_planted::{CONTEXT, Data, PayloadBytes};

use rules::Checked;
pub use rules::{Broken, Rule};

use crate::operation::{Ack, Arrival, Operation, PLACES};
use crate::peer::{Connection, MSS, RING, established, mark};

/// Limit of the polls until a data path has nothing more to do at once.
const POLLS_MAX: usize = 10_000;
/// Largest payload of a super-packet.
pub const SUPER_BYTES: u32 = 20_000;

/// A copy or a transmission under way.
enum UnderWay {
    Copy(usize, Write<Vec<u8>>),
    Transmission(Option<usize>, Ticket),
}

/// A data path and what waits in front of it.
struct Home {
    data: Data<Vec<u8>>,
    packets: VecDeque<Packet<Vec<u8>>>,
    requests: VecDeque<(ContextId, Update)>,
    under_way: Vec<UnderWay>,
    /// Requests taken since it last had none in flight.
    taken: usize,
    /// A copy's ticket that is done.
    done: Option<Ticket>,
}

pub struct Model {
    homes: [Home; 2],
    connections: [Option<Connection>; PLACES],
    /// Names that no connection has any more, and their data paths.
    gone: Vec<(usize, FlowId)>,
    memory: PayloadBytes,
    now: Nanos,
    /// Number of connections so far.
    number: u64,
}

impl Model {
    pub fn new(homes: [Data<Vec<u8>>; 2]) -> Model {
        let homes = homes.map(|data| Home {
            data,
            packets: VecDeque::new(),
            requests: VecDeque::new(),
            under_way: Vec::new(),
            taken: 0,
            done: None,
        });
        Model {
            homes,
            connections: [const { None }; PLACES],
            gone: Vec::new(),
            memory: PayloadBytes::new(2 * PLACES * RING as usize),
            now: Nanos::from_millis(1_000),
            number: 0,
        }
    }

    /// Runs a history, and then lets all connections finish.
    pub fn run(&mut self, operations: &[Operation]) -> Checked {
        for operation in operations {
            self.step(*operation)?;
            self.check_all()?;
        }
        self.finish()
    }

    fn live(&mut self, place: usize) -> Option<&mut Connection> {
        self.connections[place].as_mut().filter(|one| one.is_live())
    }

    fn step(&mut self, operation: Operation) -> Checked {
        match operation {
            Operation::Install(place) => self.install(place)?,
            Operation::Arrive(place, arrival) => self.arrive(place, &arrival)?,
            Operation::EndPeer(place) => {
                if let Some(one) = self.live(place) {
                    one.peer_is_ended = true;
                }
            }
            Operation::Stranger => self.stranger()?,
            Operation::Write { at, bytes, tells } => self.write(at, bytes, tells)?,
            Operation::Read { at, bytes, tells } => {
                let Some(one) = self.live(at) else { return Ok(()) };
                one.read += u64::from(bytes).min(one.notified.0 - one.read);
                self.tell(at, tells)?;
            }
            Operation::End(at) => {
                let Some(one) = self.live(at) else { return Ok(()) };
                one.is_ended = true;
                self.tell(at, true)?;
            }
            Operation::Repeat { at, back } => {
                let Some(one) = self.live(at) else { return Ok(()) };
                let back = back.min(one.earlier.len().saturating_sub(1));
                let earlier = one.earlier.iter().rev().nth(back).copied();
                let home = one.home;
                if let Some(update) = earlier {
                    self.request(home, CONTEXT, update)?;
                }
            }
            Operation::Wrong { at, written } => self.wrong(at, written)?,
            Operation::Foreign(at) => self.foreign(at)?,
            Operation::Complete(which) => self.complete_one(which),
            Operation::CompleteUnknown(number) => {
                for home in &mut self.homes {
                    let ticket = home.done.unwrap_or(Ticket(number >> 2 | 1 << 61));
                    home.data.complete(self.now, ticket);
                }
            }
            Operation::Poll(budget) => {
                for home in 0..2 {
                    self.poll(home, budget)?;
                }
            }
            Operation::Settle => {
                for home in 0..2 {
                    self.settle(home)?;
                }
            }
            Operation::Wait { micros } => self.now = self.now + Nanos::from_micros(micros.into()),
            Operation::Command(at, command) => self.command(at, command),
            Operation::Gone { which, command } => self.name_gone(which, command)?,
            Operation::Pace { at, segments } => {
                let Some(one) = self.live(at) else { return Ok(()) };
                let window_bytes = u32::from(segments) * u32::from(MSS);
                one.window_max = one.window_max.max(window_bytes.into());
                one.is_frozen = false;
                let (home, id) = (one.home, one.id);
                let limits = Limits { window_bytes, ..Limits::default() };
                self.homes[home].data.pace(id, limits);
            }
            Operation::SetPath { at, mss } => {
                let Some(one) = self.live(at) else { return Ok(()) };
                one.mss_max = one.mss_max.max(mss);
                one.is_frozen = false;
                let (home, id) = (one.home, one.id);
                let path = Path { mac: [2; 6], mss, diffserv: 0, hop_limit: 64 };
                self.homes[home].data.set_path(id, path);
            }
            Operation::Statistics(budget) => {
                for home in 0..2 {
                    self.read_statistics(home, budget)?;
                }
            }
            Operation::Freeze(at) => {
                let Some(one) = &mut self.connections[at] else { return Ok(()) };
                if one.exported.is_none() {
                    (one.is_freezing, one.is_frozen) = (true, false);
                    self.homes[one.home].data.freeze(one.id);
                }
            }
            Operation::Export(at) => self.export(at)?,
            Operation::Remove(at) => {
                self.freeze_and_export(at)?;
                self.connections[at] = None;
            }
            Operation::Restore { at, moves } => self.restore(at, moves)?,
        }
        Ok(())
    }

    fn install(&mut self, place: usize) -> Checked {
        if self.connections[place].is_some() {
            return Ok(());
        }
        self.number += 1;
        let capabilities = self.homes[0].data.capabilities();
        // It may move to the other data path.
        let other = self.homes[1].data.capabilities();
        let new = established(place, self.number, &capabilities);
        if other.missing(&wave_tcp::capabilities::Capabilities::needed_by(&new)).is_some() {
            return Ok(());
        }
        let home = usize::from(self.number.is_multiple_of(4));
        let data = &mut self.homes[home].data;
        let Ok(id) = data.install(self.now, &new) else {
            rule!(Export, false, "there is room for place {place}");
            return Ok(());
        };
        let known = self.connections.iter().flatten().any(|one| (one.home, one.id) == (home, id));
        let is_new = !known && !self.gone.contains(&(home, id));
        rule!(Names, is_new, "{id} is the name of another connection, or of one that has gone");
        rule!(Export, data.inspect(id) == Some(new), "{:?} is not {new:?}", data.inspect(id));
        rule!(Names, data.find(&new.tuple) == Some(id), "{id} is not found");
        self.connections[place] = Some(Connection::new(id, home, new));
        Ok(())
    }

    fn arrive(&mut self, place: usize, arrival: &Arrival) -> Checked {
        let now = self.now;
        let Some(one) = &mut self.connections[place] else { return Ok(()) };
        let packet = one.segment(now, arrival);
        let home = one.home;
        self.homes[home].packets.push_back(packet);
        self.submit(home)
    }

    fn stranger(&mut self) -> Checked {
        let capabilities = self.homes[0].data.capabilities();
        let mut other = established(0, 1, &capabilities);
        other.tuple.remote.set_port(9_999);
        let id = FlowId { index: 0, generation: 0 };
        let arrival = Arrival {
            skip: 0,
            bytes: 100,
            ack: Ack::All,
            window: u16::MAX,
            is_marked: false,
            is_corrupt: false,
            is_last: false,
        };
        let packet = Connection::new(id, 0, other).segment(self.now, &arrival);
        for home in 0..2 {
            self.settle(home)?;
            self.homes[home].packets.push_back(packet.clone());
            self.submit(home)?;
            let outputs = self.poll(home, 64)?;
            let to_control = outputs.iter().any(|output| {
                matches!(output, Output::Control((sent, None)) if sent.frame == packet.frame)
            });
            rule!(Names, to_control, "a stranger's segment does not reach the control plane");
        }
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: u16, tells: bool) -> Checked {
        let Some(one) = self.connections[at].as_mut().filter(|one| one.is_live()) else {
            return Ok(());
        };
        let room = u64::from(RING) - (one.written - one.notified.1);
        let bytes = if one.is_ended { 0 } else { u64::from(bytes).min(room) };
        let stream: Vec<u8> =
            (one.written..one.written + bytes).map(wave_tcp_testbed_planted::byte).collect();
        self.memory.put(one.initial.sending.ring, one.written, &stream);
        one.written += bytes;
        self.tell(at, tells)
    }

    /// Sends the host's request, or loses it.
    fn tell(&mut self, at: usize, tells: bool) -> Checked {
        let Some(one) = self.live(at).filter(|_| tells) else { return Ok(()) };
        let (home, update) = (one.home, one.tell());
        self.request(home, CONTEXT, update)
    }

    fn request(&mut self, home: usize, context: ContextId, update: Update) -> Checked {
        let mut connections = self.connections.iter_mut().flatten();
        if let Some(one) = connections.find(|one| one.home == home && one.id == update.flow) {
            one.is_frozen = false;
        }
        self.homes[home].requests.push_back((context, update));
        self.submit(home)
    }

    fn wrong(&mut self, at: usize, written: bool) -> Checked {
        let Some(one) = self.live(at) else { return Ok(()) };
        let right = one.tell();
        one.may_reset = true;
        let home = one.home;
        let beyond = 4 * u64::from(RING) + one.peer_sent;
        let update = match written {
            true => Update { written: right.written + beyond, ..right },
            false => Update { read: right.read + beyond, ..right },
        };
        self.request(home, CONTEXT, update)
    }

    fn foreign(&mut self, at: usize) -> Checked {
        let Some(one) = &self.connections[at] else { return Ok(()) };
        let (home, id) = (one.home, one.id);
        let update = Update { written: 7, read: 7, ..wave_tcp_testbed_planted::update(id) };
        let context = ContextId { process: CONTEXT.process + 1, ..CONTEXT };
        self.request(home, context, update)
    }

    /// Gives a data path all that waits for it. What it does not take must be the last of it.
    fn submit(&mut self, home: usize) -> Checked {
        let Home { data, packets, requests, taken, .. } = &mut self.homes[home];
        let before: Vec<_> = requests.iter().copied().collect();
        let frames: Vec<_> = packets.iter().map(|packet| packet.frame.clone()).collect();
        data.submit(self.now, &mut Batch { packets, requests });
        let left = before.len() - requests.len().min(before.len());
        rule!(
            TakenFromFront,
            requests.iter().eq(&before[left..]),
            "requests are not taken from the front"
        );
        let frames_left = frames.len() - packets.len().min(frames.len());
        let are_last = packets.iter().map(|packet| &packet.frame).eq(&frames[frames_left..]);
        rule!(TakenFromFront, are_last, "packets are not taken from the front");
        let in_flight = data.requests_in_flight();
        *taken += left;
        rule!(InFlight, in_flight <= *taken + 64, "{in_flight} of {taken} requests are in flight");
        if in_flight == 0 {
            *taken = 0;
        }
        Ok(())
    }

    fn complete_one(&mut self, which: usize) {
        let now = self.now;
        let count: usize = self.homes.iter().map(|home| home.under_way.len()).sum();
        if count == 0 {
            return;
        }
        let mut which = which % count;
        let mut home = 0;
        if which >= self.homes[0].under_way.len() {
            which -= self.homes[0].under_way.len();
            home = 1;
        }
        let Home { data, under_way, done, .. } = &mut self.homes[home];
        match under_way.remove(which) {
            UnderWay::Copy(place, write) => {
                self.memory.land(&write);
                let one = self.connections[place].as_mut();
                let one = one.expect("a connection with a copy under way stays");
                mark(&mut one.landed, write.position, write.bytes.len());
                if let Ok(Parsed::Tcp { segment, .. }) = parse(&write.frame, true) {
                    one.has_taken_fin |= segment.flags.contains(Flags::FIN)
                        && write.bytes.end == segment.payload.end;
                }
                *done = Some(write.ticket);
                data.complete(now, write.ticket);
            }
            UnderWay::Transmission(_, ticket) => data.complete(now, ticket),
        }
    }

    /// Polls a data path, performs what it leaves, except for copies and the ends of transmissions, and returns it.
    fn poll(&mut self, home: usize, budget: usize) -> Result<Vec<Output<Vec<u8>>>, Broken> {
        self.submit(home)?;
        let mut outputs = VecDeque::new();
        let next = self.homes[home].data.poll(self.now, budget, &mut outputs);
        let most = budget * OUTPUTS_PER_STEP;
        rule!(Budget, outputs.len() <= most, "{} outputs of {budget} steps", outputs.len());
        let outputs: Vec<_> = outputs.into();
        for output in &outputs {
            self.perform(home, output)?;
        }
        if budget > 0 && next.is_none_or(|at| at > self.now) {
            let mut more = VecDeque::new();
            self.homes[home].data.poll(self.now, 4, &mut more);
            rule!(Rest, more.is_empty(), "it need not be polled before {next:?}, but has {more:?}");
        }
        Ok(outputs)
    }

    /// Completes all that is under way, and polls until there is nothing to do at this time. Returns the number of outputs.
    fn settle(&mut self, home: usize) -> Result<usize, Broken> {
        let mut count = 0;
        for _ in 0..POLLS_MAX {
            while !self.homes[home].under_way.is_empty() {
                let which = if home == 0 { 0 } else { self.homes[0].under_way.len() };
                self.complete_one(which);
            }
            let outputs = self.poll(home, 32)?;
            count += outputs.len();
            self.read_statistics(home, 64)?;
            let next = self.homes[home].data.poll(self.now, 0, &mut VecDeque::new());
            let has_more = next.is_some_and(|at| at <= self.now);
            if outputs.is_empty() && !has_more && self.homes[home].under_way.is_empty() {
                let in_flight = self.homes[home].data.requests_in_flight();
                rule!(InFlight, in_flight == 0, "{in_flight} requests are never done");
                let again = self.homes[home].data.next_statistics();
                rule!(Statistics, again.is_none(), "{again:?} come without a change");
                return Ok(count);
            }
        }
        rule!(Rest, false, "it is never at rest");
        Ok(count)
    }

    fn read_statistics(&mut self, home: usize, budget: usize) -> Checked {
        let mut all = Vec::new();
        self.homes[home].data.drain_statistics(budget, &mut |statistics| all.push(statistics));
        rule!(Statistics, all.len() <= budget, "{} statistics instead of {budget}", all.len());
        for statistics in all {
            let flow = statistics.flow;
            let known = self.connections.iter().flatten();
            let mut known = known.filter(|one| one.home == home && one.exported.is_none());
            let Some(one) = known.find(|one| one.id == flow) else {
                rule!(Statistics, false, "statistics of {flow}, which has gone");
                continue;
            };
            let is_right = statistics.written <= one.told_written
                && statistics.acknowledged <= statistics.sent
                && statistics.sent <= statistics.written;
            rule!(Statistics, is_right, "{statistics:?}");
            let is_fault = statistics.is_at_fault && !one.may_reset;
            rule!(Statistics, !is_fault, "the host is not at fault: {statistics:?}");
        }
        Ok(())
    }

    fn perform(&mut self, home: usize, output: &Output<Vec<u8>>) -> Checked {
        match output {
            Output::Send(segment) => self.sent(home, segment),
            Output::Write(write) => self.copies(home, write),
            Output::Notify(context, event) => self.notified(home, *context, event),
            Output::Control((_, None)) => Ok(()),
            Output::Control((_, Some(flow))) => {
                let is_known = self.place_of(home, |one| one.id == *flow).is_some();
                rule!(Names, is_known, "a packet of {flow}, which has gone, for the control plane");
                Ok(())
            }
        }
    }

    /// The place of a connection that a data path has.
    fn place_of(&self, home: usize, is_it: impl Fn(&Connection) -> bool) -> Option<usize> {
        self.connections.iter().position(|one| {
            one.as_ref().is_some_and(|one| one.home == home && one.exported.is_none() && is_it(one))
        })
    }

    fn sent(&mut self, home: usize, sent: &Segment<Vec<u8>>) -> Checked {
        let frame = self.memory.frame(sent);
        let Ok(Parsed::Tcp { ip, segment, .. }) = parse(&frame, true) else {
            rule!(Segments, false, "a frame that cannot be parsed: {frame:?}");
            return Ok(());
        };
        let ends = (segment.source_port, segment.destination_port);
        let is_it = |one: &Connection| {
            (one.initial.tuple.local.port(), one.initial.tuple.remote.port()) == ends
        };
        let Some(place) = self.place_of(home, is_it) else {
            rule!(Frozen, false, "a segment of {ends:?}, which has gone: {segment:?}");
            return Ok(());
        };
        if let Some(ticket) = sent.ticket {
            self.homes[home].under_way.push(UnderWay::Transmission(Some(place), ticket));
        }
        let one = self.connections[place].as_mut().expect("it has just been found");
        rule!(Frozen, !one.is_frozen, "a segment of {}, which is frozen: {segment:?}", one.id);
        let is_over = one.is_reset && !segment.payload.is_empty();
        rule!(Resets, !is_over, "data after the reset of {}", one.id);
        if segment.flags.contains(Flags::RST) {
            rule!(Resets, one.may_reset, "a reset of {} without cause", one.id);
            one.is_reset = true;
            return Ok(());
        }
        one.check_agreed(&segment, ip.ecn)?;
        one.check_acknowledgement(&segment)?;
        one.check_data(sent, &segment, &frame)
    }

    fn copies(&mut self, home: usize, write: &Write<Vec<u8>>) -> Checked {
        let is_it = |one: &Connection| one.initial.receiving.ring == write.ring;
        let Some(place) = self.place_of(home, is_it) else {
            rule!(Copies, false, "a copy to a ring of no connection: {write:?}");
            return Ok(());
        };
        let is_new = self.homes[home].under_way.iter().all(|under_way| match under_way {
            UnderWay::Copy(_, other) => other.ticket != write.ticket,
            UnderWay::Transmission(_, ticket) => *ticket != write.ticket,
        });
        rule!(Copies, is_new, "the ticket of two copies: {write:?}");
        let one = self.connections[place].as_ref().expect("it has just been found");
        rule!(Frozen, !one.is_frozen, "a copy of {}, which is frozen", one.id);
        let bytes = &write.frame[write.bytes.clone()];
        let end = write.position + bytes.len() as u64;
        // A data path may accept what it has not advertised yet.
        let limit = one.edge.max(one.told_read + u64::from(RING));
        rule!(Copies, end <= limit, "a copy up to {end}, but the ring has room up to {limit}");
        rule!(Copies, write.process == CONTEXT.process, "a copy to process {}", write.process);
        let are_right = bytes
            .iter()
            .zip(write.position..)
            .all(|(byte, position)| *byte == one.peer_byte(position));
        rule!(Copies, are_right, "wrong bytes at {}", write.position);
        self.homes[home].under_way.push(UnderWay::Copy(place, write.clone()));
        Ok(())
    }

    fn notified(&mut self, home: usize, context: ContextId, event: &Event) -> Checked {
        let Event::Progress(progress) = event else {
            rule!(Positions, false, "an event that is no progress: {event:?}");
            return Ok(());
        };
        let is_it = |one: &Connection| one.initial.socket == progress.socket;
        let Some(place) = self.place_of(home, is_it) else {
            rule!(Frozen, false, "a notice of a connection that has gone: {progress:?}");
            return Ok(());
        };
        rule!(Names, context == CONTEXT, "a notice for {context:?}");
        let one = self.connections[place].as_mut().expect("it has just been found");
        rule!(Frozen, !one.is_frozen, "a notice of {}, which is frozen", one.id);
        let landed = one.landed_prefix();
        rule!(AfterCopy, progress.received <= landed, "{progress:?}, but {landed} are there");
        let goes_back = progress.received < one.notified.0
            || progress.acknowledged < one.notified.1
            || one.notified_end && !progress.is_finished;
        rule!(Positions, !goes_back, "{progress:?} goes back from {:?}", one.notified);
        let acked = one.peer_acked.min(one.told_written);
        rule!(Positions, progress.acknowledged <= acked, "{progress:?}, but the peer has {acked}");
        let is_ended = !progress.is_finished || one.may_have_ended();
        rule!(AfterCopy, is_ended, "{progress:?}, but the peer's stream has not ended");
        one.notified = (progress.received, progress.acknowledged);
        one.notified_end |= progress.is_finished;
        Ok(())
    }

    fn command(&mut self, at: usize, command: Command) {
        let Some(one) = self.connections[at].as_mut().filter(|one| one.exported.is_none()) else {
            return;
        };
        let (home, id) = (one.home, one.id);
        one.is_frozen = false;
        if matches!(command, Command::Abort | Command::Refuse) {
            one.may_reset = true;
            one.is_freezing = true;
        }
        self.homes[home].data.command(self.now, id, command);
    }

    /// Names a connection that has gone, in all ways.
    fn name_gone(&mut self, which: usize, command: Command) -> Checked {
        if self.gone.is_empty() {
            return Ok(());
        }
        let (home, id) = self.gone[which % self.gone.len()];
        // What is on its way in either data path changes states, too.
        self.settle(0)?;
        self.settle(1)?;
        let before = self.states();
        let count = |model: &Model| {
            let mut sum = 0;
            model.homes[home].data.visit_counters(&mut |_, count| sum += count);
            sum
        };
        let counted = count(self);
        let data = &mut self.homes[home].data;
        data.command(self.now, id, command);
        data.pace(id, Limits { window_bytes: 1, ..Limits::default() });
        data.resume(id);
        data.freeze(id);
        rule!(Names, !data.frozen(id), "{id} is frozen, but has gone");
        rule!(Names, data.export(id).is_none(), "{id} is exported, but has gone");
        rule!(Names, data.inspect(id).is_none(), "{id} has a state, but has gone");
        let update = Update { written: 9, read: 9, ..wave_tcp_testbed_planted::update(id) };
        self.request(home, CONTEXT, update)?;
        let outputs = self.settle(home)?;
        rule!(Names, outputs == 0, "{outputs} outputs after {id} was named, which has gone");
        rule!(Names, self.states() == before, "a connection changes as {id} is named");
        rule!(Names, count(self) > counted, "a request for {id}, which has gone, is not counted");
        Ok(())
    }

    fn states(&self) -> Vec<Option<Established>> {
        let state = |one: &Connection| self.homes[one.home].data.inspect(one.id);
        self.connections.iter().map(|one| one.as_ref().and_then(state)).collect()
    }

    fn export(&mut self, at: usize) -> Checked {
        let Some(one) = self.connections[at].as_mut().filter(|one| one.exported.is_none()) else {
            return Ok(());
        };
        let Home { data, requests, packets, .. } = &mut self.homes[one.home];
        let (is_frozen, shown) = (data.frozen(one.id), data.inspect(one.id));
        let exported = data.export(one.id);
        let id = one.id;
        rule!(Frozen, exported.is_some() == is_frozen, "{id}: frozen {is_frozen}, {exported:?}");
        let Some(state) = exported else { return Ok(()) };
        let is_same = !one.is_frozen || Some(state) == shown;
        rule!(Export, is_same, "{id}: {state:?} instead of {shown:?}");
        rule!(Export, data.find(&state.tuple).is_none(), "{id} is found after its export");
        rule!(Export, data.inspect(id).is_none(), "{id} has a state after its export");
        let landed = one.landed_prefix();
        let received = state.receiving.received;
        rule!(Export, received <= landed, "{id}: {received} received, {landed} in the ring");
        // What waits for it outside of the data path is lost.
        requests.retain(|(_, update)| update.flow != id);
        packets.clear();
        one.exported = Some(state);
        self.gone.push((one.home, id));
        Ok(())
    }

    fn restore(&mut self, at: usize, moves: bool) -> Checked {
        if moves {
            // As in a handover, nothing is on its way to the data path that a connection leaves.
            self.settle(0)?;
            self.settle(1)?;
        }
        let newest = self.gone.iter().map(|(_, id)| id.generation);
        let newest = newest.chain(self.connections.iter().flatten().map(|one| one.id.generation));
        let newest = newest.max().unwrap_or(0);
        let Some(one) = self.connections[at].as_ref().filter(|one| one.exported.is_some()) else {
            return Ok(());
        };
        let (id, state) = (one.id, one.exported.expect("it is exported"));
        if one.may_reset {
            // The control plane forgets it.
            self.connections[at] = None;
            return Ok(());
        }
        let home = if moves { 1 - one.home } else { one.home };
        let is_taken = |other: &Connection| {
            other.home == home && other.exported.is_none() && other.id.index == id.index
        };
        let is_taken = self.connections.iter().flatten().any(is_taken);
        let data = &mut self.homes[home].data;
        data.reserve_generations(newest);
        let restored = data.restore(self.now, id, &state);
        rule!(Export, restored.is_err() == is_taken, "{id}: taken {is_taken}, {restored:?}");
        if is_taken {
            return Ok(());
        }
        let shown = data.inspect(id);
        // Another recovery may keep fewer intervals; the peer sends the bytes again.
        let shown = shown.map(|shown| with_intervals(shown, &state));
        rule!(Export, shown == Some(state), "{id}: {shown:?} instead of {state:?}");
        rule!(Export, data.find(&state.tuple) == Some(id), "{id} is not found");
        self.gone.retain(|gone| *gone != (home, id));
        let one = self.connections[at].as_mut().expect("it was there");
        (one.home, one.exported) = (home, None);
        (one.is_freezing, one.is_frozen) = (false, false);
        Ok(())
    }

    /// Checks what must hold at any time.
    fn check_all(&mut self) -> Checked {
        for place in 0..PLACES {
            let Some(one) = &mut self.connections[place] else { continue };
            let Home { data, under_way, .. } = &self.homes[one.home];
            if one.exported.is_some() {
                continue;
            }
            let id = one.id;
            let is_frozen = data.frozen(id);
            rule!(Frozen, one.is_freezing || one.may_reset || !is_frozen, "{id} is frozen unasked");
            let has_work = under_way.iter().any(|under_way| match under_way {
                UnderWay::Copy(of, _) => *of == place,
                UnderWay::Transmission(of, _) => *of == Some(place),
            });
            rule!(Frozen, !(is_frozen && has_work), "{id} is frozen with work under way");
            // A request that waits may still give it work.
            one.is_frozen |= is_frozen && data.requests_in_flight() == 0;
            let Some(state) = data.inspect(id) else {
                rule!(Export, false, "{id} has no state");
                return Ok(());
            };
            rule!(Export, data.find(&state.tuple) == Some(id), "{id} is not found");
            one.check_state(&state)?;
        }
        Ok(())
    }
}

/// A state with the other one's intervals, if it has fewer.
fn with_intervals(shown: Established, other: &Established) -> Established {
    let mut shown = shown;
    let has = |state: &Established| state.receiving.intervals.iter().filter(|(a, b)| a < b).count();
    if has(&shown) < has(other) {
        shown.receiving.intervals = other.receiving.intervals;
    }
    shown
}
