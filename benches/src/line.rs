//! The time that a cache line takes from one CPU to another, as a lower bound for queues.
//!
//! Two threads of this process send a number back and forth. *Bare* is one word in one line. *Ring* is the least that two
//! queues of 64-byte entries must do: each time 64 bytes, in the next line of a ring.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use serde_json::{Value, json};
use wave_compare::PerRound;
use wave_experiments::measure::{ns_per, pin};
use wave_process::cpus;

/// Lines of a ring: as many as a queue has entries.
const RING: usize = 1024;
/// Round trips of a chunk that measures the distance of two CPUs.
const ROUND_TRIPS: usize = 4_000;
const CHUNKS: usize = 15;

/// Space for two lines, because some processors fetch lines in pairs. Only the first is used.
#[derive(Default)]
#[repr(align(128))]
struct Line([AtomicU64; 8]);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Bare,
    Ring,
}

impl Sent {
    /// Writes a number into the line of its turn.
    #[inline(always)]
    fn put(self, lines: &[Line], turn: usize, number: u64) {
        let line = &lines[turn % lines.len()].0;
        if self == Self::Ring {
            line[..7].iter().for_each(|word| word.store(number, Ordering::Relaxed));
        }
        line[7].store(number, Ordering::Release);
    }

    /// Waits for a number in the line of its turn.
    #[inline(always)]
    fn wait(self, lines: &[Line], turn: usize, number: u64) {
        let line = &lines[turn % lines.len()].0;
        while line[7].load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
        if self == Self::Ring {
            let words: [u64; 7] = array::from_fn(|at| line[at].load(Ordering::Relaxed));
            std::hint::black_box(words);
        }
    }
}

type Way = Arc<[Line]>;

/// The numbers of a round trip: the one sent, and the one returned.
#[inline(always)]
fn numbers(turn: usize) -> [u64; 2] {
    [2 * turn as u64 + 1, 2 * turn as u64 + 2]
}

/// This thread's side. The other side is a thread on another CPU.
pub struct PingPong {
    sent: Sent,
    there: Way,
    back: Way,
    /// Number of round trips so far, so that no number is sent twice.
    done: usize,
    asks: mpsc::Sender<usize>,
    ready: mpsc::Receiver<()>,
}

impl PingPong {
    pub fn start(cpu: usize, sent: Sent) -> Self {
        let count = if sent == Sent::Bare { 1 } else { RING };
        let way = || (0..count).map(|_| Line::default()).collect::<Way>();
        let there = way();
        let back = if sent == Sent::Bare { Arc::clone(&there) } else { way() };
        let (asks, asked) = mpsc::channel::<usize>();
        let (says, ready) = mpsc::channel();
        let lines = [Arc::clone(&there), Arc::clone(&back)];
        std::thread::spawn(move || {
            let _ = pin(cpu);
            let ([there, back], mut done) = (&lines, 0);
            for count in asked {
                let _ = says.send(());
                for turn in done..done + count {
                    let [ping, pong] = numbers(turn);
                    sent.wait(there, turn, ping);
                    sent.put(back, turn, pong);
                }
                done += count;
            }
        });
        Self { sent, there, back, done: 0, asks, ready }
    }

    /// Nanoseconds of one way, as the mean of `round_trips` round trips.
    pub fn chunk(&mut self, round_trips: usize) -> Result<f64, String> {
        let gone = "the other thread of the ping-pong has ended";
        self.asks.send(round_trips).map_err(|_| gone)?;
        self.ready.recv().map_err(|_| gone)?;
        let turns = self.done..self.done + round_trips;
        self.done = turns.end;
        let Self { sent, there, back, .. } = &*self;
        let ns = ns_per(round_trips, || {
            for turn in turns {
                let [ping, pong] = numbers(turn);
                sent.put(there, turn, ping);
                sent.wait(back, turn, pong);
            }
        });
        Ok(ns / 2.0)
    }
}

/// Describes the first two CPUs that a bench may use: their distance as the system reports it, and the time of a line between them.
/// Pins the calling thread to the first.
pub fn described(pair: [usize; 2]) -> Result<Value, String> {
    let [first, second] = pair;
    pin(first)?;
    let mut ping_pong = PingPong::start(second, Sent::Bare);
    ping_pong.chunk(ROUND_TRIPS)?;
    let chunks: Result<PerRound, String> =
        (0..CHUNKS).map(|_| ping_pong.chunk(ROUND_TRIPS)).collect();
    Ok(json!({
        "first": first,
        "second": second,
        "distance": cpus::distance(first, second).name(),
        "line_ping_pong_ns": chunks?.spread(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_pong_completes_its_round_trips() {
        // On one CPU, where each thread spins until the other runs, it would take too long.
        let Ok([_, other]) = cpus::two() else { return };
        for sent in [Sent::Bare, Sent::Ring] {
            let mut ping_pong = PingPong::start(other, sent);
            for chunk in [1, 3, RING] {
                assert!(ping_pong.chunk(chunk).unwrap() > 0.0);
            }
            assert_eq!(ping_pong.done, RING + 4);
            let line = (RING + 3) % ping_pong.back.len();
            let [_, last] = numbers(RING + 3);
            assert_eq!(ping_pong.back[line].0[7].load(Ordering::Relaxed), last);
        }
    }
}
