//! How an agent stops a process from using the connections that it shares with other processes.
//!
//! ```text
//! process, before it uses them            agent, before it gives one away
//! store INSIDE, fence, load the count     store the next count, fence, load INSIDE
//! a new count: leave, and take events     inside: wait
//! otherwise: go on                        otherwise: positions are final, and an event says so
//! leave: publish positions, store 0
//! ```
//!
//! One of the two sees the other, as in the handshake of parking (`tests/loom.rs` checks it). The agent never waits for a process that is outside, which may
//! sleep or be stopped for as long as it likes. A process that is killed while it is inside leaves INSIDE behind: then nobody
//! knows how far it has read.

use wave_core::layout::Layout;
use wave_core::link::{Home, Port, Window};

/// Words of the lines of core 0 that have other words at 0: the status line, and the preemption line.
const WORD: usize = 1;

/// The words of one window.
#[derive(Clone, Copy, Debug)]
pub struct PauseWords {
    inside: u32,
    count: u32,
}

impl PauseWords {
    /// The words of a window.
    pub fn of(layout: &Layout) -> PauseWords {
        PauseWords { inside: layout.core_status, count: layout.preempt }
    }

    /// The process is about to use shared connections. Returns how often the agent has asked it to stop so far; if that is more
    /// often than the process has seen events of it, it must leave again.
    pub fn enter(&self, port: &impl Port) -> u64 {
        let window = port.window(Home::Nic);
        window.store(self.inside, WORD, 1);
        window.fence();
        port.window(Home::Host).load(self.count, WORD)
    }

    /// The process has told the agent how far it has read and written.
    pub fn leave(&self, port: &impl Port) {
        let window = port.window(Home::Nic);
        window.store(self.inside, WORD, 0);
        window.publish();
    }

    /// The agent asks the process to stop, for the `count`th time. An event must follow for each time.
    pub fn stop(&self, port: &impl Port, count: u64) {
        let window = port.window(Home::Host);
        window.store(self.count, WORD, count);
        window.publish();
        window.fence();
    }

    /// Whether the process uses shared connections, and has to be waited for.
    pub fn is_inside(&self, port: &impl Port) -> bool {
        port.window(Home::Nic).load(self.inside, WORD) != 0
    }
}
