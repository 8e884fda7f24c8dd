//! A host with six methods, or one that serves memcached commands, and a front before it.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wave_agent::{Seat, serve};
use wave_rpc::memcached::{Item, PATHS, Set};
use wave_rpc::service::Method;
use wave_rpc::status::{Code, Status};
use wave_udp::{Counts, Ender, UdpFront, UdpOptions};
use wave_udp_client::wire::{self, Header, IDEMPOTENT, REFUSED, REPLY};
use wave_udp_client::{Call, Client};
use wave_user::rpc::{self, Methods, Options, Server};

/// Method numbers, in registration order.
pub const ECHO: u16 = 0;
pub const CHAT: u16 = 1;
pub const WAIT: u16 = 2;
pub const FAIL: u16 = 3;
pub const REPEAT: u16 = 4;
pub const CLASS: u16 = 5;

/// A test that waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Number of handlers that began, and the flag that [`WAIT`] waits for.
#[derive(Default)]
pub struct Seen {
    pub begun: AtomicU64,
    pub may_end: AtomicBool,
}

pub struct Fixture {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    folder: TempDir,
    server: Option<Server>,
    front: Option<JoinHandle<Counts>>,
    ender: Ender,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with(|options| options.workers(2))
    }

    pub fn with(options: impl Fn(Options) -> Options) -> Fixture {
        let mut fixture = Fixture::without_host();
        fixture.start_host(options);
        fixture.until_served();
        fixture
    }

    /// A front that speaks memcached's protocol, before a host that serves it.
    pub fn of_memcached() -> Fixture {
        Fixture::of_memcached_with(|options| options.workers(1))
    }

    pub fn of_memcached_with(host: impl Fn(Options) -> Options) -> Fixture {
        let loopback = "127.0.0.0/8".parse().unwrap();
        Fixture::new_with(
            |options| options.memcached = Some(vec![loopback]),
            |fixture| {
                let options = host(Options::new(fixture.folder.path().join("host")));
                let methods = memcached_methods(&fixture.seen);
                fixture.server = Some(Server::start(options, methods).unwrap());
                fixture.until_commands_are_served();
            },
        )
    }

    pub fn without_host() -> Fixture {
        Fixture::new_with(|_| {}, |_| {})
    }

    /// A front with other options; `begin` may start a host.
    pub fn new_with(
        change: impl FnOnce(&mut UdpOptions),
        begin: impl FnOnce(&mut Fixture),
    ) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(&folder.path().join("host"), ([127, 0, 0, 1], 0).into());
        change(&mut options);
        let (sender, receiver) = channel();
        let front = std::thread::spawn(move || {
            let mut front = UdpFront::new(options, Instant::now()).unwrap();
            sender.send((front.address(), front.ender())).unwrap();
            serve(&mut front);
            front.counts()
        });
        let (address, ender) = receiver.recv().unwrap();
        let seen = Arc::default();
        let mut fixture =
            Fixture { address, seen, folder, server: None, front: Some(front), ender };
        begin(&mut fixture);
        fixture
    }

    pub fn start_host(&mut self, options: impl Fn(Options) -> Options) {
        let options = options(Options::new(self.folder.path().join("host")));
        self.server = Some(Server::start(options, methods(&self.seen)).unwrap());
    }

    pub fn stop_host(&mut self) {
        self.server = None;
    }

    /// Waits until the front has found the host. Unlike a [`Client`], which would retry if the host is slow, this sends each
    /// request once: tests count the tries.
    pub fn until_served(&self) {
        let raw = self.raw();
        for id in 1.. {
            raw.send(Header { flags: IDEMPOTENT, ..raw.header(ECHO, id) }, b"there?");
            let (reply, _) = raw.reply();
            if wire::Status(reply.status) == wire::Status::OK {
                break;
            }
            assert!(reply.has(REFUSED), "{reply:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.seen.begun.store(0, SeqCst);
    }

    /// Waits until one memcached command was executed.
    fn until_commands_are_served(&self) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 128];
        loop {
            socket.send(b"\0\0\0\0\0\x01\0\0get warm\r\n").unwrap();
            let bytes = socket.recv(&mut buffer).expect("a reply comes");
            if buffer[..bytes].ends_with(b"END\r\n") {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address, PATIENCE).unwrap()
    }

    pub fn raw(&self) -> Raw {
        Raw::new(self.address)
    }

    pub fn begun(&self) -> u64 {
        self.seen.begun.load(SeqCst)
    }

    /// Ends the front and returns its counts.
    pub fn leave(mut self) -> Counts {
        self.seen.may_end.store(true, SeqCst);
        self.ender.end();
        self.front.take().unwrap().join().unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.seen.may_end.store(true, SeqCst);
        self.ender.end();
        if let Some(front) = self.front.take() {
            front.join().unwrap();
        }
    }
}

/// Options of a front under test.
pub fn options(host: &std::path::Path, address: SocketAddr) -> UdpOptions {
    UdpOptions {
        host: host.to_owned(),
        address,
        takes_public: false,
        memcached: None,
        steer: "jbsq:k=4".to_owned(),
        seat: Seat::Shared,
        quiet: true,
    }
}

pub fn echo(message: &[u8], idempotent: bool) -> Call<'_> {
    Call { method: ECHO, message, idempotent, ..Call::default() }
}

/// Sets the flag on drop, even after a failed assertion, so that the threads of a scope end.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A socket that sends arbitrary headers.
pub struct Raw {
    pub socket: UdpSocket,
    incarnation: u64,
    cookie: u64,
}

impl Raw {
    pub fn new(address: SocketAddr) -> Raw {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Raw { socket, incarnation: 0, cookie: 0 };
        raw.socket.send(&Header { flags: IDEMPOTENT, ..Header::default() }.encode()).unwrap();
        let (told, _) = raw.reply();
        (raw.incarnation, raw.cookie) = (told.incarnation, told.cookie);
        raw
    }

    /// A request header with the incarnation and cookie of this socket.
    pub fn header(&self, method: u16, id: u64) -> Header {
        let Raw { incarnation, cookie, .. } = *self;
        Header { method, id, incarnation, cookie, ..Header::default() }
    }

    pub fn send(&self, header: Header, message: &[u8]) {
        self.socket.send(&[&header.encode()[..], message].concat()).unwrap();
    }

    pub fn reply(&self) -> (Header, Vec<u8>) {
        let mut buffer = vec![0; 1 << 16];
        let bytes = self.socket.recv(&mut buffer).expect("a reply comes");
        let (header, message) =
            Header::decode(&buffer[..bytes]).expect("a reply in the front's format");
        assert!(header.has(REPLY));
        (header, message.to_vec())
    }
}

fn methods(seen: &Arc<Seen>) -> Methods {
    let method = |name: &str, client_streams, server_streams| Method {
        path: format!("/test.Test/{name}"),
        client_streams,
        server_streams,
        class: 1,
        class_max: 3,
        ..Method::default()
    };
    let (echoes, waits) = (Arc::clone(seen), Arc::clone(seen));
    Methods::new()
        .unary("/test.Test/Echo", move |_call, request| {
            echoes.begun.fetch_add(1, SeqCst);
            Ok(request.to_vec())
        })
        .method(method("Chat", true, true), |_: &mut rpc::Call<'_>| Ok(()))
        .unary("/test.Test/Wait", move |_call, request| {
            waits.begun.fetch_add(1, SeqCst);
            while !waits.may_end.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(request.to_vec())
        })
        .unary("/test.Test/Fail", |_call, request| {
            let text = String::from_utf8(request[1..].to_vec()).unwrap();
            Err(Status::new(Code::from_number(request[0].into()), text))
        })
        .unary("/test.Test/Repeat", |_call, request| {
            let bytes: usize = std::str::from_utf8(request).unwrap().parse().unwrap();
            Ok(vec![7; bytes])
        })
        .method(method("Class", false, false), |call: &mut rpc::Call<'_>| {
            call.receive()?;
            call.reply(&[call.class()])
        })
}

/// A store of items in memory. `get wait` waits as [`WAIT`] does; a key `broken` cannot be used.
fn memcached_methods(seen: &Arc<Seen>) -> Methods {
    let items = Arc::new(Mutex::new(HashMap::<Vec<u8>, (u32, Vec<u8>)>::new()));
    let (gets, sets, deletes) = (Arc::clone(&items), Arc::clone(&items), items);
    let seen = Arc::clone(seen);
    Methods::new()
        .unary(PATHS[0], move |_call, keys| {
            let mut reply = Vec::new();
            for key in keys.split(|byte| *byte == b' ') {
                while key == b"wait" && !seen.may_end.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if key == b"broken" {
                    return Err(Status::new(Code::Internal, "broken".to_owned()));
                }
                let items = gets.lock().unwrap();
                let item = items.get(key).map(|(flags, data)| Item { flags: *flags, data });
                Item::encode(item, &mut reply);
            }
            Ok(reply)
        })
        .unary(PATHS[1], move |_call, message| {
            let Set { flags, key, data, .. } = Set::decode(message).expect("the front encodes it");
            if key == b"broken" {
                return Err(Status::new(Code::InvalidArgument, "no\r\nsuch key".to_owned()));
            }
            sets.lock().unwrap().insert(key.to_vec(), (flags, data.to_vec()));
            Ok(Vec::new())
        })
        .unary(PATHS[2], move |_call, key| match deletes.lock().unwrap().remove(key) {
            Some(_) => Ok(Vec::new()),
            None => Err(Status::new(Code::NotFound, "no such key".to_owned())),
        })
}
