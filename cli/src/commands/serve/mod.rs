//! `wave serve`: servers for load tests and interoperability tests.

mod toe;

use std::fmt::Display;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use wave_agent::OutputFile;
use wave_confine::{Limited, Profile, Role};
use wave_grpc::listen_address;
use wave_process::cpus::Cpus;
use wave_process::say;
use wave_process::words::counted;
use wave_user::rpc::{Options, Server};
use wave_workloads::grpc::onhost::OnHost;
use wave_workloads::grpc::store::Store;
use wave_workloads::rocksdb::{self, Database};

use crate::interop;
use wave_experiments::store;
use wave_terminal::{Failure, Progress};

#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Serve RocksDB in memory by gRPC.
    Kv(KvArgs),
    /// Serve gRPC's interoperability tests.
    Interop(InteropArgs),
    /// Serve bytes by HTTP/1.1 over an agent's TCP.
    Http(toe::ToeArgs),
    /// Echo bytes over an agent's TCP.
    Echo(toe::ToeArgs),
}

#[derive(Args, Debug)]
#[command(
    after_help = "Serves grpc.testing.TestService (grpc/doc/interop-test-descriptions.md), and the load reports that its ORCA tests ask
for, behind an agent's front, until Ctrl-C or SIGTERM: point any implementation's interop client at the agent.

Examples:
  wave serve interop --offload /tmp/interop.sock
  wave serve interop --offload /tmp/interop.sock --workers 4 --ring 2     the smallest queues
  wave agent --rpc /tmp/interop.sock --listen 127.0.0.1:50051             in another terminal

Exit codes: 0 ended by Ctrl-C or SIGTERM; 2 bad arguments; 3 the socket is not available."
)]
struct InteropArgs {
    /// Serve requests from the agent attached to this socket.
    #[arg(long, value_name = "SOCKET")]
    offload: PathBuf,
    /// Users whose agents may attach, besides this user and root. They also need write permission on the socket: chmod or setfacl.
    #[arg(long, value_name = "UID,...", value_delimiter = ',')]
    allow: Vec<u32>,
    /// End each frame in the window with a checksum, in both directions: a damaged frame is an error, never a wrong value.
    #[arg(long)]
    checksums: bool,
    /// Number of workers, each of which serves one call at a time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=240))]
    workers: u16,
    /// Number of entries in each queue, of 56 bytes of payload each; a power of two.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    ring: u32,
}

#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("placement").required(true).args(["on_host", "offload"]),
    after_help = "Serves workloads/proto/kv.proto (Get, Put, Range) and echo.proto, until Ctrl-C or SIGTERM. The store is
filled with --keys keys, counted from 0, eight bytes each, big-endian. It is deleted when the server ends.

With --offload an agent's front terminates TCP, HTTP/2 and gRPC, and passes requests on in queues. Start the agent
before or after this command. --cpus then names the workers' CPUs.

With --on-host the host's own cores do everything, as a baseline for offloaded servers: tonic, with a single-threaded runtime
on each of --cpus. The kernel distributes connections (SO_REUSEPORT), so open several for each core.

Examples:
  wave serve kv --on-host --listen 127.0.0.1:50051
  wave serve kv --on-host --listen 0.0.0.0:50051 --cpus 0-3 --keys 1000000
  wave serve kv --offload /tmp/kv.sock --cpus 0-1
  wave agent --rpc /tmp/kv.sock --listen 127.0.0.1:50051       in another terminal
  wave load grpc --target 127.0.0.1:50051 --rate 10000         in a third terminal
  wave agent --rpc /tmp/kv.sock --udp 127.0.0.1:50052          instead, for requests in datagrams
  wave load udp --target 127.0.0.1:50052 --rate 10000

Exit codes: 0 ended by Ctrl-C or SIGTERM; 2 bad arguments; 3 the address, the socket, a CPU or the database is not available."
)]
struct KvArgs {
    /// Serve from the host's own cores.
    #[arg(long)]
    on_host: bool,
    /// Serve requests from the agent attached to this socket.
    #[arg(long, value_name = "SOCKET")]
    offload: Option<PathBuf>,
    /// Users whose agents may attach, besides this user and root. They also need write permission on the socket: chmod or setfacl.
    #[arg(long, value_name = "UID,...", value_delimiter = ',', requires = "offload")]
    allow: Vec<u32>,
    /// End each frame in the window with a checksum, in both directions: a damaged frame is an error, never a wrong value.
    #[arg(long, requires = "offload")]
    checksums: bool,
    /// Address to listen on; port 0 is any free one.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:50051",
        value_parser = listen_address,
        conflicts_with = "offload"
    )]
    listen: SocketAddr,
    /// CPUs to serve from, a thread on each, such as 0-3,8 [default: one thread on any CPU].
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// Number of keys in the store.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keys: u64,
    /// Size of each value, in bytes.
    #[arg(long, value_name = "N", default_value_t = 64)]
    value_bytes: usize,
    /// Append the key of each executed PUT to this file, one per line.
    #[arg(long, value_name = "FILE")]
    log_writes: Option<OutputFile>,
    /// Print one JSON object instead of a line once the server listens.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub fn execute(args: &ServeArgs) -> ExitCode {
    let done = match &args.what {
        What::Kv(args) => kv(args),
        What::Interop(args) => interop(args),
        What::Http(args) => toe::http(args),
        What::Echo(args) => toe::echo(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say!("wave serve: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn kv(args: &KvArgs) -> Result<(), Failure> {
    // Registered first, so that no signal is lost.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::cannot)?;
    let log = args.log_writes.as_ref().map(|file| file.find()?.appended()).transpose()?;
    // First, because a confined process can read libraries in the system's folders only.
    rocksdb::load().map_err(Failure::cannot)?;
    // Before any thread starts. An on-host server is not confined: it is the baseline for offloaded ones.
    let limited = args.offload.as_deref().map(|socket| {
        // Folder of the store's database.
        let folder = Some(Path::new("/dev/shm")).filter(|folder| folder.exists());
        limit(profile(socket).with_writes(folder.map_or_else(std::env::temp_dir, Path::to_owned)))
    });
    let limited = limited.transpose()?;
    let store = fill(args, log)?;
    let cpus = args.cpus.as_deref().unwrap_or_default();
    match &args.offload {
        None => {
            let server = OnHost::start(args.listen, cpus, &store).map_err(Failure::cannot)?;
            tell(args, "address", &server.address().to_string(), cpus.len().max(1));
            signals.forever().next();
            server.stop().map_err(Failure::cannot)
        }
        Some(socket) => {
            let options = options(socket, &args.allow).workers(workers(cpus)?);
            let checksums = args.checksums;
            let options = Options { cpus: cpus.to_vec(), checksums, ..options };
            let server = Server::start(options, store::methods(store)).map_err(Failure::cannot)?;
            seal(limited)?;
            tell(args, "socket", &socket.display().to_string(), cpus.len().max(1));
            signals.forever().next();
            drop(server);
            Ok(())
        }
    }
}

fn interop(args: &InteropArgs) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::cannot)?;
    let limited = limit(profile(&args.offload))?;
    let mut options = options(&args.offload, &args.allow).workers(args.workers);
    // On few CPUs, workers that wait must give way to each other and to the clients.
    options.yields_cpu = true;
    options.checksums = args.checksums;
    (options.config.messages.entries, options.config.decisions.entries) = (args.ring, args.ring);
    options.config.prestage = options.config.prestage.min((args.ring / 2) as u16);
    let server = Server::start(options, interop::methods()).map_err(Failure::cannot)?;
    seal(Some(limited))?;
    let socket = args.offload.display();
    wave_process::tell!(
        "Serving grpc.testing.TestService at {socket}; Ctrl-C ends it\nNext: {}",
        next(&socket, "127.0.0.1:50051")
    );
    signals.forever().next();
    drop(server);
    Ok(())
}

fn options(socket: &Path, allow: &[u32]) -> Options {
    Options { allowed_uids: allow.to_vec(), ..Options::new(socket) }
}

fn workers(cpus: &[usize]) -> Result<u16, Failure> {
    u16::try_from(cpus.len().max(1)).map_err(Failure::cannot)
}

fn profile(socket: &Path) -> Profile {
    Profile::of(Role::Server).with_socket(socket)
}

/// Gives up all rights except the profile's. The system-call filter is installed later, by [`seal`].
fn limit(profile: Profile) -> Result<Limited, Failure> {
    profile.limit().map_err(Failure::cannot)
}

/// Installs the system-call filter. Called once all threads have started.
fn seal(limited: Option<Limited>) -> Result<(), Failure> {
    limited.map_or(Ok(()), |limited| limited.seal().map(|_| ()).map_err(Failure::cannot))
}

/// The command that starts an agent with a gRPC front.
fn next(socket: &dyn Display, listen: impl Display) -> String {
    format!("wave agent --rpc {socket} --listen {listen}")
}

/// The same, with a front for datagrams.
fn next_udp(socket: &dyn Display) -> String {
    format!("wave agent --rpc {socket} --udp 127.0.0.1:50052")
}

/// Prints that the server is ready, and its address or socket.
fn tell(args: &KvArgs, place: &str, name: &str, threads: usize) {
    let placement = if args.on_host { "on-host" } else { "offload" };
    if args.json {
        let mut told = json!({
            "serves": "kv",
            "placement": placement,
            "pid": std::process::id(),
            "threads": threads,
            "keys": args.keys,
            "value_bytes": args.value_bytes,
        });
        told[place] = name.into();
        wave_process::tell!("{told}");
    } else {
        wave_process::tell!(
            "Serving {} at {name} ({placement}, threads: {threads}); Ctrl-C ends it",
            counted(args.keys, "key")
        );
        if !args.on_host {
            wave_process::tell!("Next: {}", next(&name, args.listen));
            wave_process::tell!("Or, for requests in datagrams: {}", next_udp(&name));
        }
    }
}

fn fill(args: &KvArgs, log: Option<File>) -> Result<Store, Failure> {
    let progress = Progress::new(1, args.quiet || args.json);
    progress.begin("filling the store");
    let mut database = Database::open_in_order(None).map_err(Failure::cannot)?;
    database.fill(args.keys, args.value_bytes, |_, _| {}).map_err(Failure::cannot)?;
    progress.end();
    let store = Store::new(database);
    Ok(match log {
        None => store,
        Some(file) => store.with_log_of_writes(file),
    })
}
