//! Command-line arguments of the UDP front.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use wave_agent::{AgentArgs, CPUS_BESIDE_FRONT, Registry, Seat, serve_beside};
use wave_confine::{Profile, Role};
use wave_process::say;

use crate::front::{FrontError, UdpFront, UdpOptions};
use crate::memcached::Prefix;

/// The arguments of a front for requests in datagrams.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests in datagrams")]
pub struct UdpArgs {
    /// Take requests in datagrams instead of gRPC, at this address, for the host of --rpc (docs/guide/udp.md).
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address, group = "clients", requires = "rpc")]
    pub udp: Option<SocketAddr>,
    /// Also take datagrams from public addresses. Requests are neither encrypted nor authenticated.
    #[arg(long, requires = "udp")]
    pub udp_public: bool,
    /// Speak memcached's UDP protocol instead, and serve only these addresses and prefixes, such as 127.0.0.1,10.1.0.0/16.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "udp")]
    pub udp_memcached: Option<Vec<Prefix>>,
}

impl UdpArgs {
    /// Options of the front; `None` without a host or an address.
    pub fn options(
        &self,
        host: Option<&PathBuf>,
        steer: &str,
        agent: &AgentArgs,
    ) -> Option<UdpOptions> {
        Some(UdpOptions {
            host: host?.clone(),
            address: self.udp?,
            takes_public: self.udp_public,
            memcached: self.udp_memcached.clone(),
            steer: steer.to_owned(),
            seat: Seat::of(agent, CPUS_BESIDE_FRONT),
            quiet: agent.quiet,
        })
    }
}

/// Runs a UDP front for a host, beside a scheduler or alone, until SIGTERM or SIGINT.
pub fn execute(registry: &Registry, agent: &AgentArgs, options: UdpOptions) -> ExitCode {
    let profile = Profile::of(Role::Front).with_socket(&options.host);
    let prepare = || {
        UdpFront::new(options, Instant::now()).map_err(|error| {
            let is_argument = matches!(error, FrontError::Steer(_) | FrontError::Public(_));
            (if is_argument { 2 } else { 3 }, error.to_string())
        })
    };
    serve_beside(registry, agent, profile, prepare, |front| {
        if !agent.quiet {
            say!("wave agent: {} at {}", front.language(), front.address());
        }
        Ok(front)
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "write an IP address (not a name) and a port, such as 127.0.0.1:50052 or [::1]:50052"
            .to_owned()
    })
}
