//! Congestion control: pure policies. What happened comes in, a window goes out.

mod dctcp;
mod reno;

pub use dctcp::Dctcp;
pub use reno::Reno;

/// Which policy connections have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Losses alone.
    #[default]
    Reno,
    /// Losses, and marks of queues in a network whose switches and hosts all agree on them.
    Dctcp,
}

/// One connection's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// See [`Reno`].
    Reno(Reno),
    /// See [`Dctcp`].
    Dctcp(Dctcp),
}

impl Congestion {
    /// A connection whose segments carry at most so many bytes. Without ECN ([`Kind::Dctcp`]'s marks) only losses count.
    pub fn new(kind: Kind, mss: u16, has_ecn: bool) -> Congestion {
        match kind {
            Kind::Dctcp if has_ecn => Congestion::Dctcp(Dctcp::new(mss)),
            _ => Congestion::Reno(Reno::new(mss)),
        }
    }

    /// Most bytes that are sent and not acknowledged.
    pub fn window(&self) -> u32 {
        match self {
            Congestion::Reno(reno) => reno.window(),
            Congestion::Dctcp(dctcp) => dctcp.window(),
        }
    }

    /// Where slow start ends.
    pub fn threshold(&self) -> u32 {
        match self {
            Congestion::Reno(reno) => reno.threshold(),
            Congestion::Dctcp(dctcp) => dctcp.threshold(),
        }
    }

    /// Bytes were acknowledged.
    pub fn on_acknowledged(&mut self, news: &Acknowledgement) {
        match self {
            Congestion::Reno(reno) => reno.on_acknowledged(news),
            Congestion::Dctcp(dctcp) => dctcp.on_acknowledged(news),
        }
    }

    /// Duplicate acknowledgements told of a loss, with so many bytes outstanding.
    pub fn on_loss(&mut self, outstanding: u32) {
        match self {
            Congestion::Reno(reno) => reno.on_loss(outstanding),
            Congestion::Dctcp(dctcp) => dctcp.on_loss(outstanding),
        }
    }

    /// The retransmission timer ran out, with so many bytes outstanding. `again` if it had for the same bytes.
    pub fn on_timeout(&mut self, outstanding: u32, again: bool) {
        match self {
            Congestion::Reno(reno) => reno.on_timeout(outstanding, again),
            Congestion::Dctcp(dctcp) => dctcp.on_timeout(outstanding, again),
        }
    }
}

/// What a policy hears of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// All before it is acknowledged.
    pub position: u64,
    /// Bytes that were not acknowledged before.
    pub bytes: u32,
    /// Those among them whose packets met a long queue, by the peer's echo (RFC 3168, RFC 8257).
    pub marked: u32,
    /// All before it was sent.
    pub sent: u64,
    /// Whether the window held sending back. Otherwise it does not grow (RFC 7661).
    pub was_full: bool,
}
