//! One side of a connection: a data path, and a host with one socket.

use std::collections::VecDeque;

use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::clock::Nanos;
use wave_tcp::context::{Event, Filled};
use wave_tcp::datapath::{
    Batch, Command, Datapath, Established, Fin, FlowId, Output, Packet, Statistics, Ticket, Write,
};
use wave_tcp::packet::{Parsed, parse};
use wave_tcp::seq::Seq;
use wave_tcp_testbed::{CONTEXT, PayloadBytes, Socket};

/// Timeout of the stand-in for the control plane's timer.
const TIMEOUT: Nanos = Nanos::from_millis(200);

/// A frame in flight, with the wire's information about it.
pub type Frame = Packet<Vec<u8>>;

/// A data path with either recovery method.
pub type Engine = Box<dyn Datapath<Vec<u8>>>;

pub struct Side {
    pub engine: Engine,
    memory: PayloadBytes,
    pub socket: Socket,
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
        let rings = [established.receiving.ring, established.sending.ring];
        let mut socket = Socket::new(rings, Filled::default());
        socket.flow = Some(engine.install(Nanos(0), established).unwrap());
        Side {
            engine,
            memory: PayloadBytes::new(memory_bytes),
            socket,
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

    pub fn flow(&self) -> FlowId {
        self.socket.flow.unwrap()
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.socket.write(&mut self.memory, bytes);
    }

    /// Reads at most `most` bytes.
    pub fn read(&mut self, most: usize) {
        self.socket.read(&self.memory, most);
    }

    /// Reports the host's writes and reads to the data path.
    pub fn report_progress(&mut self, now: Nanos) {
        let mut requests = VecDeque::from([(CONTEXT, self.socket.update().unwrap())]);
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
                    // The checksum is partial, as between two programs on one machine.
                    let frame = Packet {
                        frame: self.memory.frame(&segment),
                        checksum_is_good: true,
                        segment_bytes: segment.segment_bytes,
                    };
                    self.check(&frame);
                    out.push(frame);
                    self.tickets.extend(segment.ticket);
                }
                Output::Write(write) => self.copies.push_back(write),
                Output::Notify(context, event) => {
                    let Event::Progress(progress) = event else { panic!("{event:?}") };
                    assert_eq!(context, CONTEXT);
                    assert!(!self.socket.goes_back(&progress), "{progress:?}");
                    self.socket.on_progress(&progress);
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
        self.memory.land(&write);
        self.engine.complete(now, write.ticket);
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
            self.engine.command(now, self.flow(), Command::DetectLoss);
        }
        let wants =
            last.acknowledged < last.written || matches!(last.fin_sent, Fin::Wanted | Fin::Sent);
        if wants && now.since(self.moved_at) >= TIMEOUT {
            let command = if last.is_blocked { Command::Probe } else { Command::Retransmit };
            self.engine.command(now, self.flow(), command);
            self.moved_at = now;
            self.timeouts += 1;
        }
    }
}
