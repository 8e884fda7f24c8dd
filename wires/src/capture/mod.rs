//! A wire that records its frames.

mod pcapng;

use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use crate::packet::{IPV6_BYTES, Network, Packet, be16, network};
use crate::{Counters, FRAME_BYTES_MAX, Frame, Limits, Offload, RawPart, Sent, Wire};
use pcapng::{Direction, Writer};

const ARP: u16 = 0x0806;

/// Selects frames for a capture. Every field that is set must match; the default selects every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Sender or receiver of an IP packet, or of an ARP request or answer.
    pub host: Option<IpAddr>,
    /// The port of either side, in TCP or UDP. Fragments after the first and IPv6 packets with extension headers have
    /// none.
    pub port: Option<u16>,
}

impl Filter {
    /// Whether an Ethernet frame is selected.
    pub fn matches(&self, frame: &[u8]) -> bool {
        if *self == Filter::default() {
            return true;
        }
        let Some((ip, network)) = network(frame) else { return false };
        // The places of the two addresses, and of the header after them.
        let (addresses, ports) = match network {
            Network::V4 => {
                let is_first = be16(frame, ip + 6).is_some_and(|place| place & 0x1fff == 0);
                let has_ports = is_first && matches!(frame[ip + 9], 6 | 17);
                let transport = ip + usize::from(frame[ip] & 0x0f) * 4;
                ([ip + 12, ip + 16], has_ports.then_some(transport))
            }
            Network::V6 => {
                let has_ports = matches!(frame[ip + 6], 6 | 17);
                ([ip + 8, ip + 24], has_ports.then_some(ip + IPV6_BYTES))
            }
            Network::Other(ARP) => ([ip + 14, ip + 24], None),
            Network::Other(_) => return false,
        };
        let is_v6 = network == Network::V6;
        let is_host = |host: IpAddr| {
            let is_at = |bytes: &[u8], at: usize| frame.get(at..at + bytes.len()) == Some(bytes);
            host.is_ipv6() == is_v6
                && addresses.iter().any(|&at| match host {
                    IpAddr::V4(host) => is_at(&host.octets(), at),
                    IpAddr::V6(host) => is_at(&host.octets(), at),
                })
        };
        let is_port = |port: u16| {
            ports.is_some_and(|at| [at, at + 2].iter().any(|&at| be16(frame, at) == Some(port)))
        };
        self.host.is_none_or(is_host) && self.port.is_none_or(is_port)
    }
}

/// Contents and bounds of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// The wire's name in the capture.
    pub name: String,
    /// Frames to capture.
    pub filter: Filter,
    /// Most bytes recorded of a frame.
    pub snap_bytes: u32,
    /// Most bytes of the capture, which ends before the first frame that does not fit.
    pub bytes_max: u64,
}

impl Default for CaptureOptions {
    /// Every frame in full, up to a capture of 1 GiB.
    fn default() -> CaptureOptions {
        let (snap_bytes, bytes_max) = (FRAME_BYTES_MAX as u32, 1 << 30);
        CaptureOptions { name: "wave".to_owned(), filter: Filter::default(), snap_bytes, bytes_max }
    }
}

/// Nanoseconds since the Unix epoch, or since the start of a virtual clock.
pub type Clock = Box<dyn FnMut() -> u64 + Send>;

/// Records frames of a wire as pcapng, for Wireshark and similar tools.
///
/// Super-packets are recorded whole, with completed checksums. Each frame is one write to `output`, which blocks the
/// caller for its duration.
pub struct Recorder {
    writer: Writer,
    filter: Filter,
    clock: Clock,
    /// Buffer in which an outgoing frame is assembled.
    outgoing: Box<[u8]>,
}

impl Recorder {
    /// Begins a capture in `output`.
    ///
    /// # Errors
    ///
    /// `output` failed at the capture's header.
    pub fn new(
        output: Box<dyn Write + Send>,
        options: &CaptureOptions,
        clock: Clock,
    ) -> io::Result<Recorder> {
        let writer = Writer::new(output, &options.name, options.snap_bytes, options.bytes_max)?;
        let outgoing = vec![0; FRAME_BYTES_MAX].into_boxed_slice();
        Ok(Recorder { writer, filter: options.filter, clock, outgoing })
    }

    /// Records a received frame.
    pub fn received(&mut self, frame: &Frame) {
        if self.writer.ended().is_none() && self.filter.matches(frame) {
            let time_ns = (self.clock)();
            self.writer.write(Direction::In, time_ns, frame, frame.partial);
        }
    }

    /// Records a packet that a wire with these limits has taken. If another process changes the payload after it was
    /// sent, the capture may show the changed bytes.
    pub fn sent(&mut self, head: &[u8], payload: [RawPart<'_>; 2], offload: Offload, of: Limits) {
        if self.writer.ended().is_some() || !self.filter.matches(head) {
            return;
        }
        // The wire took it, so it fits.
        let whole = Offload { segment_bytes: 0, ..offload };
        let limits = Limits { mtu: u16::MAX, ..of };
        let Ok(packet) = Packet::new(head, payload, whole, limits) else { return };
        let bytes = packet.write_segment(0, &mut self.outgoing);
        let time_ns = (self.clock)();
        self.writer.write(Direction::Out, time_ns, &self.outgoing[..bytes], None);
    }

    /// Records the number of frames that `output` has left out, as an interface statistics block.
    pub fn dropped(&mut self, frames: u64) {
        let time_ns = (self.clock)();
        self.writer.write_dropped(time_ns, frames);
    }

    /// The reason if the capture has ended: [`CaptureOptions::bytes_max`] is used up (`StorageFull`), or its output
    /// failed.
    pub fn ended(&self) -> Option<&io::Error> {
        self.writer.ended()
    }

    /// Number of frames in the capture.
    pub fn frames(&self) -> u64 {
        self.writer.frames()
    }

    /// Flushes the capture.
    ///
    /// # Errors
    ///
    /// `output` failed, at this flush or earlier.
    pub fn finish(self) -> io::Result<()> {
        self.writer.finish()
    }
}

/// Wraps a wire and records its frames: received ones as they arrive, sent ones once the wire has taken them.
pub struct Capture<W> {
    wire: W,
    recorder: Recorder,
}

impl<W: Wire> Capture<W> {
    /// Wraps `wire` and begins a capture in `output`.
    ///
    /// # Errors
    ///
    /// `output` failed at the capture's header.
    pub fn new(
        wire: W,
        output: Box<dyn Write + Send>,
        options: &CaptureOptions,
        clock: Clock,
    ) -> io::Result<Capture<W>> {
        Ok(Capture { wire, recorder: Recorder::new(output, options, clock)? })
    }

    /// See [`Recorder::ended`]. The wire continues to work.
    pub fn ended(&self) -> Option<&io::Error> {
        self.recorder.ended()
    }

    /// Number of frames in the capture.
    pub fn frames(&self) -> u64 {
        self.recorder.frames()
    }

    /// The wire that is captured.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Flushes the capture, and returns the wire.
    ///
    /// # Errors
    ///
    /// `output` failed, at this flush or earlier. The wire is dropped.
    pub fn finish(self) -> io::Result<W> {
        self.recorder.finish()?;
        Ok(self.wire)
    }
}

impl<W: Wire> Wire for Capture<W> {
    fn limits(&self) -> Limits {
        self.wire.limits()
    }

    fn receive(&mut self) -> io::Result<Option<Frame>> {
        let frame = self.wire.receive()?;
        if let Some(frame) = &frame {
            self.recorder.received(frame);
        }
        Ok(frame)
    }

    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent> {
        let sent = self.wire.send(head, payload, offload)?;
        if sent == Sent::Taken {
            self.recorder.sent(head, payload, offload, self.wire.limits());
        }
        Ok(sent)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wire.as_fd()
    }

    fn counters(&self) -> Counters {
        self.wire.counters()
    }
}
