//! A host with some methods, and a front before it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wave_agent::{Seat, serve};
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_grpc::{Ender, Limits, RpcFront, RpcOptions};
use wave_rpc::service::Method;
use wave_rpc::status::{Code, Status};
use wave_user::Enclave;
use wave_user::rpc::{Call, Methods, Options, Server};

/// Variable with the number of connection cores of a test process's fronts.
pub const CONNECTION_CORES: &str = "WAVE_TEST_CONNECTION_CORES";

/// Time for workers to end their calls.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of connection cores; 0 unless the variable is set.
pub fn connection_cores() -> usize {
    std::env::var(CONNECTION_CORES).map_or(0, |count| count.parse().unwrap())
}

/// CPUs for `cores` cores, starting again from the first if there are fewer.
pub fn cpus(cores: usize) -> Vec<usize> {
    wave_process::cpus::allowed().unwrap().into_iter().cycle().take(cores).collect()
}

#[derive(Default)]
pub struct Seen {
    pub begun: AtomicU64,
    pub cancelled: AtomicU64,
}

pub struct Fixture {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    pub folder: TempDir,
    server: Option<Server>,
    /// The enclave of the server's threads, if it has threads. Declared after the server, which ends them.
    enclave: Option<Enclave>,
    front: Option<JoinHandle<Left>>,
    ender: Ender,
}

/// The state of a front that has ended.
pub struct Left {
    pub calls: usize,
    pub held: usize,
    /// Number of calls still open in the dispatcher, if a host is attached.
    pub at_host: Option<u32>,
    /// Number of connections that each connection core took.
    pub connections: Vec<u64>,
    /// Most bytes that a core read in one turn.
    pub read_max: u64,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with(Limits::default(), |options| options.workers(2))
    }

    pub fn with(limits: Limits, options: impl Fn(Options) -> Options) -> Fixture {
        let mut fixture = Fixture::without_host(limits);
        fixture.start_host(options);
        fixture
    }

    pub fn without_host(limits: Limits) -> Fixture {
        Fixture::made_of(limits, None)
    }

    pub fn made_of(limits: Limits, tls: Option<(&str, &str)>) -> Fixture {
        Fixture::on_cores(connection_cores(), limits, tls)
    }

    /// A front with this many connection cores.
    pub fn on_cores(cores: usize, limits: Limits, tls: Option<(&str, &str)>) -> Fixture {
        Fixture::reporting(false, cores, limits, tls)
    }

    /// A front with or without load reports in trailers.
    pub fn reporting(
        load_reports: bool,
        cores: usize,
        limits: Limits,
        tls: Option<(&str, &str)>,
    ) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let tls = tls.map(|(chain, key)| (file("cert", chain), file("key", key)));
        let options = RpcOptions {
            host: folder.path().join("host"),
            listen: vec![([127, 0, 0, 1], 0).into()],
            steer: "jbsq:k=4".into(),
            tls,
            limits,
            load_reports,
            connection_cpus: cpus(cores),
            seat: Seat::Shared,
            quiet: true,
        };
        let (sender, receiver) = channel();
        let front = std::thread::spawn(move || {
            let mut front = RpcFront::new(options, Instant::now()).unwrap();
            sender.send((front.addresses()[0], front.ender())).unwrap();
            serve(&mut front);
            let (calls, held) = front.open();
            let at_host = at_host(&mut front);
            let (connections, read_max) =
                (front.connections_by_core(), front.front_counts().read_max);
            Left { calls, held, at_host, connections, read_max }
        });
        let (address, ender) = receiver.recv().unwrap();
        let seen = Arc::default();
        Fixture { address, seen, folder, server: None, enclave: None, front: Some(front), ender }
    }

    pub fn start_host(&mut self, options: impl Fn(Options) -> Options) {
        let socket = self.folder.path().join("host");
        let methods = methods(&self.seen);
        self.server = Some(Server::start(options(Options::new(socket)), methods).unwrap());
    }

    /// Starts a host whose workers are threads of an enclave with two cores.
    pub fn start_threads(&mut self, options: impl Fn(Options) -> Options) {
        let mut cores = wave_user::Options::new(self.folder.path().join("threads")).cores(2);
        cores.yields_cpu = true;
        let enclave = Enclave::start(cores).unwrap();
        let socket = self.folder.path().join("host");
        let (options, methods) = (options(Options::new(socket)), methods(&self.seen));
        self.server = Some(Server::start_threads(options, methods, &enclave).unwrap());
        self.enclave = Some(enclave);
    }

    pub fn stop_host(&mut self) {
        self.server = None;
    }

    /// Asks the front to end, while calls continue.
    pub fn end(&self) {
        self.ender.end();
    }

    pub fn leave(self) -> Left {
        self.ender.end();
        self.joined()
    }

    /// Waits for a front that ends on its own. Returns its final state.
    pub fn joined(mut self) -> Left {
        self.front.take().unwrap().join().unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.ender.end();
        if let Some(front) = self.front.take() {
            front.join().unwrap();
        }
    }
}

/// Number of calls that stay open in the dispatcher. A front ends with its last client's call, but workers may still have to be
/// told of cancelled ones.
fn at_host(front: &mut RpcFront) -> Option<u32> {
    let start = Instant::now();
    loop {
        let open = front.host_counts().map(|(_, open)| open);
        if matches!(open, None | Some(0)) || start.elapsed() >= PATIENCE {
            return open;
        }
        front.poll(Nanos(0), &mut Vec::new());
        std::thread::yield_now();
    }
}

fn methods(seen: &Arc<Seen>) -> Methods {
    let method = |name: &str, client_streams, server_streams| Method {
        path: format!("/test.Test/{name}"),
        client_streams,
        server_streams,
        class: 1,
        class_max: 2,
        ..Method::default()
    };
    let (slept, begun) = (Arc::clone(seen), Arc::clone(seen));
    Methods::new()
        .unary("/test.Test/Echo", move |_call, request| {
            begun.begun.fetch_add(1, Ordering::Relaxed);
            Ok(request.to_vec())
        })
        .method(method("Chat", true, true), |call: &mut Call<'_>| {
            while let Some(message) = call.receive()? {
                call.compress(call.came_compressed());
                call.send(&message)?;
            }
            Ok(())
        })
        .method(method("Collect", true, false), |call: &mut Call<'_>| {
            let mut bytes = 0;
            while let Some(message) = call.receive()? {
                bytes += message.len();
            }
            call.reply(bytes.to_string().as_bytes())
        })
        .method(method("Repeat", false, true), |call: &mut Call<'_>| {
            let request = call.receive()?.unwrap();
            let numbers = String::from_utf8(request).unwrap();
            let (count, bytes) = numbers.split_once(' ').unwrap();
            for at in 0..count.parse::<u32>().unwrap() {
                call.send(&vec![at as u8; bytes.parse().unwrap()])?;
            }
            Ok(())
        })
        .method(method("Metadata", false, false), |call: &mut Call<'_>| {
            let encoded = call.metadata().as_bytes().to_vec();
            let metadata = wave_rpc::metadata::Metadata::new(&encoded).unwrap();
            let pairs: Vec<_> = metadata.iter().collect();
            call.headers(&pairs)?;
            for (key, value) in pairs {
                call.trailer(key, value).unwrap();
            }
            call.reply(&[call.class()])
        })
        .method(method("Fail", false, false), |call: &mut Call<'_>| {
            let request = call.receive()?.unwrap();
            call.trailer("grpc-status-details-bin", &[8, 5]).unwrap();
            let text = String::from_utf8(request[1..].to_vec()).unwrap();
            Err(Status::new(Code::from_number(request[0].into()), text))
        })
        .method(method("Heavy", false, false), |call: &mut Call<'_>| {
            let request = call.receive()?.unwrap();
            let value = [b'v'; 40_000];
            if request == b"headers" {
                call.headers(&[("a", &value), ("b", &value)])?;
            } else {
                call.trailer("a", &value)?;
                call.trailer("b", &value)?;
            }
            call.reply(&request)
        })
        .method(method("Sleep", false, true), move |call: &mut Call<'_>| {
            slept.begun.fetch_add(1, Ordering::SeqCst);
            let request = call.receive()?.unwrap();
            if !request.is_empty() {
                call.send(&request)?;
            }
            while !call.is_cancelled() {
                std::thread::yield_now();
            }
            slept.cancelled.fetch_add(1, Ordering::SeqCst);
            call.check_cancelled()
        })
        .method(method("Packed", false, true), |call: &mut Call<'_>| {
            let request = call.receive()?.unwrap();
            call.compress(true);
            call.send(&request)?;
            call.send(&[])?;
            call.compress(false);
            call.reply(&request)
        })
}
