//! Notes from a front in another agent, over a link that may be lost and found again while the policy runs.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_core::link::{Doorbell, Side, Waiter};
use wave_core::note::queue::NoteReceiver;
use wave_core::policy::{Note, Progress};
use wave_links::socket::{Connection, SocketError};
use wave_links::{AnyPort, EventFd, SocketBell};
use wave_process::say;

use crate::attach::{AttachError, Opened, OwnBell, Wanted, open};
use crate::attacher::Attacher;
use crate::front::ThreadFront;

/// Interval between checks whether the front has gone.
const LIFE_CHECK: Nanos = Nanos::from_millis(50);

/// A link to one life of a front.
struct Line {
    notes: NoteReceiver<AnyPort>,
    bell: SocketBell,
    connection: Connection,
    link: String,
    looked: Nanos,
}

/// The policy's end of a link to a front's agent.
pub struct NotesFrom {
    attacher: Attacher<Line>,
    /// Rung when the attacher has found a link.
    found: Arc<EventFd>,
    line: Option<Line>,
    quiet: bool,
}

impl NotesFrom {
    /// Takes notes from the front that offers them at `socket`.
    ///
    /// # Errors
    /// The system has no descriptor left, or the file at `socket` is not a socket.
    pub fn new(socket: PathBuf, quiet: bool) -> Result<NotesFrom, SocketError> {
        let failed = |source| SocketError::System { what: "make a doorbell", source };
        let found = Arc::new(EventFd::new().map_err(failed)?);
        let ring = Arc::clone(&found);
        let attacher = Attacher::new(socket, attach, move || ring.ring(), quiet)?;
        Ok(NotesFrom { attacher, found, line: None, quiet })
    }

    fn check_front(&mut self) {
        let Some(line) = &self.line else { return };
        let (gone, replaced) = (line.connection.hung_up(), line.notes.is_replaced());
        let socket = self.attacher.socket().display();
        if replaced {
            // To attach again would only turn the other agent out.
            say!("wave agent: another agent takes the notes of the front at {socket} now");
            self.line = None;
        } else if gone {
            if !self.quiet {
                say!("wave agent: the front at {socket} has gone; looking for it again");
            }
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.line = None;
        self.attacher.begin();
    }

    /// Consumes pending rings without acting on them.
    fn drain(&self) {
        self.found.wait(Some(Duration::ZERO));
        if let Some(line) = &self.line {
            line.bell.wait(Some(Duration::ZERO));
        }
    }
}

impl Front for NotesFrom {
    fn poll(&mut self, now: Nanos, notes: &mut Vec<Note>) -> Progress {
        let Some(line) = &mut self.line else {
            self.line = self.attacher.take().map(|line| Line { looked: now, ..line });
            if let (Some(line), false) = (&self.line, self.quiet) {
                let socket = self.attacher.socket().display();
                say!("wave agent: taking notes from {socket}, link {}", line.link);
            }
            return if self.line.is_some() { Progress::More } else { Progress::Done };
        };
        match line.notes.poll(notes) {
            Ok(came) => {
                let is_late = now.since(line.looked) >= LIFE_CHECK;
                if is_late {
                    line.looked = now;
                    self.check_front();
                }
                if came { Progress::More } else { Progress::Done }
            }
            Err(error) => {
                let socket = self.attacher.socket().display();
                say!(
                    "wave agent: disconnecting from the front at {socket}, because its notes are invalid: {error}"
                );
                self.lose();
                Progress::More
            }
        }
    }

    fn prepare_park(&mut self) {
        if let Some(line) = &mut self.line {
            line.notes.prepare_park();
        }
    }

    fn unpark(&mut self) {
        if let Some(line) = &mut self.line {
            line.notes.unpark();
        }
    }
}

impl ThreadFront for NotesFrom {
    fn wait(&mut self, bell: Option<&OwnBell>, timeout: Duration) {
        let own =
            [self.found.as_fd()].into_iter().chain(self.line.iter().map(|line| line.bell.as_fd()));
        let fds = bell.iter().map(|bell| bell.as_fd()).chain(own);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // An interrupted sleep only ends early.
        let _ = poll(&mut fds, Timespec::try_from(timeout).ok().as_ref());
        drop(fds);
        if let Some(bell) = bell {
            bell.wait(Some(Duration::ZERO));
        }
        self.drain();
    }
}

/// Opens the window of notes that a front offers. Everything that the front sends is checked.
fn attach(socket: &Path, quiet: bool) -> Result<Line, AttachError> {
    let opened = open(socket, Wanted::Notes, Side::Host, quiet)?;
    let Opened { connection, link, layout, port, mut doorbells, .. } = opened;
    let have = doorbells.len();
    let bell = doorbells.pop().filter(|_| have == 1);
    let bell = bell.map(SocketBell::from_fd).ok_or(AttachError::Doorbells { have, need: 1 })?;
    let notes = NoteReceiver::new(&layout, port);
    Ok(Line { notes, bell, connection, link: link.name().to_owned(), looked: Nanos(0) })
}
