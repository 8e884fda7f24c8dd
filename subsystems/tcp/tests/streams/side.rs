//! One side of a connection: a data path, and the payload memory of a host with one socket.

use std::collections::VecDeque;

use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::clock::Nanos;
use wave_tcp::context::{ContextId, Event, Filled, Progress, Tail, Update};
use wave_tcp::datapath::{
    Batch, Command, Datapath, Established, FlowId, Output, Packet, Payload, Ring, Segment,
    Statistics, Ticket, Write,
};
use wave_tcp::packet::{Parsed, parse};
use wave_tcp::seq::Seq;

/// The host's only context.
pub const CONTEXT: ContextId = ContextId { process: 0, context: 0 };
/// Timeout of the stand-in for the control plane's timer.
const TIMEOUT: Nanos = Nanos::from_millis(200);

/// A frame in flight, with the wire's information about it.
pub type Frame = Packet<Vec<u8>>;

/// A data path with either recovery method.
pub type Engine = Box<dyn Datapath<Vec<u8>>>;

pub struct Side {
    pub engine: Engine,
    pub memory: Vec<u8>,
    pub flow: FlowId,
    send: Ring,
    receive: Ring,
    /// All bytes that the host has written; `read` holds those that it has read.
    pub wrote: Vec<u8>,
    pub read: Vec<u8>,
    pub is_finished: bool,
    pub progress: Progress,
    /// Copies that are under way.
    copies: VecDeque<Write<Vec<u8>>>,
    tickets: VecDeque<Ticket>,
    /// Statistics at the timer's last reading.
    pub statistics: Option<Statistics>,
    moved_at: Nanos,
    pub timeouts: u64,
    pub fast_retransmits: u64,
    /// Which bytes of the peer's stream are in the ring; `edge` is the right edge of the advertised window.
    copied: Vec<bool>,
    base: Seq,
    scale: u8,
    edge: u64,
    /// Right edge of the peer's window, by its frames so far.
    peer_edge: u64,
    send_base: Seq,
}

impl Side {
    pub fn new(mut engine: Engine, established: &Established, memory_bytes: usize) -> Side {
        let flow = engine.install(Nanos(0), established).unwrap();
        Side {
            engine,
            memory: vec![0; memory_bytes],
            flow,
            send: established.sending.ring,
            receive: established.receiving.ring,
            wrote: Vec::new(),
            read: Vec::new(),
            is_finished: false,
            progress: Progress { socket: 7, received: 0, acknowledged: 0, is_finished: false },
            copies: VecDeque::new(),
            tickets: VecDeque::new(),
            statistics: None,
            moved_at: Nanos(0),
            timeouts: 0,
            fast_retransmits: 0,
            copied: Vec::new(),
            base: established.receiving.base,
            scale: established.receiving.scale,
            edge: established.receiving.edge,
            peer_edge: established.sending.edge,
            send_base: established.sending.base,
        }
    }

    /// Writes as many of `bytes` as the ring has room for.
    pub fn write(&mut self, bytes: &[u8]) {
        let room =
            u64::from(self.send.bytes) - (self.wrote.len() as u64 - self.progress.acknowledged);
        let bytes = &bytes[..bytes.len().min(room as usize)];
        let mut left = bytes;
        for (offset, len) in self.send.parts(self.wrote.len() as u64, bytes.len() as u32) {
            let (now, later) = left.split_at(len as usize);
            self.memory[offset as usize..][..len as usize].copy_from_slice(now);
            left = later;
        }
        self.wrote.extend_from_slice(bytes);
    }

    /// Reads at most `most` bytes.
    pub fn read(&mut self, most: usize) {
        let there = (self.progress.received - self.read.len() as u64) as usize;
        for (offset, len) in self.receive.parts(self.read.len() as u64, there.min(most) as u32) {
            self.read.extend_from_slice(&self.memory[offset as usize..][..len as usize]);
        }
    }

    /// Reports the host's writes and reads to the data path.
    pub fn report_progress(&mut self, now: Nanos) {
        let update = Update {
            flow: self.flow,
            written: self.wrote.len() as u64,
            read: self.read.len() as u64,
            is_finished: self.is_finished,
            is_eager: false,
            tail: Tail::Whole,
            filled: Filled::default(),
        };
        let mut requests = VecDeque::from([(CONTEXT, update)]);
        self.engine
            .submit(now, &mut Batch { packets: &mut VecDeque::new(), requests: &mut requests });
        assert!(requests.is_empty());
    }

    pub fn take(&mut self, now: Nanos, frames: Vec<Frame>) {
        frames.iter().for_each(|frame| self.on_frame(frame));
        let mut packets: VecDeque<_> = frames.into();
        self.engine
            .submit(now, &mut Batch { packets: &mut packets, requests: &mut VecDeque::new() });
        assert!(packets.is_empty());
    }

    /// Polls the data path, performs its outputs (copies are done late and in random order), and returns the frames to send.
    pub fn step(&mut self, now: Nanos, rng: &mut Pcg32) -> Vec<Frame> {
        let mut outputs = VecDeque::new();
        self.engine.poll(now, 32, &mut outputs);
        let mut out = Vec::new();
        for output in outputs {
            match output {
                Output::Send(segment) => {
                    let frame = self.frame(&segment);
                    self.check(&frame);
                    out.push(frame);
                    self.tickets.extend(segment.ticket);
                }
                Output::Write(write) => self.copies.push_back(write),
                Output::Notify(context, event) => {
                    let Event::Progress(progress) = event else { panic!("{event:?}") };
                    assert_eq!(context, CONTEXT);
                    assert!(progress.received >= self.progress.received, "{progress:?}");
                    assert!(progress.acknowledged >= self.progress.acknowledged, "{progress:?}");
                    self.progress = progress;
                }
                Output::Control(..) => panic!("no packet may go to the control plane here"),
            }
        }
        while !self.copies.is_empty() && rng.random_bool(0.7) {
            let write = self.copies.remove(rng.random_range(0..self.copies.len())).unwrap();
            self.copy(now, write);
        }
        while let Some(ticket) = self.tickets.pop_front() {
            self.engine.complete(now, ticket);
        }
        out
    }

    /// Checks that a sent frame acknowledges only bytes in the ring, does not shrink the window, and stays within the peer's
    /// window.
    fn check(&mut self, frame: &Frame) {
        let Ok(Parsed::Tcp { segment, .. }) = parse(&frame.frame, true) else {
            panic!("a sent frame cannot be parsed")
        };
        let there = self.copied.iter().take_while(|copied| **copied).count() as u64;
        let ack = segment.ack.unwrap().position(0, self.base).unwrap();
        assert!(ack <= there + 1, "{ack} is acknowledged, but the ring has only {there}");
        let unit = 1 << self.scale;
        let edge = ack + (u64::from(segment.window) << self.scale);
        assert!(
            edge + unit > self.edge,
            "the window's edge moved back from {} to {edge}",
            self.edge
        );
        self.edge = self.edge.max(edge);
        let start = segment.seq.position(0, self.send_base);
        let end = start.map_or(0, |start| start + u64::from(segment.sequence_len()));
        // A window probe is one byte beyond the window.
        let is_probe = segment.sequence_len() == 1;
        assert!(end <= self.peer_edge || is_probe, "{end} is beyond {}", self.peer_edge);
    }

    /// Updates the peer's window from a frame of the peer.
    fn on_frame(&mut self, frame: &Frame) {
        let Ok(Parsed::Tcp { segment, .. }) = parse(&frame.frame, true) else { return };
        let ack = segment.ack.unwrap().position(0, self.send_base).unwrap();
        self.peer_edge = self.peer_edge.max(ack + (u64::from(segment.window) << self.scale));
    }

    fn copy(&mut self, now: Nanos, write: Write<Vec<u8>>) {
        assert!(write.bytes.len() <= write.ring.bytes as usize);
        let end = write.position as usize + write.bytes.len();
        if self.copied.len() < end {
            self.copied.resize(end, false);
        }
        self.copied[write.position as usize..end].fill(true);
        let mut left = &write.frame[write.bytes.clone()];
        for (offset, len) in write.ring.parts(write.position, write.bytes.len() as u32) {
            let (first, rest) = left.split_at(len as usize);
            self.memory[offset as usize..][..len as usize].copy_from_slice(first);
            left = rest;
        }
        self.engine.complete(now, write.ticket);
    }

    fn frame(&self, segment: &Segment<Vec<u8>>) -> Frame {
        let mut frame = segment.head.bytes().to_vec();
        match &segment.payload {
            Payload::None => {}
            Payload::Ring { ring, position, bytes, .. } => {
                for (offset, len) in ring.parts(*position, *bytes) {
                    frame.extend_from_slice(&self.memory[offset as usize..][..len as usize]);
                }
            }
            Payload::Frame(other, range) => frame.extend_from_slice(&other[range.clone()]),
        }
        // The checksum is partial, as between two programs on one machine.
        Packet { frame, checksum_is_good: true, segment_bytes: segment.segment_bytes }
    }

    /// Stands in for the control plane's timer.
    pub fn fire_timer(&mut self, now: Nanos) {
        let mut read = None;
        self.engine.drain_statistics(8, &mut |statistics| read = Some(statistics));
        if let Some(new) = read {
            self.fast_retransmits += u64::from(new.fast_retransmits);
            let before = self.statistics.replace(new);
            if before.is_none_or(|before| {
                (before.acknowledged, before.fin_sent) != (new.acknowledged, new.fin_sent)
            }) {
                self.moved_at = now;
            }
        }
        let Some(last) = self.statistics else { return };
        if last.overdue_at.is_some_and(|at| at <= now) {
            self.engine.command(now, self.flow, Command::DetectLoss);
        }
        let wants = last.acknowledged < last.written
            || matches!(
                last.fin_sent,
                wave_tcp::datapath::Fin::Wanted | wave_tcp::datapath::Fin::Sent
            );
        if wants && now.since(self.moved_at) >= TIMEOUT {
            let command = if last.is_blocked { Command::Probe } else { Command::Retransmit };
            self.engine.command(now, self.flow, command);
            self.moved_at = now;
            self.timeouts += 1;
        }
    }
}
