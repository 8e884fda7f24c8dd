//! Common parts of the readers of captures and traces. A reader sends a request of one line of JSON, and takes blocks at its
//! own pace. A reader never delays the agent.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::sockopt::socket_peercred;
use serde::de::DeserializeOwned;
use wave_core::clock::Nanos;

/// Time for a reader's whole request. A slower reader is dropped.
pub(crate) const PATIENCE: Nanos = Nanos::from_millis(2_000);
/// Most bytes of a request.
const REQUEST_BYTES_MAX: usize = 256;
/// Most bytes that wait for a reader; further blocks are left out.
const BACKLOG_BYTES_MAX: usize = 8 << 20;

/// A reader whose request is not complete.
pub(crate) struct PendingReader {
    pub(crate) stream: UnixStream,
    received: Vec<u8>,
    since: Nanos,
}

fn may_read(stream: &UnixStream) -> bool {
    let ours = rustix::process::geteuid();
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == ours)
}

impl PendingReader {
    /// Accepts the next permitted reader, if one has connected.
    pub(crate) fn accept(listener: &UnixListener, now: Nanos) -> Option<PendingReader> {
        loop {
            let (stream, _) = listener.accept().ok()?;
            if may_read(&stream) && stream.set_nonblocking(true).is_ok() {
                return Some(PendingReader { stream, received: Vec::new(), since: now });
            }
        }
    }

    /// Whether the reader still has time for its request.
    pub(crate) fn is_patient(&self, now: Nanos) -> bool {
        now.since(self.since) < PATIENCE
    }

    /// The request, once all of it has arrived.
    pub(crate) fn read_request<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let mut room = [0; REQUEST_BYTES_MAX];
        match self.stream.read(&mut room) {
            Ok(0) => return Err("there was no request".to_owned()),
            Ok(count) => self.received.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
        let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else {
            let is_long = self.received.len() >= REQUEST_BYTES_MAX;
            return if is_long {
                Err("the request is too long, or has no line end".to_owned())
            } else {
                Ok(None)
            };
        };
        let request = serde_json::from_slice(&self.received[..end]);
        request.map(Some).map_err(|error| format!("the request is invalid: {error}"))
    }
}

/// A stream that takes complete blocks or none, and never blocks.
#[derive(Clone)]
pub(crate) struct Pipe {
    shared: Arc<Shared>,
}

struct Shared {
    backlog: Mutex<(UnixStream, VecDeque<u8>)>,
    is_behind: AtomicBool,
    dropped: AtomicU64,
}

impl Pipe {
    pub(crate) fn new(stream: UnixStream) -> Pipe {
        let backlog = Mutex::new((stream, VecDeque::new()));
        let shared =
            Shared { backlog, is_behind: AtomicBool::new(false), dropped: AtomicU64::new(0) };
        Pipe { shared: Arc::new(shared) }
    }

    /// Number of blocks that were left out.
    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.shared.is_behind.load(Ordering::Relaxed)
    }

    pub(crate) fn flush_some(&mut self) {
        if self.is_behind() {
            let _ = self.send(&[]);
        }
    }

    /// Sends the backlog and this block; keeps what the reader does not take. Returns false if the block was left out.
    pub(crate) fn send(&self, block: &[u8]) -> io::Result<bool> {
        let mut locked = self.shared.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        let (stream, backlog) = &mut *locked;
        let mut is_full = drain(stream, backlog)?;
        let has_room = backlog.len() + block.len() <= BACKLOG_BYTES_MAX;
        if !has_room {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            backlog.extend(block);
            if !is_full {
                is_full = drain(stream, backlog)?;
            }
        }
        self.shared.is_behind.store(is_full, Ordering::Relaxed);
        Ok(has_room)
    }
}

/// Writes from the front. Returns whether bytes are left for which the stream has no room.
fn drain(stream: &mut UnixStream, backlog: &mut VecDeque<u8>) -> io::Result<bool> {
    while !backlog.is_empty() {
        match stream.write(backlog.as_slices().0) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => drop(backlog.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

impl Write for Pipe {
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        self.send(block)?;
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send(&[]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reader_loses_whole_blocks_and_never_blocks_the_writer() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut pipe = Pipe::new(ours);
        let blocks = 12_u64;
        for block in 0..blocks {
            let bytes = vec![block as u8; 1 << 20];
            assert_eq!(pipe.write(&bytes).unwrap(), bytes.len());
        }
        let kept = blocks - pipe.dropped();
        assert!(pipe.is_behind() && (8..blocks).contains(&kept), "{kept}");
        let mut read = vec![0; 1 << 20];
        theirs.set_nonblocking(true).unwrap();
        for block in 0..kept {
            let mut have = 0;
            while have < read.len() {
                match theirs.read(&mut read[have..]) {
                    Ok(count) => have += count,
                    Err(_) => pipe.flush_some(),
                }
            }
            assert!(read.iter().all(|byte| *byte == block as u8));
        }
        assert!(!pipe.is_behind());
    }
}
