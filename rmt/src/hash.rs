//! Hashes of fields: the hash units of a stage, which compute cyclic redundancy checks.

use crc::{CRC_16_IBM_SDLC, CRC_16_XMODEM, CRC_32_ISCSI, CRC_32_ISO_HDLC, Crc, Table};

use crate::field::{Field, Phv};

/// A checksum that a hash unit computes; the names are those of the crate `crc`'s catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polynomial {
    /// CRC-32/ISO-HDLC, Ethernet's.
    Crc32,
    /// CRC-32/ISCSI.
    Crc32c,
    /// CRC-16/IBM-SDLC.
    Crc16,
    /// CRC-16/XMODEM.
    Crc16Xmodem,
}

impl Polynomial {
    /// Bits of the checksum.
    pub const fn bits(self) -> u8 {
        match self {
            Polynomial::Crc32 | Polynomial::Crc32c => 32,
            Polynomial::Crc16 | Polynomial::Crc16Xmodem => 16,
        }
    }
}

const CRC32: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISO_HDLC);
const CRC32C: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISCSI);
const CRC16: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&CRC_16_IBM_SDLC);
const CRC16_XMODEM: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&CRC_16_XMODEM);

/// A hash of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash<'p> {
    /// The hashed fields, in order. Each enters as four bytes, the highest first.
    pub fields: &'p [Field],
    /// The checksum.
    pub polynomial: Polynomial,
    /// Number of bits of the result, the lowest of the checksum.
    pub bits: u8,
}

impl Hash<'_> {
    /// The hash of a packet's fields.
    #[inline]
    pub fn of<const WORD: u8>(&self, phv: &Phv<WORD>) -> u32 {
        let bytes = self.fields.iter().map(|field| phv.get(*field).to_be_bytes());
        macro_rules! digest {
            ($crc:ident) => {{
                let mut digest = $crc.digest();
                bytes.for_each(|bytes| digest.update(&bytes));
                u32::from(digest.finalize())
            }};
        }
        let value = match self.polynomial {
            Polynomial::Crc32 => digest!(CRC32),
            Polynomial::Crc32c => digest!(CRC32C),
            Polynomial::Crc16 => digest!(CRC16),
            Polynomial::Crc16Xmodem => digest!(CRC16_XMODEM),
        };
        value & crate::field::mask(self.bits)
    }
}
