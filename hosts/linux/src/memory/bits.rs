//! Reads accessed bits of another process's pages, by the best backend that this kernel supports.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;

use super::advise::{Advice, AdviseError, Advised, advise};
use super::pages::Pages;
use super::pattern::{self, Marked};
use super::process::Process;
pub use super::shared::Strip;
use super::shared::{BITS, DONE, NOT_RUN, STRIPS_MAX, TABLES};

/// Bytes of a strip: 64 batches of 64 pages of 4 KiB.
pub const STRIP_BYTES: u64 = 16 << 20;
/// Most strips read in one call under the lock, while the process cannot map memory: it takes less than a millisecond.
const LOCKED_STRIPS_MAX: usize = 64;
/// Programs' addresses are below this, also with five-level page tables.
const ADDRESSES_END: u64 = 1 << 56;
/// Bits of a page table entry that can be its frame's address.
const FRAMES: u64 = 0x000f_ffff_ffff_f000;

/// How accessed bits are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// A BPF program, called directly, that reads the page table without a lock. Tested on Linux 6.18 and 7.2.
    Walk,
    /// A BPF iterator that reads the page table while the process's mappings are locked, for kernels on which BPF programs
    /// cannot look up a process. Tested on Linux 6.18 and 7.2.
    Iterator,
}

impl Backend {
    /// All backends, the best first.
    pub const ALL: [Backend; 2] = [Backend::Walk, Backend::Iterator];

    /// The backend's name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Walk => "walk",
            Backend::Iterator => "iterator",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Walk => "page table walk (BPF)",
            Backend::Iterator => "page table walk under lock (BPF iterator)",
        })
    }
}

/// Why accessed bits cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum BitsError {
    /// The process has ended, or has executed another program. Nothing was read.
    #[error("the process has ended or has executed another program: read its mappings again")]
    Changed,
    /// This backend does not work on this machine.
    #[error("cannot read accessed bits by {backend}: {why}")]
    NotHere { backend: Backend, why: String },
    /// No backend works on this machine.
    #[error(
        "cannot read accessed bits of other processes; run this as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, \
         CAP_SYS_NICE and CAP_SYS_ADMIN: {0}"
    )]
    Nowhere(String),
    /// A backend that worked at first has failed.
    #[error("cannot read a page table: {0}; this worked when the backend was chosen")]
    Reading(io::Error),
}

/// Reads and clears accessed bits. Each page has a single bit that all share: the kernel's own aging and DAMON, where
/// it runs, clear bits too, so an accessed page may be reported as not accessed.
#[derive(Debug)]
pub struct AccessBits {
    backend: Backend,
    pages: Pages,
}

impl AccessBits {
    /// Tries every backend on this process, with pages that are known to have been touched.
    pub fn probe() -> Vec<(Backend, Result<(), String>)> {
        let tried = Backend::ALL.map(|backend| (backend, AccessBits::tried(backend).map(|_| ())));
        tried.into()
    }

    /// Opens the best backend that works on this machine.
    pub fn open() -> Result<AccessBits, BitsError> {
        let mut reasons = Vec::new();
        for backend in Backend::ALL {
            match AccessBits::tried(backend) {
                Ok(bits) => return Ok(bits),
                Err(why) => reasons.push(format!("{backend}: {why}")),
            }
        }
        Err(BitsError::Nowhere(reasons.join("; ")))
    }

    /// Opens this backend, if it works on this machine.
    pub fn with(backend: Backend) -> Result<AccessBits, BitsError> {
        AccessBits::tried(backend).map_err(|why| BitsError::NotHere { backend, why })
    }

    /// The backend in use.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Reads the strips at these addresses, which are multiples of [`STRIP_BYTES`], of the address space `space` (see
    /// [`super::Map`]). Afterwards `strips` has one for each address, or is empty after an error. Pages that are mapped or
    /// unmapped meanwhile may be reported as not present.
    pub fn read(
        &mut self,
        process: &Process,
        space: u64,
        addresses: &[u64],
        strips: &mut Vec<Strip>,
    ) -> Result<(), BitsError> {
        strips.clear();
        let right = |address: &u64| address.is_multiple_of(STRIP_BYTES) && *address < ADDRESSES_END;
        assert!(addresses.iter().all(right), "an address is not the start of a strip");
        let at_once = match self.backend {
            Backend::Walk => STRIPS_MAX,
            Backend::Iterator => LOCKED_STRIPS_MAX,
        };
        for addresses in addresses.chunks(at_once) {
            let exchange = self.pages.exchange();
            exchange.wanted = BITS;
            exchange.count = addresses.len() as u32;
            exchange.addresses[..addresses.len()].copy_from_slice(addresses);
            let result = self.run_on(process, space);
            if result.is_err() {
                strips.clear();
                return result;
            }
            let exchange = self.pages.exchange();
            strips.extend_from_slice(&exchange.strips[..addresses.len()]);
        }
        Ok(())
    }

    /// Finds the strips in this range of addresses that have a page table or a huge page, so that memory is or was
    /// mapped in them. Returns addresses of GiBs, each with a bit per strip. Holes cost next to nothing.
    pub(super) fn find_tables(
        &mut self,
        process: &Process,
        space: u64,
        range: Range<u64>,
    ) -> Result<BTreeMap<u64, u64>, BitsError> {
        let mut strips = BTreeMap::new();
        let end = range.end.min(ADDRESSES_END);
        let mut start = range.start;
        while start < end {
            let exchange = self.pages.exchange();
            (exchange.wanted, exchange.count) = (TABLES, 0);
            (exchange.start, exchange.end) = (start, end);
            self.run_on(process, space)?;
            let exchange = self.pages.exchange();
            let found =
                exchange.addresses.iter().zip(exchange.tables).take(exchange.count as usize);
            strips.extend(found.map(|(gib, tables)| (*gib, tables)));
            if exchange.start <= start {
                break;
            }
            start = exchange.start;
        }
        Ok(strips)
    }

    /// Runs the program on an address space of this process.
    fn run_on(&mut self, process: &Process, space: u64) -> Result<(), BitsError> {
        let exchange = self.pages.exchange();
        (exchange.pid, exchange.space) = (process.pid(), space);
        let read = self.run(process);
        // If it is alive, its id was not reused.
        let changed = self.pages.exchange().state != DONE || !process.is_alive();
        match read {
            _ if changed => Err(BitsError::Changed),
            read => read.map_err(BitsError::Reading),
        }
    }

    /// Clears the bits of ranges, like [`Advice::Cold`]. A range must cover huge pages as a whole, or the kernel splits them.
    pub fn clear(&self, process: &Process, ranges: &[Range<u64>]) -> Result<Advised, AdviseError> {
        advise(process, Advice::Cold, ranges)
    }

    fn run(&mut self, process: &Process) -> io::Result<()> {
        self.pages.exchange().state = NOT_RUN;
        match self.backend {
            Backend::Walk => self.pages.run("walk"),
            Backend::Iterator => {
                let mut answer = [0; 8];
                // The program fills the buffer at once, so that the kernel releases the lock.
                self.pages.iterate("walk_locked", process.as_fd())?.read(&mut answer).map(|_| ())
            }
        }
    }

    fn tried(backend: Backend) -> Result<AccessBits, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err(format!("page tables of {} are not supported yet", std::env::consts::ARCH));
        }
        let program = match backend {
            Backend::Walk => "walk",
            Backend::Iterator => "walk_locked",
        };
        let pages = Pages::load(&[program, "find_direct_map"])?;
        let mut bits = AccessBits { backend, pages };
        bits.find_direct_map()?;
        let mut why = String::new();
        for (levels, frames) in page_tables() {
            let exchange = bits.pages.exchange();
            (exchange.levels, exchange.frames) = (levels, frames);
            match pattern::prove(&mut bits) {
                Ok(()) => return Ok(bits),
                Err(wrong) => why = wrong,
            }
        }
        Err(why)
    }

    /// Finds where the kernel maps all memory, by a page of this process whose frame is known.
    fn find_direct_map(&mut self) -> Result<(), String> {
        let page = Marked::new()?;
        let exchange = self.pages.exchange();
        exchange.mark = page.mark();
        exchange.marked = page.address_of_frame()?;
        let ran = self.pages.run("find_direct_map");
        ran.map_err(|error| format!("looking for the kernel's mapping of memory: {error}"))?;
        match self.pages.exchange().state {
            DONE => Ok(()),
            _ => Err("where the kernel maps memory is not found: it may be locked down \
                      (/sys/kernel/security/lockdown)"
                .to_owned()),
        }
    }
}

/// Possible formats of page tables: levels, and the bits of a frame's address. The caller tries them in turn.
fn page_tables() -> Vec<(u32, u64)> {
    let mut frames = vec![FRAMES];
    frames.extend(encryption_bit().map(|bit| FRAMES & !bit));
    let with = |levels| frames.iter().map(move |frames| (levels, *frames));
    [4, 5].into_iter().flat_map(with).collect()
}

/// AMD: the bit in a frame's address that marks it as encrypted.
#[cfg(target_arch = "x86_64")]
fn encryption_bit() -> Option<u64> {
    const LEAF: u32 = 0x8000_001f;
    if std::arch::x86_64::__cpuid(0x8000_0000).eax < LEAF {
        return None;
    }
    let leaf = std::arch::x86_64::__cpuid(LEAF);
    (leaf.eax & 3 != 0).then_some(1 << (leaf.ebx & 63))
}

#[cfg(not(target_arch = "x86_64"))]
fn encryption_bit() -> Option<u64> {
    None
}
