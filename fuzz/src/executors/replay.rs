//! Replays a log through any executor, and collects each flow's output byte by byte.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use wave_tcp_planted::context;
use wave_tcp_planted::counters::Counters;
use wave_tcp_planted::datapath::{Established, FlowId, Output, Payload};
use wave_tcp_planted::executors::Executor;
use wave_tcp_planted::pipeline::Outcome;

use super::log::{Bytes, Event, Log};

/// Stands for packets that belong to no flow.
pub const NOBODY: FlowId = FlowId { index: u32::MAX, generation: 0 };

/// Counts of an executor's outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Entries processed.
    pub entries: u64,
    pub segments: u64,
    /// Copies to hosts' rings.
    pub writes: u64,
    pub notices: u64,
    /// Packets for the control plane.
    pub control: u64,
    /// Most entries in flight at once.
    pub in_flight_max: u64,
}

impl Counts {
    /// Adds the counts of another log.
    pub fn add(&mut self, other: &Counts) {
        self.entries += other.entries;
        self.segments += other.segments;
        self.writes += other.writes;
        self.notices += other.notices;
        self.control += other.control;
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
    }
}

/// Output of a replayed log.
#[derive(Debug)]
pub struct Replayed {
    /// Output of each flow, and its state when it was removed, or at the end.
    pub flows: BTreeMap<FlowId, Vec<u8>>,
    /// Counters of the data path.
    pub counters: Counters,
    pub counts: Counts,
}

impl Replayed {
    /// Describes the first flow whose output differs.
    pub fn difference(&self, other: &Replayed) -> Option<String> {
        let flows = self.flows.keys().chain(other.flows.keys());
        let of = |replayed: &Replayed, id: &FlowId| replayed.flows.get(id).cloned();
        for id in flows {
            let (one, two) = (of(self, id).unwrap_or_default(), of(other, id).unwrap_or_default());
            if one != two {
                let at = one.iter().zip(&two).take_while(|(one, two)| one == two).count();
                let (one, two) = (one.len(), two.len());
                return Some(format!(
                    "flow {id}: outputs of {one} and {two} bytes differ from byte {at} on"
                ));
            }
        }
        let counters = [self, other].map(|replayed| format!("{:?}", replayed.counters));
        (counters[0] != counters[1])
            .then(|| format!("the counters differ: {} and {}", counters[0], counters[1]))
    }
}

pub fn replay<E: Executor<Bytes>>(log: &Log, executor: &mut E) -> Replayed {
    let mut replayed = Replayed {
        flows: BTreeMap::new(),
        counters: Counters::default(),
        counts: Counts::default(),
    };
    let mut outputs = VecDeque::new();
    let mut pop = |executor: &mut E, waits, replayed: &mut Replayed| {
        let popped = executor.pop(waits, &mut outputs);
        if let Some(outcome) = popped {
            replayed.take(&outcome, &mut outputs);
        }
        popped.is_some()
    };
    let mut living = Vec::new();
    for event in &log.events {
        if !matches!(event, Event::Entry(_)) {
            while pop(executor, true, &mut replayed) {}
        }
        match event {
            Event::Entry(stamped) => {
                while executor.room() == 0 {
                    pop(executor, true, &mut replayed);
                }
                executor.push(stamped.clone());
                let counts = &mut replayed.counts;
                counts.entries += 1;
                counts.in_flight_max = counts.in_flight_max.max(executor.in_flight() as u64);
                while pop(executor, false, &mut replayed) {}
            }
            Event::Install(now, established) => {
                let installed = executor.install(*now, None, established);
                living.push(installed.expect("there was room, and is"));
            }
            Event::SetPath(id, path) => executor.set_path(*id, *path),
            Event::Remove(id) => {
                living.retain(|living| living != id);
                let flow = executor.remove(*id).expect("it was there, and is");
                replayed.leaves(*id, &flow);
            }
        }
    }
    while pop(executor, true, &mut replayed) {}
    for id in living {
        let flow = executor.inspect(id).expect("it is there");
        replayed.leaves(id, &flow);
    }
    replayed
}

impl Replayed {
    fn take(&mut self, outcome: &Outcome, outputs: &mut VecDeque<Output<Bytes>>) {
        self.counters.add(&outcome.tally);
        let out = self.flows.entry(outcome.flow.unwrap_or(NOBODY)).or_default();
        for output in outputs.drain(..) {
            let count = match output {
                Output::Send(segment) => {
                    out.push(1);
                    out.extend_from_slice(segment.head.bytes());
                    if let Payload::Ring { process, ring, position, bytes } = segment.payload {
                        out.extend_from_slice(&process.to_le_bytes());
                        words(out, &[ring.offset, ring.bytes.into(), position, bytes.into()]);
                    }
                    let ticket = segment.ticket.map_or(u64::MAX, |ticket| ticket.0);
                    words(out, &[ticket, segment.segment_bytes.into()]);
                    &mut self.counts.segments
                }
                Output::Write(write) => {
                    out.push(2);
                    out.extend_from_slice(&write.process.to_le_bytes());
                    words(out, &[write.ring.offset, write.ring.bytes.into(), write.position]);
                    out.extend_from_slice(&write.frame[write.bytes]);
                    &mut self.counts.writes
                }
                Output::Notify(context, event) => {
                    let context::Event::Progress(progress) = event else {
                        unreachable!("{event:?}")
                    };
                    out.push(3);
                    let (process, context) = (context.process.into(), context.context.into());
                    let socket = progress.socket.into();
                    words(out, &[process, context, socket, progress.received]);
                    words(out, &[progress.acknowledged, progress.is_finished.into()]);
                    &mut self.counts.notices
                }
                Output::Control((packet, _)) => {
                    out.push(4);
                    out.extend_from_slice(&packet.frame);
                    &mut self.counts.control
                }
            };
            *count += 1;
        }
    }

    fn leaves(&mut self, id: FlowId, state: &Established) {
        let state = format!("{state:?}");
        self.flows.entry(id).or_default().extend_from_slice(state.as_bytes());
    }
}

fn words(out: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}
