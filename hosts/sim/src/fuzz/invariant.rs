//! Users' rules, beside [`super::RULES`].

use wave_core::clock::Nanos;
use wave_core::layout::Config;

use super::books::Books;

/// A rule about what runs and waits on a host under one policy, such as "no two threads of class 1 run at once".
#[derive(Clone, Copy, Debug)]
pub struct Invariant {
    /// Its name in reports.
    pub name: &'static str,
    /// The rule in words.
    pub about: &'static str,
    /// Name of the policy that promises it.
    pub policy: &'static str,
    /// Makes the check for one history of an enclave of this configuration.
    pub make: fn(&Config) -> Check,
}

/// Checks the host after each of its steps, and remembers what it needs.
///
/// Called whenever a thread has begun or ceased to wait or run, while the policy answers for the host: not while the
/// host recovers from an agent that was killed, stopped, replaced or cut off. Returns what is wrong.
pub type Check = Box<dyn FnMut(&Host<'_>) -> Result<(), String>>;

/// The host's true state, which the policy may not know yet.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    pub(super) now: Nanos,
    pub(super) books: &'a Books,
}

/// A thread that waits or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its number. Numbers of threads that have ended are reused, with the next generation.
    pub id: u32,
    /// Generation of the number.
    pub generation: u32,
    /// Its class.
    pub class: u16,
    /// When it began to wait or run.
    pub since: Nanos,
    /// The core that it runs on; `None` if it waits.
    pub core: Option<u16>,
}

impl Host<'_> {
    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The threads that run, by core.
    pub fn running(&self) -> impl Iterator<Item = Thread> {
        self.books.running()
    }

    /// The threads that wait, by number.
    pub fn waiting(&self) -> impl Iterator<Item = Thread> {
        self.books.waiting().into_iter()
    }
}
