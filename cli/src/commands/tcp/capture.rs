//! `wave tcp capture`: writes an agent's frames as pcapng.

use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use wave_agent::OutputFile;
use wave_front_tcp::{CaptureRequest, captures_path};
use wave_process::say;
use wave_process::words::counted;
use wave_terminal::Failure;

use super::super::set_by_signals;
use super::{AgentArgs, CHECK_EVERY, PATIENCE};

/// Maximum length of a block: a super-packet with its block header and options.
const BLOCK_BYTES_MAX: usize = 1 << 17;
const PACKET: u32 = 6;
const STATISTICS: u32 = 5;
/// Offset of the count of lost frames in a statistics block.
const DROPPED_AT: usize = 24;

/// Which frames to capture, and the file for them.
#[derive(Args, Debug)]
#[command(
    after_help = "Super-packets are recorded whole, as the agent sees them. --host and --port select frames, --snap-bytes truncates them.
The agent does not wait for a slow reader: frames that find no room are lost, and the number of lost frames is printed at the end.

Examples:
  wave tcp capture --write toe.pcapng                    until Ctrl-C
  wave tcp capture --port 80 --count 20 --write - | tcpdump -nr -
  wave tcp capture --host 10.77.0.1 --snap-bytes 96 --write - | wireshark -k -i -

Exit codes: 0 success; 2 bad arguments; 3 no agent answers, or the file cannot be written."
)]
pub struct CaptureArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// Output file, in pcapng; - is standard output.
    #[arg(long, short, value_name = "FILE")]
    write: OutputFile,
    /// Capture only frames from or to this address.
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Capture only frames from or to this port.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Bytes to keep of each frame [default: all].
    #[arg(long, value_name = "BYTES")]
    snap_bytes: Option<u32>,
    /// Number of frames after which the capture ends [default: until Ctrl-C].
    #[arg(long, value_name = "FRAMES")]
    count: Option<u64>,
}

pub fn capture(args: &CaptureArgs) -> Result<(), Failure> {
    let is_standard = args.write.path().as_os_str() == "-";
    if is_standard && io::stdout().is_terminal() {
        let why = "pcapng is binary, and standard output is a terminal: pipe it to `tcpdump -nr -`, or name a file";
        return Err(Failure::Scenario(why.to_owned()));
    }
    let door = args.agent.socket();
    let request = CaptureRequest { host: args.host, port: args.port, snap_bytes: args.snap_bytes };
    let mut agent = Agent::ask(&door, &request)?;
    let ends = set_by_signals()?;
    let unwritable = |error| Failure::cannot(format!("{}: {error}", args.write.path().display()));
    let file: Box<dyn Write> =
        if is_standard { Box::new(io::stdout()) } else { Box::new(args.write.find()?.growing()?) };
    let mut output = BufWriter::new(file);
    if !is_standard {
        say!("Capturing to {}; Ctrl-C ends it", args.write.path().display());
    }
    let (mut frames, mut dropped) = (0_u64, None);
    while let Some(block) = agent.block(&ends, &mut output).map_err(unwritable)? {
        match kind(block) {
            PACKET if args.count == Some(frames) => continue,
            PACKET => frames += 1,
            STATISTICS => {
                let bytes = block.get(DROPPED_AT..DROPPED_AT + 8).and_then(|it| it.try_into().ok());
                dropped = bytes.map(u64::from_le_bytes);
            }
            _ => {}
        }
        if let Err(error) = output.write_all(block) {
            // The reader has closed the pipe.
            if error.kind() == io::ErrorKind::BrokenPipe {
                return Ok(());
            }
            return Err(unwritable(error));
        }
        if args.count == Some(frames) {
            ends.store(true, Ordering::Relaxed);
        }
    }
    output.flush().map_err(unwritable)?;
    let frames = counted(frames, "frame");
    match (agent.fault, dropped) {
        (Some(fault), _) => Err(Failure::cannot(fault)),
        (None, Some(0)) => {
            say!("{frames} captured, none dropped");
            Ok(())
        }
        (None, Some(dropped)) => {
            say!("{frames} captured; {dropped} dropped, because they were not read in time");
            Ok(())
        }
        (None, None) => Err(Failure::cannot(format!(
            "the agent has gone; {frames} captured, an unknown number dropped"
        ))),
    }
}

fn kind(block: &[u8]) -> u32 {
    word(block, 0)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|it| it.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// Reads the pcapng blocks that an agent sends.
struct Agent {
    stream: UnixStream,
    received: Vec<u8>,
    room: Vec<u8>,
    /// Length of the block returned last.
    given: usize,
    /// When the agent was asked to stop.
    told: Option<Instant>,
    fault: Option<String>,
}

impl Agent {
    fn ask(door: &Path, request: &CaptureRequest) -> Result<Agent, Failure> {
        let path = captures_path(door);
        let reveal = "captures contain the programs' data";
        let json = serde_json::to_string(request).map_err(Failure::cannot)?;
        let (stream, failed) = super::request(&path, &json, reveal)?;
        let (received, room) = (Vec::new(), vec![0; BLOCK_BYTES_MAX]);
        let mut agent = Agent { stream, received, room, given: 0, told: None, fault: None };
        // Wait for the first bytes, so that the file is created only if the agent answers.
        let mut head = [0; 4];
        agent.stream.read_exact(&mut head).map_err(&failed)?;
        agent.received.extend_from_slice(&head);
        agent.stream.set_read_timeout(Some(CHECK_EVERY)).map_err(failed)?;
        Ok(agent)
    }

    /// The next block; `None` at the end. Flushes `output` while waiting for one.
    fn block(&mut self, ends: &AtomicBool, output: &mut dyn Write) -> io::Result<Option<&[u8]>> {
        self.received.drain(..std::mem::take(&mut self.given));
        loop {
            if ends.load(Ordering::Relaxed) && self.told.is_none() {
                self.told = Some(Instant::now());
                let _ = self.stream.shutdown(Shutdown::Write);
            }
            if self.received.len() >= 8 {
                let bytes = word(&self.received, 4) as usize;
                if !bytes.is_multiple_of(4) || !(12..=BLOCK_BYTES_MAX).contains(&bytes) {
                    let said = String::from_utf8_lossy(&self.received);
                    let line = said.lines().next().unwrap_or_default();
                    self.fault = Some(format!("cannot parse the agent's answer: {line:.80}"));
                    return Ok(None);
                }
                if self.received.len() >= bytes {
                    self.given = bytes;
                    return Ok(Some(&self.received[..bytes]));
                }
            }
            match self.stream.read(&mut self.room) {
                Ok(0) => return Ok(None),
                Ok(count) => self.received.extend_from_slice(&self.room[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    output.flush()?;
                    if self.told.is_some_and(|at| at.elapsed() > PATIENCE) {
                        return Ok(None);
                    }
                }
                Err(_) => return Ok(None),
            }
        }
    }
}
