//! A machine's stack is replaced while connections are open.

use wave_core::clock::Nanos;
use wave_tcp::control::RestoreError;

use crate::executors::Runs;
use crate::machine::{Machine, Make};

impl Machine {
    /// Works without accepting input until all connections are frozen.
    fn freeze(&mut self, now: Nanos) {
        let mut is_asked = false;
        for _ in 0..1_000 {
            self.work(now);
            if !is_asked && self.stack.is_at_rest(now) {
                self.stack.freeze();
                is_asked = true;
            } else if is_asked && self.stack.is_at_rest(now) && self.stack.is_frozen() {
                return;
            }
        }
        panic!("the stack never becomes frozen");
    }

    /// Replaces the agent by a successor, which gets the state as text.
    pub fn replace(&mut self, now: Nanos) {
        let by_default = |settings, by| Runs::Inline.datapath(settings, by);
        let restored = self.try_replace(now, &by_default);
        restored.expect("the successor has room for the state");
    }

    /// The same, by a successor with another data path.
    ///
    /// # Errors
    /// The state does not fit it.
    pub fn try_replace(&mut self, now: Nanos, make: Make<'_>) -> Result<(), RestoreError> {
        self.freeze(now);
        let before = self.shown();
        let text = serde_json::to_vec(&self.stack.state()).expect("a state is text");
        self.renew(make);
        let state = serde_json::from_slice(&text).expect("the text is a state");
        self.stack.restore(now, state)?;
        assert_eq!(self.shown(), before);
        Ok(())
    }

    /// Starts a handover that is given up, and thaws the connections.
    pub fn keep(&mut self, now: Nanos) {
        self.freeze(now);
        let before = self.shown();
        self.stack.thaw(now);
        assert_eq!(self.shown(), before);
    }

    /// Everything that the stack shows, in no particular order.
    fn shown(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.stack.visit_sockets(&mut |shown| all.push(format!("{shown:?}")));
        all.sort_unstable();
        all
    }
}
