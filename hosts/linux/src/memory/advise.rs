//! Gives advice on another process's memory, in pieces small enough that the process never waits long to map memory.

use std::io;
use std::ops::Range;

use super::process::{Process, iovec};

const BATCH_BYTES: u64 = 256 << 10;
/// A piece ends at a multiple of this, or with its range, so that it never splits a huge page.
const UNIT_BYTES: u64 = 2 << 20;
/// How often an interrupted call is repeated before it is reported.
const TRIES: usize = 16;

/// Advice about pages, for process_madvise(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Clear the pages' accessed bits, and treat the pages as unused for long.
    Cold,
    /// Move the pages to swap.
    PageOut,
    /// Read the pages back from swap, so that no access has to wait for that.
    WillNeed,
}

impl Advice {
    fn number(self) -> i32 {
        match self {
            Advice::Cold => libc::MADV_COLD,
            Advice::PageOut => libc::MADV_PAGEOUT,
            Advice::WillNeed => libc::MADV_WILLNEED,
        }
    }

    /// Most bytes in a call. The process cannot map memory meanwhile: it waits up to 20 ms while 16 batches are paged
    /// out, and up to 100 ms for 64.
    fn bytes_max(self) -> u64 {
        match self {
            Advice::Cold => 64 * BATCH_BYTES,
            Advice::PageOut | Advice::WillNeed => 16 * BATCH_BYTES,
        }
    }
}

/// Result of advice. The kernel does not say which pages it moved; a later reading of the page table does. It skips
/// pages that other processes have too, and some new ones: up to 31 per CPU, which only that CPU can move or,
/// from Linux 7.2 on, clear.
#[derive(Debug, Default)]
pub struct Advised {
    /// Bytes of the pieces that were advised as a whole.
    pub bytes: u64,
    /// Number of pieces with unmapped parts; the rest of each piece was advised.
    pub holes: u64,
    /// The rest of the first range on which the kernel refused advice, with its error: EINVAL for locked memory. Later
    /// ranges were advised all the same.
    pub refused: Option<(Range<u64>, io::Error)>,
    /// Number of system calls.
    pub calls: u64,
}

/// Why no advice was taken.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum AdviseError {
    /// The process has ended; its id is the field.
    #[error("process {0} has ended")]
    Gone(i32),
    /// The kernel accepts no advice from this process, or none at all.
    #[error("the kernel refuses advice on the memory of process {pid}: {error}")]
    Refused { pid: i32, error: io::Error },
}

/// Gives advice on ranges of whole pages; merge adjacent ranges first. Each `process_madvise` covers as many bytes as
/// this kind of [`Advice`] allows.
pub fn advise(
    process: &Process,
    advice: Advice,
    ranges: &[Range<u64>],
) -> Result<Advised, AdviseError> {
    let mut advised = Advised::default();
    let mut pieces = Pieces { ranges, at: 0, from: 0 };
    let mut call: Vec<Piece> = Vec::new();
    let mut tries = 0;
    loop {
        let mut bytes: u64 = call.iter().map(|piece| piece.end - piece.start).sum();
        while let Some(piece) = pieces.next(advice.bytes_max() - bytes) {
            bytes += piece.end - piece.start;
            call.push(piece);
        }
        if call.is_empty() {
            return Ok(advised);
        }
        let vector: Vec<libc::iovec> =
            call.iter().map(|piece| iovec(piece.start, piece.end - piece.start)).collect();
        advised.calls += 1;
        match process.advise(&vector, advice.number()).and_then(some) {
            Ok(done) => {
                tries = 0;
                advised.bytes += done;
                // The remaining pieces begin with the one that failed.
                let mut left = done;
                call.retain(|piece| {
                    let whole = left >= piece.end - piece.start;
                    left = if whole { left - (piece.end - piece.start) } else { 0 };
                    !whole
                });
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ESRCH) => return Err(AdviseError::Gone(process.pid())),
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EBADF | libc::EFAULT) => {
                    return Err(AdviseError::Refused { pid: process.pid(), error });
                }
                Some(libc::EINTR | libc::EAGAIN) if tries < TRIES => tries += 1,
                // The mapped parts of the first piece were advised.
                Some(libc::ENOMEM) => {
                    tries = 0;
                    advised.holes += 1;
                    call.remove(0);
                }
                _ => {
                    tries = 0;
                    let Piece { range, start, .. } = call[0];
                    let rest = start..ranges[range].end;
                    call.retain(|piece| piece.range != range);
                    pieces.pass_over(range);
                    advised.refused.get_or_insert((rest, error));
                }
            },
        }
    }
}

/// Turns a result of zero bytes into EAGAIN, so that the call is repeated.
fn some(done: u64) -> io::Result<u64> {
    match done {
        0 => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        done => Ok(done),
    }
}

/// A piece of one range: the part that fits into one call.
struct Piece {
    range: usize,
    start: u64,
    end: u64,
}

/// The parts of the ranges that are still to be advised.
struct Pieces<'a> {
    ranges: &'a [Range<u64>],
    at: usize,
    /// Position in range `at`; 0 is its start.
    from: u64,
}

impl Pieces<'_> {
    /// The next piece of at most `room` bytes; `None` where a huge page would be cut.
    fn next(&mut self, room: u64) -> Option<Piece> {
        let range = loop {
            let range = self.ranges.get(self.at)?;
            if self.from.max(range.start) < range.end {
                break range;
            }
            self.at += 1;
            self.from = 0;
        };
        let start = self.from.max(range.start);
        let end = match start.saturating_add(room) {
            end if end >= range.end => range.end,
            end => end - end % UNIT_BYTES,
        };
        if end <= start {
            return None;
        }
        self.from = end;
        Some(Piece { range: self.at, start, end })
    }

    fn pass_over(&mut self, range: usize) {
        if self.at == range {
            self.at += 1;
            self.from = 0;
        }
    }
}
