//! Lines on the output of a process that must keep running whether anybody reads them or not.
//!
//! `eprintln!` panics if the reader has gone, and waits if a pipe is full. Here, such lines are dropped: a line goes out only
//! if it fits at once, and the next line that does says how many were lost. The descriptor is shared with other processes, so
//! its flags are left alone.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, write};

/// The most bytes of a line: as many as a pipe takes whole (`PIPE_BUF` of Linux). Longer lines are cut off.
pub const LINE_BYTES_MAX: usize = 4096;
/// The offset that stands for the file's current position.
const HERE: u64 = u64::MAX;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

static LOST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Writes a line to standard error, as [`say`](crate::say) does.
pub fn say(line: fmt::Arguments<'_>) {
    offer(std::io::stderr().as_fd(), &LOST[0], line);
}

/// Writes a line to standard output, as [`tell`](crate::tell) does.
pub fn tell(line: fmt::Arguments<'_>) {
    offer(std::io::stdout().as_fd(), &LOST[1], line);
}

/// `eprintln!` for a process that serves: never waits, and never panics.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => { $crate::lines::say(format_args!($($arg)*)) };
}

/// `println!` for a process that serves: never waits, and never panics.
#[macro_export]
macro_rules! tell {
    ($($arg:tt)*) => { $crate::lines::tell(format_args!($($arg)*)) };
}

fn offer(to: BorrowedFd<'_>, lost: &AtomicU64, line: fmt::Arguments<'_>) {
    let before = lost.swap(0, Ordering::Relaxed);
    let mut text = match before {
        0 => String::new(),
        lines => format!("({lines} lines before this one were lost: not read in time)\n"),
    };
    // If a `Display` fails, the text that it has written so far is used.
    let _ = fmt::write(&mut text, line);
    text.push('\n');
    let mut bytes = text.into_bytes();
    if bytes.len() > LINE_BYTES_MAX {
        bytes.truncate(LINE_BYTES_MAX - 1);
        bytes.push(b'\n');
    }
    if !write_at_once(to, &bytes) {
        lost.fetch_add(before + 1, Ordering::Relaxed);
    }
}

/// Writes without waiting. Returns whether it did.
fn write_at_once(to: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    // This detects a pipe whose other end is closed; writing to it would raise SIGPIPE in a C program.
    let mut wanted = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    let has_room = match poll(&mut wanted, Some(&AT_ONCE)) {
        Ok(_) => wanted[0].revents() == PollFlags::OUT,
        Err(_) => false,
    };
    if !has_room {
        return false;
    }
    // A disk does not block for long, and some file systems refuse RWF_NOWAIT.
    if fstat(to).is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::RegularFile) {
        return write(to, bytes).is_ok();
    }
    // Another writer may have taken the room since: do not wait for more.
    match pwritev2(to, &[IoSlice::new(bytes)], HERE, ReadWriteFlags::NOWAIT) {
        // A terminal, or an older kernel.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => write(to, bytes).is_ok(),
        result => result.is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::AsRawFd;

    use super::*;

    fn fill(to: BorrowedFd<'_>) {
        while write_at_once(to, &[b'x'; LINE_BYTES_MAX]) {}
    }

    fn read(reader: &mut PipeReader, bytes: usize) -> String {
        let mut read = vec![0; bytes];
        reader.read_exact(&mut read).unwrap();
        String::from_utf8(read).unwrap()
    }

    #[test]
    fn a_line_arrives_whole() {
        let (mut reader, writer) = pipe().unwrap();
        let lost = AtomicU64::new(0);
        offer(writer.as_fd(), &lost, format_args!("{} + {}", 1, 2));
        offer(writer.as_fd(), &lost, format_args!("{}", "y".repeat(2 * LINE_BYTES_MAX)));
        assert_eq!(read(&mut reader, 6), "1 + 2\n");
        let cut = read(&mut reader, LINE_BYTES_MAX);
        assert!(cut.starts_with('y') && cut.ends_with("y\n"));
        assert_eq!(lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_full_pipe_without_a_reader_does_not_block_the_writer() {
        let (mut reader, writer) = pipe().unwrap();
        let lost = AtomicU64::new(0);
        fill(writer.as_fd());
        for _ in 0..3 {
            offer(writer.as_fd(), &lost, format_args!("unheard"));
        }
        assert_eq!(lost.load(Ordering::Relaxed), 3);
        // The flags that the pipe shares with other processes are unchanged.
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{}", writer.as_raw_fd());
        let full = rustix::io::ioctl_fionread(&reader).unwrap() as usize;
        read(&mut reader, full);
        offer(writer.as_fd(), &lost, format_args!("heard"));
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "(3 lines before this one were lost: not read in time)\nheard\n");
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let lost = AtomicU64::new(0);
        offer(writer.as_fd(), &lost, format_args!("unheard"));
        assert_eq!(lost.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_full_disk_is_no_error() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let lost = AtomicU64::new(0);
        offer(full.as_fd(), &lost, format_args!("unwritten"));
        assert_eq!(lost.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_file_is_written_at_its_current_position() {
        let mut file = tempfile::tempfile().unwrap();
        let lost = AtomicU64::new(0);
        offer(file.as_fd(), &lost, format_args!("one"));
        offer(file.as_fd(), &lost, format_args!("two"));
        std::io::Seek::rewind(&mut file).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntwo\n");
    }
}
