//! Extents: bulk data that crosses the link by the copy engine.
//!
//! An extent belongs to its producer until it is lent, then to the consumer until the consumer
//! returns it by index and generation. A return that names another generation, or an extent that is
//! not lent, is the peer's fault and changes nothing. The consumer copies an extent once, and trusts
//! only the copy. [`Pool`] is the producer's account, [`Borrowed`] the consumer's.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::layout::PoolPlace;
use crate::link::{Dma, Port, Ticket};
use crate::message::Subject;

/// A return that names no lent extent: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: extent {}.{} was not lent", .0.id, .0.generation)]
pub struct NotLent(pub Subject);

/// An extent that does not exist, or was not lent anew since it was returned: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: extent {}.{} cannot be lent: no such extent, lent already, or of another generation", .0.id, .0.generation)]
pub struct NotItsOwn(pub Subject);

/// The producer's account of a pool.
#[derive(Debug)]
pub struct Pool {
    place: PoolPlace,
    lent: Vec<bool>,
    generations: Vec<u32>,
}

impl Pool {
    /// Creates the account of a pool with no extent lent.
    pub fn new(place: PoolPlace) -> Pool {
        let count = place.extents as usize;
        Pool { place, lent: alloc::vec![false; count], generations: alloc::vec![0; count] }
    }

    /// Place of the pool in the window.
    pub fn place(&self) -> &PoolPlace {
        &self.place
    }

    /// An extent to fill, if one is free.
    pub fn free(&self) -> Option<u32> {
        self.lent.iter().position(|lent| !lent).map(|at| at as u32)
    }

    /// Copies the first `lines` of an extent's staging to the other side, waits for it, and lends
    /// the extent. The result names it.
    pub fn lend(&mut self, port: &impl Port, extent: u32, lines: u32) -> Subject {
        let (subject, ticket) = self.begin(port, extent, lines);
        while !port.dma().is_done(ticket) {
            core::hint::spin_loop();
        }
        subject
    }

    /// As [`Pool::lend`], without waiting: announce the extent to the other side once the copy is done.
    pub fn begin(&mut self, port: &impl Port, extent: u32, lines: u32) -> (Subject, Ticket) {
        assert!(lines <= self.place.lines && !self.lent[extent as usize]);
        let (from, to) =
            (self.place.staging_of(extent, lines), self.place.target_of(extent, lines));
        let ticket = port.dma().copy(from, to);
        let generation = &mut self.generations[extent as usize];
        *generation = generation.wrapping_add(1);
        self.lent[extent as usize] = true;
        (Subject { id: extent, generation: *generation }, ticket)
    }

    /// Whether any extent of the pool is lent.
    pub fn lends(&self) -> bool {
        self.lent.contains(&true)
    }

    /// Takes back an extent that the peer returned.
    pub fn returned(&mut self, extent: Subject) -> Result<(), NotLent> {
        let at = extent.id as usize;
        match self.lent.get_mut(at) {
            Some(lent) if *lent && self.generations[at] == extent.generation => {
                *lent = false;
                Ok(())
            }
            _ => Err(NotLent(extent)),
        }
    }
}

/// The consumer's account of a pool.
#[derive(Debug)]
pub struct Borrowed {
    place: PoolPlace,
    /// How many times each extent was lent.
    generations: Vec<u32>,
    /// Extents that were read and not yet returned.
    owed: VecDeque<Subject>,
}

impl Borrowed {
    /// Creates the account of a pool from which no extent was lent yet.
    pub fn new(place: PoolPlace) -> Borrowed {
        let count = place.extents as usize;
        Borrowed { place, generations: alloc::vec![0; count], owed: VecDeque::with_capacity(count) }
    }

    /// Place of the pool in the window.
    pub fn place(&self) -> &PoolPlace {
        &self.place
    }

    /// Takes an extent that the peer claims to have lent. From now on it is owed: copy it before you return it.
    ///
    /// # Errors
    /// The peer cannot have lent it.
    pub fn take(&mut self, extent: Subject) -> Result<(), NotItsOwn> {
        let is_owed = self.owed.iter().any(|owed| owed.id == extent.id);
        match self.generations.get_mut(extent.id as usize) {
            Some(last) if !is_owed && last.wrapping_add(1) == extent.generation => {
                *last = extent.generation;
                self.owed.push_back(extent);
                Ok(())
            }
            _ => Err(NotItsOwn(extent)),
        }
    }

    /// Extents to be returned, in the order in which they were taken.
    pub fn owed(&self) -> impl ExactSizeIterator<Item = Subject> + '_ {
        self.owed.iter().copied()
    }

    /// Removes the first `count` extents of [`Borrowed::owed`]: they were returned.
    pub fn give_back(&mut self, count: usize) {
        self.owed.drain(..count);
    }
}
