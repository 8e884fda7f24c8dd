use super::*;
use crate::memory::Memory;
use std::fs::File;

/// A directory of our own, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("wave-links-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Scratch(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
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

#[test]
fn an_offer_arrives_with_memory_doorbells_and_text() {
    let scratch = Scratch::new("offer");
    let (listener, host, agent) = pair(&scratch);
    let (memory, fd) = Memory::create("test", 5, 4, 3).unwrap();
    memory.region(wave_core::link::Home::Host)[0].store(42, std::sync::atomic::Ordering::Release);
    let bells: Vec<_> = (0..DOORBELLS_MAX).map(|_| fd.try_clone().unwrap()).collect();
    let doorbells: Vec<_> = bells.iter().map(|bell| bell.as_fd()).collect();
    let text = "x".repeat(TEXT_BYTES_MAX);
    let lines = [5, 4, 3];
    let offer = Offer { version: 7, lines, memory: fd.as_fd(), doorbells: &doorbells, link: &text };
    host.send_offer(&offer).unwrap();
    let received = agent.receive_offer(7, SOON).unwrap();
    assert_eq!(received.lines, lines);
    assert_eq!(received.doorbells.len(), DOORBELLS_MAX);
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
fn another_version_is_named_with_ours() {
    let scratch = Scratch::new("version");
    let (_listener, host, agent) = pair(&scratch);
    let (_memory, fd) = Memory::create("test", 1, 0, 0).unwrap();
    let lines = [1, 0, 0];
    let offer = Offer { version: 2, lines, memory: fd.as_fd(), doorbells: &[], link: "shm" };
    host.send_offer(&offer).unwrap();
    let error = agent.receive_offer(1, SOON).unwrap_err();
    assert!(matches!(error, SocketError::Version { ours: 1, theirs: 2 }));
    assert_eq!(error.to_string(), "the host offers version 2, this agent needs 1");
}

#[test]
fn a_refusal_carries_its_words() {
    let scratch = Scratch::new("refusal");
    let (_listener, host, agent) = pair(&scratch);
    host.refuse("the enclave has an agent").unwrap();
    let error = agent.receive_offer(1, SOON).unwrap_err();
    assert_eq!(error.to_string(), "the host refused: the enclave has an agent");
}

#[test]
fn descriptors_that_were_not_announced_are_an_error() {
    let scratch = Scratch::new("surplus");
    let (_listener, host, agent) = pair(&scratch);
    let file = File::open("/dev/null").unwrap();
    let fds = [file.as_fd(); 3];
    let header =
        Header { version: 1, kind: KIND_OFFER, lines: [1; 3], doorbells: 1, text_bytes: 0 };
    raw(&host, &header, "", &fds);
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
    raw(&host, &header, "", &fds[..1]);
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
}

#[test]
fn text_that_is_shorter_than_announced_is_an_error() {
    let scratch = Scratch::new("short");
    let (_listener, host, agent) = pair(&scratch);
    let file = File::open("/dev/null").unwrap();
    let header =
        Header { version: 1, kind: KIND_OFFER, lines: [1; 3], doorbells: 0, text_bytes: 4 };
    raw(&host, &header, "abc", &[file.as_fd()]);
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
    ancillary::send(host.as_fd(), b"wavelink", &[]).unwrap();
    assert!(matches!(agent.receive_offer(1, SOON), Err(SocketError::Malformed(_))));
}

#[test]
fn a_silent_host_is_a_timeout_and_a_dead_one_is_not() {
    let scratch = Scratch::new("silent");
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
    let scratch = Scratch::new("dead");
    let (_listener, host, agent) = pair(&scratch);
    drop(agent);
    assert!(host.hung_up());
    assert!(matches!(host.refuse("too late"), Err(SocketError::HungUp)));
}

#[test]
fn only_a_stale_socket_is_replaced_and_the_file_goes_with_its_listener() {
    let scratch = Scratch::new("stale");
    let path = scratch.socket();
    let first = Listener::bind(&path, &[]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&scratch.0).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(matches!(Listener::bind(&path, &[]), Err(SocketError::InUse(_))));
    drop(first);
    assert!(!path.exists());
    // A listener that died leaves its file.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
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
fn our_own_user_root_and_listed_users_may_attach() {
    assert!(may_attach(7, 7, &[]));
    assert!(may_attach(0, 7, &[]));
    assert!(may_attach(8, 7, &[9, 8]));
    assert!(!may_attach(8, 7, &[9]));
    assert!(!may_attach(7, 0, &[]));
}
