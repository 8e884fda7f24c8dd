//! Attaching in a thread of its own, so that a host that answers slowly does not delay the agent's loop.

use std::cell::Cell;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use wave_links::socket::SocketError;

use crate::attach::AttachError;
use wave_process::say;

/// Interval between attempts to attach.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Tries to attach once. The flag is `quiet`.
type Attach<T> = fn(&Path, bool) -> Result<T, AttachError>;

/// A thread that retries to attach to a socket until a host, or another expected peer, listens there. The thread starts with the
/// first [`Attacher::take`], so that a process can give up rights before it has threads.
pub struct Attacher<T> {
    socket: PathBuf,
    attach: Attach<T>,
    ring: Arc<dyn Fn() + Send + Sync>,
    quiet: bool,
    has_begun: Cell<bool>,
    sender: Sender<T>,
    receiver: Receiver<T>,
    is_over: Arc<AtomicBool>,
}

impl<T: Send + 'static> Attacher<T> {
    /// Makes an attacher for the host at `socket`, without its thread. `ring` wakes the thread that calls [`Attacher::take`].
    ///
    /// # Errors
    /// The path can never be a host's socket: retrying would not help.
    pub fn new(
        socket: PathBuf,
        attach: Attach<T>,
        ring: impl Fn() + Send + Sync + 'static,
        quiet: bool,
    ) -> Result<Attacher<T>, SocketError> {
        if std::fs::metadata(&socket).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(SocketError::NotASocket(socket));
        }
        let (sender, receiver) = channel();
        let (ring, is_over) = (Arc::new(ring), Arc::default());
        let has_begun = Cell::new(false);
        Ok(Attacher { socket, attach, ring, quiet, has_begun, sender, receiver, is_over })
    }

    /// Starts to look for a host again. Call it only after the last one was taken and lost.
    pub fn begin(&self) {
        let (socket, ring, sender) =
            (self.socket.clone(), Arc::clone(&self.ring), self.sender.clone());
        let (is_over, mut quiet) = (Arc::clone(&self.is_over), self.quiet);
        let attach = self.attach;
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                match attach(&socket, quiet) {
                    Ok(attached) => {
                        // The send fails only if the receiver was dropped; then nobody waits for a host.
                        let _ = sender.send(attached);
                        ring();
                        return;
                    }
                    Err(error) if !quiet => {
                        quiet = true;
                        say!(
                            "wave agent: cannot attach to {} yet: {error}; trying every {} ms",
                            socket.display(),
                            POLL_EVERY.as_millis(),
                        );
                    }
                    Err(_) => {}
                }
                thread::sleep(POLL_EVERY);
            }
        });
    }

    /// Takes the host that the thread has attached to, if there is one. The first call starts the thread.
    pub fn take(&self) -> Option<T> {
        if !self.has_begun.replace(true) {
            self.begin();
        }
        self.receiver.try_recv().ok()
    }

    /// Path of the socket at which the host is expected.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl<T> Drop for Attacher<T> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
