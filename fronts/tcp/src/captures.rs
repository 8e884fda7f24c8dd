//! The socket at which `wave tcp capture` gets the agent's frames, as pcapng. A reader never delays the agent: frames that it
//! does not take in time are left out, and counted.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_wires::{CaptureOptions, Filter, Frame, Limits, Offload, RawPart, Recorder};

use crate::readers::{PATIENCE, PendingReader, Pipe};
use crate::tool_sockets::bind_beside;

/// Most captures at a time, including those whose request is not complete. Others wait in the socket's backlog.
pub(crate) const CAPTURES_MAX: usize = 4;

/// A reader's request, as one line of JSON. The answer is a pcapng file. It continues until the reader ends its half of the
/// stream; then the number of frames that were left out follows, and the file ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Address of either side. If absent: all addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<IpAddr>,
    /// Port of either side. If absent: all ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Most bytes to keep of a frame. If absent: the whole frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snap_bytes: Option<u32>,
}

/// Path of the capture socket of an agent whose door is at `door`.
pub fn captures_path(door: &Path) -> PathBuf {
    let mut name = door.as_os_str().to_owned();
    name.push(".capture");
    name.into()
}

/// The socket and its readers.
pub struct Captures {
    listener: UnixListener,
    path: PathBuf,
    /// The wire's name in captures.
    name: String,
    pending: Vec<PendingReader>,
    running: Vec<Running>,
    recorders: Recorders,
    /// Number of the next capture.
    next: u64,
    /// Frames of captures that have ended.
    frames: u64,
    dropped: u64,
}

struct Running {
    /// Number of the capture, and of its recorder.
    number: u64,
    pipe: Pipe,
    stream: UnixStream,
    /// When the reader ended its half of the stream.
    ended_at: Option<Nanos>,
    /// Number of its frames, once it has ended.
    frames: u64,
}

/// Recorders of the running captures, shared by all threads with a wire.
#[derive(Clone, Default)]
pub(crate) struct Recorders(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Whether there are any. Read for each frame.
    are_some: AtomicBool,
    recorders: Mutex<Vec<(u64, Recorder)>>,
}

impl Recorders {
    fn with<T>(&self, what: impl FnOnce(&mut Vec<(u64, Recorder)>) -> T) -> T {
        let mut recorders = self.0.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        let result = what(&mut recorders);
        self.0.are_some.store(!recorders.is_empty(), Ordering::Relaxed);
        result
    }

    fn each(&self, what: impl Fn(&mut Recorder)) {
        if self.0.are_some.load(Ordering::Relaxed) {
            self.with(|recorders| recorders.iter_mut().for_each(|(_, recorder)| what(recorder)));
        }
    }

    /// Records a received frame.
    pub(crate) fn received(&self, frame: &Frame) {
        self.each(|recorder| recorder.received(frame));
    }

    /// Records a frame that a wire with these limits has taken.
    pub(crate) fn sent(
        &self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
        of: Limits,
    ) {
        self.each(|recorder| recorder.sent(head, payload, offload, of));
    }

    /// Ends a capture, of which `dropped` frames were left out. Returns the number of its frames; 0 if it has ended before.
    fn end(&self, number: u64, dropped: u64) -> u64 {
        self.with(|recorders| {
            let Some(at) = recorders.iter().position(|(one, _)| *one == number) else { return 0 };
            let (_, mut recorder) = recorders.swap_remove(at);
            recorder.dropped(dropped);
            recorder.frames()
        })
    }
}

/// Numbers of frames in all captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CaptureCounters {
    pub frames: u64,
    /// Frames left out because a reader was too slow.
    pub dropped: u64,
}

impl Captures {
    /// Listens beside a door that was bound.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn bind(door: &Path, name: &str) -> io::Result<Captures> {
        let path = captures_path(door);
        // Captures show the contents of connections: only for the agent's user and root.
        let listener = bind_beside(&path, Mode::RUSR | Mode::WUSR)?;
        Ok(Captures::over(listener, path, name))
    }

    /// Continues for another agent, with its listening socket. That agent's captures have ended.
    pub(crate) fn adopt(listener: OwnedFd, door: &Path, name: &str) -> Captures {
        Captures::over(listener.into(), captures_path(door), name)
    }

    fn over(listener: UnixListener, path: PathBuf, name: &str) -> Captures {
        Captures {
            listener,
            path,
            name: name.to_owned(),
            pending: Vec::new(),
            running: Vec::new(),
            recorders: Recorders::default(),
            next: 0,
            frames: 0,
            dropped: 0,
        }
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The recorders, for a thread that has a wire.
    pub(crate) fn recorders(&self) -> Recorders {
        self.recorders.clone()
    }

    /// Accepts readers, begins captures, and ends those whose readers have left.
    pub(crate) fn poll(&mut self, now: Nanos) {
        while self.pending.len() + self.running.len() < CAPTURES_MAX {
            let Some(pending) = PendingReader::accept(&self.listener, now) else { break };
            self.pending.push(pending);
        }
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.read_request() {
                Ok(Some(request)) => {
                    let running = self.begin(pending.stream, &request);
                    self.running.extend(running);
                }
                Ok(None) if pending.is_patient(now) => self.pending.push(pending),
                Ok(None) => {}
                Err(why) => {
                    // The reader sees that this is not pcapng.
                    let _ = writeln!(pending.stream, "wave tcp capture: {why}");
                }
            }
        }
        for at in (0..self.running.len()).rev() {
            if self.running[at].is_over(now, &self.recorders) {
                let Running { number, pipe, frames, .. } = self.running.swap_remove(at);
                self.frames += frames + self.recorders.end(number, pipe.dropped());
                self.dropped += pipe.dropped();
            }
        }
    }

    /// Whether to try again soon: frames wait for a reader, or a request is not complete.
    pub(crate) fn is_behind(&self) -> bool {
        !self.pending.is_empty() || self.running.iter().any(|running| running.pipe.is_behind())
    }

    fn begin(&mut self, stream: UnixStream, request: &CaptureRequest) -> Option<Running> {
        let mut options = CaptureOptions {
            name: self.name.clone(),
            filter: Filter { host: request.host, port: request.port },
            bytes_max: u64::MAX,
            ..CaptureOptions::default()
        };
        options.snap_bytes = request.snap_bytes.unwrap_or(u32::MAX).min(options.snap_bytes);
        let clock = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_nanos() as u64
        };
        let pipe = Pipe::new(stream.try_clone().ok()?);
        let recorder = Recorder::new(Box::new(pipe.clone()), &options, Box::new(clock)).ok()?;
        let number = self.next;
        self.next += 1;
        self.recorders.with(|recorders| recorders.push((number, recorder)));
        Some(Running { number, pipe, stream, ended_at: None, frames: 0 })
    }

    pub(crate) fn counters(&self) -> CaptureCounters {
        let sum = |of: fn(&Running) -> u64| self.running.iter().map(of).sum::<u64>();
        // Read first, so that it is at most `written`: other threads keep recording.
        let dropped = self.dropped + sum(|running| running.pipe.dropped());
        let going_on: u64 = self
            .recorders
            .with(|recorders| recorders.iter().map(|(_, recorder)| recorder.frames()).sum());
        let written = self.frames + sum(|running| running.frames) + going_on;
        CaptureCounters { frames: written - dropped, dropped }
    }

    /// Descriptors to poll for input.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let going_on = self.running.iter().filter(|running| running.ended_at.is_none());
        let readers = going_on.map(|running| running.stream.as_fd());
        std::iter::once(self.listener.as_fd()).chain(readers)
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        for running in &mut self.running {
            running.pipe.flush_some();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Running {
    /// Sends waiting frames. Returns whether the reader has left, or has received everything.
    fn is_over(&mut self, now: Nanos, recorders: &Recorders) -> bool {
        self.pipe.flush_some();
        let has_failed = recorders.with(|recorders| {
            recorders
                .iter()
                .any(|(one, recorder)| *one == self.number && recorder.ended().is_some())
        });
        if has_failed {
            return true;
        }
        if self.ended_at.is_none() {
            match self.stream.read(&mut [0; 16]) {
                Ok(0) => {
                    self.ended_at = Some(now);
                    self.frames = recorders.end(self.number, self.pipe.dropped());
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
