//! A socket of this process, as the sets that watch it see it.

use std::sync::atomic::AtomicU64;

use rustix::event::epoll::EventFlags;

use crate::list::{Key, List};
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering};

/// An open file description of ours: the readiness of a socket, whatever number of descriptors it has. The socket layer makes one
/// per description, and drops it at the last close, which removes it from all sets.
///
/// No call may come from a signal handler that interrupted another call about the same source, or about a set that has it: the
/// locks are not reentrant.
#[derive(Debug)]
pub struct Source {
    file: Arc<File>,
}

impl Source {
    /// Makes a source that is ready for `bits`.
    pub fn new(bits: EventFlags) -> Source {
        // Not checked by loom: only uniqueness matters.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let bits = AtomicU32::new(bits.bits());
        Source { file: Arc::new(File { id, bits, watchers: Mutex::new(Vec::new()) }) }
    }

    /// The socket's readiness.
    pub fn bits(&self) -> EventFlags {
        self.file.bits()
    }

    /// Sets the socket's readiness to `bits`, and wakes as the kernel's sockets do.
    ///
    /// `edge` is what an edge-triggered set reports again even if it was ready before: [`Source::DATA`] each time that data arrives,
    /// [`Source::ROOM`] when room appears after a write found too little, `ERR` with an error that is to be fetched, [`Source::ANY`]
    /// when the connection's state changes. An edge with `HUP` wakes all sets that have the source with `EPOLLEXCLUSIVE`; any other
    /// edge wakes those up to the first with a sleeping thread. An empty edge wakes nothing: the readiness fell.
    ///
    /// Calls about one source are serialized by the caller, in the order of the changes.
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

    /// The edge of new data, or of a connection to be accepted (`sock_def_readable`).
    pub const DATA: EventFlags =
        EventFlags::IN.union(EventFlags::PRI).union(EventFlags::RDNORM).union(EventFlags::RDBAND);

    /// The edge of new room (`sk_stream_write_space`).
    pub const ROOM: EventFlags =
        EventFlags::OUT.union(EventFlags::WRNORM).union(EventFlags::WRBAND);

    /// The edge of a change that concerns everyone: connected, shut down, reset (`sock_def_wakeup`).
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

/// State shared by a source and the lists that have it.
#[derive(Debug)]
pub struct File {
    id: u64,
    /// [`EventFlags`].
    bits: AtomicU32,
    /// As in the kernel's wait queues: the last added first, and the exclusive ones behind all others in the order in which they were
    /// added. This lock is taken before those of lists.
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

    /// Notifies `list` of all changes from now on.
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
        self.watchers.lock().expect("nothing panics with the lock")
    }
}
