//! A place at the agent that a listener has as long as any process holds it.
//!
//! It is a window of its own, with the listener and without slots. Children of fork(2) inherit its descriptors, so the agent sees it hang up
//! only once the last process has closed the listener or has ended, in any way. Until then connections wait there (docs/adr/0103).

use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wave_links::Payload;
use wave_posix::{AgentWindow, Context};

use crate::description::State;
use crate::descriptor_bitmap::DescriptorBitmap;
use crate::listeners::Listens;
use crate::sys;
use crate::world::World;

/// Payload memory of the window, which has no connections.
const PAYLOAD_BYTES: u64 = 1 << 16;
const RING_BYTES: u32 = 1 << 12;
/// Longest attempt to get a place, while a thread forks.
const PATIENCE: Duration = Duration::from_millis(500);
/// Sleep between two checks for the agent's answer.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// The descriptors of such a window. They are hidden from the program.
pub struct Keeper {
    fds: [OwnedFd; 3],
    private: &'static DescriptorBitmap,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keeper").field(&self.fds).finish()
    }
}

impl Keeper {
    /// Gets a place for a listener that has one already.
    fn new(path: &Path, listens: &Listens, private: &'static DescriptorBitmap) -> Option<Keeper> {
        let (payload, file) = Payload::create("wave-toe-keeper", PAYLOAD_BYTES).ok()?;
        let start = Instant::now();
        let window = AgentWindow::connect(path, &[], (&payload, file.as_fd()), PATIENCE).ok()?;
        let mut context = Context::new(window, PAYLOAD_BYTES, [RING_BYTES; 2]);
        let listener = context.listen_sharing(listens.own, listens.backlog, listens.sharing);
        context.share(listener);
        context.flush();
        loop {
            context.queues.park();
            context.process_events();
            match context.listening(listener) {
                Some(answer) => answer.ok()?,
                None if context.is_dead() || start.elapsed() >= PATIENCE => return None,
                None => {
                    context.queues.wait(CHECK_EVERY);
                    continue;
                }
            };
            break;
        }
        context.queues.unpark();
        let [connection, bell, agent_bell] = context.queues.descriptors();
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().ok();
        Some(Keeper::hidden([own(connection)?, own(bell)?, own(agent_bell)?], private))
    }

    fn hidden(fds: [OwnedFd; 3], private: &'static DescriptorBitmap) -> Keeper {
        fds.iter().for_each(|fd| private.set(fd.as_raw_fd()));
        Keeper { fds, private }
    }

    /// Numbers of its descriptors, of which the first is the connection to the agent.
    pub fn numbers(&self) -> [c_int; 3] {
        self.fds.each_ref().map(AsRawFd::as_raw_fd)
    }

    /// The same in a child of fork(2), where the parent's is never dropped.
    pub fn inherited(&self) -> Arc<Keeper> {
        let fds = self.numbers().map(sys::inherited);
        Arc::new(Keeper::hidden(fds, self.private))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.numbers().into_iter().for_each(|fd| self.private.clear(fd));
    }
}

impl World {
    /// Before a fork(2), gives each listener a place that its processes share.
    pub fn keep_listeners(&mut self) {
        for place in 0..self.listeners.len() {
            let at = self.listeners[place];
            let description = self.description(at);
            let (incarnation, state) = (description.incarnation, description.state);
            let State::Listening { listener: Some(_), .. } = state else { continue };
            if self.context(incarnation).is_dead() {
                continue;
            }
            let (path, private) = (self.config.socket.clone(), self.private);
            if let Some(listens) = &mut self.description(at).listens
                && listens.keeper.is_none()
            {
                listens.keeper = Keeper::new(&path, listens, private).map(Arc::new);
            }
        }
    }

    /// Descriptors of these places, which a child of fork(2) keeps.
    pub fn keepers(&self) -> Vec<c_int> {
        let keepers = self.all().filter_map(|one| one.listens.as_ref()?.keeper.as_ref());
        keepers.flat_map(|keeper| keeper.numbers()).collect()
    }
}
