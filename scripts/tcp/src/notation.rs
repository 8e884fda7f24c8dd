//! Formats segments and results in packetdrill's notation.

use std::fmt::{self, Write};

use wave_core::clock::Nanos;
use wave_tcp::packet::{Ecn, Flags};

use crate::script::{Call, Segment, TcpOption};

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = "FSRPUEW";
        let bits =
            [Flags::FIN, Flags::SYN, Flags::RST, Flags::PSH, Flags::URG, Flags::ECE, Flags::CWR];
        for (letter, bit) in letters.chars().zip(bits) {
            if self.flags.contains(bit) {
                f.write_char(letter)?;
            }
        }
        match self.flags {
            Flags::NONE => f.write_char('-')?,
            flags if flags.contains(Flags::ACK) => f.write_char('.')?,
            _ => {}
        }
        let end = self.seq.wrapping_add(self.bytes);
        write!(f, " {}:{end}({})", self.seq, self.bytes)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if self.urgent != 0 {
            write!(f, " urg {}", self.urgent)?;
        }
        match self.options.as_deref() {
            None => f.write_str(" <...>"),
            Some([]) => Ok(()),
            Some(options) => {
                let shown: Vec<String> = options.iter().map(TcpOption::to_string).collect();
                write!(f, " <{}>", shown.join(","))
            }
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcpOption::Mss(mss) => write!(f, "mss {mss}"),
            TcpOption::SackOk => f.write_str("sackOK"),
            TcpOption::Timestamps(value, echo) => write!(f, "TS val {value} ecr {echo}"),
            TcpOption::Nop => f.write_str("nop"),
            TcpOption::Eol => f.write_str("eol"),
            TcpOption::Scale(shift) => write!(f, "wscale {shift}"),
            TcpOption::Sack(blocks) => {
                f.write_str("sack")?;
                blocks.iter().try_for_each(|(from, to)| write!(f, " {from}:{to}"))
            }
            TcpOption::Raw(bytes) => {
                f.write_str("bytes")?;
                bytes.iter().try_for_each(|byte| write!(f, " {byte}"))
            }
        }
    }
}

impl Call {
    /// The expected result, in packetdrill's notation.
    pub fn expected(&self) -> String {
        returned(&self.name, self.result, self.errno.as_deref())
    }
}

/// A call's result in packetdrill's notation.
pub fn returned(name: &str, result: Option<i64>, errno: Option<&str>) -> String {
    let result = result.map_or("...".to_owned(), |result| result.to_string());
    match errno {
        Some(errno) => format!("{name}(...) = {result} {errno}"),
        None => format!("{name}(...) = {result}"),
    }
}

/// The ECN field of an IP header, in packetdrill's notation.
pub fn ecn(ecn: Ecn) -> &'static str {
    match ecn {
        Ecn::NotCapable => "[noecn]",
        Ecn::Capable0 => "[ect0]",
        Ecn::Capable1 => "[ect1]",
        Ecn::Congestion => "[ce]",
    }
}

/// Formats a time since the script's start, in seconds.
pub fn seconds(at: Nanos) -> String {
    format!("{:.6}", at.0 as f64 / 1e9)
}
