use std::io::Read;
use std::os::unix::fs::{lchown, symlink};
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;

use super::*;

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// A pipe; or a device, which only root can make.
    fn node(&self, name: &str, kind: FileType, device: u64) -> PathBuf {
        rustix::fs::mknodat(CWD, self.path(name), kind, Mode::from_raw_mode(0o666), device)
            .unwrap();
        self.path(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn write(path: &Path) -> Result<(), OutputError> {
    Output::named(path)?.write("new")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_regular_file_is_replaced_whole_and_keeps_its_mode_and_owner() {
    let scratch = Scratch::new();
    let path = scratch.file("file", 0o640);
    if geteuid().is_root() {
        lchown(&path, Some(65534), Some(65533)).unwrap();
    }
    let (before, mut open) = (fs::metadata(&path).unwrap(), File::open(&path).unwrap());
    write(&path).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    let mut old = String::new();
    open.read_to_string(&mut old).unwrap();
    assert_eq!(old, "old");
    write(&scratch.path("another")).unwrap();
    assert_eq!(fs::read_to_string(scratch.path("another")).unwrap(), "new");
    assert_eq!(scratch.names(), ["another", "file"]);
}

#[test]
fn an_unfinished_or_failed_write_leaves_the_old_file() {
    let scratch = Scratch::new();
    let path = scratch.file("file", 0o644);
    let mut whole = Output::named(&path).unwrap().whole().unwrap();
    whole.write_all(b"half").unwrap();
    drop(whole);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(scratch.names(), ["file"]);
    assert_eq!(write(&scratch.path("absent/file")).unwrap_err().exit_code(), 3);
}

#[test]
fn links_are_followed_to_the_file_that_is_replaced() {
    let scratch = Scratch::new();
    let path = scratch.file("file", 0o600);
    fs::create_dir(scratch.path("folder")).unwrap();
    symlink("../file", scratch.path("folder/inner")).unwrap();
    symlink("folder/inner", scratch.path("link")).unwrap();
    symlink("made", scratch.path("dangling")).unwrap();
    symlink("round", scratch.path("round")).unwrap();
    write(&scratch.path("link")).unwrap();
    write(&scratch.path("dangling")).unwrap();
    assert_eq!((fs::read_to_string(&path).unwrap(), mode(&path)), ("new".to_owned(), 0o600));
    assert_eq!(fs::read_to_string(scratch.path("made")).unwrap(), "new");
    assert!(scratch.path("link").is_symlink() && scratch.path("dangling").is_symlink());
    assert_eq!(write(&scratch.path("round")).unwrap_err().exit_code(), 2);
}

#[test]
fn pipes_and_character_devices_are_written_through() {
    let scratch = Scratch::new();
    let pipe = scratch.node("pipe", FileType::Fifo, 0);
    let mut reader =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
    write(&pipe).unwrap();
    let mut got = String::new();
    reader.read_to_string(&mut got).unwrap();
    assert_eq!(got, "new");
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    if geteuid().is_root() {
        let node = |name, minor| {
            scratch.node(name, FileType::CharacterDevice, rustix::fs::makedev(1, minor))
        };
        let (null, full) = (node("null", 3), node("full", 7));
        write(&null).unwrap();
        let error = write(&full).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("full: cannot be written: No space left"), "{error}");
        for node in [null, full] {
            assert!(fs::symlink_metadata(&node).unwrap().file_type().is_char_device());
        }
    }
    // An open file of this process, as in `--out >(zstd)`.
    let (mut read, write_end) = io::pipe().unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&write_end);
    write(Path::new(&format!("/dev/fd/{descriptor}"))).unwrap();
    drop(write_end);
    let mut got = String::new();
    read.read_to_string(&mut got).unwrap();
    assert_eq!(got, "new");
}

#[test]
fn pipe_that_no_process_reads_is_refused() {
    let scratch = Scratch::new();
    let pipe = scratch.node("pipe", FileType::Fifo, 0);
    let error = write(&pipe).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().ends_with("pipe is a pipe that no process reads; start its reader first")
    );
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
}

#[test]
fn directories_sockets_block_devices_and_inputs_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.file("file", 0o644);
    symlink("file", scratch.path("link")).unwrap();
    fs::hard_link(&path, scratch.path("name")).unwrap();
    let _socket = UnixListener::bind(scratch.path("socket")).unwrap();
    fs::create_dir(scratch.path("folder")).unwrap();
    let mut refused = vec!["socket", "folder"];
    if geteuid().is_root() {
        // Device 0:0, which no driver has.
        scratch.node("disk", FileType::BlockDevice, 0);
        refused.push("disk");
    }
    for name in refused {
        let error = write(&scratch.path(name)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{name}");
        let kept = fs::symlink_metadata(scratch.path(name)).unwrap().file_type();
        assert!(!kept.is_file(), "{name}");
    }
    for input in ["file", "link", "name"] {
        let refused = Output::named(&path).unwrap().refuse_input(&scratch.path(input));
        assert!(refused.unwrap_err().to_string().contains("is an input"), "{input}");
    }
    let other = scratch.file("other", 0o644);
    Output::named(&path).unwrap().refuse_input(&other).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

/// Otherwise another user could have root replace any file, as with `sudo wave memory run --out /tmp/memory`.
#[test]
fn a_planted_link_leads_no_log_to_another_file() {
    let scratch = Scratch::new();
    let path = scratch.file("precious", 0o600);
    symlink("precious", scratch.path("link")).unwrap();
    fs::hard_link(&path, scratch.path("name")).unwrap();
    let log = |name: &str| Output::below_a_folder(&scratch.path(name))?.growing();
    log("name").unwrap().write_all(b"log").unwrap();
    assert_eq!(fs::read_to_string(scratch.path("name")).unwrap(), "log");
    assert_eq!(mode(&scratch.path("name")), 0o600);
    if geteuid().is_root() {
        lchown(scratch.path("link"), Some(65534), None).unwrap();
        let error = log("link").unwrap_err();
        assert!(error.to_string().contains("another user's link"), "{error}");
        assert_eq!(error.exit_code(), 2);
        // Another user's file may be open to everybody.
        let theirs = scratch.file("theirs", 0o666);
        lchown(&theirs, Some(65534), None).unwrap();
        log("theirs").unwrap();
        assert_eq!(fs::metadata(&theirs).unwrap().uid(), 0);
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

/// An agent that takes over may be given the log of the one that it replaces, which goes on writing until it is revoked.
#[test]
fn two_writers_of_a_log_have_a_file_each() {
    let scratch = Scratch::new();
    let log = || Output::below_a_folder(&scratch.path("log")).unwrap().growing().unwrap();
    let mut first = log();
    first.write_all(b"first").unwrap();
    let mut second = log();
    second.write_all(b"2nd").unwrap();
    first.write_all(b" and more").unwrap();
    assert_eq!(fs::read_to_string(scratch.path("log")).unwrap(), "2nd");
}

#[test]
fn an_appended_file_keeps_its_content() {
    let scratch = Scratch::new();
    let path = scratch.file("file", 0o644);
    symlink("file", scratch.path("link")).unwrap();
    Output::named(&scratch.path("link")).unwrap().appended().unwrap().write_all(b", new").unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), "old, new");
}
