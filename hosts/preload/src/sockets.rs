//! The socket calls over a [`World`]. Each returns our answer, or leaves the call to the kernel.

use std::ffi::c_int;
use std::ops::{Deref, DerefMut};

use rustix::io::Errno;

use crate::config::Config;
use crate::descriptor_bitmap::DescriptorBitmap;
use crate::fork::Inherited;
use crate::inherited_sets::InheritedSet;
use crate::lock::{self, Lock};
use crate::sigio::Signals;
use crate::world::{ATTACH_PATIENCE, World};

/// Who answers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// We answer.
    Ours(Result<T, Errno>),
    /// The kernel answers, for the same descriptor: it is not ours, or its placeholder has the answer.
    Kernels,
}

/// The sockets of a process. Any thread may use them.
pub struct Sockets {
    world: Lock<World>,
}

const _: () = {
    const fn is_sync<T: Sync>() {}
    is_sync::<Sockets>();
};

/// The locked world. Unlocking it wakes sleeping threads if there is news, and sends the signals that are due.
pub struct Open<'a> {
    world: lock::Guard<'a, World>,
    /// Dropped after `world`.
    signals: Signals,
}

impl<'a> Open<'a> {
    #[inline]
    fn new(world: lock::Guard<'a, World>) -> Open<'a> {
        let mut open = Open { world, signals: Signals::default() };
        open.free_closed();
        if open.shares {
            open.enter_shared();
        }
        open
    }
}

impl Sockets {
    /// `ours` marks the program's descriptors that are ours; `private` marks descriptors that are hidden from the program.
    pub fn new(
        config: Config,
        ours: &'static DescriptorBitmap,
        private: &'static DescriptorBitmap,
    ) -> Sockets {
        Sockets { world: Lock::new(World::new(config, ours, private)) }
    }

    /// The sockets of a child of fork(2).
    #[cfg_attr(test, allow(dead_code))]
    pub fn of_child(
        config: Config,
        marks: [&'static DescriptorBitmap; 2],
        inherited: Vec<Inherited>,
        sets: Vec<InheritedSet>,
        family_secret: Option<u128>,
    ) -> Sockets {
        let mut world = World::new(config, marks[0], marks[1]);
        world.inherit(inherited, sets, family_secret);
        Sockets { world: Lock::new(world) }
    }

    /// Locks the world. Fails with EAGAIN in a signal handler whose thread is inside a call.
    pub fn open(&self) -> Result<Open<'_>, Errno> {
        self.world.lock().map(Open::new).ok_or(Errno::AGAIN)
    }

    /// Attaches to the agent ahead of the first use, if there is an agent.
    #[cfg_attr(test, allow(dead_code))]
    pub fn attach(&self) {
        if let Ok(mut world) = self.open() {
            // Without an agent, the calls that need one report it.
            let _ = world.attach_within(ATTACH_PATIENCE);
            world.prepare_sleep();
        }
    }

    /// Runs `call`, which concerns all memory of the process, without the payload memories.
    #[cfg_attr(test, allow(dead_code))]
    pub fn without_payload<R>(&self, call: impl FnOnce() -> R) -> Result<R, Errno> {
        let mut world = self.open()?;
        let _asides: Vec<_> = world.agents.iter_mut().map(|agent| agent.payload.aside()).collect();
        Ok(call())
    }

    /// Called when the process ends. What write(2) has accepted reaches the agent, as it would reach the kernel.
    #[cfg_attr(test, allow(dead_code))]
    pub fn end(&self) {
        if let Ok(mut world) = self.open() {
            world.flush_all();
        }
    }

    /// As [`Sockets::open`], for a thread that is waiting ([`crate::lock::Waiting`]).
    pub fn open_waiting(&self) -> Option<Open<'_>> {
        self.world.lock_waiting().map(Open::new)
    }

    /// Answers without waiting, with the result of `call` on a descriptor's description.
    pub fn answer<R>(
        &self,
        fd: c_int,
        call: impl FnOnce(&mut World, usize) -> Verdict<R>,
    ) -> Verdict<R> {
        let (mut world, at) = match self.find(fd) {
            Ok(found) => found,
            Err(verdict) => return verdict,
        };
        let answer = call(&mut world, at);
        world.settle(at);
        answer
    }

    /// Processes events, then finds a descriptor's description. [`Verdict::Kernels`] if the descriptor has none, or lost it meanwhile; an
    /// error if the world cannot be opened.
    pub fn find<R>(&self, fd: c_int) -> Result<(Open<'_>, usize), Verdict<R>> {
        let mut world = self.open().map_err(|error| Verdict::Ours(Err(error)))?;
        if world.find(fd).is_none() {
            return Err(Verdict::Kernels);
        }
        world.process_events();
        match world.find(fd).filter(|at| world.take_over(*at)) {
            Some(at) => Ok((world, at)),
            None => Err(Verdict::Kernels),
        }
    }
}

impl Deref for Open<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Open<'_> {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Drop for Open<'_> {
    #[inline]
    fn drop(&mut self) {
        let world = &mut *self.world;
        world.wake_others();
        if world.shares {
            world.leave_shared();
        }
        if !world.signals.is_empty() {
            self.signals = world.take_signals();
        }
    }
}
