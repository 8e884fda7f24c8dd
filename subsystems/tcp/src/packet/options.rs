//! TCP options (RFC 9293, 3.2): maximum segment size, window scale and timestamps (RFC 7323), selective
//! acknowledgements (RFC 2018).

use serde::{Deserialize, Serialize};

use crate::seq::Seq;

/// Longest options of a header, in bytes.
pub const OPTIONS_BYTES_MAX: usize = 40;
/// Limit of blocks of one selective acknowledgement; with timestamps, three find room.
pub const SACK_BLOCKS_MAX: usize = 4;
/// Largest window scale (RFC 7323, 2.3).
pub const SCALE_MAX: u8 = 14;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// Options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Largest segment payload that the sender accepts, in bytes; never 0. In SYN segments only.
    pub mss: Option<u16>,
    /// Window scale of the sender, at most [`SCALE_MAX`]. In SYN segments only.
    pub scale: Option<u8>,
    /// The sender accepts selective acknowledgements. In SYN segments only.
    pub sack_permitted: bool,
    /// Value and echo; the echo is valid only in a segment with ACK (RFC 7323, 3.2).
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks: first sequence number, and the one after the last. Never in SYN segments. Only the first
    /// `sack_count` are valid: see [`Options::sack_blocks`].
    pub sack: [(Seq, Seq); SACK_BLOCKS_MAX],
    /// Number of SACK blocks.
    pub sack_count: u8,
    /// An option's length was less than 2, or more than was left. The options before it are valid.
    pub is_malformed: bool,
}

impl Options {
    /// The SACK blocks, in the order of the option. The first one may report a duplicate (RFC 2883).
    pub fn sack_blocks(&self) -> &[(Seq, Seq)] {
        &self.sack[..usize::from(self.sack_count).min(SACK_BLOCKS_MAX)]
    }

    /// Adds a block; blocks beyond [`SACK_BLOCKS_MAX`] are dropped.
    pub fn push_sack(&mut self, block: (Seq, Seq)) {
        if let Some(free) = self.sack.get_mut(usize::from(self.sack_count)) {
            *free = block;
            self.sack_count += 1;
        }
    }

    /// Parses the bytes between a header's fixed part and its payload. It accepts any bytes:
    ///
    /// - unknown options are skipped by their length (MUST-6), and so are known ones with a wrong length, an MSS of 0, and empty
    ///   blocks;
    /// - options that belong in SYN segments are skipped in others, and vice versa (RFC 7323, 2.2; RFC 2018, 2);
    /// - an illegal length ends the options (MUST-7) and is reported; "end of options" ends them, too, and is not reported;
    /// - of two options of the same kind, the later one counts.
    pub fn parse(mut bytes: &[u8], is_syn: bool) -> Options {
        let mut options = Options::default();
        loop {
            match *bytes {
                [] | [END, ..] => return options,
                [NOP, ref rest @ ..] => bytes = rest,
                [kind, length, ..] if length >= 2 && bytes.len() >= usize::from(length) => {
                    let (option, rest) = bytes.split_at(length.into());
                    options.read(kind, &option[2..], is_syn);
                    bytes = rest;
                }
                _ => {
                    options.is_malformed = true;
                    return options;
                }
            }
        }
    }

    fn read(&mut self, kind: u8, value: &[u8], is_syn: bool) {
        match (kind, value, is_syn) {
            (MSS, &[high, low], true) => {
                let mss = u16::from_be_bytes([high, low]);
                self.mss = (mss != 0).then_some(mss);
            }
            (SCALE, &[shift], true) => self.scale = Some(shift.min(SCALE_MAX)),
            (SACK_PERMITTED, [], true) => self.sack_permitted = true,
            (TIMESTAMPS, _, _) => {
                if let ([value, echo], []) = value.as_chunks() {
                    self.timestamps = Some((u32::from_be_bytes(*value), u32::from_be_bytes(*echo)));
                }
            }
            (SACK, _, false) => {
                let (numbers, rest) = value.as_chunks::<4>();
                let (blocks, half) = numbers.as_chunks::<2>();
                if !rest.is_empty() || !half.is_empty() {
                    return;
                }
                self.sack_count = 0;
                for [first, end] in blocks {
                    let block = (Seq(u32::from_be_bytes(*first)), Seq(u32::from_be_bytes(*end)));
                    if block.1.since(block.0) > 0 {
                        self.push_sack(block);
                    }
                }
            }
            _ => {}
        }
    }

    /// Writes the options that belong in such a segment, in Linux's order. In a SYN segment: MSS, SACK permitted, timestamps,
    /// no-op, scale. In another one: two no-ops and timestamps, two no-ops and blocks. Blocks that find no room are left out.
    /// Returns the length, a multiple of 4.
    ///
    /// # Panics
    /// `out` is too short; [`OPTIONS_BYTES_MAX`] is enough.
    pub fn build(&self, out: &mut [u8], is_syn: bool) -> usize {
        let mut writer = Writer { out, len: 0 };
        if is_syn {
            if let Some(mss) = self.mss {
                writer.put(&[MSS, 4]);
                writer.put(&mss.to_be_bytes());
            }
            match (self.sack_permitted, self.timestamps.is_some()) {
                (true, true) => writer.put(&[SACK_PERMITTED, 2]),
                (true, false) => writer.put(&[NOP, NOP, SACK_PERMITTED, 2]),
                (false, true) => writer.put(&[NOP, NOP]),
                (false, false) => {}
            }
            self.build_timestamps(&mut writer);
            if let Some(scale) = self.scale {
                writer.put(&[NOP, SCALE, 3, scale.min(SCALE_MAX)]);
            }
        } else {
            if self.timestamps.is_some() {
                writer.put(&[NOP, NOP]);
                self.build_timestamps(&mut writer);
            }
            let room = (OPTIONS_BYTES_MAX - writer.len - 4) / 8;
            let blocks = self.sack_blocks();
            let blocks = &blocks[..blocks.len().min(room)];
            if !blocks.is_empty() {
                writer.put(&[NOP, NOP, SACK, 2 + 8 * blocks.len() as u8]);
                for (first, end) in blocks {
                    writer.put(&first.0.to_be_bytes());
                    writer.put(&end.0.to_be_bytes());
                }
            }
        }
        writer.len
    }

    fn build_timestamps(&self, writer: &mut Writer<'_>) {
        if let Some((value, echo)) = self.timestamps {
            writer.put(&[TIMESTAMPS, 10]);
            writer.put(&value.to_be_bytes());
            writer.put(&echo.to_be_bytes());
        }
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(options: &Options, is_syn: bool) -> Vec<u8> {
        let mut out = [0xaa; OPTIONS_BYTES_MAX];
        let len = options.build(&mut out, is_syn);
        assert_eq!(Options::parse(&out[..len], is_syn), *options);
        out[..len].to_vec()
    }

    fn with_blocks(count: u32, timestamps: Option<(u32, u32)>) -> Options {
        let mut options = Options { timestamps, ..Options::default() };
        (0..count).for_each(|at| options.push_sack((Seq(at * 10), Seq(at * 10 + 5))));
        options
    }

    #[test]
    fn options_are_written_in_linuxs_order() {
        let syn = Options {
            mss: Some(1460),
            scale: Some(7),
            sack_permitted: true,
            timestamps: Some((1, 2)),
            ..Options::default()
        };
        let expected = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7];
        assert_eq!(built(&syn, true), expected);
        let without = Options { timestamps: None, ..syn };
        assert_eq!(built(&without, true), [2, 4, 5, 180, 1, 1, 4, 2, 1, 3, 3, 7]);
        let timestamps = with_blocks(0, Some((1, 2)));
        assert_eq!(built(&timestamps, false), [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        let block = [1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 5];
        assert_eq!(built(&with_blocks(1, None), false), block);
        let both = built(&with_blocks(1, Some((1, 2))), false);
        assert_eq!(both, [built(&timestamps, false), block.to_vec()].concat());
    }

    #[test]
    fn four_sack_blocks_fit_without_timestamps_and_three_with_them() {
        assert_eq!(built(&with_blocks(4, None), false).len(), 36);
        assert_eq!(with_blocks(5, None), with_blocks(4, None));
        let mut out = [0; OPTIONS_BYTES_MAX];
        assert_eq!(with_blocks(4, Some((1, 2))).build(&mut out, false), 40);
        assert_eq!(Options::parse(&out, false), with_blocks(3, Some((1, 2))));
    }

    #[test]
    fn unknown_options_and_wrong_lengths_are_skipped() {
        // An unknown option; an MSS option of five bytes; a scale; padding.
        let bytes = [254, 4, 9, 9, 2, 5, 1, 1, 1, 3, 3, 15, 1, 253, 2];
        let options = Options { scale: Some(SCALE_MAX), ..Options::default() };
        assert_eq!(Options::parse(&bytes, true), options);
        assert_eq!(Options::parse(&[2, 4, 0, 0], true), Options::default());
        // One and a half blocks, a block that ends before it begins, and an empty one.
        assert_eq!(Options::parse(&[&[5, 14][..], &[1; 12]].concat(), false), Options::default());
        for end in [4, 5] {
            let empty = [5, 10, 0, 0, 0, 5, 0, 0, 0, end];
            assert_eq!(Options::parse(&empty, false), Options::default());
        }
    }

    #[test]
    fn syn_options_in_other_segments_and_sack_blocks_in_syns_are_skipped() {
        let syn = [2, 4, 5, 180, 1, 1, 4, 2, 1, 3, 3, 7];
        assert_eq!(Options::parse(&syn, false), Options::default());
        let block = [5, 10, 0, 0, 0, 4, 0, 0, 0, 5];
        assert_eq!(Options::parse(&block, true), Options::default());
    }

    #[test]
    fn an_illegal_length_ends_the_options() {
        for end in [&[9, 0][..], &[9, 1], &[9, 6, 0, 0], &[9]] {
            let bytes = [&[3, 3, 2], end].concat();
            let options = Options { scale: Some(2), is_malformed: true, ..Options::default() };
            assert_eq!(Options::parse(&bytes, true), options, "{end:?}");
        }
        // Nothing after the end of options is read.
        let ended = [3, 3, 2, 0, 3, 0, 3, 1];
        assert_eq!(Options::parse(&ended, true), Options { scale: Some(2), ..Options::default() });
    }
}
