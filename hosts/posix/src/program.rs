//! Whether a program loads a library that is preloaded, by its file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, elf};
use rustix::fs::OFlags;

/// Maximum depth of nested interpreter scripts.
const SCRIPTS_MAX: u32 = 4;
/// Bytes that the kernel reads of a script's first line.
const FIRST_LINE_MAX: u64 = 256;

/// Facts of a program that loads preloaded libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The libraries that it is linked to; the interpreter's, if it is a script.
    pub needed: Vec<Vec<u8>>,
}

/// Why a program does not load a preloaded library, or would bypass it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// setuid, setgid, or with file capabilities.
    #[error(
        "gains privileges when it starts (setuid, setgid or file capabilities), so the loader ignores preloaded libraries"
    )]
    GainsPrivileges,
    /// A script whose first line ends after `#!`.
    #[error("starts with `#!` but names no interpreter")]
    NoInterpreter,
    /// A script of `env`, whose interpreter is not there.
    #[error("names an interpreter that is not in PATH")]
    InterpreterNotFound,
    /// A script whose interpreter is a script, and so on.
    #[error("nests interpreter scripts too deeply")]
    Nested,
    /// Not an ELF file of 64 bits.
    #[error("is neither a 64-bit ELF program nor a script")]
    NotProgram,
    /// An ELF file whose tables point outside it.
    #[error("is a damaged ELF program")]
    Damaged,
    /// An ELF file for another processor than this one.
    #[error("is a program for another processor")]
    OtherProcessor,
    /// Built by Go's tools.
    #[error(
        "is a Go program, which calls the kernel without the C library, so its sockets cannot be taken over"
    )]
    Go,
    /// An ELF file that names no loader.
    #[error(
        "is statically linked, so no library can be preloaded and its sockets cannot be taken over"
    )]
    Static,
    /// An ELF file with the loader of musl.
    #[error("uses musl, and libwave_toe.so is built for glibc")]
    Musl,
}

/// A program that cannot be inspected, or that does not load a preloaded library.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It cannot be read.
    #[error("{}: {error}", .file.display())]
    Unreadable {
        /// The program's file, or its interpreter's.
        file: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It loads no preloaded library.
    #[error("{} {why}", .file.display())]
    Unfit {
        /// The program's file, or its interpreter's.
        file: PathBuf,
        /// Why not.
        why: Unfit,
    },
}

/// The file of a program, as execvp(3) finds it. `path`: the value of PATH.
pub fn find_program(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let is_program = |file: &PathBuf| {
        let about = std::fs::metadata(file);
        about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).map(|folder| folder.join(name)).find(is_program)
}

/// Inspects a program's file. Of large files, it reads only the parts that matter.
///
/// # Errors
/// The program loads no preloaded library, or calls the kernel without the C library; or its file cannot be read.
pub fn inspect_program(file: &Path) -> Result<Program, ProgramError> {
    inspect(file, SCRIPTS_MAX)
}

fn inspect(file: &Path, scripts: u32) -> Result<Program, ProgramError> {
    let unreadable = |error| ProgramError::Unreadable { file: file.into(), error };
    let unfit = |why| ProgramError::Unfit { file: file.into(), why };
    let opened = open(file).map_err(unreadable)?.ok_or_else(|| unfit(Unfit::NotProgram))?;
    if gains_privileges(&opened).map_err(unreadable)? {
        return Err(unfit(Unfit::GainsPrivileges));
    }
    let mut start = Vec::new();
    (&opened).take(FIRST_LINE_MAX).read_to_end(&mut start).map_err(unreadable)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let interpreter = interpreter_of(line).map_err(unfit)?;
        return match scripts {
            0 => Err(unfit(Unfit::Nested)),
            _ => inspect(&interpreter, scripts - 1),
        };
    }
    inspect_elf(&ReadCache::new(opened)).map_err(unfit)
}

/// Opens a regular file; `None` if it is something else, such as a FIFO, whose open(2) could wait for ever.
fn open(file: &Path) -> io::Result<Option<File>> {
    if !std::fs::metadata(file)?.is_file() {
        return Ok(None);
    }
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).custom_flags(nonblocking).open(file).map(Some)
}

fn gains_privileges(file: &File) -> io::Result<bool> {
    let mode = file.metadata()?.permissions().mode();
    let mut attribute = [0_u8; 64];
    let found = rustix::fs::fgetxattr(file, "security.capability", &mut attribute);
    Ok(mode & 0o6000 != 0 || found.is_ok_and(|bytes| bytes > 0))
}

/// The interpreter of a script whose first line goes on like this.
fn interpreter_of(line: &[u8]) -> Result<PathBuf, Unfit> {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let interpreter = words.next().ok_or(Unfit::NoInterpreter)?;
    match words.next() {
        // `env` starts the interpreter that is in PATH.
        Some(word) if interpreter.ends_with(b"/env") && !word.starts_with(b"-") => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            find_program(OsStr::from_bytes(word), &path).ok_or(Unfit::InterpreterNotFound)
        }
        _ => Ok(PathBuf::from(OsStr::from_bytes(interpreter))),
    }
}

fn inspect_elf<'data>(bytes: impl ReadRef<'data>) -> Result<Program, Unfit> {
    let header = elf::FileHeader64::<Endianness>::parse(bytes).map_err(|_| Unfit::NotProgram)?;
    let about = read(header, bytes).map_err(|_| Unfit::Damaged)?;
    if about.machine != own_machine() {
        return Err(Unfit::OtherProcessor);
    }
    if about.is_go {
        return Err(Unfit::Go);
    }
    match &about.interpreter {
        None => Err(Unfit::Static),
        Some(loader) if loader.windows(7).any(|word| word == b"ld-musl") => Err(Unfit::Musl),
        Some(_) => Ok(Program { needed: about.needed }),
    }
}

/// Relevant facts of an ELF file.
struct About {
    machine: elf::Machine,
    interpreter: Option<Vec<u8>>,
    is_go: bool,
    needed: Vec<Vec<u8>>,
}

fn read<'data>(
    header: &elf::FileHeader64<Endianness>,
    bytes: impl ReadRef<'data>,
) -> object::Result<About> {
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

/// The processor that this library was built for.
fn own_machine() -> elf::Machine {
    match std::env::consts::ARCH {
        "aarch64" => elf::EM_AARCH64,
        _ => elf::EM_X86_64,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    fn unfit(file: &Path) -> Option<Unfit> {
        match inspect_program(file) {
            Ok(_) => None,
            Err(ProgramError::Unfit { why, .. }) => Some(why),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn programs_and_scripts_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        assert_eq!(unfit(Path::new("/bin/sh")), None);
        let needed = inspect_program(Path::new("/bin/sh")).unwrap().needed;
        assert!(needed.iter().any(|name| name.starts_with(b"libc.so")), "{needed:?}");
        assert_eq!(unfit(&write("script", "#!/bin/sh -e\ntrue\n")), None);
        assert_eq!(unfit(&write("env", "#! /usr/bin/env sh\n")), None);
        assert_eq!(unfit(&write("nothing", "#!\n")), Some(Unfit::NoInterpreter));
        assert_eq!(
            unfit(&write("missing", "#!/usr/bin/env no-such-program\n")),
            Some(Unfit::InterpreterNotFound)
        );
        assert_eq!(unfit(&write("text", "true\n")), Some(Unfit::NotProgram));
        assert_eq!(unfit(&write("header", "\x7fELF")), Some(Unfit::NotProgram));
        assert_eq!(unfit(folder.path()), Some(Unfit::NotProgram));
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(unfit(&fifo), Some(Unfit::NotProgram));
        let own = folder.path().join("loop");
        std::fs::write(&own, format!("#!{}\n", own.display())).unwrap();
        assert_eq!(unfit(&own), Some(Unfit::Nested));
    }

    #[test]
    fn programs_that_gain_privileges_are_unfit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sh");
        std::fs::copy("/bin/sh", &file).unwrap();
        assert_eq!(unfit(&file), None);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(unfit(&file), Some(Unfit::GainsPrivileges));
    }
}
