//! The interest list and the ready list of a set, as Linux keeps them (fs/eventpoll.c), for sources.
//!
//! ```text
//!              edge that concerns the entry; added or modified while ready
//!   unlinked ───────────────────────────────────────────────────────────────> linked, at the tail
//!      ^                                                                        │ collect, from the head
//!      ├── no longer ready; edge-triggered; oneshot, which loses its interest ───┤
//!      │                                        level-triggered: at the tail ────┘
//! ```
//!
//! A thread sleeps only while the ready list is empty, and announces it first ([`List::sleep`]). Linking an entry wakes one sleeper,
//! and a thread that leaves linked entries behind wakes the next one.

use std::collections::{HashMap, VecDeque};

use rustix::event::epoll::{Event, EventData, EventFlags};
use rustix::fd::RawFd;
use rustix::io::Errno;

use crate::source::File;
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::waker::Waker;

/// Flags of an interest that are not readiness.
const PRIVATE: EventFlags = EventFlags::ET
    .union(EventFlags::ONESHOT)
    .union(EventFlags::WAKEUP)
    .union(EventFlags::EXCLUSIVE);

const NONE: u32 = u32::MAX;

/// Identifies an entry of a list; a reused place has a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    place: u32,
    generation: u64,
}

/// The sources of a set (the interest list), and those that may be ready, in order (the ready list).
#[derive(Debug)]
pub struct List {
    /// Held while the interest list changes.
    changes: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    places: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Places of entries by descriptor and open file description, as in epoll(7), question 1.
    names: HashMap<(RawFd, u64), u32>,
    generation: u64,
    /// The ready list: its first and last place, and its length.
    head: u32,
    tail: u32,
    linked: u32,
    sleepers: VecDeque<Arc<Waker>>,
    bell: Option<Arc<Waker>>,
    /// Number of watchers that poll the bell.
    watchers: u32,
    is_rung: bool,
}

#[derive(Debug)]
struct Entry {
    file: Arc<File>,
    fd: RawFd,
    generation: u64,
    interest: EventFlags,
    data: u64,
    is_linked: bool,
    previous: u32,
    next: u32,
}

impl Entry {
    fn ready(&self) -> EventFlags {
        self.file.bits().intersection(self.interest.difference(PRIVATE))
    }
}

impl List {
    /// An empty list.
    pub fn new() -> List {
        let state = State {
            places: Vec::new(),
            free: Vec::new(),
            names: HashMap::new(),
            generation: 0,
            head: NONE,
            tail: NONE,
            linked: 0,
            sleepers: VecDeque::new(),
            bell: None,
            watchers: 0,
            is_rung: false,
        };
        List { changes: Mutex::new(()), state: Mutex::new(state) }
    }

    /// Adds a descriptor of a file, with an interest. Its events are reported with `data`.
    ///
    /// # Errors
    /// `EEXIST`.
    pub fn add(
        list: &Arc<List>,
        fd: RawFd,
        file: &Arc<File>,
        interest: EventFlags,
        data: u64,
    ) -> Result<(), Errno> {
        let _change = list.change();
        let key = list.state().insert(fd, file, interest, data)?;
        // Later changes are notified; earlier ones are already in the file's bits.
        file.attach(list, key, interest.contains(EventFlags::EXCLUSIVE));
        list.link_if_ready(key);
        Ok(())
    }

    /// Replaces the interest and the data of an entry, and rearms it.
    ///
    /// # Errors
    /// `ENOENT`; `EINVAL` if the entry is exclusive.
    pub fn modify(
        &self,
        fd: RawFd,
        file: &File,
        interest: EventFlags,
        data: u64,
    ) -> Result<(), Errno> {
        let _change = self.change();
        let key = {
            let mut state = self.state();
            let key = state.find(fd, file)?;
            let entry = state.entry(key).expect("the entry was just found");
            if entry.interest.contains(EventFlags::EXCLUSIVE) {
                return Err(Errno::INVAL);
            }
            (entry.interest, entry.data) = (interest, data);
            key
        };
        self.link_if_ready(key);
        Ok(())
    }

    /// Removes an entry, and returns its interest and its data. A disarmed `EPOLLONESHOT` entry has no events in its interest.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn delete(&self, fd: RawFd, file: &File) -> Result<(EventFlags, u64), Errno> {
        let _change = self.change();
        let (key, interest, data) = {
            let mut state = self.state();
            let key = state.find(fd, file)?;
            let entry = state.entry(key).expect("the entry was just found");
            (key, entry.interest, entry.data)
        };
        file.detach(self, key);
        self.forget(key);
        Ok((interest, data))
    }

    /// Removes all entries.
    pub fn clear(&self) {
        let _change = self.change();
        let entries: Vec<_> = {
            let mut state = self.state();
            let keys: Vec<_> = state.keys().collect();
            keys.into_iter().filter_map(|key| Some((key, state.remove(key)?.file))).collect()
        };
        for (key, file) in entries {
            file.detach(self, key);
        }
    }

    /// Each entry: its descriptor, its file, its interest and its data.
    pub fn entries(&self) -> Vec<(RawFd, u64, EventFlags, u64)> {
        let state = self.state();
        let entries = state.places.iter().flatten();
        entries.map(|entry| (entry.fd, entry.file.id(), entry.interest, entry.data)).collect()
    }

    /// Removes an entry whose file sends no more notifications.
    pub(crate) fn forget(&self, key: Key) {
        let mut state = self.state();
        // The file is dropped after the lock is released.
        let _entry = state.remove(key);
        state.update_bell(false);
        drop(state);
    }

    /// Collects ready entries from the head, at most as many as fit into `into`. Level-triggered entries move to the tail.
    pub fn collect(&self, into: &mut [Event]) -> usize {
        let mut state = self.state();
        let mut count = 0;
        // Entries that are linked again during this call are left for the next one.
        for _ in 0..state.linked {
            if count == into.len() {
                break;
            }
            let place = state.pop();
            let entry = state.at(place);
            let ready = entry.ready();
            if ready.is_empty() {
                continue;
            }
            into[count] = Event { flags: ready, data: EventData::new_u64(entry.data) };
            count += 1;
            if entry.interest.contains(EventFlags::ONESHOT) {
                entry.interest = entry.interest.intersection(PRIVATE);
            } else if !entry.interest.contains(EventFlags::ET) {
                state.push(place);
            }
        }
        state.update_bell(false);
        let next = if state.linked > 0 { state.sleeper() } else { None };
        drop(state);
        ring(next);
        count
    }

    /// Announces that a thread is about to sleep until `waker` rings. Returns false if it must not sleep, because entries are linked.
    pub fn sleep(&self, waker: &Arc<Waker>) -> bool {
        let mut state = self.state();
        if state.linked > 0 {
            return false;
        }
        // Nothing is ready: a bell that is still readable would end the sleep.
        state.update_bell(false);
        state.sleepers.push_back(Arc::clone(waker));
        true
    }

    /// Announces that the thread is awake. It must collect: it may have been woken for an entry.
    pub fn awake(&self, waker: &Arc<Waker>) {
        self.state().sleepers.retain(|sleeper| !Arc::ptr_eq(sleeper, waker));
    }

    /// Wakes all sleeping threads.
    pub fn wake(&self) {
        let sleepers: Vec<_> = self.state().sleepers.iter().cloned().collect();
        sleepers.into_iter().for_each(|sleeper| sleeper.ring());
    }

    /// Called when the file of an entry has changed. Returns true if the entry is exclusive and woke a sleeping thread that takes the edge.
    pub(crate) fn notify(&self, key: Key, edge: EventFlags) -> bool {
        let mut state = self.state();
        let Some(entry) = state.entry(key) else { return false };
        let interest = entry.interest;
        if !edge.intersects(interest.difference(PRIVATE)) {
            state.update_bell(false);
            return false;
        }
        state.link(key.place);
        state.update_bell(true);
        let sleeper = state.sleeper();
        drop(state);
        let has_woken = sleeper.is_some();
        ring(sleeper);
        has_woken && takes_over(interest, edge)
    }

    /// Keeps `bell` readable while something is ready, until [`List::unwatch`]; each edge rings it again. Calls nest, and the first
    /// bell stays.
    pub fn watch(&self, bell: &Arc<Waker>) {
        let mut state = self.state();
        state.bell.get_or_insert_with(|| Arc::clone(bell));
        state.watchers += 1;
        state.update_bell(false);
    }

    /// Ends one [`List::watch`].
    pub fn unwatch(&self) {
        let mut state = self.state();
        state.watchers -= 1;
        state.update_bell(false);
    }

    /// Links an entry that is ready.
    fn link_if_ready(&self, key: Key) {
        let mut state = self.state();
        let Some(entry) = state.entry(key) else { return };
        let is_new = !entry.is_linked && !entry.ready().is_empty();
        if is_new {
            state.link(key.place);
        }
        state.update_bell(is_new);
        let sleeper = if is_new { state.sleeper() } else { None };
        drop(state);
        ring(sleeper);
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().expect("no panic while the lock is held")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the lock is held")
    }
}

/// As in `ep_poll_callback`: an edge in one direction is taken by an entry that waits for that direction, an edge in neither by any.
fn takes_over(interest: EventFlags, edge: EventFlags) -> bool {
    let both = EventFlags::IN | EventFlags::OUT;
    let direction = edge.intersection(both);
    direction.is_empty() || (direction != both && interest.contains(direction))
}

fn ring(sleeper: Option<Arc<Waker>>) {
    if let Some(sleeper) = sleeper {
        sleeper.ring();
    }
}

impl State {
    fn insert(
        &mut self,
        fd: RawFd,
        file: &Arc<File>,
        interest: EventFlags,
        data: u64,
    ) -> Result<Key, Errno> {
        let name = (fd, file.id());
        if self.names.contains_key(&name) {
            return Err(Errno::EXIST);
        }
        self.generation += 1;
        let generation = self.generation;
        let file = Arc::clone(file);
        let (is_linked, previous, next) = (false, NONE, NONE);
        let entry = Entry { file, fd, generation, interest, data, is_linked, previous, next };
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(entry);
        self.names.insert(name, place);
        Ok(Key { place, generation })
    }

    fn remove(&mut self, key: Key) -> Option<Entry> {
        self.entry(key)?;
        self.unlink(key.place);
        let entry = self.places[key.place as usize].take()?;
        self.names.remove(&(entry.fd, entry.file.id()));
        self.free.push(key.place);
        Some(entry)
    }

    fn find(&self, fd: RawFd, file: &File) -> Result<Key, Errno> {
        let place = *self.names.get(&(fd, file.id())).ok_or(Errno::NOENT)?;
        let entry = self.places[place as usize].as_ref().expect("each name has an entry");
        Ok(Key { place, generation: entry.generation })
    }

    fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        let entry = self.places.get_mut(key.place as usize)?.as_mut()?;
        (entry.generation == key.generation).then_some(entry)
    }

    fn keys(&self) -> impl Iterator<Item = Key> + use<'_> {
        let places = self.places.iter().zip(0..);
        places.filter_map(|(entry, place)| {
            Some(Key { place, generation: entry.as_ref()?.generation })
        })
    }

    /// The entry at a place that is known to have one.
    fn at(&mut self, place: u32) -> &mut Entry {
        self.places[place as usize].as_mut().expect("linked entries exist")
    }

    fn link(&mut self, place: u32) {
        if !self.at(place).is_linked {
            self.push(place);
        }
    }

    fn push(&mut self, place: u32) {
        let tail = std::mem::replace(&mut self.tail, place);
        match tail {
            NONE => self.head = place,
            tail => self.at(tail).next = place,
        }
        let entry = self.at(place);
        (entry.is_linked, entry.previous, entry.next) = (true, tail, NONE);
        self.linked += 1;
    }

    fn pop(&mut self) -> u32 {
        let place = self.head;
        self.unlink(place);
        place
    }

    fn unlink(&mut self, place: u32) {
        let entry = self.at(place);
        if !entry.is_linked {
            return;
        }
        entry.is_linked = false;
        let (previous, next) = (entry.previous, entry.next);
        match previous {
            NONE => self.head = next,
            previous => self.at(previous).next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.at(next).previous = previous,
        }
        self.linked -= 1;
    }

    fn is_ready(&self) -> bool {
        let mut place = self.head;
        while let Some(Some(entry)) = self.places.get(place as usize) {
            if !entry.ready().is_empty() {
                return true;
            }
            place = entry.next;
        }
        false
    }

    /// The thread that has slept longest.
    fn sleeper(&mut self) -> Option<Arc<Waker>> {
        loop {
            let sleeper = self.sleepers.pop_front()?;
            // Threads that slept in the parent at the fork do not exist in this process.
            if sleeper.is_of_this_process() {
                return Some(sleeper);
            }
        }
    }

    /// Makes the bell readable or not. With `is_edge` (a change concerned an entry, ready or not), watchers that wait for edges of the set
    /// get one.
    fn update_bell(&mut self, is_edge: bool) {
        if self.watchers == 0 && !self.is_rung {
            return;
        }
        let is_ready = self.watchers > 0 && self.is_ready();
        let Some(bell) = &self.bell else { return };
        if is_edge || (is_ready && !self.is_rung) {
            bell.ring();
        }
        if !is_ready && (is_edge || self.is_rung) {
            bell.drain();
        }
        self.is_rung = is_ready;
    }
}
