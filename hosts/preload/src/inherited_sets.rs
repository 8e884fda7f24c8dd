//! The epoll sets that a child of fork(2) inherits.
//!
//! The kernel's set is common to parent and child. The child gets a copy of the interests in our sockets, because its sources are its own:
//! from then on each process adds and removes for itself. A daemon, which leaves its parent, goes on with the set that it has made before.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Weak};

use wave_readiness::{Event, EventData, EventFlags, Interest, Target};

use crate::poll::Set;
use crate::world::World;

/// A set, before the child uses it.
#[derive(Debug)]
pub struct InheritedSet {
    /// The descriptors that refer to it.
    pub numbers: Vec<c_int>,
    /// Interests in sockets: the descriptor, the index of the description, the events and the data.
    interests: Vec<(c_int, usize, EventFlags, u64)>,
    /// Interests in kernel sockets that may become ours.
    early: Vec<(c_int, EventFlags, u64)>,
}

/// A set in the child, with the descriptions of its sockets, until the child waits for them.
pub type Unclaimed = (Weak<Set>, Vec<usize>);

impl World {
    /// The sets with interests in sockets, for a child. Called before the fork, since other threads may hold a set's locks.
    pub fn sets_for_child(&self) -> Vec<InheritedSet> {
        if self.sets.is_empty() && self.inherited_sets.is_empty() {
            return Vec::new();
        }
        let open = self.descriptions.iter().enumerate();
        let places: HashMap<u64, usize> =
            open.filter_map(|(at, one)| Some((one.as_ref()?.source.id(), at))).collect();
        let mut sets: HashMap<*const Set, InheritedSet> = HashMap::new();
        for (number, set) in &self.sets {
            let inherited = sets.entry(Arc::as_ptr(set)).or_insert_with(|| {
                let place = |Interest { fd, source, flags, data }: Interest| {
                    Some((fd, *places.get(&source)?, flags, data))
                };
                let interests = set.interests().into_iter().filter_map(place).collect();
                InheritedSet { numbers: Vec::new(), interests, early: self.early_of(set) }
            });
            inherited.numbers.push(*number);
        }
        let has_any = |set: &InheritedSet| !set.interests.is_empty() || !set.early.is_empty();
        // A set that the parent has inherited, and not used.
        let unused = self.inherited_sets.iter().map(|set| InheritedSet {
            numbers: set.numbers.clone(),
            interests: set.interests.clone(),
            early: set.early.clone(),
        });
        sets.into_values().filter(has_any).chain(unused).collect()
    }

    fn early_of(&self, set: &Arc<Set>) -> Vec<(c_int, EventFlags, u64)> {
        let all = self.early.iter().flat_map(|(fd, all)| all.iter().map(move |one| (*fd, one)));
        let own = all.filter(|(_, (of, ..))| of.as_ptr() == Arc::as_ptr(set));
        own.map(|(fd, (_, flags, data))| (fd, *flags, *data)).collect()
    }

    /// Adds the sets that were inherited from the parent. `places` has the new index of each description, by the parent's.
    pub fn inherit_sets(&mut self, sets: Vec<InheritedSet>, places: &HashMap<usize, usize>) {
        for mut set in sets {
            set.interests.retain_mut(|(_, at, ..)| match places.get(at) {
                Some(own) => {
                    *at = *own;
                    true
                }
                None => false,
            });
            set.numbers.iter().for_each(|number| self.mark_set(*number));
            self.inherited_sets.push(set);
        }
    }

    /// Takes the inherited set behind a descriptor, which is about to be used.
    pub fn take_inherited_set(&mut self, number: c_int) -> Option<InheritedSet> {
        let at = self.inherited_sets.iter().position(|set| set.numbers.contains(&number))?;
        Some(self.inherited_sets.swap_remove(at))
    }

    /// Prepares the inherited sets with an interest in a kernel socket that becomes ours.
    pub fn use_inherited_sets_of(&mut self, fd: c_int) {
        let has_it = |set: &&InheritedSet| set.early.iter().any(|(of, ..)| *of == fd);
        let sets = self.inherited_sets.iter().filter(has_it);
        let numbers: Vec<c_int> = sets.filter_map(|set| set.numbers.first().copied()).collect();
        // Without a descriptor for the library, the set keeps the placeholder.
        numbers.into_iter().for_each(|number| drop(self.watch(number)));
    }

    /// Gives a set of this process the interests that it has inherited.
    pub fn fill_set(&mut self, set: &Arc<Set>, inherited: InheritedSet) {
        for number in inherited.numbers {
            self.add_set(number, Arc::clone(set));
        }
        let mut places = Vec::new();
        let event = |flags, data| Event { flags, data: EventData::new_u64(data) };
        for (fd, at, flags, data) in inherited.interests {
            let Some(Some(description)) = self.descriptions.get(at) else { continue };
            // It cannot fail with EEXIST: the set is new.
            let _ =
                set.add(Target::Source(fd, &Arc::clone(&description.source)), event(flags, data));
            self.note_set(set, fd);
            places.push(at);
        }
        for (fd, flags, data) in inherited.early {
            self.note_early(set, fd, Some(event(flags, data)));
        }
        self.unclaimed.push((Arc::downgrade(set), places));
    }

    /// Called when the program waits for a set: it uses the sockets that it has inherited with the set.
    pub fn claim_sockets(&mut self, set: &Arc<Set>) {
        let is_its = |(of, _): &mut Unclaimed| of.as_ptr() == Arc::as_ptr(set);
        let claimed: Vec<Unclaimed> = self.unclaimed.extract_if(.., is_its).collect();
        for at in claimed.into_iter().flat_map(|(_, places)| places) {
            if matches!(self.descriptions.get(at), Some(Some(_))) {
                self.await_connections(at);
                self.take_over(at);
            }
        }
    }
}
