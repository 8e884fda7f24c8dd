//! Signal-driven I/O (O_ASYNC): a signal to the owner of a socket, as F_SETOWN and F_SETSIG name it, when its readiness changes.
//!
//! The placeholder keeps O_ASYNC, the owner and the signal, but nothing happens to it. So the library sends the signals. A program that
//! waits for them may make no other call, so a thread of the library looks for events on its behalf.

use std::ffi::c_int;

use wave_readiness::EventFlags;

use crate::description::{Notified, Tcp, View};
use crate::messages::warn_user;
use crate::sockets::Sockets;
use crate::sys;
use crate::wait::Entries;
use crate::world::World;

/// Bytes of the thread's stack.
const STACK_BYTES: usize = 256 << 10;

/// Why a signal is sent: `si_code` (sigaction(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Cause {
    /// Bytes, a connection to accept, or the end of the peer's stream.
    Input = 1,
    /// Room after a write or a poll had found none; or the connection is established.
    Output = 2,
    Error = 4,
    HangUp = 6,
}

impl Cause {
    /// `si_band`, as in the kernel's `band_table`.
    pub fn band(self) -> EventFlags {
        match self {
            Cause::Input => EventFlags::IN | EventFlags::RDNORM,
            Cause::Output => EventFlags::OUT | EventFlags::WRNORM | EventFlags::WRBAND,
            Cause::Error => EventFlags::ERR,
            Cause::HangUp => EventFlags::HUP | EventFlags::ERR,
        }
    }
}

/// A signal that is due.
#[derive(Clone, Copy, Debug)]
struct Signal {
    /// A descriptor of the socket, and the one through which O_ASYNC was set.
    fd: c_int,
    shown: c_int,
    cause: Cause,
}

/// Signals that are sent when dropped, which must be outside the lock: their handlers may use sockets.
#[derive(Debug, Default)]
pub struct Signals(Vec<Signal>);

impl Signals {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Signals {
    #[inline]
    fn drop(&mut self) {
        for &Signal { fd, shown, cause } in &self.0 {
            sys::signal_owner(fd, shown, cause);
        }
    }
}

impl Sockets {
    /// Starts the thread that looks for events, if a socket needs it and it does not run.
    pub fn watch(&'static self) {
        let Ok(mut world) = self.open() else { return };
        if !std::mem::take(&mut world.wants_watcher) || world.has_watcher {
            return;
        }
        let thread = std::thread::Builder::new().name("wave-sigio".into()).stack_size(STACK_BYTES);
        // The program's signals are for the program's threads.
        match sys::with_signals_blocked(|| thread.spawn(|| self.watch_readiness())) {
            Ok(_) => world.has_watcher = true,
            Err(error) => {
                warn_user(&format!("O_ASYNC has no effect on an agent's socket: {error}"))
            }
        }
    }

    fn watch_readiness(&self) {
        while let Ok(mut world) = self.open() {
            if !world.all().any(|description| description.signals.is_some()) {
                world.has_watcher = false;
                return;
            }
            drop(self.sleep(world, None, &mut Entries::new(), None));
            if let Ok(mut world) = self.open() {
                world.process_events();
            }
        }
    }
}

impl World {
    /// The signals to send once the lock is released.
    pub fn take_signals(&mut self) -> Signals {
        std::mem::take(&mut self.signals)
    }

    /// Records that the program sets or clears O_ASYNC through this descriptor.
    pub fn set_signals(&mut self, at: usize, fd: c_int, is_on: bool) {
        self.description(at).signals = is_on.then_some(fd);
        self.wants_watcher |= is_on;
    }

    /// Records the signals for a change of a socket that has O_ASYNC: from `notified` to `view`, with new input, or room after there was none.
    pub fn note_signals(
        &mut self,
        at: usize,
        notified: &Notified,
        view: &View,
        has_input: bool,
        has_room: bool,
    ) {
        let description = self.description(at);
        let Some(shown) = description.signals else { return };
        // A thread that waits in recv(2) gets the bytes without a signal (SOCK_WAKE_WAITD).
        let is_awaited = description.receivers > 0;
        let Some(fd) = self.descriptor_of(at, shown) else { return };
        let is_closed = view.is_read_shut && view.is_write_shut;
        let (mut has_ended, mut has_failed, mut has_connected) = (false, false, false);
        let state = (view.tcp, view.is_done, view.has_error);
        if let Some(before) = notified.state.filter(|before| *before != state) {
            has_ended = view.is_done && !before.1;
            has_failed = view.has_error && !before.2;
            has_connected = view.tcp == Tcp::Open && before.0 != Tcp::Open;
        }
        let causes = [
            (has_input && !is_awaited, Cause::Input),
            (has_ended && !is_awaited, if is_closed { Cause::HangUp } else { Cause::Input }),
            (has_connected || (has_room && !is_closed && !has_failed), Cause::Output),
            (has_failed, Cause::Error),
        ];
        let due = causes.into_iter().filter(|(is_due, _)| *is_due);
        self.signals.0.extend(due.map(|(_, cause)| Signal { fd, shown, cause }));
    }

    /// A descriptor of a description: `first`, if it is one.
    fn descriptor_of(&self, at: usize, first: c_int) -> Option<c_int> {
        if self.find(first) == Some(at) {
            return Some(first);
        }
        let mut all = (0..).zip(&self.fds);
        all.find(|(_, place)| **place as usize == at + 1).map(|(fd, _)| fd)
    }
}
