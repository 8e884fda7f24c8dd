//! The number of bytes that an access puts on a PCIe link, headers and framing included (Neugebauer et al.,
//! "Understanding PCIe performance for end host networking", SIGCOMM 2018, section 3).

use wave_core::link::Home;

/// The largest payload of one packet.
const PAYLOAD_MAX: u64 = 256;
/// The largest read of one request.
const READ_MAX: u64 = 512;
/// Completions break at multiples of this.
const COMPLETION_BOUNDARY: u64 = 64;
/// Framing, sequence number, header and checksums of a write or a read request.
const REQUEST_BYTES: u64 = 24;
/// Framing, sequence number, header and checksums of a completion.
const COMPLETION_BYTES: u64 = 20;

/// Bytes that crossed the link, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// From the host to the NIC.
    pub to_nic: u64,
    /// From the NIC to the host.
    pub to_host: u64,
}

impl Carried {
    fn one_way(to: Home, bytes: u64) -> Carried {
        match to {
            Home::Nic => Carried { to_nic: bytes, to_host: 0 },
            Home::Host => Carried { to_nic: 0, to_host: bytes },
        }
    }

    /// A posted write of `bytes` into memory at `home`.
    pub fn write(home: Home, bytes: u64) -> Carried {
        Carried::one_way(home, bytes.div_ceil(PAYLOAD_MAX) * REQUEST_BYTES + bytes)
    }

    /// A read of `bytes` from memory at `home`, by the other side.
    pub fn read(home: Home, bytes: u64) -> Carried {
        let request = Carried::one_way(home, bytes.div_ceil(READ_MAX) * REQUEST_BYTES);
        let other = match home {
            Home::Nic => Home::Host,
            Home::Host => Home::Nic,
        };
        let packets = bytes.div_ceil(PAYLOAD_MAX.min(COMPLETION_BOUNDARY));
        request + Carried::one_way(other, packets * COMPLETION_BYTES + bytes)
    }

    /// Bytes in both directions.
    pub fn total(self) -> u64 {
        self.to_nic + self.to_host
    }
}

impl std::ops::Add for Carried {
    type Output = Carried;
    fn add(self, other: Carried) -> Carried {
        Carried { to_nic: self.to_nic + other.to_nic, to_host: self.to_host + other.to_host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_match_the_published_formulas() {
        assert_eq!(Carried::write(Home::Nic, 8), Carried { to_nic: 32, to_host: 0 });
        assert_eq!(Carried::write(Home::Host, 300), Carried { to_nic: 0, to_host: 348 });
        assert_eq!(Carried::read(Home::Nic, 8), Carried { to_nic: 24, to_host: 28 });
        assert_eq!(
            Carried::read(Home::Host, 1024),
            Carried { to_nic: 16 * 20 + 1024, to_host: 48 }
        );
    }
}
