//! Connections of an agent.

use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;

use wave_posix::{Listener, Stream, Toe};

use super::{Role, Sockets};

pub struct OfAgent {
    toe: Toe,
    listeners: Vec<(Role, Listener)>,
    open: Vec<Option<(Role, Stream)>>,
    /// Connections with more work, which the agent will not report again.
    unasked: Vec<usize>,
}

impl OfAgent {
    pub fn listen(socket: &Path, backlog: u16) -> Result<OfAgent, String> {
        let toe = Toe::connect(socket).map_err(|error| error.to_string())?;
        let mut listeners = Vec::new();
        for role in Role::ALL {
            let listener = toe.listen(([0, 0, 0, 0], role.port()).into(), backlog);
            let listener = listener.map_err(|error| format!("port {}: {error}", role.port()))?;
            listener.set_nonblocking(true);
            listeners.push((role, listener));
        }
        Ok(OfAgent { toe, listeners, open: Vec::new(), unasked: Vec::new() })
    }

    fn accept(&mut self) -> io::Result<()> {
        for (role, listener) in &self.listeners {
            while listener.is_ready() {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true);
                stream.set_nodelay(true);
                let at = stream.id().index();
                self.open.resize_with(self.open.len().max(at + 1), || None);
                self.open[at] = Some((*role, stream));
                if matches!(role, Role::Source(_)) {
                    self.unasked.push(at);
                }
            }
        }
        Ok(())
    }

    fn stream(&self, at: usize) -> io::Result<&Stream> {
        let open = self.open.get(at).and_then(Option::as_ref).ok_or(ErrorKind::NotConnected)?;
        Ok(&open.1)
    }
}

impl OfAgent {
    fn stream_mut(&mut self, at: usize) -> io::Result<&mut Stream> {
        let open = self.open.get_mut(at).and_then(Option::as_mut).ok_or(ErrorKind::NotConnected)?;
        Ok(&mut open.1)
    }
}

impl Sockets for OfAgent {
    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        loop {
            ready.append(&mut self.unasked);
            let timeout = if ready.is_empty() { None } else { Some(Duration::ZERO) };
            if self.toe.wait_ready(timeout)? {
                self.accept()?;
                while let Some(id) = self.toe.next_changed() {
                    let place = self.open.get(id.index()).and_then(Option::as_ref);
                    if place.is_some_and(|(_, stream)| stream.id() == id) {
                        ready.push(id.index());
                    }
                }
                ready.append(&mut self.unasked);
            }
            if !ready.is_empty() {
                return Ok(());
            }
        }
    }

    fn role(&self, at: usize) -> Role {
        self.open.get(at).and_then(Option::as_ref).map_or(Role::Echo, |(role, _)| *role)
    }

    fn read(&mut self, at: usize, into: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream(at)?;
        stream.read(into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> io::Result<usize> {
        let mut stream = self.stream(at)?;
        stream.write(from)
    }

    /// Releases the bytes without a copy: a real program would use them in place.
    fn read_in_place(&mut self, at: usize, most: usize) -> io::Result<usize> {
        let data = self.stream_mut(at)?.readable()?;
        let count = data.len().min(most);
        data.release(count);
        Ok(count)
    }

    /// Sends the ring's previous contents again.
    fn write_in_place(&mut self, at: usize, most: usize) -> io::Result<usize> {
        let room = self.stream_mut(at)?.reserve(most)?;
        let count = room.len();
        room.commit(count);
        Ok(count)
    }

    /// Has no effect: the agent always reports room.
    fn await_room(&mut self, _at: usize, _awaits: bool) -> io::Result<()> {
        Ok(())
    }

    fn come_back(&mut self, at: usize) {
        let Some(Some((role, stream))) = self.open.get(at) else { return };
        let readiness = stream.readiness();
        let has_more = match role {
            Role::Source(_) => readiness.is_writable,
            Role::Echo | Role::Sink(_) => readiness.is_readable,
        };
        if has_more {
            self.unasked.push(at);
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(open) = self.open.get_mut(at) {
            *open = None;
        }
    }
}
