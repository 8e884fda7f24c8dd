//! Runtimes of sanitizers, which must come before every other library of their program.
//!
//! AddressSanitizer refuses to start behind a preloaded library. So the runtime that a program is linked to is preloaded before
//! `libwave_toe.so`, and sees the program's calls first. A runtime that is linked statically comes first anyway. Of the programs that
//! the program starts nothing is known: there, AddressSanitizer is told not to insist.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The beginnings of the file names of runtimes, as GCC and LLVM name them.
const RUNTIMES: [&str; 7] = [
    "libasan.so",
    "libhwasan.so",
    "liblsan.so",
    "libtsan.so",
    "libclang_rt.asan",
    "libclang_rt.hwasan",
    "libclang_rt.tsan",
];

/// LD_PRELOAD for a program that is linked to the libraries `needed`: runtimes, then `library`, then what `before` has besides. The loader
/// looks for a runtime as for any library that the program needs.
pub fn preload(library: OsString, needed: &[Vec<u8>], before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    let words = before.as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    let (first, others): (Vec<&[u8]>, Vec<&[u8]>) =
        words.filter(|word| !word.is_empty()).partition(|word| is_runtime(word));
    let needed = needed.iter().map(Vec::as_slice).filter(|name| is_runtime(name));
    let all: Vec<&[u8]> =
        first.into_iter().chain(needed).chain([library.as_bytes()]).chain(others).collect();
    OsString::from_vec(all.join(&b':'))
}

/// ASAN_OPTIONS for a program and those that it starts. The last of several values holds.
pub fn options(before: Option<OsString>) -> OsString {
    let mut options = before.unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push("verify_asan_link_order=0");
    options
}

fn is_runtime(library: &[u8]) -> bool {
    let name = library.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    RUNTIMES.iter().any(|runtime| name.starts_with(runtime.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_of_sanitizers_are_preloaded_first() {
        let preload = |needed: &[&str], before: Option<&str>| {
            let needed: Vec<Vec<u8>> = needed.iter().map(|name| name.as_bytes().into()).collect();
            let all = preload("/w/libwave_toe.so".into(), &needed, before.map(Into::into));
            all.into_string().unwrap()
        };
        assert_eq!(preload(&["libc.so.6"], None), "/w/libwave_toe.so");
        assert_eq!(
            preload(&["libstdc++.so.6", "libasan.so.8", "libubsan.so.1"], Some("")),
            "libasan.so.8:/w/libwave_toe.so"
        );
        assert_eq!(
            preload(&["libclang_rt.asan-x86_64.so"], Some("libjemalloc.so.2 /x/libtsan.so.2")),
            "/x/libtsan.so.2:libclang_rt.asan-x86_64.so:/w/libwave_toe.so:libjemalloc.so.2"
        );
    }
}
