//! A trace of Laminar's reassembly: what each segment and each pseudo segment leaves in the four registers (Table 5.1).

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use wave_rmt::{Gress, Interpreter, Phv, Pipeline};

use super::fields::{BOUND, END, HAS_PAYLOAD, IS_PLACED, KIND, LENGTH, SEQ};
use super::{Reassembly, kind, reassembly, set_reassembly};

/// A packet of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A segment from the wire: sequence number and bytes of payload.
    Segment(u32, u32),
    /// The pseudo segment of the n-th segment, from 1.
    Pseudo(usize),
    /// That pseudo segment is lost.
    Lost(usize),
}

/// Segments to trace, and the registers before the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Sequence number of the next byte.
    pub next: u32,
    /// Bytes for which there is room.
    pub avail: u32,
    /// The packets, in order.
    pub packets: Vec<Packet>,
}

/// A packet of a trace and what it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// `#n` for the n-th segment, `P#n` for its pseudo segment.
    pub name: String,
    /// Its sequence number.
    pub seq: u32,
    /// Its length in bytes.
    pub length: u32,
    /// `rx_next`, `rx_avail`, `rx_ooo_tail` and `rx_ooo_head` after it; `None` for a lost packet.
    pub registers: Option<Reassembly>,
    /// Whether its payload was placed into the host's memory.
    pub is_placed: bool,
}

/// Why a trace cannot be run or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadScript {
    /// The line, from 1; 0 if the script did not come from a file.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for BadScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(&self.message)
    }
}

impl core::error::Error for BadScript {}

/// The packets of the thesis' Table 5.1.
pub fn table_5_1() -> Script {
    use Packet::{Lost, Pseudo, Segment};
    Script {
        next: 1000,
        avail: 10_000,
        packets: vec![
            Segment(1500, 500),
            Segment(1000, 500),
            Segment(2000, 500),
            Segment(1500, 100),
            Pseudo(2),
            Lost(3),
            Segment(2500, 100),
            Segment(2000, 100),
            Segment(3000, 100),
            Pseudo(4),
            Pseudo(5),
            Pseudo(6),
        ],
    }
}

/// The registers that Table 5.1 prints after each packet; `None` for the lost one.
pub const TABLE_5_1_REGISTERS: [Option<Reassembly>; 12] = [
    Some([1000, 10_000, 1000, 500]),
    Some([1500, 9500, 500, 0]),
    Some([1500, 9500, 1000, 0]),
    Some([1600, 9400, 900, 0]),
    Some([2000, 9000, 500, 0]),
    None,
    Some([2000, 9000, 600, 0]),
    Some([2100, 8900, 500, 0]),
    Some([2100, 8900, 500, 0]),
    Some([2500, 8500, 100, 0]),
    Some([2600, 8400, 0, 0]),
    Some([2600, 8400, 0, 0]),
];

impl Script {
    /// Reads a script, one packet on a line: `SEQ LENGTH` for a segment, `P#N` for the pseudo segment of the n-th segment,
    /// `lost P#N` for one that is lost. A line `start NEXT AVAIL` sets the registers, which are 0 and 65,535 otherwise, and comes
    /// before the packets. The rest of a line after a word `#` is a comment.
    ///
    /// # Errors
    /// A line is something else, or there is no packet.
    pub fn read(text: &str) -> Result<Script, BadScript> {
        const FORMS: &str = "expected `SEQ LENGTH`, `P#N`, `lost P#N`, or first `start NEXT AVAIL`";
        let mut script = Script { next: 0, avail: 65_535, packets: vec![] };
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> =
                line.split_whitespace().take_while(|word| *word != "#").collect();
            let bad = |message: &str| BadScript { line: index + 1, message: message.to_string() };
            let number = |word: &str| {
                let message = format!("`{word}` is not a number from 0 to 4294967295");
                word.parse::<u32>().map_err(|_| bad(&message))
            };
            let pseudo = |word: &str| {
                let digits =
                    word.strip_prefix("P#").and_then(|digits| digits.parse::<usize>().ok());
                digits.ok_or_else(|| bad(&format!("`{word}`: {FORMS}")))
            };
            match words[..] {
                [] => (),
                ["start", next, avail] if script.packets.is_empty() => {
                    (script.next, script.avail) = (number(next)?, number(avail)?);
                }
                ["start", _, _] => {
                    return Err(bad("`start NEXT AVAIL` must come before the packets"));
                }
                ["start", ..] => return Err(bad("`start` takes two numbers: `start NEXT AVAIL`")),
                ["lost", word] => script.packets.push(Packet::Lost(pseudo(word)?)),
                [word] => script.packets.push(Packet::Pseudo(pseudo(word)?)),
                [seq, length] => {
                    script.packets.push(Packet::Segment(number(seq)?, number(length)?))
                }
                _ => return Err(bad(FORMS)),
            }
        }
        if script.packets.is_empty() {
            return Err(BadScript { line: 0, message: format!("there is no packet; {FORMS}") });
        }
        Ok(script)
    }

    /// Passes the packets through the egress of Laminar or of the thesis' pipeline, one after another.
    ///
    /// # Errors
    /// A pseudo segment is named that no segment has made, or a second time.
    pub fn run(&self, pipeline: &Pipeline<'_>) -> Result<Vec<Step>, BadScript> {
        let mut machine: Interpreter<'_> = Interpreter::new(pipeline);
        // Connection 0 exists.
        let _ = set_reassembly(pipeline, &mut machine.state, 0, [self.next, self.avail, 0, 0]);
        let mut pseudo: BTreeMap<usize, Phv> = BTreeMap::new();
        let mut segments = 0;
        let mut steps = vec![];
        for packet in &self.packets {
            let (name, mut phv, is_lost) = match *packet {
                Packet::Segment(seq, length) => {
                    segments += 1;
                    (format!("#{segments}"), segment(seq, length), false)
                }
                Packet::Pseudo(number) | Packet::Lost(number) => {
                    let message = format!(
                        "there is no P#{number} here: a pseudo segment exists once, after its segment with payload"
                    );
                    let bad = BadScript { line: 0, message };
                    let phv = pseudo.remove(&number).ok_or(bad)?;
                    (format!("P#{number}"), phv, matches!(packet, Packet::Lost(_)))
                }
            };
            let (seq, length) = (phv.get(SEQ), phv.get(LENGTH));
            let mut step = Step { name, seq, length, registers: None, is_placed: false };
            if !is_lost {
                let verdict = machine.pass(Gress::Egress, &mut phv);
                if let Some(copy) = pipeline.mirrored(verdict.mirror, &phv) {
                    pseudo.insert(segments, copy);
                }
                step.registers = Some(reassembly(pipeline, &machine.state, 0));
                step.is_placed = phv.get(IS_PLACED) == 1;
            }
            steps.push(step);
        }
        Ok(steps)
    }
}

/// A segment as the ingress hands it to the egress.
pub(super) fn segment<const WORD: u8>(seq: u32, length: u32) -> Phv<WORD> {
    Phv::default()
        .with(KIND, kind::RECEIVE)
        .with(SEQ, seq)
        .with(BOUND, seq.wrapping_add(u32::MAX >> (32 - WORD) >> 2))
        .with(LENGTH, length)
        .with(END, seq.wrapping_add(length))
        .with(HAS_PAYLOAD, u32::from(length > 0))
}
