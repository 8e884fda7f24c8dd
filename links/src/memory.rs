//! The memory that both sides share: one sealed file in RAM, mapped by host and agent.
//!
//! # Rules of access
//!
//! 1. The peer may write any word at any time. All access therefore goes through [`AtomicU64`]
//!    words; no reference to other data is ever made into a mapping, and no word is read twice
//!    where the second read is trusted to equal the first.
//! 2. A mapping never shrinks: [`Memory::map`] refuses a file whose size is not sealed, because
//!    touching a page that the peer cut off would end this process with SIGBUS.
//! 3. A mapping is unmapped only when the last [`Memory`] of it is dropped; views hold an `Arc`.
//! 4. Lines are 64 bytes and 64-byte aligned, regions follow one another: NIC, host, extra.
//!
//! # Lent memory
//!
//! Where many processes lend memory to one agent, no page of it may be charged to the agent: a page is charged to the memory
//! cgroup of the process that touches it first. So the lender touches its pages before it lends them. The borrower maps the
//! file, adds a seal under which pages can no longer be taken away (F_SEAL_FUTURE_WRITE: no holes are punched, and nobody maps
//! the file for writing anew), and then checks once that each page is there (docs/adr/0063). Memory of a user whom the borrower
//! trusts is not sealed, so that another borrower can take over (docs/adr/0072).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use wave_core::link::{Home, LINE_BYTES, LINE_WORDS};

/// `f_type` of a file system that lives in memory and whose holes fill on touch (see statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;

const SIZE_SEALS: i32 = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
/// Seals of lent memory: see the module.
const PAGE_SEALS: i32 = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;

/// The memory of one link, mapped into this process.
#[derive(Debug)]
pub struct Memory {
    map: SharedMap,
    lines_nic: u32,
    lines_host: u32,
    lines_extra: u32,
    in_kernel: bool,
}

/// The user who lends memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lender {
    /// A stranger: the memory is sealed, so that no page can be taken away. No other process can borrow it later.
    Stranger,
    /// A user who could harm the borrower anyway: its own user, or root. The memory is not sealed, and the borrower can hand it
    /// on.
    Trusted,
}

impl Lender {
    /// Seals a file that is mapped already, if its lender is a stranger.
    pub(crate) fn seal(self, fd: BorrowedFd<'_>) -> Result<(), MapError> {
        match self {
            Lender::Stranger => keep_pages(fd),
            Lender::Trusted => Ok(()),
        }
    }
}

/// Why a file that was handed over could not be used as a link's memory.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum MapError {
    /// The peer's fault: the file does not have the offered size.
    #[error("the peer's memory file has {found} bytes, its offer says {expected}")]
    WrongSize {
        /// Bytes that the offered lines need.
        expected: u64,
        /// Length of the file in bytes.
        found: u64,
    },
    /// The peer's fault: it could shrink the file while this process uses it.
    #[error("the peer's memory file is not sealed against shrinking (seals {seals:#x})")]
    Unsealed { seals: i32 },
    /// The peer's fault: this is not a memfd of ordinary pages.
    #[error("the peer's file descriptor is not an ordinary memfd")]
    NotMemfd,
    /// The peer's fault: it keeps the file from being sealed, so that it could take pages away.
    #[error("the peer's memory file cannot be sealed against holes: {0}")]
    Unsealable(io::Error),
    /// The peer's fault: it lends pages that it has not touched.
    #[error("the peer's memory file has no page at byte {at}")]
    Hole {
        /// Offset of the first missing page.
        at: u64,
    },
    /// The caller's fault: there are no lines to map.
    #[error("a link's memory needs at least one line")]
    Empty,
    /// A system call on the memory failed.
    #[error("cannot {what} a link's memory: {source}")]
    System { what: &'static str, source: io::Error },
}

impl MapError {
    /// Whether the peer is at fault (and must be refused), not this process or system.
    pub fn is_peers_fault(&self) -> bool {
        !matches!(self, MapError::Empty | MapError::System { .. })
    }
}

impl From<MapError> for io::Error {
    fn from(error: MapError) -> io::Error {
        match error {
            MapError::System { source, .. } => source,
            MapError::Empty => io::Error::new(io::ErrorKind::InvalidInput, error),
            peers => io::Error::new(io::ErrorKind::InvalidData, peers),
        }
    }
}

impl Memory {
    /// Creates memory with this many lines in each region, all zero, and the file descriptor to hand to the peer. Pages appear
    /// when they are touched: see [`Memory::make_resident`]. The file's size is sealed. `name` is for `/proc` only.
    pub fn create(
        name: &str,
        lines_nic: u32,
        lines_host: u32,
        lines_extra: u32,
    ) -> io::Result<(Memory, OwnedFd)> {
        Memory::create_with([lines_nic, lines_host, lines_extra], |bytes| {
            sealed_memory(name, bytes)
        })
    }

    /// As [`Memory::create`], without extra lines and resident, for a peer that borrows the memory by [`Memory::map_lent`].
    pub fn create_to_lend(
        name: &str,
        lines_nic: u32,
        lines_host: u32,
    ) -> io::Result<(Memory, OwnedFd)> {
        let lines = [lines_nic, lines_host, 0];
        let (memory, fd) = Memory::create_with(lines, |bytes| memory_to_lend(name, bytes))?;
        touch(memory.words());
        Ok((memory, fd))
    }

    fn create_with(
        lines: [u32; 3],
        create: impl FnOnce(u64) -> io::Result<OwnedFd>,
    ) -> io::Result<(Memory, OwnedFd)> {
        let [lines_nic, lines_host, lines_extra] = lines;
        let bytes = bytes_of(lines_nic, lines_host, lines_extra);
        if bytes == 0 {
            return Err(MapError::Empty.into());
        }
        let fd = create(bytes)?;
        let memory = Memory::map(fd.as_fd(), lines_nic, lines_host, lines_extra)?;
        Ok((memory, fd))
    }

    /// Maps memory that a peer lends ([`Memory::create_to_lend`]), without extra lines. No page of it is charged to this
    /// process.
    ///
    /// # Errors
    /// As [`Memory::map`]; a page that is not there, or could be taken away, is the peer's fault.
    pub fn map_lent(
        fd: BorrowedFd<'_>,
        lines_nic: u32,
        lines_host: u32,
        lender: Lender,
    ) -> Result<Memory, MapError> {
        let expected = bytes_of(lines_nic, lines_host, 0);
        if expected == 0 {
            return Err(MapError::Empty);
        }
        check_size(fd, expected)?;
        let map = SharedMap::sparse(fd, expected as usize)
            .map_err(|source| MapError::System { what: "map", source })?;
        lender.seal(fd)?;
        if let Some(at) = (0..expected).step_by(PAGE_BYTES as usize).find(|at| !has_page(fd, *at)) {
            return Err(MapError::Hole { at });
        }
        Ok(Memory { map, lines_nic, lines_host, lines_extra: 0, in_kernel: false })
    }

    /// Maps memory that the peer created, with these numbers of lines: a sealed memfd, or a BPF array,
    /// which the kernel's host writes from within the kernel.
    ///
    /// # Errors
    ///
    /// Anything about the file that differs from what the peer said, or that would let the peer
    /// harm this process later, is the peer's fault: see [`MapError::is_peers_fault`].
    pub fn map(
        fd: BorrowedFd<'_>,
        lines_nic: u32,
        lines_host: u32,
        lines_extra: u32,
    ) -> Result<Memory, MapError> {
        let expected = bytes_of(lines_nic, lines_host, lines_extra);
        if expected == 0 {
            return Err(MapError::Empty);
        }
        let in_kernel = match check_sealed(fd) {
            Err(MapError::NotMemfd) if is_bpf_array(fd, expected) => true,
            checked => checked.map(|()| false)?,
        };
        if !in_kernel {
            let found =
                file_size(fd).map_err(|source| MapError::System { what: "stat", source })?;
            if found != expected {
                return Err(MapError::WrongSize { expected, found });
            }
        }
        let map = SharedMap::sparse(fd, expected as usize)
            .map_err(|source| MapError::System { what: "map", source })?;
        Ok(Memory { map, lines_nic, lines_host, lines_extra, in_kernel })
    }

    /// Makes the pages of the first lines of NIC and host memory resident, so that no later access to them waits for a page. The
    /// lines keep their values. The extra region becomes resident as a whole: a modelled link uses it with each access.
    pub fn make_resident(&self, lines: [u32; 2]) {
        for (home, lines) in [Home::Nic, Home::Host].into_iter().zip(lines) {
            touch(&self.region(home)[..lines as usize * LINE_WORDS]);
        }
        touch(self.extra());
    }

    /// Maps `bytes` bytes of a device's memory, from byte `offset` of `fd` on: one region, at home on the
    /// NIC. The caller guarantees that the file is a device's, or stands for one, and keeps its size.
    pub fn device(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<Memory> {
        let lines = u32::try_from(bytes / LINE_BYTES as u64);
        let lines_nic = lines.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let map = SharedMap::new(fd, offset, bytes as usize)?;
        Ok(Memory { map, lines_nic, lines_host: 0, lines_extra: 0, in_kernel: false })
    }

    /// Maps memory that consists of scattered pages, in order. The caller guarantees for the files the same
    /// as in [`Memory::device`], and that each page lies within its file.
    pub fn of_pages(
        pages: &[Page<'_>],
        lines_nic: u32,
        lines_host: u32,
    ) -> Result<Memory, MapError> {
        let expected = bytes_of(lines_nic, lines_host, 0);
        let found = pages.len() as u64 * PAGE_BYTES;
        if expected == 0 {
            return Err(MapError::Empty);
        }
        if expected.div_ceil(PAGE_BYTES) != pages.len() as u64 {
            return Err(MapError::WrongSize { expected, found });
        }
        let map = SharedMap::of_pages(pages)
            .map_err(|source| MapError::System { what: "map the pages of", source })?;
        Ok(Memory { map, lines_nic, lines_host, lines_extra: 0, in_kernel: false })
    }

    /// The address and the number of bytes of the mapping.
    pub(crate) fn mapped_at(&self) -> (*const u8, usize) {
        (self.map.base.as_ptr().cast_const().cast(), self.map.bytes)
    }

    /// Whether the memory belongs to the kernel, so that the other side is code in the kernel.
    pub fn is_kernels(&self) -> bool {
        self.in_kernel
    }

    /// How many lines a region has.
    pub fn lines(&self, home: Home) -> u32 {
        match home {
            Home::Nic => self.lines_nic,
            Home::Host => self.lines_host,
        }
    }

    /// How many lines the extra region has.
    pub fn lines_extra(&self) -> u32 {
        self.lines_extra
    }

    /// The words of a region, [`LINE_WORDS`] to a line.
    pub fn region(&self, home: Home) -> &[AtomicU64] {
        let nic = self.lines_nic as usize * LINE_WORDS;
        let host = self.lines_host as usize * LINE_WORDS;
        match home {
            Home::Nic => &self.map.words()[..nic],
            Home::Host => &self.map.words()[nic..nic + host],
        }
    }

    /// All words of all regions.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.map.words()
    }

    /// The words of the extra region (a modelled link's own records).
    pub fn extra(&self) -> &[AtomicU64] {
        let start = (self.lines_nic as usize + self.lines_host as usize) * LINE_WORDS;
        &self.map.words()[start..]
    }
}

/// One page of a file, to be mapped as a part of a window.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// File that the page is a part of.
    pub file: BorrowedFd<'a>,
    /// Offset of the page in the file, in bytes: a multiple of [`PAGE_BYTES`].
    pub offset: u64,
}

/// Bytes in a page, on both sides of a link.
pub const PAGE_BYTES: u64 = 4096;

/// A shared, writable mapping of a file or device; unmapped on drop. Its words are reached as atomics, or its bytes through raw
/// pointers by the rules of [`crate::payload`], never both.
#[derive(Debug)]
pub(crate) struct SharedMap {
    base: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for SharedMap {}
// SAFETY: atomic words may be used from several threads at once. `base` returns only an address: its users in `payload` copy bytes
// in one thread alone (`Payload` is not `Sync`, and a `Populator` changes no byte).
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps `bytes` from byte `offset` (a multiple of the page size) of `fd`. The caller makes
    /// sure that the file has, and keeps, that many bytes.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<SharedMap> {
        SharedMap::with_flags(fd, offset, bytes, libc::MAP_POPULATE)
    }

    /// As [`SharedMap::new`], but pages appear when they are touched.
    pub(crate) fn sparse(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<SharedMap> {
        SharedMap::with_flags(fd, 0, bytes, 0)
    }

    /// As [`SharedMap::sparse`], after mlockall(2) with MCL_FUTURE, which makes all pages of new mappings resident.
    pub(crate) fn sparse_unlocked(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<SharedMap> {
        let map = SharedMap::mapped(fd, 0, bytes, libc::PROT_NONE, 0)?;
        map.set_accessible(true);
        Ok(map)
    }

    /// Makes the mapping inaccessible: a use of its bytes faults, and no page becomes resident. Or accessible again, and not locked.
    pub(crate) fn set_accessible(&self, is_accessible: bool) {
        let at = self.base.as_ptr().cast();
        // SAFETY: this is the whole mapping, whose contents stay.
        let done = unsafe {
            match is_accessible {
                false => libc::mprotect(at, self.bytes, libc::PROT_NONE),
                true => {
                    libc::munlock(at, self.bytes);
                    libc::mprotect(at, self.bytes, libc::PROT_READ | libc::PROT_WRITE)
                }
            }
        };
        assert_eq!(done, 0, "a whole mapping can change its access");
    }

    fn with_flags(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        flags: libc::c_int,
    ) -> io::Result<SharedMap> {
        SharedMap::mapped(fd, offset, bytes, libc::PROT_READ | libc::PROT_WRITE, flags)
    }

    fn mapped(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: libc::c_int,
        flags: libc::c_int,
    ) -> io::Result<SharedMap> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing object.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                libc::MAP_SHARED | flags,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("the kernel never maps shared memory at zero");
        Ok(SharedMap { base, bytes })
    }

    /// Maps pages one after the other.
    fn of_pages(pages: &[Page<'_>]) -> io::Result<SharedMap> {
        let page = PAGE_BYTES as usize;
        let bytes = pages.len() * page;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing object.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("the kernel never maps shared memory at zero");
        let map = SharedMap { base, bytes };
        let mut at = 0;
        while let Some(first) = pages.get(at) {
            // Adjacent pages are mapped together: the number of mappings of a process is limited.
            let follows = |(index, page): &(usize, &Page<'_>)| {
                page.file.as_raw_fd() == first.file.as_raw_fd()
                    && page.offset == first.offset + *index as u64 * PAGE_BYTES
            };
            let run = pages[at..].iter().enumerate().take_while(follows).count();
            // SAFETY: it replaces pages of the mapping above, which is `bytes` long and which nobody
            // has a reference into yet.
            let got = unsafe {
                libc::mmap(
                    map.base.as_ptr().cast::<u8>().add(at * page).cast(),
                    run * page,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE,
                    first.file.as_raw_fd(),
                    first.offset as libc::off_t,
                )
            };
            if got == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            at += run;
        }
        Ok(map)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base.cast()
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `bytes` long, readable and writable for as long as
        // `self` lives (rules 2 and 3), and any bit pattern is a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes / 8) }
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and every slice of it borrowed `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Writes to each page of these words, and changes no word: the peer may write them at the same time.
fn touch(words: &[AtomicU64]) {
    let pages = words.chunks(PAGE_BYTES as usize / size_of::<AtomicU64>());
    for word in pages.filter_map(<[_]>::first).chain(words.last()) {
        // An operation that certainly changes nothing could be compiled to a read.
        word.fetch_or(std::hint::black_box(0), Relaxed);
    }
}

fn bytes_of(lines_nic: u32, lines_host: u32, lines_extra: u32) -> u64 {
    (u64::from(lines_nic) + u64::from(lines_host) + u64::from(lines_extra)) * LINE_BYTES as u64
}

/// Creates a file in memory of exactly `bytes` bytes, all zero, whose size never changes.
pub(crate) fn sealed_memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    memory_with(name, bytes, SIZE_SEALS | libc::F_SEAL_SEAL)
}

/// As [`sealed_memory`], but a borrower may seal the file further.
pub(crate) fn memory_to_lend(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    memory_with(name, bytes, SIZE_SEALS)
}

fn memory_with(name: &str, bytes: u64, seals: i32) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // Otherwise the kernel would send SIGXFSZ as well.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| bytes > most) {
        return Err(Errno::FBIG.into());
    }
    // SAFETY: `name` is a valid C string for the duration of the call.
    let raw =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    check(raw)?;
    // SAFETY: `raw` was just opened and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: the descriptor is open; no memory is involved.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) })?;
    // SAFETY: the descriptor is open; no memory is involved.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(fd)
}

/// Checks that this is a sealed memfd of exactly this many bytes.
pub(crate) fn check_size(fd: BorrowedFd<'_>, expected: u64) -> Result<(), MapError> {
    check_sealed(fd)?;
    let found = file_size(fd).map_err(|source| MapError::System { what: "stat", source })?;
    if found != expected {
        return Err(MapError::WrongSize { expected, found });
    }
    Ok(())
}

/// Seals a file that is mapped already: its pages stay until the last descriptor and mapping of the file are gone.
pub(crate) fn keep_pages(fd: BorrowedFd<'_>) -> Result<(), MapError> {
    // SAFETY: the descriptor is open; no memory is involved.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, PAGE_SEALS) })
        .map_err(MapError::Unsealable)?;
    Ok(())
}

/// Whether a file has the page that byte `at` lies in, in memory or in swap. A page that is only reserved does not count,
/// because touching it would fill it. This does not use mincore(2): to processes without rights to the file, its owner controls
/// the answer.
pub(crate) fn has_page(fd: BorrowedFd<'_>, at: u64) -> bool {
    rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(at)) == Ok(at)
}

/// Whether this is a BPF array that may be mapped, of exactly `bytes` bytes: its size never changes.
fn is_bpf_array(fd: BorrowedFd<'_>, bytes: u64) -> bool {
    const BPF_MAP_TYPE_ARRAY: u64 = 2;
    const BPF_F_MMAPABLE: u64 = 1 << 10;
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let Ok(text) = std::fs::read_to_string(path) else { return false };
    let field = |name: &str| {
        let value =
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim();
        match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => value.parse().ok(),
        }
    };
    let size = field("value_size").zip(field("max_entries")).map(|(size, count)| size * count);
    field("map_type") == Some(BPF_MAP_TYPE_ARRAY)
        && field("map_flags").is_some_and(|flags| flags & BPF_F_MMAPABLE != 0)
        && size == Some(bytes)
}

/// Checks that this is an ordinary memfd whose size cannot change any more. Only tmpfs pages fill on
/// touch after a hole was punched; huge pages may then be refused, which would be SIGBUS again.
pub(crate) fn check_sealed(fd: BorrowedFd<'_>) -> Result<(), MapError> {
    // SAFETY: the descriptor is open; no memory is involved.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return Err(MapError::NotMemfd);
    }
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(MapError::Unsealed { seals });
    }
    // SAFETY: all-zero is a valid `statfs`.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `system` is valid for writes for the duration of the call.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), &mut system) })
        .map_err(|source| MapError::System { what: "stat", source })?;
    #[allow(clippy::unnecessary_cast)] // its type differs between architectures
    if system.f_type as i64 != TMPFS_MAGIC {
        return Err(MapError::NotMemfd);
    }
    Ok(())
}

pub(crate) fn file_size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all-zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writes for the duration of the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) })?;
    Ok(stat.st_size as u64)
}

/// Locks all memory of this process, now and later, so that it never waits for a page. An agent that decides for
/// the kernel's threads must not wait: the thread that brings the page may itself wait for a decision.
pub fn stay_resident() -> io::Result<()> {
    // SAFETY: it changes no contents of memory; pages only stay resident.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) }).map(|_| ())
}

/// Turns a system call's -1 into its error.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn memfd(bytes: u64) -> OwnedFd {
        // SAFETY: a literal C string, and a descriptor that nobody else owns.
        let fd = unsafe {
            let raw =
                libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            OwnedFd::from_raw_fd(check(raw).unwrap())
        };
        let file = File::from(fd);
        file.set_len(bytes).unwrap();
        file.into()
    }

    #[test]
    fn both_mappings_see_the_same_regions() {
        let (ours, fd) = Memory::create("test", 3, 2, 1).unwrap();
        let theirs = Memory::map(fd.as_fd(), 3, 2, 1).unwrap();
        ours.region(Home::Nic)[23].store(1, Relaxed);
        ours.region(Home::Host)[0].store(2, Relaxed);
        ours.extra()[7].store(3, Relaxed);
        assert_eq!(theirs.region(Home::Nic)[23].load(Relaxed), 1);
        assert_eq!(theirs.region(Home::Host)[0].load(Relaxed), 2);
        assert_eq!(theirs.extra()[7].load(Relaxed), 3);
        assert_eq!(theirs.extra().len(), 8);
        assert_eq!(theirs.lines(Home::Nic), 3);
    }

    #[test]
    fn pages_are_resident_where_that_was_asked_for_and_keep_their_values() {
        // The regions share pages.
        let (memory, fd) = Memory::create("test", 100, 200, 0).unwrap();
        memory.region(Home::Nic)[0].store(7, Relaxed);
        let resident = || {
            let pages = (0..300 * LINE_BYTES as u64).step_by(PAGE_BYTES as usize);
            pages.map(|at| has_page(fd.as_fd(), at)).collect::<Vec<_>>()
        };
        assert_eq!(resident(), [true, false, false, false, false]);
        memory.make_resident([100, 0]);
        assert_eq!(resident(), [true, true, false, false, false]);
        memory.make_resident([0, 92]);
        assert_eq!(resident(), [true, true, true, false, false]);
        memory.make_resident([0, 93]);
        assert_eq!(resident(), [true, true, true, true, false]);
        assert_eq!(memory.region(Home::Nic)[0].load(Relaxed), 7);
        let (_lent, fd) = Memory::create_to_lend("test", 64, 64).unwrap();
        assert!(has_page(fd.as_fd(), 0) && has_page(fd.as_fd(), PAGE_BYTES));
        let (modelled, fd) = Memory::create("test", 64, 64, 64).unwrap();
        modelled.make_resident([0, 0]);
        assert!(!has_page(fd.as_fd(), PAGE_BYTES) && has_page(fd.as_fd(), 2 * PAGE_BYTES));
    }

    #[test]
    fn a_created_file_keeps_its_size() {
        let (_memory, fd) = Memory::create("test", 100, 0, 0).unwrap();
        let file = File::from(fd);
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(1 << 20).is_err());
    }

    #[test]
    fn a_file_of_another_size_is_the_peers_fault() {
        let (_memory, fd) = Memory::create("test", 100, 0, 0).unwrap();
        let error = Memory::map(fd.as_fd(), 101, 0, 0).unwrap_err();
        assert!(matches!(error, MapError::WrongSize { expected: 6464, found: 6400 }));
        assert!(error.is_peers_fault());
    }

    #[test]
    fn a_file_that_can_shrink_is_the_peers_fault() {
        let error = Memory::map(memfd(6400).as_fd(), 100, 0, 0).unwrap_err();
        assert!(matches!(error, MapError::Unsealed { .. }));
        assert!(error.is_peers_fault());
    }

    #[test]
    fn lent_lines_are_resident_and_stay() {
        let (ours, fd) = Memory::create_to_lend("test", 64, 64).unwrap();
        let theirs = Memory::map_lent(fd.as_fd(), 64, 64, Lender::Stranger).unwrap();
        ours.region(Home::Host)[5].store(1, Relaxed);
        assert_eq!(theirs.region(Home::Host)[5].load(Relaxed), 1);
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&fd, punch, 0, 4096), Err(rustix::io::Errno::PERM));

        let empty = memory_to_lend("test", 8192).unwrap();
        let error = Memory::map_lent(empty.as_fd(), 64, 64, Lender::Stranger).unwrap_err();
        assert!(matches!(error, MapError::Hole { at: 0 }) && error.is_peers_fault(), "{error}");
        let (_ours, sealed) = Memory::create("test", 64, 64, 0).unwrap();
        let error = Memory::map_lent(sealed.as_fd(), 64, 64, Lender::Stranger).unwrap_err();
        assert!(matches!(error, MapError::Unsealable(_)) && error.is_peers_fault(), "{error}");
    }

    #[test]
    fn a_device_is_the_peers_fault() {
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        let error = Memory::map(zero.as_fd(), 1, 0, 0).unwrap_err();
        assert!(matches!(error, MapError::NotMemfd));
    }

    #[test]
    fn empty_memory_is_the_callers_fault() {
        let error = Memory::map(memfd(0).as_fd(), 0, 0, 0).unwrap_err();
        assert!(!error.is_peers_fault());
    }
}
