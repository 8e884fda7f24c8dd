//! What a process of Wave's may still do once it is set up: no capability that it does not need, no new privileges, only the
//! system calls of its role (seccomp), only its own folders (Landlock), and another user where asked.
//!
//! A [`Profile`] names the role and its folders. [`Profile::limit`] is for a process of one thread, before it starts others;
//! [`Limited::seal`] for one that has them. A call that is not allowed fails with EPERM and is logged by the kernel; no process
//! is killed for it.
//!
//! Only programs of Wave's use this crate. A library inside a user's program must not: the program's rights are its own.
//! Must not know: links, hosts, policies.

mod calls;
mod files;
mod filter;
mod kernel;
mod rights;
mod user;

use std::io;
use std::path::PathBuf;

pub use kernel::{Kernel, Supported};
use rustix::thread::CapabilitySet;
pub use user::User;

/// What a process is for; each has a list of system calls and capabilities of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An agent that is attached and decides.
    Agent,
    /// An agent that looks for hosts as well: with a front for RPCs, or with notes from one.
    Front,
    /// An agent that terminates TCP: programs attach to it.
    Tcp,
    /// A server whose requests an agent hands over, or a program over an agent's TCP.
    Server,
    /// A host that pages out memory of other programs, and starts agents.
    MemoryHost,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 5] =
        [Role::Agent, Role::Front, Role::Tcp, Role::Server, Role::MemoryHost];

    /// Its name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Role::Agent => "agent",
            Role::Front => "front",
            Role::Tcp => "tcp",
            Role::Server => "server",
            Role::MemoryHost => "memory-host",
        }
    }
}

/// Why a process could not give up rights.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Capabilities and folders are a thread's own: others would keep theirs.
    #[error(
        "{0} threads run already, and each would have to give up its rights itself; an agent that starts threads before \
         wave_agent::main_with needs Registry::unconfined"
    )]
    Threads(usize),
    /// Only root may become another user.
    #[error("cannot become user {user}: {error}")]
    User {
        /// The user and group that were asked for.
        user: User,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The kernel's answer was unexpected.
    #[error("cannot give up {what}: {error}")]
    System {
        /// The right.
        what: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
}

/// What a process needs from now on.
#[derive(Clone, Debug)]
pub struct Profile {
    role: Role,
    user: Option<User>,
    starts_as: Option<User>,
    sockets: Vec<PathBuf>,
    writes: Vec<PathBuf>,
}

impl Profile {
    /// No folders of its own, and the user that it has.
    pub fn of(role: Role) -> Profile {
        Profile { role, user: None, starts_as: None, sockets: Vec::new(), writes: Vec::new() }
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Has it become another user.
    pub fn becoming(mut self, user: Option<User>) -> Profile {
        self.user = user;
        self
    }

    /// Has it start agents that become this user: a right that a host keeps for them.
    pub fn starting_as(mut self, user: Option<User>) -> Profile {
        self.starts_as = user;
        self
    }

    /// A socket that it connects to later, or makes and removes. In its folder it may make and remove sockets.
    pub fn with_socket(mut self, path: impl Into<PathBuf>) -> Profile {
        self.sockets.push(path.into());
        self
    }

    /// A folder or a file that it opens for writing later.
    pub fn with_writes(mut self, path: impl Into<PathBuf>) -> Profile {
        self.writes.push(path.into());
        self
    }

    /// Gives up all rights but the profile's, in a process that starts its threads later, if at all.
    ///
    /// # Errors
    /// See [`ConfineError`]. What the kernel does not have is no error, see [`Confined`].
    pub fn confine(self) -> Result<Confined, ConfineError> {
        self.limit()?.seal()
    }

    /// The part of [`Profile::confine`] that a thread can do for itself and its children only: capabilities, user and folders.
    /// System calls remain, for what a process sets up with threads.
    ///
    /// # Errors
    /// As [`Profile::confine`].
    pub fn limit(self) -> Result<Limited, ConfineError> {
        let count = threads();
        if count > 1 {
            return Err(ConfineError::Threads(count));
        }
        let mut more = rights::raise_locked_memory();
        // Folders are opened with the rights of before.
        let files = files::Rules::of(&self);
        let switches = self.starts_as.is_some();
        if switches {
            more |= CapabilitySet::SETUID | CapabilitySet::SETGID;
        }
        rights::give_up(self.role, self.user, more)?;
        let landlock = files.restrict();
        Ok(Limited { role: self.role, switches, landlock })
    }
}

/// A process without capabilities and folders that its role does not need.
#[derive(Debug)]
#[must_use = "system calls are not filtered before seal"]
pub struct Limited {
    role: Role,
    switches: bool,
    landlock: bool,
}

impl Limited {
    /// Filters the system calls of all threads.
    ///
    /// # Errors
    /// The kernel has filters, and refuses this one.
    pub fn seal(self) -> Result<Confined, ConfineError> {
        let seccomp = filter::install(self.role, self.switches)?;
        Ok(Confined { seccomp, landlock: self.landlock })
    }
}

/// What holds a process. Capabilities and no_new_privs always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined {
    /// Whether its system calls are filtered.
    pub seccomp: bool,
    /// Whether its folders are: never of [`Role::MemoryHost`].
    pub landlock: bool,
}

/// Threads of this process; 1 where the kernel does not say.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
