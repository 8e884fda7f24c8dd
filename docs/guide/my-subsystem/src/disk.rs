//! The mechanism: a disk whose arms seek and serve. It holds the true state, and checks every decision against it.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::modelled::{ModelSetup, ModelledHost};
use wave_core::outcome::Code;
use wave_core::policy::Choice;
use wave_core::snapshot::{Record, State};

use crate::wire::{ARRIVED, DONE, SERVE, serve};

/// Number of tracks.
pub const TRACKS: u16 = 1000;
/// Time to serve a request, without the seek.
const SERVICE: Nanos = Nanos::from_micros(2);
/// Time to seek across one track.
const SEEK: Nanos = Nanos(10);

#[derive(Clone, Copy, Debug)]
struct Arm {
    track: u16,
    serves: Option<u32>,
}

/// The disk: requests that wait, and its arms.
#[derive(Debug)]
pub struct Disk {
    /// By id. A request's class is the number of its track.
    requests: Vec<Option<Record>>,
    arms: Vec<Arm>,
    random: Pcg64Mcg,
    /// The mean time between two requests.
    gap: Nanos,
    next: Option<Nanos>,
}

impl Disk {
    /// A disk with an arm for each core.
    pub fn new(setup: &ModelSetup) -> Disk {
        Disk {
            requests: vec![None; setup.subjects as usize],
            arms: vec![Arm { track: 0, serves: None }; setup.cores.into()],
            random: Pcg64Mcg::seed_from_u64(setup.seed),
            gap: Nanos(1_000_000_000 / u64::from(setup.per_second.max(1))),
            next: Some(Nanos(0)),
        }
    }

    /// An id that no request has.
    fn free(&self) -> Option<usize> {
        let is_free =
            |request: &Option<Record>| request.is_none_or(|record| record.state == State::Free);
        self.requests.iter().position(is_free)
    }
}

impl ModelledHost for Disk {
    fn next_event(&self) -> Option<Nanos> {
        self.next.filter(|_| self.free().is_some())
    }

    fn event(&mut self, now: Nanos) -> Option<Message> {
        let at = self.next_event().filter(|at| *at <= now)?;
        let id = self.free()?;
        self.next = Some(at + Nanos(self.random.random_range(0..=2 * self.gap.0)));
        let track = self.random.random_range(0..TRACKS);
        let (generation, sequence) = match self.requests[id] {
            Some(last) => (last.subject.generation.wrapping_add(1), last.sequence.next()),
            None => (1, Sequence(1)),
        };
        let subject = Subject { id: id as u32, generation };
        let state = State::Runnable;
        self.requests[id] = Some(Record { subject, sequence, state, core: 0, class: track });
        Some(message(ARRIVED, subject, sequence, track))
    }

    fn commit(&mut self, _now: Nanos, core: u16, decision: &Decision) -> Result<Nanos, Code> {
        if decision.kind != SERVE {
            return Err(Code::UnsupportedVersion);
        }
        let request = self.requests.get_mut(decision.subject.id as usize);
        let request = request.and_then(Option::as_mut).ok_or(Code::TargetNotFound)?;
        match request.state {
            _ if request.subject != decision.subject => return Err(Code::TargetNotFound),
            _ if request.sequence != decision.sequence => return Err(Code::TargetStale),
            State::Runnable => {}
            State::Running => return Err(Code::TargetOnCpu),
            State::Free | State::Blocked => return Err(Code::TargetNotRunnable),
        }
        (request.state, request.core) = (State::Running, core);
        let arm = &mut self.arms[usize::from(core)];
        let tracks = arm.track.abs_diff(request.class);
        *arm = Arm { track: request.class, serves: Some(decision.subject.id) };
        Ok(SERVICE + Nanos(SEEK.0 * u64::from(tracks)))
    }

    fn finish(&mut self, _now: Nanos, core: u16) -> Message {
        let id = self.arms[usize::from(core)].serves.take().expect("the arm has served a request");
        let request = self.requests[id as usize].as_mut().expect("a request in service exists");
        request.state = State::Free;
        request.sequence = request.sequence.next();
        message(DONE, request.subject, request.sequence, core)
    }

    fn fallback(&mut self, _core: u16) -> Option<Choice> {
        let mut waiting = self.requests.iter().flatten();
        let next = waiting.find(|request| request.state == State::Runnable)?;
        Some(serve(next.subject, next.sequence))
    }

    fn record(&self, id: u32) -> Option<Record> {
        self.requests.get(id as usize).copied().flatten()
    }

    fn run_max(&self) -> Nanos {
        SERVICE + Nanos(SEEK.0 * u64::from(TRACKS))
    }

    fn stop(&mut self) {
        self.next = None;
    }

    fn check(&self) -> Result<(), String> {
        for (core, Arm { track, serves }) in self.arms.iter().enumerate() {
            let Some(request) = serves.and_then(|id| self.record(id)) else { continue };
            let is_there = request.class == *track && usize::from(request.core) == core;
            if !is_there || request.state != State::Running {
                return Err(format!("arm {core} at track {track} serves {request:?}"));
            }
        }
        Ok(())
    }
}

fn message(kind: u16, subject: Subject, sequence: Sequence, argument: u16) -> Message {
    Message { kind, subject, sequence, argument: argument.into(), payload: [0; 3] }
}
