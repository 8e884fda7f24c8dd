//! Strings, arrays and metadata pairs that C passes by pointer.

use std::ffi::{CStr, c_char, c_void};

use wave_user::rpc::push_pair;

use crate::answer::Failure;

/// A metadata pair.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wave_rpc_pair {
    /// The key. Ends with a zero byte in pairs from C; has `key_bytes` bytes in pairs for C.
    pub key: *const c_char,
    /// Length of the key in bytes; ignored in pairs from C.
    pub key_bytes: usize,
    /// The value: ASCII from 0x20 to 0x7e, or any bytes if the key ends with `-bin`.
    pub value: *const c_void,
    /// Length of the value in bytes.
    pub value_bytes: usize,
}

/// Reads a null-terminated string from C. `name` is for the error.
///
/// # Safety
/// `text` is null or null-terminated, and does not change while the result is used.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// Reads an array of `count` elements from C. `name` is for the error.
///
/// # Safety
/// `first` is null or points to `count` elements, which do not change while the result is used.
pub(crate) unsafe fn slice<'a, T>(
    name: &str,
    first: *const T,
    count: usize,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Failure::argument(format!(
            "{name} is null or misaligned; its count is {count}"
        )));
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument(format!("{name} has an impossible count, {count}")));
    }
    // SAFETY: not null, aligned, of a possible size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Reads pairs from C, and encodes them.
///
/// # Safety
/// As for [`slice`] and [`text`], for the pairs, their keys and their values.
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
