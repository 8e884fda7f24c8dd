//! The sockets that a child of fork(2) inherits.
//!
//! A child attaches to the agent by itself and gets its own window, once it needs one. A listener gets a place of the child's own at
//! the agent, which shares the parent's port. A connection stays the parent's until the child uses it: then the agent hands it over
//! (docs/adr/0068).

use std::collections::HashMap;
use std::ffi::c_int;

use rustix::io::Errno;
use wave_posix::demotion::Cause;
use wave_posix::{Checkpoint, HostFailure};
use wave_readiness::EventFlags;

use crate::description::{Description, State};
use crate::inherited_sets::InheritedSet;
use crate::listeners::Listens;
use crate::messages::warn_user;
use crate::sys;
use crate::world::{ATTACH_PATIENCE, World};

/// Why a connection was not taken over.
struct NotTaken {
    why: String,
    /// The failure to report to the agent. `None` if the agent knows the cause.
    failure: Option<HostFailure>,
}

/// An inherited socket with its descriptors in the child.
#[derive(Debug)]
pub struct Inherited {
    /// Index of the description in the parent.
    place: usize,
    fds: Vec<c_int>,
    description: Description,
}

impl World {
    /// Copies of the sockets, for a child to inherit. They share nothing with this world.
    pub fn copy_for_child(&self) -> Vec<Inherited> {
        let mut copies: Vec<Option<Inherited>> = Vec::new();
        let open = self.descriptions.iter().enumerate();
        copies.extend(open.map(|(place, one)| {
            let description = self.copy_description(one.as_ref()?);
            Some(Inherited { place, fds: Vec::new(), description })
        }));
        for (fd, place) in (0..).zip(&self.fds) {
            let at = (*place as usize).checked_sub(1);
            if let Some(copy) = at.and_then(|at| copies[at].as_mut()) {
                copy.fds.push(fd);
            }
        }
        copies.into_iter().flatten().collect()
    }

    /// Adds the sockets that were inherited from the parent.
    pub fn inherit(
        &mut self,
        inherited: Vec<Inherited>,
        sets: Vec<InheritedSet>,
        family_secret: Option<u128>,
    ) {
        self.family_secret = family_secret;
        let mut places = HashMap::new();
        for Inherited { place, fds, description } in inherited {
            let Some((first, others)) = fds.split_first() else { continue };
            let is_listener = matches!(description.state, State::Listening { .. });
            let at = self.insert(*first, description);
            places.insert(place, at);
            others.iter().for_each(|fd| self.share(at, *fd));
            if is_listener {
                self.listeners.push(at);
                self.has_inherited_listeners = true;
            }
            self.notify(at, EventFlags::empty());
        }
        self.inherit_sets(sets, &places);
    }

    /// Prepares for a fork(2): the child may take connections over.
    pub fn prepare_fork(&mut self) {
        self.uncork_all();
        self.sets_at_fork = self.sets_for_child();
        self.keep_listeners();
        if !self.all().any(|one| matches!(one.state, State::Open(_))) {
            return;
        }
        if self.family_secret.is_none() {
            // Without a secret, children cannot take connections over.
            self.family_secret = sys::random().ok();
        }
        self.forks += 1;
        let incarnations: Vec<u64> = self.agents.iter().map(|agent| agent.incarnation).collect();
        incarnations.into_iter().for_each(|incarnation| self.join(incarnation, self.family_secret));
        self.share_connections(|_| true);
    }

    /// Tells an agent the secret of this process's family.
    pub fn join(&mut self, incarnation: u64, secret: Option<u128>) {
        let Some(secret) = secret else { return };
        let agent = self.agent(incarnation);
        if agent.family_secret.replace(secret) != Some(secret) && !agent.context.is_dead() {
            agent.context.join(secret);
        }
    }

    /// Takes over a connection that belongs to another process ([`State::NotOwned`]), or makes it a stream of the kernel's, which serves
    /// all processes with a descriptor; no effect on other sockets. Returns whether the descriptors are still ours.
    pub fn take_over(&mut self, at: usize) -> bool {
        let description = self.description(at);
        if description.state != State::NotOwned {
            return description.state != State::Stream;
        }
        let (checkpoint, secret) = (description.checkpoint.take(), description.secret);
        let claim = description.claim.as_deref().copied();
        match checkpoint.map(|checkpoint| self.take(&checkpoint, secret)) {
            Some(Ok((incarnation, name))) => {
                self.agent(incarnation).owners.insert(name, at);
                let forks = self.forks;
                let description = self.description(at);
                description.incarnation = incarnation;
                description.forks = forks;
                description.state = State::Open(name);
                if claim.is_some() {
                    // The previous owner may still have a descriptor.
                    description.is_passed = true;
                    self.share_connection(incarnation, name);
                    // This call has begun without shared connections.
                    self.enter_shared();
                }
                if self.on_taken_away(at) {
                    // Another process has wanted it at the same time.
                    return self.take_over(at);
                }
            }
            refused => {
                let demoted =
                    claim.map(|claim| self.make_stream(at, None, &claim, Cause::SecondProcess));
                if let Some(Ok(())) = demoted {
                    return false;
                }
                let refused = refused.and_then(Result::err);
                // The agent says nothing about a refusal while the connection may still become a stream of the kernel's.
                let is_said = refused.is_some() && demoted.is_none();
                let failure = refused.as_ref().and_then(|refused| refused.failure);
                if failure.is_some() || !is_said {
                    self.report(failure.unwrap_or(HostFailure::NotTakenOver));
                }
                let why = match (refused, demoted) {
                    (Some(refused), _) => refused.why,
                    (None, Some(Err(error))) => error.to_string(),
                    (None, _) => "it had ended".to_owned(),
                };
                let description = self.description(at);
                (description.state, description.error) = (State::Reset, Some(Errno::CONNRESET));
                let how = if secret.is_some() { "received" } else { "inherited by fork" };
                warn_user(&format!(
                    "this process cannot take over a connection that it {how}: {why}"
                ));
            }
        }
        self.notify(at, EventFlags::empty());
        true
    }

    /// Asks the agent to hand a connection over. Returns the agent's incarnation and the connection's name, or the reason for a
    /// failure.
    fn take(
        &mut self,
        checkpoint: &Checkpoint,
        secret: Option<u128>,
    ) -> Result<(u64, u32), NotTaken> {
        let refused = |why: String| NotTaken { why, failure: None };
        let incarnation =
            self.attach_within(ATTACH_PATIENCE).map_err(|error| refused(error.to_string()))?;
        self.join(incarnation, secret.or(self.family_secret));
        let name = self.context(incarnation).take_over(checkpoint).ok_or_else(|| NotTaken {
            why: "no payload memory is left for it".to_owned(),
            failure: Some(HostFailure::NoRings),
        })?;
        // The connection's process must stop, which may wait for this one.
        self.leave_shared();
        let answer = self.await_answer(incarnation, |context| context.connected(name));
        self.enter_shared();
        self.join(incarnation, self.family_secret);
        let why = match answer {
            Some(Ok(())) => return Ok((incarnation, name)),
            Some(Err(error)) => format!("the agent refused: {error}"),
            None => "the agent does not answer".to_owned(),
        };
        self.context(incarnation).close(name);
        Err(refused(why))
    }

    fn copy_description(&self, parents: &Description) -> Description {
        let agent = self.agents.iter().find(|agent| agent.incarnation == parents.incarnation);
        let mut secret = None;
        let (state, checkpoint) = match parents.state {
            State::Idle => (State::Idle, None),
            State::Listening { is_shared, .. } => {
                (State::Listening { listener: None, is_shared }, None)
            }
            State::Open(name) => {
                let checkpoint = agent.and_then(|agent| agent.context.checkpoint(name));
                (State::NotOwned, checkpoint.map(Box::new))
            }
            _ => {
                secret = parents.secret;
                (State::NotOwned, parents.checkpoint.clone())
            }
        };
        let listens = parents.listens.as_ref().map(|parents| {
            let keeper = parents.keeper.as_ref().map(|keeper| keeper.inherited());
            Box::new(Listens { keeper, ..parents.as_ref().clone().inherited() })
        });
        Description {
            is_nonblocking: parents.is_nonblocking,
            bound: parents.bound,
            is_port_chosen: parents.is_port_chosen,
            reuses_address: parents.reuses_address,
            reuses_port: parents.reuses_port,
            is_read_shut: parents.is_read_shut,
            is_write_shut: parents.is_write_shut,
            is_corked: parents.is_corked,
            wait_bounds: parents.wait_bounds,
            low_water: parents.low_water,
            listens,
            checkpoint,
            claim: parents.claim.clone(),
            secret,
            ..Description::new(0, parents.family, state)
        }
    }
}
