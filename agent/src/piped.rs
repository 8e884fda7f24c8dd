//! A policy in another process, for a simulated host (ADR 93).
//!
//! The simulated agent's inputs go to the policy's process as records of a log ([`wave_core::log`]), and its decisions come back
//! as records. So the policy is deterministic wherever it runs, and one format serves logs, replays and this.
//!
//! ```text
//! frame     length: 4 bytes, little-endian | as many bytes
//! question  first: a log's header;           then: records, the last of which is a decide
//! answer    0 | 1 if there is more | deadline in ns: 8 bytes, all ones for none | a log's header, then records of outputs
//!           1 | UTF-8: why there is no decision
//! ```
//!
//! Each question has one answer, and neither side sends anything else.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wave_core::brain::{Brain, Input, Recorder};
use wave_core::clock::Nanos;
use wave_core::log::{Header, LogReader, LogWriter, What};
use wave_core::message::Decision;
use wave_core::message::Message;
use wave_core::outcome::Outcome;
use wave_core::policy::{Choice, Decisions, Desk, Policy, Progress};
use wave_core::snapshot::Snapshot;

use crate::panics::{caught, give_up};
use crate::record::LogSink;
use crate::registry::Registry;

/// Bytes of a frame, at most: far more than a snapshot of the largest enclave.
const FRAME_BYTES_MAX: usize = 64 << 20;
const DECIDED: u8 = 0;
const FAILED: u8 = 1;

fn send(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(4 + bytes.len());
    frame.extend((bytes.len() as u32).to_le_bytes());
    frame.extend(bytes);
    to.write_all(&frame)?;
    to.flush()
}

/// Receives a frame into `bytes`. Returns false at the end.
fn receive(from: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        let what = format!("a frame of {length} bytes; the limit is {FRAME_BYTES_MAX}");
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    bytes.clear();
    from.take(length as u64).read_to_end(bytes)?;
    Ok(bytes.len() == length)
}

/// Decides for a simulated host: reads questions from it and writes answers to it, until it ends.
///
/// # Errors
/// The connection fails, or a frame is not a question.
pub fn decide_for(registry: &Registry, mut host: impl Read + Write) -> io::Result<()> {
    let mut question = Vec::new();
    if !receive(&mut host, &mut question)? {
        return Ok(());
    }
    let log = LogReader::new(&question).map_err(io::Error::other)?;
    let header = log.header().clone();
    let made = caught(|| registry.make(&header.policy, &header.config));
    let policy = match made.and_then(|made| made) {
        Ok(policy) => policy,
        Err(why) => return send(&mut host, &failure(&why)),
    };
    let records = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&records);
    let mut outputs = LogWriter::new(&header, move |bytes: &[u8]| sink.borrow_mut().extend(bytes));
    let mut brain = Brain::new(&header.config, policy, ());
    let mut out = Decisions::default();
    let mut log = log.resume(&[]);
    let mut more = Progress::Done;
    loop {
        let mut answer = vec![DECIDED, u8::from(more == Progress::More)];
        let deadline = match caught(|| brain.next_deadline()) {
            Ok(deadline) => deadline,
            Err(why) => return send(&mut host, &failure(&why)),
        };
        answer.extend(deadline.map_or(u64::MAX, |at| at.0).to_le_bytes());
        answer.append(&mut records.borrow_mut());
        send(&mut host, &answer)?;
        if !receive(&mut host, &mut question)? {
            return Ok(());
        }
        let mut reader = log.resume(&question);
        for record in reader.by_ref() {
            let record = record.map_err(io::Error::other)?;
            let What::Input(input) = &record.what else { continue };
            match caught(|| brain.replay(record.now, input, &mut out)) {
                Ok(progress) => more = progress,
                Err(why) => return send(&mut host, &failure(&why)),
            }
            for (core, decision) in out.staged.drain(..) {
                outputs.decided(record.now, core, &decision);
            }
            out.preemptions.drain(..).for_each(|each| outputs.preempted(record.now, &each));
            out.notes.drain(..).for_each(|each| outputs.noted(record.now, &each));
        }
        outputs.flush();
        log = reader.resume(&[]);
    }
}

fn failure(why: &str) -> Vec<u8> {
    let mut answer = vec![FAILED];
    answer.extend(why.as_bytes());
    answer
}

/// Errors of a connection to a process that has ended.
const HAS_ENDED: [ErrorKind; 2] = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];

fn ended(who: &str) -> String {
    format!("the process of {who} ended without answering")
}

/// Inputs of the agent that were not yet sent to the policy's process.
struct Untold {
    log: LogWriter<LogSink>,
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Whether the last one is a decide.
    is_asked: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes every input of an agent, at the agent's time.
pub type Ear = Box<dyn FnMut(Nanos, &Input) + Send>;

/// A policy whose decisions another process makes. If that process cannot, or panics, the call [gives up](give_up).
#[derive(Debug)]
pub struct Piped<S> {
    process: S,
    untold: Arc<Mutex<Untold>>,
    /// The log of the outputs so far; between two answers it holds no bytes.
    outputs: Option<LogReader<'static>>,
    answer: Vec<u8>,
    deadline: Option<Nanos>,
    /// The beginning of error sentences: policy and program.
    who: String,
}

impl std::fmt::Debug for Untold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Untold").field("is_asked", &self.is_asked).finish_non_exhaustive()
    }
}

impl<S: Read + Write + Send> Piped<S> {
    /// Begins to ask a process that runs [`decide_for`] at the other end of `process`.
    /// The agent's inputs must go to the [`Ear`] as they come, before the policy gets them.
    ///
    /// # Errors
    /// The process has no such policy for this configuration. The error is a sentence with the reason, and begins with
    /// `who`.
    pub fn start(header: &Header, who: String, process: S) -> Result<(Piped<S>, Ear), String> {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let write: LogSink = Box::new(move |some| lock(&sink).extend(some));
        let log = LogWriter::new(header, write);
        let untold = Arc::new(Mutex::new(Untold { log, bytes, is_asked: false }));
        let (outputs, answer, deadline) = (None, Vec::new(), None);
        let heard = Arc::clone(&untold);
        let mut piped = Piped { process, untold, outputs, answer, deadline, who };
        piped.ask()?;
        let log = LogReader::new(&piped.answer[10..]);
        let log = log.map_err(|error| format!("{} wrote nonsense: {error}", piped.who))?;
        piped.outputs = Some(log.resume(&[]));
        let ear: Ear = Box::new(move |now, input| {
            let mut untold = lock(&heard);
            untold.is_asked = matches!(input, Input::Decide { .. });
            untold.log.record(now, input);
        });
        Ok((piped, ear))
    }

    /// Sends the untold inputs, and waits for the answer. Returns whether there is more to decide.
    fn ask(&mut self) -> Result<Progress, String> {
        let who = &self.who;
        let question = {
            let mut untold = lock(&self.untold);
            untold.log.flush();
            untold.is_asked = false;
            std::mem::take(&mut *lock(&untold.bytes))
        };
        let asked = send(&mut self.process, &question);
        let received = asked.and_then(|()| receive(&mut self.process, &mut self.answer));
        match received {
            Ok(true) => {}
            Ok(false) => return Err(ended(who)),
            Err(error) if HAS_ENDED.contains(&error.kind()) => return Err(ended(who)),
            Err(error) => return Err(format!("{who} does not answer: {error}")),
        }
        match &self.answer[..] {
            [FAILED, why @ ..] => Err(format!("{who}: {}", String::from_utf8_lossy(why))),
            [DECIDED, more, rest @ ..] if rest.len() >= 8 => {
                let deadline =
                    rest.first_chunk().map_or(u64::MAX, |word| u64::from_le_bytes(*word));
                self.deadline = (deadline != u64::MAX).then_some(Nanos(deadline));
                Ok(if *more == 0 { Progress::Done } else { Progress::More })
            }
            _ => Err(format!("{who} wrote nonsense")),
        }
    }

    /// Takes the decisions of the last answer.
    fn take(&mut self, desk: &mut Desk<'_>) -> Result<(), String> {
        let nonsense = |what: &str| format!("{} wrote nonsense: {what}", self.who);
        let outputs = self.outputs.take().expect("set when it started");
        let mut outputs = outputs.resume(&self.answer[10..]);
        for record in outputs.by_ref() {
            match record.map_err(|error| nonsense(&error.to_string()))?.what {
                What::Decided { core, decision } if desk.has_room(core) && !desk.is_full() => {
                    let Decision { kind, subject, sequence, argument, .. } = decision;
                    desk.stage(core, Choice { kind, subject, sequence, argument });
                }
                What::Preempted(preemption) => drop(desk.preempt(preemption)),
                What::Noted(note) => desk.note(note),
                what => return Err(nonsense(&format!("{what:?}"))),
            }
        }
        self.outputs = Some(outputs.resume(&[]));
        Ok(())
    }
}

impl<S: Read + Write + Send> Policy for Piped<S> {
    fn name(&self) -> &'static str {
        "piped"
    }
    // The ear has received these as entries already.
    fn on_message(&mut self, _now: Nanos, _message: &Message) {}
    fn on_outcome(&mut self, _now: Nanos, _core: u16, _of: &Decision, _outcome: Outcome) {}
    fn resync(&mut self, _now: Nanos, _snapshot: &Snapshot) {}

    fn decide(&mut self, _now: Nanos, desk: &mut Desk<'_>) -> Progress {
        // Nothing to ask: the ear gets no decide that cannot matter.
        if !lock(&self.untold).is_asked {
            return Progress::Done;
        }
        let asked = self.ask().and_then(|progress| self.take(desk).map(|()| progress));
        asked.unwrap_or_else(|why| give_up(why))
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_cut_off_is_the_end_and_one_that_is_too_long_is_refused() {
        let mut bytes = Vec::new();
        let mut sent = Vec::new();
        send(&mut sent, b"abc").unwrap();
        assert!(receive(&mut &sent[..], &mut bytes).unwrap() && bytes == b"abc");
        for end in 0..sent.len() {
            assert!(!receive(&mut &sent[..end], &mut bytes).unwrap());
        }
        assert!(receive(&mut &[0xff; 8][..], &mut bytes).is_err());
    }
}
