//! Notes to a scheduler in another agent. Each agent that connects is offered a window of notes; the latest one gets the notes.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use wave_core::clock::Nanos;
use wave_core::layout::{Config, Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Home, Port, Side};
use wave_core::note::queue::{NOTES, NoteSender, config};
use wave_core::policy::Note;
use wave_links::socket::{Connection, Listener, Offer, SocketError};
use wave_links::{AnyPort, LinkSpec, Memory, SocketBell};
use wave_process::say;

/// Interval between checks for new and closed connections.
const POLL_EVERY: Nanos = Nanos::from_millis(50);
/// Interval at which an idle front checks whether there is room again.
const ROOM_EVERY: Nanos = Nanos::from_millis(1);

/// The scheduler that gets the notes.
struct Line {
    notes: NoteSender<AnyPort, SocketBell>,
    connection: Connection,
}

/// The front's end of a link to a scheduler's agent.
pub struct NotesTo {
    listener: Listener,
    link: LinkSpec,
    line: Option<Line>,
    checked_at: Option<Nanos>,
    buffer: Vec<Note>,
    quiet: bool,
}

impl NotesTo {
    /// Listens at `socket` for the scheduler's agent, which must run as this user, root or a user in `allowed`. `link` is the
    /// link between the two: the queue is in NIC memory, and the scheduler reads across the link.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn new(
        socket: &Path,
        allowed: &[u32],
        link: LinkSpec,
        quiet: bool,
    ) -> Result<NotesTo, SocketError> {
        let listener = Listener::bind(socket, allowed)?;
        Ok(NotesTo { listener, link, line: None, checked_at: None, buffer: Vec::new(), quiet })
    }

    /// Sends the notes of the front's last turn; if the scheduler has missed some, also those of all open requests.
    pub(crate) fn pass(&mut self, now: Nanos, notes: &[Note], open: impl FnOnce(&mut Vec<Note>)) {
        if self.checked_at.is_none_or(|checked_at| now.since(checked_at) >= POLL_EVERY) {
            self.checked_at = Some(now);
            self.accept_schedulers();
        }
        let Some(line) = &mut self.line else { return };
        let mut sent = line.notes.send(notes);
        if sent.is_ok() && line.notes.is_behind() {
            self.buffer.clear();
            open(&mut self.buffer);
            sent = line.notes.catch_up(&self.buffer);
        }
        if let Err(error) = sent {
            say!("wave agent: disconnecting from the scheduler that takes notes: {error}");
            self.line = None;
        }
    }

    /// When a sleeping front must check again.
    pub(crate) fn due(&self, now: Nanos) -> Option<Nanos> {
        let line = self.line.as_ref().filter(|line| line.notes.is_behind());
        line.map(|_| now + ROOM_EVERY)
    }

    /// Called after a sleep: a scheduler may have connected.
    pub(crate) fn awake(&mut self) {
        self.checked_at = None;
    }

    /// The socket to which schedulers connect.
    pub(crate) fn listener(&self) -> &impl AsFd {
        &self.listener
    }

    fn accept_schedulers(&mut self) {
        if self.line.as_ref().is_some_and(|line| line.connection.hung_up()) {
            self.line = None;
            self.print("the scheduler that took the notes has gone");
        }
        let connection = match self.listener.accept() {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(error) => {
                say!("wave agent: notes: {error}");
                return;
            }
        };
        match self.offer(&connection) {
            Ok(notes) => {
                if let Some(old) = &mut self.line {
                    old.notes.replace();
                }
                self.line = Some(Line { notes, connection });
                self.print("a scheduler takes the notes");
            }
            Err(error) => {
                let _ =
                    connection.refuse(&format!("the front cannot make a window of notes: {error}"));
            }
        }
    }

    /// Offers a fresh window to one scheduler. The window that an earlier one still holds is no longer read or written.
    fn offer(
        &self,
        connection: &Connection,
    ) -> Result<NoteSender<AnyPort, SocketBell>, Box<dyn std::error::Error>> {
        let base = match self.link {
            LinkSpec::Shm => Config::coherent(1),
            LinkSpec::Model(_) => Config::pcie(1),
        };
        let layout = Layout::new(config(base))?;
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let extra = self.link.extra_lines(nic, host);
        let (memory, file) = Memory::create("wave-notes", nic, host, extra)?;
        memory.make_resident(layout.busy_lines);
        let memory = Arc::new(memory);
        let port = self.link.port(&memory, Side::Agent, &layout.mappings(Side::Agent))?;
        write_header(&layout, port.window(Home::Nic));
        // Not an eventfd: its other holder could fill it, and then this side would block when it rings.
        let [bell, theirs] = SocketBell::pair()?;
        connection.send_offer(&Offer {
            version: PROTOCOL_VERSION,
            subsystem: NOTES,
            lines: [nic, host, extra],
            memory: file.as_fd(),
            doorbells: &[theirs.as_fd()],
            files: &[],
            link: &self.link.to_text(),
        })?;
        Ok(NoteSender::new(&layout, port, bell))
    }

    fn print(&self, what: &str) {
        if !self.quiet {
            say!("wave agent: {what}");
        }
    }
}
