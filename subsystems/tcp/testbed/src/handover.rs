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
        self.pass_on(now, make)
    }

    /// Passes the connections of a frozen stack on to a successor.
    ///
    /// # Errors
    /// The state does not fit it.
    pub fn pass_on(&mut self, now: Nanos, make: Make<'_>) -> Result<(), RestoreError> {
        let before = self.shown();
        let name = self.stack.data.name();
        let text = serde_json::to_vec(&self.stack.state()).expect("a state is text");
        self.renew(make);
        let state = serde_json::from_slice(&text).expect("the text is a state");
        self.stack.restore(now, state)?;
        let after = self.shown();
        if self.stack.data.name() == name {
            assert_eq!(after, before);
        } else {
            // Another data path may keep fewer intervals; the peer sends the bytes again.
            let [after, before] = [after, before].map(without_intervals);
            assert_eq!(after, before);
        }
        Ok(())
    }

    /// Starts a handover that is given up, and thaws the connections.
    pub fn keep(&mut self, now: Nanos) {
        self.freeze(now);
        let before = self.shown();
        self.stack.thaw(now);
        assert_eq!(self.shown(), before);
    }

    /// Everything that the stack shows, in order.
    fn shown(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.stack.visit_sockets(&mut |shown| all.push(format!("{shown:?}")));
        all.sort_unstable();
        all
    }
}

/// What a stack shows, without the intervals that arrived out of order.
fn without_intervals(shown: Vec<String>) -> Vec<String> {
    let cut = |shown: String| {
        let (before, rest) = shown.split_once("intervals: [").unwrap_or((&shown, ""));
        let (_, after) = rest.split_once(']').unwrap_or_default();
        format!("{before}{after}")
    };
    shown.into_iter().map(cut).collect()
}
