//! Writes pcapng (draft-ietf-opsawg-pcapng): one section, one interface, enhanced packet blocks, little-endian.

use std::io::{self, Write};

use crate::{CsumPlace, FRAME_BYTES_MAX, checksum};

const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const ETHERNET: u16 = 1;
const OPTION_END: u16 = 0;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const NANOSECONDS: u8 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFDROP: u16 = 5;

/// Bytes of an enhanced packet block before the frame.
const PACKET_HEAD_BYTES: usize = 28;
/// Most bytes of the block after the frame: padding, the flags, the end of options, the length again.
const PACKET_TAIL_BYTES: usize = 3 + 8 + 4 + 4;

/// Direction of a frame, as in `epb_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    In = 1,
    Out = 2,
}

/// A capture in progress. It ends with the first error.
pub(super) struct Writer {
    output: Box<dyn Write + Send>,
    snap_bytes: usize,
    /// Bytes left up to the bound.
    bytes_left: u64,
    frames: u64,
    ended: Option<io::Error>,
    block: Vec<u8>,
}

impl Writer {
    /// Writes the capture's header.
    pub(super) fn new(
        output: Box<dyn Write + Send>,
        name: &str,
        snap_bytes: u32,
        bytes_max: u64,
    ) -> io::Result<Writer> {
        let room = PACKET_HEAD_BYTES + FRAME_BYTES_MAX + PACKET_TAIL_BYTES;
        let mut writer = Writer {
            output,
            snap_bytes: snap_bytes as usize,
            bytes_left: bytes_max,
            frames: 0,
            ended: None,
            block: Vec::with_capacity(room.max(64 + name.len())),
        };
        writer.begin(SECTION);
        writer.words(&[BYTE_ORDER]);
        // Version 1.0; a section of unknown length.
        writer.halves(&[1, 0]);
        writer.words(&[u32::MAX, u32::MAX]);
        writer.end()?;
        writer.begin(INTERFACE);
        writer.halves(&[ETHERNET, 0]);
        writer.words(&[snap_bytes]);
        writer.option(IF_NAME, &name.as_bytes()[..name.len().min(u16::MAX.into())]);
        writer.option(IF_TSRESOL, &[NANOSECONDS]);
        writer.option(OPTION_END, &[]);
        writer.end()?;
        Ok(writer)
    }

    /// Writes a frame, with the checksum at `partial` completed.
    pub(super) fn write(
        &mut self,
        direction: Direction,
        time_ns: u64,
        frame: &[u8],
        partial: Option<CsumPlace>,
    ) {
        if self.ended.is_some() {
            return;
        }
        let kept = frame.len().min(self.snap_bytes);
        self.begin(ENHANCED_PACKET);
        self.words(&[0, (time_ns >> 32) as u32, time_ns as u32, kept as u32, frame.len() as u32]);
        let at = self.block.len();
        self.block.extend_from_slice(frame);
        if let Some(place) = partial {
            checksum::complete(&mut self.block[at..], place);
        }
        self.block.truncate(at + kept);
        self.pad();
        self.option(EPB_FLAGS, &(direction as u32).to_le_bytes());
        self.option(OPTION_END, &[]);
        match self.end() {
            Ok(()) => self.frames += 1,
            Err(error) => self.ended = Some(error),
        }
    }

    /// Writes the number of frames that were left out.
    pub(super) fn write_dropped(&mut self, time_ns: u64, dropped: u64) {
        if self.ended.is_none() {
            self.begin(STATISTICS);
            self.words(&[0, (time_ns >> 32) as u32, time_ns as u32]);
            self.option(ISB_IFDROP, &dropped.to_le_bytes());
            self.option(OPTION_END, &[]);
            self.ended = self.end().err();
        }
    }

    pub(super) fn ended(&self) -> Option<&io::Error> {
        self.ended.as_ref()
    }

    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        match self.ended {
            Some(error) if error.kind() != io::ErrorKind::StorageFull => Err(error),
            _ => self.output.flush(),
        }
    }

    /// Begins a block; its length follows at the end.
    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.words(&[kind, 0]);
    }

    fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.block.extend_from_slice(&word.to_le_bytes()));
    }

    fn halves(&mut self, halves: &[u16]) {
        halves.iter().for_each(|half| self.block.extend_from_slice(&half.to_le_bytes()));
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.halves(&[code, value.len() as u16]);
        self.block.extend_from_slice(value);
        self.pad();
    }

    /// Pads the block to whole words.
    fn pad(&mut self) {
        let bytes = self.block.len().next_multiple_of(4);
        self.block.resize(bytes, 0);
    }

    /// Ends a block and writes it.
    fn end(&mut self) -> io::Result<()> {
        let bytes = self.block.len() as u32 + 4;
        self.words(&[bytes]);
        self.block[4..8].copy_from_slice(&bytes.to_le_bytes());
        let left = self.bytes_left.checked_sub(bytes.into());
        self.bytes_left = left.ok_or(io::ErrorKind::StorageFull)?;
        self.output.write_all(&self.block)
    }
}
