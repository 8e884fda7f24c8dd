//! Transcript of a server's or a client's output. Parts that differ from run to run are masked.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use crate::matrix::Site;
use crate::network::{AGENT, LINUX, connect};

/// Maximum number of bytes of a request to record.
const REQUEST_BYTES: usize = 80;
/// Number of bytes to show around the first difference.
const SHOWN: usize = 300;

/// All recorded output, in order.
pub struct Transcript {
    bytes: Vec<u8>,
    addresses: [String; 2],
}

impl Transcript {
    pub fn new() -> Transcript {
        let addresses = [AGENT, LINUX].map(|ip| std::net::Ipv4Addr::from(ip).to_string());
        Transcript { bytes: Vec::new(), addresses }
    }

    /// Adds a title and output, with both addresses masked.
    pub fn add(&mut self, title: &str, said: &[u8]) {
        self.bytes.extend(format!("\n== {title}\n").bytes());
        let mut said = said.to_vec();
        for address in &self.addresses {
            said = replace(&said, address.as_bytes(), b"ADDRESS");
        }
        self.bytes.extend(said);
    }

    /// Sends bytes over a new connection, and adds all bytes received until the server closes.
    pub fn ask(&mut self, site: &Site, more: u16, request: &[u8], mask: fn(&[u8]) -> Vec<u8>) {
        let mut stream = connect(site.at(more));
        let mut writer = stream.try_clone().unwrap();
        let mut answer = Vec::new();
        thread::scope(|scope| {
            // The server may close before it has read everything.
            scope.spawn(move || writer.write_all(request));
            let end = stream.read_to_end(&mut answer);
            let end = end.map(|_| ()).map_err(|error| error.kind());
            answer.extend(format!("\n-- {end:?}\n").bytes());
            let _ = stream.shutdown(Shutdown::Both);
        });
        let title = String::from_utf8_lossy(&request[..request.len().min(REQUEST_BYTES)]);
        self.add(&title, &mask(&answer));
    }

    /// Panics with the first difference from `other`, if there is one.
    pub fn expect(&self, other: &Transcript, which: &str) {
        assert!(self.bytes.len() > SHOWN, "{} bytes", self.bytes.len());
        if self.bytes == other.bytes {
            return;
        }
        let both = self.bytes.iter().zip(&other.bytes);
        let at = both.take_while(|(one, other)| one == other).count();
        let [one, other] = [&self.bytes, &other.bytes].map(|bytes| {
            let rest = String::from_utf8_lossy(&bytes[at..bytes.len().min(at + SHOWN)]);
            let before = String::from_utf8_lossy(&bytes[at.saturating_sub(SHOWN)..at]);
            [rest, before].map(std::borrow::Cow::into_owned)
        });
        let ([one, before], [other, _]) = (one, other);
        panic!("{which}: byte {at} differs: {one:?} is not {other:?}; before it:\n{before}");
    }
}

fn replace(bytes: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        match rest.strip_prefix(what) {
            Some(behind) => {
                out.extend(by);
                rest = behind;
            }
            None => {
                out.push(rest[0]);
                rest = &rest[1..];
            }
        }
    }
    out
}

/// Masks nothing.
pub fn as_it_is(said: &[u8]) -> Vec<u8> {
    said.to_vec()
}

/// Masks the digits that follow a word, as in `fd=12`.
pub fn mask_digits(said: &[u8], word: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(said.len());
    let mut rest = said;
    while let Some(at) = rest.windows(word.len()).position(|bytes| bytes == word.as_bytes()) {
        let (before, behind) = rest.split_at(at + word.len());
        out.extend(before);
        out.push(b'N');
        rest = &behind[behind.iter().take_while(|byte| byte.is_ascii_digit()).count()..];
    }
    out.extend(rest);
    out
}

/// Masks the rest of each line that begins with this word.
pub fn mask_lines(said: &[u8], word: &str) -> Vec<u8> {
    let lines = said.split_inclusive(|byte| *byte == b'\n');
    let is_it = |line: &[u8]| {
        line.len() >= word.len() && line[..word.len()].eq_ignore_ascii_case(word.as_bytes())
    };
    let masked = lines.map(|line| match is_it(line) {
        true => format!("{word}...\n").into_bytes(),
        false => line.to_vec(),
    });
    masked.flatten().collect()
}
