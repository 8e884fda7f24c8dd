//! `wave tcp up`: starts an agent that owns an address and speaks TCP there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use clap::Args;
use wave_agent::{Seat, serve};
use wave_confine::{Profile, Role, User};
use wave_front_tcp::{
    Captures, Door, DoorOptions, FrontDatapath, GroupWires, ReportSocket, Successors, TcpFront,
    TcpOptions, Traces, WireKind, holder_of, steering_over,
};
use wave_process::cpus::Cpus;
use wave_process::{cpus, say, tell};
use wave_tcp::congestion::Algorithm;
use wave_tcp::control::{Bounds, Ipv6Config};
use wave_tcp::datapaths::DatapathKind;
use wave_tcp::steering::{GROUPS_MAX, Steering};
use wave_terminal::Failure;
use wave_wires::{Interface, InterfaceOptions, MTU_MIN, MTU_MIN_V6, Spread, Tap, TapOptions, Wire};

use super::default_socket;
use super::network::{Home, Network, Network6};

#[derive(Args, Debug)]
#[command(
    after_help = "Creates a TAP device, gives its Linux end an address, and answers at --address: ARP, ping, and TCP for programs that
attach to --socket. Ordinary Linux programs reach it like any host of that network. The device is removed when the
agent exits, unless --persistent is given. Creating a device needs CAP_NET_ADMIN; using an existing one that this
user may open needs no privileges (ip tuntap add dev toe0 mode tap vnet_hdr user alice).

With --interface the agent shares an existing Ethernet interface with the kernel. Other hosts on that network reach the
agent; programs on this machine do not. The only change to the interface is one more Ethernet address that it accepts.
--interface needs CAP_NET_RAW.

Examples:
  wave tcp up --tap toe0 --address 10.77.0.2/24          as root
  wave serve http --toe /run/wave-toe0.sock              in another terminal
  curl -o /dev/null http://10.77.0.2/1g                  in a third terminal
  wave tcp ss --tap toe0
  wave tcp replace --tap toe0                            another agent takes over; no connection is reset
  wave tcp up --address 10.77.0.2/24 --address fd77::2/64
  wave tcp up --address 10.77.0.2/24 --groups 4 --cpus 8-12
  wave tcp up --address 10.77.0.2/24 --datapath laminar
  wave tcp up --interface veth1 --address 10.78.0.3/24   beside the kernel's own address there

Exit codes: 0 ended by Ctrl-C or SIGTERM, or replaced; 2 bad arguments; 3 the device, the address, the socket or a CPU is not
available, or the device was deleted."
)]
pub struct UpArgs {
    /// The device's name in Linux.
    #[arg(long, value_name = "NAME", default_value = "toe0")]
    tap: String,
    /// An existing Ethernet interface, instead of a TAP device.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tap", "linux_address", "mtu", "persistent"])]
    interface: Option<String>,
    /// The agent's IPv4 address with its prefix length; no Linux interface may have the address, nor, with --tap, another one its
    /// network. May be repeated for IPv6.
    #[arg(long, value_name = "ADDRESS/BITS", required = true)]
    address: Vec<Home>,
    /// Linux's address at the other end [default: the network's first other address].
    #[arg(long, value_name = "ADDRESS")]
    linux_address: Option<Ipv4Addr>,
    /// Next hop for destinations outside the network; may be repeated for the other family [default: none].
    #[arg(long, value_name = "ADDRESS")]
    gateway: Vec<IpAddr>,
    /// MTU of a device that this command creates: 576 or more, with IPv6 1280.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(i64::from(MTU_MIN)..=MTU_MAX))]
    mtu: u16,
    /// Socket that programs attach to [default: /run/wave-NAME.sock].
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Users whose programs may attach, besides this user and root. They also need write permission on the socket: chmod or setfacl.
    #[arg(long, value_name = "UID,...", value_delimiter = ',')]
    allow: Vec<u32>,
    /// Users allowed as with --allow whose memory is not sealed, so that their programs could have pages charged to the agent. Their
    /// connections survive `wave tcp replace`, as those of this user and root do.
    #[arg(long, value_name = "UID,...", value_delimiter = ',')]
    trust: Vec<u32>,
    /// Congestion control. dctcp asks peers for ECN, and paces connections that have met congestion; reno uses ECN where peers ask.
    #[arg(long, value_name = "ALGORITHM", default_value = "reno", value_parser = congestion)]
    congestion: Algorithm,
    /// Data path: flextoe, or laminar, a match-action pipeline whose decisions are those of `wave rmt check laminar`.
    #[arg(long, value_name = "NAME", default_value = "flextoe")]
    datapath: DatapathKind,
    /// Keep the device when the agent exits.
    #[arg(long)]
    persistent: bool,
    /// Switch to this user once the device and the socket exist: a name in /etc/passwd, or UID:GID. Needs root.
    #[arg(long, value_name = "USER")]
    user: Option<User>,
    /// Number of flow groups. With more than one, each group's data path has its own thread and device queue; the first thread
    /// serves programs, handshakes and timers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(GROUPS_MAX)))]
    groups: u16,
    /// CPUs to run on, such as 8-12: the first thread on the first, flow groups round-robin on the others, or on the first if it is the only one.
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,
}

/// Largest MTU of a TAP device: 64 KiB - 1, less an Ethernet header.
const MTU_MAX: i64 = 65_521;

fn congestion(name: &str) -> Result<Algorithm, String> {
    Algorithm::by_name(name).ok_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        format!("expected one of: {names}")
    })
}

/// Another data path than the default, behind what else is said of an agent.
pub fn named(datapath: DatapathKind) -> String {
    match datapath == DatapathKind::default() {
        true => String::new(),
        false => format!("; data path {}", datapath.name()),
    }
}

/// Whether a Linux interface has the address, so that Linux would answer for it. Then a socket connected to the address
/// also has it as its source.
fn is_linuxs(ip: IpAddr) -> bool {
    let any = match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let towards = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    towards().is_ok_and(|from| from.ip() == ip)
}

/// Whether the kernel answers ARP on an interface for other hosts' addresses (proxy_arp), and so perhaps for the agent's.
fn answers_for_others(interface: &str) -> bool {
    let is_set = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/proxy_arp");
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
    };
    is_set("all") || is_set(interface)
}

/// Addresses and gateways, at most one of each per family.
struct Homes {
    v4: Network,
    gateway: Option<Ipv4Addr>,
    v6: Option<Network6>,
    gateway6: Option<Ipv6Addr>,
}

impl Homes {
    fn of(args: &UpArgs) -> Result<Homes, Failure> {
        let wrong = |what: String| Failure::Scenario(what);
        let (mut v4, mut v6) = (None, None);
        for home in &args.address {
            let is_second = match home {
                Home::V4(network) => v4.replace(*network).is_some(),
                Home::V6(network) => v6.replace(*network).is_some(),
            };
            if is_second {
                return Err(wrong("--address is given twice for one family".to_owned()));
            }
        }
        let v4 = v4.ok_or_else(|| {
            wrong(
                "an IPv6 address needs an IPv4 address beside it: add --address 10.77.0.2/24"
                    .to_owned(),
            )
        })?;
        let mut homes = Homes { v4, gateway: None, v6, gateway6: None };
        for gateway in &args.gateway {
            let (is_host, is_second) = match *gateway {
                IpAddr::V4(ip) => (v4.has_host(ip), homes.gateway.replace(ip).is_some()),
                IpAddr::V6(ip) => {
                    let is_host =
                        ip.is_unicast_link_local() || v6.is_some_and(|v6| v6.has_host(ip));
                    (is_host, homes.gateway6.replace(ip).is_some())
                }
            };
            if !is_host {
                return Err(wrong(format!(
                    "the gateway {gateway} is not a host in the agent's network"
                )));
            }
            if is_second {
                return Err(wrong("--gateway is given twice for one family".to_owned()));
            }
        }
        Ok(homes)
    }

    fn v6(&self) -> Option<Ipv6Config> {
        let gateway = self.gateway6;
        self.v6.map(|Network6 { ip, prefix }| Ipv6Config { ip, prefix, gateway })
    }
}

/// Runs an agent until Ctrl-C or SIGTERM.
pub fn up(args: &UpArgs) -> Result<(), Failure> {
    let homes = Homes::of(args)?;
    match &args.interface {
        Some(name) => share(args, &homes, name),
        None => make(args, &homes),
    }
}

/// Runs an agent on a TAP device.
fn make(args: &UpArgs, homes: &Homes) -> Result<(), Failure> {
    let Network { ip, prefix } = homes.v4;
    let linux = args.linux_address.unwrap_or_else(|| homes.v4.neighbour());
    if linux == ip || !homes.v4.has_host(linux) {
        return Err(Failure::Scenario(format!("{linux} is not another host of {ip}/{prefix}")));
    }
    if homes.v6.is_some() && args.mtu < MTU_MIN_V6 {
        let why = format!("IPv6 needs an MTU of {MTU_MIN_V6} or more: --mtu {}", args.mtu);
        return Err(Failure::Scenario(why));
    }
    refuse_linuxs(ip.into())?;
    if let Some(v6) = homes.v6 {
        refuse_linuxs(v6.ip.into())?;
    }
    refuse_others_networks(args, homes)?;
    let (persistent, multi_queue) = (args.persistent, args.groups > 1);
    let options = TapOptions { persistent, multi_queue, ..TapOptions::new(&args.tap) };
    let mut tap = Tap::open(&options).map_err(Failure::cannot)?;
    let is_ours = tap.is_made() || args.linux_address.is_some();
    if is_ours {
        tap.configure(IpAddr::V4(linux), prefix, args.mtu).map_err(Failure::cannot)?;
        if let Some(v6) = homes.v6 {
            let linux = IpAddr::V6(v6.neighbour());
            tap.configure(linux, v6.prefix, args.mtu).map_err(Failure::cannot)?;
        }
    }
    let name = tap.name().map_err(Failure::cannot)?;
    if !tap.is_up().map_err(Failure::cannot)? {
        let how = format!("type `sudo ip link set dev {name} up`");
        return Err(Failure::cannot(format!("the TAP device {name} is down: {how}")));
    }
    if !is_ours {
        refuse_taken(&mut tap, ip, &name)?;
    }
    let mtu = tap.limits().mtu;
    let about = if is_ours {
        format!("Linux has {linux}, MTU {mtu}")
    } else {
        format!("an existing device; MTU {mtu}; see ip address show {name}")
    };
    // The kernel delivers a connection's frames to the queue on which its segments were last sent.
    let mut wires = vec![tap];
    let options = TapOptions { name: name.clone(), ..options };
    for _ in 1..args.groups {
        wires.push(Tap::open(&options).map_err(Failure::cannot)?);
    }
    let wires = Wires::new(wires, steering_over(args.groups), Tap::adopt)?;
    run(args, homes, wires, (WireKind::Tap, &name), &about)
}

/// The wires of an agent: one, or two for each flow group.
pub(super) struct Wires<W> {
    wires: Vec<W>,
    senders: Vec<W>,
    steering: Steering,
}

impl<W: Wire> Wires<W> {
    /// The wires of the groups of `steering`. `adopt` opens a wire from a descriptor.
    pub(super) fn new<E: std::fmt::Display>(
        wires: Vec<W>,
        steering: Steering,
        adopt: impl Fn(OwnedFd) -> Result<W, E>,
    ) -> Result<Wires<W>, Failure> {
        let copy = |wire: &W| {
            let fd = wire.as_fd().ok_or_else(|| Failure::cannot("the wire has no descriptor"))?;
            adopt(fd.try_clone_to_owned().map_err(Failure::cannot)?).map_err(Failure::cannot)
        };
        let senders = match steering.groups() {
            1 => Vec::new(),
            _ => wires.iter().map(copy).collect::<Result<_, _>>()?,
        };
        Ok(Wires { wires, senders, steering })
    }

    /// The only wire, or those of several flow groups.
    pub(super) fn one_or_groups(mut self, cpus: &[usize]) -> Result<W, GroupWires<W>> {
        if self.steering.groups() == 1 {
            return Ok(self.wires.remove(0));
        }
        let cpus = match cpus {
            [first] => vec![*first],
            cpus => cpus.iter().skip(1).copied().collect(),
        };
        let Wires { wires, senders, steering } = self;
        Err(GroupWires { wires, senders, steering, cpus })
    }
}

/// Runs an agent on an existing interface.
fn share(args: &UpArgs, homes: &Homes, name: &str) -> Result<(), Failure> {
    let ip = homes.v4.ip;
    if homes.v6.is_some() {
        let why = "--interface supports IPv4 only: omit the IPv6 address, or use --tap";
        return Err(Failure::Scenario(why.to_owned()));
    }
    refuse_linuxs(ip.into())?;
    let options = InterfaceOptions::new(name, ip);
    let mut interface = Interface::open(&options).map_err(Failure::cannot)?;
    if answers_for_others(name) {
        let how = format!(
            "sudo sysctl -w net.ipv4.conf.all.proxy_arp=0 net.ipv4.conf.{name}.proxy_arp=0"
        );
        return Err(Failure::cannot(format!(
            "Linux answers ARP for other hosts on {name}, and so for {ip}: type `{how}`"
        )));
    }
    refuse_taken(&mut interface, ip, name)?;
    let about = format!("shared with the kernel; MTU {}", interface.limits().mtu);
    let (mut wires, steering) = (vec![interface], steering_over(args.groups));
    for _ in 1..args.groups {
        wires.push(Interface::open(&options).map_err(Failure::cannot)?);
    }
    if args.groups > 1 {
        let spread = Spread { multipliers: steering.multipliers() };
        Interface::spread(&wires, spread).map_err(Failure::cannot)?;
    }
    let wires = Wires::new(wires, steering, |fd| Interface::adopt(fd, &options))?;
    run(args, homes, wires, (WireKind::Interface, name), &about)
}

fn refuse_linuxs(ip: IpAddr) -> Result<(), Failure> {
    if is_linuxs(ip) {
        let why = "is the address of a Linux interface: give the agent one that no interface has";
        return Err(Failure::cannot(format!("{ip} {why}")));
    }
    Ok(())
}

/// Refuses addresses that Linux reaches directly over another interface: packets to the agent would go there. An existing device
/// may have no route of its own, as under a bridge.
fn refuse_others_networks(args: &UpArgs, homes: &Homes) -> Result<(), Failure> {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let devices = read("/proc/self/net/dev");
    let (routes, routes6) = (read("/proc/self/net/route"), read("/proc/self/net/ipv6_route"));
    let is_named = |line: &str| line.trim_start().split(':').next() == Some(args.tap.as_str());
    // Whether this command gives the device its addresses, as below.
    let is_ours = !devices.lines().any(is_named) || args.linux_address.is_some();
    let v4: (IpAddr, Vec<&str>) = (homes.v4.ip.into(), homes.v4.direct_routes(&routes).collect());
    let v6 = homes.v6.map(|v6| (v6.ip.into(), v6.direct_routes(&routes6).collect()));
    for (ip, interfaces) in std::iter::once(v4).chain(v6) {
        let (own, others): (Vec<&str>, Vec<&str>) =
            interfaces.into_iter().partition(|interface| *interface == args.tap);
        if let Some(other) = others.first().filter(|_| is_ours || !own.is_empty()) {
            return Err(Failure::cannot(format!(
                "{ip} is also in a network of {other} (see ip route get {ip}): give the agent an address in a network that no \
                 interface has"
            )));
        }
    }
    Ok(())
}

/// Asks the network whether another host has the address.
fn refuse_taken(wire: &mut impl Wire, ip: Ipv4Addr, name: &str) -> Result<(), Failure> {
    let holder =
        holder_of(wire, ip).map_err(|error| Failure::cannot(format!("{name}: {error}")))?;
    let Some(mac) = holder else { return Ok(()) };
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    Err(Failure::cannot(format!("{ip} is taken: on {name}, the host {mac} answers ARP for it")))
}

fn run<W: Wire + Send + 'static>(
    args: &UpArgs,
    homes: &Homes,
    wires: Wires<W>,
    (kind, name): (WireKind, &str),
    about: &str,
) -> Result<(), Failure> {
    let Network { ip, prefix } = homes.v4;
    let socket = args.socket.clone().unwrap_or_else(|| default_socket(name));
    // A successor may start in another folder.
    let socket = std::path::absolute(&socket).map_err(Failure::cannot)?;
    let (allowed, trusted) = (args.allow.clone(), args.trust.clone());
    let door = DoorOptions { allowed, trusted, ..DoorOptions::default() };
    let door = Door::bind(&socket, door).map_err(Failure::cannot)?;
    let cannot = |suffix| {
        let path = socket.display();
        move |error: io::Error| Failure::cannot(format!("{path}.{suffix}: {error}"))
    };
    let reports = ReportSocket::bind(&socket).map_err(cannot("ss"))?;
    let captures = Captures::bind(&socket, name).map_err(cannot("capture"))?;
    let traces = Traces::bind(&socket).map_err(cannot("trace"))?;
    let successors = Successors::bind(&socket).map_err(Failure::cannot)?;
    let cpus = args.cpus.as_deref().unwrap_or_default();
    pin_to_first(cpus)?;
    let options = TcpOptions {
        ip,
        prefix,
        gateway: homes.gateway,
        v6: homes.v6(),
        bounds: Bounds::default(),
        congestion: args.congestion,
        // The agent sleeps as soon as it is idle: the other end of the wire may need this CPU.
        seat: Seat::Shared,
    };
    let profile = Profile::of(Role::Tcp).becoming(args.user).with_socket(&socket);
    let announce = || {
        profile.confine().map_err(Failure::cannot)?;
        if !args.quiet {
            let beside = homes.v6.map_or_else(String::new, |v6| format!(" and {}", v6.ip));
            let groups = match args.groups {
                1 => String::new(),
                groups => format!("; {groups} flow groups"),
            };
            let over = named(args.datapath);
            tell!(
                "Speaking TCP at {ip}{beside}, on {name} ({about}{groups}{over}); Ctrl-C ends it"
            );
            tell!("Next: wave serve http --toe {}", socket.display());
        }
        Ok::<(), Failure>(())
    };
    let make = |settings, trace| args.datapath.make(settings, trace);
    match wires.one_or_groups(cpus) {
        Ok(wire) => {
            let front = TcpFront::new(wire, make, door, reports, captures, traces, &options)
                .map_err(Failure::cannot)?;
            let front = front.replaceable(successors, kind, name);
            announce()?;
            go_on(front, args.quiet)
        }
        Err(wires) => {
            let front =
                TcpFront::with_groups(wires, make, door, reports, captures, traces, &options)
                    .map_err(Failure::cannot)?;
            let front = front.replaceable(successors, kind, name);
            announce()?;
            go_on(front, args.quiet)
        }
    }
}

/// Pins this thread to the first of these CPUs, after it has tried the others: threads of flow groups are pinned to those later.
pub(super) fn pin_to_first(cpus: &[usize]) -> Result<(), Failure> {
    cpus.iter().rev().try_for_each(|cpu| cpus::pin(&[*cpu])).map_err(Failure::cannot)
}

/// Serves until Ctrl-C or SIGTERM, or until another agent has taken over.
pub(super) fn go_on<W: Wire, D: FrontDatapath>(
    mut front: TcpFront<W, D>,
    quiet: bool,
) -> Result<(), Failure> {
    if quiet {
        front.set_quiet();
    }
    serve(&mut front);
    if front.is_replaced() {
        // The sockets and the wire now belong to the successor.
        std::mem::forget(front);
        if !quiet {
            say!("wave tcp: another agent has taken over; exiting");
        }
        return Ok(());
    }
    match wave_agent::ThreadFront::failure(&front) {
        Some(why) => Err(Failure::cannot(why)),
        None => {
            if !quiet {
                say!("wave tcp: ended");
            }
            Ok(())
        }
    }
}
