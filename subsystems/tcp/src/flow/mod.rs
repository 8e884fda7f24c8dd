//! State of a data path's connections, in the parts that the stages own.

pub mod disorder;
pub mod intervals;
pub mod optional_time;
pub mod prr;
pub mod scoreboard;
pub mod state;
pub mod table;

#[cfg(test)]
pub(crate) mod tests {
    use std::net::SocketAddr;

    use crate::context::ContextId;
    use crate::datapath::{Established, Fin, Limits, Receiving, Ring, Sending, Tuple};
    use crate::seq::Seq;

    /// A new connection, with rings of 64 KiB each way.
    pub(crate) fn established() -> Established {
        let ring = |offset| Ring { offset, bytes: 1 << 16 };
        Established {
            tuple: Tuple {
                local: SocketAddr::from(([10, 0, 0, 2], 80)),
                remote: SocketAddr::from(([10, 0, 0, 1], 5000)),
            },
            peer_mac: [2; 6],
            context: ContextId { process: 0, context: 0 },
            socket: 7,
            sending: Sending {
                ring: ring(0),
                base: Seq(u32::MAX - 100),
                acknowledged: 0,
                sent: 0,
                written: 0,
                edge: 1 << 16,
                fin: Fin::No,
                scale: 0,
                mss: 1000,
                filled: 1 << 16,
            },
            receiving: Receiving {
                ring: ring(1 << 16),
                base: Seq(u32::MAX - 1000),
                received: 0,
                read: 0,
                edge: 1 << 16,
                intervals: Default::default(),
                fin: None,
                scale: 0,
                filled: 1 << 16,
            },
            timestamps: None,
            sack_permitted: false,
            ecn: None,
            is_eager: false,
            limits: Limits { window_bytes: 1 << 20, ..Limits::default() },
        }
    }
}
