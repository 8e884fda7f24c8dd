//! Whether the program that is about to be executed has this library, so that it can take sockets over.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use wave_posix::{ProgramError, find_program, inspect_program};

use super::exec::Words;
use crate::config::SOCKET;

/// File name of this library in LD_PRELOAD.
const LIBRARY: &[u8] = b"libwave_toe.so";
/// Where execvp(3) looks without PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// How a call names the program.
#[derive(Clone, Copy)]
pub enum Named {
    /// execve(2).
    File(*const c_char),
    /// execvp(3): a file without a slash is looked for in PATH.
    Command(*const c_char),
    /// fexecve(3).
    Descriptor(c_int),
}

/// Whether a program gets the library, in this environment. A program that cannot be inspected is taken for one that does.
///
/// # Safety
/// The pointers are null, or what the calls of the exec family expect.
pub unsafe fn has_library(program: Named, environment: Words) -> bool {
    // SAFETY: as for this function.
    let is_preloaded = unsafe { is_preloaded(environment) };
    // SAFETY: as for this function.
    let file = unsafe { file_of(program) };
    is_preloaded
        && file
            .is_none_or(|file| !matches!(inspect_program(&file), Err(ProgramError::Unfit { .. })))
}

/// Whether an environment lets the loader load this library, and lets the library find the agent.
unsafe fn is_preloaded(environment: Words) -> bool {
    let (mut is_loaded, mut has_socket) = (false, false);
    let mut next = environment;
    // SAFETY: it is null, or an array of strings that ends with null.
    while let Some(word) = unsafe { next.as_ref() }.copied().filter(|word| !word.is_null()) {
        // SAFETY: as above.
        let word = unsafe { CStr::from_ptr(word) }.to_bytes();
        if let Some(libraries) = word.strip_prefix(b"LD_PRELOAD=") {
            is_loaded |= libraries.windows(LIBRARY.len()).any(|part| part == LIBRARY);
        }
        let name = word.strip_prefix(SOCKET.as_bytes());
        has_socket |= name.is_some_and(|value| value.starts_with(b"="));
        // SAFETY: the array has not ended.
        next = unsafe { next.add(1) };
    }
    is_loaded && has_socket
}

/// The program's file, if there is one.
unsafe fn file_of(program: Named) -> Option<PathBuf> {
    let name = match program {
        Named::Descriptor(fd) => return Some(format!("/proc/self/fd/{fd}").into()),
        Named::File(name) | Named::Command(name) => name,
    };
    if name.is_null() {
        return None;
    }
    // SAFETY: it is a string.
    let name = OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    if matches!(program, Named::File(_)) {
        return Some(Path::new(name).to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    find_program(name, &path)
}
