//! Strings, bytes and pairs that C names by a pointer.

use std::ffi::{CStr, c_char, c_void};

use wave_user::rpc::push_pair;

use crate::answer::Failure;

/// A key of metadata with its value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wave_rpc_pair {
    /// Ends with a zero byte where C gives it; of so many bytes where C gets it.
    pub key: *const c_char,
    /// Length of the key in bytes.
    pub key_bytes: usize,
    /// The value: any bytes.
    pub value: *const c_void,
    /// Length of the value in bytes.
    pub value_bytes: usize,
}

/// A string of C's that ends with a zero byte.
///
/// # Safety
/// It does, or is null; and stays so for as long as the result is used.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// So many of C's.
///
/// # Safety
/// `first` points to so many, or is null; and they stay for as long as the result is used.
pub(crate) unsafe fn slice<'a, T>(
    name: &str,
    first: *const T,
    count: usize,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Failure::argument(format!("{name} is null or not aligned, but has {count}")));
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument(format!("{name} has {count}, which no memory holds")));
    }
    // SAFETY: not null, aligned, of a possible size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Pairs, encoded.
///
/// # Safety
/// As [`slice`] and [`text`], for the pairs and what they point to.
pub(crate) unsafe fn pairs(first: *const wave_rpc_pair, count: usize) -> Result<Vec<u8>, Failure> {
    let mut encoded = Vec::new();
    // SAFETY: the caller's promise.
    for pair in unsafe { slice("pairs", first, count) }? {
        // SAFETY: as above.
        let key = unsafe { text("a pair's key", pair.key) }?;
        // SAFETY: as above.
        let value = unsafe { slice("a pair's value", pair.value.cast(), pair.value_bytes) }?;
        push_pair(&mut encoded, key, value)
            .map_err(|error| Failure::argument(format!("the pair {key:?}: {error}")))?;
    }
    Ok(encoded)
}
