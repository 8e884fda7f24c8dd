//! The clients' side of a front: takes requests from the socket to the host, and replies back.

use std::collections::HashSet;
use std::io;
use std::time::Instant;

use bytes::Bytes;
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_rpc::dispatch::Refused;
use wave_udp_client::wire::{Header, IDEMPOTENT, MESSAGE_MAX, Status, TIMED};

use crate::counts::Fate;
use crate::door::{Door, NoHost, Refusal, Verdict, reply};
use crate::host::{Host, Open, Origin};
use crate::memcached::{Memcached, datagrams};
use crate::path::Path;
use crate::senders::{Ended, SenderId};
use crate::socket::{Datagram, Socket, Took};

/// The front drops its own answers (challenges, refusals, kept replies) while this many bytes of replies wait.
const ANSWERS_BYTES_MAX: usize = 1 << 20;

pub struct Clients {
    pub socket: Socket,
    /// Judges requests in the front's own format, and counts the datagrams of both formats.
    pub door: Door,
    /// Takes all datagrams, if the front speaks memcached's protocol.
    pub memcached: Option<Memcached>,
}

impl Clients {
    /// Receives and judges a batch of datagrams. A front that `ends` refuses new requests.
    ///
    /// # Errors
    /// The socket cannot receive.
    pub fn receive(
        &mut self,
        mut host: Option<&mut Host>,
        now: Nanos,
        ends: bool,
    ) -> io::Result<Took> {
        let Clients { socket, door, memcached } = self;
        let (mut answers, mut lines) = (Vec::new(), Vec::new());
        let received = socket.receive(|datagram| {
            let Datagram::Whole(from, bytes) = datagram else {
                door.counts.add(Fate::Received);
                door.counts.add(Fate::Long);
                return;
            };
            let ready = match host.as_deref_mut() {
                _ if ends => Err(NoHost::Ending),
                None => Err(NoHost::Absent),
                Some(host) if !host.dispatch.is_ready() => Err(NoHost::NotReady),
                Some(host) => Ok(host),
            };
            if let Some(memcached) = memcached {
                let line = memcached.take(&mut door.counts, ready, now, from, bytes);
                return lines.extend(line.map(|line| (from, line)));
            }
            let verdict = match door.judge(now, from.client, bytes) {
                Verdict::Request(sender, header, message) => {
                    begin(door, ready, now, sender, from, &header, message)
                }
                verdict => verdict,
            };
            if let Verdict::Answer(header, message) = verdict {
                answers.push((from, header, message));
            }
        });
        let open = host.map_or(0, |host| host.dispatch.open());
        // A retry is short and its kept reply may be long: a batch's retries of one request get one. A client without an answer retries.
        let mut answered = HashSet::new();
        for (to, header, message) in answers {
            let is_first = message.is_empty() || answered.insert((to, header.id));
            if is_first && self.socket.waiting_bytes() < ANSWERS_BYTES_MAX {
                self.socket.push(to, &Header { work: open, ..header }.encode(), &message);
            }
        }
        for (to, (request, line)) in lines {
            self.push_text(to, request, format!("{line}\r\n").as_bytes());
        }
        received
    }

    /// Sends the reply of a finished call, and keeps it for retries.
    pub fn finish(
        &mut self,
        host: &mut Host,
        call: Subject,
        status: Status,
        message: Option<Bytes>,
    ) {
        let Some(Open { to, origin, message: earlier }) = host.end(call) else { return };
        let message = message.or(earlier).unwrap_or_default();
        let (sender, header, received) = match origin {
            Origin::Own { sender, header, received } => (sender, header, received),
            Origin::Memcached(asked) => {
                self.end_command(to);
                if let Some(text) = asked.reply(status, &message) {
                    self.door.counts.add(Fate::Replied);
                    self.push_text(to, asked.request, &text);
                }
                return;
            }
        };
        let (status, message) = match message.len() {
            0..=MESSAGE_MAX => (status, message),
            bytes => {
                let why = format!("executed; its reply of {bytes} bytes does not fit a datagram");
                (Status::RESOURCE_EXHAUSTED, Bytes::from(why))
            }
        };
        let Clients { socket, door, .. } = self;
        if door.senders.is_known(sender) {
            door.counts.add(Fate::Replied);
            let mut header = Header { work: host.dispatch.open(), ..reply(&header, status) };
            if let Some(received) = received {
                header.flags |= TIMED;
                header.work = u32::try_from(received.elapsed().as_nanos()).unwrap_or(u32::MAX);
            }
            socket.push(to, &header.encode(), &message);
        }
        door.senders.end(sender, header.id, Ended { is_refused: false, status, message });
    }

    /// Ends an open request of a lost host: OUTCOME_UNKNOWN, or UNAVAILABLE if it is idempotent.
    pub fn lose(&mut self, open: Open) {
        let Open { to, origin, .. } = open;
        let (sender, header) = match origin {
            Origin::Own { sender, header, .. } => (sender, header),
            Origin::Memcached(asked) => {
                self.end_command(to);
                let why = b"the host was lost; the command was executed once or not at all";
                if let Some(text) = asked.reply(Status::UNAVAILABLE, why) {
                    self.push_text(to, asked.request, &text);
                }
                return;
            }
        };
        let senders = &mut self.door.senders;
        let status = if header.has(IDEMPOTENT) {
            senders.take_back(sender, header.id);
            Status::UNAVAILABLE
        } else {
            let status = Status::OUTCOME_UNKNOWN;
            let ended = Ended { is_refused: false, status, message: Bytes::new() };
            senders.end(sender, header.id, ended);
            status
        };
        if senders.is_known(sender) {
            let (incarnation, cookie) = (header.incarnation, header.cookie);
            let header = Header { incarnation, cookie, ..reply(&header, status) };
            self.socket.push(to, &header.encode(), &[]);
        }
    }

    fn end_command(&mut self, of: Path) {
        if let Some(memcached) = &mut self.memcached {
            memcached.end(of.client.ip());
        }
    }

    fn push_text(&mut self, to: Path, request: u16, text: &[u8]) {
        for (header, piece) in datagrams(request, text) {
            self.socket.push(to, &header, piece);
        }
    }
}

/// Hands a new request to the dispatcher, or refuses it.
fn begin(
    door: &mut Door,
    host: Result<&mut Host, NoHost>,
    now: Nanos,
    sender: SenderId,
    from: Path,
    header: &Header,
    message: &[u8],
) -> Verdict<'static> {
    let host = match host {
        Ok(host) => host,
        Err(why) => return door.refuse(sender, header, Fate::Host, Refusal::host(why)),
    };
    let method = host.methods.get(usize::from(header.method));
    if method.is_none_or(|method| method.client_streams || method.server_streams) {
        return door.refuse(sender, header, Fate::Method, Refusal::METHOD);
    }
    // A sender holds no more requests than remain free; all senders of one client address hold no more than three times as many.
    let left = host.room();
    let [of_sender, of_address] = door.senders.open(sender);
    if of_sender >= left || of_address >= 3 * left {
        return door.refuse(sender, header, Fate::Busy, Refusal::BUSY);
    }
    let received = header.has(TIMED).then(Instant::now);
    let origin = Origin::Own { sender, header: *header, received };
    let open = Open { to: from, origin, message: None };
    match host.begin(now, header.method, header.class, Bytes::copy_from_slice(message), open) {
        Ok(()) => {
            door.senders.begin(sender, header.id);
            door.counts.add(Fate::Begun);
            Verdict::Drop
        }
        Err(Refused::Full) => door.refuse(sender, header, Fate::Busy, Refusal::BUSY),
        Err(Refused::NoHost) => {
            door.refuse(sender, header, Fate::Host, Refusal::host(NoHost::NotReady))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    /// Otherwise a few short datagrams cost the front many long ones.
    #[test]
    fn retries_that_arrive_together_get_one_kept_reply() {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(socket.address().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut clients = Clients { socket, door: Door::new(false), memcached: None };
        let mut buffer = [0; 2048];
        let mut ask = |header: Header, tries: usize, answers: usize| {
            for _ in 0..tries {
                client.send(&header.encode()).unwrap();
            }
            while clients.receive(None, Nanos(0), false).unwrap() != Took::Nothing {}
            assert_eq!(clients.socket.flush(), answers);
            let bytes = client.recv(&mut buffer).unwrap();
            Header::decode(&buffer[..bytes]).unwrap().0
        };
        let told = ask(Header { id: 1, ..Header::default() }, 1, 1);
        let Header { incarnation, cookie, .. } = told;
        let header = Header { id: 1, incarnation, cookie, ..Header::default() };
        assert_eq!(Status(ask(header, 1, 1).status), Status::UNAVAILABLE);
        // The first batch has one datagram, the second the other eight.
        assert_eq!(Status(ask(header, 9, 2).status), Status::UNAVAILABLE);
    }
}
