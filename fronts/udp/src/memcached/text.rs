//! memcached's frame header and text protocol (doc/protocol.txt of memcached 1.6): one command per datagram.
//!
//! ```text
//! byte 0  u16  request id, which the reply repeats
//!      2  u16  sequence number of this datagram, from 0
//!      4  u16  number of datagrams in this message
//!      6  u16  reserved
//! ```
//! All integers are big-endian. The text of the command follows.

use std::borrow::Cow;

use wave_rpc::memcached::{KEY_BYTES_MAX, KEYS_MAX, Set};

/// Size of a frame header in bytes.
pub const FRAME_BYTES: usize = 8;

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFrame {
    /// Shorter than a header and a command.
    Short,
    /// One of several datagrams of a request. memcached drops these as well.
    Several,
}

/// Splits a datagram into its request id and its text.
///
/// # Errors
/// The datagram does not hold a complete request.
pub fn frame(datagram: &[u8]) -> Result<(u16, &[u8]), BadFrame> {
    match datagram.split_first_chunk::<FRAME_BYTES>() {
        None | Some((_, [])) => Err(BadFrame::Short),
        Some(([high, low, _, _, 0, 1, _, _], text)) => {
            Ok((u16::from_be_bytes([*high, *low]), text))
        }
        Some(_) => Err(BadFrame::Several),
    }
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Version,
    /// Keys, separated by single spaces.
    Get(Cow<'a, [u8]>),
    Set(Set<'a>),
    /// The key.
    Delete(&'a [u8]),
}

/// Why a text is not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadText {
    /// The end is missing. There is no reply; memcached does not answer either, as it waits for the rest.
    Incomplete,
    /// The text is a reply: replies begin with a capital letter, commands do not. It is never answered, so that two servers
    /// cannot answer each other for ever.
    Reply,
    /// The command is wrong. The client gets this line, here without its line end.
    Wrong(&'static str),
}

const UNKNOWN: BadText = BadText::Wrong("ERROR");
const FORMAT: BadText = BadText::Wrong("CLIENT_ERROR bad command line format");
const DELETE_FORMAT: BadText =
    BadText::Wrong("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
const DATA: BadText = BadText::Wrong("CLIENT_ERROR bad data chunk");
const LARGE: BadText = BadText::Wrong("SERVER_ERROR object too large for cache");
const KEYS: BadText = BadText::Wrong("CLIENT_ERROR more than 64 keys");
const SECOND: BadText = BadText::Wrong("CLIENT_ERROR more than one command in a datagram");

/// Reads the text of a datagram. Also returns whether the client wants no reply.
pub fn parse(text: &[u8]) -> (Result<Command<'_>, BadText>, bool) {
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
        return (Err(BadText::Incomplete), false);
    };
    let (line, rest) = (&text[..end], &text[end + 1..]);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let verb = words.next().unwrap_or_default();
    // One more word than any command but `get` may have.
    let arguments: Vec<&[u8]> = words.clone().take(6).collect();
    let is_quiet = matches!(verb, b"set" | b"delete") && arguments.last() == Some(&&b"noreply"[..]);
    let command = match verb {
        b"get" => get(words),
        b"set" => return (set(&arguments, rest), is_quiet),
        b"delete" => delete(&arguments),
        b"version" => Ok(Command::Version),
        [b'A'..=b'Z', ..] => Err(BadText::Reply),
        _ => Err(UNKNOWN),
    };
    let is_alone = rest.is_empty() || command.is_err();
    (if is_alone { command } else { Err(SECOND) }, is_quiet)
}

fn key(word: &[u8]) -> Result<&[u8], BadText> {
    let is_key =
        word.len() <= KEY_BYTES_MAX && word.iter().all(|byte| *byte > b' ' && *byte != 127);
    if is_key { Ok(word) } else { Err(FORMAT) }
}

fn get<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Command<'a>, BadText> {
    let mut keys = Cow::Borrowed(key(words.next().ok_or(UNKNOWN)?)?);
    for (at, word) in words.enumerate() {
        if at + 1 == KEYS_MAX {
            return Err(KEYS);
        }
        let keys = keys.to_mut();
        keys.push(b' ');
        keys.extend_from_slice(key(word)?);
    }
    Ok(Command::Get(keys))
}

fn set<'a>(arguments: &[&'a [u8]], rest: &'a [u8]) -> Result<Command<'a>, BadText> {
    let (&[name, flags, expiry, bytes] | &[name, flags, expiry, bytes, _]) = arguments else {
        return Err(UNKNOWN);
    };
    let key = key(name)?;
    let flags = number(flags).ok_or(FORMAT)?;
    let expiry = number(expiry).ok_or(FORMAT)?;
    let bytes: u32 = number(bytes).ok_or(FORMAT)?;
    let bytes = bytes as usize;
    // No datagram is that long.
    if bytes > usize::from(u16::MAX) {
        return Err(LARGE);
    }
    match rest.split_at_checked(bytes) {
        Some((data, b"\r\n")) => Ok(Command::Set(Set { flags, expiry, key, data })),
        Some((_, [] | b"\r")) | None => Err(BadText::Incomplete),
        Some((_, [b'\r', b'\n', ..])) => Err(SECOND),
        Some(_) => Err(DATA),
    }
}

fn delete<'a>(arguments: &[&'a [u8]]) -> Result<Command<'a>, BadText> {
    match arguments {
        [] => Err(UNKNOWN),
        // The 0 comes from an older version of the protocol, where it was a time.
        [name] | [name, b"0" | b"noreply"] | [name, b"0", b"noreply"] => {
            Ok(Command::Delete(key(name)?))
        }
        _ => Err(DELETE_FORMAT),
    }
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrong(text: &[u8]) -> &'static str {
        match parse(text).0 {
            Err(BadText::Wrong(line)) => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_are_parsed() {
        let set = |key, flags, expiry, data| Command::Set(Set { flags, expiry, key, data });
        let get = |keys: &'static [u8]| Command::Get(Cow::Borrowed(keys));
        for (text, command, is_quiet) in [
            (&b"get a\r\n"[..], get(b"a"), false),
            (b"get  a   b\n", get(b"a b"), false),
            (b"set a 7 -1 3\r\nx\r\n\r\n", set(b"a", 7, -1, b"x\r\n"), false),
            (b"set a 0 0 0 noreply\r\n\r\n", set(b"a", 0, 0, b""), true),
            (b"delete a\r\n", Command::Delete(b"a"), false),
            (b"delete a 0 noreply\r\n", Command::Delete(b"a"), true),
            // `noreply` is a key here, as in memcached.
            (b"delete noreply\r\n", Command::Delete(b"noreply"), true),
            (b"version\r\n", Command::Version, false),
        ] {
            assert_eq!(parse(text), (Ok(command), is_quiet), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn incomplete_commands_are_not_answered() {
        for text in
            [&b"get a"[..], b"", b"set a 0 0 3\r\n", b"set a 0 0 3\r\nabc\r", b"set a 0 0 3"]
        {
            assert_eq!(parse(text).0, Err(BadText::Incomplete), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn replies_are_not_answered() {
        for text in [&b"ERROR\r\n"[..], b"VALUE a 0 1\r\nx\r\nEND\r\n", b"VERSION 1.6.18\r\n"] {
            assert_eq!(parse(text).0, Err(BadText::Reply), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn wrong_commands_are_answered_with_the_cause() {
        let long = [b"get ".as_slice(), &[b'k'; KEY_BYTES_MAX + 1], b"\r\n"].concat();
        let many = [b"get".as_slice(), &b" k".repeat(KEYS_MAX + 1), b"\r\n"].concat();
        for (text, line) in [
            (&b"\r\n"[..], "ERROR"),
            (b"incr a 1\r\n", "ERROR"),
            (b"get\r\n", "ERROR"),
            (b"set a 0 0\r\nabc\r\n", "ERROR"),
            (&long, "CLIENT_ERROR bad command line format"),
            (b"get a\x01\r\n", "CLIENT_ERROR bad command line format"),
            (b"set a x 0 3\r\nabc\r\n", "CLIENT_ERROR bad command line format"),
            (b"set a 0 0 -1\r\nabc\r\n", "CLIENT_ERROR bad command line format"),
            (b"set a 0 0 3\r\nabcd\r\n", "CLIENT_ERROR bad data chunk"),
            (b"set a 0 0 100000\r\nabcd\r\n", "SERVER_ERROR object too large for cache"),
            (&many, "CLIENT_ERROR more than 64 keys"),
            (b"get a\r\nget b\r\n", "CLIENT_ERROR more than one command in a datagram"),
            (b"set a 0 0 1\r\na\r\nget a\r\n", "CLIENT_ERROR more than one command in a datagram"),
        ] {
            assert_eq!(wrong(text), line, "{}", text.escape_ascii());
        }
        assert!(wrong(b"delete a 5\r\n").contains("Usage: delete"));
        assert!(matches!(parse(&many[..many.len() - 4]).0, Err(BadText::Incomplete)));
    }

    #[test]
    fn requests_in_several_datagrams_are_dropped() {
        assert_eq!(frame(b"\x01\x02\0\0\0\x01\0\0v"), Ok((0x102, &b"v"[..])));
        assert_eq!(frame(b"\x01\x02\0\x05\0\x01\0\x09v"), Ok((0x102, &b"v"[..])));
        for (datagram, why) in [
            (&b"\0\0\0\0\0\x02\0\0get a\r\n"[..], BadFrame::Several),
            (b"\0\0\0\0\x01\x01\0\0get a\r\n", BadFrame::Several),
            (b"\0\0\0\0\0\0\0\0get a\r\n", BadFrame::Several),
            (b"\0\0\0\0\0\x01\0\0", BadFrame::Short),
            (b"", BadFrame::Short),
        ] {
            assert_eq!(frame(datagram), Err(why), "{}", datagram.escape_ascii());
        }
    }

    /// Complete commands and pieces of commands in any order, or any bytes.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            prop::sample::select(vec![
                &b"get "[..],
                b"set ",
                b"delete ",
                b"version",
                b"k",
                b" ",
                b" 0",
                b" 4294967296",
                b" -1",
                b" 3",
                b" noreply",
                b"\r\n",
                b"\n",
                b"abc",
                b"\0",
            ])
            .prop_map(<[u8]>::to_vec),
            prop::collection::vec(any::<u8>(), 0..8),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_096))]

        #[test]
        fn any_text_is_parsed_or_refused_and_its_keys_are_valid(text in text()) {
            let is_key = |key: &[u8]| {
                (1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(|byte| *byte > b' ' && *byte != 127)
            };
            match parse(&text).0 {
                Ok(Command::Get(keys)) => {
                    let keys: Vec<_> = keys.split(|byte| *byte == b' ').collect();
                    prop_assert!(keys.len() <= KEYS_MAX && keys.iter().all(|key| is_key(key)));
                }
                Ok(Command::Set(set)) => {
                    prop_assert!(is_key(set.key));
                    let end = [set.data, b"\r\n"].concat();
                    prop_assert!(text.ends_with(&end));
                }
                Ok(Command::Delete(key)) => prop_assert!(is_key(key)),
                Ok(Command::Version) | Err(_) => {}
            }
        }

        #[test]
        fn set_is_parsed_as_written(
            key in prop::collection::vec(b'!'..=b'~', 1..=KEY_BYTES_MAX),
            flags: u32,
            expiry: i64,
            data: Vec<u8>,
        ) {
            let head = [&b"set "[..], &key, format!(" {flags} {expiry} {}\r\n", data.len()).as_bytes()].concat();
            let text = [&head[..], &data, b"\r\n"].concat();
            let set = Set { flags, expiry, key: &key, data: &data };
            prop_assert_eq!(parse(&text).0, Ok(Command::Set(set)));
            for end in 0..text.len() {
                let cut = parse(&text[..end]).0;
                // The data may contain line ends; truncated data must never pass as complete.
                prop_assert!(cut.is_err(), "{end}: {cut:?}");
            }
        }
    }
}
