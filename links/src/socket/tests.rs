use super::*;
use crate::memory::Memory;
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

/// A test's own directory, removed on drop.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("socket")
    }
}

const SOON: Option<Duration> = Some(Duration::from_secs(10));

fn pair(scratch: &Scratch) -> (Listener, Connection, Connection) {
    let listener = Listener::bind(&scratch.socket(), &[]).unwrap();
    let agent = Connection::connect(&scratch.socket()).unwrap();
    let host = listener.accept().unwrap().unwrap();
    (listener, host, agent)
}

fn raw(host: &Connection, header: &Header, text: &str, fds: &[BorrowedFd<'_>]) {
    host.send(header, text, fds).unwrap();
}

/// The header of an empty offer.
const OFFER: Header = Header {
    version: 1,
    kind: KIND_OFFER,
    subsystem: 0,
    lines: [1; 3],
    doorbells: 0,
    files: 0,
    text_bytes: 0,
};

#[test]
fn an_offer_arrives_with_memory_doorbells_and_text() {
    let scratch = Scratch::new();
    let (listener, host, agent) = pair(&scratch);
    let (memory, fd) = Memory::create("test", 5, 4, 3).unwrap();
    memory.region(wave_core::link::Home::Host)[0].store(42, std::sync::atomic::Ordering::Release);
    let bells: Vec<_> = (0..DOORBELLS_MAX).map(|_| fd.try_clone().unwrap()).collect();
    let doorbells: Vec<_> = bells.iter().map(|bell| bell.as_fd()).collect();
    let text = "x".repeat(TEXT_BYTES_MAX);
    let lines = [5, 4, 3];
    let (subsystem, memory_fd) = (SubsystemId::new(9), fd.as_fd());
    let offer = Offer {
        version: 7,
        subsystem,
        lines,
        memory: memory_fd,
        doorbells: &doorbells,
        files: &doorbells[..FILES_MAX],
        link: &text,
    };
    host.send_offer(&offer).unwrap();
    let received = agent.receive_offer(7, SOON).unwrap();
    assert_eq!((received.subsystem, received.lines), (subsystem, lines));
    assert_eq!((received.doorbells.len(), received.files.len()), (DOORBELLS_MAX, FILES_MAX));
    assert_eq!(received.link, text);
    let theirs = Memory::map(received.memory.as_fd(), 5, 4, 3).unwrap();
    let word = &theirs.region(wave_core::link::Home::Host)[0];
    assert_eq!(word.load(std::sync::atomic::Ordering::Acquire), 42);
    assert!(listener.accept().unwrap().is_none());
    // SAFETY: the descriptor is open; no memory is involved.
    let flags = unsafe { libc::fcntl(received.memory.as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
}

#[test]
fn another_version_is_refused_and_both_are_named() {
    let scratch = Scratch::new();
    let (_listener, host, agent) = pair(&scratch);
    let (_memory, fd) = Memory::create("test", 1, 0, 0).unwrap();
    // The second value is that of RPC hosts until version 3, with bits above the version.
    for version in [2, 1 << 30 | 2 << 16 | 2] {
        let offer = Offer {
            version,
            subsystem: SubsystemId::NONE,
            lines: [1, 0, 0],
            memory: fd.as_fd(),
            doorbells: &[],
            files: &[],
            link: "shm",
        };
        host.send_offer(&offer).unwrap();
        let error = agent.receive_offer(1, SOON).unwrap_err();
        assert!(matches!(error, SocketError::Version { ours: 1, theirs: 2 }));
        assert_eq!(error.to_string(), "the host offers version 2, this agent needs 1");
    }
}

#[test]
fn a_refusal_carries_its_reason() {
    let scratch = Scratch::new();
    let (_listener, host, agent) = pair(&scratch);
    host.refuse("the enclave has an agent").unwrap();
    let error = agent.receive_offer(1, SOON).unwrap_err();
    assert_eq!(error.to_string(), "the host refused: the enclave has an agent");
}

#[test]
fn descriptors_that_were_not_announced_are_an_error() {
    let scratch = Scratch::new();
    let (_listener, host, agent) = pair(&scratch);
    let file = File::open("/dev/null").unwrap();
    let fds = [file.as_fd(); 3];
    let header = Header {
        version: 1,
        kind: KIND_OFFER,
        subsystem: 0,
        lines: [1; 3],
        doorbells: 1,
        files: 0,
        text_bytes: 0,
    };
    raw(&host, &header, "", &fds);
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
    raw(&host, &header, "", &fds[..1]);
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
}

#[test]
fn files_follow_the_doorbells_and_do_not_change_other_offers() {
    let scratch = Scratch::new();
    let (_listener, host, agent) = pair(&scratch);
    let fds = ["memory", "bell", "payload"].map(|name| {
        let path = scratch.path(name);
        fs::write(&path, name).unwrap();
        File::open(path).unwrap()
    });
    let [memory, bell, payload] = [&fds[0], &fds[1], &fds[2]].map(AsFd::as_fd);
    let subsystem = SubsystemId::new(5);
    let lines = [1; 3];
    let bells = [bell];
    let files = [payload];
    let mut offer =
        Offer { version: 1, subsystem, lines, memory, doorbells: &bells, files: &files, link: "" };
    host.send_offer(&offer).unwrap();
    let received = agent.receive_offer(1, SOON).unwrap();
    let content = |fd: &OwnedFd| io::read_to_string(File::from(fd.try_clone().unwrap())).unwrap();
    let all: Vec<_> = received.doorbells.iter().chain(&received.files).map(content).collect();
    assert_eq!(
        (content(&received.memory).as_str(), all),
        ("memory", vec!["bell".into(), "payload".into()])
    );

    offer.files = &[];
    host.send_offer(&offer).unwrap();
    let mut bytes = [0; 64];
    let got = ancillary::receive(agent.as_fd(), &mut bytes).unwrap();
    // Before offers had files, this word was the count of doorbells.
    assert_eq!((got.bytes, &bytes[28..32]), (HEADER_BYTES, &1_u32.to_le_bytes()[..]));

    let four = [payload; FILES_MAX + 1];
    offer.files = &four;
    assert!(matches!(host.send_offer(&offer), Err(SocketError::TooLarge)));
    let header = Header {
        version: 1,
        kind: KIND_OFFER,
        subsystem: 5,
        lines,
        doorbells: 1,
        files: 1,
        text_bytes: 0,
    };
    raw(&host, &header, "", &[memory, bell]);
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
}

#[test]
fn an_offer_can_be_refused_by_the_side_that_listens() {
    let scratch = Scratch::new();
    let (_listener, agent, host) = pair(&scratch);
    assert_eq!(host.refusal(), None);
    agent.refuse("too many processes").unwrap();
    assert_eq!(host.refusal().as_deref(), Some("too many processes"));
    drop(agent);
    assert_eq!(host.refusal(), None);
}

#[test]
fn a_refusal_is_read_even_if_the_offer_was_left_unread() {
    let scratch = Scratch::new();
    let (_listener, agent, host) = pair(&scratch);
    raw(&host, &OFFER, "", &[]);
    agent.refuse("too many processes").unwrap();
    drop(agent);
    assert_eq!(host.refusal().as_deref(), Some("too many processes"));
}

#[test]
fn text_that_is_shorter_than_announced_is_an_error() {
    let scratch = Scratch::new();
    let (_listener, host, agent) = pair(&scratch);
    let file = File::open("/dev/null").unwrap();
    let header = Header { text_bytes: 4, ..OFFER };
    raw(&host, &header, "abc", &[file.as_fd()]);
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
    ancillary::send(host.as_fd(), b"wavelink", &[]).unwrap();
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
}

#[test]
fn a_silent_host_times_out_and_a_dead_host_hangs_up() {
    let scratch = Scratch::new();
    let (_listener, host, agent) = pair(&scratch);
    assert!(matches!(agent.receive_offer(1, Some(Duration::ZERO)), Err(SocketError::Timeout)));
    assert!(agent.is_alive() && host.is_alive());
    assert_eq!(agent.peer_pid(), std::process::id() as i32);
    drop(host);
    assert!(agent.hung_up());
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::HungUp)));
}

#[test]
fn a_dead_agent_does_not_kill_the_host() {
    let scratch = Scratch::new();
    let (_listener, host, agent) = pair(&scratch);
    drop(agent);
    assert!(host.hung_up());
    assert!(matches!(host.refuse("too late"), Err(SocketError::HungUp)));
}

#[test]
fn only_a_stale_socket_is_replaced_and_the_file_goes_with_its_listener() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let first = Listener::bind(&path, &[]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Listener::bind(&path, &[]), Err(SocketError::InUse(_))));
    drop(first);
    assert!(!path.exists());
    // A listener that died leaves its file.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let second = Listener::bind(&path, &[]).unwrap();
    fs::remove_file(&path).unwrap();
    let third = Listener::bind(&path, &[]).unwrap();
    drop(second);
    assert!(path.exists());
    drop(third);
    fs::write(&path, "mine").unwrap();
    assert!(matches!(Listener::bind(&path, &[]), Err(SocketError::NotASocket(_))));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn this_user_root_and_listed_users_may_attach() {
    assert!(may_attach(7, 7, &[]));
    assert!(may_attach(0, 7, &[]));
    assert!(may_attach(8, 7, &[9, 8]));
    assert!(!may_attach(8, 7, &[9]));
    assert!(!may_attach(7, 0, &[]));
}

#[test]
fn a_link_is_neither_followed_nor_replaced() {
    let scratch = Scratch::new();
    let (link, target) = (scratch.path("link"), scratch.path("target"));
    symlink(&target, &link).unwrap();
    assert!(matches!(Listener::bind(&link, &[]), Err(SocketError::NotASocket(_))));
    assert!(!target.exists());
    // Not even a link to a socket that could itself be replaced.
    drop(UnixListener::bind(&target).unwrap());
    let before = fs::metadata(&target).unwrap();
    assert!(matches!(Listener::bind(&link, &[]), Err(SocketError::NotASocket(_))));
    let after = fs::metadata(&target).unwrap();
    assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()));
    assert!(link.is_symlink());
}

#[test]
fn a_link_in_place_of_the_socket_is_not_removed_with_the_listener() {
    let scratch = Scratch::new();
    let listener = Listener::bind(&scratch.socket(), &[]).unwrap();
    fs::rename(scratch.socket(), scratch.path("moved")).unwrap();
    symlink(scratch.path("moved"), scratch.socket()).unwrap();
    drop(listener);
    assert!(scratch.socket().is_symlink() && scratch.path("moved").exists());
}

#[test]
fn a_dead_socket_of_another_user_is_left_alone() {
    if !geteuid().is_root() {
        return wave_skip::skip("giving files to other users needs root");
    }
    let scratch = Scratch::new();
    drop(UnixListener::bind(scratch.socket()).unwrap());
    chown(scratch.socket(), Some(65534), None).unwrap();
    let error = Listener::bind(&scratch.socket(), &[]).unwrap_err();
    assert!(matches!(error, SocketError::AnotherUsers { uid: 65534, .. }), "{error}");
    assert!(scratch.socket().exists());
}

#[test]
fn a_missing_folder_is_an_error_and_is_not_made() {
    let scratch = Scratch::new();
    let error = Listener::bind(&scratch.path("typo/kv.sock"), &[]).unwrap_err();
    assert!(error.to_string().contains("the folder of"), "{error}");
    assert!(!scratch.path("typo").exists());
}

#[test]
fn a_peer_that_dies_with_a_message_unread_has_hung_up_after_its_last_message() {
    let scratch = Scratch::new();
    let (_listener, host, agent) = pair(&scratch);
    host.send_descriptors(b"unread", &[]).unwrap();
    agent.send_descriptors(b"last", &[]).unwrap();
    drop(agent);
    let receive = || host.receive_descriptors(Duration::from_secs(10));
    assert_eq!(receive().unwrap().0, b"last");
    assert!(matches!(receive(), Err(SocketError::HungUp)));
}
