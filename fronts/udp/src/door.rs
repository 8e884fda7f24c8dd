//! Judges datagrams: drop, answer without a worker, or pass the request on.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use wave_core::clock::Nanos;
use wave_udp_client::wire::{BadDatagram, Header, IDEMPOTENT, REFUSED, REPLY, Status};

use crate::cookie::Key;
use crate::counts::{Counts, Fate as Counted};
use crate::senders::{Ended, Fate, SenderId, Senders, Unknown};

/// The door's verdict on a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Drop the datagram without an answer.
    Drop,
    /// Send this reply without a worker.
    Answer(Header, Bytes),
    /// Hand this new request of the sender to a worker.
    Request(SenderId, Header, &'a [u8]),
}

/// Judges datagrams by the state of their senders. Does no I/O.
pub struct Door {
    key: Key,
    takes_public: bool,
    /// Senders and their windows.
    pub senders: Senders,
    /// Counts of datagrams by fate.
    pub counts: Counts,
}

impl Door {
    /// A door with a random key and no senders. It drops datagrams from public addresses unless `takes_public`.
    pub fn new(takes_public: bool) -> Door {
        Door {
            key: Key::random(),
            takes_public,
            senders: Senders::new(rand::random()),
            counts: Counts::default(),
        }
    }

    /// Judges a datagram. An answer to an address without a valid cookie is never longer than the datagram.
    pub fn judge<'a>(&mut self, now: Nanos, from: SocketAddr, datagram: &'a [u8]) -> Verdict<'a> {
        self.counts.add(Counted::Received);
        if !self.takes_public && !is_private(from.ip()) {
            return self.drop(Counted::Public);
        }
        let (header, message) = match Header::decode(datagram) {
            Ok(decoded) => decoded,
            Err(BadDatagram::Short) => return self.drop(Counted::Short),
            Err(BadDatagram::Magic) => return self.drop(Counted::Magic),
            Err(BadDatagram::Version(_)) => {
                self.counts.add(Counted::Version);
                // The reply shows this front's version. The layout of the request's other fields is unknown.
                return Verdict::Answer(
                    refusal(&Header::default(), Status::UNIMPLEMENTED),
                    Bytes::new(),
                );
            }
        };
        // Fronts never answer replies, so two fronts cannot answer each other for ever.
        if header.has(REPLY) {
            return self.drop(Counted::Reply);
        }
        let names_none = header.incarnation == 0;
        if names_none || self.key.cookie(from, header.incarnation) != header.cookie {
            return self.challenge(from, &header, names_none);
        }
        let sender = match self.senders.find(now, from, header.incarnation) {
            Ok(sender) => sender,
            Err(Unknown::Stale) => return self.challenge(from, &header, false),
            // Without a sender the refusal cannot be remembered, and an earlier try may still arrive.
            Err(Unknown::Full) if !header.has(IDEMPOTENT) => return self.drop(Counted::Senders),
            Err(Unknown::Full) => {
                return self.answer(&header, Counted::Senders, Refusal::SENDERS);
            }
        };
        match self.senders.fate(sender, header.id) {
            Fate::New => Verdict::Request(sender, header, message),
            Fate::Open => self.drop(Counted::Duplicate),
            Fate::Ended(Ended { is_refused, status, message }) => {
                self.counts.add(Counted::Again);
                let reply = if is_refused { refusal } else { reply };
                Verdict::Answer(reply(&header, status), message)
            }
            Fate::Forgotten => {
                self.counts.add(Counted::Unknown);
                Verdict::Answer(reply(&header, Status::OUTCOME_UNKNOWN), Bytes::new())
            }
        }
    }

    /// Refuses a request of [`Verdict::Request`]. The refusal is final unless the request is idempotent: the front also refuses
    /// every other try, even one that was sent earlier.
    pub fn refuse(
        &mut self,
        sender: SenderId,
        header: &Header,
        counted: Counted,
        why: Refusal,
    ) -> Verdict<'static> {
        if !header.has(IDEMPOTENT) {
            let Refusal(status, text) = why;
            let message = Bytes::from_static(text.as_bytes());
            self.senders.begin(sender, header.id);
            self.senders.end(sender, header.id, Ended { is_refused: true, status, message });
        }
        self.answer(header, counted, why)
    }

    /// Refuses a request without remembering it. Its sender has returned a cookie, so the reply may be longer than the request.
    fn answer(&mut self, header: &Header, counted: Counted, why: Refusal) -> Verdict<'static> {
        let Refusal(status, text) = why;
        self.counts.add(counted);
        Verdict::Answer(refusal(header, status), Bytes::from_static(text.as_bytes()))
    }

    fn drop(&mut self, counted: Counted) -> Verdict<'static> {
        self.counts.add(counted);
        Verdict::Drop
    }

    /// Tells the sender its incarnation and cookie. A request that names an older incarnation may have been executed, by an earlier
    /// agent or by this one.
    fn challenge(
        &mut self,
        from: SocketAddr,
        header: &Header,
        names_none: bool,
    ) -> Verdict<'static> {
        let incarnation = self.senders.offer(from, names_none);
        let cookie = self.key.cookie(from, incarnation);
        let answer = if names_none || header.has(IDEMPOTENT) {
            self.counts.add(Counted::Challenged);
            refusal(header, Status::CHALLENGE)
        } else {
            self.counts.add(Counted::Unknown);
            reply(header, Status::OUTCOME_UNKNOWN)
        };
        Verdict::Answer(Header { incarnation, cookie, ..answer }, Bytes::new())
    }
}

/// Why no host can take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHost {
    Absent,
    /// A host is attached, and does not take requests yet.
    NotReady,
    /// The front is about to end.
    Ending,
}

impl NoHost {
    const fn text(self) -> &'static str {
        match self {
            NoHost::Absent => "no host is attached",
            NoHost::NotReady => "no host is ready yet; one has attached",
            NoHost::Ending => "the agent is ending",
        }
    }

    /// The answer to a memcached command.
    pub const fn line(self) -> &'static str {
        match self {
            NoHost::Absent => "SERVER_ERROR no host is attached",
            NoHost::NotReady => "SERVER_ERROR no host is ready yet; one has attached",
            NoHost::Ending => "SERVER_ERROR the agent is ending",
        }
    }
}

/// Reason for a refusal: a status and a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub Status, pub &'static str);

impl Refusal {
    /// Refusal of a request that no host can take.
    pub const fn host(why: NoHost) -> Refusal {
        Refusal(Status::UNAVAILABLE, why.text())
    }

    /// The host has no such method, or it streams.
    pub const METHOD: Refusal =
        Refusal(Status::UNIMPLEMENTED, "the host has no unary method of this number");
    /// The host takes no more requests, or no more from this sender.
    pub const BUSY: Refusal = Refusal(Status::RESOURCE_EXHAUSTED, "too many requests are open");
    /// The front remembers no more senders.
    pub const SENDERS: Refusal = Refusal(Status::RESOURCE_EXHAUSTED, "too many senders");
}

/// The header of a reply to a request.
pub fn reply(header: &Header, status: Status) -> Header {
    Header { flags: REPLY, status: status.0, work: 0, ..*header }
}

fn refusal(header: &Header, status: Status) -> Header {
    Header { flags: REPLY | REFUSED, ..reply(header, status) }
}

/// Whether an address is private, loopback or link-local.
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_private(ip.into()),
            None => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        },
    }
}
