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

/// A connection. Dropping it closes it: written bytes are still sent, and a peer whose data was not read gets a reset, as in
/// RFC 2525, 2.17 and Linux.
#[derive(Debug)]
pub struct Stream {
    toe: Toe,
    name: u32,
    is_nonblocking: Cell<bool>,
    read_timeout: Cell<Option<Duration>>,
    write_timeout: Cell<Option<Duration>>,
    /// Dropping the stream resets the connection.
    is_aborted: Cell<bool>,
}

/// The readiness of a stream, according to the events processed so far.
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

    /// The local address: unspecified until the connection is established.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner().context.borrow_mut().socket(self.name).local)
    }

    /// Sets whether reads and writes return `EWOULDBLOCK` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.set(is_nonblocking);
    }

    /// Sets the timeout of reads, after which they return `EWOULDBLOCK`, as on Linux. With `None` they wait for ever.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.read_timeout.set(timeout);
    }

    /// Sets the timeout of writes, like [`Stream::set_read_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.write_timeout.set(timeout);
    }

    /// Sets TCP_NODELAY: small segments do not wait for acknowledgements. The agent learns of it with the next publish.
    pub fn set_nodelay(&self, is_eager: bool) {
        self.inner().context.borrow_mut().set_nodelay(self.name, is_eager);
    }

    /// Whether TCP_NODELAY is set.
    pub fn nodelay(&self) -> bool {
        self.inner().context.borrow_mut().socket(self.name).sending.is_eager
    }

    /// Options of the connection: keep-alive, user timeout, Differentiated Services, hop limit.
    pub fn options(&self) -> SocketOptions {
        self.inner().context.borrow_mut().socket(self.name).options
    }

    /// Sets the options, at once or as soon as the connection is established.
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

    /// The soft error since the last call, after which the connection continues: `EHOSTUNREACH` or `ENETUNREACH` if the network reports
    /// that the peer is unreachable, `ETIMEDOUT` if the peer has stopped answering.
    pub fn take_soft_error(&self) -> Option<io::Error> {
        let mut context = self.inner().context.borrow_mut();
        context.socket(self.name).soft_error.take().map(io::Error::from_raw_os_error)
    }

    /// Shuts down one direction or both. After the write side, the peer reads the written bytes and then the end of the stream; after the
    /// read side, our own reads return 0 once the received bytes are read.
    ///
    /// # Errors
    /// `ENOTCONN` if the connection is not established, or has ended.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.inner().context.borrow_mut().shutdown(self.name, how)
    }

    /// Resets the connection: written bytes may be lost.
    pub fn abort(self) {
        self.is_aborted.set(true);
    }

    /// The stream's id in [`Toe::next_changed`].
    pub fn id(&self) -> StreamId {
        StreamId(self.name)
    }

    /// The readiness, according to the events processed so far ([`Toe::poll_ready`]).
    pub fn readiness(&self) -> Readiness {
        let mut context = self.inner().context.borrow_mut();
        Readiness {
            is_readable: context.readable(self.name).is_some(),
            is_writable: context.writable(self.name).is_some(),
        }
    }

    /// The error with which the connection ended, if it did not end by a close.
    pub fn error(&self) -> Option<io::Error> {
        let errno = self.inner().context.borrow_mut().socket(self.name).error;
        errno.map(io::Error::from_raw_os_error)
    }

    /// Written bytes that the peer has not acknowledged (SIOCOUTQ).
    pub fn unacknowledged(&self) -> u64 {
        self.inner().context.borrow_mut().socket(self.name).sending.unacknowledged()
    }

    /// Waits for room, and reserves up to `bytes` bytes of it, to be filled in place: see [`Reserved`]. For 0 bytes, it does not wait.
    ///
    /// # Errors
    /// The errors of a write.
    pub fn reserve(&mut self, bytes: usize) -> io::Result<Reserved<'_>> {
        let bytes = match bytes {
            0 => 0,
            _ => self.await_room(bytes as u64)?,
        };
        Ok(Reserved::new(self, bytes as u32))
    }

    /// Waits for data, and gives access to all received bytes in place: see [`Readable`]. It is empty at the end of the stream.
    ///
    /// # Errors
    /// The errors of a read.
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

    /// Waits for room, and returns its size, at most `bytes`. That part of the ring is populated.
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

    /// The next `bytes` received bytes to read.
    pub(crate) fn data_parts(&self, bytes: u32) -> [Part<'_>; 2] {
        let (ring, position) = {
            let mut context = self.inner().context.borrow_mut();
            let receiving = &context.socket(self.name).receiving;
            (receiving.ring, receiving.read)
        };
        self.parts(ring, position, bytes)
    }

    /// Room for the next `bytes` bytes to write.
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

    pub(crate) fn commit_write(&self, bytes: u64) {
        self.inner().context.borrow_mut().commit_write(self.name, bytes);
    }

    pub(crate) fn commit_read(&self, bytes: u64) {
        self.inner().context.borrow_mut().commit_read(self.name, bytes);
    }
}

/// The end of a timeout; `None` if it is infinite or beyond the clock's range.
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
        self.commit_read(bytes);
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
        self.commit_write(bytes);
        Ok(bytes as usize)
    }

    /// Publishes the written bytes. Does not wait for their arrival.
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
