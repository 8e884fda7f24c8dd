//! The program's end of a window with one context: connecting, queues and parking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::time::ClockId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{AGENT_READY, ConfigError, Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Doorbell, Home, Port, Side, Window};
use wave_core::park::ParkWord;
use wave_core::queue::PushError;
use wave_links::shm::ShmPort;
use wave_links::socket::{Connection, Offer, SocketError};
use wave_links::{AnyPort, LinkSpec, Memory, Payload, Populator, SocketBell};
use wave_tcp::context::{Event, OFFERS_EXCEEDED, PauseWords, ReadWords, Request, window};

/// The reason why a program has no agent.
#[derive(Debug, thiserror::Error)]
pub enum ToeError {
    /// No agent listens at the path, or its user is not trusted.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system provided no memory or no descriptor.
    #[error("cannot create a window: {0}")]
    System(#[from] io::Error),
    /// The agent refused this process, for the given reason.
    #[error("the agent refused: {0}")]
    Refused(String),
    /// The agent did not answer in time.
    #[error("the agent did not take the window in time")]
    Silent,
    /// The agent has gone, or wrote invalid data.
    #[error("the agent hung up")]
    HungUp,
    /// Invalid options: a ring's size is not a power of two from 4 KiB to 16 MiB, or the memory has no room for one connection.
    #[error(
        "no room for rings of {receive_bytes} and {send_bytes} bytes (powers of two, 4 KiB to 16 MiB) \
        in {payload_bytes} bytes of payload memory"
    )]
    Rings {
        /// Size of the receive ring.
        receive_bytes: u32,
        /// Size of the send ring.
        send_bytes: u32,
        /// Size of the payload memory.
        payload_bytes: u64,
    },
    /// An invalid layout; does not occur for a window of one context.
    #[error(transparent)]
    Layout(#[from] ConfigError),
}

/// The queues between one context and its agent: requests to the agent, events from it.
pub trait Queues {
    /// Pushes a request; false if the queue is full. The agent sees it after the next [`Queues::publish`].
    ///
    /// # Errors
    /// The agent is at fault.
    fn push(&mut self, request: &Request) -> Result<bool, Fault>;

    /// Publishes the pushed requests, and wakes the agent if it sleeps.
    fn publish(&mut self);

    /// Pops the next event, if there is one.
    ///
    /// # Errors
    /// The agent is at fault.
    fn pop(&mut self) -> Result<Option<Event>, Fault>;

    /// Lets the agent know how far this process has read a connection, should it end ([`ReadWords::note`]). Returns the name of the
    /// connection to which the word belonged before.
    fn note_read(&mut self, name: u32, read: u64) -> u32;

    /// Populates these bytes of the payload memory with the program's own memory; the agent uses no other bytes.
    ///
    /// # Errors
    /// No memory is left.
    fn populate(&mut self, at: u64, bytes: u32) -> io::Result<()>;
}

/// The agent wrote invalid data, which no correct agent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The doorbell was rung, or a signal arrived.
    Rung,
    /// The timeout has passed.
    TimedOut,
    /// The agent's end of the doorbell is closed.
    HungUp,
}

/// A window that an agent has accepted.
#[derive(Debug)]
pub struct AgentWindow {
    connection: Connection,
    layout: Layout,
    port: AnyPort,
    requests: Sender,
    events: Receiver,
    /// Rung by the agent if it finds this context parked.
    bell: SocketBell,
    agent_bell: SocketBell,
    populator: Populator,
    /// Time of the last check whether the agent has gone, by [`coarse_time`].
    checked_at: Duration,
}

/// Sleep between two attempts while the agent is busy with other processes.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// The time, to some milliseconds, without a read of the counter: nearly every call of a preloaded program asks for it.
fn coarse_time() -> Duration {
    // By the C library: rustix calls the vDSO by itself, which crashes under valgrind.
    ClockId::CLOCK_MONOTONIC_COARSE.now().map_or(Duration::ZERO, Duration::from)
}

/// Sleeps at least this long, or until a signal arrives. Unlike the standard library's sleep it is no cancellation point (pthreads(7)), at
/// which a thread could end while it holds a lock.
pub fn pause(time: Duration) {
    if let Ok(time) = rustix::thread::Timespec::try_from(time) {
        let _ = rustix::thread::nanosleep(&time);
    }
}

impl AgentWindow {
    /// Offers a window and the payload memory `payload`, whose file is `file`, to the agent at `path`, and waits until the agent accepts
    /// them. The agent must run as this user, root, or one of `users`.
    pub fn connect(
        path: &Path,
        users: &[u32],
        payload: (&Payload, BorrowedFd<'_>),
        patience: Duration,
    ) -> Result<AgentWindow, ToeError> {
        let start = Instant::now();
        loop {
            match AgentWindow::offer(path, users, payload, patience.saturating_sub(start.elapsed()))
            {
                Err(ToeError::Refused(why))
                    if why == OFFERS_EXCEEDED && start.elapsed() < patience =>
                {
                    pause(TRY_AGAIN);
                }
                window => return window,
            }
        }
    }

    /// One attempt of [`AgentWindow::connect`].
    fn offer(
        path: &Path,
        users: &[u32],
        (payload, file): (&Payload, BorrowedFd<'_>),
        patience: Duration,
    ) -> Result<AgentWindow, ToeError> {
        let start = Instant::now();
        let layout = Layout::new(window(1))?;
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let (memory, window_file) = Memory::create_to_lend("wave-tcp-window", nic, host)?;
        let port = AnyPort::from(ShmPort::new(&Arc::new(memory)));
        write_header(&layout, port.window(Home::Nic));

        let connection = loop {
            match Connection::connect_allowing(path, users) {
                // The agent's backlog is full of other processes.
                Err(SocketError::Path { source, .. })
                    if source.kind() == io::ErrorKind::WouldBlock && start.elapsed() < patience =>
                {
                    pause(TRY_AGAIN);
                }
                connected => break connected?,
            }
        };
        let [bell, bell_of_agent] = SocketBell::pair_that_hangs_up()?;
        let [agent_bell, agents_end] = SocketBell::pair()?;
        let sent = connection.send_offer(&Offer {
            version: PROTOCOL_VERSION,
            subsystem: layout.config.subsystem,
            lines: [nic, host, 0],
            memory: window_file.as_fd(),
            doorbells: &[bell_of_agent.as_fd(), agents_end.as_fd()],
            files: &[file],
            link: &LinkSpec::Shm.to_text(),
        });
        // The agent may already have refused this process.
        sent.map_err(|error| connection.refusal().map_or(error.into(), ToeError::Refused))?;
        // From here on only the agent has these ends, so this side sees when the agent closes them.
        drop((bell_of_agent, agents_end));
        let requests = Sender::new(&layout.messages[0], Side::Host);
        let events = Receiver::new(&layout.decisions[0], Side::Host);
        let (checked_at, populator) = (coarse_time(), payload.populator());
        let window = AgentWindow {
            connection,
            layout,
            port,
            requests,
            events,
            bell,
            agent_bell,
            populator,
            checked_at,
        };
        window.await_announcement(patience)?;
        Ok(window)
    }

    fn await_announcement(&self, patience: Duration) -> Result<(), ToeError> {
        let start = Instant::now();
        loop {
            let word = self.port.window(Home::Nic).load(self.layout.agent, 0);
            if word == AGENT_READY | u64::from(PROTOCOL_VERSION) {
                return Ok(());
            }
            let is_gone = self.connection.hung_up();
            // A refusal is read even if the agent has closed the connection since.
            if let Some(why) = self.connection.refusal() {
                return Err(ToeError::Refused(why));
            }
            if word != 0 || is_gone {
                return Err(ToeError::HungUp);
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(ToeError::Silent);
            }
            let mut fds = [
                PollFd::new(&self.connection, PollFlags::IN | PollFlags::RDHUP),
                PollFd::new(&self.bell, PollFlags::IN),
            ];
            // An error counts as a timeout: everything is checked again.
            let _ = poll(&mut fds, timespec(left).as_ref());
            self.bell.drain();
        }
    }

    /// Announces that this context is about to sleep. It must check for events once more before it does.
    pub fn park(&mut self) {
        ParkWord::of_core(&self.layout, 0).park(&self.port);
    }

    /// Announces that this context is awake.
    pub fn unpark(&mut self) {
        ParkWord::of_core(&self.layout, 0).unpark(&self.port);
    }

    /// Announces a call that may use shared connections: see [`PauseWords::enter`].
    pub(crate) fn enter(&self) -> u64 {
        PauseWords::of(&self.layout).enter(&self.port)
    }

    /// Whether such a call is announced.
    pub(crate) fn is_inside(&self) -> bool {
        PauseWords::of(&self.layout).is_inside(&self.port)
    }

    /// Announces the end of that call, once everything was published.
    pub(crate) fn leave(&self) {
        PauseWords::of(&self.layout).leave(&self.port);
    }

    /// Sends the agent a message with descriptors, which a [`Request::Placeholders`] announces. Never blocks.
    ///
    /// # Errors
    /// The agent has gone, or has no room for the message at present.
    pub fn send_descriptors(&self, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        self.connection.send_descriptors(text, fds)
    }

    /// Clears a ring of the doorbell, if there is one. Returns whether the agent's end is closed.
    pub fn clear_ring(&mut self) -> bool {
        match self.bell.take() {
            Ok(1..) => false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            _ => self.wait(Duration::ZERO) == Woken::HungUp,
        }
    }

    /// Waits for the doorbell, and clears it.
    pub fn wait(&mut self, timeout: Duration) -> Woken {
        let wanted = PollFlags::IN.bits() as i16;
        let hung_up = PollFlags::HUP.bits() as i16;
        match wave_links::poll(self.bell.as_fd(), wanted, Some(timeout)) {
            Ok(0) => Woken::TimedOut,
            Ok(events) if self.bell.drain() || events & hung_up == 0 => Woken::Rung,
            Ok(_) => Woken::HungUp,
            Err(_) => {
                self.bell.drain();
                Woken::Rung
            }
        }
    }

    /// Whether the agent has gone.
    pub fn hung_up(&self) -> bool {
        self.connection.hung_up()
    }

    /// As [`AgentWindow::hung_up`], but asks the system only if the last check is `interval` or more ago.
    pub fn check_hung_up(&mut self, interval: Duration) -> bool {
        let now = coarse_time();
        if now.saturating_sub(self.checked_at) < interval {
            return false;
        }
        self.checked_at = now;
        self.hung_up()
    }

    /// All descriptors of the window, for a process that must not keep them: a child of fork(2).
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.connection.as_fd(), self.bell.as_fd(), self.agent_bell.as_fd()]
    }

    /// Continues with duplicates of the descriptors, at other numbers.
    ///
    /// # Errors
    /// As `duplicate`. The window works all the same.
    pub fn renumber(
        &mut self,
        duplicate: impl Fn(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    ) -> io::Result<()> {
        self.connection.renumber(duplicate(self.connection.as_fd())?);
        self.bell.renumber(duplicate(self.bell.as_fd())?);
        self.agent_bell.renumber(duplicate(self.agent_bell.as_fd())?);
        Ok(())
    }

    /// The doorbell, for polling.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Queues for AgentWindow {
    fn push(&mut self, request: &Request) -> Result<bool, Fault> {
        let (tag, words) = request.to_words();
        match self.requests.push(&self.port, tag, &words) {
            Ok(()) => Ok(true),
            Err(PushError::Full(_)) => Ok(false),
            Err(PushError::BadCredit { .. }) => Err(Fault),
        }
    }

    fn publish(&mut self) {
        self.requests.publish(&self.port);
        self.requests.fence(&self.port);
        if ParkWord::of_agent(&self.layout).is_parked(&self.port) {
            self.agent_bell.ring();
        }
    }

    fn pop(&mut self) -> Result<Option<Event>, Fault> {
        match self.events.pop(&self.port) {
            Ok(None) => Ok(None),
            Ok(Some(entry)) => Event::from_entry(&entry).map(Some).map_err(|_| Fault),
            Err(_) => Err(Fault),
        }
    }

    fn note_read(&mut self, name: u32, read: u64) -> u32 {
        ReadWords::of(&self.layout, 0).note(&self.port, name, read)
    }

    fn populate(&mut self, at: u64, bytes: u32) -> io::Result<()> {
        self.populator.populate(at, bytes)
    }
}

fn timespec(duration: Duration) -> Option<Timespec> {
    Timespec::try_from(duration).ok()
}
