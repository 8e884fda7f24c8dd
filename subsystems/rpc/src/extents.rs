//! Payloads in extents: frames that are too large for the entries of a worker's queue cross the link by the copy engine.
//!
//! ```text
//!  producer                                                      consumer
//!  free -- bytes into staging, the copy begins --> copying
//!  copying -- the copy is done: EXTENT -----------> lent -------> copied into its frame, owed
//!  free <---------------------- RETURN, in the worker's other queue -- once half of the pool is owed
//! ```
//!
//! Copies may complete in any order, but are announced in the order in which they began: so frames stay in order in the queue.
//! No function here waits.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use wave_core::extent::{Borrowed, NotItsOwn, NotLent, Pool};
use wave_core::layout::{Layout, POOLS_MAX, PoolConfig, PoolPlace, PoolScope};
use wave_core::link::{Dma, LINE_BYTES, LINE_WORDS, Port, Side, Ticket, Transport, Window};
use wave_core::message::Subject;
use wave_core::queue::PAYLOAD_WORDS;

use crate::wire::{from_words, to_words};

/// Index of the pools that carry replies, one for each worker.
const REPLIES: usize = 0;
/// Index of the pools that carry requests, one for each worker.
const REQUESTS: usize = 1;

/// Sizes of the pools that a server of RPCs asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadConfig {
    /// Extents per worker and direction; 0 if all payloads go through the queues.
    pub extents: u8,
    /// Number of lines in each extent.
    pub lines: u16,
    /// Largest frame in bytes that goes through the queue; longer ones go in extents.
    pub inline_max: u32,
}

impl PayloadConfig {
    /// No pools: all payloads go through the queues.
    pub const NONE: PayloadConfig = PayloadConfig { extents: 0, lines: 0, inline_max: 0 };

    /// The pools in the form of a configuration.
    pub const fn pools(self) -> [PoolConfig; POOLS_MAX] {
        let mut pools = [PoolConfig::NONE; POOLS_MAX];
        if self.extents > 0 {
            let PayloadConfig { extents, lines, inline_max } = self;
            let (scope, transport) = (PoolScope::Core, Transport::DmaAsync);
            let producer = Side::Host;
            pools[REPLIES] = PoolConfig { producer, scope, extents, lines, transport, inline_max };
            pools[REQUESTS] = PoolConfig { producer: Side::Agent, ..pools[REPLIES] };
        }
        pools
    }
}

/// One side's view of a worker's pools.
#[derive(Debug)]
pub struct Extents {
    /// The pool that this side fills.
    pool: Pool,
    /// Extents that the other side was not told of yet, the oldest first, each with its bytes and its copy.
    copying: VecDeque<(Subject, u32, Ticket)>,
    /// The pool that the other side fills.
    borrowed: Borrowed,
    inline_max: u64,
}

/// A peer made a false statement about an extent: it is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum BadExtent {
    /// The peer returned an extent that was not lent.
    #[error(transparent)]
    NotLent(#[from] NotLent),
    /// The peer lent an extent that it cannot lend.
    #[error(transparent)]
    NotItsOwn(#[from] NotItsOwn),
    /// An extent with no bytes, more than it holds, or more than its frame lacks.
    #[error("peer's fault: an extent of {bytes} bytes, where at most {most} are possible")]
    Length { bytes: u64, most: u64 },
}

impl Extents {
    /// The pools of a worker, as `side` uses them.
    pub fn new(layout: &Layout, worker: u16, side: Side) -> Extents {
        let (fills, reads) = match side {
            Side::Host => (REPLIES, REQUESTS),
            Side::Agent => (REQUESTS, REPLIES),
        };
        let inline_max = layout.config.pools[fills].inline_max;
        Extents::over(layout.pool_of(fills, worker), layout.pool_of(reads, worker), inline_max)
    }

    /// For a queue without pools.
    pub fn none() -> Extents {
        Extents::over(PoolPlace::NONE, PoolPlace::NONE, 0)
    }

    fn over(fills: PoolPlace, reads: PoolPlace, inline_max: u32) -> Extents {
        Extents {
            pool: Pool::new(fills),
            copying: VecDeque::with_capacity(fills.extents as usize),
            borrowed: Borrowed::new(reads),
            inline_max: inline_max.into(),
        }
    }

    /// Whether a frame of `bytes` bytes goes in extents.
    #[inline]
    pub(crate) fn carry(&self, bytes: u64) -> bool {
        bytes > self.inline_max && self.pool.place().extents > 0
    }

    /// Whether some of this side's extents are not free.
    #[inline]
    pub(crate) fn lend(&self) -> bool {
        self.pool.lends()
    }

    /// Begins the copy of up to `left` bytes in one extent; `block` gives the line at each offset. Returns the number of bytes:
    /// 0 if no extent is free.
    pub(crate) fn begin(
        &mut self,
        port: &impl Port,
        left: usize,
        block: impl Fn(usize) -> [u8; LINE_BYTES],
    ) -> usize {
        let place = *self.pool.place();
        let Some(extent) = self.pool.free() else { return 0 };
        let bytes = left.min(place.lines as usize * LINE_BYTES);
        let lines = bytes.div_ceil(LINE_BYTES) as u32;
        let staging = place.staging_of(extent, lines);
        let near = port.window(staging.home);
        let mut words = [0; LINE_WORDS];
        for line in 0..lines {
            to_words(&block(line as usize * LINE_BYTES), &mut words);
            let [first @ .., last] = &words;
            near.write_line(staging.line + line, first, *last);
        }
        near.publish();
        let (subject, ticket) = self.pool.begin(port, extent, lines);
        self.copying.push_back((subject, bytes as u32, ticket));
        bytes
    }

    /// The oldest extent that the other side was not told of, if its copy is done.
    pub(crate) fn arrived(&self, port: &impl Port) -> Option<(Subject, u32)> {
        let (subject, bytes, ticket) = *self.copying.front()?;
        port.dma().is_done(ticket).then_some((subject, bytes))
    }

    /// Whether the other side was told of all extents.
    pub(crate) fn is_announced(&self) -> bool {
        self.copying.is_empty()
    }

    /// The other side was told of the oldest extent.
    pub(crate) fn mark_announced(&mut self) {
        self.copying.pop_front();
    }

    /// The other side returns an extent, which must be one that it was told of.
    pub(crate) fn returned(&mut self, extent: Subject) -> Result<(), BadExtent> {
        if self.copying.iter().any(|(copying, ..)| *copying == extent) {
            return Err(NotLent(extent).into());
        }
        Ok(self.pool.returned(extent)?)
    }

    /// Copies an extent that the other side lends into a frame that lacks `left` bytes.
    pub(crate) fn take(
        &mut self,
        port: &impl Port,
        extent: Subject,
        bytes: u64,
        left: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), BadExtent> {
        let place = *self.borrowed.place();
        let most = (place.lines as usize * LINE_BYTES).min(left) as u64;
        if bytes == 0 || bytes > most {
            return Err(BadExtent::Length { bytes, most });
        }
        self.borrowed.take(extent)?;
        let target = place.target_of(extent.id, (bytes as u32).div_ceil(LINE_BYTES as u32));
        let near = port.window(target.home);
        let end = into.len() + bytes as usize;
        into.reserve(bytes as usize);
        let (mut words, mut block) = ([0; LINE_WORDS], [0; LINE_BYTES]);
        for line in 0..target.lines {
            near.read_line(target.line + line, &mut words);
            from_words(&words, &mut block);
            into.extend_from_slice(&block[..LINE_BYTES.min(end - into.len())]);
        }
        Ok(())
    }

    /// The extents to return now, as many as fit into one entry: their number and words. `None` before half of the pool is
    /// owed: extents that are returned together cost one entry, and the other half is enough for the peer to continue.
    #[inline]
    pub(crate) fn due(&self) -> Option<(usize, [u64; PAYLOAD_WORDS])> {
        let owed = self.borrowed.owed();
        if owed.len() == 0 || 2 * owed.len() < self.borrowed.place().extents as usize {
            return None;
        }
        let count = owed.len().min(PAYLOAD_WORDS);
        let mut words = [0; PAYLOAD_WORDS];
        words.iter_mut().zip(owed).for_each(|(word, extent)| *word = extent.to_word());
        Some((count, words))
    }

    /// Removes the first `count` owed extents: they were returned.
    pub(crate) fn give_back(&mut self, count: usize) {
        self.borrowed.give_back(count);
    }
}
