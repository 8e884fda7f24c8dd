//! A link that is chosen at run time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use wave_core::link::{Dma, Doorbell, Home, Mapping, Port, Side, Span, Ticket, Waiter, Window};

use crate::costs::{Costs, CostsError};
use crate::doorbell::{EventFd, wait_for_either};
use crate::memory::Memory;
use crate::model::{
    Charges, ModelDma, ModelDoorbell, ModelError, ModelPort, ModelWindow, RealTime, extra_lines,
};
use crate::shm::{ShmDma, ShmPort, ShmWindow};

/// A link by its kind and costs.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkSpec {
    /// Coherent memory that both processes map.
    Shm,
    /// A modelled interconnect with these costs, in real time.
    Model(Box<Costs>),
}

/// Why a link cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The text names no link: its author's fault (the peer's, if the text came in an offer).
    #[error("neither `shm` nor a cost file: {0}")]
    Text(#[from] CostsError),
    /// Memory or page types do not fit the model.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl LinkSpec {
    /// A link by name: `shm`, or a modelled one of [`Costs::builtin_names`].
    pub fn builtin(name: &str) -> Option<LinkSpec> {
        match name {
            "shm" => Some(LinkSpec::Shm),
            name => Costs::builtin(name).map(|costs| LinkSpec::Model(Box::new(costs))),
        }
    }

    /// Reads what [`LinkSpec::to_text`] wrote, or a cost file.
    pub fn parse(text: &str) -> Result<LinkSpec, LinkError> {
        match text.trim() {
            "shm" => Ok(LinkSpec::Shm),
            text => Ok(LinkSpec::Model(Box::new(Costs::parse(text)?))),
        }
    }

    /// The link as text, for an offer: `shm`, or the whole cost file.
    pub fn to_text(&self) -> String {
        match self {
            LinkSpec::Shm => "shm".to_owned(),
            LinkSpec::Model(costs) => costs.to_toml(),
        }
    }

    /// The link's name in results.
    pub fn name(&self) -> &str {
        match self {
            LinkSpec::Shm => "shm",
            LinkSpec::Model(costs) => &costs.name,
        }
    }

    /// Whether each side's caches see what the other stores.
    pub const fn is_coherent(&self) -> bool {
        match self {
            LinkSpec::Shm => true,
            LinkSpec::Model(costs) => costs.coherent,
        }
    }

    /// Lines of the extra region that this link needs for regions of this many lines.
    pub fn extra_lines(&self, lines_nic: u32, lines_host: u32) -> u32 {
        match self {
            LinkSpec::Shm => 0,
            LinkSpec::Model(_) => extra_lines(lines_nic, lines_host),
        }
    }

    /// Access for one context of `side`. Lines that `page_types` leaves out are write-back in near
    /// memory and uncached in far memory; coherent memory has no page types.
    pub fn port(
        &self,
        memory: &Arc<Memory>,
        side: Side,
        page_types: &[(Span, Mapping)],
    ) -> Result<AnyPort, LinkError> {
        // Contexts must differ where hardware leaves the behaviour open. In real time, nobody can rely
        // on which context gets which seed.
        static SEED: AtomicU64 = AtomicU64::new(1);
        match self {
            LinkSpec::Shm => Ok(AnyPort::from(ShmPort::new(memory))),
            LinkSpec::Model(costs) => {
                let seed = SEED.fetch_add(1, Relaxed);
                let memory = memory.clone();
                let port = ModelPort::new(memory, side, costs, page_types, RealTime, seed)?;
                Ok(AnyPort::from(port))
            }
        }
    }

    /// The doorbell `vector` of this link, rung through `bell`.
    pub fn doorbell(
        &self,
        memory: &Arc<Memory>,
        vector: usize,
        bell: EventFd,
    ) -> Result<AnyBell, LinkError> {
        match self {
            LinkSpec::Shm => Ok(AnyBell::Event(bell)),
            LinkSpec::Model(costs) => {
                let bell = ModelDoorbell::new(memory.clone(), vector, bell, costs, RealTime)?;
                Ok(AnyBell::Model(Box::new(bell)))
            }
        }
    }
}

/// A context's access to a link of any kind.
#[derive(Debug)]
pub struct AnyPort {
    nic: AnyWindow,
    host: AnyWindow,
    dma: AnyDma,
}

// SAFETY: the parts come from one port, which was `Send`; they stay together in these private
// fields, and none is ever handed out by value (see `ModelPort`).
unsafe impl Send for AnyPort {}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<ShmPort>();
    is_send::<ModelPort<RealTime>>();
};

impl AnyPort {
    /// What this context was charged since the last call; `None` if the link is not modelled.
    pub fn take_charges(&self) -> Option<Charges> {
        match &self.dma {
            AnyDma::Shm(_) => None,
            AnyDma::Model(dma) => Some(dma.take_charges()),
        }
    }

    /// What this context was charged so far; `None` if the link is not modelled.
    pub fn charges(&self) -> Option<Charges> {
        match &self.dma {
            AnyDma::Shm(_) => None,
            AnyDma::Model(dma) => Some(dma.charges()),
        }
    }
}

impl From<ShmPort> for AnyPort {
    fn from(port: ShmPort) -> AnyPort {
        let (nic, host, dma) = port.into_parts();
        AnyPort { nic: AnyWindow::Shm(nic), host: AnyWindow::Shm(host), dma: AnyDma::Shm(dma) }
    }
}

impl From<ModelPort<RealTime>> for AnyPort {
    fn from(port: ModelPort<RealTime>) -> AnyPort {
        let (nic, host, dma) = port.into_parts();
        let (nic, host) = (AnyWindow::Model(nic), AnyWindow::Model(host));
        AnyPort { nic, host, dma: AnyDma::Model(dma) }
    }
}

impl Port for AnyPort {
    type Window = AnyWindow;
    type Dma = AnyDma;

    #[inline(always)]
    fn window(&self, home: Home) -> &AnyWindow {
        match home {
            Home::Nic => &self.nic,
            Home::Host => &self.host,
        }
    }

    #[inline(always)]
    fn dma(&self) -> &AnyDma {
        &self.dma
    }
}

/// A context's view of a region over a link of any kind.
#[derive(Debug)]
pub enum AnyWindow {
    /// A window of coherent memory.
    Shm(ShmWindow),
    /// A window over a modelled link.
    Model(ModelWindow<RealTime>),
}

macro_rules! each_link {
    ($kind:ident, $this:expr, $inner:ident => $call:expr) => {
        match $this {
            $kind::Shm($inner) => $call,
            $kind::Model($inner) => $call,
        }
    };
}

impl Window for AnyWindow {
    #[inline(always)]
    fn load(&self, line: u32, word: usize) -> u64 {
        each_link!(AnyWindow, self, window => window.load(line, word))
    }

    #[inline(always)]
    fn store(&self, line: u32, word: usize, value: u64) {
        each_link!(AnyWindow, self, window => window.store(line, word, value));
    }

    #[inline(always)]
    fn read_line(&self, line: u32, words: &mut [u64]) {
        each_link!(AnyWindow, self, window => window.read_line(line, words));
    }

    #[inline(always)]
    fn write_line(&self, line: u32, words: &[u64], last: u64) {
        each_link!(AnyWindow, self, window => window.write_line(line, words, last));
    }

    #[inline(always)]
    fn publish(&self) {
        each_link!(AnyWindow, self, window => window.publish());
    }

    #[inline(always)]
    fn fence(&self) {
        each_link!(AnyWindow, self, window => window.fence());
    }

    #[inline(always)]
    fn flush(&self, line: u32) {
        each_link!(AnyWindow, self, window => window.flush(line));
    }

    #[inline(always)]
    fn prefetch(&self, line: u32) {
        each_link!(AnyWindow, self, window => window.prefetch(line));
    }

    #[inline(always)]
    fn release(&self, line: u32) {
        each_link!(AnyWindow, self, window => window.release(line));
    }
}

/// A context's copy engine on a link of any kind.
#[derive(Debug)]
pub enum AnyDma {
    /// The engine of coherent memory.
    Shm(ShmDma),
    /// The engine of a modelled link.
    Model(ModelDma<RealTime>),
}

impl Dma for AnyDma {
    #[inline]
    fn copy(&self, from: Span, to: Span) -> Ticket {
        each_link!(AnyDma, self, dma => dma.copy(from, to))
    }

    #[inline]
    fn is_done(&self, ticket: Ticket) -> bool {
        each_link!(AnyDma, self, dma => dma.is_done(ticket))
    }
}

/// Either end of a doorbell vector, on a link of any kind.
#[derive(Debug)]
pub enum AnyBell {
    /// Without added costs: as fast as the system is.
    Event(EventFd),
    /// With the costs of a modelled interrupt.
    Model(Box<ModelDoorbell<RealTime>>),
}

impl AnyBell {
    /// The underlying event descriptor: to pass to a peer, to poll, or to drain.
    pub fn event_fd(&self) -> &EventFd {
        match self {
            AnyBell::Event(bell) => bell,
            AnyBell::Model(bell) => bell.event_fd(),
        }
    }
}

impl AnyBell {
    /// Charges the receiver for a ring that interrupted it without a wait.
    pub fn receive(&self) {
        if let AnyBell::Model(bell) = self {
            bell.receive();
        }
    }

    /// As [`Waiter::wait`], but also wakes when `own` is rung, which costs nothing.
    pub fn wait_with(&self, own: &EventFd, timeout: Option<Duration>) {
        let [_, rung] = wait_for_either([own, self.event_fd()], timeout);
        if rung {
            self.receive();
        }
    }
}

impl Doorbell for AnyBell {
    fn ring(&self) {
        match self {
            AnyBell::Event(bell) => bell.ring(),
            AnyBell::Model(bell) => bell.ring(),
        }
    }
}

impl Waiter for AnyBell {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        match self {
            AnyBell::Event(bell) => bell.wait(timeout),
            AnyBell::Model(bell) => bell.wait(timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_round_trips_through_its_text() {
        for name in ["shm", "mount-evans", "coherent"] {
            let link = LinkSpec::builtin(name).unwrap();
            assert_eq!(link.name(), name);
            assert_eq!(LinkSpec::parse(&link.to_text()).unwrap(), link);
        }
        assert!(LinkSpec::builtin("none").is_none());
        assert!(LinkSpec::parse("none").is_err());
    }

    #[test]
    fn two_threads_exchange_lines_over_every_link() {
        for name in ["shm", "mount-evans", "coherent"] {
            let link = LinkSpec::builtin(name).unwrap();
            let (memory, _fd) = Memory::create("test", 4, 4, link.extra_lines(4, 4)).unwrap();
            let memory = Arc::new(memory);
            let wc = (Span { home: Home::Nic, line: 0, lines: 2 }, Mapping::WriteCombining);
            let wt = (Span { home: Home::Nic, line: 2, lines: 2 }, Mapping::WriteThrough);
            let host = link.port(&memory, Side::Host, &[wc, wt]).unwrap();
            let agent = link.port(&memory, Side::Agent, &[]).unwrap();
            let laps = 2_000u64;
            let thread = std::thread::spawn(move || {
                let nic = agent.window(Home::Nic);
                for lap in 1..=laps {
                    while nic.load(0, 7) != lap {
                        std::thread::yield_now();
                    }
                    let mut words = [0; 7];
                    nic.read_line(0, &mut words);
                    assert_eq!(words, [lap; 7]);
                    nic.write_line(2, &[lap; 7], lap);
                }
            });
            let nic = host.window(Home::Nic);
            for lap in 1..=laps {
                nic.write_line(0, &[lap; 7], lap);
                nic.publish();
                while nic.load(2, 7) != lap {
                    nic.flush(2);
                    std::thread::yield_now();
                }
                let mut words = [0; 7];
                nic.read_line(2, &mut words);
                assert_eq!(words, [lap; 7]);
            }
            thread.join().unwrap();
            assert_eq!(host.charges().is_some(), name != "shm");
        }
    }
}
