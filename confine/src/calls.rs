//! System calls that a role may make.
//!
//! Every role may make calls that reach nothing outside the process and its descriptors. Other calls are allowed by role, with
//! the arguments that the role needs. The calls in [`HIDDEN`] fail with ENOSYS rather than EPERM: a filter cannot see their
//! arguments, which are in memory, and callers fall back to older calls.

use std::collections::BTreeMap;

use libc::*;
use seccompiler::{
    BackendError as Error, SeccompCmpArgLen as Length, SeccompCmpOp as Op,
    SeccompCondition as Condition, SeccompRule as Rule,
};

use crate::Role;

/// Calls that fail with ENOSYS. A kernel may lack them, so every caller has a fallback.
pub const HIDDEN: &[c_long] = &[SYS_clone3, SYS_openat2, SYS_io_uring_setup];

/// Calls for every role: on its memory, time, its threads, its own signals, and its descriptors.
const EVERYBODY: &[c_long] = &[
    // Descriptors.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_lseek,
    SYS_close,
    SYS_close_range,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_eventfd2,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_fstatfs,
    SYS_statfs,
    SYS_fsync,
    SYS_fdatasync,
    SYS_flock,
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    // Paths: Landlock, where the kernel has it, restricts reading to folders.
    SYS_readlinkat,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_getdents64,
    SYS_getcwd,
    // Existing sockets.
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_recvmmsg,
    SYS_shutdown,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_getsockname,
    SYS_getpeername,
    // Memory.
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_mprotect,
    SYS_madvise,
    SYS_mincore,
    SYS_msync,
    SYS_brk,
    SYS_mlock,
    SYS_mlock2,
    SYS_mlockall,
    SYS_munlock,
    SYS_munlockall,
    SYS_membarrier,
    // Threads.
    SYS_futex,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_rseq,
    SYS_set_tid_address,
    SYS_exit,
    SYS_exit_group,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_getcpu,
    // Time.
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_times,
    // Its own signals.
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend,
    SYS_rt_sigpending,
    SYS_sigaltstack,
    SYS_restart_syscall,
    // Identity.
    SYS_getpid,
    SYS_gettid,
    SYS_getppid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_getpgid,
    SYS_getsid,
    SYS_capget,
    SYS_getrusage,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrandom,
];

/// Older forms of these calls, which x86 still has.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_pipe,
    SYS_dup2,
    SYS_eventfd,
    SYS_stat,
    SYS_lstat,
    SYS_readlink,
    SYS_access,
    SYS_getpgrp,
    SYS_time,
    SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Flags of clone(2) for a process in new namespaces. `CLONE_NEWTIME` is one of clone3(2) alone.
const NAMESPACES: u64 = (CLONE_NEWCGROUP
    | CLONE_NEWIPC
    | CLONE_NEWNET
    | CLONE_NEWNS
    | CLONE_NEWPID
    | CLONE_NEWUSER
    | CLONE_NEWUTS) as u64;

/// Calls of a memory host, besides clone(2): it starts agents, waits for them and ends them, pages memory out, and writes the output that its
/// user asked for.
const HOST: &[c_long] = &[
    SYS_execve,
    SYS_wait4,
    SYS_waitid,
    SYS_kill,
    SYS_tgkill,
    SYS_pidfd_open,
    SYS_setpgid,
    SYS_openat,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fcntl,
    SYS_ioctl,
    SYS_prctl,
    SYS_prlimit64,
    SYS_sched_setaffinity,
    SYS_setpriority,
    SYS_accept4,
    SYS_connect,
    SYS_memfd_create,
    SYS_process_madvise,
    SYS_process_vm_readv,
    SYS_swapoff,
    // Agents that it starts give up rights themselves.
    SYS_capset,
    SYS_seccomp,
    SYS_landlock_create_ruleset,
    SYS_landlock_add_rule,
    SYS_landlock_restrict_self,
];

/// x86's older forms of these calls.
#[cfg(target_arch = "x86_64")]
const OLDER_HOST: &[c_long] =
    &[SYS_open, SYS_fork, SYS_vfork, SYS_unlink, SYS_mkdir, SYS_rename, SYS_getrlimit];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_HOST: &[c_long] = &[];

/// Calls of a server: for windows, and for the files of a database. Landlock, where the kernel has it, restricts these files to
/// the server's own folder.
const SERVER: &[c_long] = &[
    SYS_connect,
    SYS_accept,
    SYS_accept4,
    SYS_memfd_create,
    SYS_openat,
    SYS_mkdirat,
    SYS_renameat,
    SYS_renameat2,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fadvise64,
    SYS_sync_file_range,
];

/// x86's older forms of calls on files.
#[cfg(target_arch = "x86_64")]
const OLDER_FILES: &[c_long] = &[SYS_open, SYS_mkdir, SYS_rmdir, SYS_rename];

/// bpf(2) commands that a host needs after its programs are loaded: for maps, runs, links and iterators.
const BPF: [u64; 9] = [1, 2, 3, 4, 10, 15, 28, 33, 34];

/// prctl(2) operations on names, and PR_GET_AUXV (which libc does not define): rustix calls it on first use.
const PRCTLS: [u64; 4] = [PR_SET_NAME as u64, PR_GET_NAME as u64, PR_SET_VMA as u64, 0x4155_5856];

/// fcntl(2) commands for descriptors and seals. None of them makes the kernel send signals.
const FCNTLS: [i32; 8] =
    [F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_ADD_SEALS, F_GET_SEALS];

/// More fcntl(2) commands of a server: for a database's locks and write hints.
const FILE_FCNTLS: [i32; 10] = [
    F_GETLK,
    F_SETLK,
    F_SETLKW,
    F_OFD_GETLK,
    F_OFD_SETLK,
    F_OFD_SETLKW,
    // F_GET_RW_HINT to F_SET_FILE_RW_HINT, which libc does not define.
    1035,
    1036,
    1037,
    1038,
];

/// Removes a socket. Landlock, where the kernel has it, restricts this to the role's own folder.
#[cfg(target_arch = "x86_64")]
const UNLINK: c_long = SYS_unlink;
#[cfg(not(target_arch = "x86_64"))]
const UNLINK: c_long = SYS_unlinkat;

/// The calls of a role with their rules. At least one rule of a call must match; a call without rules is always allowed.
pub type Calls = BTreeMap<c_long, Vec<Rule>>;

/// Calls that the role may make in this process.
pub fn of(role: Role) -> Result<Calls, Error> {
    let mut calls: Calls = EVERYBODY.iter().chain(OLDER).map(|&call| (call, Vec::new())).collect();
    let unix = [AF_UNIX as u64];
    calls.extend([(SYS_socket, any_of(0, &unix)?), (SYS_socketpair, any_of(0, &unix)?)]);
    if role == Role::MemoryHost {
        calls.extend(HOST.iter().chain(OLDER_HOST).map(|&call| (call, Vec::new())));
        calls.insert(SYS_bpf, any_of(0, &BPF)?);
        // Processes in its own namespaces only.
        calls.insert(SYS_clone, vec![masked(0, NAMESPACES, 0)?]);
        return Ok(calls);
    }
    calls.extend([
        // Threads only, no processes.
        (SYS_clone, vec![masked(0, CLONE_THREAD as u64, CLONE_THREAD as u64)?]),
        (SYS_tgkill, any_of(0, &[u64::from(std::process::id())])?),
        (SYS_prctl, any_of(0, &PRCTLS)?),
        (SYS_prlimit64, any_of(0, &[0])?),
        (SYS_sched_setaffinity, any_of(0, &[0])?),
        (SYS_ioctl, any_of(1, &[FIONBIO, FIONREAD, TCGETS, TIOCGWINSZ])?),
        (SYS_fcntl, any_of(1, &fcntls(role))?),
    ]);
    // Files are opened read-only even where the kernel has no Landlock.
    let writes = (O_ACCMODE | O_CREAT | O_TRUNC) as u64;
    calls.insert(SYS_openat, vec![masked(2, writes, O_RDONLY as u64)?]);
    #[cfg(target_arch = "x86_64")]
    {
        calls.insert(SYS_open, vec![masked(1, writes, O_RDONLY as u64)?]);
        calls.insert(SYS_getrlimit, Vec::new());
    }
    let more: &[c_long] = match role {
        // Already attached: needs no new connections.
        Role::Agent | Role::MemoryHost => &[],
        // It attaches to hosts again, accepts clients, and gives a window to a scheduler that wants notes.
        Role::Front => &[SYS_connect, SYS_accept, SYS_accept4, SYS_memfd_create, SYS_ftruncate],
        // It accepts programs, and hands its state to a successor in a memfd.
        Role::Tcp => &[SYS_accept, SYS_accept4, SYS_memfd_create],
        // It gives each attaching agent a window, or, as a program over an agent's TCP, attaches to the agent. Served data is
        // in files.
        Role::Server => SERVER,
    };
    calls.extend(more.iter().map(|&call| (call, Vec::new())));
    #[cfg(target_arch = "x86_64")]
    if role == Role::Server {
        calls.extend(OLDER_FILES.iter().map(|&call| (call, Vec::new())));
    }
    if role != Role::Agent {
        // It removes its socket when it ends.
        calls.extend([(UNLINK, Vec::new()), (SYS_unlinkat, Vec::new())]);
    }
    Ok(calls)
}

/// The fcntl(2) commands of a role.
fn fcntls(role: Role) -> Vec<u64> {
    let more: &[i32] = if role == Role::Server { &FILE_FCNTLS } else { &[] };
    FCNTLS.iter().chain(more).map(|&command| command as u64).collect()
}

/// Rules for an argument that has one of these values.
fn any_of(argument: u8, values: &[u64]) -> Result<Vec<Rule>, Error> {
    let rule = |&value: &u64| {
        Rule::new(vec![Condition::new(argument, Length::Dword, Op::Eq, value & 0xffff_ffff)?])
    };
    values.iter().map(rule).collect()
}

/// A rule for an argument whose bits in `mask` are `value`.
fn masked(argument: u8, mask: u64, value: u64) -> Result<Rule, Error> {
    Rule::new(vec![Condition::new(argument, Length::Dword, Op::MaskedEq(mask), value)?])
}
