//! Two wires in memory, and between them a network that loses, delays and damages frames, determined by a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::frame::Pool;
use crate::packet::{Packet, mark_congestion};
use crate::{Counters, ETHERNET_BYTES, Frame, Limits, Offload, RawPart, Sent, Wire};

/// Most neighbouring bits that one corruption flips. Every burst of up to 15 bits changes an Internet checksum.
const BURST_BITS_MAX: u64 = 8;

/// Faults, delay and rate of the network between two [`Memory`] wires, in one direction. By default there are none:
/// no loss, no delay, no bound on the rate.
///
/// Probabilities are per *segment* and between 0 and 1. Each segment takes a fixed number of random draws, so that
/// a change of one probability does not change which segments the other faults hit.
#[derive(Clone, Debug, PartialEq)]
pub struct Adversity {
    /// Equal seeds and equal calls give equal deliveries.
    pub seed: u64,
    /// Probability that a segment is lost.
    pub loss: f64,
    /// Probability that a segment arrives twice.
    pub duplicate: f64,
    /// Probability that a segment arrives up to `reorder_ns` later, overtaken by others. Other segments keep their order.
    pub reorder: f64,
    /// Longest extra delay of a reordered segment, in nanoseconds.
    pub reorder_ns: u64,
    /// Probability that one to eight neighbouring bits of an IP packet flip, after checksums were computed. Other frames, such as
    /// ARP's, are lost instead: only Ethernet's own checksum protects them.
    pub corrupt: f64,
    /// Probability that a segment's end is cut off. The Ethernet header stays.
    pub truncate: f64,
    /// Probability that a segment is marked with CE, if its sender is ECN-capable.
    pub ce_mark: f64,
    /// Segments that find a longer queue than this at the bottleneck are marked as well. Needs `rate_bits`.
    pub ce_backlog_bytes: u64,
    /// Probability, per call, that [`Wire::send`] returns [`Sent::Full`].
    pub full: f64,
    /// Time from the bottleneck to the other end, in nanoseconds; drawn uniformly.
    pub delay_ns: RangeInclusive<u64>,
    /// Rate of the bottleneck in bits per second. 0: no bottleneck.
    pub rate_bits: u64,
    /// MTU in bytes, as [`Limits::mtu`].
    pub mtu: u16,
    /// As [`Limits::gso_bytes`].
    pub gso_bytes: u32,
    /// Most segments in flight at a time; further ones are lost.
    pub segments_max: usize,
    /// Most frames that a receiver can hold at a time.
    pub frames_max: usize,
}

impl Default for Adversity {
    fn default() -> Adversity {
        Adversity {
            seed: 0,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_ns: 0,
            corrupt: 0.0,
            truncate: 0.0,
            ce_mark: 0.0,
            ce_backlog_bytes: u64::MAX,
            full: 0.0,
            delay_ns: 0..=0,
            rate_bits: 0,
            mtu: 1500,
            gso_bytes: 65_535,
            segments_max: 1024,
            frames_max: 256,
        }
    }
}

/// Counts of the faults that hit the segments of one [`Memory`] wire. One segment may have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Segments that were sent.
    pub segments: u64,
    /// Frames lost at random.
    pub lost: u64,
    /// Frames lost because `segments_max` others were in flight.
    pub overflowed: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames delayed so that others may overtake them.
    pub reordered: u64,
    /// Frames delivered with flipped bits.
    pub corrupted: u64,
    /// Frames cut short.
    pub truncated: u64,
    /// Frames marked with CE.
    pub marked: u64,
}

/// One of two wires in memory. Super-packets are cut into segments when they are sent and not joined again; received
/// checksums are [`crate::Checksum::Unknown`].
///
/// Time is virtual: [`Memory::advance`] sets it.
#[derive(Debug)]
pub struct Memory {
    network: Arc<Mutex<Network>>,
    /// Index of the direction in which this end sends.
    end: usize,
    limits: Limits,
    counters: Counters,
}

impl Memory {
    /// Two wires with equal adversity in both directions, each direction with its own random draws, at time 0.
    ///
    /// # Panics
    ///
    /// If a probability is not between 0 and 1, the range of delays is empty, or a bound is 0.
    pub fn pair(adversity: &Adversity) -> (Memory, Memory) {
        Memory::pair_of(adversity, adversity)
    }

    /// Two wires with the adversity `there` from the first to the second, and `back` in the other direction.
    ///
    /// # Panics
    ///
    /// As [`Memory::pair`].
    pub fn pair_of(there: &Adversity, back: &Adversity) -> (Memory, Memory) {
        let directions = [Direction::new(there, 0), Direction::new(back, 1)];
        let network = Arc::new(Mutex::new(Network { now_ns: 0, directions }));
        let end = |end: usize, adversity: &Adversity| Memory {
            network: Arc::clone(&network),
            end,
            limits: Limits {
                mtu: adversity.mtu,
                gso_bytes: adversity.gso_bytes,
                mac: [0x02, 0, 0, 0, 0, 1 + end as u8],
            },
            counters: Counters::default(),
        };
        (end(0, there), end(1, back))
    }

    /// Sets the time of both ends, in nanoseconds. Earlier times are ignored.
    pub fn advance(&self, now_ns: u64) {
        let mut network = self.lock();
        network.now_ns = network.now_ns.max(now_ns);
    }

    /// Arrival of the next segment at either end, in nanoseconds; in the past if one waits to be received.
    pub fn due(&self) -> Option<u64> {
        let network = self.lock();
        network.directions.iter().filter_map(|direction| direction.due()).min()
    }

    /// Fates of the segments that this end sent.
    pub fn fates(&self) -> Fates {
        self.lock().directions[self.end].fates
    }

    /// Bytes queued at the bottleneck ([`Adversity::rate_bits`]) in the direction in which this end sends.
    pub fn backlog_bytes(&self) -> u64 {
        let network = self.lock();
        let direction = &network.directions[self.end];
        direction.backlog_bytes(network.now_ns)
    }

    fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire for Memory {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn receive(&mut self) -> io::Result<Option<Frame>> {
        let mut network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = network.now_ns;
        let direction = &mut network.directions[1 - self.end];
        // Checked first, as in every wire.
        let Some(spare) = direction.frames.take() else {
            self.counters.dropped.starved += 1;
            return Ok(None);
        };
        if direction.due().is_none_or(|due_ns| due_ns > now_ns) {
            direction.frames.give(spare);
            return Ok(None);
        }
        let Reverse(flight) = direction.flights.pop().expect("a segment is due");
        // All buffers have one size, so the receiver's spare buffer replaces the delivered one.
        direction.room.give(spare);
        self.counters.received.count(flight.bytes);
        Ok(Some(Frame::new(&direction.frames, flight.buffer, 0..flight.bytes)))
    }

    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent> {
        let packet = Packet::new(head, payload, offload, self.limits)?;
        let mut network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = network.now_ns;
        let direction = &mut network.directions[self.end];
        if direction.chance(direction.adversity.full) {
            self.counters.dropped.full += 1;
            return Ok(Sent::Full);
        }
        for number in 0..packet.segments() {
            direction.send(&packet, number, now_ns);
        }
        self.counters.sent.count(packet.bytes());
        Ok(Sent::Taken)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[derive(Debug)]
struct Network {
    now_ns: u64,
    directions: [Direction; 2],
}

/// A segment in flight. Ordered by arrival, then by number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    due_ns: u64,
    number: u64,
    bytes: usize,
    buffer: Box<[u8]>,
}

#[derive(Debug)]
struct Direction {
    adversity: Adversity,
    random: Pcg64Mcg,
    flights: BinaryHeap<Reverse<Flight>>,
    /// Buffers for further segments in flight.
    room: Arc<Pool>,
    /// Buffers for further frames that the receiver can hold.
    frames: Arc<Pool>,
    /// Time at which the bottleneck becomes idle.
    idle_ns: u64,
    /// Latest arrival of a segment that keeps its order.
    latest_ns: u64,
    number: u64,
    fates: Fates,
}

impl Direction {
    fn new(adversity: &Adversity, end: u64) -> Direction {
        let Adversity { loss, duplicate, reorder, corrupt, truncate, ce_mark, full, .. } =
            *adversity;
        for probability in [loss, duplicate, reorder, corrupt, truncate, ce_mark, full] {
            assert!((0.0..=1.0).contains(&probability), "{probability} is not a probability");
        }
        assert!(
            !adversity.delay_ns.is_empty(),
            "the range of delays {:?} is empty",
            adversity.delay_ns
        );
        assert!(
            adversity.segments_max > 0 && adversity.frames_max > 0,
            "segments_max or frames_max is 0"
        );
        // Room for two tags.
        let bytes = usize::from(adversity.mtu) + ETHERNET_BYTES + 8;
        Direction {
            random: Pcg64Mcg::seed_from_u64(adversity.seed.wrapping_mul(2).wrapping_add(end)),
            flights: BinaryHeap::with_capacity(adversity.segments_max),
            room: Pool::new(adversity.segments_max, bytes),
            frames: Pool::new(adversity.frames_max, bytes),
            idle_ns: 0,
            latest_ns: 0,
            number: 0,
            fates: Fates::default(),
            adversity: adversity.clone(),
        }
    }

    fn due(&self) -> Option<u64> {
        self.flights.peek().map(|Reverse(flight)| flight.due_ns)
    }

    /// Whether an event with this probability happens. One draw.
    fn chance(&mut self, probability: f64) -> bool {
        // 53 bits, the precision of a double between 0 and 1.
        let drawn = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        drawn < probability
    }

    /// A number from the range, uniformly distributed. One draw.
    fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let count = u128::from(range.end() - range.start()) + 1;
        range.start() + ((u128::from(self.random.next_u64()) * count) >> 64) as u64
    }

    /// Puts one segment of a packet in flight. All draws are made, whatever its fate.
    fn send(&mut self, packet: &Packet<'_>, number: usize, now_ns: u64) {
        let adversity = self.adversity.clone();
        let is_lost = self.chance(adversity.loss);
        let is_twice = self.chance(adversity.duplicate);
        let is_late = self.chance(adversity.reorder);
        let is_corrupt = self.chance(adversity.corrupt);
        let is_cut = self.chance(adversity.truncate);
        let is_marked = self.chance(adversity.ce_mark);
        let delays_ns = [(); 2].map(|()| self.within(adversity.delay_ns.clone()));
        let late_ns = self.within(0..=adversity.reorder_ns);
        let places = [(); 3].map(|()| self.random.next_u64());
        self.fates.segments += 1;
        if is_lost {
            self.fates.lost += 1;
            return;
        }
        let Some(mut buffer) = self.room.take() else {
            self.fates.overflowed += 1;
            return;
        };
        let mut bytes = packet.write_segment(number, &mut buffer);
        let (sent_ns, backlog_bytes) = self.pass_bottleneck(bytes, now_ns);
        if (is_marked || backlog_bytes > adversity.ce_backlog_bytes)
            && mark_congestion(&mut buffer[..bytes])
        {
            self.fates.marked += 1;
        }
        if is_corrupt {
            self.fates.corrupted += 1;
            // Models a network whose cables have their own checksums and whose routers have bad memory. Only IP packets arrive
            // damaged, because no higher layer would detect damage in other frames.
            if !is_ip(&buffer[..bytes]) {
                return self.room.give(buffer);
            }
            flip(&mut buffer[ETHERNET_BYTES..bytes], places[0], places[1]);
        }
        if is_cut && bytes > ETHERNET_BYTES {
            self.fates.truncated += 1;
            bytes = ETHERNET_BYTES + (places[2] % (bytes - ETHERNET_BYTES) as u64) as usize;
        }
        let mut due_ns = (sent_ns + delays_ns[0]).max(self.latest_ns);
        if is_late {
            self.fates.reordered += 1;
            due_ns += late_ns;
        } else {
            self.latest_ns = due_ns;
        }
        let twin = if is_twice { self.room.take() } else { None };
        let twin = twin.map(|mut twin| {
            twin[..bytes].copy_from_slice(&buffer[..bytes]);
            twin
        });
        self.push(due_ns, bytes, buffer);
        if let Some(twin) = twin {
            self.fates.duplicated += 1;
            self.push((sent_ns + delays_ns[1]).max(due_ns), bytes, twin);
        }
    }

    /// The time at which a segment of `bytes` bytes has passed the bottleneck, and the bytes queued before it.
    fn pass_bottleneck(&mut self, bytes: usize, now_ns: u64) -> (u64, u64) {
        let rate_bits = u128::from(self.adversity.rate_bits);
        if rate_bits == 0 {
            return (now_ns, 0);
        }
        let start_ns = self.idle_ns.max(now_ns);
        let backlog_bytes = self.backlog_bytes(now_ns);
        let takes_ns = (bytes as u128 * 8_000_000_000).div_ceil(rate_bits);
        self.idle_ns = start_ns + takes_ns as u64;
        (self.idle_ns, backlog_bytes)
    }

    /// Bytes queued at the bottleneck.
    fn backlog_bytes(&self, now_ns: u64) -> u64 {
        let waits_ns = u128::from(self.idle_ns.saturating_sub(now_ns));
        (waits_ns * u128::from(self.adversity.rate_bits) / 8_000_000_000) as u64
    }

    fn push(&mut self, due_ns: u64, bytes: usize, buffer: Box<[u8]>) {
        self.flights.push(Reverse(Flight { due_ns, number: self.number, bytes, buffer }));
        self.number += 1;
    }
}

/// Whether a frame without tags carries an IP packet.
fn is_ip(frame: &[u8]) -> bool {
    matches!(frame.get(12..ETHERNET_BYTES), Some([0x08, 0x00] | [0x86, 0xdd]))
}

/// Flips a burst of bits. `place` and `count` are draws for its place and its length.
fn flip(packet: &mut [u8], place: u64, count: u64) {
    let bits = packet.len() as u64 * 8;
    let first = place % bits;
    for bit in first..(first + 1 + count % BURST_BITS_MAX).min(bits) {
        packet[(bit / 8) as usize] ^= 0x80 >> (bit % 8);
    }
}
