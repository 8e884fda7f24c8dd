//! Notes in a queue, for a front and a policy in two agents with a link between them.
//!
//! The window is a [`Layout`] of one core. Its agent's side is the front, its host's side the policy's agent; decision queue 0
//! carries the notes, status line 0 shows whether the policy's agent sleeps. Only the queue's credit flows back.
//!
//! # No note is kept
//!
//! A note that finds no room is dropped, and the sender is then *behind*, as a new sender is. When there is room again, the
//! front passes it a note for every open request ([`NoteSender::catch_up`]): a note too many is harmless, one too few is not.

use alloc::vec::Vec;

use super::NOTE_REQUEST;
use crate::agent::ENTRIES_PER_TURN;
use crate::endpoint::{Receiver, Sender, home_of};
use crate::layout::{CORES_MAX, Config, INCARNATION_REPLACED, Layout, QueuePlace};
use crate::link::{Doorbell, Home, Port, Side, Window};
use crate::message::Subject;
use crate::park::ParkWord;
use crate::policy::Note;
use crate::queue::{Entry, Malformed, PushError, Ring, Tag};
use crate::subsystem::SubsystemId;

/// Identity of a notes window, which no host offers.
pub const NOTES: SubsystemId = SubsystemId::new(4);

/// Entries of the queue by default.
const ENTRIES: u32 = 1024;
// A sender that is behind has room for a note about each worker once three quarters of the queue were taken.
const _: () = assert!(CORES_MAX as u32 <= ENTRIES / 4 * 3);

/// The configuration of a notes window, given one for decisions on the same link ([`Config::coherent`], [`Config::pcie`]).
pub fn config(link: Config) -> Config {
    let mut config =
        Config { subsystem: NOTES, cores: 1, contexts: 1, subjects: 1, prestage: 0, ..link };
    config.decisions.entries = ENTRIES;
    config.messages.entries = Ring::ENTRIES_MIN;
    config
}

/// The peer is at fault: give up the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum NoteError {
    /// The entry's words, kind or flags are malformed: the front is at fault.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(
        "peer's fault: an entry of kind {kind:#x} with flags {flags:#x} and {words} words is not a note: notes have kinds from \
         {NOTE_REQUEST:#x}, no flags, 3 words"
    )]
    NoNote { kind: u16, flags: u8, words: usize },
    /// The receiver's credit is impossible: it exceeds the number of notes sent.
    #[error(transparent)]
    Credit(PushError),
}

fn encode(note: &Note) -> (Tag, [u64; 3]) {
    let [first, second] = note.words;
    (Tag { kind: note.kind, flags: 0 }, [note.subject.to_word(), first, second])
}

/// Decodes a note from an entry that a peer wrote; nothing else does.
fn decode(entry: &Entry) -> Result<Note, NoteError> {
    let Tag { kind, flags } = entry.tag;
    match *entry.words() {
        // Smaller kinds are exchanged only inside one agent.
        [subject, first, second] if flags == 0 && kind >= NOTE_REQUEST => {
            Ok(Note { kind, subject: Subject::from_word(subject), words: [first, second] })
        }
        ref words => Err(NoteError::NoNote { kind, flags, words: words.len() }),
    }
}

fn queue(layout: &Layout) -> &QueuePlace {
    &layout.decisions[0]
}

/// The end of the queue that a front writes.
#[derive(Debug)]
pub struct NoteSender<L: Port, B: Doorbell> {
    port: L,
    bell: B,
    queue: Sender,
    incarnation: u32,
    park: ParkWord,
    is_behind: bool,
}

impl<L: Port, B: Doorbell> NoteSender<L, B> {
    /// Creates the sender of a fresh window. `bell` wakes the policy's agent.
    pub fn new(layout: &Layout, port: L, bell: B) -> NoteSender<L, B> {
        NoteSender {
            port,
            bell,
            queue: Sender::new(queue(layout), Side::Agent),
            incarnation: layout.incarnation,
            park: ParkWord::of_core(layout, 0),
            is_behind: true,
        }
    }

    /// Whether the receiver may have missed an open request: call [`NoteSender::catch_up`].
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Sends notes. Drops them while the sender is behind: their requests are open, and [`NoteSender::catch_up`] covers them.
    ///
    /// # Errors
    /// The peer is at fault.
    pub fn send(&mut self, notes: &[Note]) -> Result<(), NoteError> {
        let mut sent = false;
        for note in notes {
            if self.is_behind {
                break;
            }
            let (tag, words) = encode(note);
            match self.queue.push(&self.port, tag, &words) {
                Ok(()) => sent = true,
                Err(PushError::Full(_)) => self.is_behind = true,
                Err(error) => return Err(NoteError::Credit(error)),
            }
        }
        if sent {
            self.publish();
        }
        Ok(())
    }

    /// Sends the notes of all open requests, if there is room for them. Once the receiver has taken all earlier notes, there is
    /// room for up to three quarters of the queue.
    ///
    /// # Errors
    /// The peer is at fault.
    pub fn catch_up(&mut self, open: &[Note]) -> Result<(), NoteError> {
        if self.queue.has_room(&self.port, open.len() as u32).map_err(NoteError::Credit)? {
            self.is_behind = false;
            self.send(open)?;
        }
        Ok(())
    }

    /// Tells the receiver that another receiver gets the notes from now on.
    pub fn replace(&mut self) {
        let nic = self.port.window(home_of(Side::Agent));
        nic.store(self.incarnation, 0, INCARNATION_REPLACED);
        nic.fence();
        self.bell.ring();
    }

    fn publish(&mut self) {
        self.queue.publish(&self.port);
        // A copy that arrives after the look at the status would be missed by both sides.
        while !self.queue.poll(&self.port) {
            core::hint::spin_loop();
        }
        self.queue.fence(&self.port);
        let nic = self.port.window(home_of(Side::Agent));
        nic.fence();
        if self.park.is_parked(&self.port) {
            self.bell.ring();
        }
    }
}

/// The end of the queue that a scheduler reads.
#[derive(Debug)]
pub struct NoteReceiver<L: Port> {
    port: L,
    queue: Receiver,
    incarnation: u32,
    park: ParkWord,
}

impl<L: Port> NoteReceiver<L> {
    /// Creates the receiver of a window whose header was checked.
    pub fn new(layout: &Layout, port: L) -> NoteReceiver<L> {
        NoteReceiver {
            port,
            queue: Receiver::new(queue(layout), Side::Host),
            incarnation: layout.incarnation,
            park: ParkWord::of_core(layout, 0),
        }
    }

    /// Takes a bounded number of notes. Returns whether there were any. Prefetches the next entry's line, so that a poll costs
    /// less than a round trip across the link; an entry that arrives after the prefetch is seen one poll later.
    ///
    /// # Errors
    /// The peer is at fault.
    pub fn poll(&mut self, notes: &mut Vec<Note>) -> Result<bool, NoteError> {
        let before = notes.len();
        while notes.len() - before < ENTRIES_PER_TURN {
            let Some(entry) = self.queue.pop(&self.port)? else { break };
            notes.push(decode(&entry)?);
        }
        self.queue.poll(&self.port);
        self.queue.prefetch(&self.port);
        Ok(notes.len() > before)
    }

    /// Announces that the agent is about to sleep. Blocks until a copy of credit that is under way has arrived. Then poll
    /// once more, wait for the bell if that finds nothing, and call [`NoteReceiver::unpark`].
    pub fn prepare_park(&mut self) {
        // A sender that is behind waits for room and never rings: credit that is being copied must arrive first.
        while !self.queue.poll(&self.port) {
            core::hint::spin_loop();
        }
        self.park.park(&self.port);
        // A line that was prefetched earlier may be out of date.
        self.queue.prefetch(&self.port);
    }

    /// Clears PARKED in the receiver's parking word.
    pub fn unpark(&mut self) {
        self.park.unpark(&self.port);
    }

    /// Whether the front has switched to another receiver: this one must not attach again.
    pub fn is_replaced(&self) -> bool {
        self.port.window(Home::Nic).load(self.incarnation, 0) == INCARNATION_REPLACED
    }
}
