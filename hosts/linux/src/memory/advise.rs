//! Advice on another process's memory, in pieces for which its own mappings never wait for long.

use std::io;
use std::ops::Range;

use super::process::Process;

const BATCH_BYTES: u64 = 256 << 10;
/// A piece ends at a multiple of this, or with its range: a huge page is never cut by us.
const UNIT_BYTES: u64 = 2 << 20;
/// How often a call that was disturbed is made again before it is told of.
const TRIES: usize = 16;

/// Advice about pages, for process_madvise(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Clear their accessed bits, and count them among those that were not used for long.
    Cold,
    /// Move the pages to swap.
    PageOut,
    /// Read them back from swap, so that no access waits for it.
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

    /// Bytes in a call. The process cannot map anything meanwhile: with 16 batches to page out it waits up to
    /// 20 ms, with 64 up to 100 ms.
    fn bytes_max(self) -> u64 {
        match self {
            Advice::Cold => 64 * BATCH_BYTES,
            Advice::PageOut | Advice::WillNeed => 16 * BATCH_BYTES,
        }
    }
}

/// What became of advice. The kernel does not say which pages it moved: a later look at the page table does. It passes
/// over pages that other processes have too, and some that are new: up to 31 per CPU, which only that CPU can
/// move, or from Linux 7.2 on clear.
#[derive(Debug, Default)]
pub struct Advised {
    /// Bytes of the pieces that were advised whole.
    pub bytes: u64,
    /// Pieces that have something unmapped in them; the rest of each was advised.
    pub holes: u64,
    /// The first range that the kernel did not take advice on, from where it refused, and what it said: EINVAL for
    /// locked memory. Ranges after it were advised all the same.
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
    /// The kernel takes none from this process, or none at all.
    #[error("advice on the memory of process {pid}: {error}")]
    Refused { pid: i32, error: io::Error },
}

/// Gives advice on ranges of whole pages, adjacent ones merged: one `process_madvise`
/// for as many as [`Advice`] allows at once.
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
        let vector: Vec<libc::iovec> = call.iter().map(Piece::vector).collect();
        advised.calls += 1;
        match process.advise(&vector, advice.number()).and_then(some) {
            Ok(done) => {
                tries = 0;
                advised.bytes += done;
                // What is left begins with the piece that failed.
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
                // What is mapped of the first piece was advised.
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

/// To have done nothing is to be tried again.
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

impl Piece {
    fn vector(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start as *mut libc::c_void,
            iov_len: (self.end - self.start) as usize,
        }
    }
}

/// What is left of ranges.
struct Pieces<'a> {
    ranges: &'a [Range<u64>],
    at: usize,
    /// Where in that range; 0 is its start.
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
