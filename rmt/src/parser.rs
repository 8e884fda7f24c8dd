//! Parsers: from a packet's bytes to fields.

use crate::field::{Field, Phv};

/// Limit of the states that a parser enters for one packet.
pub const STEPS_MAX: usize = 32;

/// A state of a parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParserState<'p> {
    /// Name, as messages print it.
    pub name: &'p str,
    /// Fields that it extracts.
    pub extracts: &'p [Extract],
    /// Bytes from this state's first to the next state's.
    pub advance: u16,
    /// The next state.
    pub next: Select<'p>,
}

/// A field that a parser state extracts, the highest bit first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extract {
    /// The field.
    pub field: Field,
    /// Offset of its first bit, in bits from the state's first byte.
    pub offset_bits: u16,
}

/// Where a parser goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To a state, by index.
    State(usize),
    /// The packet is parsed.
    Accept,
    /// The pipeline does not take the packet.
    Reject,
}

/// Choice of the next state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select<'p> {
    /// The cases, by a field that was extracted; the first that matches decides.
    pub cases: &'p [Case],
    /// What follows if none does.
    pub otherwise: Next,
}

/// A case of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The field.
    pub field: Field,
    /// Bits that count.
    pub mask: u32,
    /// Their value.
    pub value: u32,
    /// What follows.
    pub next: Next,
}

/// Why a packet is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotParsed {
    /// A state refuses it.
    Rejected,
    /// It ends within a state's fields.
    Truncated,
    /// The parser entered too many states.
    TooManySteps,
}

impl core::fmt::Display for NotParsed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            NotParsed::Rejected => "a state of the parser refuses the packet",
            NotParsed::Truncated => "the packet ends within its headers",
            NotParsed::TooManySteps => "the parser entered too many states",
        })
    }
}

impl core::error::Error for NotParsed {}

/// Parses a packet. Returns the number of bytes before the payload.
///
/// # Errors
/// The packet is too short, or a state refuses it.
pub fn parse(states: &[ParserState<'_>], packet: &[u8], phv: &mut Phv) -> Result<usize, NotParsed> {
    let mut at = 0usize;
    let mut next = if states.is_empty() { Next::Accept } else { Next::State(0) };
    for _ in 0..STEPS_MAX {
        let state = match next {
            Next::Accept => return Ok(at),
            Next::Reject => return Err(NotParsed::Rejected),
            Next::State(index) => states.get(index).ok_or(NotParsed::Rejected)?,
        };
        for extract in state.extracts {
            let value = bits(packet, at * 8 + usize::from(extract.offset_bits), extract.field.bits);
            phv.set(extract.field, value.ok_or(NotParsed::Truncated)?);
        }
        at += usize::from(state.advance);
        if at > packet.len() {
            return Err(NotParsed::Truncated);
        }
        let cases = state.next.cases.iter();
        next = cases
            .filter(|case| phv.get(case.field) & case.mask == case.value)
            .map(|case| case.next)
            .next()
            .unwrap_or(state.next.otherwise);
    }
    match next {
        Next::Accept => Ok(at),
        _ => Err(NotParsed::TooManySteps),
    }
}

/// `width` bits of a packet from bit `at`, or `None` beyond its end.
fn bits(packet: &[u8], at: usize, width: u8) -> Option<u32> {
    let mut value = 0u64;
    let (first, last) = (at / 8, (at + usize::from(width)).div_ceil(8));
    for byte in packet.get(first..last)? {
        value = value << 8 | u64::from(*byte);
    }
    let after = last * 8 - (at + usize::from(width));
    Some((value >> after) as u32 & crate::field::mask(width))
}
