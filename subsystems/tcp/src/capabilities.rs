//! What a data path can do for a connection. The control plane offers and accepts nothing else in a handshake (docs/adr/0111).

use crate::datapath::{Echo, Established};

/// What the connections of a data path may agree on in their handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Timestamps (RFC 7323, 3).
    pub timestamps: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Window scales of both sides (RFC 7323, 2), up to the largest.
    pub window_scale: bool,
    /// Ways to echo congestion marks; none: connections do not agree on ECN (RFC 3168).
    pub echoes: &'static [Echo],
    /// Connections over IPv6.
    pub ipv6: bool,
}

impl Capabilities {
    /// Everything that the control plane knows.
    pub const ALL: Capabilities = Capabilities {
        timestamps: true,
        sack: true,
        window_scale: true,
        echoes: &[Echo::UntilReduced, Echo::Exact],
        ipv6: true,
    };

    /// What a connection needs of its data path. Selective acknowledgements are not needed: a side that has agreed on them may
    /// send none.
    pub fn needed_by(established: &Established) -> Capabilities {
        let Established { tuple, sending, receiving, timestamps, ecn, .. } = established;
        Capabilities {
            timestamps: timestamps.is_some(),
            sack: false,
            window_scale: (sending.scale, receiving.scale) != (0, 0),
            echoes: ecn.map_or(&[], |ecn| ecn.echo.alone()),
            ipv6: tuple.local.is_ipv6(),
        }
    }

    /// The first of the `needed` capabilities that is missing here.
    pub fn missing(&self, needed: &Capabilities) -> Option<&'static str> {
        let has_echoes = needed.echoes.iter().all(|echo| self.echoes.contains(echo));
        let all = [
            (needed.timestamps && !self.timestamps, "timestamps"),
            (needed.sack && !self.sack, "selective acknowledgements"),
            (needed.window_scale && !self.window_scale, "window scales"),
            (!has_echoes, "echoes of congestion marks"),
            (needed.ipv6 && !self.ipv6, "IPv6"),
        ];
        all.into_iter().find(|(is_missing, _)| *is_missing).map(|(_, name)| name)
    }
}

impl Echo {
    /// A list of this way alone.
    pub const fn alone(self) -> &'static [Echo] {
        match self {
            Echo::UntilReduced => &[Echo::UntilReduced],
            Echo::Exact => &[Echo::Exact],
        }
    }
}
