//! The socket at which programs such as `wave tcp ss` get a report of the agent's state. They never delay the agent.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;
use serde_json::Value;
use wave_core::clock::Nanos;

use crate::tool_sockets::bind_beside;

/// Most clients that are sent a report at a time. Others wait in the socket's backlog.
const REPORT_CLIENTS_MAX: usize = 4;
/// A client that reads nothing for this long is disconnected.
const PATIENCE: Nanos = Nanos::from_millis(2_000);

/// A report younger than this is sent again.
const REPORT_AGE_MAX: Nanos = Nanos::from_millis(100);
/// So is a report younger than this many times the time that building it took: every user may ask, and reports must not take
/// more than 5% of the agent's time.
const REPORT_COST_FACTOR: u64 = 20;

/// Path of the report socket of an agent whose door is at `door`.
pub fn reports_path(door: &Path) -> PathBuf {
    let mut name = door.as_os_str().to_owned();
    name.push(".ss");
    name.into()
}

/// The socket, and clients whose answers are not complete.
#[derive(Debug)]
pub struct ReportSocket {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
    /// The last report, and the time until which it is sent again, so that frequent requests do not keep the agent busy.
    latest: Option<(Nanos, Arc<[u8]>)>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    answer: Arc<[u8]>,
    sent: usize,
    since: Nanos,
}

impl ReportSocket {
    /// Listens beside a door that was bound.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn bind(door: &Path) -> io::Result<ReportSocket> {
        let path = reports_path(door);
        // Every user may ask, as with ss(8).
        let listener = bind_beside(&path, Mode::from_raw_mode(0o666))?;
        Ok(ReportSocket { listener, path, clients: Vec::new(), latest: None })
    }

    /// Continues for another agent, with its listening socket.
    pub(crate) fn adopt(listener: OwnedFd, door: &Path) -> ReportSocket {
        let path = reports_path(door);
        ReportSocket { listener: listener.into(), path, clients: Vec::new(), latest: None }
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts clients, and sends them their answers as far as they take them. `clock` reads the time, `now` is that of the
    /// turn.
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        clock: impl Fn() -> Nanos,
        report: impl Fn() -> Value,
    ) {
        while self.clients.len() < REPORT_CLIENTS_MAX {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                let latest = self.latest.take().filter(|(until, _)| now < *until);
                let (_, answer) = self.latest.insert(latest.unwrap_or_else(|| {
                    let start = clock();
                    let answer = report().to_string().into_bytes().into();
                    let built = clock();
                    (
                        built
                            + REPORT_AGE_MAX.max(Nanos(built.since(start).0 * REPORT_COST_FACTOR)),
                        answer,
                    )
                }));
                let answer = answer.clone();
                self.clients.push(Client { stream, answer, sent: 0, since: now });
            }
        }
        self.clients.retain_mut(|client| {
            loop {
                let left = &client.answer[client.sent..];
                if left.is_empty() {
                    return false;
                }
                match client.stream.write(left) {
                    Ok(0) => return false,
                    Ok(count) => {
                        client.sent += count;
                        client.since = now;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return now.since(client.since) < PATIENCE;
                    }
                    Err(_) => return false,
                }
            }
        });
    }

    /// Whether to try again soon: an answer waits for its client.
    pub(crate) fn is_behind(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Descriptors to poll for input.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd())
    }
}

impl Drop for ReportSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Asks at these times for reports that take this long to build. Returns the number of reports that are built.
    fn built(took_ms: u64, asked_ms: &[u64]) -> u32 {
        let folder = tempfile::tempdir().unwrap();
        let door = folder.path().join("door");
        let mut reports = ReportSocket::bind(&door).unwrap();
        let (time, count) = (Cell::new(0), Cell::new(0));
        let clock = || Nanos::from_millis(time.get());
        for at in asked_ms {
            time.set(*at);
            let client = UnixStream::connect(reports_path(&door)).unwrap();
            reports.poll(clock(), clock, || {
                time.set(time.get() + took_ms);
                count.set(count.get() + 1);
                Value::Null
            });
            assert_eq!(io::read_to_string(client).unwrap(), "null");
        }
        count.get()
    }

    #[test]
    fn clients_without_end_do_not_keep_the_agent_busy_with_reports() {
        assert_eq!(built(1, &[0, 1, 100]), 1);
        assert_eq!(built(1, &[0, 1, 101, 102]), 2);
        assert_eq!(built(200, &[0, 200, 300, 4_199]), 1);
        assert_eq!(built(200, &[0, 200, 4_200, 4_400, 8_399]), 2);
    }
}
