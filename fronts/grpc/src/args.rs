//! Command-line arguments of the gRPC front.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use wave_agent::Seat;
use wave_links::LinkSpec;
use wave_process::cpus::Cpus;

use crate::front::RpcOptions;
use crate::limits::Limits;

/// The arguments of a front: its RPC server, its addresses, and its limits.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "RPCs")]
pub struct RpcArgs {
    /// Take gRPC requests (--listen) for the host that serves RPCs at this socket. The agent also listens while there is no
    /// host, and attaches as soon as one starts. With --attach or --device as well, one agent does both, and its scheduler gets
    /// a note of each request.
    #[arg(long, value_name = "SOCKET", requires = "clients", conflicts_with = "notes_from")]
    pub rpc: Option<PathBuf>,
    /// Address on which clients connect; may be repeated.
    #[arg(long, value_name = "ADDRESS:PORT", group = "clients", requires = "rpc", value_parser = listen_address)]
    pub listen: Vec<SocketAddr>,
    /// Policy that chooses the worker of a call: rss, round-robin, jbsq, multi-queue or darc, with settings as in `jbsq:k=1`.
    #[arg(long, value_name = "NAME", default_value = "jbsq", requires = "rpc")]
    pub steer: String,
    /// Serve the connections (TCP, TLS, HTTP/2, gRPC) on these CPUs, such as 2-3, with a thread on each. The agent's own core
    /// (--cpu) then only steers; without this option it does both.
    #[arg(long, value_name = "LIST", requires = "listen")]
    pub connection_cpus: Option<Cpus>,
    /// Offer notes at this socket. They tell a scheduler in another agent (its --notes-from) about each request that is handed
    /// to a thread. Not with --attach or --device, where the scheduler is in this agent.
    #[arg(long, value_name = "SOCKET")]
    pub notes: Option<PathBuf>,
    /// Link to the scheduler that takes notes: shm, or a modelled link by its name or cost file.
    #[arg(long, value_name = "LINK", default_value = "shm", requires = "notes", value_parser = link)]
    pub notes_link: LinkSpec,
    /// Users whose schedulers may take notes, besides this user and root. They also need write permission on the socket (chmod
    /// or setfacl).
    #[arg(long, value_name = "UID,...", value_delimiter = ',', requires = "notes")]
    pub notes_allow: Vec<u32>,
    /// Certificate in PEM. With it, clients must speak TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Send a load report (ORCA) in the trailers of each call, for clients that balance load. Streams of load reports
    /// (OpenRcaService) are available in any case.
    #[arg(long, requires = "listen")]
    pub load_reports: bool,
    /// Largest message of a client in KiB, before and after compression; a larger one gets RESOURCE_EXHAUSTED. Replies are
    /// limited by --held-mib, and to 72 MiB.
    #[arg(long, value_name = "KIB", default_value_t = 4096, requires = "listen",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_536))]
    pub message_kib: u32,
    /// Largest request headers in KiB; larger ones get HTTP status 431.
    #[arg(long, value_name = "KIB", default_value_t = 16, requires = "listen",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=1024))]
    pub header_kib: u32,
    /// Most connections at once. No address has more than it leaves for others; if there is no room, the connection that has
    /// been idle for longest gets a GOAWAY.
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "listen",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_536))]
    pub connections: u32,
    /// Most calls at once on a connection; clients delay further calls.
    #[arg(long, value_name = "N", default_value_t = 128, requires = "listen",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_536))]
    pub streams: u32,
    /// Memory for all calls and messages, in MiB. No address holds more than it leaves for others; a call beyond that gets
    /// RESOURCE_EXHAUSTED.
    #[arg(long, value_name = "MIB", default_value_t = 256, requires = "listen",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=1 << 20))]
    pub held_mib: u32,
    /// Seconds without a new call after which a client is pinged, and dropped if it does not answer.
    #[arg(long, value_name = "S", default_value_t = 60, requires = "listen",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=86_400))]
    pub keepalive_s: u32,
    /// Seconds without a call after which a connection is closed (GOAWAY).
    #[arg(long, value_name = "S", default_value_t = 300, requires = "listen",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=604_800))]
    pub idle_s: u32,
    /// Seconds that open calls may continue after SIGTERM.
    #[arg(long, value_name = "S", default_value_t = 10, requires = "listen",
        value_parser = RangedU64ValueParser::<u32>::new().range(0..=3600))]
    pub drain_s: u32,
}

impl RpcArgs {
    /// Options of the front; `None` without a host.
    pub fn options(&self, seat: Seat, quiet: bool) -> Option<RpcOptions> {
        let seconds = |count: u32| Duration::from_secs(count.into());
        Some(RpcOptions {
            host: self.rpc.clone()?,
            listen: self.listen.clone(),
            steer: self.steer.clone(),
            tls: self.tls_cert.clone().zip(self.tls_key.clone()),
            limits: Limits {
                message_bytes: self.message_kib << 10,
                header_bytes: self.header_kib << 10,
                connections: self.connections,
                streams: self.streams,
                held_bytes: (self.held_mib as usize) << 20,
                keepalive: seconds(self.keepalive_s),
                idle: seconds(self.idle_s),
                drain: seconds(self.drain_s),
            },
            load_reports: self.load_reports,
            connection_cpus: self.connection_cpus.as_deref().unwrap_or_default().to_vec(),
            seat,
            quiet,
        })
    }
}

/// An address to listen on, from the command line.
///
/// # Errors
/// The text is not an address and a port.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "write an IP address (not a name) and a port, such as 127.0.0.1:50051, 0.0.0.0:50051 or [::1]:50051".to_owned()
    })
}

fn link(text: &str) -> Result<LinkSpec, String> {
    let text = text.strip_prefix("model:").unwrap_or(text);
    if let Some(link) = LinkSpec::builtin(text) {
        return Ok(link);
    }
    let file = std::fs::read_to_string(text).map_err(|error| {
        format!(
            "neither `shm`, nor a modelled link's name, nor a cost file that can be read: {error}"
        )
    })?;
    LinkSpec::parse(&file).map_err(|error| error.to_string())
}
