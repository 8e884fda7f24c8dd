//! A lossy cable: two TAP devices in two network namespaces, and between them a network in memory that loses segments, determined by
//! a seed.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_process::cpus;
use wave_wires::{Adversity, Frame, Memory, Offload, RawPart, Sent, Tap, TapOptions, Wire};

use crate::network::enter_network_of;
use crate::process::answer;

const PREFIX: u8 = 24;
const MTU: u16 = 1500;
const ETHERNET_BYTES: usize = 14;
/// Most segments in flight at a time: more than all windows together hold.
const SEGMENTS_MAX: usize = 1 << 15;
/// Most frames from one device before the other device's turn.
const TURN: usize = 64;
/// Time between two checks of standard input.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Arguments of the cable's process.
#[derive(Args, Debug)]
pub struct RelayArgs {
    #[arg(long)]
    near: String,
    #[arg(long)]
    near_address: Ipv4Addr,
    #[arg(long)]
    far: String,
    #[arg(long)]
    far_address: Ipv4Addr,
    /// Number of the process whose network namespace has the far device.
    #[arg(long)]
    network_of: u32,
    #[arg(long)]
    cpu: usize,
}

/// Forwards frames until this process is killed. A line `SEED LOSS` on standard input starts a new network, and is answered with the
/// numbers of segments sent and lost so far.
pub fn run(args: &RelayArgs) -> Result<(), String> {
    let open = |name: &str, address: Ipv4Addr| {
        let mut tap = Tap::open(&TapOptions::new(name)).map_err(|error| error.to_string())?;
        tap.configure(IpAddr::V4(address), PREFIX, MTU).map_err(|error| error.to_string())?;
        Ok::<Tap, String>(tap)
    };
    let near = open(&args.near, args.near_address)?;
    enter_network_of(args.network_of)?;
    let far = open(&args.far, args.far_address)?;
    cpus::pin(&[args.cpu]).map_err(|error| error.to_string())?;
    let mut taps = [near, far];
    let mut ends = pair(0, 0.0);
    let failed = |error: std::io::Error| format!("the bench's cable: {error}");
    let (said, told) = std::sync::mpsc::channel::<String>();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).for_each(|line| drop(said.send(line)));
        // The process that started this one has ended.
        std::process::exit(0);
    });
    answer("ready")?;
    let start = Instant::now();
    // Segments for which a device had no room.
    let mut held: [Option<Frame>; 2] = [None, None];
    loop {
        while let Ok(line) = told.try_recv() {
            let fates = ends.each_ref().map(Memory::fates);
            let sum = |of: fn(&wave_wires::Fates) -> u64| fates.iter().map(of).sum::<u64>();
            if sum(|fates| fates.overflowed) > 0 {
                return Err("the bench's cable had no room for segments".into());
            }
            let mut words = line.split_whitespace();
            let seed = words.next().and_then(|word| word.parse().ok());
            let loss = words.next().and_then(|word| word.parse().ok());
            let (Some(seed), Some(loss)) = (seed, loss) else {
                return Err(format!("the bench's cable got an invalid command: `{line}`"));
            };
            answer(&format!("{} {}", sum(|fates| fates.segments), sum(|fates| fates.lost)))?;
            ends = pair(seed, loss);
        }
        let mut has_moved = false;
        ends[0].advance(start.elapsed().as_nanos() as u64);
        for side in 0..2 {
            for _ in 0..TURN {
                let Some(frame) = taps[side].receive().map_err(failed)? else { break };
                has_moved = true;
                pass(&frame, &mut ends[side], &mut taps[1 - side]).map_err(failed)?;
            }
            let (end, tap) = (&mut ends[1 - side], &mut taps[1 - side]);
            for _ in 0..SEGMENTS_MAX {
                let waiting = match held[side].take() {
                    Some(frame) => Some(frame),
                    None => end.receive().map_err(failed)?,
                };
                let Some(frame) = waiting else { break };
                has_moved = true;
                let sent = tap.send(&frame, [RawPart::EMPTY; 2], Offload::default());
                if sent.map_err(failed)? == Sent::Full {
                    held[side] = Some(frame);
                    break;
                }
            }
        }
        if !has_moved {
            let mut fds = [&taps[0], &taps[1]].map(|tap| {
                let fd = tap.as_fd().expect("a TAP device has a descriptor");
                PollFd::from_borrowed_fd(fd, PollFlags::IN)
            });
            let timeout = Timespec { tv_sec: 0, tv_nsec: CHECK_EVERY.as_nanos() as i64 };
            let _ = poll(&mut fds, Some(&timeout));
        }
    }
}

fn pair(seed: u64, loss: f64) -> [Memory; 2] {
    let adversity = Adversity { seed, loss, segments_max: SEGMENTS_MAX, ..Adversity::default() };
    let (near, far) = Memory::pair(&adversity);
    [near, far]
}

/// Sends a device's frame through the network in memory, which cuts super-packets before it loses segments. Frames other than TCP
/// bypass it.
fn pass(frame: &Frame, end: &mut Memory, around: &mut Tap) -> std::io::Result<()> {
    let no_payload = [RawPart::EMPTY; 2];
    let Some(headers) = tcp_headers(frame) else {
        // The frame is lost if there is no room, as on any cable.
        let _ = around.send(frame, no_payload, Offload::default())?;
        return Ok(());
    };
    let offload = Offload { segment_bytes: frame.segment_bytes, checksum: frame.partial };
    let (head, payload) = frame.split_at(headers);
    let sent = end.send(head, [RawPart::of(payload), RawPart::EMPTY], offload)?;
    debug_assert_eq!(sent, Sent::Taken, "a network in memory without faults is never full");
    Ok(())
}

/// Length of all headers of a TCP packet over IPv4, in bytes; `None` for other frames.
fn tcp_headers(frame: &[u8]) -> Option<usize> {
    let ip = frame.get(ETHERNET_BYTES..)?;
    let is_tcp = frame[12..ETHERNET_BYTES] == [8, 0] && *ip.get(9)? == 6;
    let ip_bytes = usize::from(ip[0] & 0x0f) * 4;
    let tcp_bytes = usize::from(*ip.get(ip_bytes + 12)? >> 4) * 4;
    let headers = ETHERNET_BYTES + ip_bytes + tcp_bytes;
    (is_tcp && headers <= frame.len()).then_some(headers)
}
