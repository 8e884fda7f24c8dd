//! A program's half of a window, written by hand.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Home, Port, Side};
use wave_core::subsystem::SubsystemId;
use wave_links::shm::ShmPort;
use wave_links::socket::{Connection, Offer, SocketError};
use wave_links::{AnyPort, Memory, Payload, SocketBell};
use wave_tcp::context::window;

/// A program's half of a window. A test can change everything in its offer.
pub struct Program {
    pub connection: Connection,
    pub layout: Layout,
    pub lines: [u32; 3],
    pub subsystem: SubsystemId,
    pub link: &'static str,
    pub memory: OwnedFd,
    pub port: AnyPort,
    pub payload: Payload,
    pub files: Vec<OwnedFd>,
    /// The waiting end of each context's bell, then the ringing end of the agent's bell.
    pub bells: Vec<SocketBell>,
    pub doorbells: Vec<OwnedFd>,
}

impl Program {
    /// Connects last: the offer must follow soon.
    pub fn over(
        connect: impl FnOnce() -> Connection,
        contexts: u16,
        payload_bytes: u64,
    ) -> Program {
        let layout = Layout::new(window(contexts)).unwrap();
        let lines = [layout.nic_lines, layout.host_lines, 0];
        let (memory, fd) = Memory::create_to_lend("test", lines[0], lines[1]).unwrap();
        let port = AnyPort::from(ShmPort::new(&Arc::new(memory)));
        write_header(&layout, port.window(Home::Nic));
        let (payload, file) = Payload::create("test", payload_bytes).unwrap();
        let pairs = (0..=contexts).map(|_| SocketBell::pair_that_hangs_up().unwrap());
        let (bells, theirs): (Vec<_>, Vec<_>) = pairs.map(|[ours, theirs]| (ours, theirs)).unzip();
        let doorbells =
            theirs.iter().map(|bell| bell.as_fd().try_clone_to_owned().unwrap()).collect();
        Program {
            layout,
            lines,
            subsystem: wave_tcp::SUBSYSTEM.id,
            link: "shm",
            memory: fd,
            port,
            payload,
            files: vec![file],
            bells,
            doorbells,
            connection: connect(),
        }
    }

    pub fn offer(&self) -> Result<(), SocketError> {
        let doorbells: Vec<_> = self.doorbells.iter().map(AsFd::as_fd).collect();
        let files: Vec<_> = self.files.iter().map(AsFd::as_fd).collect();
        let offer = Offer {
            version: PROTOCOL_VERSION,
            subsystem: self.subsystem,
            lines: self.lines,
            memory: self.memory.as_fd(),
            doorbells: &doorbells,
            files: &files,
            link: self.link,
        };
        self.connection.send_offer(&offer)
    }

    pub fn requests(&self, context: usize) -> Sender {
        Sender::new(&self.layout.messages[context], Side::Host)
    }

    pub fn events(&self, context: usize) -> Receiver {
        Receiver::new(&self.layout.decisions[context], Side::Host)
    }
}
