//! Bytes to send that another process may change at the same time.

use std::marker::PhantomData;
use std::ptr;

use wave_links::payload::Part;

/// A run of bytes to send, as address and length.
///
/// The bytes may lie in memory that is shared with another process, which changes them at any time. So a part never
/// becomes a Rust reference to them: a wire hands it to the kernel as an `iovec`, or copies it with volatile loads, so that each
/// byte is read once. A part is neither [`Send`] nor [`Sync`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawPart<'a> {
    /// The bytes in the kernel's form.
    vector: libc::iovec,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> RawPart<'a> {
    /// No bytes.
    pub const EMPTY: RawPart<'static> = RawPart {
        vector: libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 },
        bytes: PhantomData,
    };

    /// A part with the bytes of an ordinary slice.
    pub fn of(bytes: &'a [u8]) -> RawPart<'a> {
        // SAFETY: the slice is readable for `'a`, and is not written to.
        unsafe { RawPart::new(bytes.as_ptr(), bytes.len()) }
    }

    /// A part of `len` bytes from `address` on.
    ///
    /// # Safety
    ///
    /// The bytes are mapped and readable for `'a`. Meanwhile no other thread of this process writes to them through this mapping. The
    /// calling thread may, since a part does not leave it, and so may whoever has the memory mapped elsewhere: Rust's memory model
    /// covers neither other processes nor other mappings.
    pub unsafe fn new(address: *const u8, len: usize) -> RawPart<'a> {
        let vector = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: len };
        RawPart { vector, bytes: PhantomData }
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.vector.iov_len
    }

    /// Whether the part has no bytes.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The part without its first `count` bytes; empty if it has no more.
    pub fn skip(self, count: usize) -> RawPart<'a> {
        let count = count.min(self.len());
        // SAFETY: the pointer is at most the part's end; the rest is readable, as the whole is.
        unsafe { RawPart::new(self.vector.iov_base.cast::<u8>().add(count), self.len() - count) }
    }

    /// The part in the kernel's form.
    pub(crate) fn vector(self) -> libc::iovec {
        self.vector
    }

    /// Copies the part's first bytes to `out`, up to the length of the shorter one. For bytes that another process changes
    /// at the same time, the old or the new value is copied.
    pub fn copy_to(self, out: &mut [u8]) {
        let mut from = self.vector.iov_base.cast::<u8>();
        let out_len = out.len().min(self.len());
        let mut out = &mut out[..out_len];
        // Byte by byte up to the first aligned word, then word by word, and the rest byte by byte.
        while !out.is_empty() {
            let step = if from.cast::<u64>().is_aligned() && out.len() >= 8 {
                // SAFETY: eight aligned bytes of this part, readable by the contract of `new`, to which no other thread of this
                // process writes.
                let word = unsafe { from.cast::<u64>().read_volatile() };
                out[..8].copy_from_slice(&word.to_ne_bytes());
                8
            } else {
                // SAFETY: as above, for one byte.
                out[0] = unsafe { from.read_volatile() };
                1
            };
            out = &mut out[step..];
            // SAFETY: `step` bytes of the part were left, so this is at most its end.
            from = unsafe { from.add(step) };
        }
    }
}

impl<'a> From<Part<'a>> for RawPart<'a> {
    /// Bytes of a host's payload memory.
    fn from(part: Part<'a>) -> RawPart<'a> {
        // SAFETY: a part is mapped and readable for `'a`. Only this thread reaches its mapping: a `Payload` is not `Sync`, and stays here
        // while a part borrows it.
        unsafe { RawPart::new(part.pointer(), part.len()) }
    }
}

impl std::fmt::Debug for RawPart<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawPart({} bytes)", self.len())
    }
}

impl Default for RawPart<'_> {
    fn default() -> Self {
        RawPart::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_complete_at_every_alignment() {
        let bytes: Vec<u8> = (0..64).collect();
        for start in 0..9 {
            for len in 0..40 {
                let mut out = [0xff; 48];
                RawPart::of(&bytes[start..start + len]).copy_to(&mut out);
                assert_eq!(out[..len], bytes[start..start + len]);
                assert_eq!(out[len..], [0xff; 48][len..], "bytes beyond the part were written");
            }
        }
        let mut short = [0; 3];
        RawPart::of(&bytes).copy_to(&mut short);
        assert_eq!(short, [0, 1, 2]);
        RawPart::EMPTY.copy_to(&mut short);
        assert_eq!(short, [0, 1, 2]);
    }
}
