//! A hash of all that happens in a history.

/// Hash of the words added so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(pub u64);

impl Trace {
    pub fn add(&mut self, word: u64) {
        // FNV-1a's prime, on words.
        self.0 = (self.0 ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    }

    pub fn add_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }
}
