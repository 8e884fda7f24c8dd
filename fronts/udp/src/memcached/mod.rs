//! memcached's UDP protocol as a second language of the front (docs/adr/0067): `get`, `set`, `delete` and `version`.
//!
//! The protocol has no cookie: the source address of a command may be forged, and a reply may be longer than its command. So
//! the front answers listed addresses only. It remembers no command that has ended: a command that arrives twice executes
//! twice.

mod prefix;
mod replies;
mod text;

use std::collections::HashMap;
use std::net::IpAddr;

use bytes::Bytes;
use wave_core::clock::Nanos;
use wave_rpc::client::Address;
use wave_rpc::dispatch::Refused;
use wave_rpc::memcached::PATHS;
use wave_rpc::service::Method;

pub use self::prefix::Prefix;
use self::replies::Verb;
pub use self::replies::{Asked, datagrams};
use self::text::{BadFrame, BadText, Command, frame, parse};
use crate::counts::{Counts, Fate};
use crate::door::NoHost;
use crate::host::{Host, Open, Origin};
use crate::path::Path;

/// Reply to `version`.
const VERSION: &str = concat!("VERSION ", env!("CARGO_PKG_VERSION"));

/// A reply that needs no worker: request id, and a line without its line end.
pub type Line = (u16, &'static str);

/// Takes commands from listed addresses.
pub struct Memcached {
    from: Vec<Prefix>,
    /// Number of open commands by client address; never 0.
    open: HashMap<Address, u32>,
}

impl Memcached {
    /// Serves commands from these addresses.
    pub fn new(from: Vec<Prefix>) -> Memcached {
        Memcached { from, open: HashMap::new() }
    }

    /// Judges a datagram, and hands its command to the host. Returns a reply if that needs no worker.
    pub fn take(
        &mut self,
        counts: &mut Counts,
        host: Result<&mut Host, NoHost>,
        now: Nanos,
        from: Path,
        datagram: &[u8],
    ) -> Option<Line> {
        counts.add(Fate::Received);
        if !self.from.iter().any(|prefix| prefix.has(from.client.ip())) {
            counts.add(Fate::Unlisted);
            return None;
        }
        let (request, text) = match frame(datagram) {
            Ok(found) => found,
            Err(why) => {
                counts.add(match why {
                    BadFrame::Short => Fate::Short,
                    BadFrame::Several => Fate::Several,
                });
                return None;
            }
        };
        let (command, is_quiet) = parse(text);
        let line = match command {
            Ok(command) => self.begin(
                counts,
                host,
                now,
                from,
                Asked::new(request, &command, is_quiet),
                command,
            ),
            Err(BadText::Incomplete) => {
                counts.add(Fate::Magic);
                return None;
            }
            Err(BadText::Reply) => {
                counts.add(Fate::Reply);
                return None;
            }
            Err(BadText::Wrong(line)) => {
                counts.add(Fate::Command);
                Some(line)
            }
        };
        line.filter(|_| !is_quiet).map(|line| (request, line))
    }

    fn begin(
        &mut self,
        counts: &mut Counts,
        host: Result<&mut Host, NoHost>,
        now: Nanos,
        from: Path,
        asked: Option<Asked>,
        command: Command<'_>,
    ) -> Option<&'static str> {
        let Some(asked) = asked else { return Some(VERSION) };
        let host = match host {
            Ok(host) => host,
            Err(why) => {
                counts.add(Fate::Host);
                return Some(why.line());
            }
        };
        let Some(methods) = host.memcached else {
            counts.add(Fate::Method);
            return Some("SERVER_ERROR the host does not serve memcached's commands");
        };
        let client = Address::from(from.client.ip());
        let of_client = self.open.get(&client).copied().unwrap_or(0);
        if of_client >= host.room() {
            counts.add(Fate::Busy);
            return Some("SERVER_ERROR too many requests are open");
        }
        let (method, message) = match command {
            Command::Get(keys) => (methods[0], keys.into_owned()),
            Command::Set(set) => (methods[1], set.encode()),
            Command::Delete(key) => (methods[2], key.to_vec()),
            Command::Version => return Some(VERSION),
        };
        let open = Open { to: from, origin: Origin::Memcached(asked), message: None };
        match host.begin(now, method, 0, message.into(), open) {
            Ok(()) => {
                counts.add(Fate::Begun);
                *self.open.entry(client).or_default() += 1;
                None
            }
            Err(Refused::Full) => {
                counts.add(Fate::Busy);
                Some("SERVER_ERROR too many requests are open")
            }
            Err(Refused::NoHost) => {
                counts.add(Fate::Host);
                Some(NoHost::NotReady.line())
            }
        }
    }

    /// Counts an open command of this address as ended.
    pub fn end(&mut self, ip: IpAddr) {
        let client = Address::from(ip);
        if let Some(open) = self.open.get_mut(&client) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&client);
            }
        }
    }
}

impl Asked {
    /// The parts of a command that its reply needs; `None` if the front answers the command by itself.
    fn new(request: u16, command: &Command<'_>, is_quiet: bool) -> Option<Asked> {
        let verb = match command {
            Command::Version => return None,
            Command::Get(keys) => Verb::Get(Bytes::copy_from_slice(keys)),
            Command::Set(_) => Verb::Set,
            Command::Delete(_) => Verb::Delete,
        };
        Some(Asked { request, verb, is_quiet })
    }
}

/// Indices of the methods Get, Set and Delete, if a host has them.
pub fn methods_of(methods: &[Method]) -> Option<[u16; 3]> {
    let mut found = [0; 3];
    for (path, found) in PATHS.iter().zip(&mut found) {
        *found = methods.iter().position(|method| method.path == *path)? as u16;
    }
    Some(found)
}
