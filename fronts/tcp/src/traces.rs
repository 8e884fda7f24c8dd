//! The socket from which `wave tcp trace` reads the agent's trace points, as lines of JSON. Points are on only while there is a
//! reader. A reader never delays the agent.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_tcp::datapath::FlowId;
use wave_tcp::trace::{self, PointInfo, Record, Trace};

use crate::readers::{PATIENCE, PendingReader, Pipe};
use crate::tool_sockets::bind_beside;

/// Most readers at a time, including those whose request is not complete. Others wait in the socket's backlog.
pub(crate) const TRACES_MAX: usize = 4;
/// Records in the ring: some turns of the front under load.
const RECORDS: usize = 1 << 13;

/// A reader's request, as one line of JSON. The answer is one line of JSON for each record, until the reader ends its half of the
/// stream; then a last line, `{"lost":N}`, gives the number of lost records, and the stream ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// A connection, as index and generation. If absent: all connections, and records that belong to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<(u32, u32)>,
    /// Names of points. If absent: all points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<Vec<String>>,
}

/// Path of the trace socket of an agent whose door is at `door`.
pub fn traces_path(door: &Path) -> PathBuf {
    let mut name = door.as_os_str().to_owned();
    name.push(".trace");
    name.into()
}

/// The socket, the ring and the readers.
pub struct Traces {
    listener: UnixListener,
    path: PathBuf,
    trace: Arc<Trace>,
    /// The points of the data path.
    points: &'static [PointInfo],
    pending: Vec<PendingReader>,
    running: Vec<Running>,
    /// Lines for one reader in one turn.
    lines: String,
}

struct Running {
    request: TraceRequest,
    pipe: Pipe,
    stream: UnixStream,
    /// Number of the next record.
    next: u64,
    lost: u64,
    /// When the reader ended its half of the stream.
    ended_at: Option<Nanos>,
    is_gone: bool,
}

impl Traces {
    /// Listens beside a door that was bound.
    ///
    /// # Errors
    /// listen(2) fails at the path.
    pub fn bind(door: &Path) -> io::Result<Traces> {
        let path = traces_path(door);
        // Traces show which hosts communicate, and when: only for the agent's user and root.
        let listener = bind_beside(&path, Mode::RUSR | Mode::WUSR)?;
        Ok(Traces::over(listener, path))
    }

    /// Continues for another agent, with its listening socket. That agent's readers are gone.
    pub(crate) fn adopt(listener: OwnedFd, door: &Path) -> Traces {
        Traces::over(listener.into(), traces_path(door))
    }

    fn over(listener: UnixListener, path: PathBuf) -> Traces {
        let trace = Arc::new(Trace::new(RECORDS));
        let (pending, running) = (Vec::new(), Vec::new());
        let (points, lines) = (&[], String::new());
        Traces { listener, path, trace, points, pending, running, lines }
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Sets the points of the data path.
    pub(crate) fn set_points(&mut self, points: &'static [PointInfo]) {
        self.points = points;
    }

    /// The ring, for the code that passes trace points.
    pub(crate) fn trace(&self) -> Arc<Trace> {
        Arc::clone(&self.trace)
    }

    /// Accepts new readers, and drops those that have left.
    pub(crate) fn poll(&mut self, now: Nanos) {
        while self.pending.len() + self.running.len() < TRACES_MAX {
            let Some(pending) = PendingReader::accept(&self.listener, now) else { break };
            self.pending.push(pending);
        }
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.read_request::<TraceRequest>() {
                Ok(Some(request)) => {
                    self.running.extend(Running::begin(pending.stream, request, self.trace.next()))
                }
                Ok(None) if pending.is_patient(now) => self.pending.push(pending),
                Ok(None) => {}
                Err(why) => {
                    let _ = writeln!(pending.stream, "wave tcp trace: {why}");
                }
            }
        }
        self.running.retain_mut(|running| !running.is_over(now));
        self.trace.turn(self.running.iter().any(|running| running.ended_at.is_none()));
    }

    /// Sends each reader the records written since the last call.
    pub(crate) fn deliver(&mut self) {
        for running in self.running.iter_mut().filter(|running| running.ended_at.is_none()) {
            running.deliver(&self.trace, self.points, &mut self.lines);
        }
    }

    /// Whether there is no reader.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether to try again soon: lines wait for a reader, or a request is not complete.
    pub(crate) fn is_behind(&self) -> bool {
        !self.pending.is_empty() || self.running.iter().any(|running| running.pipe.is_behind())
    }

    /// Descriptors to poll for input.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let going_on = self.running.iter().filter(|running| running.ended_at.is_none());
        let readers = going_on.map(|running| running.stream.as_fd());
        std::iter::once(self.listener.as_fd()).chain(readers)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        for running in &mut self.running {
            running.pipe.flush_some();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Running {
    fn begin(stream: UnixStream, request: TraceRequest, next: u64) -> Option<Running> {
        let pipe = Pipe::new(stream.try_clone().ok()?);
        let begun = pipe.send(b"{\"trace\":1}\n").is_ok();
        begun.then_some(Running {
            request,
            pipe,
            stream,
            next,
            lost: 0,
            ended_at: None,
            is_gone: false,
        })
    }

    fn deliver(&mut self, trace: &Trace, points: &'static [PointInfo], lines: &mut String) {
        lines.clear();
        let mut count = 0;
        let TraceRequest { flow, points: wanted } = &self.request;
        let flow = flow.map(|(index, generation)| FlowId { index, generation });
        self.lost += trace.read(&mut self.next, |record| {
            let Some(point) = trace::describe(record.point, points) else { return };
            let is_wanted =
                wanted.as_ref().is_none_or(|names| names.iter().any(|name| name == point.name));
            if is_wanted && (flow.is_none() || record.flow == flow) {
                count += 1;
                line(lines, record, point);
            }
        });
        if count == 0 {
            return;
        }
        match self.pipe.send(lines.as_bytes()) {
            Ok(true) => {}
            Ok(false) => self.lost += count,
            Err(_) => self.is_gone = true,
        }
    }

    /// Sends waiting lines. Returns whether the reader has left, or has received everything.
    fn is_over(&mut self, now: Nanos) -> bool {
        self.pipe.flush_some();
        if self.is_gone {
            return true;
        }
        if self.ended_at.is_none() {
            match self.stream.read(&mut [0; 16]) {
                Ok(0) => {
                    self.ended_at = Some(now);
                    let _ = self.pipe.send(format!("{{\"lost\":{}}}\n", self.lost).as_bytes());
                }
                // Readers send nothing after their request.
                Ok(_) => return true,
                Err(error) => {
                    let is_quiet = error.kind() == io::ErrorKind::WouldBlock
                        || error.kind() == io::ErrorKind::Interrupted;
                    return !is_quiet;
                }
            }
        }
        self.ended_at.is_some_and(|at| !self.pipe.is_behind() || now.since(at) >= PATIENCE)
    }
}

/// Appends a record as a line.
fn line(lines: &mut String, record: &Record, point: &PointInfo) {
    let Record { number, at, flow, values, .. } = record;
    let PointInfo { stage, name, values: names, .. } = point;
    // The text has no quotes, so nothing is escaped.
    let _ = write!(lines, r#"{{"n":{number},"ns":{},"stage":"{stage}","point":"{name}""#, at.0);
    if let Some(flow) = flow {
        let _ = write!(lines, r#","flow":"{flow}""#);
    }
    for (name, value) in names.iter().zip(values) {
        if !name.is_empty() {
            let _ = write!(lines, r#","{name}":{value}"#);
        }
    }
    lines.push_str("}\n");
}

#[cfg(test)]
mod tests {
    use wave_tcp::datapaths::DatapathKind;

    use super::*;

    #[test]
    fn trace_line_is_json_with_its_points_values() {
        let mut lines = String::new();
        let flow = Some(FlowId { index: 3, generation: 1 });
        let points: Vec<_> = (0..)
            .map_while(|number| trace::describe(number, DatapathKind::default().points()))
            .collect();
        for (number, point) in (0..).zip(&points) {
            let values = [1, u64::MAX];
            let record = Record { number: 7, at: Nanos(5), point: number, flow, values };
            line(&mut lines, &record, point);
        }
        for (text, point) in lines.lines().zip(&points) {
            let object: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(object["point"], point.name);
            assert_eq!((&object["n"], &object["flow"]), (&7.into(), &"3.1".into()));
            let named = point.values.iter().filter(|name| !name.is_empty()).count();
            assert_eq!(object.as_object().unwrap().len(), 5 + named);
        }
        assert_eq!(lines.lines().count(), points.len());
    }
}
