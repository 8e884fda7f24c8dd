//! Memory of this process in known states, to test which backends work on this machine.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use super::advise::{Advice, advise};
use super::areas::Areas;
use super::bits::{AccessBits, STRIP_BYTES, Strip};
use super::process::Process;
use super::shared::MARK_WORDS;

const PAGE_BYTES: usize = 4096;
/// Number of a strip's pages that are used.
const PAGES: usize = 64 * 12;
/// Attempts: the kernel may take pages away meanwhile, and its DAMON clears bits of pages that it samples.
const TRIES: usize = 8;

/// Anonymous memory of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(super) fn new(bytes: usize) -> Result<Mapping, String> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: asks for a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(failed("mmap"));
        }
        Ok(Mapping { at: NonNull::new(at.cast()).ok_or("mmap at 0")?, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and not used any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// A locked page with unique contents.
pub(super) struct Marked {
    page: Mapping,
    mark: [u64; MARK_WORDS],
}

impl Marked {
    pub(super) fn new() -> Result<Marked, String> {
        let page = Mapping::new(PAGE_BYTES)?;
        // SAFETY: the page is ours; it is unlocked when it is unmapped.
        if unsafe { libc::mlock(page.at.as_ptr().cast(), PAGE_BYTES) } != 0 {
            return Err(failed("mlock"));
        }
        let mut random = [0; MARK_WORDS * 8];
        let source = std::fs::File::open("/dev/urandom");
        let read = source.and_then(|mut source| source.read_exact(&mut random));
        read.map_err(|error| format!("/dev/urandom: {error}"))?;
        let (words, _) = random.as_chunks::<8>();
        let mark = std::array::from_fn(|at| u64::from_ne_bytes(words[at]));
        for (at, word) in mark.iter().enumerate() {
            // SAFETY: within the page, which is ours and aligned.
            unsafe { page.at.as_ptr().cast::<u64>().add(at).write_volatile(!word) };
        }
        Ok(Marked { page, mark })
    }

    /// The complement of the page's contents, so that no other page holds them.
    pub(super) fn mark(&self) -> [u64; MARK_WORDS] {
        self.mark
    }

    /// The physical address of the page.
    pub(super) fn address_of_frame(&self) -> Result<u64, String> {
        let path = "/proc/self/pagemap";
        let mut entry = [0; 8];
        let offset = self.page.at.as_ptr() as u64 / PAGE_BYTES as u64 * 8;
        let file = std::fs::File::open(path);
        let read = file.and_then(|file| file.read_exact_at(&mut entry, offset));
        read.map_err(|error| format!("{path}: {error}"))?;
        match u64::from_ne_bytes(entry) & ((1 << 55) - 1) {
            0 => Err(format!("{path} hides physical addresses: this needs CAP_SYS_ADMIN")),
            frame => Ok(frame * PAGE_BYTES as u64),
        }
    }
}

/// Checks that exactly the touched pages are found: twice, with the bits cleared in between.
pub(super) fn prove(bits: &mut AccessBits) -> Result<(), String> {
    let process = Process::ourselves().map_err(|error| error.to_string())?;
    let space = Areas::open().map(&process).map_err(|error| error.to_string())?.space;
    let mut why = String::new();
    for _ in 0..TRIES {
        match prove_once(bits, &process, space) {
            Ok(()) => return Ok(()),
            Err(wrong) => why = wrong,
        }
    }
    Err(why)
}

fn prove_once(bits: &mut AccessBits, process: &Process, space: u64) -> Result<(), String> {
    // Large enough to contain a whole strip.
    let mapping = Mapping::new(2 * STRIP_BYTES as usize)?;
    let start = (mapping.at.as_ptr() as u64).next_multiple_of(STRIP_BYTES);
    let pages = start as *mut u8;
    // SAFETY: within the mapping, which is ours.
    unsafe { libc::madvise(pages.cast(), STRIP_BYTES as usize, libc::MADV_NOHUGEPAGE) };
    let touch = |which: &dyn Fn(usize) -> bool| {
        for page in (0..PAGES).filter(|page| which(*page)) {
            // SAFETY: within the mapping, which is ours.
            unsafe { pages.add(page * PAGE_BYTES).write_volatile(1) };
        }
    };
    let words = |which: &dyn Fn(usize) -> bool| {
        let mut words = [0_u64; 64];
        for page in (0..PAGES).filter(|page| which(*page)) {
            words[page / 64] |= 1 << (page % 64);
        }
        words
    };
    let mut strips = Vec::new();
    let mut expect = |young: &dyn Fn(usize) -> bool, what: &str| {
        let read = bits.read(process, space, &[start], &mut strips);
        read.map_err(|error| format!("cannot read this process's own page table: {error}"))?;
        let mut expected = Strip::EMPTY;
        expected.young = words(young);
        expected.present = words(&first);
        match strips[..] == [expected] {
            true => Ok(()),
            false => Err(format!(
                "reading a known pattern of {what} from the page table gives another result"
            )),
        }
    };
    touch(&first);
    expect(&first, "pages present")?;
    let range = start..start + STRIP_BYTES;
    let cleared = advise(process, Advice::Cold, &[range]).map_err(|error| error.to_string())?;
    if let Some((_, error)) = cleared.refused {
        return Err(format!("MADV_COLD on this process: {error}"));
    }
    expect(&|_| false, "cleared pages")?;
    touch(&second);
    expect(&second, "pages accessed")
}

/// Every second page of the first batch, every third of the next, and so on: no two batches are alike.
fn first(page: usize) -> bool {
    page.is_multiple_of(2 + page / 64)
}

fn second(page: usize) -> bool {
    first(page) && page.is_multiple_of(3)
}
