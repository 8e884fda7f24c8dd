//! Confines a process of Wave once it is set up: it keeps only the capabilities that it needs, cannot gain privileges, may make
//! only the system calls of its role (seccomp), can reach only its own folders (Landlock), and becomes another user if asked
//! to.
//!
//! A [`Profile`] names the role and its folders. Call [`Profile::limit`] while the process has one thread, and
//! [`Limited::seal`] once it has started the others. A call that is not allowed fails with EPERM and is logged by the kernel;
//! no process is killed for it.
//!
//! Only Wave's own programs use this crate. A library inside a user's program must not: that program manages its own rights.
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

/// The role of a process. Each role has its own list of system calls and capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An agent that is attached and decides.
    Agent,
    /// An agent that also connects to hosts later: it has a front for RPCs, or takes notes from one.
    Front,
    /// An agent that terminates TCP: programs attach to it.
    Tcp,
    /// A server that gets its requests from an agent, or a program over an agent's TCP.
    Server,
    /// A host that pages out memory of other programs, and starts agents.
    MemoryHost,
}

impl Role {
    /// Every role, in the order of declaration.
    pub const ALL: [Role; 5] =
        [Role::Agent, Role::Front, Role::Tcp, Role::Server, Role::MemoryHost];

    /// The role's name, for messages.
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
    /// The process has several threads. Capabilities and folders belong to a thread: the other threads would keep theirs.
    #[error(
        "cannot confine a process with {0} threads: each would have to give up its rights itself; an agent that starts \
         threads before wave_agent::main_with needs Registry::unconfined"
    )]
    Threads(usize),
    /// Only root may become another user.
    #[error("cannot become user {user}: {error}")]
    User {
        /// The requested user and group.
        user: User,
        /// The kernel's answer.
        error: io::Error,
    },
    /// A system call failed for an unexpected reason.
    #[error("cannot give up {what}: {error}")]
    System {
        /// The right that could not be given up, for the message.
        what: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
}

/// Role, folders and user of a process that is to be confined.
#[derive(Clone, Debug)]
pub struct Profile {
    role: Role,
    user: Option<User>,
    starts_as: Option<User>,
    sockets: Vec<PathBuf>,
    writes: Vec<PathBuf>,
}

impl Profile {
    /// A profile without own folders that keeps the current user.
    pub fn of(role: Role) -> Profile {
        Profile { role, user: None, starts_as: None, sockets: Vec::new(), writes: Vec::new() }
    }

    /// The role that the profile was made for.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Makes the process become this user; `None` keeps the current one.
    pub fn becoming(mut self, user: Option<User>) -> Profile {
        self.user = user;
        self
    }

    /// Lets the process start agents that become this user: a host keeps the right to change users for them.
    pub fn starting_as(mut self, user: Option<User>) -> Profile {
        self.starts_as = user;
        self
    }

    /// Adds a socket that the process connects to later, or makes and removes. It may make and remove any socket in that
    /// folder.
    pub fn with_socket(mut self, path: impl Into<PathBuf>) -> Profile {
        self.sockets.push(path.into());
        self
    }

    /// Adds a folder or a file that the process opens for writing later.
    pub fn with_writes(mut self, path: impl Into<PathBuf>) -> Profile {
        self.writes.push(path.into());
        self
    }

    /// Gives up all rights except the profile's. For a process that has a single thread so far.
    ///
    /// # Errors
    /// See [`ConfineError`]. A kernel without seccomp or Landlock is no error: see [`Confined`].
    pub fn confine(self) -> Result<Confined, ConfineError> {
        self.limit()?.seal()
    }

    /// The part of [`Profile::confine`] that a thread can do only for itself and its children: capabilities, user and folders.
    /// System calls are not filtered yet, so that the process can set up its threads.
    ///
    /// # Errors
    /// As [`Profile::confine`].
    pub fn limit(self) -> Result<Limited, ConfineError> {
        let count = threads();
        if count > 1 {
            return Err(ConfineError::Threads(count));
        }
        let mut more = rights::raise_locked_memory();
        // Folders are opened with the rights that the process still has.
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

/// A process with only the capabilities and folders that its role needs.
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
    /// The kernel supports filters but refuses this one.
    pub fn seal(self) -> Result<Confined, ConfineError> {
        let seccomp = filter::install(self.role, self.switches)?;
        Ok(Confined { seccomp, landlock: self.landlock })
    }
}

/// Confinement that is in force. Capabilities and no_new_privs always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined {
    /// Whether system calls are filtered.
    pub seccomp: bool,
    /// Whether folders are restricted: never for [`Role::MemoryHost`].
    pub landlock: bool,
}

/// Number of threads of this process; 1 if the kernel does not say.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
