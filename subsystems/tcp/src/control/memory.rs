//! The control plane's view of a host's payload memory.

/// A host's payload memory, as the control plane sees it.
pub trait PayloadMemory {
    /// Its length in bytes.
    fn bytes(&self) -> u64;

    /// Whether the host has memory behind these bytes, which must be within [`bytes`](PayloadMemory::bytes). If so, the stack
    /// may use them from then on.
    fn is_backed(&mut self, at: u64, bytes: u32) -> bool;
}

/// A memory of this many bytes that are all present, for simulations.
impl PayloadMemory for u64 {
    fn bytes(&self) -> u64 {
        *self
    }

    fn is_backed(&mut self, _at: u64, _bytes: u32) -> bool {
        true
    }
}
