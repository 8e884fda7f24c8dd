//! Parses tokens into a script.

use wave_core::clock::Nanos;
use wave_tcp::packet::{Ecn, Flags};

use crate::BadScript;
use crate::lexer::{Kind, Token, tokens};
use crate::script::{
    Action, Argument, Body, Call, Event, Packet, Script, Segment, Settings, TcpOption, Unreachable,
    When,
};
use crate::shell;

/// packetdrill's default tolerance.
const TOLERANCE: Nanos = Nanos::from_micros(4_000);
/// Largest payload of a segment, in bytes: the limit of an IPv4 packet.
const BYTES_MAX: u32 = 65_495;
/// Longest time between two events: one day, so that no script runs forever.
const SECONDS_MAX: u64 = 86_400;

/// Parses a script.
///
/// # Errors
/// The text is not a script, or uses a feature that this interpreter lacks.
pub fn parse(text: &str) -> Result<Script, BadScript> {
    let tokens = tokens(text)?;
    let line = text.lines().count().max(1);
    let settings = Settings::default();
    let mut parser = Parser { tokens, at: 0, end: (line, 1), tolerance: TOLERANCE, settings };
    parser.options()?;
    let mut events = Vec::new();
    while let Some(token) = parser.peek() {
        match token.kind.clone() {
            Kind::Shell(command) => {
                parser.at += 1;
                parser.shell(&command, &token)?;
            }
            Kind::Code => return Err(no_code(&token)),
            _ => events.push(parser.event()?),
        }
    }
    if events.is_empty() {
        return Err(parser.wrong("an event, such as `+0 < S 0:0(0) win 1000`"));
    }
    Ok(Script { tolerance: parser.tolerance, settings: parser.settings, events })
}

fn bad(token: &Token, what: impl Into<String>) -> BadScript {
    BadScript { line: token.line, column: token.column, what: what.into() }
}

fn no_code(token: &Token) -> BadScript {
    bad(
        token,
        "%{ ... }% is Python code that checks Linux's TCP_INFO; this interpreter does not run it",
    )
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    end: (usize, usize),
    tolerance: Nanos,
    settings: Settings,
}

impl Parser {
    fn shell(&mut self, command: &str, token: &Token) -> Result<(), BadScript> {
        shell::apply(command, &mut self.settings).map_err(|what| bad(token, what))
    }

    fn peek(&self) -> Option<Token> {
        self.tokens.get(self.at).cloned()
    }

    fn kind(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn wrong(&self, wanted: &str) -> BadScript {
        match self.tokens.get(self.at) {
            Some(token) => {
                let found = match &token.kind {
                    Kind::Number(text) | Kind::Word(text) | Kind::Option(text) => text.clone(),
                    Kind::Text(text) => format!("{text:?}"),
                    Kind::Shell(_) => "a command".to_owned(),
                    Kind::Code => "code".to_owned(),
                    Kind::Ellipsis => "...".to_owned(),
                    Kind::Mark(mark) => mark.to_string(),
                };
                bad(token, format!("found `{found}`, expected {wanted}"))
            }
            None => {
                let (line, column) = self.end;
                BadScript { line, column, what: format!("the script ends here, expected {wanted}") }
            }
        }
    }

    fn is(&self, mark: char) -> bool {
        self.kind() == Some(&Kind::Mark(mark))
    }

    fn take(&mut self, mark: char) -> bool {
        let is = self.is(mark);
        self.at += usize::from(is);
        is
    }

    fn must(&mut self, mark: char) -> Result<(), BadScript> {
        if self.take(mark) { Ok(()) } else { Err(self.wrong(&format!("`{mark}`"))) }
    }

    fn take_ellipsis(&mut self) -> bool {
        let is = self.kind() == Some(&Kind::Ellipsis);
        self.at += usize::from(is);
        is
    }

    fn word(&self) -> Option<String> {
        match self.kind() {
            Some(Kind::Word(word)) => Some(word.clone()),
            _ => None,
        }
    }

    fn take_word(&mut self, wanted: &str) -> bool {
        let is = self.word().as_deref() == Some(wanted);
        self.at += usize::from(is);
        is
    }

    fn number(&mut self, what: &str, most: u64) -> Result<u64, BadScript> {
        let Some(Kind::Number(text)) = self.kind() else { return Err(self.wrong(what)) };
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match number {
            Ok(number) if number <= most => {
                self.at += 1;
                Ok(number)
            }
            _ => Err(self.wrong(&format!("{what}, a whole number up to {most}"))),
        }
    }

    fn seq(&mut self, what: &str) -> Result<u32, BadScript> {
        Ok(self.number(what, u32::MAX.into())? as u32)
    }

    fn options(&mut self) -> Result<(), BadScript> {
        while let Some(Kind::Option(name)) = self.kind().cloned() {
            self.at += 1;
            let value = self.take('=');
            match (name.as_str(), value) {
                ("--tolerance_usecs", true) => {
                    let micros = self.number("microseconds", 10_000_000)?;
                    self.tolerance = Nanos::from_micros(micros);
                }
                // Timestamp tick: ours is one millisecond.
                ("--tcp_ts_tick_usecs", true) => {
                    if self.number("microseconds", u64::MAX)? != 1_000 {
                        self.at -= 1;
                        return Err(self.wrong("1000: timestamps are in milliseconds"));
                    }
                }
                ("--ip_version", true) if self.take_word("ipv4") => {}
                _ => {
                    self.at -= 1 + usize::from(value);
                    let all = "--tolerance_usecs=N, --tcp_ts_tick_usecs=1000, --ip_version=ipv4";
                    return Err(self.wrong(all));
                }
            }
        }
        Ok(())
    }

    fn seconds(&mut self) -> Result<Nanos, BadScript> {
        let Some(Kind::Number(text)) = self.kind() else {
            return Err(self.wrong("a time in seconds, such as `0.1` or `.1`"));
        };
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits: String = part.chars().chain("000000000".chars()).take(9).collect();
        match (whole.parse::<u64>(), digits.parse::<u64>()) {
            (Ok(whole), Ok(nanos)) if whole <= SECONDS_MAX => {
                self.at += 1;
                Ok(Nanos(whole * 1_000_000_000 + nanos))
            }
            _ => Err(self.wrong("a time in seconds, one day at most")),
        }
    }

    fn event(&mut self) -> Result<Event, BadScript> {
        let line = self.peek().map_or(0, |token| token.line);
        let at = self.when()?;
        let until = if self.take_ellipsis() {
            if !matches!(at, When::Absolute(_) | When::Relative(_)) {
                return Err(self.wrong(
                    "one start time and one end time for a blocking call, such as `+0...0.2`",
                ));
            }
            Some(self.seconds()?)
        } else {
            None
        };
        let token = self.peek();
        let action = match self.kind().cloned() {
            Some(Kind::Mark('<')) if until.is_none() => {
                self.at += 1;
                Action::In(self.packet(true)?)
            }
            Some(Kind::Mark('>')) if until.is_none() => {
                self.at += 1;
                Action::Out(self.packet(false)?)
            }
            Some(Kind::Word(name)) => Action::Call(self.call(name, until)?),
            Some(Kind::Shell(command)) if until.is_none() => {
                self.at += 1;
                self.shell(&command, &token.expect("the token was peeked"))?;
                Action::Sleep
            }
            Some(Kind::Code) => return Err(no_code(&token.expect("the token was peeked"))),
            _ => {
                return Err(
                    self.wrong("`<` (a packet is received), `>` (a packet is expected), or a call")
                );
            }
        };
        let is_range = matches!(at, When::Any | When::AbsoluteRange(..) | When::RelativeRange(..));
        if is_range && !matches!(action, Action::Out(_)) {
            self.at = self.at.saturating_sub(1);
            return Err(self.wrong("`>`: only expected packets have `*` or a time range"));
        }
        Ok(Event { line, at, skew: Nanos(0), action })
    }

    fn when(&mut self) -> Result<When, BadScript> {
        if self.take('*') {
            return Ok(When::Any);
        }
        let is_relative = self.take('+');
        if !is_relative && !matches!(self.kind(), Some(Kind::Number(_))) {
            return Err(self.wrong(
                "a time: `+0.1` (since the previous event), `0.1` (since the start), `*` (any)",
            ));
        }
        let from = self.seconds()?;
        if !self.take('~') {
            return Ok(if is_relative { When::Relative(from) } else { When::Absolute(from) });
        }
        if is_relative {
            self.must('+')?;
        }
        let to = self.seconds()?;
        if to < from {
            self.at -= 1;
            return Err(self.wrong("a time not before the start of the range"));
        }
        Ok(if is_relative { When::RelativeRange(from, to) } else { When::AbsoluteRange(from, to) })
    }

    fn packet(&mut self, is_in: bool) -> Result<Packet, BadScript> {
        let ecn = self.ecn()?;
        if self.take_word("icmp") {
            if !is_in {
                self.at -= 1;
                return Err(self.wrong("a segment: ICMP messages can only come in (`<`)"));
            }
            return Ok(Packet { ports: None, ecn, body: Body::Icmp(self.icmp()?) });
        }
        let ports = match self.kind() {
            Some(Kind::Number(_)) => {
                let source = self.number("a port", 65_535)? as u16;
                self.must('>')?;
                Some((source, self.number("a port", 65_535)? as u16))
            }
            _ => None,
        };
        Ok(Packet { ports, ecn, body: Body::Tcp(self.segment(is_in)?) })
    }

    fn ecn(&mut self) -> Result<Option<Ecn>, BadScript> {
        if !self.take('[') {
            return Ok(None);
        }
        let found = match self.word().as_deref() {
            Some("noecn") => Ecn::NotCapable,
            Some("ect0") => Ecn::Capable0,
            Some("ect1") => Ecn::Capable1,
            Some("ce") => Ecn::Congestion,
            _ => return Err(self.wrong("noecn, ect0, ect1, ce")),
        };
        self.at += 1;
        self.must(']')?;
        Ok(Some(found))
    }

    fn flags(&mut self) -> Result<Flags, BadScript> {
        if self.take('-') {
            return Ok(Flags::NONE);
        }
        let mut flags = Flags::NONE;
        let start = self.at;
        if let Some(word) = self.word() {
            for letter in word.chars() {
                flags |= match letter {
                    'F' => Flags::FIN,
                    'S' => Flags::SYN,
                    'R' => Flags::RST,
                    'P' => Flags::PSH,
                    'U' => Flags::URG,
                    'E' => Flags::ECE,
                    'W' => Flags::CWR,
                    _ => {
                        return Err(
                            self.wrong("flags: letters of FSRPUEW, and `.` for ACK; `-` for none")
                        );
                    }
                };
            }
            self.at += 1;
        }
        if self.take('.') {
            flags |= Flags::ACK;
        }
        if self.at == start {
            return Err(self.wrong("flags: letters of FSRPUEW, and `.` for ACK; `-` for none"));
        }
        Ok(flags)
    }

    /// A range of sequence numbers and its length, `1:1001(1000)`.
    fn range(&mut self) -> Result<(u32, u32), BadScript> {
        let seq = self.seq("sequence numbers, such as `1:1001(1000)`")?;
        self.must(':')?;
        let end_at = self.at;
        let end = self.seq("the sequence number after the last byte")?;
        self.must('(')?;
        let bytes = self.number("a payload length", BYTES_MAX.into())? as u32;
        self.must(')')?;
        if end != seq.wrapping_add(bytes) {
            self.at = end_at;
            return Err(self.wrong(&format!(
                "{}, which is {bytes} bytes after {seq}",
                seq.wrapping_add(bytes)
            )));
        }
        Ok((seq, bytes))
    }

    fn segment(&mut self, is_in: bool) -> Result<Segment, BadScript> {
        let flags = self.flags()?;
        let (seq, bytes) = self.range()?;
        let ack =
            if self.take_word("ack") { Some(self.seq("an acknowledgement number")?) } else { None };
        if ack.is_some() != flags.contains(Flags::ACK) {
            self.at -= usize::from(ack.is_some());
            return Err(self.wrong("`ack N` if and only if the flag `.` is set"));
        }
        let window = match self.take_word("win") {
            true => Some(self.number("a window", 65_535)? as u16),
            false if is_in && !flags.contains(Flags::RST) => {
                return Err(self.wrong("`win N`: a received packet must name its window"));
            }
            false => None,
        };
        let urgent =
            if self.take_word("urg") { self.number("an urgent pointer", 65_535)? } else { 0 };
        let options = self.tcp_options(is_in)?;
        Ok(Segment { flags, seq, bytes, ack, window, urgent: urgent as u16, options })
    }

    fn tcp_options(&mut self, is_in: bool) -> Result<Option<Vec<TcpOption>>, BadScript> {
        let mut options = Vec::new();
        if !self.take('<') {
            return Ok(Some(options));
        }
        if self.take_ellipsis() {
            if is_in {
                self.at -= 1;
                return Err(self.wrong("options: those of a received packet must be named"));
            }
            self.must('>')?;
            return Ok(None);
        }
        while !self.take('>') {
            if !options.is_empty() {
                self.must(',')?;
            }
            options.push(self.tcp_option()?);
        }
        Ok(Some(options))
    }

    fn tcp_option(&mut self) -> Result<TcpOption, BadScript> {
        let all = "mss N, sackOK, TS val N ecr N, nop, eol, wscale N, sack N:N ..., bytes N ...";
        let Some(word) = self.word() else { return Err(self.wrong(all)) };
        self.at += 1;
        Ok(match word.as_str() {
            "mss" => TcpOption::Mss(self.number("bytes", 65_535)? as u16),
            "sackOK" => TcpOption::SackOk,
            "nop" => TcpOption::Nop,
            "eol" => TcpOption::Eol,
            "wscale" => TcpOption::Scale(self.number("a shift", 255)? as u8),
            "TS" => {
                if !self.take_word("val") {
                    return Err(self.wrong("`val`"));
                }
                let value = self.seq("a timestamp value")?;
                if !self.take_word("ecr") {
                    return Err(self.wrong("`ecr`"));
                }
                TcpOption::Timestamps(value, self.seq("a timestamp echo")?)
            }
            "sack" => {
                let mut blocks = Vec::new();
                while matches!(self.kind(), Some(Kind::Number(_))) {
                    let from = self.seq("the start of a SACK block")?;
                    self.must(':')?;
                    blocks.push((from, self.seq("the end of a SACK block")?));
                }
                TcpOption::Sack(blocks)
            }
            "bytes" => {
                let mut bytes = Vec::new();
                while matches!(self.kind(), Some(Kind::Number(_))) {
                    bytes.push(self.number("a byte", 255)? as u8);
                }
                TcpOption::Raw(bytes)
            }
            _ => {
                self.at -= 1;
                return Err(self.wrong(all));
            }
        })
    }

    fn icmp(&mut self) -> Result<Unreachable, BadScript> {
        if !self.take_word("unreachable") {
            return Err(self.wrong("unreachable"));
        }
        let codes = [
            ("net_unreachable", 0),
            ("host_unreachable", 1),
            ("protocol_unreachable", 2),
            ("port_unreachable", 3),
            ("frag_needed", 4),
            ("source_route_failed", 5),
            ("net_prohibited", 9),
            ("host_prohibited", 10),
            ("packet_filtered", 13),
        ];
        let word = self.word().unwrap_or_default();
        let Some((_, code)) = codes.into_iter().find(|(name, _)| *name == word) else {
            let names: Vec<&str> = codes.iter().map(|(name, _)| *name).collect();
            return Err(self.wrong(&names.join(", ")));
        };
        self.at += 1;
        let mtu = if self.take_word("mtu") { self.number("an MTU", 65_535)? } else { 0 } as u16;
        self.must('[')?;
        let (seq, bytes) = self.range()?;
        self.must(']')?;
        Ok(Unreachable { code, mtu, seq, bytes })
    }

    fn call(&mut self, name: String, until: Option<Nanos>) -> Result<Call, BadScript> {
        self.at += 1;
        self.must('(')?;
        let mut arguments = Vec::new();
        while !self.take(')') {
            if !arguments.is_empty() {
                self.must(',')?;
            }
            arguments.push(self.argument()?);
        }
        self.must('=')?;
        let result = match self.take_ellipsis() {
            true => None,
            false => Some(self.signed()?),
        };
        let errno = self.word().filter(|word| word.starts_with('E'));
        self.at += usize::from(errno.is_some());
        if errno.is_some() && self.take('(') {
            // A comment in parentheses, such as `(Connection reset by peer)`.
            while !self.take(')') {
                if self.kind().is_none() {
                    return Err(self.wrong("`)`"));
                }
                self.at += 1;
            }
        }
        Ok(Call { name, arguments, until, result, errno })
    }

    fn signed(&mut self) -> Result<i64, BadScript> {
        let is_negative = self.take('-');
        let number = self.number("a number", i64::MAX as u64)? as i64;
        Ok(if is_negative { -number } else { number })
    }

    fn argument(&mut self) -> Result<Argument, BadScript> {
        let all = "`...`, a number, a name, a string, [...], {name=...}";
        match self.kind().cloned() {
            Some(Kind::Ellipsis) => {
                self.at += 1;
                Ok(Argument::Any)
            }
            Some(Kind::Number(_) | Kind::Mark('-')) => Ok(Argument::Number(self.signed()?)),
            Some(Kind::Text(text)) => {
                self.at += 1;
                Ok(Argument::Text(text))
            }
            Some(Kind::Word(word)) => {
                let mut names = vec![word];
                self.at += 1;
                // A C function, such as htons(80): only its argument counts.
                if self.take('(') {
                    let within = self.argument()?;
                    self.must(')')?;
                    return Ok(within);
                }
                while self.take('|') {
                    let Some(word) = self.word() else { return Err(self.wrong("a name")) };
                    self.at += 1;
                    names.push(word);
                }
                Ok(Argument::Names(names))
            }
            Some(Kind::Mark('[')) => {
                self.at += 1;
                let mut list = Vec::new();
                while !self.take(']') {
                    if !list.is_empty() {
                        self.must(',')?;
                    }
                    list.push(self.argument()?);
                }
                Ok(Argument::List(list))
            }
            Some(Kind::Mark('{')) => {
                self.at += 1;
                if self.take_ellipsis() {
                    // An iovec of a message, `{..., 40}`.
                    self.must(',')?;
                    let bytes = self.argument()?;
                    self.must('}')?;
                    return Ok(Argument::List(vec![Argument::Any, bytes]));
                }
                let mut fields = Vec::new();
                while !self.take('}') {
                    if !fields.is_empty() {
                        self.must(',')?;
                    }
                    let Some(name) = self.word() else { return Err(self.wrong("a field name")) };
                    self.at += 1;
                    // The count in `msg_iov(1)` is skipped: the list itself tells it.
                    if self.take('(') {
                        self.argument()?;
                        self.must(')')?;
                    }
                    self.must('=')?;
                    fields.push((name, self.argument()?));
                }
                Ok(Argument::Struct(fields))
            }
            _ => Err(self.wrong(all)),
        }
    }
}
