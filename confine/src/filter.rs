//! Installs a role's filter of system calls in all threads.

use std::collections::BTreeMap;
use std::io;

use libc::{ENOSYS, EPERM};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::{ConfineError, Role, calls};

/// Returns whether the kernel now filters system calls: false if it has no seccomp, or if seccompiler has no filter for this
/// processor.
pub fn install(role: Role, switches: bool) -> Result<bool, ConfineError> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(false) };
    let failed = |error: seccompiler::BackendError| ConfineError::System {
        what: "system calls",
        error: io::Error::other(error),
    };
    // The first filter hides calls. For those, its answer wins over the second filter's.
    let hidden = calls::HIDDEN.iter().map(|&call| (call, Vec::new())).collect();
    let hides = compile(hidden, SeccompAction::Allow, errno(ENOSYS), arch).map_err(failed)?;
    let mut allowed = calls::of(role).map_err(failed)?;
    // Otherwise the second filter would log the hidden calls as refused.
    allowed.extend(calls::HIDDEN.iter().map(|&call| (call, Vec::new())));
    if switches {
        let users = [libc::SYS_setgroups, libc::SYS_setresgid, libc::SYS_setresuid];
        allowed.extend(users.map(|call| (call, Vec::new())));
    }
    let allows = compile(allowed, errno(EPERM), SeccompAction::Allow, arch).map_err(failed)?;
    // This order, because the second filter refuses the call that loads filters.
    for (filter, is_logged) in [(&hides, false), (&allows, true)] {
        match load(filter, is_logged) {
            Ok(()) => {}
            Err(error) if is_missing(&error) => return Ok(false),
            Err(error) => return Err(ConfineError::System { what: "system calls", error }),
        }
    }
    Ok(true)
}

fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number as u32)
}

fn compile(
    calls: BTreeMap<i64, Vec<seccompiler::SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(calls, otherwise, matched, arch)?.try_into()
}

/// Whether the kernel has no seccomp, or the container does not let its programs use it.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM))
}

/// Loads a filter for all threads. Their no_new_privs must be set.
///
/// seccompiler can load filters too, but without the flag that makes the kernel log refused calls.
fn load(filter: &BpfProgram, is_logged: bool) -> io::Result<()> {
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut().cast() };
    let flags =
        libc::SECCOMP_FILTER_FLAG_TSYNC | if is_logged { libc::SECCOMP_FILTER_FLAG_LOG } else { 0 };
    // SAFETY: the kernel reads `len` instructions, which live until the call returns, and writes nothing. seccompiler's
    // instructions have the kernel's layout.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(&program),
        )
    };
    match done {
        0 => Ok(()),
        // The thread that could not take the filter, because it has filters of its own.
        thread if thread > 0 => Err(io::Error::other(format!("thread {thread} has other filters"))),
        _ => Err(io::Error::last_os_error()),
    }
}
