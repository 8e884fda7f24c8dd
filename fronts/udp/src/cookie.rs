//! Cookies: who returns one gets what is sent to its address. Nothing is kept for those who do not.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher24;

/// The secret of one agent.
pub struct Key([u8; 16]);

impl Key {
    /// One that nobody knows.
    pub fn random() -> Key {
        Key(rand::random())
    }

    /// The cookie of an address in an incarnation; never 0.
    pub fn cookie(&self, address: SocketAddr, incarnation: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        match address.ip() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.write_u16(address.port());
        hasher.write_u64(incarnation);
        hasher.finish().max(1)
    }
}
