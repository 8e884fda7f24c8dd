//! `wave tcp run`: starts a program whose sockets at the agent's address are the agent's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, elf};
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use wave_experiments::run::Failure;

use super::default_socket;
use super::sanitizers;
use super::ss::ask;

/// File name of the library to preload. It is in this program's folder or in `../lib`.
const LIBRARY: &str = "libwave_toe.so";
/// Environment variables that tell the library the agent's socket and addresses.
const SOCKET: &str = "WAVE_TOE_SOCKET";
const ADDRESSES: &str = "WAVE_TOE_ADDRESSES";
/// Maximum depth of nested interpreter scripts.
const SCRIPTS_MAX: u32 = 4;
/// io_uring_setup(2), the same on every architecture.
const IO_URING_SETUP: i64 = 425;

#[derive(Args, Debug)]
#[command(
    after_help = "Sockets that the program binds to the agent's address, or connects to other hosts in the agent's network, are the
agent's; those that listen at an unspecified address (0.0.0.0, ::) serve both. All others stay the kernel's.
The program needs no change and no privileges beyond those for the agent's socket.

io_uring is off for the program, since it bypasses the library. Static programs, Go programs and setuid programs
are refused.

Examples:
  wave tcp run -- redis-server --bind 10.77.0.2 --protected-mode no
  wave tcp run -- curl http://10.77.0.1:8000/
  wave tcp run --socket ~/toe.sock -- python3 server.py

Exit codes: those of the program; 2 bad arguments; 3 no agent answers, or the program cannot be run over it."
)]
pub struct RunArgs {
    /// The agent's device.
    #[arg(long, visible_alias = "interface", value_name = "NAME", default_value = "toe0")]
    tap: String,
    /// The agent's socket [default: /run/wave-NAME.sock].
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    words: Vec<OsString>,
}

/// Replaces this process with the program.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let (program, words) = args.words.split_first().expect("clap asks for one");
    let found = find(program)?;
    let about = check(&found, SCRIPTS_MAX)?;
    let library = library()?;
    let door = args.socket.clone().unwrap_or_else(|| default_socket(&args.tap));
    let report = ask(&door)?;
    let addresses = ["address", "address6"].map(|key| report[key].as_str());
    let addresses: Vec<&str> = addresses.into_iter().flatten().collect();
    let door = std::path::absolute(&door).map_err(Failure::cannot)?;

    let before = std::env::var_os("LD_PRELOAD");
    let preload = sanitizers::preload(library.into_os_string(), &about.needed, before);
    deny_io_uring()?;
    let error = Command::new(&found)
        .arg0(program)
        .args(words)
        .env("LD_PRELOAD", preload)
        .env("ASAN_OPTIONS", sanitizers::options(std::env::var_os("ASAN_OPTIONS")))
        .env(SOCKET, door)
        .env(ADDRESSES, addresses.join(","))
        .exec();
    Err(Failure::cannot(format!("{}: {error}", found.display())))
}

/// The program's file, as execvp(3) finds it.
fn find(program: &OsStr) -> Result<PathBuf, Failure> {
    if program.as_bytes().contains(&b'/') {
        return Ok(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |file: &PathBuf| {
        let about = std::fs::metadata(file);
        about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(is_program);
    found.ok_or_else(|| {
        Failure::cannot(format!("there is no program {} in PATH", program.display()))
    })
}

/// Refuses programs into which the loader preloads no library, or which call the kernel without the C library. Returns facts of the ELF
/// file: the interpreter's, if the program is a script.
fn check(file: &Path, scripts: u32) -> Result<About, Failure> {
    let name = file.display();
    let cannot = |why: &str| Failure::cannot(format!("{name} {why}"));
    let bytes = std::fs::read(file).map_err(|error| Failure::cannot(format!("{name}: {error}")))?;
    let mode = std::fs::metadata(file).map_err(Failure::cannot)?.permissions().mode();
    let mut attribute = [0_u8; 64];
    let has_capabilities = !matches!(
        rustix::fs::getxattr(file, "security.capability", &mut attribute),
        Err(_) | Ok(0)
    );
    if mode & 0o6000 != 0 || has_capabilities {
        return Err(cannot(
            "gains privileges when it starts (setuid, setgid or file capabilities), so the loader ignores preloaded libraries",
        ));
    }
    if let Some(rest) = bytes.strip_prefix(b"#!") {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words =
            line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let interpreter =
            words.next().ok_or_else(|| cannot("starts with `#!` but names no interpreter"))?;
        if scripts == 0 {
            return Err(cannot("nests interpreter scripts too deeply"));
        }
        // `env` starts the interpreter that is in PATH.
        let interpreter = match words.next() {
            Some(word) if interpreter.ends_with(b"/env") && !word.starts_with(b"-") => {
                find(OsStr::from_bytes(word))?
            }
            _ => PathBuf::from(OsStr::from_bytes(interpreter)),
        };
        return check(&interpreter, scripts - 1);
    }
    let header = elf::FileHeader64::<Endianness>::parse(&*bytes)
        .map_err(|_| cannot("is neither a 64-bit ELF program nor a script"))?;
    let about = inspect(header, &bytes).map_err(|_| cannot("is a damaged ELF program"))?;
    if about.machine != own_machine() {
        return Err(cannot("is a program for another processor"));
    }
    if about.is_go {
        return Err(cannot(
            "is a Go program, which calls the kernel without the C library, so its sockets cannot be taken over",
        ));
    }
    match &about.interpreter {
        None => Err(cannot(
            "is statically linked, so no library can be preloaded and its sockets cannot be taken over",
        )),
        Some(loader) if loader.windows(7).any(|word| word == b"ld-musl") => {
            Err(cannot("uses musl, and libwave_toe.so is built for glibc"))
        }
        Some(_) => Ok(about),
    }
}

/// Relevant facts of an ELF file.
struct About {
    machine: elf::Machine,
    interpreter: Option<Vec<u8>>,
    is_go: bool,
    /// The libraries that it is linked to.
    needed: Vec<Vec<u8>>,
}

fn inspect(header: &elf::FileHeader64<Endianness>, bytes: &[u8]) -> object::Result<About> {
    let endian = header.endian()?;
    let mut interpreter = None;
    for segment in header.program_headers(endian, bytes)? {
        if let Some(path) = segment.interpreter(endian, bytes)? {
            interpreter = Some(path.to_vec());
        }
    }
    let sections = header.sections(endian, bytes)?;
    let is_go = sections.iter().any(|section| {
        let name = sections.section_name(endian, section);
        name.is_ok_and(|name| name == b".note.go.buildid" || name == b".go.buildinfo")
            && section.sh_size(endian) > 0
    });
    let mut needed = Vec::new();
    if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, strings)?;
        for entry in entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
            needed.push(entry.string(endian, strings)?.to_vec());
        }
    }
    Ok(About { machine: header.e_machine(endian), interpreter, is_go, needed })
}

/// The processor that `wave` was built for.
fn own_machine() -> elf::Machine {
    match std::env::consts::ARCH {
        "aarch64" => elf::EM_AARCH64,
        _ => elf::EM_X86_64,
    }
}

fn library() -> Result<PathBuf, Failure> {
    let wave = std::env::current_exe().map_err(Failure::cannot)?;
    let beside = wave.with_file_name(LIBRARY);
    let installed = wave.parent().and_then(Path::parent).map(|root| root.join("lib").join(LIBRARY));
    let found = [Some(beside.clone()), installed].into_iter().flatten().find(|path| path.exists());
    let Some(found) = found else {
        let profile = if cfg!(debug_assertions) { "" } else { "--release " };
        let how = format!("cargo build {profile}--package wave-preload");
        return Err(Failure::cannot(format!(
            "{} is not there: build it with `{how}`",
            beside.display()
        )));
    };
    // LD_PRELOAD is a list separated by spaces or colons, without quoting.
    if found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        let path = found.display();
        return Err(Failure::cannot(format!(
            "{path}: LD_PRELOAD does not support spaces or colons in a path: move the library"
        )));
    }
    Ok(found)
}

/// Makes io_uring_setup(2) fail with ENOSYS in this process and its children, so that programs fall back to socket calls.
fn deny_io_uring() -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::cannot(format!("cannot turn io_uring off for the program: {error}"))
    };
    let arch = std::env::consts::ARCH.try_into().map_err(|error| failed(&error))?;
    let filter = SeccompFilter::new(
        BTreeMap::from([(IO_URING_SETUP, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(Errno::NOSYS.raw_os_error() as u32),
        arch,
    );
    let filter = filter.map_err(|error| failed(&error))?;
    let program: BpfProgram = filter.try_into().map_err(|error| failed(&error))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(&error))
}
