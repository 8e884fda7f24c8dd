//! Use of an agent: a context of this process, its payload memory, and the owners of its sockets.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wave_links::Payload;
use wave_posix::{AgentWindow, Context, Options, ToeError, VALGRIND_BYTES, payload_within_limits};

use crate::sys;

/// Time between two checks of a silent agent.
const LIFE_CHECK: Duration = Duration::from_millis(250);

/// An agent to which this process is attached. A socket stays with the agent that created it.
#[derive(Debug)]
pub struct Agent {
    pub context: Context<AgentWindow>,
    pub payload: Payload,
    /// Distinguishes this agent from earlier and later ones.
    pub incarnation: u64,
    /// The agent's doorbell, which a thread can poll while other threads use the context.
    pub bell: Arc<OwnedFd>,
    /// Index of the description that owns a socket, by the socket's name at the agent.
    pub owners: HashMap<u32, usize>,
    /// The family secret that was sent to the agent.
    pub family_secret: Option<u128>,
}

impl Agent {
    /// Connects to the agent at `path`.
    pub fn attach(path: &Path, incarnation: u64, patience: Duration) -> Result<Agent, ToeError> {
        let (payload, file, ring_bytes) = payload_within_limits(&Options::default())?;
        // Valgrind does not know of memory that children lack, and reads it when they end.
        if payload.bytes() > VALGRIND_BYTES {
            payload.keep_from_children()?;
        }
        let mut window = AgentWindow::connect(path, &[], (&payload, file.as_fd()), patience)?;
        window.renumber(|fd| Ok(sys::own_duplicate(fd)?))?;
        let bell = Arc::new(sys::own_duplicate(window.bell()).map_err(std::io::Error::from)?);
        let context = Context::new(window, payload.bytes(), ring_bytes);
        Ok(Agent {
            context,
            payload,
            incarnation,
            bell,
            owners: HashMap::new(),
            family_secret: None,
        })
    }

    /// Numbers of the window's descriptors, which are hidden from the program.
    pub fn descriptors(&self) -> impl Iterator<Item = c_int> {
        let window = self.context.queues.descriptors().map(|fd| fd.as_raw_fd());
        window.into_iter().chain([self.bell.as_raw_fd()])
    }

    /// Processes the agent's events. Returns whether there were any.
    pub fn process_events(&mut self) -> bool {
        let found = self.context.process_events();
        if found {
            // New listeners offer their slots.
            self.context.flush();
        } else {
            self.check_life();
        }
        found
    }

    /// Checks every [`LIFE_CHECK`] whether the agent has died. Needed while no thread sleeps.
    fn check_life(&mut self) {
        let context = &mut self.context;
        if !context.is_dead() && context.queues.check_hung_up(LIFE_CHECK) {
            context.handle_death();
        }
    }

    /// Clears the doorbell after a sleep, and checks whether the agent has died.
    pub fn wake(&mut self, was_rung: bool) {
        let has_gone = match was_rung {
            true => self.context.queues.clear_ring(),
            false => self.context.queues.hung_up(),
        };
        if has_gone && !self.context.is_dead() {
            self.context.handle_death();
        }
    }
}
