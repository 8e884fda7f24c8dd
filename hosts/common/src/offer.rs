//! Creates a window for an agent on this machine and hands it over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use wave_core::layout::{Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Home, Port, Side};
use wave_links::memory::Memory;
use wave_links::socket::{Connection, Offer, SocketError};
use wave_links::{AnyPort, EventFd, LinkError, LinkSpec, SocketBell};

/// Why no window was handed over.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// The kernel gave no memory or no descriptor.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The link cannot be made over this memory.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The offer could not be sent over the agent's socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// The host's ends of a window and doorbells that were offered to an agent.
#[derive(Debug)]
pub struct Offered {
    /// The control context's access to the window.
    pub port: AnyPort,
    /// Doorbells that the agent rings: one per core, then the control context's.
    pub bells: Vec<EventFd>,
    /// The doorbell that rings the agent.
    pub agent_bell: SocketBell,
}

/// Creates memory for a window of this layout, and returns it with its descriptor. `name` appears in /proc.
///
/// # Errors
/// The memory cannot be allocated.
pub fn create_window(
    name: &str,
    layout: &Layout,
    link: &LinkSpec,
) -> io::Result<(Arc<Memory>, OwnedFd)> {
    let (nic, host) = (layout.nic_lines, layout.host_lines);
    let (memory, fd) = Memory::create(name, nic, host, link.extra_lines(nic, host))?;
    memory.make_resident(layout.busy_lines);
    Ok((Arc::new(memory), fd))
}

/// Hands a window over (Wave Table 1, `CREATE_QUEUE`, `ASSOC_QUEUE_WITH`). `core_bell` makes the two ends of a core's doorbell:
/// the end for waiting, and the end for ringing.
///
/// # Errors
/// The window could not be made, or the agent has gone.
pub fn offer(
    connection: &Connection,
    layout: &Layout,
    link: &LinkSpec,
    (memory, fd): (&Arc<Memory>, BorrowedFd<'_>),
    core_bell: impl Fn() -> io::Result<[EventFd; 2]>,
) -> Result<Offered, OfferError> {
    // The agent's own bell is the last.
    let [agent_bell, agents_end] = SocketBell::pair()?;
    let (mut bells, mut agents_ends) = (Vec::new(), Vec::new());
    for _ in 0..layout.config.cores {
        let [waiting, ringing] = core_bell()?;
        bells.push(waiting);
        agents_ends.push(ringing);
    }
    let control_bell = EventFd::new()?;
    agents_ends.push(control_bell.try_clone()?);
    bells.push(control_bell);
    let port = link.port(memory, Side::Host, &layout.mappings(Side::Host))?;
    write_header(layout, port.window(Home::Nic));
    let (nic, host) = (layout.nic_lines, layout.host_lines);
    let fds: Vec<_> = agents_ends.iter().map(AsFd::as_fd).chain([agents_end.as_fd()]).collect();
    connection.send_offer(&Offer {
        version: PROTOCOL_VERSION,
        subsystem: layout.config.subsystem,
        lines: [nic, host, link.extra_lines(nic, host)],
        memory: fd,
        doorbells: &fds,
        files: &[],
        link: &link.to_text(),
    })?;
    Ok(Offered { port, bells, agent_bell })
}
