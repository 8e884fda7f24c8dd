//! Frames over a queue: an outbox writes them as room permits, an inbox reassembles them.

use alloc::vec::Vec;

use wave_core::backlog::Backlog;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::link::Port;
use wave_core::message::Subject;
use wave_core::queue::{Entry, Malformed, PAYLOAD_WORDS, PushError, Tag};

use crate::extents::{BadExtent, Extents};
use crate::wire::{
    CHECK_BYTES, CHECKED, DATA, DATA_BYTES, EXTENT, HEAD_BYTES, Head, RETURN, to_words,
};

/// Most bytes of a frame's two parts together: the largest message, and metadata.
pub const FRAME_BYTES_MAX: u64 = 72 << 20;
/// Bytes of its buffer that an inbox keeps between frames.
const KEPT_BYTES: usize = 64 * 1024;

/// A frame that is not completely written yet.
#[derive(Debug)]
struct Waiting {
    /// The frame's head.
    of: Head,
    /// The encoded head, if it is not written yet either.
    head: Option<(Tag, [u64; PAYLOAD_WORDS])>,
    /// The bytes after the head that were not written when the frame began to wait.
    bytes: Vec<u8>,
    /// How many of `bytes` are in the queue or in extents by now.
    at: usize,
    way: Way,
}

/// How the bytes after a frame's head travel.
#[derive(Debug)]
enum Way {
    Entries,
    /// Number of the frame's extents whose copies have begun, and which are not announced yet.
    Extents {
        untold: u32,
    },
}

/// The writing end of a queue of frames. Frames wait here for room in the queue, for free extents, and until extents are
/// copied.
#[derive(Debug)]
pub struct Outbox {
    sender: Sender,
    extents: Extents,
    waiting: Backlog<Waiting>,
    /// Bytes of waiting frames that need extents and have none yet.
    unstaged: usize,
    /// The last push of an entry found no room.
    no_room: bool,
    unpublished: bool,
    /// Frames end with a checksum.
    is_checked: bool,
}

impl Outbox {
    /// An outbox over a queue and the extents of its worker.
    pub fn new(sender: Sender, extents: Extents) -> Outbox {
        Outbox {
            sender,
            extents,
            waiting: Backlog::new(),
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

    /// The worker's extents, for the [`Inbox`] of the worker's other queue.
    #[inline]
    pub fn extents(&mut self) -> &mut Extents {
        &mut self.extents
    }

    /// Writes a frame after all earlier ones; the head's lengths are those of the two parts. Bytes without room are copied, and
    /// written later by [`Outbox::flush`].
    ///
    /// # Errors
    /// The peer's credit is invalid.
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
        self.waiting.push_back(Waiting { of: head, head: unwritten, bytes, at: 0, way });
        // On a link whose copies take no time, the frame can go at once.
        if is_copied && self.waiting.len() == 1 {
            self.flush(port)?;
        }
        Ok(())
    }

    /// Writes waiting frames as far as there is room and their copies are done, and returns extents. Returns whether no frame
    /// waits any more.
    ///
    /// # Errors
    /// The peer's credit is invalid.
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

    /// Begins copies of frames that wait for extents, as far as extents are free, in the order of the frames.
    fn stage_waiting(&mut self, port: &impl Port) {
        let mut waiting = core::mem::take(&mut self.waiting);
        for Waiting { bytes, at, way, .. } in waiting.iter_mut() {
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

    /// Begins copies of the frame from `at` on, as far as extents are free. Returns the offset reached, and the number of
    /// extents.
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
            self.extents.mark_announced();
            *untold -= 1;
        }
        Ok(frame.at == frame.bytes.len())
    }

    /// Writes a frame's head if it is still to be written. Returns whether it is written now.
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

    /// Writes bytes from `at` on, as far as there is room. Returns the offset reached.
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

    /// Publishes the entries that were written. Returns whether there were any.
    #[inline]
    pub fn publish(&mut self, port: &impl Port) -> bool {
        let any = core::mem::take(&mut self.unpublished);
        if any {
            self.sender.publish(port);
        }
        any
    }

    /// Orders all writes so far before later loads of this context.
    #[inline]
    pub fn fence(&mut self, port: &impl Port) {
        self.unpublished = false;
        self.sender.fence(port);
    }

    /// Lets copies of entries progress. Returns whether none is under way, nothing waits for [`Outbox::flush`], and nothing has
    /// to be published.
    pub fn poll(&mut self, port: &impl Port) -> bool {
        self.sender.poll(port) && !self.is_behind() && !self.unpublished
    }

    /// The heads of frames that are not completely written: the other side cannot have seen their end.
    pub fn waiting(&self) -> impl Iterator<Item = &Head> {
        self.waiting.iter().map(|waiting| &waiting.of)
    }

    /// Removes a frame of this kind and call, if none of it is written yet.
    pub fn withdraw(&mut self, kind: u16, call: Subject) {
        self.waiting.retain(|Waiting { of, head, way, .. }| {
            let is_begun = head.is_none() || matches!(way, Way::Extents { .. });
            is_begun || (of.kind, of.call) != (kind, call)
        });
    }

    /// Whether frames wait: for room, for extents, or for copies.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether frames wait until the other side takes entries or returns extents: no copy under way makes room for them.
    pub fn is_stuck(&self) -> bool {
        self.is_full() && (self.no_room || self.unstaged > 0 && self.extents.is_announced())
    }

    /// Whether there is something to flush: waiting frames, or extents to return.
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

    /// The bytes from `at` on, padded with zeros.
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

/// A complete frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Head of the frame: kind, call and lengths.
    pub head: Head,
    /// First part of the payload.
    pub first: &'a [u8],
    /// Second part of the payload.
    pub second: &'a [u8],
}

/// A peer wrote something that is not a frame: it is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// A queue entry is malformed: the peer is at fault.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// An entry has a size that its kind does not allow.
    #[error("peer's fault: an entry of kind {0} has the wrong number of words for its kind")]
    Size(u16),
    /// Bytes without a head before them, or a head before the last frame was complete.
    #[error("peer's fault: an entry of kind {0} came out of turn")]
    Turn(u16),
    /// A head announces more than [`FRAME_BYTES_MAX`] bytes.
    #[error("peer's fault: a frame of {0} bytes, which is more than {FRAME_BYTES_MAX}")]
    Long(u64),
    /// The frame does not match its checksum.
    #[error(
        "peer's fault, or the fault of the memory between: a frame of kind {0} does not match its checksum"
    )]
    Checksum(u16),
    /// A frame without a checksum, in a queue whose frames have checksums.
    #[error("peer's fault: a frame of kind {0} has no checksum")]
    Unchecked(u16),
    /// The peer names an extent that it may not name.
    #[error(transparent)]
    Extent(#[from] BadExtent),
}

/// The reading end of a queue of frames.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver,
    /// Head of the frame that is being received.
    head: Option<Head>,
    bytes: Vec<u8>,
    took: bool,
    /// Every frame must end with a checksum.
    is_checked: bool,
}

impl Inbox {
    /// Receives frames from a queue.
    pub fn new(receiver: Receiver) -> Inbox {
        Inbox { receiver, head: None, bytes: Vec::new(), took: false, is_checked: false }
    }

    /// From now on, refuses frames without a checksum.
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

    /// The next frame, if it is complete. Takes at most `entries` entries; `None` if the queue is empty, or if these entries do
    /// not complete a frame. `extents` are those of the queue's worker, which its [`Outbox`] has.
    ///
    /// # Errors
    /// The peer does not write frames. Everything that follows in the queue is meaningless.
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
                    let parts = head.lengths.iter().map(|&length| u64::from(length)).sum();
                    if parts > FRAME_BYTES_MAX {
                        return Err(BadFrame::Long(parts));
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

    /// Whether entries were taken since the last call, if only part of a frame: there may be more, so this side must not sleep
    /// yet.
    #[inline]
    pub fn took(&mut self) -> bool {
        core::mem::take(&mut self.took)
    }

    /// Starts to fetch the next entry (Wave 5.4).
    #[inline]
    pub fn prefetch(&mut self, port: &impl Port) {
        self.receiver.prefetch(port);
    }

    /// Lets the credit travel back to the producer. Returns whether none is under way.
    pub fn poll(&mut self, port: &impl Port) -> bool {
        self.receiver.poll(port)
    }
}

/// Handles a RETURN: extents that the peer has read.
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
