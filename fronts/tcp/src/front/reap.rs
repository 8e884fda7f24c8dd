//! Processes that have gone, or must go, and the signals that end the agent.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use wave_core::clock::Nanos;
use wave_tcp::context::QUEUE_ENTRIES;
use wave_wires::Wire;

use super::{REQUESTS_PER_TURN, TcpFront};
use crate::front_datapath::{FrontDatapath, STEPS_PER_POLL};
use crate::refusal_log::Refusal;

/// Time for the wire to make room, when the front ends.
const ROOM: Duration = Duration::from_micros(100);
/// Most polls in which the stack resets its connections when the front ends: some per 64 connections.
const ENDING_POLLS_MAX: usize = 1024;

impl<W: Wire, D: FrontDatapath> TcpFront<W, D> {
    pub(super) fn evict(&mut self, now: Nanos, at: usize, refusal: Refusal) {
        if let Some(admitted) = self.processes[at].as_ref().filter(|admitted| !admitted.is_gone) {
            self.admission.evicted += 1;
            self.refusals.add(now, admitted.process.peer(), refusal);
            self.reap(at);
        }
    }

    /// Handles a process that has gone, or must go.
    pub(super) fn reap(&mut self, at: usize) {
        if let Some(admitted) = self.processes[at].as_mut().filter(|admitted| !admitted.is_gone) {
            let reads = admitted.process.last_reads();
            admitted.mark_gone(&mut self.shares);
            self.streams.forget_takeovers(at as u16);
            self.stack.remove_process_after(at as u16, reads);
        }
    }

    pub(super) fn detect_hang_ups(&mut self, now: Nanos) {
        self.hang_ups_checked = now;
        for admitted in self.processes.iter_mut().flatten() {
            admitted.has_hung_up |= !admitted.is_gone && admitted.process.has_hung_up();
        }
        let stack = &self.stack;
        self.streams.sweep(|flow| stack.owner(flow).is_none());
    }

    /// Looks whether the processes in doubt are still there. If one is not, takes the requests, with which its end is handled, up to a full
    /// queue of them. Returns whether there were any.
    pub(super) fn reap_suspects(&mut self, now: Nanos) -> bool {
        self.syn_ports.sort_unstable();
        self.syn_ports.dedup();
        for port in self.syn_ports.drain(..) {
            self.suspects.extend(self.stack.listening_at(port));
        }
        self.suspects.sort_unstable();
        self.suspects.dedup();
        for at in &self.suspects {
            if let Some(Some(admitted)) = self.processes.get_mut(usize::from(*at)) {
                admitted.has_hung_up |= !admitted.is_gone && admitted.process.has_hung_up();
            }
        }
        // Requests may bring others into doubt.
        let count = self.suspects.len();
        let mut worked = false;
        for _ in 0..=QUEUE_ENTRIES as usize / REQUESTS_PER_TURN {
            let is_going = |at: &u16| {
                let admitted = self.processes.get(usize::from(*at)).and_then(Option::as_ref);
                admitted.is_some_and(|admitted| admitted.has_hung_up && !admitted.is_gone)
            };
            if !self.suspects[..count].iter().any(is_going) || !self.take_requests(now) {
                break;
            }
            worked = true;
        }
        self.suspects.drain(..count);
        worked
    }

    /// Resets the remaining connections, so that no peer waits for an agent that has gone.
    pub(super) fn end(&mut self, now: Nanos) {
        self.stack.data.pause();
        self.stack.reset_all(now);
        for _ in 0..ENDING_POLLS_MAX {
            self.send_held(now);
            self.stack.poll(now, STEPS_PER_POLL, &mut self.outputs);
            let is_quiet = self.outputs.is_empty();
            self.perform(now);
            if is_quiet && !self.wire_port.is_behind() && self.stack.is_at_rest(now) {
                break;
            }
            if is_quiet {
                // The wire has no room for the resets.
                std::thread::sleep(ROOM);
            }
        }
    }
}

/// A flag that SIGINT and SIGTERM set. The signal wakes a waiting thread, or the thread checks the flag again by itself.
pub(super) fn termination_flag() -> io::Result<Arc<AtomicBool>> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends))?;
    }
    Ok(ends)
}
