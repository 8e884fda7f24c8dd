//! Events in the Chrome trace-event format (JSON object form), which Perfetto's UI opens.
//!
//! Events are written one by one, because a trace may be larger than memory. A run is a pair of `B` and `E`,
//! not an `X` with a duration: readers convert fractions of microseconds to nanoseconds, and neighbouring runs
//! would overlap by one.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};
use wave_core::clock::Nanos;

/// The track of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// A host core, or another context of the host.
    Context(u16),
    Policy,
}

impl Track {
    /// The format's process and thread ids. Thread 0 is not used: some readers treat it specially.
    fn ids(self) -> (u32, u32) {
        match self {
            Track::Context(context) => (1, u32::from(context) + 1),
            Track::Policy => (2, 1),
        }
    }
}

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cat: &'a str,
    ph: char,
    /// Timestamp in microseconds.
    ts: f64,
    pid: u32,
    tid: u32,
    /// The scope of an instant: `t`, its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<char>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

pub struct Writer<W: Write> {
    out: W,
    events: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace; `about` is its metadata.
    pub fn new(mut out: W, about: &Value) -> io::Result<Writer<W>> {
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[")?;
        Ok(Writer { out, events: 0 })
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Names a track, and the process that it belongs to. Tracks are shown in the order of their
    /// numbers.
    pub fn name(&mut self, track: Track, process: &str, name: &str) -> io::Result<()> {
        let (_, tid) = track.ids();
        self.put('M', "process_name", "", Nanos(0), track, None, json!({ "name": process }))?;
        self.put('M', "thread_name", "", Nanos(0), track, None, json!({ "name": name }))?;
        let index = json!({ "sort_index": tid });
        self.put('M', "thread_sort_index", "", Nanos(0), track, None, index)
    }

    pub fn begin(&mut self, now: Nanos, track: Track, name: &str, args: Value) -> io::Result<()> {
        self.put('B', name, "run", now, track, None, args)
    }

    /// The run that began last on this track ends.
    pub fn end(&mut self, now: Nanos, track: Track, name: &str, args: Value) -> io::Result<()> {
        self.put('E', name, "run", now, track, None, args)
    }

    /// An event at one moment.
    pub fn instant(
        &mut self,
        now: Nanos,
        track: Track,
        category: &str,
        name: &str,
        args: Value,
    ) -> io::Result<()> {
        self.put('i', name, category, now, track, None, args)
    }

    /// A decision is in flight, from its `b` to the `e` with the same `id`.
    pub fn on_its_way(
        &mut self,
        now: Nanos,
        begins: bool,
        name: &str,
        id: &str,
        args: Value,
    ) -> io::Result<()> {
        let phase = if begins { 'b' } else { 'e' };
        self.put(phase, name, "decision", now, Track::Policy, Some(id), args)
    }

    pub fn counter(&mut self, now: Nanos, name: &str, value: u64) -> io::Result<()> {
        self.put('C', name, "", now, Track::Policy, None, json!({ "count": value }))
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the format, in one place")]
    fn put(
        &mut self,
        phase: char,
        name: &str,
        category: &str,
        now: Nanos,
        track: Track,
        id: Option<&str>,
        args: Value,
    ) -> io::Result<()> {
        let (pid, tid) = track.ids();
        let event = Event {
            name,
            cat: category,
            ph: phase,
            ts: now.0 as f64 / 1e3,
            pid,
            tid,
            s: (phase == 'i').then_some('t'),
            id,
            args,
        };
        self.out.write_all(if self.events == 0 { b"\n" } else { b",\n" })?;
        self.events += 1;
        Ok(serde_json::to_writer(&mut self.out, &event)?)
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }
}
