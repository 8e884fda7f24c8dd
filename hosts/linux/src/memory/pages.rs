//! The BPF programs of `bpf/pages.bpf.c`, and the memory shared with them.

use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use libbpf_rs::{MapCore, Object, ObjectBuilder, ProgramInput, libbpf_sys};

use super::shared::{BATCHES, Exchange, Strip};
use crate::bpf::{self, Refusal};

const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pages.bpf.o"));
const BTF: &str = "/sys/kernel/btf/vmlinux";

impl Strip {
    /// A strip with no page present.
    pub const EMPTY: Strip = Strip { young: [0; BATCHES], present: [0; BATCHES], huge: 0 };
}

/// The loaded BPF programs.
pub(super) struct Pages {
    exchange: NonNull<Exchange>,
    object: Object,
}

// SAFETY: the memory at `exchange` belongs to this value alone, which is not `Sync`; the rest is `Send` by itself.
unsafe impl Send for Pages {}

/// Records of a BPF program, which runs while they are read. It borrows the programs: their [`Exchange`] is out of reach meanwhile.
pub(super) struct Records<'a> {
    file: File,
    _programs: PhantomData<&'a mut Pages>,
}

impl Read for Records<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.file.read(into)
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    /// Loads the named programs. The error is a message.
    pub(super) fn load(programs: &[&str]) -> Result<Pages, String> {
        if !Path::new(BTF).exists() {
            return Err(format!(
                "{BTF} is missing: the kernel must be built with CONFIG_DEBUG_INFO_BTF"
            ));
        }
        let load = || {
            let mut open = ObjectBuilder::default().name("wave_pages")?.open_memory(PROGRAMS)?;
            for mut program in open.progs_mut() {
                let wanted = programs.iter().any(|name| program.name() == *name);
                program.set_autoload(wanted);
            }
            let object = open.load()?;
            let exchange = map_exchange(&object)?;
            Ok(Pages { exchange, object })
        };
        bpf::load(load).map_err(|refusal| match refusal {
            Refusal::NotPermitted => {
                "the kernel does not let this process load BPF programs: run it as root, or \
                                      give the binary CAP_BPF and CAP_PERFMON"
                    .to_owned()
            }
            Refusal::Other(words) => format!("the kernel refuses the BPF program: {words}"),
        })
    }

    /// Memory shared with the BPF programs, which run only inside [`Pages::run`] and while [`Records`] are read.
    pub(super) fn exchange(&mut self) -> &mut Exchange {
        // SAFETY: mapped for as long as this value lives, as large as `Exchange`, which is valid for all
        // bytes. The programs write to it only inside `run` and during reads of `Records`; both borrow `self` mutably, so no
        // reference to it exists then.
        unsafe { self.exchange.as_mut() }
    }

    pub(super) fn run(&mut self, name: &'static str) -> io::Result<()> {
        let program = self.object.progs_mut().find(|program| program.name() == name);
        let program = program.ok_or_else(|| missing(name))?;
        program.test_run(ProgramInput::default()).map(|_| ()).map_err(io::Error::other)
    }

    /// Begins to iterate over a process's mappings. The kernel runs the program while the records are read.
    pub(super) fn iterate(
        &mut self,
        name: &'static str,
        process: BorrowedFd<'_>,
    ) -> io::Result<Records<'_>> {
        let program = self.object.progs().find(|program| program.name() == name);
        let program = program.ok_or_else(|| missing(name))?;
        let mut whose = libbpf_sys::bpf_iter_link_info::default();
        whose.task.pid_fd = process.as_raw_fd() as u32;
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            iter_info: &raw mut whose,
            iter_info_len: size_of_val(&whose) as u32,
            ..Default::default()
        };
        let kind = libbpf_sys::BPF_TRACE_ITER;
        // SAFETY: both calls take descriptors and `options`, which lives until they return; they return
        // a descriptor that nothing else owns, or an error.
        let iterator = unsafe {
            let link =
                owned(libbpf_sys::bpf_link_create(program.as_fd().as_raw_fd(), 0, kind, &options))?;
            owned(libbpf_sys::bpf_iter_create(link.as_raw_fd()))?
        };
        Ok(Records { file: File::from(iterator), _programs: PhantomData })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_exchange` with this size, and not used any more.
        unsafe { libc::munmap(self.exchange.as_ptr().cast(), size_of::<Exchange>()) };
    }
}

/// Takes ownership of a descriptor that libbpf returned; a negative one is an error.
///
/// # Safety
///
/// Nothing else may own the descriptor.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    match fd {
        // SAFETY: the caller guarantees it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

fn map_exchange(object: &Object) -> libbpf_rs::Result<NonNull<Exchange>> {
    let mut maps = object.maps();
    let map = maps.find(|map| map.name().to_string_lossy().ends_with(".bss"));
    let map = map.ok_or_else(|| missing("exchange"))?;
    if (map.value_size() as usize) < size_of::<Exchange>() {
        return Err(missing("exchange of this size").into());
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let fd = map.as_fd().as_raw_fd();
    // SAFETY: asks for a new mapping of the map, whose size was just checked.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), size_of::<Exchange>(), access, libc::MAP_SHARED, fd, 0)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error().into());
    }
    NonNull::new(at.cast()).ok_or_else(|| missing("exchange").into())
}

fn missing(what: &str) -> io::Error {
    io::Error::other(format!("the BPF programs have no `{what}`"))
}
