//! A socket of this process, from the view of the sets that watch it.

use std::sync::atomic::AtomicU64;

use rustix::event::epoll::EventFlags;

use crate::list::{Key, List};
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering};

/// The readiness of a socket, for all descriptors of its open file description. The socket layer creates one per description, and
/// drops it at the last close, which removes it from all sets.
///
/// A signal handler must not make a call if it has interrupted another call on the same source, or on a set that contains it: the
/// locks are not reentrant.
#[derive(Debug)]
pub struct Source {
    file: Arc<File>,
}

impl Source {
    /// Creates a source that is ready for `bits`.
    pub fn new(bits: EventFlags) -> Source {
        // Not one of loom's atomics: only uniqueness matters.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let bits = AtomicU32::new(bits.bits());
        Source { file: Arc::new(File { id, bits, watchers: Mutex::new(Vec::new()) }) }
    }

    /// Distinguishes the source from all others of the process.
    pub fn id(&self) -> u64 {
        self.file.id
    }

    /// The socket's readiness.
    pub fn bits(&self) -> EventFlags {
        self.file.bits()
    }

    /// Sets the socket's readiness to `bits`, and wakes waiters as the kernel's sockets do.
    ///
    /// `edge` has the events that an edge-triggered set reports again even if they were ready before: [`Source::DATA`] each time that
    /// data arrives, [`Source::ROOM`] when room appears after a write found too little, `ERR` with a new error to be fetched,
    /// [`Source::ANY`] when the connection's state changes. An edge with `HUP` wakes all sets that have the source with
    /// `EPOLLEXCLUSIVE`; any other edge wakes them up to the first with a sleeping thread. An empty edge wakes nothing: the source has
    /// become less ready.
    ///
    /// The caller serializes the calls on one source, in the order of the changes.
    pub fn changed(&self, bits: EventFlags, edge: EventFlags) {
        self.file.bits.store(bits.bits(), Ordering::Release);
        let watchers = self.file.watchers();
        let mut is_served = false;
        for watcher in watchers.iter() {
            let is_left_out = watcher.is_exclusive && is_served && !edge.contains(EventFlags::HUP);
            let edge = if is_left_out { EventFlags::empty() } else { edge };
            let has_woken = watcher.list.notify(watcher.key, edge);
            is_served |= watcher.is_exclusive && has_woken;
        }
    }

    /// Whether a set contains it, or a call waits for it.
    pub fn is_watched(&self) -> bool {
        !self.file.watchers().is_empty()
    }

    /// The edge of new data, or of a connection to accept (`sock_def_readable`).
    pub const DATA: EventFlags =
        EventFlags::IN.union(EventFlags::PRI).union(EventFlags::RDNORM).union(EventFlags::RDBAND);

    /// The edge of new room (`sk_stream_write_space`).
    pub const ROOM: EventFlags =
        EventFlags::OUT.union(EventFlags::WRNORM).union(EventFlags::WRBAND);

    /// The edge of a change that concerns all waiters: connected, shut down, reset (`sock_def_wakeup`).
    pub const ANY: EventFlags = EventFlags::from_bits_retain(0xffff);

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let watchers = std::mem::take(&mut *self.file.watchers());
        for watcher in watchers {
            watcher.list.forget(watcher.key);
        }
    }
}

/// The state that a source shares with the lists that contain it.
#[derive(Debug)]
pub struct File {
    id: u64,
    /// The readiness, as [`EventFlags`].
    bits: AtomicU32,
    /// In the order of the kernel's wait queues: the last added first, then the exclusive ones in the order in which they were added.
    /// This lock is taken before those of lists.
    watchers: Mutex<Vec<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    list: Arc<List>,
    key: Key,
    is_exclusive: bool,
}

impl File {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn bits(&self) -> EventFlags {
        EventFlags::from_bits_retain(self.bits.load(Ordering::Acquire))
    }

    /// Starts to notify `list` of changes, for its entry `key`.
    pub(crate) fn attach(&self, list: &Arc<List>, key: Key, is_exclusive: bool) {
        let mut watchers = self.watchers();
        let at = if is_exclusive { watchers.len() } else { 0 };
        watchers.insert(at, Watcher { list: Arc::clone(list), key, is_exclusive });
    }

    /// Stops notifying `list` of changes of its entry `key`.
    pub(crate) fn detach(&self, list: &List, key: Key) {
        self.watchers().retain(|watcher| watcher.key != key || !std::ptr::eq(&*watcher.list, list));
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.watchers.lock().expect("no panic while the lock is held")
    }
}
