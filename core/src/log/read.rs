//! The checked decoder. A log may come from anywhere: no byte of it is trusted, and every record it
//! returns is safe to feed to a [`crate::brain::Brain`] of the header's configuration.

use alloc::string::String;
use alloc::vec::Vec;

use super::{
    Ended, Header, LogError, MAGIC, Record, TAG_ASKS, TAG_HELD, TAG_KIND, TAG_MESSAGE, TAG_OUTCOME,
    TAG_SAME_TIME, TEXT_BYTES_MAX, VERSION, What, kind,
};
use crate::brain::Input;
use crate::clock::Nanos;
use crate::layout::{CONFIG_WORDS, Config};
use crate::message::{Decision, Message, Sequence, Subject, TxnId, Upstream};
use crate::outcome::{Code, Outcome};
use crate::policy::{Note, Preemption};
use crate::snapshot::{self, CoreRecord, Snapshot, State};

/// Reads the records of a log, one after the other.
///
/// A log that ends in the middle of a record is no error ([`LogReader::ended`]). After an error
/// the reader returns no more records.
#[derive(Clone, Debug)]
pub struct LogReader<'a> {
    cursor: Cursor<'a>,
    header: Header,
    last: Nanos,
    records: u64,
    over: bool,
    ended: Option<Ended>,
}

impl<'a> LogReader<'a> {
    /// Reads and checks the header.
    pub fn new(bytes: &'a [u8]) -> Result<LogReader<'a>, LogError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(LogError::Magic);
        }
        let mut cursor = Cursor { bytes, at: known };
        let header = header(&mut cursor)?;
        header.config.check()?;
        Ok(LogReader { cursor, header, last: Nanos(0), records: 0, over: false, ended: None })
    }

    /// Continues with the next bytes of the same log, for a log that arrives in pieces of whole records. Errors count bytes from
    /// the piece's beginning.
    pub fn resume<'b>(self, piece: &'b [u8]) -> LogReader<'b> {
        let LogReader { header, last, records, .. } = self;
        let cursor = Cursor { bytes: piece, at: 0 };
        LogReader { cursor, header, last, records, over: false, ended: None }
    }

    /// The header, checked when the log was opened.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of records read so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// How the log ends; `None` until the end is reached.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }
}

impl Iterator for LogReader<'_> {
    type Item = Result<Record, LogError>;

    fn next(&mut self) -> Option<Result<Record, LogError>> {
        if self.over {
            return None;
        }
        let at = self.cursor.at;
        if at == self.cursor.bytes.len() {
            (self.over, self.ended) = (true, Some(Ended::Whole));
            return None;
        }
        match record(&mut self.cursor, self.last, &self.header.config) {
            Ok(record) => {
                self.last = record.now;
                self.records += 1;
                Some(Ok(record))
            }
            Err(Stop::End) => {
                (self.over, self.ended) = (true, Some(Ended::Truncated { at }));
                None
            }
            Err(Stop::Bad { at, what }) => {
                self.over = true;
                Some(Err(LogError::Record { record: self.records + 1, at, what }))
            }
        }
    }
}

/// Why decoding stopped: the end of the log, or a malformed record.
#[derive(Clone, Copy, Debug)]
enum Stop {
    End,
    Bad { at: usize, what: &'static str },
}

#[derive(Clone, Copy, Debug)]
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn byte(&mut self) -> Result<u8, Stop> {
        let byte = *self.bytes.get(self.at).ok_or(Stop::End)?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, Stop> {
        let at = self.at;
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Stop::Bad { at, what: "a number of more than 64 bits" })
    }

    /// Reads a number, which must fit its type.
    fn small<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, Stop> {
        self.checked(what, |number| T::try_from(number).ok())
    }

    fn below(&mut self, bound: u64, what: &'static str) -> Result<u64, Stop> {
        self.checked(what, |number| (number < bound).then_some(number))
    }

    fn checked<T>(
        &mut self,
        what: &'static str,
        check: impl FnOnce(u64) -> Option<T>,
    ) -> Result<T, Stop> {
        let at = self.at;
        check(self.number()?).ok_or(Stop::Bad { at, what })
    }

    fn core(&mut self, config: &Config) -> Result<u16, Stop> {
        Ok(self.below(config.cores.into(), "a core that the enclave does not have")? as u16)
    }

    fn subject(&mut self) -> Result<Subject, Stop> {
        Ok(Subject {
            id: self.small("an id out of range")?,
            generation: self.small("a generation out of range")?,
        })
    }

    fn sequence(&mut self) -> Result<Sequence, Stop> {
        Ok(Sequence(self.small("a sequence out of range")?))
    }

    fn txn(&mut self) -> Result<TxnId, Stop> {
        Ok(TxnId::new(self.below(1 << 24, "a txn of more than 24 bits")? as u32))
    }

    fn words<const N: usize>(&mut self) -> Result<[u64; N], Stop> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.number()?;
        }
        Ok(words)
    }

    fn text(&mut self) -> Result<String, Stop> {
        let length = self.below(TEXT_BYTES_MAX as u64 + 1, "a text that is too long")? as usize;
        let at = self.at;
        let bytes = self.bytes.get(at..at + length).ok_or(Stop::End)?;
        self.at += length;
        let text = core::str::from_utf8(bytes);
        Ok(text.map_err(|_| Stop::Bad { at, what: "a text that is not UTF-8" })?.into())
    }
}

fn header(cursor: &mut Cursor<'_>) -> Result<Header, LogError> {
    let length = cursor.bytes.len();
    let stopped = |stop| match stop {
        Stop::End => LogError::NoHeader { at: length },
        Stop::Bad { at, what } => LogError::Header { at, what },
    };
    let found = cursor.number().map_err(stopped)?;
    if found != VERSION.into() {
        return Err(LogError::Version { found });
    }
    let at = cursor.at;
    let words: [u64; CONFIG_WORDS] = cursor.words().map_err(stopped)?;
    let config = Config::from_words(&words)
        .map_err(|_| LogError::Header { at, what: "a configuration that is not valid" })?;
    let policy = cursor.text().map_err(stopped)?;
    let about = cursor.text().map_err(stopped)?;
    Ok(Header { config, policy, about })
}

fn record(cursor: &mut Cursor<'_>, last: Nanos, config: &Config) -> Result<Record, Stop> {
    let at = cursor.at;
    let tag = cursor.byte()?;
    let since = if tag & TAG_SAME_TIME == 0 { cursor.number()? } else { 0 };
    let (kind, flags) = (tag & TAG_KIND, tag & !(TAG_KIND | TAG_SAME_TIME));
    let flags_known = match kind {
        kind::ENTRY => TAG_MESSAGE | TAG_OUTCOME | TAG_ASKS,
        kind::DECIDE => TAG_HELD,
        _ => 0,
    };
    if flags & !flags_known != 0 {
        return Err(Stop::Bad { at, what: "flags that are not defined for this kind of record" });
    }
    let what = match kind {
        kind::ENTRY => What::Input(entry(cursor, flags, config)?),
        kind::SNAPSHOT => What::Input(Input::Snapshot(snapshot(cursor, config)?)),
        kind::BULK => What::Input(Input::Bulk(bulk(cursor, config)?)),
        kind::NOTE => What::Input(Input::Note(note(cursor)?)),
        kind::DECIDE => What::Input(Input::Decide {
            budget: cursor.small::<u32>("a budget out of range")? as usize,
            held: match flags & TAG_HELD {
                0 => 0,
                _ => cursor.small::<u16>("a count of held decisions out of range")?.into(),
            },
        }),
        kind::DECIDED => What::Decided { core: cursor.core(config)?, decision: decision(cursor)? },
        kind::PREEMPTED => What::Preempted(Preemption {
            core: cursor.core(config)?,
            run: cursor.small("a run out of range")?,
        }),
        kind::NOTED => What::Noted(note(cursor)?),
        kind::KICKED => What::Kicked { core: cursor.core(config)? },
        _ => return Err(Stop::Bad { at, what: "an unknown kind of record" }),
    };
    Ok(Record { now: Nanos(last.0.wrapping_add(since)), what })
}

fn entry(cursor: &mut Cursor<'_>, flags: u8, config: &Config) -> Result<Input, Stop> {
    let contexts = u64::from(config.cores) + u64::from(config.contexts);
    let context = cursor.below(contexts, "a context that the enclave does not have")? as u16;
    let mut entry = Upstream { message: None, outcome: None, asks: flags & TAG_ASKS != 0 };
    if flags & TAG_MESSAGE != 0 {
        entry.message = Some(Message {
            kind: cursor.small("a kind out of range")?,
            subject: cursor.subject()?,
            sequence: cursor.sequence()?,
            argument: cursor.small("an argument out of range")?,
            payload: cursor.words()?,
        });
    }
    if flags & TAG_OUTCOME != 0 {
        let code = |number| Code::from_number(u8::try_from(number).ok()?);
        entry.outcome = Some(Outcome {
            code: cursor.checked("an unknown outcome code", code)?,
            txn: cursor.txn()?,
            run: cursor.small("a run out of range")?,
        });
    }
    Ok(Input::Entry { context, entry })
}

/// Checks as strictly as the agent checked the snapshot's extent.
fn snapshot(cursor: &mut Cursor<'_>, config: &Config) -> Result<Snapshot, Stop> {
    let is = |number| (number == u64::from(config.cores)).then_some(number);
    let cores = cursor.checked("a snapshot with another number of cores than the enclave", is)?;
    let mut snapshot = Snapshot::default();
    for _ in 0..cores {
        snapshot.cores.push(CoreRecord {
            run: cursor.small("a run out of range")?,
            txn: cursor.txn()?,
            asks: cursor.below(2, "a flag that is neither 0 nor 1")? != 0,
        });
    }
    let subjects = u64::from(config.subjects);
    let count =
        cursor.below(subjects + 1, "a snapshot of more subjects than the enclave can have")?;
    // Each record takes six bytes or more: a short log cannot ask for much memory.
    let possible = (cursor.bytes.len() - cursor.at) / 6 + 1;
    snapshot.records = Vec::with_capacity((count as usize).min(possible));
    for _ in 0..count {
        let at = cursor.at;
        let subject = cursor.subject()?;
        if subject.id >= config.subjects {
            return Err(Stop::Bad { at, what: "an id beyond the table" });
        }
        let state = |number| State::from_number(u8::try_from(number).ok()?);
        snapshot.records.push(snapshot::Record {
            subject,
            sequence: cursor.sequence()?,
            state: cursor.checked("an unknown state of a subject", state)?,
            core: cursor.small("a core out of range")?,
            class: cursor.small("a class out of range")?,
        });
    }
    Ok(snapshot)
}

fn bulk(cursor: &mut Cursor<'_>, config: &Config) -> Result<Vec<u64>, Stop> {
    let most = config.bulk().words() as u64;
    let count = cursor.below(most + 1, "more bulk data than fits in an extent")? as usize;
    let mut words = Vec::with_capacity(count.min(cursor.bytes.len() - cursor.at));
    for _ in 0..count {
        words.push(cursor.number()?);
    }
    Ok(words)
}

fn note(cursor: &mut Cursor<'_>) -> Result<Note, Stop> {
    Ok(Note {
        kind: cursor.small("a kind out of range")?,
        subject: cursor.subject()?,
        words: cursor.words()?,
    })
}

fn decision(cursor: &mut Cursor<'_>) -> Result<Decision, Stop> {
    Ok(Decision {
        kind: cursor.small("a kind out of range")?,
        subject: cursor.subject()?,
        sequence: cursor.sequence()?,
        txn: cursor.txn()?,
        flags: cursor.small("flags out of range")?,
        argument: cursor.number()?,
    })
}
