//! What the control plane asks of a host's payload memory.

/// A host's payload memory, as far as the control plane looks at it.
pub trait PayloadMemory {
    /// Its length in bytes.
    fn bytes(&self) -> u64;

    /// Whether the host has memory at these bytes, which the stack may use from then on. They lie within it.
    fn holds(&mut self, at: u64, bytes: u32) -> bool;
}

/// A memory of so many bytes that are all there, as simulations have it.
impl PayloadMemory for u64 {
    fn bytes(&self) -> u64 {
        *self
    }

    fn holds(&mut self, _at: u64, _bytes: u32) -> bool {
        true
    }
}
