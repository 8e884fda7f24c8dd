//! What is done about a datagram: nothing, an answer without a worker, or a request for one.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use wave_core::clock::Nanos;
use wave_udp_client::wire::{BadDatagram, Header, IDEMPOTENT, REFUSED, REPLY, Status};

use crate::cookie::Key;
use crate::counts::{Counts, Fate as Counted};
use crate::senders::{Ended, Fate, SenderId, Senders, Unknown};

/// What is done about a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Nothing.
    Drop,
    /// This reply, and no worker hears of it.
    Answer(Header, Bytes),
    /// It is a request of this sender's that nobody has executed.
    Request(SenderId, Header, &'a [u8]),
}

/// Takes datagrams, and knows who sent what.
pub struct Door {
    key: Key,
    takes_public: bool,
    /// Who sends.
    pub senders: Senders,
    /// What became of datagrams.
    pub counts: Counts,
}

impl Door {
    /// A door of an agent of its own. Datagrams from addresses of the public internet are dropped, unless `takes_public`.
    pub fn new(takes_public: bool) -> Door {
        Door {
            key: Key::random(),
            takes_public,
            senders: Senders::new(rand::random()),
            counts: Counts::default(),
        }
    }

    /// Judges a datagram. A reply to a sender that has not returned a cookie is no longer than its request.
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
                // So that it sees which version there is. What else it says is not known.
                return Verdict::Answer(
                    refusal(&Header::default(), Status::UNIMPLEMENTED),
                    Bytes::new(),
                );
            }
        };
        // Two fronts must not answer each other for ever.
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
            // Nothing would remember that it was refused, and an earlier try of it may still come.
            Err(Unknown::Full) if !header.has(IDEMPOTENT) => return self.drop(Counted::Senders),
            Err(Unknown::Full) => {
                return self.answer(&header, Counted::Senders, Status::RESOURCE_EXHAUSTED);
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

    /// Refuses a request of [`Verdict::Request`]. Unless it is idempotent, that is final: another try of it, which may have been sent
    /// before, is refused as well.
    pub fn refuse(
        &mut self,
        sender: SenderId,
        header: &Header,
        counted: Counted,
        status: Status,
    ) -> Verdict<'static> {
        if !header.has(IDEMPOTENT) {
            self.senders.begin(sender, header.id);
            let ended = Ended { is_refused: true, status, message: Bytes::new() };
            self.senders.end(sender, header.id, ended);
        }
        self.answer(header, counted, status)
    }

    /// The answer to a request that no worker gets.
    fn answer(&mut self, header: &Header, counted: Counted, status: Status) -> Verdict<'static> {
        self.counts.add(counted);
        Verdict::Answer(refusal(header, status), Bytes::new())
    }

    fn drop(&mut self, counted: Counted) -> Verdict<'static> {
        self.counts.add(counted);
        Verdict::Drop
    }

    /// What to name from now on. What an earlier agent was sent, or this one long ago, may have been executed.
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

/// The header of a reply to a request.
pub fn reply(header: &Header, status: Status) -> Header {
    Header { flags: REPLY, status: status.0, work: 0, ..*header }
}

fn refusal(header: &Header, status: Status) -> Header {
    Header { flags: REPLY | REFUSED, ..reply(header, status) }
}

/// Whether an address is none of the public internet.
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_private(ip.into()),
            None => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        },
    }
}
