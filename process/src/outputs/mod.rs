//! Files that commands write: one way to open them all (docs/adr/0095).
//!
//! Links are followed. A regular file is replaced whole, by a new file that takes its name, so that an interrupted or failed write
//! leaves the old one. Pipes, terminals and other character devices are written through. Block devices, sockets and directories are
//! refused before any work.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;
use tempfile::TempPath;

/// Maximum number of links on the way to a file, as in Linux.
const LINKS_MAX: usize = 40;
/// The error of a non-blocking open of a pipe that no process reads.
const NO_READER: Errno = Errno::NXIO;
/// Time in which a reader that was started together with this process opens the pipe.
const READER_PATIENCE: Duration = Duration::from_secs(2);
const READER_EVERY: Duration = Duration::from_millis(10);
/// Mode of a new file, less the umask.
const DEFAULT_MODE: u32 = 0o666;

/// Why an output is not written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum OutputError {
    /// The path leads to something that must not be overwritten: the user's fault.
    #[error("{} {why}", path.display())]
    Refused { path: PathBuf, why: String },
    /// A system call failed on this path.
    #[error("{}: cannot be written: {source}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
}

impl OutputError {
    /// 2, a wrong argument, or 3, this machine cannot write it.
    pub fn exit_code(&self) -> u8 {
        match self {
            OutputError::Refused { .. } => 2,
            OutputError::Unwritable { .. } => 3,
        }
    }
}

/// The user who chose a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    /// The user of this process: all links are followed, and the new file has the mode and, as root, the owner of the old one.
    Here,
    /// Perhaps another user, who owns the folder: neither that user's links nor that user's modes count.
    Elsewhere,
}

/// A file to write, found but not opened.
#[derive(Debug)]
pub struct Output {
    /// The path as it was given, for messages.
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A regular file, or none yet, at the end of all links.
    Whole { path: PathBuf, keeps: Option<Keeps> },
    /// A pipe or a character device.
    Through(PathBuf),
    /// The file that is this process's standard output: what the process prints there follows.
    Stdout,
    /// The same for standard error.
    Stderr,
}

/// What a new file takes over from the old one.
#[derive(Debug)]
struct Keeps {
    mode: u32,
    owner: Option<(u32, u32)>,
}

impl Output {
    /// The output at a path that this process's user has named.
    ///
    /// # Errors
    /// It is a block device, a socket or a directory; it cannot be reached; an existing file cannot be written.
    pub fn named(path: &Path) -> Result<Output, OutputError> {
        Output::find(path, Chosen::Here)
    }

    /// The output at a path that may lie in another user's folder: a name that Wave chose below a folder, or one that an agent was
    /// given. Links of users other than this one and root are refused.
    ///
    /// # Errors
    /// As [`named`](Self::named), or such a link.
    pub fn below_a_folder(path: &Path) -> Result<Output, OutputError> {
        Output::find(path, Chosen::Elsewhere)
    }

    fn find(path: &Path, chosen: Chosen) -> Result<Output, OutputError> {
        let place = place(path, chosen)?;
        Ok(Output { path: path.to_owned(), place })
    }

    /// Refuses an output that is the file at `input`. A character device may be both.
    ///
    /// # Errors
    /// They are the same file.
    pub fn refuse_input(&self, input: &Path) -> Result<(), OutputError> {
        let same = |file: &Metadata| (file.dev(), file.ino());
        let (Ok(ours), Ok(read)) = (fs::metadata(&self.path), fs::metadata(input)) else {
            return Ok(());
        };
        match same(&ours) == same(&read) && !ours.file_type().is_char_device() {
            true => Err(refused(&self.path, "is an input of this command; give another file")),
            false => Ok(()),
        }
    }

    /// Begins a file that replaces the old one once it is [finished](Whole::finish).
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn whole(self) -> Result<Whole, OutputError> {
        let Output { path, place } = self;
        let opened = match place {
            Place::Whole { path, keeps } => {
                begin(&path, keeps.as_ref()).map(|(file, new)| (file, Some(Unnamed { new, path })))
            }
            other => through(other).map(|file| (file, None)),
        };
        match opened {
            Ok((file, unnamed)) => Ok(Whole { to: BufWriter::new(file), unnamed, path }),
            Err(source) => Err(not_opened(path, source)),
        }
    }

    /// Replaces the old file by an empty one now, for a log that others may read as it grows. Descriptors of the old file keep it.
    ///
    /// # Errors
    /// It cannot be opened or replaced.
    pub fn growing(self) -> Result<File, OutputError> {
        let Output { path, place } = self;
        let opened = match place {
            Place::Whole { path, keeps } => begin(&path, keeps.as_ref())
                .and_then(|(file, new)| named(new, &path).map(|()| file)),
            other => through(other),
        };
        opened.map_err(|source| not_opened(path, source))
    }

    /// Opens the file to append to it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn appended(self) -> Result<File, OutputError> {
        let Output { path, place } = self;
        let opened = match place {
            Place::Whole { path, .. } => File::options().create(true).append(true).open(path),
            other => through(other),
        };
        opened.map_err(|source| not_opened(path, source))
    }

    /// Replaces the file by one with `content`.
    ///
    /// # Errors
    /// It cannot be written; the old file is left.
    pub fn write(self, content: impl AsRef<[u8]>) -> Result<(), OutputError> {
        let mut whole = self.whole()?;
        let written = whole.write_all(content.as_ref());
        written.map_err(|error| whole.failed(error))?;
        whole.finish()
    }
}

/// A file that is being written. Without [`finish`](Self::finish) the old file stays.
#[derive(Debug)]
pub struct Whole {
    path: PathBuf,
    to: BufWriter<File>,
    /// `None` for an output that is written through.
    unnamed: Option<Unnamed>,
}

/// A new file that does not have its final name yet.
#[derive(Debug)]
struct Unnamed {
    new: TempPath,
    path: PathBuf,
}

impl Whole {
    /// The error for a write to this file that failed.
    pub fn failed(&self, source: io::Error) -> OutputError {
        OutputError::Unwritable { path: self.path.clone(), source }
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// It cannot be written; the old file is left.
    pub fn finish(mut self) -> Result<(), OutputError> {
        let finished = self.to.flush().and_then(|()| match self.unnamed.take() {
            None => Ok(()),
            Some(Unnamed { new, path }) => {
                // Synced before the rename, so that the file is whole after a crash.
                self.to.get_ref().sync_all()?;
                named(new, &path)
            }
        });
        finished.map_err(|source| self.failed(source))
    }
}

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn refused(path: &Path, why: impl Into<String>) -> OutputError {
    OutputError::Refused { path: path.to_owned(), why: why.into() }
}

/// The error for an output that could not be opened.
fn not_opened(path: PathBuf, source: io::Error) -> OutputError {
    match source.raw_os_error() == Some(NO_READER.raw_os_error()) {
        true => refused(&path, "is a pipe that no process reads; start its reader first"),
        false => OutputError::Unwritable { path, source },
    }
}

fn place(given: &Path, chosen: Chosen) -> Result<Place, OutputError> {
    let system = |source| OutputError::Unwritable { path: given.to_owned(), source };
    let path = end_of_links(given, chosen)?;
    let found = match fs::metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Place::Whole { path, keeps: None });
        }
        Err(error) => return Err(system(error)),
    };
    let kind = found.file_type();
    let what = match () {
        () if kind.is_dir() => Some("is a directory; give a file"),
        () if kind.is_socket() => Some("is a socket; give a file"),
        () if kind.is_block_device() => Some("is a block device; give a file"),
        () => None,
    };
    if let Some(what) = what {
        return Err(refused(given, what));
    }
    if !kind.is_file() {
        return Ok(Place::Through(path));
    }
    for (standard, place) in [
        (rustix::fs::fstat(io::stdout()), Place::Stdout),
        (rustix::fs::fstat(io::stderr()), Place::Stderr),
    ] {
        if standard.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (found.dev(), found.ino())) {
            return Ok(place);
        }
    }
    if is_descriptor(&path) {
        return Ok(Place::Through(path));
    }
    let is_ours = found.uid() == geteuid().as_raw();
    if chosen == Chosen::Elsewhere {
        let keeps = is_ours.then(|| Keeps { mode: found.mode() & DEFAULT_MODE, owner: None });
        return Ok(Place::Whole { path, keeps });
    }
    // A file that this user may not write is not replaced either.
    OpenOptions::new().write(true).open(&path).map_err(system)?;
    let owner = geteuid().is_root().then(|| (found.uid(), found.gid()));
    Ok(Place::Whole { path, keeps: Some(Keeps { mode: found.mode() & 0o7777, owner }) })
}

/// Follows links in the last part of a path. An open file of a process, such as `/dev/stdout`, is left as it is: its path may lead
/// elsewhere by now.
fn end_of_links(given: &Path, chosen: Chosen) -> Result<PathBuf, OutputError> {
    let mut path = given.to_owned();
    for _ in 0..LINKS_MAX {
        let system = |source| OutputError::Unwritable { path: given.to_owned(), source };
        let link = match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => found,
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(system(error)),
        };
        if chosen == Chosen::Elsewhere && ![0, geteuid().as_raw()].contains(&link.uid()) {
            let why = "goes through another user's link; give the path of the file itself";
            return Err(refused(given, why));
        }
        if is_descriptor(&path) {
            return Ok(path);
        }
        let to = fs::read_link(&path).map_err(system)?;
        path = folder(&path).join(to);
    }
    Err(refused(given, "has too many links"))
}

fn folder(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Whether the path names a descriptor of a process.
fn is_descriptor(path: &Path) -> bool {
    let folder = folder(path).canonicalize();
    folder.is_ok_and(|folder| folder.starts_with("/proc") && folder.ends_with("fd"))
}

/// Opens an output that is written through.
fn through(place: Place) -> io::Result<File> {
    match place {
        Place::Stdout => Ok(io::stdout().as_fd().try_clone_to_owned()?.into()),
        Place::Stderr => Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
        Place::Through(path) | Place::Whole { path, .. } => open_node(&path),
    }
}

/// Opens a pipe or a character device, and nothing that has taken its place meanwhile. Fails with [`NO_READER`] if a pipe has no
/// reader within [`READER_PATIENCE`].
fn open_node(path: &Path) -> io::Result<File> {
    let is_open = is_descriptor(path);
    let flags = if is_open { OFlags::NOCTTY } else { OFlags::NOCTTY | OFlags::NOFOLLOW };
    // With O_CREAT, so that the kernel may refuse another user's pipe (fs.protected_fifos).
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(is_open);
    let options = options.custom_flags((flags | OFlags::NONBLOCK).bits().cast_signed());
    let begun = Instant::now();
    let file = loop {
        match options.open(path) {
            Err(error)
                if error.raw_os_error() == Some(NO_READER.raw_os_error())
                    && begun.elapsed() < READER_PATIENCE =>
            {
                std::thread::sleep(READER_EVERY);
            }
            opened => break opened?,
        }
    };
    let status = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, status - OFlags::NONBLOCK)?;
    match !is_open && file.metadata()?.is_file() {
        true => Err(io::Error::other("another process has just put a file there: try again")),
        false => Ok(file),
    }
}

/// The system's error alone: `tempfile` adds the path of a file that no user has named, and keeps only the error's kind apart.
fn without_path(error: io::Error) -> io::Error {
    let code = match error.kind() {
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::PermissionDenied => Errno::ACCESS,
        ErrorKind::StorageFull => Errno::NOSPC,
        ErrorKind::ReadOnlyFilesystem => Errno::ROFS,
        _ => return error,
    };
    code.into()
}

/// A new file beside `path`, under an unpredictable name, which no other process can have taken, for example with a link.
fn begin(path: &Path, keeps: Option<&Keeps>) -> io::Result<(File, TempPath)> {
    let (file, new) = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(Permissions::from_mode(DEFAULT_MODE)) // less the umask, as for any file
        .tempfile_in(folder(path))
        .map_err(without_path)?
        .into_parts();
    if let Some(Keeps { mode, owner }) = keeps {
        if let Some((user, group)) = owner {
            fchown(&file, Some(*user), Some(*group))?;
        }
        file.set_permissions(Permissions::from_mode(*mode))?;
    }
    Ok((file, new))
}

fn named(new: TempPath, path: &Path) -> io::Result<()> {
    new.persist(path).map_err(|error| error.error)
}

#[cfg(test)]
mod tests;
