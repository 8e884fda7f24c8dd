//! Connections.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use wave_links::payload::Part;
use wave_tcp::context::SocketOptions;
use wave_tcp::datapath::Ring;

use crate::toe::{Inner, StreamId, Toe};
use crate::zero_copy::{Readable, Reserved};

/// A connection. Dropping it closes it: what was written is still sent, and a peer whose data was not read gets a reset, as
/// RFC 2525, 2.17 and Linux have it.
#[derive(Debug)]
pub struct Stream {
    toe: Toe,
    name: u32,
    is_nonblocking: Cell<bool>,
    read_timeout: Cell<Option<Duration>>,
    write_timeout: Cell<Option<Duration>>,
    /// A drop resets.
    is_aborted: Cell<bool>,
}

/// What a stream would do, by what the agent has said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read would not wait: there are bytes, the end, or an error.
    pub is_readable: bool,
    /// A write would not wait: there is room, or an error.
    pub is_writable: bool,
}

impl Stream {
    pub(crate) fn new(toe: Toe, name: u32) -> Stream {
        Stream {
            toe,
            name,
            is_nonblocking: Cell::new(false),
            read_timeout: Cell::new(None),
            write_timeout: Cell::new(None),
            is_aborted: Cell::new(false),
        }
    }

    pub(crate) fn await_connected(&self, timeout: Option<Duration>) -> io::Result<()> {
        let name = self.name;
        self.inner().wait(deadline(timeout), Errno::TIMEDOUT, |context| context.connected(name))
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner().context.borrow_mut().socket(self.name).remote)
    }

    /// Our address: unspecified until the connection is there.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner().context.borrow_mut().socket(self.name).local)
    }

    /// Whether reads and writes answer `EWOULDBLOCK` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.set(is_nonblocking);
    }

    /// How long a read waits: for ever where there is none. Then it answers `EWOULDBLOCK`, as on Linux.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.read_timeout.set(timeout);
    }

    /// How long a write waits, as [`Stream::set_read_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.write_timeout.set(timeout);
    }

    /// TCP_NODELAY: small segments do not wait for acknowledgements. The agent hears of it with the next publish.
    pub fn set_nodelay(&self, is_eager: bool) {
        self.inner().context.borrow_mut().set_eager(self.name, is_eager);
    }

    /// Whether TCP_NODELAY is set.
    pub fn nodelay(&self) -> bool {
        self.inner().context.borrow_mut().socket(self.name).sending.is_eager
    }

    /// Options of the connection: keep-alive, user timeout, Differentiated Services, hop limit.
    pub fn options(&self) -> SocketOptions {
        self.inner().context.borrow_mut().socket(self.name).options
    }

    /// Sets them, at once or as soon as the connection is there.
    ///
    /// # Errors
    /// `EINVAL` if they are not valid ([`SocketOptions::are_valid`]).
    pub fn set_options(&self, options: SocketOptions) -> io::Result<()> {
        if !options.are_valid() {
            return Err(Errno::INVAL.into());
        }
        let mut context = self.inner().context.borrow_mut();
        context.socket(self.name).options = options;
        context.configure(self.name);
        context.flush();
        Ok(())
    }

    /// What is wrong with the connection though it goes on, since the last call: `EHOSTUNREACH` or `ENETUNREACH` where the network
    /// says that the peer is out of reach, `ETIMEDOUT` where it has stopped to answer.
    pub fn take_warning(&self) -> Option<io::Error> {
        let mut context = self.inner().context.borrow_mut();
        context.socket(self.name).warning.take().map(io::Error::from_raw_os_error)
    }

    /// Ends one direction or both. The peer reads what was written, and then the end; our own reads answer 0.
    ///
    /// # Errors
    /// `ENOTCONN` if the connection is not there, or no more.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.inner().context.borrow_mut().shutdown(self.name, how)
    }

    /// Resets the connection: what was written may be lost.
    pub fn abort(self) {
        self.is_aborted.set(true);
    }

    /// Its name in [`Toe::next_changed`].
    pub fn id(&self) -> StreamId {
        StreamId(self.name)
    }

    /// What it would do, by what the agent has said so far ([`Toe::poll_ready`]).
    pub fn readiness(&self) -> Readiness {
        let mut context = self.inner().context.borrow_mut();
        Readiness {
            is_readable: context.readable(self.name).is_some(),
            is_writable: context.writable(self.name).is_some(),
        }
    }

    /// Why the connection ended, if it ended otherwise than by a close.
    pub fn error(&self) -> Option<io::Error> {
        let errno = self.inner().context.borrow_mut().socket(self.name).error;
        errno.map(io::Error::from_raw_os_error)
    }

    /// Bytes that were written and have not arrived at the peer (SIOCOUTQ).
    pub fn unacknowledged(&self) -> u64 {
        self.inner().context.borrow_mut().socket(self.name).sending.unacknowledged()
    }

    /// Waits for room, and reserves up to `bytes` of it, to be filled in place: see [`Reserved`]. For 0 bytes does not wait.
    ///
    /// # Errors
    /// As a write.
    pub fn reserve(&mut self, bytes: usize) -> io::Result<Reserved<'_>> {
        let bytes = match bytes {
            0 => 0,
            _ => self.await_room(bytes as u64)?,
        };
        Ok(Reserved::new(self, bytes as u32))
    }

    /// Waits for data, and shows all that has come in place: see [`Readable`]. It is empty at the end of the stream.
    ///
    /// # Errors
    /// As a read.
    pub fn readable(&mut self) -> io::Result<Readable<'_>> {
        let bytes = self.await_data()?;
        Ok(Readable::new(self, bytes as u32))
    }

    fn inner(&self) -> &Inner {
        &self.toe.inner
    }

    fn await_data(&self) -> io::Result<u64> {
        let deadline = self.deadline(&self.read_timeout);
        self.inner().wait(deadline, Errno::WOULDBLOCK, |context| context.readable(self.name))
    }

    /// Waits for room, and returns how much of it there is, at most `bytes`; it has memory.
    fn await_room(&self, bytes: u64) -> io::Result<u64> {
        let deadline = self.deadline(&self.write_timeout);
        let inner = self.inner();
        let room = inner
            .wait(deadline, Errno::WOULDBLOCK, |context| context.writable(self.name))?
            .min(bytes);
        inner.context.borrow_mut().fill_for(self.name, room)
    }

    fn deadline(&self, timeout: &Cell<Option<Duration>>) -> Option<Instant> {
        match self.is_nonblocking.get() {
            true => Some(Instant::now()),
            false => deadline(timeout.get()),
        }
    }

    /// The next `bytes` bytes to be read, of those that have come.
    pub(crate) fn data_parts(&self, bytes: u32) -> [Part<'_>; 2] {
        let (ring, position) = {
            let mut context = self.inner().context.borrow_mut();
            let receiving = &context.socket(self.name).receiving;
            (receiving.ring, receiving.read)
        };
        self.parts(ring, position, bytes)
    }

    /// The next `bytes` bytes to be written, of those for which there is room.
    pub(crate) fn room_parts(&self, bytes: u32) -> [Part<'_>; 2] {
        let (ring, position) = {
            let mut context = self.inner().context.borrow_mut();
            let sending = &context.socket(self.name).sending;
            (sending.ring, sending.written)
        };
        self.parts(ring, position, bytes)
    }

    fn parts(&self, ring: Ring, position: u64, bytes: u32) -> [Part<'_>; 2] {
        ring.parts(position, bytes).map(|(at, bytes)| {
            let part = self.inner().payload.part(at, bytes as usize);
            part.expect("rings are allocated within the memory")
        })
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        self.inner().context.borrow_mut().wrote(self.name, bytes);
    }

    pub(crate) fn has_read(&self, bytes: u64) {
        self.inner().context.borrow_mut().read(self.name, bytes);
    }
}

/// A timeout beyond the clock's range is for ever.
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let bytes = self.await_data()?.min(into.len() as u64);
        let [first, second] = self.data_parts(bytes as u32);
        let copied = first.copy_to(into);
        second.copy_to(&mut into[copied..]);
        self.has_read(bytes);
        Ok(bytes as usize)
    }
}

impl Write for &Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        let bytes = self.await_room(from.len() as u64)?;
        let [first, second] = self.room_parts(bytes as u32);
        let copied = first.copy_from(from);
        second.copy_from(&from[copied..]);
        self.wrote(bytes);
        Ok(bytes as usize)
    }

    /// Publishes what was written; does not wait for it to arrive.
    fn flush(&mut self) -> io::Result<()> {
        self.inner().context.borrow_mut().flush();
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut context = self.inner().context.borrow_mut();
        match self.is_aborted.get() {
            true => context.abort(self.name),
            false => context.close(self.name),
        }
    }
}
