//! Socket options. The placeholder holds them all; the agent is told those that it applies.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use wave_posix::{KeepAlive, Nanos, SocketOptions, TcpInfo};
use wave_readiness::{EventFlags, Source};

use crate::address::Family;
use crate::description::{State, Tcp};
use crate::sockets::{Sockets, Verdict};
use crate::sys;
use crate::world::World;

/// Bytes of `struct tcp_info` that are returned, as programs know it.
const TCP_INFO_BYTES: usize = 104;
/// Linux's `tcpi_snd_ssthresh` while the slow-start threshold is still infinite.
const SEGMENTS_MAX: u32 = i32::MAX as u32;
/// Values of `tcpi_state` (tcp(7)).
const TCP_ESTABLISHED: u8 = 1;
const TCP_SYN_SENT: u8 = 2;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;
const TCP_LISTEN: u8 = 10;

/// The options that a connection inherits from its listener, and those that the agent applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    keep_alive: bool,
    keep_idle: Duration,
    keep_interval: Duration,
    keep_count: u32,
    linger: Option<Duration>,
    no_delay: bool,
    user_timeout_ms: u32,
    receive_timeout: Option<Duration>,
    send_timeout: Option<Duration>,
    receive_bytes: usize,
    send_bytes: usize,
    service: u8,
    hop_limit: u8,
    /// TCP_MAXSEG, which applies to future connections only; `u16::MAX` is none.
    pub mss_max: u16,
}

/// The options that bound how long calls wait, as they were last set in this process. Calls do not ask the kernel for them, because
/// sandboxes forbid getsockopt(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitBounds {
    /// SO_LINGER.
    pub linger: Option<Duration>,
    /// SO_RCVTIMEO.
    receive: Option<Duration>,
    /// SO_SNDTIMEO.
    send: Option<Duration>,
}

impl WaitBounds {
    /// Reads the options of a kernel socket.
    pub fn of(fd: BorrowedFd<'_>) -> WaitBounds {
        WaitBounds {
            linger: sockopt::socket_linger(fd).unwrap_or(None),
            receive: sockopt::socket_timeout(fd, Timeout::Recv).unwrap_or(None),
            send: sockopt::socket_timeout(fd, Timeout::Send).unwrap_or(None),
        }
    }

    pub fn timeout(&self, of: Timeout) -> Option<Duration> {
        match of {
            Timeout::Recv => self.receive,
            Timeout::Send => self.send,
        }
    }
}

impl Kept {
    pub fn wait_bounds(&self) -> WaitBounds {
        let Kept { linger, receive_timeout: receive, send_timeout: send, .. } = *self;
        WaitBounds { linger, receive, send }
    }

    /// Reads the options of a kernel socket.
    pub fn of(fd: BorrowedFd<'_>, family: Family) -> Result<Kept, Errno> {
        let (service, hop_limit) = match family {
            Family::V4 => (sockopt::ip_tos(fd)?, sockopt::ip_ttl(fd)? as u8),
            Family::V6 => (sockopt::ipv6_tclass(fd)? as u8, sockopt::ipv6_unicast_hops(fd)?),
        };
        Ok(Kept {
            keep_alive: sockopt::socket_keepalive(fd)?,
            keep_idle: sockopt::tcp_keepidle(fd)?,
            keep_interval: sockopt::tcp_keepintvl(fd)?,
            keep_count: sockopt::tcp_keepcnt(fd)?,
            linger: sockopt::socket_linger(fd)?,
            no_delay: sockopt::tcp_nodelay(fd)?,
            user_timeout_ms: sockopt::tcp_user_timeout(fd)?,
            receive_timeout: sockopt::socket_timeout(fd, Timeout::Recv)?,
            send_timeout: sockopt::socket_timeout(fd, Timeout::Send)?,
            receive_bytes: sockopt::socket_recv_buffer_size(fd)?,
            send_bytes: sockopt::socket_send_buffer_size(fd)?,
            service,
            hop_limit,
            mss_max: sys::mss_max(fd),
        })
    }

    /// Sets those options of a new socket that differ. An option that the socket refuses keeps its value.
    pub fn give(&self, fd: BorrowedFd<'_>, family: Family) -> Result<(), Errno> {
        let own = Kept::of(fd, family)?;
        if *self == own {
            return Ok(());
        }
        let mut refused = Ok(());
        let mut set = |differs: bool, set: &dyn Fn() -> Result<(), Errno>| {
            if differs && refused.is_ok() {
                refused = set();
            }
        };
        set(self.keep_alive != own.keep_alive, &|| {
            sockopt::set_socket_keepalive(fd, self.keep_alive)
        });
        set(self.keep_idle != own.keep_idle, &|| sockopt::set_tcp_keepidle(fd, self.keep_idle));
        set(self.keep_interval != own.keep_interval, &|| {
            sockopt::set_tcp_keepintvl(fd, self.keep_interval)
        });
        set(self.keep_count != own.keep_count, &|| sockopt::set_tcp_keepcnt(fd, self.keep_count));
        set(self.linger != own.linger, &|| sockopt::set_socket_linger(fd, self.linger));
        set(self.no_delay != own.no_delay, &|| sockopt::set_tcp_nodelay(fd, self.no_delay));
        set(self.user_timeout_ms != own.user_timeout_ms, &|| {
            sockopt::set_tcp_user_timeout(fd, self.user_timeout_ms)
        });
        set(self.receive_timeout != own.receive_timeout, &|| {
            sockopt::set_socket_timeout(fd, Timeout::Recv, self.receive_timeout)
        });
        set(self.send_timeout != own.send_timeout, &|| {
            sockopt::set_socket_timeout(fd, Timeout::Send, self.send_timeout)
        });
        // The kernel doubles the given value (socket(7)).
        set(self.receive_bytes != own.receive_bytes, &|| {
            sockopt::set_socket_recv_buffer_size(fd, self.receive_bytes / 2)
        });
        set(self.send_bytes != own.send_bytes, &|| {
            sockopt::set_socket_send_buffer_size(fd, self.send_bytes / 2)
        });
        set(self.service != own.service, &|| match family {
            Family::V4 => sockopt::set_ip_tos(fd, self.service),
            Family::V6 => sockopt::set_ipv6_tclass(fd, self.service.into()),
        });
        set(self.hop_limit != own.hop_limit, &|| match family {
            Family::V4 => sockopt::set_ip_ttl(fd, self.hop_limit.into()),
            Family::V6 => sockopt::set_ipv6_unicast_hops(fd, Some(self.hop_limit)),
        });
        refused
    }

    /// The options that the agent applies, and TCP_NODELAY.
    fn agents(&self) -> (SocketOptions, bool) {
        let nanos = |time: Duration| Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let keep_alive = self.keep_alive.then(|| KeepAlive {
            idle: nanos(self.keep_idle),
            interval: nanos(self.keep_interval),
            probes: self.keep_count.min(u8::MAX.into()) as u8,
        });
        let user_timeout = match self.user_timeout_ms {
            0 => None,
            milliseconds => Some(Nanos::from_millis(milliseconds.into())),
        };
        let options = SocketOptions {
            keep_alive,
            user_timeout,
            diffserv: self.service >> 2,
            hop_limit: self.hop_limit.max(1),
        };
        (options, self.no_delay)
    }
}

impl World {
    /// Tells the agent a connection's options, if they differ from the defaults.
    pub fn configure(&mut self, at: usize, kept: &Kept) {
        let description = self.description(at);
        let (incarnation, Some(name)) = (description.incarnation, description.name()) else {
            return;
        };
        let (options, is_eager) = kept.agents();
        let context = self.context(incarnation);
        let socket = context.socket(name);
        if socket.sending.is_eager != is_eager {
            context.set_nodelay(name, is_eager);
        }
        if context.socket(name).options != options && options.are_valid() {
            context.socket(name).options = options;
            context.configure(name);
        }
        context.flush();
    }
}

impl Sockets {
    /// Called after the program has set an option of a placeholder, other than TCP_CORK.
    pub fn option_was_set(&self, fd: c_int) {
        self.answer(fd, |world, at| {
            let description = world.description(at);
            if let Ok(kept) = Kept::of(sys::fd(fd), description.family) {
                description.wait_bounds = kept.wait_bounds();
                match description.state {
                    State::Listening { listener, .. } => {
                        let (incarnation, mss_max) = (description.incarnation, kept.mss_max);
                        let before = description
                            .listens
                            .as_mut()
                            .map(|listens| std::mem::replace(&mut listens.kept, kept));
                        let is_new = before.is_some_and(|before| before.mss_max != mss_max);
                        if let Some(listener) = listener.filter(|_| is_new) {
                            world.context(incarnation).limit_segments(listener, mss_max);
                        }
                    }
                    _ => world.configure(at, &kept),
                }
            }
            Verdict::<()>::Kernels
        });
    }

    /// Called after the program has set TCP_CORK of a placeholder. A case of its own, because servers set it twice per file that they send,
    /// and because it changes no other option.
    pub fn cork_was_set(&self, fd: c_int) {
        self.answer(fd, |world, at| {
            let description = world.description(at);
            let is_corked = sockopt::tcp_cork(sys::fd(fd)).unwrap_or(false);
            let was_corked = std::mem::replace(&mut description.is_corked, is_corked);
            if let (incarnation, Some(name)) = (description.incarnation, description.name())
                && was_corked
                && !is_corked
            {
                world.uncork(incarnation, name);
            }
            Verdict::<()>::Kernels
        });
    }

    /// Called after the program has set SO_RCVLOWAT of a placeholder.
    pub fn low_water_was_set(&self, fd: c_int) {
        self.answer(fd, |world, at| {
            world.description(at).low_water = sys::low_water(sys::fd(fd));
            // What has arrived may be enough now (tcp_set_rcvlowat).
            let is_readable = world.view(at).is_readable;
            world.notify(at, if is_readable { Source::DATA } else { EventFlags::empty() });
            world.note_change();
            Verdict::<()>::Kernels
        });
    }

    /// getsockopt(2) of the options whose value the placeholder does not know.
    pub fn option(&self, fd: c_int, level: c_int, name: c_int) -> Verdict<Vec<u8>> {
        self.answer(fd, |world, at| {
            let view = world.view(at);
            let description = world.description(at);
            let number = |value: c_int| Verdict::Ours(Ok(value.to_ne_bytes().to_vec()));
            match (level, name) {
                (libc::SOL_SOCKET, libc::SO_ERROR) => {
                    number(description.error.take().map_or(0, Errno::raw_os_error))
                }
                (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => number((view.tcp == Tcp::Listen).into()),
                (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => match description.state {
                    State::Open(name) => {
                        let incarnation = description.incarnation;
                        number(world.context(incarnation).socket(name).mss.into())
                    }
                    _ => Verdict::Kernels,
                },
                (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                    let mut info = match description.state {
                        State::Open(name) => {
                            let incarnation = description.incarnation;
                            world.context(incarnation).query_tcp_info(name);
                            let known =
                                world.await_answer(incarnation, |context| context.tcp_info(name));
                            tcp_info(known.flatten())
                        }
                        _ => tcp_info(None),
                    };
                    info[0] = match view.tcp {
                        Tcp::Closed => TCP_CLOSE,
                        Tcp::Listen => TCP_LISTEN,
                        Tcp::SynSent => TCP_SYN_SENT,
                        Tcp::Open if view.is_done => TCP_CLOSE_WAIT,
                        Tcp::Open => TCP_ESTABLISHED,
                    };
                    Verdict::Ours(Ok(info))
                }
                _ => Verdict::Kernels,
            }
        })
    }

    /// ioctl(2) with FIONREAD, SIOCATMARK or SIOCOUTQ: see tcp(7).
    pub fn ioctl(&self, fd: c_int, request: u64) -> Verdict<c_int> {
        self.answer(fd, |world, at| {
            let view = world.view(at);
            let is_listener = view.tcp == Tcp::Listen;
            let number = |value: u64| Verdict::Ours(Ok(value.min(c_int::MAX as u64) as c_int));
            match request {
                libc::FIONREAD | libc::TIOCOUTQ if is_listener => Verdict::Ours(Err(Errno::INVAL)),
                libc::FIONREAD => number(view.available),
                libc::TIOCOUTQ => number(view.ring - view.room),
                // Urgent bytes stay in the stream, so there is never a mark.
                SIOCATMARK => number(0),
                _ => Verdict::Kernels,
            }
        })
    }
}

/// `struct tcp_info`, without `tcpi_state`.
fn tcp_info(known: Option<TcpInfo>) -> Vec<u8> {
    let mut info = vec![0; TCP_INFO_BYTES];
    let Some(known) = known else { return info };
    let segments = |bytes: u32| (bytes / known.mss.max(1)).min(SEGMENTS_MAX);
    let fields = [
        (8, known.timeout_us),
        (16, known.mss),
        (24, segments(known.unacknowledged)),
        (68, known.round_trip_us),
        (72, known.variation_us),
        (
            76,
            if known.threshold > i32::MAX as u32 {
                SEGMENTS_MAX
            } else {
                segments(known.threshold)
            },
        ),
        (80, segments(known.window)),
    ];
    for (at, value) in fields {
        info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    info
}

/// A request of ioctl(2) that the `libc` crate does not define.
pub const SIOCATMARK: u64 = 0x8905;
