//! The encoder.

use alloc::vec::Vec;

use super::{
    Header, MAGIC, Record, TAG_ASKS, TAG_HELD, TAG_MESSAGE, TAG_OUTCOME, TAG_SAME_TIME,
    TEXT_BYTES_MAX, VERSION, What, kind,
};
use crate::brain::{Input, Recorder};
use crate::clock::Nanos;
use crate::message::{Decision, Message, Subject, Upstream};
use crate::outcome::Outcome;
use crate::policy::{Note, Preemption};
use crate::snapshot::Snapshot;

/// Bytes gathered before the sink is called; allocated once.
pub const BUFFER_BYTES: usize = 64 * 1024;
/// The most bytes written between two checks of the buffer: at most a dozen numbers.
const PIECE_BYTES_MAX: usize = 256;
const PIECE_NUMBERS: usize = 16;

/// Writes a log: gathers up to [`BUFFER_BYTES`] and passes them to `sink`, one piece after the other.
/// The sink cannot fail: one that loses its file must report that itself, because an agent does not
/// leave when its log cannot be written. Flushes when it is dropped.
#[derive(Debug)]
pub struct LogWriter<S: FnMut(&[u8])> {
    buffer: Vec<u8>,
    last: Nanos,
    sink: S,
}

impl<S: FnMut(&[u8])> LogWriter<S> {
    /// Begins a log. The header goes out at once, so that even an agent that is killed early leaves a
    /// valid log. Texts beyond [`TEXT_BYTES_MAX`] are cut.
    pub fn new(header: &Header, sink: S) -> LogWriter<S> {
        let mut log = LogWriter { buffer: Vec::with_capacity(BUFFER_BYTES), last: Nanos(0), sink };
        log.buffer.extend_from_slice(&MAGIC);
        log.number(VERSION.into());
        for word in header.config.to_words() {
            log.number(word);
        }
        for text in [&header.policy, &header.about] {
            let text = cut(text);
            log.number(text.len() as u64);
            log.buffer.extend_from_slice(text.as_bytes());
        }
        log.flush();
        log
    }

    /// Appends a record of another log.
    pub fn write(&mut self, record: &Record) {
        let now = record.now;
        match &record.what {
            What::Input(input) => self.record(now, input),
            What::Decided { core, decision } => self.decided(now, *core, decision),
            What::Preempted(preemption) => self.preempted(now, preemption),
            What::Noted(note) => self.noted(now, note),
            What::Kicked { core } => {
                self.begin(now, kind::KICKED);
                self.number((*core).into());
            }
        }
    }

    /// Flushes if the buffer has room for less than [`PIECE_BYTES_MAX`].
    #[inline]
    fn make_room(&mut self) {
        if self.buffer.len() + PIECE_BYTES_MAX > BUFFER_BYTES {
            self.flush();
        }
    }

    #[inline]
    fn begin(&mut self, now: Nanos, tag: u8) {
        self.make_room();
        // Wrapping, so that a clock that goes backwards is recorded as it is.
        let since = now.0.wrapping_sub(self.last.0);
        self.last = now;
        if since == 0 {
            self.buffer.push(tag | TAG_SAME_TIME);
        } else {
            self.buffer.push(tag);
            self.number(since);
        }
    }

    #[inline]
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.buffer.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.buffer.push(number as u8);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        for &number in numbers {
            self.number(number);
        }
    }

    fn subject(&mut self, subject: Subject) {
        self.numbers(&[subject.id.into(), subject.generation.into()]);
    }

    fn entry(&mut self, now: Nanos, context: u16, entry: &Upstream) {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = flag(entry.message.is_some(), TAG_MESSAGE)
            | flag(entry.outcome.is_some(), TAG_OUTCOME)
            | flag(entry.asks, TAG_ASKS);
        self.begin(now, kind::ENTRY | flags);
        self.number(context.into());
        if let Some(Message { kind, subject, sequence, argument, payload }) = entry.message {
            self.number(kind.into());
            self.subject(subject);
            self.numbers(&[sequence.0.into(), argument.into()]);
            self.numbers(&payload);
        }
        if let Some(Outcome { txn, code, run }) = entry.outcome {
            self.numbers(&[code as u64, txn.number().into(), run.into()]);
        }
    }

    fn snapshot(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.begin(now, kind::SNAPSHOT);
        self.number(snapshot.cores.len() as u64);
        for core in &snapshot.cores {
            self.make_room();
            self.numbers(&[core.run.into(), core.txn.number().into(), core.asks.into()]);
        }
        self.number(snapshot.records.len() as u64);
        for record in &snapshot.records {
            self.make_room();
            self.subject(record.subject);
            self.numbers(&[record.sequence.0.into(), record.state as u64]);
            self.numbers(&[record.core.into(), record.class.into()]);
        }
    }

    fn note(&mut self, now: Nanos, tag: u8, note: &Note) {
        self.begin(now, tag);
        self.number(note.kind.into());
        self.subject(note.subject);
        self.numbers(&note.words);
    }
}

/// The longest prefix of a text that fits in a header.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl<S: FnMut(&[u8])> Recorder for LogWriter<S> {
    fn record(&mut self, now: Nanos, input: &Input) {
        match input {
            Input::Entry { context, entry } => self.entry(now, *context, entry),
            Input::Snapshot(snapshot) => self.snapshot(now, snapshot),
            Input::Bulk(words) => {
                self.begin(now, kind::BULK);
                self.number(words.len() as u64);
                for piece in words.chunks(PIECE_NUMBERS) {
                    self.make_room();
                    self.numbers(piece);
                }
            }
            Input::Note(note) => self.note(now, kind::NOTE, note),
            Input::Decide { budget, held } => {
                let flag = if *held > 0 { TAG_HELD } else { 0 };
                self.begin(now, kind::DECIDE | flag);
                // No policy makes more decisions than `u32::MAX`.
                self.number((*budget).min(u32::MAX as usize) as u64);
                if *held > 0 {
                    self.number((*held).min(u16::MAX.into()) as u64);
                }
            }
        }
    }

    fn decided(&mut self, now: Nanos, core: u16, decision: &Decision) {
        self.begin(now, kind::DECIDED);
        self.numbers(&[core.into(), decision.kind.into()]);
        self.subject(decision.subject);
        self.numbers(&[decision.sequence.0.into(), decision.txn.number().into()]);
        self.numbers(&[decision.flags.into(), decision.argument]);
    }

    fn preempted(&mut self, now: Nanos, preemption: &Preemption) {
        self.begin(now, kind::PREEMPTED);
        self.numbers(&[preemption.core.into(), preemption.run.into()]);
    }

    fn noted(&mut self, now: Nanos, note: &Note) {
        self.note(now, kind::NOTED, note);
    }

    fn kicked(&mut self, core: u16) {
        self.begin(self.last, kind::KICKED);
        self.number(core.into());
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            (self.sink)(&self.buffer);
            self.buffer.clear();
        }
    }
}

impl<S: FnMut(&[u8])> Drop for LogWriter<S> {
    fn drop(&mut self) {
        self.flush();
    }
}
