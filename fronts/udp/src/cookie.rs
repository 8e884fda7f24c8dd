//! Cookies: a returned cookie proves that its sender receives datagrams at its address. Before that, the front keeps no state
//! for it.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher24;

/// Secret key of one agent.
pub struct Key([u8; 16]);

impl Key {
    pub fn random() -> Key {
        Key(rand::random())
    }

    /// The cookie of an address and an incarnation; never 0.
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
