//! Replies in memcached's text protocol, and their datagrams.

use bytes::Bytes;
use wave_rpc::memcached::Item;
use wave_udp_client::wire::{MESSAGE_MAX, Status};

use super::text::FRAME_BYTES;

/// Longest datagram of a reply, as in memcached.
const DATAGRAM_BYTES: usize = 1400;
/// Longest part of a host's error text that is passed on, in bytes.
const TEXT_MAX: usize = 200;

/// A command that was handed to the host.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Request id of the command's datagram.
    pub request: u16,
    pub verb: Verb,
    /// The client wants no reply.
    pub is_quiet: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The keys, separated by single spaces.
    Get(Bytes),
    Set,
    Delete,
}

impl Asked {
    /// The reply to the command, which ended with this status and message; `None` if the client wants no reply.
    pub fn reply(&self, status: Status, message: &[u8]) -> Option<Vec<u8>> {
        if self.is_quiet {
            return None;
        }
        let line = |line: &str| format!("{line}\r\n").into_bytes();
        Some(match (status, &self.verb) {
            (Status::OK, Verb::Get(keys)) => match values(keys, message) {
                Some(text) if text.len() <= MESSAGE_MAX => text,
                Some(_) => line("SERVER_ERROR the values do not fit a reply"),
                None => line("SERVER_ERROR the host's reply is not one to a get"),
            },
            (Status::OK, Verb::Set) => line("STORED"),
            (Status::OK, Verb::Delete) => line("DELETED"),
            (Status(5), Verb::Delete) => line("NOT_FOUND"),
            (Status::INVALID_ARGUMENT, _) => line(&format!("CLIENT_ERROR {}", printable(message))),
            _ => line(&format!("SERVER_ERROR {} {}", status.name(), printable(message))),
        })
    }
}

/// The text of a host's reply to a get, with the keys; `None` if the reply is malformed.
fn values(keys: &[u8], mut message: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(message.len() + keys.len() + 64);
    for key in keys.split(|byte| *byte == b' ') {
        let Some(Item { flags, data }) = Item::decode(&mut message)? else { continue };
        text.extend_from_slice(b"VALUE ");
        text.extend_from_slice(key);
        text.extend_from_slice(format!(" {flags} {}\r\n", data.len()).as_bytes());
        text.extend_from_slice(data);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"END\r\n");
    message.is_empty().then_some(text)
}

/// The beginning of a host's error text, with spaces for control characters, which could end the line.
fn printable(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(&message[..message.len().min(TEXT_MAX)]);
    text.chars().map(|each| if each.is_control() { ' ' } else { each }).collect()
}

/// Splits a reply into datagrams: header and text of each. `text` has at most [`MESSAGE_MAX`] bytes.
pub fn datagrams(request: u16, text: &[u8]) -> impl Iterator<Item = ([u8; FRAME_BYTES], &[u8])> {
    let pieces = text.chunks(DATAGRAM_BYTES - FRAME_BYTES);
    let count = pieces.len() as u16;
    pieces.zip(0u16..).map(move |(piece, sequence)| {
        let mut header = [0; FRAME_BYTES];
        for (at, word) in [request, sequence, count].into_iter().enumerate() {
            header[2 * at..2 * at + 2].copy_from_slice(&word.to_be_bytes());
        }
        (header, piece)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::text::{BadText, parse};
    use super::*;

    fn asked(verb: Verb) -> Asked {
        Asked { request: 1, verb, is_quiet: false }
    }

    fn text(verb: Verb, status: Status, message: &[u8]) -> String {
        String::from_utf8(asked(verb).reply(status, message).unwrap()).unwrap()
    }

    #[test]
    fn replies_are_those_of_memcached() {
        let mut found = Vec::new();
        Item::encode(Some(Item { flags: 7, data: b"x\r\ny" }), &mut found);
        Item::encode(None, &mut found);
        let keys = || Verb::Get(Bytes::from_static(b"a b"));
        assert_eq!(text(keys(), Status::OK, &found), "VALUE a 7 4\r\nx\r\ny\r\nEND\r\n");
        assert_eq!(text(keys(), Status::OK, &[0, 0]), "END\r\n");
        for nonsense in [&b""[..], &[0], &[0, 0, 0], &[2, 0], &found[..9]] {
            let reply = text(keys(), Status::OK, nonsense);
            assert_eq!(reply, "SERVER_ERROR the host's reply is not one to a get\r\n");
        }
        let mut large = Vec::new();
        Item::encode(Some(Item { flags: 0, data: &vec![0; MESSAGE_MAX] }), &mut large);
        large.push(0);
        assert!(text(keys(), Status::OK, &large).starts_with("SERVER_ERROR the values do not fit"));
        assert_eq!(text(Verb::Set, Status::OK, b""), "STORED\r\n");
        assert_eq!(text(Verb::Delete, Status::OK, b""), "DELETED\r\n");
        assert_eq!(text(Verb::Delete, Status(5), b"gone"), "NOT_FOUND\r\n");
        let wrong = text(Verb::Set, Status::INVALID_ARGUMENT, b"no\r\nget x");
        assert_eq!(wrong, "CLIENT_ERROR no  get x\r\n");
        assert_eq!(text(Verb::Set, Status::UNAVAILABLE, b""), "SERVER_ERROR UNAVAILABLE \r\n");
        let quiet = Asked { is_quiet: true, ..asked(Verb::Set) };
        assert_eq!(quiet.reply(Status::UNAVAILABLE, b""), None);
    }

    proptest! {
        #[test]
        fn reply_datagrams_are_whole_ordered_and_bounded(request: u16, text in prop::collection::vec(any::<u8>(), 1..10_000)) {
            let all: Vec<_> = datagrams(request, &text).collect();
            let mut whole = Vec::new();
            for (at, (header, piece)) in all.iter().enumerate() {
                let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
                let expected = [request, at as u16, all.len() as u16, 0];
                prop_assert_eq!([word(0), word(2), word(4), word(6)], expected);
                prop_assert!(!piece.is_empty() && piece.len() + header.len() <= DATAGRAM_BYTES);
                whole.extend_from_slice(piece);
            }
            prop_assert_eq!(whole, text);
        }

        #[test]
        fn any_host_reply_becomes_one_line_or_a_get_reply(
            code: u8,
            message: Vec<u8>,
            verb in prop::sample::select(vec![Verb::Get(Bytes::from_static(b"a b")), Verb::Set, Verb::Delete]),
        ) {
            let reply = asked(verb).reply(Status(code), &message).unwrap();
            prop_assert!(reply.ends_with(b"\r\n") && reply.len() <= MESSAGE_MAX);
            let is_get = reply.ends_with(b"END\r\n");
            prop_assert!(is_get || reply.iter().filter(|byte| **byte == b'\n').count() == 1);
            prop_assert_eq!(parse(&reply).0, Err(BadText::Reply), "another front would answer it");
        }
    }
}
