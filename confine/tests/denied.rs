//! Operations that confined processes try, one process per role: a denied operation fails with EPERM, and the test lists those
//! that each role keeps. An unconfined process tries everything too: an operation that fails there proves nothing, and is
//! skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;

use wave_confine::{Kernel, Profile, Role, User};

/// Set in the child process that tries the operations, to its role.
const ROLE: &str = "WAVE_CONFINE_ROLE";
/// Set to a folder with two folders in it: `own`, which the child may use, and `other`.
const FOLDER: &str = "WAVE_CONFINE_FOLDER";
/// Set if the child becomes another user.
const USER: &str = "WAVE_CONFINE_USER";

const NOBODY: User = User { uid: 65_534, gid: 65_533 };

/// An operation to try, given the folder that holds `own` and `other`.
type Try = fn(&Path) -> io::Result<()>;

/// All operations with their names.
const TRIES: [(&str, Try); 28] = [
    ("read its own folder", |folder| fs::read(folder.join("own/file")).map(drop)),
    ("read another folder", |folder| fs::read(folder.join("other/file")).map(drop)),
    ("write into its own folder", |folder| fs::write(folder.join("own/new"), "x")),
    ("write into another folder", |folder| fs::write(folder.join("other/new"), "x")),
    ("change another folder's file", |folder| {
        fs::OpenOptions::new().write(true).open(folder.join("other/file")).map(drop)
    }),
    ("remove another folder's file", |folder| fs::remove_file(folder.join("other/gone"))),
    ("make a folder elsewhere", |folder| fs::create_dir(folder.join("other/made"))),
    ("connect by TCP", |_| socket(libc::AF_INET, libc::SOCK_STREAM)),
    ("send packets of its own", |_| socket(libc::AF_PACKET, libc::SOCK_RAW)),
    ("change the network", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW)),
    ("look into another process", |_| {
        let mut byte = 0_u8;
        let own = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // Nothing is at this address: the question is whether the process may look.
        let theirs = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        // SAFETY: the kernel writes one byte at most, into ours.
        check(unsafe { libc::process_vm_readv(parent(), &own, 1, &theirs, 1, 0) } as i64)
    }),
    ("trace another process", |_| {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: takes numbers; the kernel writes no memory of ours.
        check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, parent(), none, none) })
    }),
    ("signal another process", |_| call(libc::SYS_kill, [parent() as u64, 0, 0, 0])),
    ("have the kernel signal another process", |_| {
        // The signal would come with O_ASYNC, which is not set.
        call(libc::SYS_fcntl, [1, libc::F_SETOWN as u64, parent() as u64, 0])
    }),
    ("start a process", |_| {
        // SAFETY: the child only exits.
        match unsafe { libc::fork() } {
            // SAFETY: takes a number.
            0 => unsafe { libc::_exit(0) },
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: our child's id, and no memory for its status.
            child => check(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }.into()),
        }
    }),
    ("mount", |folder| {
        let at = text(&folder.join("own"));
        let kind = c"tmpfs".as_ptr();
        // SAFETY: the strings are null-terminated, and live until the calls return.
        check(unsafe { libc::mount(kind, at.as_ptr(), kind, 0, std::ptr::null()) }.into())?;
        // SAFETY: as above.
        check(unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) }.into())
    }),
    ("become another user", |_| {
        // Changes only this thread, and then changes it back.
        let become_user = |uid: u32| call(libc::SYS_setresuid, [u64::MAX, uid.into(), u64::MAX, 0]);
        become_user(NOBODY.uid)?;
        become_user(0)
    }),
    ("change its root", |_| call(libc::SYS_chroot, [c"/".as_ptr() as u64, 0, 0, 0])),
    // These calls get arguments that do nothing; their errors tell whether the filter let them through.
    ("load a BPF program", |_| call(libc::SYS_bpf, [5, 0, 0, 0])),
    ("load a kernel module", |_| call(libc::SYS_finit_module, [u64::MAX, 0, 0, 0])),
    ("count events of the CPU", |_| call(libc::SYS_perf_event_open, [0, 0, 0, 0])),
    ("handle page faults", |_| call(libc::SYS_userfaultfd, [u64::MAX, 0, 0, 0])),
    ("use io_uring", |_| call(libc::SYS_io_uring_setup, [0, 0, 0, 0])),
    ("take the kernel's keys", |_| call(libc::SYS_keyctl, [0, u64::MAX, 0, 0])),
    ("set the clock", |_| call(libc::SYS_clock_settime, [u64::MAX, 0, 0, 0])),
    ("create new namespaces", |_| call(libc::SYS_unshare, [libc::CLONE_NEWUTS as u64, 0, 0, 0])),
    ("start a process in new namespaces", |_| {
        let flags = libc::CLONE_NEWUTS | libc::SIGCHLD;
        // SAFETY: without a stack, the child continues on a copy of this one, like a child of fork, and only exits.
        match unsafe { libc::syscall(libc::SYS_clone, flags as u64, 0u64, 0u64, 0u64, 0u64) } {
            // SAFETY: takes a number.
            0 => unsafe { libc::_exit(0) },
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: our child's id, and no memory for its status.
            child => check(unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) }.into()),
        }
    }),
    ("restart the machine", |_| call(libc::SYS_reboot, [0, 0, 0, 0])),
];

/// The operations that a role may still do: some of [`TRIES`], and starting another program. All others are denied.
fn may(role: Role) -> &'static [&'static str] {
    match role {
        Role::Agent | Role::Front | Role::Tcp => &[],
        // Its own folder holds its database.
        Role::Server => &["read its own folder", "write into its own folder"],
        Role::MemoryHost => &[
            "read its own folder",
            "read another folder",
            "write into its own folder",
            "write into another folder",
            "change another folder's file",
            "remove another folder's file",
            "make a folder elsewhere",
            // It reads samples of the pages that it pages out.
            "look into another process",
            "signal another process",
            "have the kernel signal another process",
            "start a process",
            "start another program",
        ],
    }
}

fn parent() -> i32 {
    // SAFETY: takes nothing and touches no memory.
    unsafe { libc::getppid() }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("the test's paths have no zero byte")
}

fn check(result: i64) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn call(number: i64, [a, b, c, d]: [u64; 4]) -> io::Result<()> {
    // SAFETY: pointers among the arguments are null or to a constant, and lengths zero.
    check(unsafe { libc::syscall(number, a, b, c, d) })
}

fn socket(family: i32, kind: i32) -> io::Result<()> {
    // SAFETY: takes numbers; the descriptor is closed at once.
    unsafe {
        let fd = libc::socket(family, kind, 0);
        check(fd.into())?;
        check(libc::close(fd).into())
    }
}

/// Whether the error means that the kernel or the filter denied the operation, rather than that its arguments were bad.
fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// The child process: prints a line per operation, then becomes another program, whose exit code is 7.
fn try_all(role: &str) -> ExitCode {
    let folder = std::env::var_os(FOLDER).expect("the test names a folder");
    let folder = Path::new(&folder);
    if let Some(&role) = Role::ALL.iter().find(|known| known.name() == role) {
        let user = std::env::var_os(USER).map(|_| NOBODY);
        let profile = Profile::of(role).becoming(user);
        let profile = match role {
            Role::Server => profile.with_writes(folder.join("own")),
            _ => profile,
        };
        let limited = profile.limit().expect("this process has one thread");
        let (ask, asked) = channel();
        let (tell, told) = channel();
        // The filter applies to threads started before and after it.
        let early = std::thread::spawn(move || {
            asked.recv().unwrap();
            tell.send(socket(libc::AF_INET, libc::SOCK_STREAM)).unwrap();
        });
        let confined = limited.seal().expect("the kernel takes the filter");
        ask.send(()).unwrap();
        early.join().expect("the early thread does not panic");
        let late = std::thread::spawn(|| socket(libc::AF_INET, libc::SOCK_STREAM));
        for (which, tried) in [("early", told.recv().unwrap()), ("late", late.join().unwrap())] {
            println!("{which} thread\t{}", tried.is_err_and(|error| is_denied(&error)));
        }
        println!("seccomp\t{}", confined.seccomp);
        println!("landlock\t{}", confined.landlock);
    }
    for line in fs::read_to_string("/proc/thread-self/status").unwrap().lines() {
        if ["CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Uid", "Gid", "Groups"]
            .iter()
            .any(|field| line.starts_with(field))
        {
            println!("status {line}");
        }
    }
    for (name, attempt) in TRIES {
        let tried = attempt(folder);
        println!("{name}\t{}", tried.is_err_and(|error| is_denied(&error)));
    }
    let (shell, words) = (c"/bin/sh", [c"sh".as_ptr(), c"-c".as_ptr(), c"exit 7".as_ptr()]);
    let words = [words[0], words[1], words[2], std::ptr::null()];
    // SAFETY: the list ends with a null pointer, and its strings are null-terminated.
    unsafe { libc::execv(shell.as_ptr(), words.as_ptr()) };
    ExitCode::SUCCESS
}

/// Denied and tried operations, and the child's other lines.
struct Told {
    denied: BTreeSet<String>,
    tried: BTreeSet<String>,
    facts: BTreeMap<String, String>,
}

fn tell(role: &str, user: bool) -> Told {
    let place = tempfile::tempdir().unwrap();
    // A child that becomes another user needs access, too.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    for folder in ["own", "other"] {
        let folder = place.path().join(folder);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), "x").unwrap();
        fs::write(folder.join("gone"), "x").unwrap();
        fs::set_permissions(&folder, Clone::clone(&open)).unwrap();
    }
    fs::set_permissions(place.path(), open).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(ROLE, role).env(FOLDER, place.path());
    if user {
        command.env(USER, "1");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("restart the machine"), "{role} ended early: {text}{errors}");
    let mut told = Told { denied: BTreeSet::new(), tried: BTreeSet::new(), facts: BTreeMap::new() };
    for line in text.lines() {
        let (name, value) = line.split_once('\t').unwrap_or((line, ""));
        if TRIES.iter().any(|(known, _)| *known == name) {
            told.tried.insert(name.to_owned());
            if value == "true" {
                told.denied.insert(name.to_owned());
            }
        } else {
            told.facts.insert(name.to_owned(), value.to_owned());
        }
    }
    told.tried.insert("start another program".to_owned());
    if output.status.code() != Some(7) {
        told.denied.insert("start another program".to_owned());
    }
    told
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return try_all(&role);
    }
    let kernel = Kernel::ask();
    if !kernel.seccomp.is_there {
        wave_skip::skip(format!("seccomp: {}", kernel.seccomp.about));
        return ExitCode::SUCCESS;
    }
    let free = tell("none", false);
    let proves = |name: &&String| !free.denied.contains(*name);
    for name in free.denied.iter() {
        wave_skip::skip(format!("{name}: denied to this user even when unconfined"));
    }
    let is_root = free.facts.keys().any(|line| line.starts_with("status Uid:\t0\t"))
        || free.facts.iter().any(|(name, value)| name == "status Uid:" && value.starts_with("0\t"));
    for role in Role::ALL {
        let told = tell(role.name(), false);
        let name = role.name();
        assert_eq!(told.facts["seccomp"], "true", "{name}");
        let has_landlock = kernel.landlock.is_there && role != Role::MemoryHost;
        assert_eq!(told.facts["landlock"], has_landlock.to_string(), "{name}");
        assert_eq!(told.facts["early thread"], "true", "{name}");
        assert_eq!(told.facts["late thread"], "true", "{name}");
        let fact = |field: &str| told.facts[&format!("status {field}:")].trim().to_owned();
        assert_eq!(fact("NoNewPrivs"), "1", "{name}");
        if role != Role::MemoryHost {
            for set in ["CapEff", "CapPrm"] {
                assert_eq!(u64::from_str_radix(&fact(set), 16), Ok(0), "{name}: {set}");
            }
        }
        if is_root {
            let bound = u64::from_str_radix(&fact("CapBnd"), 16).unwrap();
            let setuid = 1 << 7;
            assert_eq!(bound & setuid, 0, "{name} could still gain rights by a setuid program");
        }
        let expected: BTreeSet<&String> = told
            .tried
            .iter()
            .filter(proves)
            .filter(|name| !may(role).contains(&name.as_str()))
            // Without Landlock, neither reading nor a server's writing is restricted to folders.
            .filter(|name| has_landlock || role == Role::MemoryHost || !by_landlock(role, name))
            .collect();
        let denied: BTreeSet<&String> = told.denied.iter().filter(proves).collect();
        assert_eq!(
            denied, expected,
            "{name}: denied operations (left) differ from the expected ones (right)"
        );
        println!("{name}: {} of {} denied", denied.len(), told.tried.len());
    }
    if is_root {
        let told = tell("agent", true);
        let fact = |field: &str| told.facts[&format!("status {field}:")].trim().to_owned();
        assert_eq!(fact("Uid"), ["65534"; 4].join("\t"));
        assert_eq!(fact("Gid"), ["65533"; 4].join("\t"));
        assert_eq!(fact("Groups"), "");
        println!("another user: {}", fact("Uid"));
    } else {
        wave_skip::skip("becoming another user: needs root");
    }
    ExitCode::SUCCESS
}

/// Whether only Landlock denies this operation.
fn by_landlock(role: Role, name: &str) -> bool {
    let reads = ["read its own folder", "read another folder"].contains(&name);
    let removes = name == "remove another folder's file" && role != Role::Agent;
    reads || removes || role == Role::Server
}
