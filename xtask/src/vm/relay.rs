//! One of the guest's ports, on this side: a socket that QEMU connects to, read by a thread.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::SyncSender;

pub enum Event {
    /// Some of the command's standard output.
    Out(Vec<u8>),
    /// Some of its standard error.
    Err(Vec<u8>),
    /// One of the two outputs is complete.
    Complete,
    /// The control port is connected; this end writes to it.
    Connected(UnixStream),
    /// A line from the control port.
    Said(String),
}

/// Listens for QEMU on a port of the command's output.
pub fn output(
    socket: &Path,
    end_mark: &str,
    events: SyncSender<Event>,
    event: fn(Vec<u8>) -> Event,
) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let mut end = EndMark::new(format!("\0{end_mark}").into_bytes());
    std::thread::spawn(move || -> Option<()> {
        let (mut stream, _) = listener.accept().ok()?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let size = stream.read(&mut buffer).ok().filter(|size| *size > 0)?;
            let text = end.passed(&buffer[..size]);
            if !text.is_empty() {
                events.send(event(text)).ok()?;
            }
            if end.seen() {
                events.send(Event::Complete).ok()?;
            }
        }
    });
    Ok(())
}

/// Listens for QEMU on the control port.
pub fn control(socket: &Path, events: SyncSender<Event>) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    std::thread::spawn(move || -> Option<()> {
        let (stream, _) = listener.accept().ok()?;
        events.send(Event::Connected(stream.try_clone().ok()?)).ok()?;
        for line in BufReader::new(stream).lines() {
            events.send(Event::Said(line.ok()?)).ok()?;
        }
        None
    });
    Ok(())
}

/// Tells the guest that all its output has arrived.
pub fn let_go(mut control: &UnixStream) {
    // If this fails, the guest has already ended.
    let _ = control.write_all(b"go\n");
}

/// Finds the mark that ends a stream, across pieces. Holds back only bytes that may be the
/// beginning of the mark.
struct EndMark {
    mark: Vec<u8>,
    held: Vec<u8>,
}

impl EndMark {
    fn new(mark: Vec<u8>) -> Self {
        Self { mark, held: Vec::new() }
    }

    /// The text so far: this piece and earlier bytes, without a possible beginning of the mark.
    fn passed(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let longest = self.mark.len().min(self.held.len());
        let held = (0..=longest)
            .rev()
            .find(|size| self.held.ends_with(&self.mark[..*size]))
            .expect("nothing at all always fits");
        let rest = self.held.split_off(self.held.len() - held);
        std::mem::replace(&mut self.held, rest)
    }

    fn seen(&self) -> bool {
        self.held == self.mark
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn relayed(pieces: &[&str]) -> (String, bool) {
        let mut end = EndMark::new(b"\0end".to_vec());
        let text: Vec<u8> = pieces.iter().flat_map(|piece| end.passed(piece.as_bytes())).collect();
        (String::from_utf8(text).unwrap(), end.seen())
    }

    #[test]
    fn the_mark_ends_a_stream_across_any_pieces() {
        assert_eq!(relayed(&["no newline\0end"]), ("no newline".into(), true));
        assert_eq!(relayed(&["a\n", "\0", "e", "nd"]), ("a\n".into(), true));
        assert_eq!(relayed(&["\0end"]), (String::new(), true));
    }

    #[test]
    fn bytes_that_resemble_the_mark_are_text() {
        assert_eq!(relayed(&["a\0e", "nough"]), ("a\0enough".into(), false));
        assert_eq!(relayed(&["\0", "\0end"]), ("\0".into(), true));
        assert_eq!(relayed(&["end"]), ("end".into(), false));
    }
}
