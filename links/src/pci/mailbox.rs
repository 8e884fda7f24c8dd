//! The mailbox by which an agent gets its window over a device: words in the device's memory (BAR 2).
//!
//! ```text
//! line 0    host     MAGIC | version | life | number under which the device rings the host | vectors
//! line 1    host     request answered | NIC lines | host lines | pages, or bytes of a refusal | refused
//! line 2    agent    request | number under which the host rings the agent
//! line 4    agent    a word per vector: how often it was rung
//! line 8    host     the window's pages, a word each; or why there is no window
//! ```
//!
//! The agent writes a request, any number except 0, and rings the control vector; the host makes a window,
//! lists the places of its pages, and rings back. A page is in the host's memory, at the address that the
//! device uses to reach it, or in the device's own memory, as an offset from the start of BAR 2: then bit 0
//! is set. From then on host and agent communicate in the window. An agent that leaves clears its request; a
//! host that ends clears `MAGIC`; a host that starts anew has another life number.

use wave_core::link::{LINE_WORDS, Window};

/// The bytes "WAVEpci1".
const MAGIC: u64 = u64::from_le_bytes(*b"WAVEpci1");
/// The most vectors that a mailbox has words for.
pub const VECTORS_MAX: usize = 4 * LINE_WORDS;
/// The vector that rings the host's control context; the cores' vectors follow, in order.
pub const CONTROL_VECTOR: usize = 0;
const HOST: u32 = 0;
const ANSWER: u32 = 1;
const AGENT: u32 = 2;
const RINGS: u32 = 4;
const LIST: u32 = 8;
const IN_DEVICE: u64 = 1;

/// The place of a page of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the host's memory, at this address on the device's side.
    Host(u64),
    /// In the device's memory, this many bytes from the start of BAR 2.
    Device(u64),
}

/// A window that the host has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Lines of the NIC's region.
    pub nic_lines: u32,
    /// Lines of the host's region.
    pub host_lines: u32,
    /// Places of the window's pages, in order.
    pub pages: Vec<Place>,
}

/// The host's introduction to agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version of everything in a window.
    pub version: u32,
    /// A number that differs for each host process.
    pub life: u64,
    /// The number under which the device rings the host.
    pub number: u16,
    /// Number of vectors that reach the host.
    pub vectors: usize,
}

/// The most pages that a mailbox of `lines` lines can list.
pub fn pages_max(lines: u32) -> usize {
    lines.saturating_sub(LIST) as usize * LINE_WORDS
}

/// The first page-aligned byte of the device's memory after a list of `pages` pages.
pub fn end_of_list(pages: usize) -> u64 {
    let lines = u64::from(LIST) + pages.div_ceil(LINE_WORDS) as u64;
    (lines * 64).next_multiple_of(4096)
}

fn list_word(at: usize) -> (u32, usize) {
    (LIST + (at / LINE_WORDS) as u32, at % LINE_WORDS)
}

/// The host's end of the mailbox.
#[derive(Debug)]
pub struct HostEnd<W> {
    window: W,
    lines: u32,
}

impl<W: Window> HostEnd<W> {
    /// Creates the host's end in a device's memory of `lines` lines. Clears an earlier host's words; agents see no greeting
    /// yet.
    pub fn new(window: W, lines: u32) -> HostEnd<W> {
        window.store(HOST, 0, 0);
        window.store(ANSWER, 0, 0);
        window.store(AGENT, 0, 0);
        (0..VECTORS_MAX).for_each(|vector| {
            window.store(RINGS + (vector / LINE_WORDS) as u32, vector % LINE_WORDS, 0);
        });
        window.publish();
        HostEnd { window, lines }
    }

    /// Publishes the greeting: from now on agents may send requests.
    pub fn greet(&self, greeting: Greeting) {
        self.window.store(HOST, 1, greeting.version.into());
        self.window.store(HOST, 2, greeting.life);
        self.window.store(HOST, 3, greeting.number.into());
        self.window.store(HOST, 4, greeting.vectors as u64);
        self.window.store(HOST, 0, MAGIC);
        self.window.publish();
    }

    /// The agent's request, 0 if there is none, and the number to ring the agent under.
    pub fn request(&self) -> (u64, u32) {
        let request = self.window.load(AGENT, 0);
        (request, self.window.load(AGENT, 1) as u32)
    }

    /// Answers a request with a window.
    pub fn offer(&self, request: u64, offer: &Offer) {
        for (at, place) in offer.pages.iter().enumerate() {
            let (line, word) = list_word(at);
            let value = match place {
                Place::Host(address) => *address,
                Place::Device(offset) => offset | IN_DEVICE,
            };
            self.window.store(line, word, value);
        }
        self.window.store(ANSWER, 1, offer.nic_lines.into());
        self.window.store(ANSWER, 2, offer.host_lines.into());
        self.answer(request, offer.pages.len(), false);
    }

    /// Answers a request with a refusal and its reason.
    pub fn refuse(&self, request: u64, why: &str) {
        let bytes = &why.as_bytes()[..why.len().min(1024).min(pages_max(self.lines) * 8)];
        for (at, bytes) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let (line, at) = list_word(at);
            self.window.store(line, at, u64::from_le_bytes(word));
        }
        self.answer(request, bytes.len(), true);
    }

    fn answer(&self, request: u64, length: usize, refused: bool) {
        self.window.store(ANSWER, 3, length as u64);
        self.window.store(ANSWER, 4, refused.into());
        self.window.store(ANSWER, 0, request);
        self.window.publish();
    }

    /// How often a vector was rung, for a host that gets no interrupts.
    pub fn rings(&self, vector: usize) -> u64 {
        self.window.load(RINGS + (vector / LINE_WORDS) as u32, vector % LINE_WORDS)
    }

    /// How many pages a list can have.
    pub fn pages_max(&self) -> usize {
        pages_max(self.lines)
    }

    /// The device's memory, with the mailbox at its start.
    pub fn window(&self) -> &W {
        &self.window
    }

    /// Announces that the host is gone.
    pub fn close(&self) {
        self.window.store(HOST, 0, 0);
        self.window.publish();
    }
}

/// The agent's end of the mailbox.
#[derive(Clone, Debug)]
pub struct AgentEnd<W> {
    window: W,
    lines: u32,
}

/// Why there is no window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoOffer {
    /// The host has not answered yet.
    NotYet,
    /// The host refused, with its reason.
    Refused(String),
    /// The answer is not valid.
    Nonsense,
}

impl<W: Window> AgentEnd<W> {
    /// Creates the agent's end in a device's memory of `lines` lines.
    pub fn new(window: W, lines: u32) -> AgentEnd<W> {
        AgentEnd { window, lines }
    }

    /// The host's greeting; `None` if there is no host.
    pub fn greeting(&self) -> Option<Greeting> {
        if self.window.load(HOST, 0) != MAGIC {
            return None;
        }
        Some(Greeting {
            version: u32::try_from(self.window.load(HOST, 1)).ok()?,
            life: self.window.load(HOST, 2),
            number: u16::try_from(self.window.load(HOST, 3)).ok()?,
            vectors: usize::try_from(self.window.load(HOST, 4)).ok()?.min(VECTORS_MAX),
        })
    }

    /// Asks for a window. `number` is the one to ring this agent under; `request` is not 0.
    pub fn request(&self, request: u64, number: u32) {
        self.window.store(AGENT, 1, number.into());
        self.window.store(AGENT, 0, request);
        self.window.publish();
    }

    /// The host's answer to a request.
    pub fn answer(&self, request: u64) -> Result<Offer, NoOffer> {
        if self.window.load(ANSWER, 0) != request {
            return Err(NoOffer::NotYet);
        }
        let number = |word| self.window.load(ANSWER, word);
        let length = usize::try_from(number(3)).unwrap_or(usize::MAX);
        let word = |at| {
            let (line, word) = list_word(at);
            self.window.load(line, word)
        };
        if number(4) != 0 {
            let words = length.min(1024).min(pages_max(self.lines) * 8).div_ceil(8);
            let bytes: Vec<u8> = (0..words).flat_map(|at| word(at).to_le_bytes()).collect();
            let text = String::from_utf8_lossy(&bytes[..length.min(bytes.len())]).into_owned();
            return Err(NoOffer::Refused(text));
        }
        if length > pages_max(self.lines) {
            return Err(NoOffer::Nonsense);
        }
        let place = |value: u64| match value & IN_DEVICE {
            0 => Place::Host(value),
            _ => Place::Device(value & !IN_DEVICE),
        };
        Ok(Offer {
            nic_lines: u32::try_from(number(1)).map_err(|_| NoOffer::Nonsense)?,
            host_lines: u32::try_from(number(2)).map_err(|_| NoOffer::Nonsense)?,
            pages: (0..length).map(|at| place(word(at))).collect(),
        })
    }

    /// Clears this agent's request, unless another agent has asked since.
    pub fn leave(&self, request: u64) {
        if self.window.load(AGENT, 0) == request {
            self.window.store(AGENT, 0, 0);
            self.window.publish();
        }
    }

    /// Counts a ring of a vector, for a host that gets no interrupts.
    pub fn ring(&self, vector: usize) {
        let (line, word) = (RINGS + (vector / LINE_WORDS) as u32, vector % LINE_WORDS);
        self.window.store(line, word, self.window.load(line, word).wrapping_add(1));
        self.window.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use crate::shm::ShmWindow;
    use std::sync::Arc;
    use wave_core::link::Home;

    const LINES: u32 = 256;

    fn greeting(life: u64) -> Greeting {
        Greeting { version: 1, life, number: 3, vectors: 5 }
    }

    fn ends() -> (HostEnd<ShmWindow>, AgentEnd<ShmWindow>) {
        let (memory, _fd) = Memory::create("test", LINES, 0, 0).unwrap();
        let window = ShmWindow::new(Arc::new(memory), Home::Nic);
        let agent = AgentEnd::new(window.clone(), LINES);
        let host = HostEnd::new(window, LINES);
        assert_eq!(agent.greeting(), None);
        host.greet(greeting(9));
        (host, agent)
    }

    #[test]
    fn an_agent_gets_the_window_that_it_asked_for() {
        let (host, agent) = ends();
        assert_eq!(agent.greeting(), Some(greeting(9)));
        assert_eq!(host.request(), (0, 0));
        agent.request(77, 5);
        assert_eq!(host.request(), (77, 5));
        assert_eq!(agent.answer(77), Err(NoOffer::NotYet));
        let pages = (0..100).map(|page| match page % 3 {
            0 => Place::Device(page * 4096),
            _ => Place::Host(page * 8192),
        });
        let offer = Offer { nic_lines: 6000, host_lines: 400, pages: pages.collect() };
        host.offer(77, &offer);
        assert_eq!(agent.answer(77), Ok(offer));
        assert_eq!(agent.answer(78), Err(NoOffer::NotYet));
    }

    #[test]
    fn a_refusal_says_why() {
        let (host, agent) = ends();
        agent.request(1, 0);
        host.refuse(1, "no room for a window here");
        let said = NoOffer::Refused("no room for a window here".into());
        assert_eq!(agent.answer(1), Err(said));
    }

    #[test]
    fn a_list_longer_than_the_device_is_not_valid() {
        let (host, agent) = ends();
        host.window().store(ANSWER, 3, pages_max(LINES) as u64 + 1);
        host.window().store(ANSWER, 0, 1);
        assert_eq!(agent.answer(1), Err(NoOffer::Nonsense));
        host.window().store(ANSWER, 4, 1);
        host.window().store(ANSWER, 3, u64::MAX);
        assert!(matches!(agent.answer(1), Err(NoOffer::Refused(_))));
    }

    #[test]
    fn a_leaving_agent_clears_only_its_own_request() {
        let (host, agent) = ends();
        agent.request(1, 0);
        agent.request(2, 0);
        agent.leave(1);
        assert_eq!(host.request().0, 2);
        agent.leave(2);
        assert_eq!(host.request().0, 0);
    }

    #[test]
    fn rings_are_counted_by_vector() {
        let (host, agent) = ends();
        for vector in [0, 9, 9, 31] {
            agent.ring(vector);
        }
        assert_eq!([0, 9, 31, 1].map(|vector| host.rings(vector)), [1, 2, 1, 0]);
    }

    #[test]
    fn a_restarted_host_has_another_life() {
        let (host, agent) = ends();
        agent.request(1, 0);
        host.close();
        assert_eq!(agent.greeting(), None);
        let host = HostEnd::new(host.window().clone(), LINES);
        host.greet(greeting(10));
        assert_eq!(agent.greeting().map(|greeting| greeting.life), Some(10));
        assert_eq!(host.request().0, 0);
    }
}
