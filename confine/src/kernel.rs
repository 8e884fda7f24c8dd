//! Confinement that the running kernel supports.

use std::fs;

/// Whether the kernel supports one kind of confinement, with details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supported {
    /// Whether the kernel supports it.
    pub is_there: bool,
    /// Details if supported; otherwise the reason why not.
    pub about: String,
}

/// Kinds of confinement that the kernel may support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Filters of system calls (seccomp).
    pub seccomp: Supported,
    /// Restriction to folders (Landlock).
    pub landlock: Supported,
}

impl Kernel {
    /// Asks the kernel which kinds it supports. Changes nothing.
    pub fn ask() -> Kernel {
        Kernel { seccomp: seccomp(), landlock: landlock() }
    }
}

fn seccomp() -> Supported {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    let supported = |is_there, about: &str| Supported { is_there, about: about.to_owned() };
    if seccompiler::TargetArch::try_from(std::env::consts::ARCH).is_err() {
        return supported(false, "no filter is available for this processor");
    }
    match actions {
        Ok(actions) if actions.split_whitespace().any(|action| action == "errno") => {
            let logged = fs::read_to_string("/proc/sys/kernel/seccomp/actions_logged");
            let is_logged = logged.is_ok_and(|logged| logged.contains("errno"));
            supported(
                true,
                match is_logged {
                    true => {
                        "a refused call fails with EPERM and is logged by the kernel (type=1326)"
                    }
                    false => {
                        "a refused call fails with EPERM; it is not logged, as kernel.seccomp.actions_logged lacks errno"
                    }
                },
            )
        }
        _ => supported(false, "the kernel is built without CONFIG_SECCOMP_FILTER"),
    }
}

fn landlock() -> Supported {
    /// Asks for the version instead of making rules.
    const VERSION: u32 = 1;
    // SAFETY: with this flag the kernel reads and writes no memory.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION)
    };
    let supported = |is_there, about: String| Supported { is_there, about };
    match version {
        1.. => supported(true, format!("ABI version {version}")),
        _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP) => supported(
            false,
            "the kernel has it but does not enable it; add landlock to lsm= on the kernel's command line"
                .to_owned(),
        ),
        _ => supported(false, "the kernel lacks it: use Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK".to_owned()),
    }
}
