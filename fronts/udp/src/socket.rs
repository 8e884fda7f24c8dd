//! Datagrams in batches: many per system call (`recvmmsg`, `sendmmsg`), and several per buffer (GRO, GSO).

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc::in6_pktinfo;
use nix::sys::socket::sockopt::{RcvBuf, RxqOvfl, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg,
    sendmmsg, setsockopt,
};

use crate::path::{self, Path, Source};

/// Most buffers for one system call.
const BATCH: usize = 32;
/// Size of a buffer: the longest UDP datagram fits.
const BUFFER_BYTES: usize = 1 << 16;
/// Most datagrams into which the kernel splits one buffer.
const SEGMENTS_MAX: usize = 64;
/// Longest reply that shares a buffer with others; longer ones may exceed a network's packet size.
const SEGMENT_BYTES_MAX: usize = 1_200;
/// Most bytes of the replies that share a buffer: the kernel refuses longer buffers.
const GROUP_BYTES_MAX: usize = 65_000;
/// Most replies that wait for the kernel, and most bytes of them.
const WAITING_MAX: usize = 4096;
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Requested size of the kernel's receive buffer; the kernel may grant less.
const RECEIVE_BYTES: usize = 4 << 20;

/// A waiting reply: the next bytes of [`Socket::out`].
#[derive(Clone, Copy, Debug)]
struct Waiting {
    to: Path,
    bytes: usize,
}

/// A received buffer: one datagram, or several that the kernel joined.
#[derive(Clone, Copy, Debug)]
struct Received {
    /// None if the sender cannot be answered.
    from: Option<Path>,
    bytes: usize,
    /// Bytes per joined datagram but the last; 0 if not joined.
    segment: usize,
    is_cut: bool,
}

/// A non-blocking UDP socket with batched I/O.
pub struct Socket {
    socket: UdpSocket,
    buffers: Vec<u8>,
    received: Vec<Received>,
    /// Number of buffers that the next call offers; one while idle.
    want: usize,
    waiting: VecDeque<Waiting>,
    /// Replies back to back; the bytes before `sent` were sent or dropped.
    out: Vec<u8>,
    sent: usize,
    /// The device splits buffers into datagrams. Once it has refused, never again.
    splits: bool,
    /// Number of datagrams that the kernel dropped.
    overflow: u32,
    unsent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    Nothing,
    /// A full batch; there may be more.
    Some,
    /// All datagrams in the kernel's buffer.
    All,
}

pub enum Datagram<'a> {
    /// Complete, with its sender.
    Whole(Path, &'a [u8]),
    /// The datagram was too long, and was cut off.
    Cut,
}

impl Socket {
    /// Binds a socket to an address.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn bind(address: SocketAddr) -> io::Result<Socket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        path::ask_for_local(&socket)?;
        // These options are only for speed and for a counter, and some kernels lack them.
        let _ = setsockopt(&socket, RcvBuf, &RECEIVE_BYTES);
        let _ = setsockopt(&socket, UdpGroSegment, &true);
        let _ = setsockopt(&socket, RxqOvfl, &1);
        Ok(Socket {
            socket,
            buffers: vec![0; BATCH * BUFFER_BYTES],
            received: Vec::with_capacity(BATCH),
            want: 1,
            waiting: VecDeque::new(),
            out: Vec::new(),
            sent: 0,
            splits: true,
            overflow: 0,
            unsent: 0,
        })
    }

    /// Address and port that the socket is bound to.
    ///
    /// # Errors
    /// The system call fails.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Numbers of datagrams that the kernel dropped, and of replies that could not be sent.
    pub fn lost(&self) -> [u64; 2] {
        [self.overflow.into(), self.unsent]
    }

    /// Hands received datagrams to `take`, up to a batch.
    ///
    /// # Errors
    /// The system call fails, other than for lack of datagrams.
    pub fn receive(&mut self, mut take: impl FnMut(Datagram<'_>)) -> io::Result<Took> {
        match self.fill() {
            Ok(()) => {}
            // There is nothing to read, an earlier reply met a closed port, or a signal came.
            Err(Errno::EAGAIN | Errno::ECONNREFUSED | Errno::EINTR) => self.received.clear(),
            Err(error) => return Err(error.into()),
        }
        for (received, buffer) in self.received.iter().zip(self.buffers.chunks(BUFFER_BYTES)) {
            let Received { from, bytes, segment, is_cut } = *received;
            let Some(from) = from else { continue };
            if is_cut {
                take(Datagram::Cut);
                continue;
            }
            let segment = if segment == 0 { bytes.max(1) } else { segment };
            if bytes == 0 {
                take(Datagram::Whole(from, &[]));
            }
            for datagram in buffer[..bytes.min(BUFFER_BYTES)].chunks(segment) {
                take(Datagram::Whole(from, datagram));
            }
        }
        let took = match self.received.len() {
            0 => Took::Nothing,
            buffers if buffers < self.want => Took::All,
            _ => Took::Some,
        };
        self.want = if took == Took::Nothing { 1 } else { BATCH };
        Ok(took)
    }

    fn fill(&mut self) -> Result<(), Errno> {
        self.received.clear();
        // The headers are new for each call: the kernel overwrites their lengths, and nix does not reset these.
        let space = cmsg_space!(i32, u32, in6_pktinfo);
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(self.want, Some(space));
        let buffers = self.buffers.chunks_mut(BUFFER_BYTES).take(self.want);
        let mut slices: Vec<_> = buffers.map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let fd = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        for message in recvmmsg(fd, &mut headers, slices.iter_mut(), flags, None)? {
            let (mut segment, mut local) = (0, None);
            for said in message.cmsgs().into_iter().flatten() {
                match said {
                    ControlMessageOwned::UdpGroSegments(bytes) => {
                        segment = usize::try_from(bytes).unwrap_or(0);
                    }
                    ControlMessageOwned::RxqOvfl(count) => self.overflow = count,
                    other => local = local.or(path::local(&other)),
                }
            }
            let from = message.address.as_ref().and_then(socket_address);
            // Nothing can be sent to port 0.
            let from = from.filter(|from| from.port() != 0);
            let from = from.map(|client| Path { client, local });
            let is_cut = message.flags.contains(MsgFlags::MSG_TRUNC);
            self.received.push(Received { from, bytes: message.bytes, segment, is_cut });
        }
        Ok(())
    }

    /// Queues a reply for the next [`Socket::flush`]. A full queue drops its oldest replies.
    pub fn push(&mut self, to: Path, header: &[u8], message: &[u8]) {
        let bytes = header.len() + message.len();
        while self.waiting.len() >= WAITING_MAX
            || !self.waiting.is_empty() && self.waiting_bytes() + bytes > WAITING_BYTES_MAX
        {
            self.pop(1);
            self.unsent += 1;
        }
        self.out.extend_from_slice(header);
        self.out.extend_from_slice(message);
        self.waiting.push_back(Waiting { to, bytes });
    }

    /// Removes the first `replies` waiting replies.
    fn pop(&mut self, replies: usize) {
        self.sent += self.waiting.drain(..replies).map(|reply| reply.bytes).sum::<usize>();
        if self.waiting.is_empty() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent > WAITING_BYTES_MAX {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Bytes of the replies that wait for the kernel.
    pub fn waiting_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Whether replies wait for the kernel.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends waiting replies until the kernel takes no more. Returns the number sent.
    pub fn flush(&mut self) -> usize {
        let before = self.waiting.len();
        let mut lost = 0;
        let mut splits = self.splits;
        while !self.waiting.is_empty() {
            let groups = self.groups(splits);
            match self.send(&groups) {
                Ok(sent) => {
                    self.pop(groups[..sent].iter().map(|group| group.replies).sum());
                }
                Err(Errno::EAGAIN | Errno::ENOBUFS) => break,
                Err(Errno::EINTR | Errno::ECONNREFUSED) => {}
                Err(Errno::EIO) if splits => (self.splits, splits) = (false, false),
                // The path's MTU may be below the length of the datagrams: the rest of this flush sends them one by one.
                Err(Errno::EINVAL | Errno::EMSGSIZE) if splits => splits = false,
                Err(_) => {
                    self.pop(1);
                    lost += 1;
                }
            }
        }
        self.unsent += lost as u64;
        before - self.waiting.len() - lost
    }

    /// Groups the next replies for one call, one buffer per group. A call has one source for all groups, and one segment size for
    /// those that are split.
    fn groups(&self, splits: bool) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::with_capacity(BATCH);
        let mut split = None;
        let mut longest = 0;
        for reply in &self.waiting {
            let bytes = reply.bytes;
            if let Some(last) = groups.last_mut()
                && splits
                && last.to == reply.to
                && last.bytes == bytes
                && bytes <= SEGMENT_BYTES_MAX
                && last.replies < SEGMENTS_MAX
                && (last.replies + 1) * bytes <= GROUP_BYTES_MAX
                && split.is_none_or(|split| split == bytes)
                && longest <= bytes
            {
                last.replies += 1;
                split = Some(bytes);
                continue;
            }
            let has_other_source =
                groups.first().is_some_and(|first| first.to.local != reply.to.local);
            if groups.len() == BATCH || has_other_source || split.is_some_and(|split| bytes > split)
            {
                break;
            }
            longest = longest.max(bytes);
            groups.push(Group { to: reply.to, bytes, replies: 1 });
        }
        groups
    }

    fn send(&self, groups: &[Group]) -> Result<usize, Errno> {
        let mut left = &self.out[self.sent..];
        let slices = groups.iter().map(|group| {
            let (datagrams, behind) = left.split_at(group.replies * group.bytes);
            left = behind;
            [IoSlice::new(datagrams)]
        });
        let slices: Vec<_> = slices.collect();
        let to: Vec<_> =
            groups.iter().map(|group| Some(SockaddrStorage::from(group.to.client))).collect();
        let split = groups.iter().find(|group| group.replies > 1).map(|group| group.bytes as u16);
        let source = groups.first().and_then(|group| group.to.local).map(Source::from);
        let sizes = split.iter().map(ControlMessage::UdpGsoSegments);
        let said: Vec<_> = sizes.chain(source.iter().map(Source::message)).collect();
        // The kernel refuses room that no message takes.
        let bytes = split.map_or(0, |_| cmsg_space!(u16).len());
        let bytes = bytes + source.as_ref().map_or(0, Source::space);
        let space = (bytes > 0).then(|| vec![0; bytes]);
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(groups.len(), space);
        let fd = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        Ok(sendmmsg(fd, &mut headers, &slices, &to, &said, flags)?.count())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Consecutive replies of one length to one address.
#[derive(Clone, Copy, Debug)]
struct Group {
    to: Path,
    bytes: usize,
    replies: usize,
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|it| SocketAddr::V4((*it).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|it| SocketAddr::V6((*it).into())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::net::{self, AddressFamily, SendFlags, SocketType};

    use super::*;

    /// Otherwise one client gives every later reply, to anyone, a buffer of its own.
    #[test]
    fn many_long_replies_to_one_client_leave_splitting_on() {
        let mut socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let to = Path { client: client.local_addr().unwrap(), local: None };
        let replies = SEGMENTS_MAX;
        for bytes in [1_000, 1_024, SEGMENT_BYTES_MAX] {
            (0..replies).for_each(|_| socket.push(to, &[], &vec![7; bytes]));
            assert_eq!(socket.flush(), replies);
            for _ in 0..replies {
                assert_eq!(client.recv(&mut [0; 2048]).unwrap(), bytes);
            }
        }
        for _ in 0..replies {
            socket.push(to, &[], &[7; SEGMENT_BYTES_MAX]);
        }
        let longest = socket.groups(true).iter().map(|group| group.replies * group.bytes).max();
        assert!(longest > Some(SEGMENT_BYTES_MAX) && longest <= Some(GROUP_BYTES_MAX));
        assert!(socket.splits);
    }

    /// A datagram from port 0 cannot be answered. Those behind it in the batch remain those of their senders.
    #[test]
    fn datagram_from_port_0_shifts_no_other() {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut socket = Socket::bind(any).unwrap();
        let to = socket.address().unwrap();
        let raw = net::socket(AddressFamily::INET, SocketType::RAW, Some(net::ipproto::UDP));
        let raw = match raw {
            Ok(raw) => raw,
            Err(error) => return wave_skip::skip(format!("raw sockets: {error}")),
        };
        // Without a checksum.
        let from_port_0 = [&[0, 0][..], &to.port().to_be_bytes(), &[0, 9, 0, 0], b"0"].concat();
        let senders = [(); 2].map(|()| UdpSocket::bind(any).unwrap());
        // A first batch, after which the socket asks for whole ones.
        senders[0].send_to(b"first", to).unwrap();
        let mut took = Vec::new();
        let mut receive = |socket: &mut Socket, count: usize| {
            took.clear();
            while took.len() < count {
                let take = |datagram: Datagram<'_>| {
                    let Datagram::Whole(from, bytes) = datagram else { panic!("it is cut") };
                    took.push((from.client, bytes.to_vec()));
                };
                socket.receive(take).unwrap();
            }
            took.clone()
        };
        receive(&mut socket, 1);
        net::sendto(&raw, &from_port_0, SendFlags::empty(), &to).unwrap();
        let sent = [(&senders[0], b"a"), (&senders[1], b"b")];
        for (sender, text) in sent {
            sender.send_to(text, to).unwrap();
        }
        let wanted = sent.map(|(sender, text)| (sender.local_addr().unwrap(), text.to_vec()));
        assert_eq!(receive(&mut socket, 2), wanted);
    }
}
