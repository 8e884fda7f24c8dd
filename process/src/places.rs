//! Folders and sockets in places that Wave chooses, out of reach of other users.
//!
//! A name below `/tmp` can be guessed and taken first, with a link or a folder that leads elsewhere. So every path that Wave
//! chooses lies in a folder that belongs to this user and that nobody else can enter, and this is checked at each use.
//! A path that the user names is used as it is; but a socket there is replaced only if it is a dead one of the same user.
//! [`outputs`](crate::outputs) opens the files that commands write at such paths.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Uid, geteuid, test_kill_process};

/// Directory of root's sockets.
pub const ROOTS_RUNTIME_DIR: &str = "/run/wave";
/// The mode bits that Wave's own folder must not have: any access for group or others.
const OTHERS: u32 = 0o077;

/// Why a place is not used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PlaceError {
    /// The place may be under the control of another user.
    #[error(
        "{} {why}: Wave keeps its files only in a folder that belongs to this user and that nobody else can enter (mode 0700)",
        path.display()
    )]
    NotOurs { path: PathBuf, why: &'static str },
    /// A system call failed on this path.
    #[error("cannot {what} {}: {source}", path.display())]
    System { what: &'static str, path: PathBuf, source: io::Error },
}

/// The folder for this user's sockets: `/run/wave` for root, `$XDG_RUNTIME_DIR/wave` for others, and if that is not possible
/// a folder in the directory for temporary files, with the user's number in its name. It is created if it is missing.
///
/// # Errors
/// None of these exists and belongs to this user alone.
pub fn runtime_dir() -> Result<PathBuf, PlaceError> {
    let user = geteuid();
    let first = match user.is_root() {
        true => Some(PathBuf::from(ROOTS_RUNTIME_DIR)),
        false => session_dir(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)),
    };
    runtime_dir_in(first, &env::temp_dir(), user)
}

/// By the specification of the variable, a path that is not absolute is ignored.
fn session_dir(named: Option<PathBuf>) -> Option<PathBuf> {
    named.filter(|named| named.is_absolute()).map(|named| named.join("wave"))
}

fn runtime_dir_in(first: Option<PathBuf>, temp: &Path, user: Uid) -> Result<PathBuf, PlaceError> {
    let last = temp.join(format!("wave-{}", user.as_raw()));
    match first {
        Some(first) if own_dir(&first).is_ok() => Ok(first),
        _ => own_dir(&last).map(|_| last),
    }
}

/// A path for a socket of this process, in [`runtime_dir`]. No two calls give the same one.
///
/// # Errors
/// As [`runtime_dir`].
pub fn socket(what: &str) -> Result<PathBuf, PlaceError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    static SWEEP: Once = Once::new();
    let folder = runtime_dir()?;
    SWEEP.call_once(|| remove_abandoned(&folder));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(folder.join(format!("{what}-{}-{count}.sock", std::process::id())))
}

/// Removes the sockets of processes that were killed.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let owner = name.to_str().and_then(owner_of).and_then(Pid::from_raw);
        let is_gone = |owner| matches!(test_kill_process(owner), Err(Errno::SRCH));
        // A process of another container has its own numbers: it may live although there is no such process here.
        if owner.is_some_and(is_gone) && is_dead(&path) {
            let _ = remove_socket(&path, |_| true);
        }
    }
}

/// The process in a name made by [`socket`].
fn owner_of(name: &str) -> Option<i32> {
    let mut parts = name.strip_suffix(".sock")?.rsplit('-');
    let (_count, pid) = (parts.next()?.parse::<u32>().ok()?, parts.next()?);
    pid.parse().ok()
}

/// Opens the folder, after creating it if it is missing. It must be a folder (not a link to one) that belongs to this user and
/// that nobody else can enter. Its parent must exist.
///
/// # Errors
/// It is not such a folder, or it cannot be created or opened.
pub fn own_dir(path: &Path) -> Result<OwnedFd, PlaceError> {
    let system = |what| {
        move |error: Errno| PlaceError::System { what, path: path.into(), source: error.into() }
    };
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(system("create the folder")(error)),
    }
    let not_ours = |why| PlaceError::NotOurs { path: path.into(), why };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => not_ours("is not a folder, or is a link to one"),
        // Another user's folder, which this user may not read.
        Errno::ACCESS => not_ours("belongs to another user"),
        error => system("open the folder")(error),
    })?;
    let stat = rustix::fs::fstat(&folder).map_err(system("check the owner of the folder"))?;
    if stat.st_uid != geteuid().as_raw() {
        return Err(not_ours("belongs to another user"));
    }
    if stat.st_mode & OTHERS != 0 {
        return Err(not_ours("is open to other users"));
    }
    Ok(folder)
}

/// Opens a file for reading.
///
/// # Errors
/// It is a link, a pipe or a device, or cannot be opened.
pub fn existing_file(path: &Path) -> io::Result<File> {
    // Opening a pipe would wait for a writer.
    let file = open_no_link(path, OpenOptions::new().read(true), OFlags::NONBLOCK)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file: remove it")),
    }
}

fn open_no_link(path: &Path, options: &mut OpenOptions, flags: OFlags) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | flags;
    options.custom_flags(flags.bits().cast_signed()).open(path).map_err(|error| {
        match error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
            true => io::Error::other(
                "it is a link, and links are not followed here: give the file's own path",
            ),
            false => error,
        }
    })
}

/// Removes a socket's file if `is_it` accepts the file there, and nothing else: no link is followed. Returns whether it was
/// there.
pub fn remove_socket(path: &Path, is_it: impl Fn(&Stat) -> bool) -> io::Result<bool> {
    let Some(name) = path.file_name() else { return Ok(false) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder.unwrap_or(Path::new(".")), flags, Mode::empty())?;
    let stat = match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        found => found?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || !is_it(&stat) {
        return Ok(false);
    }
    rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
    Ok(true)
}

/// Whether nobody listens at the socket of an enclave or agent at `path`.
pub fn is_dead(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (Ok(probe), Ok(address)) = (probe, SocketAddrUnix::new(path)) else { return false };
    matches!(connect(&probe, &address), Err(Errno::CONNREFUSED | Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn why(path: &Path) -> &'static str {
        match own_dir(path) {
            Err(PlaceError::NotOurs { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn links_and_pipes_are_no_existing_files() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::write(path("file"), "content").unwrap();
        symlink(path("file"), path("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(io::read_to_string(existing_file(&path("file")).unwrap()).unwrap(), "content");
        assert!(existing_file(&path("link")).unwrap_err().to_string().contains("is a link"));
        assert!(existing_file(&path("pipe")).is_err());
        assert_eq!(existing_file(&path("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_folder_under_another_users_control_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        own_dir(&path("ours")).unwrap();
        assert_eq!(fs::metadata(path("ours")).unwrap().mode() & 0o777, 0o700);
        own_dir(&path("ours")).unwrap();

        symlink(path("ours"), path("link")).unwrap();
        symlink(path("nothing"), path("dangling")).unwrap();
        fs::write(path("file"), "").unwrap();
        for other in ["link", "dangling", "file"] {
            assert_eq!(why(&path(other)), "is not a folder, or is a link to one", "{other}");
        }
        assert!(!path("nothing").exists());
        for mode in [0o777, 0o1777, 0o770, 0o750, 0o705] {
            fs::set_permissions(path("ours"), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(why(&path("ours")), "is open to other users", "{mode:o}");
        }
        if geteuid().is_root() {
            fs::create_dir(path("theirs")).unwrap();
            fs::set_permissions(path("theirs"), fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(path("theirs"), Some(65534), None).unwrap();
            assert_eq!(why(&path("theirs")), "belongs to another user");
        }
        assert!(matches!(own_dir(&path("a/b")), Err(PlaceError::System { .. })));
    }

    #[test]
    fn sockets_lie_in_the_users_own_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let chosen = |first| runtime_dir_in(first, scratch.path(), geteuid());
        let last = path(&format!("wave-{}", geteuid().as_raw()));
        assert_eq!(chosen(Some(path("wave"))).unwrap(), path("wave"));
        // As after `su`: the variable names another user's folder.
        assert_eq!(chosen(Some(path("none/wave"))).unwrap(), last);
        assert_eq!(chosen(None).unwrap(), last);
        assert_eq!(fs::metadata(&last).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&last, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(chosen(None), Err(PlaceError::NotOurs { .. })));
        assert_eq!(session_dir(Some("run".into())), None);
        assert_eq!(session_dir(Some("/run/user/7".into())), Some("/run/user/7/wave".into()));

        let [one, other] = [socket("test").unwrap(), socket("test").unwrap()];
        assert_ne!(one, other);
        assert_eq!(one.parent(), other.parent());
        let name = one.file_name().unwrap().to_str().unwrap();
        assert_eq!(owner_of(name), Some(std::process::id() as i32));
        assert!(own_dir(one.parent().unwrap()).is_ok());
    }

    #[test]
    fn only_sockets_of_killed_processes_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        // Process numbers beyond those that the kernel gives out.
        let dead = [path("linux-a-b-4194305-0.sock"), path("bench-4194306-17.sock")];
        dead.iter().for_each(|path| drop(UnixListener::bind(path).unwrap()));
        let alive = UnixListener::bind(path("bench-4194307-0.sock")).unwrap();
        let kept = [format!("ours-{}-0.sock", std::process::id()), "linux-4194305.sock".into()];
        kept.iter().for_each(|name| drop(UnixListener::bind(path(name)).unwrap()));
        fs::write(path("file-4194305-0.sock"), "").unwrap();
        remove_abandoned(scratch.path());
        assert!(dead.iter().all(|path| !path.exists()));
        assert!(kept.iter().all(|name| path(name).exists()));
        assert!(path("bench-4194307-0.sock").exists() && path("file-4194305-0.sock").exists());
        drop(alive);
    }
}
