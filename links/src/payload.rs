//! Payload memory: a sealed file in RAM that a host and an agent map, reached byte by byte.
//!
//! # Rules of access
//!
//! 1. The peer may change any byte at any time. No Rust reference to these bytes is ever made: they are copied through
//!    raw pointers, or named to the kernel. A copy may be a mixture of old and new bytes, and nothing in it may be
//!    trusted before it is checked.
//! 2. Writes of another process are outside of Rust's memory model, as a device's are. Within this process, two threads must not
//!    race either: a [`Payload`] is [`Send`] but not [`Sync`], and a thread that needs the same file maps it again.
//! 3. The file's size is sealed, as for [`Memory`](crate::Memory). Pages appear when they are touched, so that a
//!    large memory costs only the pages in use.
//! 4. The borrower of a payload memory touches only pages that its lender has touched before, so that they are charged to the
//!    lender. A [`LentPayload`] ensures that, even against a hostile lender.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::{
    Lender, MapError, PAGE_BYTES, SharedMap, check, check_sealed, check_size, file_size, has_page,
    memory_to_lend,
};

/// A range that is not within a payload memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {at} are not within a payload memory of {memory_bytes} bytes")]
pub struct OutOfBounds {
    /// Offset of the first byte.
    pub at: u64,
    /// Number of bytes asked for.
    pub bytes: usize,
    /// Size of the memory, in bytes.
    pub memory_bytes: u64,
}

/// A payload memory, mapped into this process. See the module for the rules of access.
#[derive(Debug)]
pub struct Payload {
    map: Arc<SharedMap>,
    bytes: u64,
    /// Not [`Sync`] (rule 2).
    _one_thread: PhantomData<Cell<u8>>,
}

impl Payload {
    /// Creates a memory of `bytes` bytes, all zero and none resident, and the descriptor to hand to the peer. The size is sealed.
    /// `name` appears in `/proc` only. Once a peer has borrowed it, no process can map it for writing again.
    ///
    /// # Errors
    /// The system has no descriptor or no address space left, or `bytes` is 0.
    pub fn create(name: &str, bytes: u64) -> io::Result<(Payload, OwnedFd)> {
        if bytes == 0 {
            return Err(MapError::Empty.into());
        }
        let fd = memory_to_lend(name, bytes)?;
        let map =
            if are_new_pages_locked() { SharedMap::sparse_unlocked } else { SharedMap::sparse };
        let payload = Payload::map_with(map, fd.as_fd(), bytes)?;
        Ok((payload, fd))
    }

    /// Maps a memory that the peer created, of exactly `bytes` bytes.
    ///
    /// # Errors
    /// A file that is not a sealed memfd of ordinary pages, or has another size, is the peer's fault
    /// ([`MapError::is_peers_fault`]).
    pub fn map(fd: BorrowedFd<'_>, bytes: u64) -> Result<Payload, MapError> {
        Payload::map_with(SharedMap::sparse, fd, bytes)
    }

    fn map_with(
        map: impl FnOnce(BorrowedFd<'_>, usize) -> io::Result<SharedMap>,
        fd: BorrowedFd<'_>,
        bytes: u64,
    ) -> Result<Payload, MapError> {
        if bytes == 0 {
            return Err(MapError::Empty);
        }
        check_size(fd, bytes)?;
        let failed = |source| MapError::System { what: "map", source };
        let length = usize::try_from(bytes)
            .map_err(|_| failed(io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let map = Arc::new(map(fd, length).map_err(failed)?);
        Ok(Payload { map, bytes, _one_thread: PhantomData })
    }

    /// Keeps the mapping out of children of fork(2), which would otherwise hold the memory until they end. A child that uses this
    /// memory faults.
    ///
    /// # Errors
    /// The error of madvise(2).
    pub fn keep_from_children(&self) -> io::Result<()> {
        let at = self.map.base().as_ptr().cast();
        // SAFETY: this is the whole mapping; only children notice.
        let done = unsafe { libc::madvise(at, self.bytes as usize, libc::MADV_DONTFORK) };
        check(done).map(|_| ())
    }

    /// Keeps this memory out of calls that make all memory of this process resident, such as mlockall(2), until the result is
    /// dropped. Meanwhile a populator fails.
    pub fn aside(&mut self) -> Aside<'_> {
        self.map.set_accessible(false);
        Aside(self)
    }

    /// Size in bytes of a memory that the peer created; the seal keeps it.
    ///
    /// # Errors
    /// As [`Payload::map`]. A file that is not a memfd is refused without asking its file system, which might never answer.
    pub fn sealed_bytes(fd: BorrowedFd<'_>) -> Result<u64, MapError> {
        check_sealed(fd)?;
        file_size(fd).map_err(|source| MapError::System { what: "stat", source })
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A handle that populates this memory from any thread, without access to its contents.
    pub fn populator(&self) -> Populator {
        Populator { map: Arc::clone(&self.map), bytes: self.bytes }
    }

    /// As [`Populator::populate`], on this thread.
    ///
    /// # Errors
    /// As [`Populator::populate`].
    pub fn populate(&self, at: u64, bytes: u32) -> io::Result<()> {
        self.populator().populate(at, bytes)
    }

    /// Copies `from` to offset `at`.
    ///
    /// # Errors
    /// Nothing was copied, because not all of it lies within the memory.
    #[inline]
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        self.part(at, from.len())?.copy_from(from);
        Ok(())
    }

    /// Copies the bytes at offset `at` to `into`.
    ///
    /// # Errors
    /// As [`Payload::write`].
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.part(at, into.len())?.copy_to(into);
        Ok(())
    }

    /// The `bytes` bytes from offset `at` on, by address: for an `iovec`.
    ///
    /// # Errors
    /// Not all of them lie within the memory.
    #[inline]
    pub fn part(&self, at: u64, bytes: usize) -> Result<Part<'_>, OutOfBounds> {
        let end = at.checked_add(bytes as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(OutOfBounds { at, bytes, memory_bytes: self.bytes });
        }
        // SAFETY: `at` is at most `self.bytes`, the length of the mapping.
        let start = unsafe { self.map.base().add(at as usize) };
        Ok(Part { start, bytes, _memory: PhantomData })
    }
}

/// Whether mlockall(2) has made new mappings resident: the kernel shows it only by a new page. (Making a large mapping accessible
/// later takes minutes below valgrind.)
fn are_new_pages_locked() -> bool {
    let mut is_resident = 0_u8;
    // SAFETY: a fresh page at an address of the kernel's choice, which is unmapped again and has no other user.
    unsafe {
        let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let bytes = PAGE_BYTES as usize;
        let page = libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0);
        if page != libc::MAP_FAILED {
            libc::mincore(page, bytes, &mut is_resident);
            libc::munmap(page, bytes);
        }
    }
    is_resident & 1 != 0
}

/// A payload memory that is not accessible: see [`Payload::aside`].
#[derive(Debug)]
pub struct Aside<'a>(&'a mut Payload);

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.0.map.set_accessible(true);
    }
}

/// Populates pages of a [`Payload`] memory, from any thread.
#[derive(Clone, Debug)]
pub struct Populator {
    map: Arc<SharedMap>,
    bytes: u64,
}

impl Populator {
    /// Backs all pages of the `bytes` bytes at `at` with memory of this process: a page that an agent touches first is charged
    /// to the agent.
    ///
    /// # Errors
    /// `ENOMEM` and others: there is no memory. `EINVAL`: the range is not within this payload memory.
    pub fn populate(&self, at: u64, bytes: u32) -> io::Result<()> {
        // Since Linux 5.14.
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        let end = at.checked_add(bytes.into()).filter(|end| *end <= self.bytes);
        let (start, end) = end
            .map(|end| (at & !(PAGE_BYTES - 1), end))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the range begins at the page of byte `at` and ends at the mapping's end at most; contents do not change.
        let populated = unsafe {
            let first = self.map.base().as_ptr().add(start as usize);
            libc::madvise(first.cast(), (end - start) as usize, MADV_POPULATE_WRITE)
        };
        check(populated).map(|_| ())
    }
}

/// A range outside the lent memory, or with pages that the lender is not known to have touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {at} are not among the pages that were lent")]
pub struct NotLent {
    /// Offset of the first byte.
    pub at: u64,
    /// Number of bytes in the range.
    pub bytes: usize,
}

/// A payload memory that a peer lent; this process touches only pages that the peer has touched before. The peer cannot take
/// a page away.
#[derive(Debug)]
pub struct LentPayload {
    payload: Payload,
    file: Arc<OwnedFd>,
    /// One bit per page: set once the page was found to be backed.
    backed: Vec<u64>,
}

impl LentPayload {
    /// The most bytes of one [`LentPayload::is_backed`]: each page that is not known yet costs a system call.
    pub const CHECK_BYTES_MAX: u32 = 256 << 10;

    /// Takes over a memory that the peer created, of exactly `bytes` bytes.
    ///
    /// # Errors
    /// As [`Payload::map`]; also if pages could be taken away.
    pub fn take(file: OwnedFd, bytes: u64, lender: Lender) -> Result<LentPayload, MapError> {
        let mut payloads = LentPayload::take_for(1, file, bytes, lender)?;
        Ok(payloads.remove(0))
    }

    /// Like [`LentPayload::take`], with one mapping per thread. Each thread treats the others as it treats the peer (rule 1), and
    /// finds pages for itself.
    ///
    /// # Errors
    /// As [`LentPayload::take`].
    pub fn take_for(
        threads: usize,
        file: OwnedFd,
        bytes: u64,
        lender: Lender,
    ) -> Result<Vec<LentPayload>, MapError> {
        // In this order: once the file is sealed, no process can map it for writing.
        let payloads: Result<Vec<_>, _> =
            (0..threads).map(|_| Payload::map(file.as_fd(), bytes)).collect();
        let payloads = payloads?;
        lender.seal(file.as_fd())?;
        let file = Arc::new(file);
        let words = bytes.div_ceil(PAGE_BYTES).div_ceil(64) as usize;
        let lent =
            |payload| LentPayload { payload, file: Arc::clone(&file), backed: vec![0; words] };
        Ok(payloads.into_iter().map(lent).collect())
    }

    /// The memory's file, to be handed to another borrower.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.payload.bytes
    }

    /// Checks whether the peer has touched all pages of the `bytes` bytes at `at`, and remembers those. Also false for more
    /// than [`LentPayload::CHECK_BYTES_MAX`] bytes, and outside the memory.
    pub fn is_backed(&mut self, at: u64, bytes: u32) -> bool {
        let end = at.checked_add(bytes.into());
        if bytes > LentPayload::CHECK_BYTES_MAX || end.is_none_or(|end| end > self.bytes()) {
            return false;
        }
        for page in at / PAGE_BYTES..(at + u64::from(bytes)).div_ceil(PAGE_BYTES) {
            let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
            if self.backed[word] & bit == 0 {
                if !has_page(self.file.as_fd(), page * PAGE_BYTES) {
                    return false;
                }
                self.backed[word] |= bit;
            }
        }
        true
    }

    /// Backs the `bytes` bytes at `at` with memory of this process, so that it may use them. At most
    /// [`LentPayload::CHECK_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// See [`Populator::populate`].
    pub fn populate(&mut self, at: u64, bytes: u32) -> io::Result<()> {
        self.payload.populate(at, bytes)?;
        match self.is_backed(at, bytes) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        }
    }

    /// Marks the pages of the `bytes` bytes at `at` as backed: an earlier borrower has checked them. Bytes beyond the memory are
    /// ignored.
    pub fn assume_backed(&mut self, at: u64, bytes: u32) {
        let end = at.saturating_add(bytes.into()).min(self.bytes());
        for page in at / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            self.backed[(page / 64) as usize] |= 1 << (page % 64);
        }
    }

    /// Copies `from` to offset `at`.
    ///
    /// # Errors
    /// Nothing was copied.
    #[inline]
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), NotLent> {
        self.part(at, from.len())?.copy_from(from);
        Ok(())
    }

    /// Copies the bytes at offset `at` to `into`.
    ///
    /// # Errors
    /// Nothing was copied.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), NotLent> {
        self.part(at, into.len())?.copy_to(into);
        Ok(())
    }

    /// The `bytes` bytes from offset `at` on, by address: for an `iovec`.
    ///
    /// # Errors
    /// [`LentPayload::is_backed`] has not found all of their pages.
    #[inline]
    pub fn part(&self, at: u64, bytes: usize) -> Result<Part<'_>, NotLent> {
        let not_lent = NotLent { at, bytes };
        let part = self.payload.part(at, bytes).map_err(|_| not_lent)?;
        let (mut page, end) = (at / PAGE_BYTES, (at + bytes as u64).div_ceil(PAGE_BYTES));
        while page < end {
            // Checks all pages of one bitmap word at a time.
            let next = (page / 64 * 64 + 64).min(end);
            let wanted = (u64::MAX >> (64 - (next - page))) << (page % 64);
            if self.backed[(page / 64) as usize] & wanted != wanted {
                return Err(not_lent);
            }
            page = next;
        }
        Ok(part)
    }
}

/// A run of bytes of a payload memory. They are mapped, readable and writable for `'a`; the peer may change them at any time.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    start: NonNull<u8>,
    bytes: usize,
    /// Makes the part neither [`Send`] nor [`Sync`] (rule 2).
    _memory: PhantomData<&'a Payload>,
}

impl<'a> Part<'a> {
    /// A part without bytes.
    pub const EMPTY: Part<'static> =
        Part { start: NonNull::dangling(), bytes: 0, _memory: PhantomData };

    /// Number of bytes in the part.
    pub fn len(self) -> usize {
        self.bytes
    }

    /// Whether the part has no bytes.
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// Address of the first byte, for an `iovec`. No reference may be made from it.
    pub fn pointer(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes from number `at` on. Panics if there are fewer than `at`.
    pub fn skip(self, at: usize) -> Part<'a> {
        assert!(at <= self.bytes, "a part of {} bytes has no byte {at}", self.bytes);
        // SAFETY: the result is at most the end of the part.
        let start = unsafe { self.start.add(at) };
        Part { start, bytes: self.bytes - at, ..self }
    }

    /// The first `bytes` bytes, or all if there are fewer.
    pub fn first(self, bytes: usize) -> Part<'a> {
        Part { bytes: self.bytes.min(bytes), ..self }
    }

    /// Copies from the start of `from` as many bytes as both have. Returns their number.
    #[inline]
    pub fn copy_from(self, from: &[u8]) -> usize {
        let bytes = self.bytes.min(from.len());
        // SAFETY: the part's bytes are mapped and writable for `'a`. `from` is a reference, so it is not of this memory (rule 1).
        // No other thread of this process uses this mapping (rule 2).
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr(), bytes) };
        bytes
    }

    /// Copies to the start of `into` as many bytes as both have. Returns their number.
    #[inline]
    pub fn copy_to(self, into: &mut [u8]) -> usize {
        let bytes = self.bytes.min(into.len());
        // SAFETY: as in `copy_from`; any byte is a valid `u8`.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), into.as_mut_ptr(), bytes) };
        bytes
    }

    /// Reads from a file or socket straight into these bytes by read(2). Returns the number of bytes read; 0 is the end.
    ///
    /// # Errors
    /// The error of read(2).
    pub fn fill_from(self, source: impl AsFd) -> io::Result<usize> {
        let (fd, start) = (source.as_fd().as_raw_fd(), self.start.as_ptr());
        // SAFETY: the part's bytes are mapped and writable during the call; the kernel allows concurrent changes.
        let got = unsafe { libc::read(fd, start.cast(), self.bytes) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Writes these bytes to a file or socket by write(2). Returns the number of bytes written.
    ///
    /// # Errors
    /// The error of write(2).
    pub fn drain_to(self, target: impl AsFd) -> io::Result<usize> {
        let (fd, start) = (target.as_fd().as_raw_fd(), self.start.as_ptr());
        // SAFETY: the part's bytes are mapped and readable during the call; the kernel allows concurrent changes.
        let put = unsafe { libc::write(fd, start.cast(), self.bytes) };
        usize::try_from(put).map_err(|_| io::Error::last_os_error())
    }
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn both_sides_see_the_same_bytes_at_any_offset() {
        let (ours, fd) = Payload::create("test", 10_000).unwrap();
        let theirs = Payload::map(fd.as_fd(), 10_000).unwrap();
        for at in [0, 1, 4095, 9_993] {
            ours.write(at, b"payload").unwrap();
            let mut bytes = [0; 7];
            theirs.read(at, &mut bytes).unwrap();
            assert_eq!(&bytes, b"payload");
        }
        assert_eq!(theirs.bytes(), 10_000);
    }

    #[test]
    fn accesses_beyond_the_memory_are_refused_whole() {
        let (payload, _fd) = Payload::create("test", 4096).unwrap();
        for (at, bytes) in [(4090, 7), (4097, 0), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            let refused = OutOfBounds { at, bytes, memory_bytes: 4096 };
            assert_eq!(payload.write(at, &vec![1; bytes]), Err(refused));
            assert_eq!(payload.read(at, &mut vec![1; bytes]), Err(refused));
            assert_eq!(payload.part(at, bytes).unwrap_err(), refused);
        }
        payload.write(4096, &[]).unwrap();
        let mut last = [1; 6];
        payload.read(4090, &mut last).unwrap();
        assert_eq!(last, [0; 6]);
    }

    #[test]
    fn untouched_memory_is_not_resident() {
        let (payload, fd) = Payload::create("test", 1 << 34).unwrap();
        payload.write((1 << 34) - 1, &[1]).unwrap();
        let file = File::from(fd);
        assert!(file.metadata().unwrap().blocks() * 512 <= 1 << 22);
        assert!(file.set_len(1 << 20).is_err());
    }

    /// A memory of 1 MiB, borrowed.
    fn lent() -> (Payload, File, LentPayload) {
        let (lender, file) = Payload::create("test", 1 << 20).unwrap();
        let lent = LentPayload::take(file.try_clone().unwrap(), 1 << 20, Lender::Stranger).unwrap();
        (lender, File::from(file), lent)
    }

    #[test]
    fn a_borrower_touches_only_what_its_lender_has_touched() {
        let (lender, file, mut lent) = lent();
        let blocks = || file.metadata().unwrap().blocks();
        for (at, bytes) in [(0, 1), (4096, 8192), (1 << 20, 1), (u64::MAX, 4)] {
            assert!(!lent.is_backed(at, bytes));
            let refused = NotLent { at, bytes: bytes as usize };
            assert_eq!(lent.write(at, &vec![1; bytes as usize]), Err(refused));
            assert_eq!(lent.read(at, &mut vec![1; bytes as usize]), Err(refused));
        }
        assert_eq!(blocks(), 0);
        // Pages 1 to 70: more than one word of the bitmap.
        lender.populate(5_000, 69 * 4096).unwrap();
        assert_eq!(blocks(), 70 * 8);
        assert!(!lent.is_backed(4096, 71 * 4096), "more than CHECK_BYTES_MAX");
        for at in [4096, 36 * 4096] {
            assert!(lent.is_backed(at, 35 * 4096));
        }
        lent.write(4096, &[7; 70 * 4096]).unwrap();
        for (at, bytes) in [(4095, 2), (71 * 4096 - 1, 2), (0, 1)] {
            assert!(lent.part(at, bytes).is_err() && !lent.is_backed(at, bytes as u32));
        }
        assert_eq!((lent.part(71 * 4096, 0).unwrap().len(), blocks()), (0, 70 * 8));
        let mut byte = [0];
        lender.read(71 * 4096 - 1, &mut byte).unwrap();
        assert_eq!(byte, [7]);
    }

    #[test]
    fn a_lender_cannot_take_pages_back_but_can_populate() {
        use rustix::fs::{FallocateFlags, fallocate};
        let (lender, file, mut lent) = lent();
        lender.populate(0, 4096).unwrap();
        assert!(lent.is_backed(0, 4096));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&file, punch, 0, 4096), Err(rustix::io::Errno::PERM));
        assert!(file.set_len(0).is_err());
        assert!(
            Payload::map(file.as_fd(), 1 << 20).is_err(),
            "no process maps it for writing again"
        );
        lender.populate(8192, 1).unwrap();
        assert!(lent.is_backed(8192, 4096));
        // A page that is only reserved does not count: touching it would fill it.
        fallocate(&file, FallocateFlags::empty(), 16384, 4096).unwrap();
        assert!(!lent.is_backed(16384, 1));
        assert!(lender.populate(1 << 20, 1).is_err());
    }

    #[test]
    fn files_that_can_shrink_or_have_another_size_are_refused() {
        let (_payload, fd) = Payload::create("test", 8192).unwrap();
        let error = Payload::map(fd.as_fd(), 4096).unwrap_err();
        assert!(matches!(error, MapError::WrongSize { expected: 4096, found: 8192 }));
        assert!(matches!(Payload::map(fd.as_fd(), 0), Err(MapError::Empty)));
        assert!(Payload::create("test", 0).is_err());
        let ordinary = tempfile::tempfile().unwrap();
        ordinary.set_len(8192).unwrap();
        assert!(Payload::map(ordinary.as_fd(), 8192).unwrap_err().is_peers_fault());
        // SAFETY: a literal C string.
        let raw = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING) };
        // SAFETY: just opened, and nobody else's.
        let unsealed = File::from(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(raw) });
        unsealed.set_len(8192).unwrap();
        let error = Payload::map(unsealed.as_fd(), 8192).unwrap_err();
        assert!(matches!(error, MapError::Unsealed { .. }), "{error}");
    }

    #[test]
    fn parts_are_sliced_written_to_files_and_read_back() {
        let (payload, _fd) = Payload::create("test", 4096).unwrap();
        payload.write(100, b"0123456789").unwrap();
        let part = payload.part(100, 10).unwrap().skip(2).first(5);
        assert_eq!((part.len(), part.is_empty()), (5, false));
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(part.drain_to(&file).unwrap(), 5);
        file.write_all(b"!").unwrap();
        file.rewind().unwrap();
        assert_eq!(payload.part(0, 4096).unwrap().fill_from(&file).unwrap(), 6);
        let mut bytes = [0; 7];
        payload.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"23456!\0");
        assert_eq!(file.read(&mut bytes).unwrap(), 0);
        assert_eq!(Part::EMPTY.copy_to(&mut bytes), 0);
        assert_eq!(payload.part(4096, 0).unwrap().copy_from(&bytes), 0);
    }
}
