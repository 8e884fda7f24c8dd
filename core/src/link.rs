//! The interconnect between host and agent, as four small traits.
//!
//! A link is two *regions* of memory that both sides reach, one at home on the NIC and one at home
//! in the host, *doorbells*, and copying in bulk. Memory is addressed in 64-byte lines of eight
//! 64-bit words, because a line is what a cache, a write-combining buffer and a PCIe read move.
//!
//! The peer may write any word at any time. Every access is therefore atomic per word, and nothing
//! read through a window may be trusted before it is checked.
//!
//! # Ordering that an implementation must give
//!
//! * [`Window::load`] is an acquire load, [`Window::store`] a release store.
//! * [`Window::write_line`] stores its words so that none of them becomes visible *after* the last
//!   one: a reader that loads the last word with [`Window::load`] and then reads the line sees the rest.
//!   Under a write-combining mapping this holds only for a full line of eight words
//!   (a partly filled buffer may be evicted in any order).
//! * Stores need not become visible before [`Window::publish`], but a write-through or
//!   uncached store does so on its own.
//! * A write-through mapping may serve a line as it was when it was first read or prefetched,
//!   for ever, until [`Window::flush`].
//! * [`Window::fence`] orders every earlier store before every later load. Across a link that
//!   posts its writes, only a load *from the peer's memory* after the fence proves that they have
//!   arrived (see [`crate::host`] on parking).

/// Number of 64-bit words in a line.
pub const LINE_WORDS: usize = 8;
/// Number of bytes in a line.
pub const LINE_BYTES: usize = 64;

/// Where a region or a queue lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Home {
    /// Memory of the SmartNIC: near to the agent, across the link from the host.
    Nic = 0,
    /// Memory of the host: near to the host, reached by the agent through DMA.
    Host = 1,
}

/// One of the two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Side {
    /// The side that enforces decisions.
    Host = 0,
    /// The side that makes decisions.
    Agent = 1,
}

impl Side {
    /// The side across the link.
    pub const fn other(self) -> Side {
        match self {
            Side::Host => Side::Agent,
            Side::Agent => Side::Host,
        }
    }
}

/// How one side maps the memory of a queue (Wave 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mapping {
    /// Uncacheable: each word is its own transfer.
    Uncached = 0,
    /// Write-combining: stores gather in a line buffer until [`Window::publish`].
    WriteCombining = 1,
    /// Write-through: loads are cached, and go stale until [`Window::flush`].
    WriteThrough = 2,
    /// Write-back: coherent, as ordinary memory.
    WriteBack = 3,
}

/// What moves the entries of a queue (Wave 3.2, `SET_QUEUE_TYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// The producer stores, or the consumer loads, across the link.
    Mmio = 0,
    /// The producer hands a batch to the copy engine and waits until it has arrived.
    DmaSync = 1,
    /// The producer hands a batch to the copy engine and looks for its completion when it polls.
    DmaAsync = 2,
}

/// One context's view of one region of a link.
///
/// A context is a CPU, an interrupt level or an outside thread: anything that has its own
/// write-combining buffers and its own cache. A view may move between threads, but is used by one
/// at a time. Lines outside the region are a bug of the caller, never of the peer: layouts are
/// computed and checked before a view is used, so an implementation may panic.
pub trait Window {
    /// Loads one word (acquire).
    fn load(&self, line: u32, word: usize) -> u64;

    /// Stores one word (release).
    fn store(&self, line: u32, word: usize, value: u64);

    /// Reads the first `words.len()` words of `line`, at most [`LINE_WORDS`].
    ///
    /// Ordered after an earlier [`Window::load`] by the same context, otherwise relaxed.
    fn read_line(&self, line: u32, words: &mut [u64]);

    /// Writes the first seven words of a line as given and then `last`, its eighth word (release).
    /// Words beyond `words.len()` are left alone, except under a write-combining mapping,
    /// where they are filled with zeros.
    fn write_line(&self, line: u32, words: &[u64], last: u64);

    /// Sends all earlier stores of this view on their way (drains write-combining buffers).
    fn publish(&self);

    /// Orders all earlier stores of this view before all its later loads. Includes
    /// [`Window::publish`].
    fn fence(&self);

    /// Drops `line` from this context's cache, so that the next load fetches it.
    fn flush(&self, line: u32);

    /// Starts to fetch `line` without waiting for it. A line that is cached stays as it is.
    fn prefetch(&self, line: u32);

    /// Hints that this context is done with a line that the peer will write next. Where that makes the
    /// peer's next write cheaper, the line is dropped from the caches.
    fn release(&self, _line: u32) {}
}

/// A run of lines in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Region of memory in which the span lies.
    pub home: Home,
    /// Index of the span's first line in its region.
    pub line: u32,
    /// Number of lines in the span.
    pub lines: u32,
}

/// A copy under way, as its queue numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// The copy engine. Copies may complete in any order; a line arrives whole.
pub trait Dma {
    /// Starts to copy `from` to `to`, which have the same number of lines.
    fn copy(&self, from: Span, to: Span) -> Ticket;

    /// Whether the copy has arrived.
    fn is_done(&self, ticket: Ticket) -> bool;
}

/// One context's whole access to a link: its two views and its copy engine.
pub trait Port {
    /// Access to the window's lines.
    type Window: Window;
    /// The engine that copies between the two regions.
    type Dma: Dma;

    /// The view of a region that only this context uses.
    fn window(&self, home: Home) -> &Self::Window;

    /// The engine that copies between the two regions.
    fn dma(&self) -> &Self::Dma;
}

/// The ringing end of a doorbell vector.
pub trait Doorbell {
    /// Rings. A ring is never lost: a waiter that comes later returns at once.
    fn ring(&self);
}

/// The waiting end of a doorbell vector.
pub trait Waiter {
    /// Waits until the doorbell was rung since the last wait, or for `timeout` at most
    /// (for ever where there is none). Returns whether it was rung.
    fn wait(&self, timeout: Option<core::time::Duration>) -> bool;
}
