//! What confinement the running kernel has.

use std::fs;

/// Whether a kernel confines a process in one way, and what to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supported {
    /// Whether it does.
    pub is_there: bool,
    /// What exactly, or why not.
    pub about: String,
}

/// The ways in which the kernel confines a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Filters of system calls.
    pub seccomp: Supported,
    /// Folders.
    pub landlock: Supported,
}

impl Kernel {
    /// Asks the kernel; changes nothing.
    pub fn ask() -> Kernel {
        Kernel { seccomp: seccomp(), landlock: landlock() }
    }
}

fn seccomp() -> Supported {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    let supported = |is_there, about: &str| Supported { is_there, about: about.to_owned() };
    if seccompiler::TargetArch::try_from(std::env::consts::ARCH).is_err() {
        return supported(false, "there is no filter for this processor");
    }
    match actions {
        Ok(actions) if actions.split_whitespace().any(|action| action == "errno") => {
            let logged = fs::read_to_string("/proc/sys/kernel/seccomp/actions_logged");
            let is_logged = logged.is_ok_and(|logged| logged.contains("errno"));
            supported(
                true,
                match is_logged {
                    true => "a refused call is EPERM, and a line of type=1326 in the kernel's log",
                    false => {
                        "a refused call is EPERM; kernel.seccomp.actions_logged has no errno, so none is logged"
                    }
                },
            )
        }
        _ => supported(false, "the kernel has no CONFIG_SECCOMP_FILTER"),
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
        1.. => supported(true, format!("version {version} of its interface")),
        _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP) => supported(
            false,
            "the kernel has it, but not among its security modules (lsm=landlock,... on its command line)"
                .to_owned(),
        ),
        _ => supported(false, "the kernel has none (Linux 5.13 and later do)".to_owned()),
    }
}
