//! Receiving and sending, like Linux's tcp_recvmsg and tcp_sendmsg.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use wave_links::payload::Part;
use wave_posix::{HostFailure, Tail};

use crate::agent::Agent;
use crate::description::Tcp;
use crate::signals::waits;
use crate::sockets::{Sockets, Verdict};
use crate::wait::Stop;
use crate::world::World;
use crate::{remainder, sys};

/// Most bytes of a file that are read at a time on their way to a socket.
const FILE_BYTES: usize = 64 << 10;

/// A recv(2) in progress.
struct Receive<'a, 'b> {
    into: &'a mut [IoSliceMut<'b>],
    /// Bytes requested.
    bytes: usize,
    copied: usize,
    flags: c_int,
}

/// A send(2) in progress.
struct Send<'a, 'b> {
    from: &'a [IoSlice<'b>],
    bytes: usize,
    copied: usize,
    /// MSG_MORE.
    has_more: bool,
}

impl Sockets {
    /// recvmsg(2) without an address. MSG_PEEK leaves the bytes; MSG_TRUNC discards them, and does not write to `into`.
    pub fn receive(&self, fd: c_int, into: &mut [IoSliceMut<'_>], flags: c_int) -> Verdict<usize> {
        let bytes = into.iter().map(|part| part.len()).sum();
        self.receive_up_to(fd, bytes, into, flags)
    }

    /// recvmsg(2) with MSG_TRUNC of up to `bytes` bytes, which need no memory.
    pub fn discard(&self, fd: c_int, bytes: usize, flags: c_int) -> Verdict<usize> {
        self.receive_up_to(fd, bytes, &mut [], flags | libc::MSG_TRUNC)
    }

    fn receive_up_to(
        &self,
        fd: c_int,
        bytes: usize,
        into: &mut [IoSliceMut<'_>],
        flags: c_int,
    ) -> Verdict<usize> {
        if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
            // Urgent bytes stay in the stream, and the error queue is always empty.
            let errno = if flags & libc::MSG_OOB != 0 { Errno::INVAL } else { Errno::AGAIN };
            return self.answer(fd, |_, _| Verdict::Ours(Err(errno)));
        }
        let mut receive = Receive { into, bytes, copied: 0, flags };
        let never_waits = flags & libc::MSG_DONTWAIT != 0;
        waits(|| {
            let received = self.call(
                fd,
                never_waits,
                Timeout::Recv,
                |_, _| None,
                |world, at, stop| receive.step(world, at, stop),
            );
            match received {
                Verdict::Kernels if receive.has_taken() => Verdict::Ours(Ok(receive.finish(fd))),
                received => received,
            }
        })
    }

    /// sendmsg(2). SIGPIPE is raised where the kernel would.
    pub fn send(&self, fd: c_int, from: &[IoSlice<'_>], flags: c_int) -> Verdict<usize> {
        if flags & libc::MSG_OOB != 0 {
            return self.answer(fd, |_, _| Verdict::Ours(Err(Errno::OPNOTSUPP)));
        }
        let bytes: usize = from.iter().map(|part| part.len()).sum();
        let has_more = flags & libc::MSG_MORE != 0;
        let mut send = Send { from, bytes, copied: 0, has_more };
        let never_waits = flags & libc::MSG_DONTWAIT != 0;
        let sent = waits(|| {
            let sent = self.call(
                fd,
                never_waits,
                Timeout::Send,
                |_, _| None,
                |world, at, stop| send.step(world, at, stop),
            );
            match sent {
                Verdict::Kernels if send.copied > 0 => {
                    send.copied = remainder::send(fd, from, bytes, send.copied);
                    Verdict::Ours(Ok(send.copied))
                }
                sent => sent,
            }
        });
        if sent == Verdict::Ours(Err(Errno::PIPE)) && flags & libc::MSG_NOSIGNAL == 0 {
            sys::raise_sigpipe();
        }
        sent
    }

    /// sendfile(2) to a socket: sends `count` bytes of `file` from `offset`, which is advanced, or without `offset` from the file's
    /// own position.
    pub fn send_file(
        &self,
        fd: c_int,
        file: c_int,
        mut offset: Option<&mut u64>,
        count: usize,
    ) -> Verdict<usize> {
        waits(|| self.send_file_once(fd, file, offset.as_deref_mut(), count))
    }

    fn send_file_once(
        &self,
        fd: c_int,
        file: c_int,
        mut offset: Option<&mut u64>,
        count: usize,
    ) -> Verdict<usize> {
        if count == 0 {
            return self.answer(fd, |_, _| Verdict::Ours(Ok(0)));
        }
        let mut sent = 0;
        let mut bytes = vec![0; count.min(FILE_BYTES)];
        loop {
            // No more of the file is read than there is room for, so that its position matches the bytes sent.
            let wanted = (count - sent).min(bytes.len());
            let room = match self.await_room(fd, wanted, sent > 0) {
                Verdict::Kernels if sent == 0 => return Verdict::Kernels,
                Verdict::Kernels | Verdict::Ours(Ok(0)) => return Verdict::Ours(Ok(sent)),
                Verdict::Ours(Ok(room)) => room,
                Verdict::Ours(Err(error)) if sent == 0 => {
                    if error == Errno::PIPE {
                        sys::raise_sigpipe();
                    }
                    return Verdict::Ours(Err(error));
                }
                Verdict::Ours(Err(_)) => return Verdict::Ours(Ok(sent)),
            };
            if file < 0 {
                return Verdict::Ours(Err(Errno::BADF));
            }
            let part = &mut bytes[..room.min(wanted)];
            let read = match &offset {
                Some(offset) => rustix::io::pread(sys::fd(file), &mut *part, **offset),
                None => rustix::io::read(sys::fd(file), &mut *part),
            };
            let read = match read {
                Ok(read) => read,
                Err(error) if sent == 0 => return Verdict::Ours(Err(error)),
                Err(_) => return Verdict::Ours(Ok(sent)),
            };
            // There is room, unless another thread has sent meanwhile, or the connection has become a stream of the kernel's.
            let answer = self.send(fd, &[IoSlice::new(&part[..read])], 0);
            let count = if let Verdict::Ours(Ok(count)) = answer { count } else { 0 };
            sent += count;
            match &mut offset {
                Some(offset) => **offset += count as u64,
                None if count < read => {
                    let _ = seek(sys::fd(file), SeekFrom::Current(count as i64 - read as i64));
                }
                None => {}
            }
            match answer {
                Verdict::Ours(Ok(_)) => {}
                answer if sent == 0 => return answer,
                _ => return Verdict::Ours(Ok(sent)),
            }
            if read == 0 || sent == count {
                return Verdict::Ours(Ok(sent));
            }
        }
    }

    /// Waits for room, and returns its size in bytes, at most `wanted`. Returns 0 if nothing more can be sent and `keeps_error`: then the
    /// next call returns the error.
    fn await_room(&self, fd: c_int, wanted: usize, keeps_error: bool) -> Verdict<usize> {
        self.call(
            fd,
            false,
            Timeout::Send,
            |_, _| None,
            |world, at, stop| {
                if keeps_error && world.view(at).is_over() {
                    return Some(Ok(0));
                }
                let found = may_send(world, at, stop)?;
                match found {
                    Ok(0) => stop.map(|stop| Err(stop.errno())),
                    found => Some(found.map(|room| room.min(wanted as u64) as usize)),
                }
            },
        )
    }
}

impl Receive<'_, '_> {
    /// Whether it has taken bytes out of the connection.
    fn has_taken(&self) -> bool {
        self.copied > 0 && self.flags & libc::MSG_PEEK == 0
    }

    /// Receives the remainder from the stream of the kernel's that the connection has become.
    fn finish(&mut self, fd: c_int) -> usize {
        let least = self.target(sys::low_water(sys::fd(fd)));
        self.copied = remainder::receive(fd, self.into, self.bytes, self.copied, least);
        self.copied
    }

    /// Bytes that must have arrived before a call that may wait returns (sock_rcvlowat).
    fn target(&self, low_water: usize) -> usize {
        let is_all = self.flags & libc::MSG_WAITALL != 0;
        if is_all { self.bytes } else { self.bytes.min(low_water) }.max(1)
    }

    fn step(
        &mut self,
        world: &mut World,
        at: usize,
        stop: Option<Stop>,
    ) -> Option<Result<usize, Errno>> {
        let view = world.view(at);
        if view.tcp == Tcp::Listen {
            return Some(Err(Errno::NOTCONN));
        }
        let description = world.description(at);
        let (incarnation, name) = (description.incarnation, description.name());
        let target = self.target(description.low_water);
        let is_peek = self.flags & libc::MSG_PEEK != 0;
        let is_copied = self.flags & libc::MSG_TRUNC == 0;
        let skip = if is_peek { self.copied as u64 } else { 0 };
        let available = match view.tcp {
            Tcp::SynSent => 0,
            _ => view.available.saturating_sub(skip),
        };
        let bytes = available.min((self.bytes - self.copied) as u64);
        if bytes > 0 || (available > 0 && self.bytes == 0) {
            match name {
                Some(name) => {
                    let agent = world.agent(incarnation);
                    if is_copied {
                        agent.copy_out(name, skip, bytes, self.into, self.copied);
                    }
                    if !is_peek {
                        agent.context.commit_read(name, bytes);
                    }
                }
                None => {
                    let left = &mut world.description(at).left;
                    let range = skip as usize..(skip + bytes) as usize;
                    if is_copied {
                        scatter(&left[range.clone()], self.into, self.copied);
                    }
                    if !is_peek {
                        left.drain(range);
                    }
                }
            }
            self.copied += bytes as usize;
            if self.copied >= target || self.bytes == 0 {
                return Some(Ok(self.copied));
            }
        }
        // The same order of checks as in tcp_recvmsg_locked.
        if self.copied > 0 {
            let is_over = view.has_error || view.tcp == Tcp::Closed || view.is_read_shut;
            return (is_over || stop.is_some()).then_some(Ok(self.copied));
        }
        if view.is_done {
            return Some(Ok(0));
        }
        if let Some(error) = world.description(at).error.take() {
            return Some(Err(error));
        }
        match (view.is_read_shut, view.tcp) {
            (true, _) => Some(Ok(0)),
            (false, Tcp::Closed) => Some(Err(Errno::NOTCONN)),
            _ => stop.map(|stop| Err(stop.errno())),
        }
    }
}

/// Copies bytes to `into`, after its first `done` bytes.
fn scatter(mut bytes: &[u8], into: &mut [IoSliceMut<'_>], mut done: usize) {
    for slice in into {
        let from = done.min(slice.len());
        done -= from;
        let (these, others) = bytes.split_at(bytes.len().min(slice.len() - from));
        slice[from..from + these.len()].copy_from_slice(these);
        bytes = others;
    }
}

/// Bytes of room to send, 0 if there is none yet; or the error why nothing can be sent: SO_ERROR, which is cleared, or EPIPE. `None`
/// while the connection is still being established.
fn may_send(world: &mut World, at: usize, stop: Option<Stop>) -> Option<Result<u64, Errno>> {
    let view = world.view(at);
    let error = &mut world.description(at).error;
    match view.tcp {
        Tcp::SynSent => match error.take() {
            Some(error) => Some(Err(error)),
            None => stop.map(|stop| Err(stop.errno())),
        },
        Tcp::Open if error.is_none() && !view.is_write_shut => Some(Ok(view.room)),
        _ => Some(Err(error.take().unwrap_or(Errno::PIPE))),
    }
}

impl Send<'_, '_> {
    fn step(
        &mut self,
        world: &mut World,
        at: usize,
        stop: Option<Stop>,
    ) -> Option<Result<usize, Errno>> {
        loop {
            let left = self.bytes - self.copied;
            if self.copied > 0 {
                // The next call returns the error.
                if left == 0 || world.view(at).is_over() {
                    return Some(Ok(self.copied));
                }
            }
            let room = match may_send(world, at, stop)? {
                Ok(room) => room,
                Err(error) => return Some(Err(error)),
            };
            if left == 0 {
                return Some(Ok(0));
            }
            let bytes = room.min(left as u64);
            if bytes == 0 {
                return stop.map(|stop| match self.copied {
                    0 => Err(stop.errno()),
                    copied => Ok(copied),
                });
            }
            let description = world.description(at);
            let (incarnation, is_corked) = (description.incarnation, description.is_corked);
            let name = description.name().expect("the connection exists");
            let agent = world.agent(incarnation);
            let bytes = match agent.context.fill_for(name, bytes) {
                Ok(bytes) => bytes,
                Err(_) if self.copied > 0 => return Some(Ok(self.copied)),
                Err(_) => return Some(Err(world.lacks_memory(HostFailure::NoMemory))),
            };
            agent.copy_in(name, bytes, self.from, self.copied);
            self.copied += bytes as usize;
            if self.has_more || is_corked {
                let tail = if self.has_more { Tail::More } else { Tail::Corked };
                agent.context.commit_write_with(name, bytes, tail);
                world.start_cork_timer(incarnation, name);
            } else {
                agent.context.commit_write(name, bytes);
                world.uncork(incarnation, name);
            }
            if self.copied < self.bytes {
                // There may be room by now.
                world.process_events();
            }
        }
    }
}

impl Agent {
    /// Copies `bytes` received bytes to `into`, after its first `done` bytes. Skips the first `skip` unread bytes.
    pub fn copy_out(
        &mut self,
        name: u32,
        skip: u64,
        bytes: u64,
        into: &mut [IoSliceMut<'_>],
        done: usize,
    ) {
        let receiving = &self.context.socket(name).receiving;
        let places = receiving.ring.parts(receiving.read + skip, bytes as u32);
        let mut parts = self.parts(places);
        let mut done = done;
        for slice in into {
            let from = done.min(slice.len());
            done -= from;
            copy(&mut parts, slice.len() - from, |part, at| part.copy_to(&mut slice[from + at..]));
        }
    }

    /// Copies `bytes` bytes of `from`, after its first `done` bytes, to the free part of the send ring.
    fn copy_in(&mut self, name: u32, bytes: u64, from: &[IoSlice<'_>], done: usize) {
        let sending = &self.context.socket(name).sending;
        let places = sending.ring.parts(sending.written, bytes as u32);
        let mut parts = self.parts(places);
        let mut done = done;
        for slice in from {
            let start = done.min(slice.len());
            done -= start;
            copy(&mut parts, slice.len() - start, |part, at| part.copy_from(&slice[start + at..]));
        }
    }

    fn parts(&self, places: [(u64, u32); 2]) -> [Part<'_>; 2] {
        places.map(|(at, bytes)| {
            let part = self.payload.part(at, bytes as usize);
            part.expect("rings are allocated within the memory")
        })
    }
}

/// Copies at most `bytes` bytes from or to the front of the two parts in turn, and removes the copied bytes from them. `copy` gets a
/// part and the number of bytes copied so far.
fn copy(parts: &mut [Part<'_>; 2], bytes: usize, mut copy: impl FnMut(Part<'_>, usize) -> usize) {
    let mut copied = 0;
    for part in parts {
        let count = copy(part.first(bytes - copied), copied);
        *part = part.skip(count);
        copied += count;
    }
}
