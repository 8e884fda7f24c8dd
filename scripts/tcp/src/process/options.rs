//! Options of descriptors: setsockopt(2), getsockopt(2), fcntl(2), and the queries of ioctl(2).

use std::ops::RangeInclusive;

use rustix::io::Errno;
use wave_core::clock::Nanos;
use wave_posix::{KeepAlive, SocketOptions, Tail};

use super::{Answer, Process, Socket, Unsupported, done, failed, filled, names, number};
use crate::machine::Machine;
use crate::script::Argument;

/// Values that Linux accepts for TCP_MAXSEG.
const MAXSEG: RangeInclusive<i64> = 88..=32_767;
/// TCP_MAXSEG of a socket that is not connected.
const MSS_DEFAULT: i64 = 536;

/// Options of a socket. A connection inherits those of its listener.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Close sends a reset: SO_LINGER with a time of 0.
    pub resets: bool,
    /// TCP_NODELAY.
    is_eager: bool,
    /// TCP_CORK.
    is_corked: bool,
    /// SO_KEEPALIVE.
    keeps_alive: bool,
    /// TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT.
    keep_alive: KeepAlive,
    /// TCP_USER_TIMEOUT in milliseconds; 0 is the system default.
    user_timeout_ms: i64,
    /// TCP_MAXSEG; 0 if not set.
    maxseg: i64,
}

impl Options {
    /// Largest segment of a future connection, in bytes.
    pub fn mss_max(&self) -> u16 {
        if self.maxseg == 0 { u16::MAX } else { self.maxseg as u16 }
    }

    /// How bytes that do not fill a segment are sent.
    pub fn tail(&self, has_more: bool) -> Tail {
        match (has_more, self.is_corked) {
            (true, _) => Tail::More,
            (false, true) => Tail::Corked,
            (false, false) => Tail::Whole,
        }
    }

    /// Applies the options to a connection, or to one that is being opened.
    pub fn apply(&self, machine: &mut Machine, name: u32) {
        let user_timeout = (self.user_timeout_ms > 0)
            .then(|| Nanos::from_millis(self.user_timeout_ms.unsigned_abs()));
        let keep_alive = self.keeps_alive.then_some(self.keep_alive);
        let options = SocketOptions { keep_alive, user_timeout, ..SocketOptions::default() };
        machine.context.set_nodelay(name, self.is_eager);
        let socket = machine.context.socket(name);
        if socket.options != options {
            socket.options = options;
            machine.context.configure(name);
        }
        machine.settle();
    }

    /// The field of the named option; `None` if its value is not a single number.
    fn value(&mut self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "TCP_NODELAY" => Value::Switch(&mut self.is_eager),
            "TCP_CORK" => Value::Switch(&mut self.is_corked),
            "SO_KEEPALIVE" => Value::Switch(&mut self.keeps_alive),
            "TCP_KEEPIDLE" => Value::Seconds(&mut self.keep_alive.idle),
            "TCP_KEEPINTVL" => Value::Seconds(&mut self.keep_alive.interval),
            "TCP_KEEPCNT" => Value::Count(&mut self.keep_alive.probes),
            "TCP_MAXSEG" => Value::Number(&mut self.maxseg),
            "TCP_USER_TIMEOUT" => Value::Number(&mut self.user_timeout_ms),
            _ => return None,
        })
    }
}

/// A reference to an option's value.
enum Value<'a> {
    Switch(&'a mut bool),
    Seconds(&'a mut Nanos),
    Count(&'a mut u8),
    Number(&'a mut i64),
}

impl Value<'_> {
    fn get(&self) -> i64 {
        match self {
            Value::Switch(is_on) => i64::from(**is_on),
            Value::Seconds(time) => (time.0 / 1_000_000_000) as i64,
            Value::Count(count) => i64::from(**count),
            Value::Number(number) => **number,
        }
    }

    fn set(&mut self, value: i64) {
        match self {
            Value::Switch(is_on) => **is_on = value != 0,
            Value::Seconds(time) => {
                **time = Nanos::from_millis(value.unsigned_abs().saturating_mul(1_000));
            }
            Value::Count(count) => **count = value.clamp(0, u8::MAX.into()) as u8,
            Value::Number(number) => **number = value,
        }
    }
}

impl Process {
    pub(super) fn set_option(
        &mut self,
        machine: &mut Machine,
        fd: i64,
        arguments: &[Argument],
    ) -> Answer {
        let option = names(arguments.get(2)).first().map(String::as_str).unwrap_or_default();
        let value = match arguments.get(3) {
            Some(Argument::List(list)) => list.first().and_then(number),
            _ => None,
        };
        let file = self.file(fd);
        match (option, value) {
            // A listener's port may always be bound again at once.
            ("SO_REUSEADDR", Some(_)) => return done(0),
            // Ring sizes are fixed when the context starts; see `ring_bytes` in run.rs.
            ("SO_RCVBUF" | "SO_SNDBUF", Some(_)) if matches!(file.socket, Socket::Fresh { .. }) => {
                return done(0);
            }
            ("SO_LINGER", None) => {
                file.options.resets = lingers_not(arguments.get(3))?;
                return done(0);
            }
            _ => {}
        }
        let (Some(mut place), Some(value)) = (file.options.value(option), value) else {
            return Err(Unsupported(format!(
                "no option `{option}` here; there are SO_REUSEADDR, SO_RCVBUF and SO_SNDBUF before listen and connect, SO_LINGER, \
                 SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_CORK, TCP_MAXSEG, TCP_NODELAY, TCP_USER_TIMEOUT"
            )));
        };
        if option == "TCP_MAXSEG" && !MAXSEG.contains(&value) {
            return failed(Errno::INVAL);
        }
        place.set(value);
        let options = file.options;
        match file.socket {
            Socket::Stream(_) if option == "TCP_CORK" && options.is_corked => {}
            Socket::Stream(name) if option == "TCP_CORK" => {
                machine.context.push(name);
                machine.settle();
            }
            Socket::Stream(name) => options.apply(machine, name),
            Socket::Listener(name) if option == "TCP_MAXSEG" => {
                machine.context.limit_segments(name, options.mss_max());
            }
            _ => {}
        }
        done(0)
    }

    pub(super) fn get_option(
        &mut self,
        machine: &mut Machine,
        fd: i64,
        arguments: &[Argument],
    ) -> Answer {
        let option = names(arguments.get(2)).first().map(String::as_str).unwrap_or_default();
        let stream = self.stream(fd);
        let value = match (option, stream) {
            ("SO_ERROR", Some(name)) => machine.context.socket(name).error.unwrap_or(0).into(),
            ("SO_ERROR", None) => 0,
            ("TCP_MAXSEG", Some(name)) => machine.context.socket(name).mss.into(),
            ("TCP_MAXSEG", None) if self.file(fd).options.maxseg == 0 => MSS_DEFAULT,
            _ => match self.file(fd).options.value(option) {
                Some(value) => value.get(),
                None => {
                    return Err(Unsupported(format!(
                        "no option `{option}` to be read; there are SO_ERROR, SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, \
                         TCP_KEEPCNT, TCP_CORK, TCP_MAXSEG, TCP_NODELAY, TCP_USER_TIMEOUT"
                    )));
                }
            },
        };
        filled(0, arguments.get(3).unwrap_or(&Argument::Any), value)
    }

    pub(super) fn control(&mut self, fd: i64, arguments: &[Argument]) -> Answer {
        const READ_WRITE: i64 = 0x2;
        const NONBLOCK: i64 = 0x800;
        let file = self.file(fd);
        match (names(arguments.get(1)), names(arguments.get(2))) {
            ([get], _) if get == "F_GETFL" => {
                done(READ_WRITE | if file.is_nonblocking { NONBLOCK } else { 0 })
            }
            ([set], flags)
                if set == "F_SETFL"
                    && flags.iter().all(|flag| flag == "O_RDWR" || flag == "O_NONBLOCK") =>
            {
                file.is_nonblocking = flags.iter().any(|flag| flag == "O_NONBLOCK");
                done(0)
            }
            _ => Err(Unsupported(
                "fcntl takes F_GETFL, or F_SETFL with O_RDWR and O_NONBLOCK".into(),
            )),
        }
    }

    pub(super) fn ioctl(
        &mut self,
        machine: &mut Machine,
        fd: i64,
        arguments: &[Argument],
    ) -> Answer {
        let what = names(arguments.get(1)).first().map(String::as_str).unwrap_or_default();
        let Some(name) = self.stream(fd) else { return failed(Errno::INVAL) };
        let socket = machine.context.socket(name);
        let value = match what {
            "SIOCINQ" => socket.receiving.available(),
            "SIOCOUTQ" => socket.sending.unacknowledged(),
            _ => return Err(Unsupported("ioctl takes SIOCINQ and SIOCOUTQ".into())),
        };
        filled(0, arguments.get(2).unwrap_or(&Argument::Any), value as i64)
    }
}

/// Whether a value of SO_LINGER makes a close reset.
fn lingers_not(value: Option<&Argument>) -> Result<bool, Unsupported> {
    let Some(Argument::Struct(fields)) = value else {
        return Err(Unsupported("SO_LINGER takes {onoff=1, linger=0}".into()));
    };
    let field = |wanted: &str| {
        let found = fields.iter().find(|(name, _)| name == wanted);
        found.and_then(|(_, value)| number(value))
    };
    match (field("onoff"), field("linger")) {
        (Some(1), Some(0)) => Ok(true),
        (Some(0), _) => Ok(false),
        _ => Err(Unsupported("SO_LINGER takes {onoff=1, linger=0} or {onoff=0, linger=0}".into())),
    }
}
