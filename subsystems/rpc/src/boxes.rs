//! Frames over a queue: an outbox writes them as there is room, an inbox puts them together again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use wave_core::endpoint::{Receiver, Sender};
use wave_core::link::Port;
use wave_core::message::Subject;
use wave_core::queue::{Entry, Malformed, PAYLOAD_WORDS, PushError, Tag};

use crate::extents::{BadExtent, Extents};
use crate::wire::{
    CHECK_BYTES, CHECKED, DATA, DATA_BYTES, EXTENT, HEAD_BYTES, Head, RETURN, to_words,
};

/// Bytes of a frame's two parts together, at most: the largest message, and metadata.
pub const FRAME_BYTES_MAX: u64 = 72 << 20;
/// What an inbox keeps of its memory from frame to frame.
const KEPT_BYTES: usize = 64 * 1024;

/// A frame that is not yet written completely.
#[derive(Debug)]
struct Waiting {
    /// Where not even the head is.
    head: Option<(Tag, [u64; PAYLOAD_WORDS])>,
    /// What follows the head, as far as it was not written when this began to wait.
    bytes: Vec<u8>,
    /// How much of it is in the queue, or in extents.
    at: usize,
    way: Way,
}

/// How what follows a frame's head travels.
#[derive(Debug)]
enum Way {
    Entries,
    /// Extents of the frame that were begun, and not yet announced.
    Extents {
        untold: u32,
    },
}

/// The writing end of a queue of frames. What finds no room waits here, and so does a frame in extents until they are copied.
#[derive(Debug)]
pub struct Outbox {
    sender: Sender,
    extents: Extents,
    waiting: VecDeque<Waiting>,
    /// Bytes of waiting frames that are to go in extents and are in none.
    unstaged: usize,
    /// The last entry found no room.
    no_room: bool,
    unpublished: bool,
    /// Frames end with a checksum.
    is_checked: bool,
}

impl Outbox {
    /// Over a queue, and the extents of its worker.
    pub fn new(sender: Sender, extents: Extents) -> Outbox {
        Outbox {
            sender,
            extents,
            waiting: VecDeque::new(),
            unstaged: 0,
            no_room: false,
            unpublished: false,
            is_checked: false,
        }
    }

    /// Adds a checksum to each frame from now on.
    pub fn check(&mut self) {
        self.is_checked = true;
    }

    /// The worker's extents, for its other queue's [`Inbox`].
    #[inline]
    pub fn extents(&mut self) -> &mut Extents {
        &mut self.extents
    }

    /// Writes a frame, whose lengths are those of the two parts, after all earlier ones. What finds no room is copied, and
    /// written by [`Outbox::flush`].
    ///
    /// # Errors
    /// The peer's credit is a lie.
    #[inline]
    pub fn send(
        &mut self,
        port: &impl Port,
        head: &Head,
        first: &[u8],
        second: &[u8],
    ) -> Result<(), PushError> {
        debug_assert_eq!(head.lengths, [first.len() as u32, second.len() as u32]);
        let mut head = *head;
        let check: [u8; CHECK_BYTES];
        let mut parts = Parts([first, second, &[]]);
        if self.is_checked {
            head.flags |= CHECKED;
            check = head.checksum(first, second).to_le_bytes();
            parts = Parts([first, second, &check]);
        }
        let mut unwritten = Some(head.encode(&parts.block(0)));
        let mut at = HEAD_BYTES.min(parts.len());
        let mut way = Way::Entries;
        if self.extents.carry(head.bytes()) {
            let mut untold = 0;
            if self.unstaged == 0 {
                (at, untold) = self.stage(port, &parts, at);
            }
            self.unstaged += parts.len() - at;
            way = Way::Extents { untold };
        } else if self.waiting.is_empty() && self.push_head(port, &mut unwritten)? {
            at = self.push_data(port, &parts, at)?;
            if at == parts.len() {
                return Ok(());
            }
        }
        let is_copied = matches!(way, Way::Extents { .. });
        let bytes = parts.rest(at);
        self.waiting.push_back(Waiting { head: unwritten, bytes, at: 0, way });
        // Where copies take no time, it goes at once.
        if is_copied && self.waiting.len() == 1 {
            self.flush(port)?;
        }
        Ok(())
    }

    /// Writes what waits, as far as there is room and copies are done. Returns whether nothing waits any more.
    ///
    /// # Errors
    /// The peer's credit is a lie.
    pub fn flush(&mut self, port: &impl Port) -> Result<bool, PushError> {
        while let Some((count, words)) = self.extents.due() {
            if !self.push(port, Tag { kind: RETURN, flags: count as u8 }, &words)? {
                break;
            }
            self.extents.give_back(count);
        }
        if self.unstaged > 0 {
            self.stage_waiting(port);
        }
        while let Some(mut frame) = self.waiting.pop_front() {
            let done = self.write(port, &mut frame)?;
            if !done {
                self.waiting.push_front(frame);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Begins to send what waits for extents, as far as these are free. Frames do so in their order.
    fn stage_waiting(&mut self, port: &impl Port) {
        let mut waiting = core::mem::take(&mut self.waiting);
        for Waiting { bytes, at, way, .. } in &mut waiting {
            let Way::Extents { untold } = way else { continue };
            let before = *at;
            let (reached, begun) = self.stage(port, &Parts([bytes, &[], &[]]), before);
            (*at, *untold) = (reached, *untold + begun);
            self.unstaged -= reached - before;
            if reached < bytes.len() {
                break;
            }
        }
        self.waiting = waiting;
    }

    /// Begins to send the frame from `at` on, as far as extents are free. Returns how far that is, and in how many of them.
    fn stage(&mut self, port: &impl Port, parts: &Parts<'_>, mut at: usize) -> (usize, u32) {
        let mut begun = 0;
        while at < parts.len() {
            let left = parts.len() - at;
            let bytes = self.extents.begin(port, left, |offset| parts.block(at + offset));
            if bytes == 0 {
                break;
            }
            (at, begun) = (at + bytes, begun + 1);
        }
        (at, begun)
    }

    fn write(&mut self, port: &impl Port, frame: &mut Waiting) -> Result<bool, PushError> {
        if !self.push_head(port, &mut frame.head)? {
            return Ok(false);
        }
        let Way::Extents { untold } = &mut frame.way else {
            frame.at = self.push_data(port, &Parts([&frame.bytes, &[], &[]]), frame.at)?;
            return Ok(frame.at == frame.bytes.len());
        };
        while *untold > 0 {
            let Some((extent, bytes)) = self.extents.arrived(port) else { return Ok(false) };
            let tag = Tag { kind: EXTENT, flags: 0 };
            if !self.push(port, tag, &[extent.to_word(), bytes.into()])? {
                return Ok(false);
            }
            self.extents.told();
            *untold -= 1;
        }
        Ok(frame.at == frame.bytes.len())
    }

    /// Writes a frame's head, where that is still to be done. Returns whether it is done.
    fn push_head(
        &mut self,
        port: &impl Port,
        head: &mut Option<(Tag, [u64; PAYLOAD_WORDS])>,
    ) -> Result<bool, PushError> {
        if let Some((tag, words)) = head {
            if !self.push(port, *tag, words)? {
                return Ok(false);
            }
            *head = None;
        }
        Ok(true)
    }

    /// Writes bytes from `at` on, as far as there is room. Returns how far.
    fn push_data(
        &mut self,
        port: &impl Port,
        parts: &Parts<'_>,
        mut at: usize,
    ) -> Result<usize, PushError> {
        while at < parts.len() {
            let bytes: [u8; DATA_BYTES] = parts.block(at);
            let mut words = [0; DATA_BYTES / 8];
            to_words(&bytes, &mut words);
            if !self.push(port, Tag { kind: DATA, flags: 0 }, &words)? {
                break;
            }
            at = (at + DATA_BYTES).min(parts.len());
        }
        Ok(at)
    }

    fn push<const N: usize>(
        &mut self,
        port: &impl Port,
        tag: Tag,
        words: &[u64; N],
    ) -> Result<bool, PushError> {
        match self.sender.push(port, tag, words) {
            Ok(()) => {
                (self.unpublished, self.no_room) = (true, false);
                Ok(true)
            }
            Err(PushError::Full(_)) => {
                self.no_room = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes what was written travel. Returns whether there was anything.
    #[inline]
    pub fn publish(&mut self, port: &impl Port) -> bool {
        let any = core::mem::take(&mut self.unpublished);
        if any {
            self.sender.publish(port);
        }
        any
    }

    /// Orders all that was written before later loads of this context.
    #[inline]
    pub fn fence(&mut self, port: &impl Port) {
        self.unpublished = false;
        self.sender.fence(port);
    }

    /// Lets copies of entries progress. Returns whether nothing is under way, nothing waits for [`Outbox::flush`], and nothing to
    /// be published.
    pub fn poll(&mut self, port: &impl Port) -> bool {
        self.sender.poll(port) && !self.is_behind() && !self.unpublished
    }

    /// Whether frames wait: for room, for extents, or for copies.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether frames wait for the other side to take what there is: no copy that is under way helps them.
    pub fn is_stuck(&self) -> bool {
        self.is_full() && (self.no_room || self.unstaged > 0 && self.extents.is_told())
    }

    /// Whether there is something to flush: frames that wait, or extents to be returned.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.is_full() || self.extents.due().is_some()
    }

    /// Whether the other side still has to return extents.
    #[inline]
    pub fn lends(&self) -> bool {
        self.extents.lend()
    }
}

/// A frame's two parts and its checksum, as one sequence of bytes.
struct Parts<'a>([&'a [u8]; 3]);

impl Parts<'_> {
    fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    /// The bytes from `at` on, and zeros beyond.
    #[inline]
    fn block<const N: usize>(&self, mut at: usize) -> [u8; N] {
        let mut block = [0; N];
        let mut filled = 0;
        for part in &self.0 {
            let rest = &part[at.min(part.len())..];
            at = at.saturating_sub(part.len());
            let count = rest.len().min(N - filled);
            if count > 0 {
                block[filled..filled + count].copy_from_slice(&rest[..count]);
                filled += count;
            }
        }
        block
    }

    /// A copy of the bytes from `at` on.
    fn rest(&self, mut at: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len() - at);
        for part in &self.0 {
            bytes.extend_from_slice(&part[at.min(part.len())..]);
            at = at.saturating_sub(part.len());
        }
        bytes
    }
}

/// A frame that arrived whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Head of the frame: kind, call and lengths.
    pub head: Head,
    /// First part of the payload.
    pub first: &'a [u8],
    /// Second part of the payload.
    pub second: &'a [u8],
}

/// What a peer wrote is no frame: it is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// A queue entry is malformed: the peer is at fault.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// An entry has another size.
    #[error("peer's fault: an entry of kind {0} does not have as many words as that kind has")]
    Size(u16),
    /// More bytes without a head, or a head among bytes.
    #[error("peer's fault: an entry of kind {0} came out of turn")]
    Turn(u16),
    /// A frame announces more bytes than are allowed.
    #[error("peer's fault: a frame of {0} bytes")]
    Long(u64),
    /// The frame does not match its checksum.
    #[error(
        "peer's fault, or the fault of memory between: a frame of kind {0} does not match its checksum"
    )]
    Checksum(u16),
    /// A frame has no checksum, in a queue whose frames have one.
    #[error("peer's fault: a frame of kind {0} has no checksum")]
    Unchecked(u16),
    /// The frame names an extent that it may not.
    #[error(transparent)]
    Extent(#[from] BadExtent),
}

/// The reading end of a queue of frames.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver,
    /// Head of the frame under way.
    head: Option<Head>,
    bytes: Vec<u8>,
    took: bool,
    /// Every frame has to end with a checksum.
    is_checked: bool,
}

impl Inbox {
    /// Receives frames from a queue.
    pub fn new(receiver: Receiver) -> Inbox {
        Inbox { receiver, head: None, bytes: Vec::new(), took: false, is_checked: false }
    }

    /// Refuses frames without a checksum from now on.
    pub fn check(&mut self) {
        self.is_checked = true;
    }

    /// Whether frames must have checksums: after [`Inbox::check`], or once a frame had one.
    pub fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Number of entries taken so far.
    pub fn consumed(&self) -> u64 {
        self.receiver.consumed()
    }

    /// The next frame, if it is there whole. Takes at most `entries` entries, and says with `None` also that these did not
    /// complete one. `extents` are those of the queue's worker, which its [`Outbox`] has.
    ///
    /// # Errors
    /// The peer writes no frames. What follows means nothing.
    #[inline]
    pub fn next(
        &mut self,
        port: &impl Port,
        entries: usize,
        extents: &mut Extents,
    ) -> Result<Option<Frame<'_>>, BadFrame> {
        for _ in 0..entries {
            let Some(entry) = self.receiver.pop(port)? else { return Ok(None) };
            self.took = true;
            self.receiver.release(port);
            let kind = entry.tag.kind;
            let head = match (self.head, kind) {
                (_, RETURN) => {
                    take_back(&entry, extents)?;
                    continue;
                }
                (Some(head), DATA) => {
                    let words = entry.words();
                    if words.len() * 8 != DATA_BYTES {
                        return Err(BadFrame::Size(kind));
                    }
                    let mut bytes = [0; DATA_BYTES];
                    crate::wire::from_words(words, &mut bytes);
                    let left = head.bytes() as usize - self.bytes.len();
                    self.bytes.extend_from_slice(&bytes[..left.min(DATA_BYTES)]);
                    head
                }
                (Some(head), EXTENT) => {
                    let [extent, bytes] = *entry.words() else {
                        return Err(BadFrame::Size(kind));
                    };
                    let left = head.bytes() as usize - self.bytes.len();
                    let extent = Subject::from_word(extent);
                    extents.take(port, extent, bytes, left, &mut self.bytes)?;
                    head
                }
                (None, DATA | EXTENT) | (Some(_), _) => return Err(BadFrame::Turn(kind)),
                (None, _) => {
                    let (head, bytes) = Head::decode(&entry).ok_or(BadFrame::Size(kind))?;
                    if self.is_checked && head.flags & CHECKED == 0 {
                        return Err(BadFrame::Unchecked(kind));
                    }
                    if head.bytes() > FRAME_BYTES_MAX {
                        return Err(BadFrame::Long(head.bytes()));
                    }
                    self.bytes.clear();
                    self.bytes.shrink_to(KEPT_BYTES);
                    let here = head.bytes().min(HEAD_BYTES as u64) as usize;
                    self.bytes.extend_from_slice(&bytes[..here]);
                    head
                }
            };
            if self.bytes.len() as u64 == head.bytes() {
                self.head = None;
                let (first, rest) = self.bytes.split_at(head.lengths[0] as usize);
                let (second, check) = rest.split_at(head.lengths[1] as usize);
                if head.flags & CHECKED != 0 {
                    self.is_checked = true;
                    if head.checksum(first, second).to_le_bytes() != check {
                        return Err(BadFrame::Checksum(head.kind));
                    }
                }
                let head = Head { flags: head.flags & !CHECKED, ..head };
                return Ok(Some(Frame { head, first, second }));
            }
            self.head = Some(head);
        }
        Ok(None)
    }

    /// Whether entries were taken since the last call, even part of a frame: more may be there, so this side must not sleep yet.
    #[inline]
    pub fn took(&mut self) -> bool {
        core::mem::take(&mut self.took)
    }

    /// Starts to fetch the next entry (Wave 5.4).
    #[inline]
    pub fn prefetch(&mut self, port: &impl Port) {
        self.receiver.prefetch(port);
    }

    /// Lets the way back of the credit progress. Returns whether nothing is under way.
    pub fn poll(&mut self, port: &impl Port) -> bool {
        self.receiver.poll(port)
    }
}

/// Extents that the peer has read.
fn take_back(entry: &Entry, extents: &mut Extents) -> Result<(), BadFrame> {
    let count = usize::from(entry.tag.flags);
    let words = entry.words();
    if words.len() != PAYLOAD_WORDS || !(1..=PAYLOAD_WORDS).contains(&count) {
        return Err(BadFrame::Size(RETURN));
    }
    for &word in &words[..count] {
        extents.returned(Subject::from_word(word))?;
    }
    Ok(())
}
